"""Manifests are what the resources' published schemas take, field by field: the API server drops a field that it does not know in silence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbw.launching import Job, Mount, render

DATA = Path(__file__).parent / "data"
KINDS = ("jobset", "mpijob", "trainjob", "leaderworkerset")


def job(**fields: Any) -> Job:
    return Job(
        **(
            {
                "argv": ("all_reduce_perf", "-b", "8"),
                "ranks": 16,
                "ranks_per_node": 8,
                "gpus_per_rank": 1,
                "image": "nccl-tests",
            }
            | fields
        )
    )


def manifest(kind: str, job: Job, options: list[str] | None = None) -> dict[str, Any]:
    return yaml.safe_load(render(job, kind, options or []).files[0].text)


def schema(kind: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{kind}.json").read_text())["versions"][version]
    return found


def unknown_fields(value: Any, described: dict[str, Any], where: str = "") -> list[str]:
    """Paths of fields that the schema does not name."""
    if isinstance(value, list):
        return [
            path
            for n, one in enumerate(value)
            for path in unknown_fields(one, described.get("items", {}), f"{where}[{n}]")
        ]
    if not isinstance(value, dict) or described.get("x-kubernetes-preserve-unknown-fields"):
        return []
    properties, rest = described.get("properties", {}), described.get("additionalProperties")
    if where in (".metadata",):  # known to the API server, described in no resource of its own
        return [f"{where}.{key}" for key in value if key not in ("name", "namespace", "labels", "annotations")]
    found = []
    for key, one in value.items():
        if key in properties:
            found += unknown_fields(one, properties[key], f"{where}.{key}")
        elif isinstance(rest, dict):
            found += unknown_fields(one, rest, f"{where}.{key}")
        elif not rest:
            found.append(f"{where}.{key}")
    return found


def problems(kind: str, made: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema: pip install busbw[test]")
    described = schema(kind, made["apiVersion"].rpartition("/")[2])
    wrong = [f"{error.json_path}: {error.message}" for error in jsonschema.Draft7Validator(described).iter_errors(made)]
    return wrong + [f"{path}: unknown field" for path in unknown_fields(made, described)]


FULL = ["rdma=rdma/hca_shared_devices_a=8", "efa=32", "namespace=ml", "memory=900Gi", "cpus=90", "service_account=bench", "pull_secret=registry",
        "tolerate=a,b/c"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, []),
        ({"ranks": 1, "ranks_per_node": 1, "gpus_per_rank": 0}, []),
        ({"hosts": ("n1", "n2"), "environment": {"NCCL_DEBUG": "INFO"}, "working_directory": "/w", "mounts": (Mount("/a", "/b", True),)}, FULL),
        ({"argv": ("sh", "-c", "echo $(hostname) {{x}}: 'a\n\"b'")}, []),
    ],
)  # fmt: skip
def test_a_manifest_is_what_the_schema_takes(kind, fields, options):
    assert problems(kind, manifest(kind, job(**fields), options)) == []


@pytest.mark.parametrize("kind", ["jobset", "mpijob", "leaderworkerset"])
def test_with_the_hosts_network_names_still_resolve(kind):
    """hostNetwork alone leaves a pod with the node's DNS, in which no pod has a name."""
    made = manifest(kind, job(), ["host_network=yes"])
    assert problems(kind, made) == []
    assert pod_of(kind, made)["hostNetwork"] is True
    assert pod_of(kind, made)["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_the_check_sees_a_field_that_is_misspelt_and_a_number_that_is_text():
    made = manifest("mpijob", job())
    made["spec"]["slotsPerWorker"] = "8"
    made["spec"]["slots_per_worker"] = 8
    made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagePullpolicy"] = "Always"
    found = problems("mpijob", made)
    assert len(found) == 3
    assert any("'8' is not of type 'integer'" in one for one in found)
    assert any(one.endswith("imagePullpolicy: unknown field") for one in found)


def pod_of(kind: str, made: dict[str, Any]) -> dict[str, Any]:
    spec = made["spec"]
    path = {
        "jobset": lambda: spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
        "mpijob": lambda: spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"],
        "leaderworkerset": lambda: spec["leaderWorkerTemplate"]["workerTemplate"]["spec"],
        "trainjob": lambda: spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
    }  # fmt: skip
    found: dict[str, Any] = path[kind]()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_their_devices_and_memory(kind):
    """8 ranks of a GPU on each node: 8 GPUs a pod, a /dev/shm in memory, and pinned memory without limit, which a pod gets by CAP_IPC_LOCK."""
    made = manifest(kind, job(), ["rdma=rdma/ib=4", "efa=16", "shm=8Gi"])
    pod = pod_of(kind, made)
    container = pod["containers"][0]
    resources = container.get("resources") or made["spec"]["trainer"]["resourcesPerNode"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"].items() >= {
        "nvidia.com/gpu": "8", "rdma/ib": "4", "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "5120Mi", "memory": "32Gi",  # huge pages are granted with CPU or memory only
    }.items()  # fmt: skip
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_has_one_pod_of_the_job(kind):
    apart = pod_of(kind, manifest(kind, job()))["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [one["topologyKey"] for one in apart] == ["kubernetes.io/hostname"]
    if kind != "trainjob":  # its pods' labels are the runtime's
        template = json.dumps(manifest(kind, job()))
        assert template.count('"busbw.dev/job": "busbw"') == 2  # the pod's label, and what looks for it


def expanded(words: list[str], known: dict[str, str]) -> list[str]:
    """What Kubernetes makes of a command: $$ is $, $(NAME) a variable that is known (k8s.io/kubernetes third_party/forked/golang/expansion)."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return [re.sub(r"\$\$|\$\(([^)]*)\)", one, word) for word in words]


@pytest.mark.parametrize(
    ("kind", "index"), [("jobset", "JOB_COMPLETION_INDEX"), ("leaderworkerset", "LWS_WORKER_INDEX")]
)
def test_kubernetes_expands_the_pods_number_and_nothing_else(kind, index):
    """A command with shell variables reaches the container as it was written."""
    argv = ("sh", "-c", "echo $HOME $$ $(hostname) $(JOB_COMPLETION_INDEX)")
    words = expanded(
        pod_of(kind, manifest(kind, job(argv=argv)))["containers"][0]["command"], {index: "1", "HOME": "wrong"}
    )
    assert tuple(words[-3:]) == argv
    assert words[3:9] == ["busbw-node", "1", "8", "16", "600", "-"]
    assert "$$" in words[2]  # the script asks for its own number


def test_torchrun_in_a_pod_meets_at_node_0():
    words = expanded(
        pod_of("jobset", manifest("jobset", job(), ["ranks_by=torchrun"]))["containers"][0]["command"],
        {"JOB_COMPLETION_INDEX": "1"},
    )
    assert words[:6] == [
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=8",
        "--node-rank=1",
        "--master-addr=busbw-node-0-0.busbw",
        "--master-port=29500",
    ]


def test_sshd_leaves_port_22_to_the_node():
    """With the host's network two sshd's would want one port, so mpirun's ssh is told another."""
    made = manifest("mpijob", job(), ["host_network=yes", "ssh_port=2233"])["spec"]["mpiReplicaSpecs"]
    launcher = made["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert launcher[launcher.index("plm_rsh_args") + 1] == "-p 2233"
    worker = made["Worker"]["template"]["spec"]["containers"][0]
    assert worker["command"][-2:] == ["-p", "2233"]
    assert worker["readinessProbe"]["tcpSocket"] == {"port": 2233}


@pytest.mark.parametrize(
    ("kind", "path"),
    [("jobset", ("replicatedJobs", 0, "template", "spec")), ("mpijob", ("runPolicy",)), ("trainjob", ())],
)
def test_a_job_ends_at_its_limit_and_is_not_repeated_unseen(kind, path):
    found = manifest(kind, job(time_limit_s=90.5))["spec"]
    for step in path:
        found = found[step]
    assert found["activeDeadlineSeconds"] == 91
    assert found.get("backoffLimit", 0) == 0
