"""Manifests for Kubernetes: JobSet, MPIJob, TrainJob, LeaderWorkerSet; one pod a node, with the devices and memory that ranks need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from busbw.errors import InputError
from busbw.launching.job import Command, File, Job, Launch, whole_seconds
from busbw.launching.scripts import node_argv
from busbw.launching.torchrun import TorchrunOptions, torchrun_argv
from busbw.launching.yaml_text import yaml_text

__all__ = ["KubernetesOptions", "jobset", "leaderworkerset", "mpijob", "render_as", "trainjob"]

Manifest: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What pods ask for besides the job."""

    namespace: str = ""
    gpu: str = "nvidia.com/gpu"
    """Name of the GPU resource, such as amd.com/gpu."""
    rdma: str = ""
    """InfiniBand or RoCE devices of a pod as NAME=COUNT, the name as the cluster's device plug-in has it: rdma/hca_shared_devices_a=1."""
    efa: int = 0
    """EFA devices of a pod (4 on p4d, 32 on p5 and p5e, 16 on p5en), which also need huge pages."""
    hugepages: str = "auto"
    """2 MiB huge pages of a pod; auto: 5120Mi with EFA, none without."""
    shm: str = "16Gi"
    """Size of /dev/shm, which counts as the pod's memory; a container has 64 MiB otherwise."""
    memory: str = ""
    """Memory of a pod; with huge pages Kubernetes wants it said, and 32Gi is taken."""
    cpus: str = ""
    host_network: bool = False
    """Whether pods use the node's network, as RDMA without a network plug-in needs."""
    spread: bool = True
    """Whether two pods of the job may never share a node."""
    ranks_by: str = "script"
    """Who starts a pod's ranks: script (a shell and timeout(1) in the image), torchrun, or argv (the command itself, once a pod)."""
    mpi: str = "OpenMPI"
    """MPIJob: OpenMPI, Intel, MPICH."""
    ssh_port: int = 2222
    """MPIJob with host_network: port of the pods' sshd; 22 is the node's."""
    ssh_home: str = "/root"
    """MPIJob: home of the user that the image runs as; keys are mounted in its .ssh."""
    runtime: str = "torch-distributed"
    """TrainJob: name of the ClusterTrainingRuntime."""
    service_account: str = ""
    pull_secret: str = ""
    tolerate: str = ""
    """Keys of taints to tolerate, with commas between; nvidia.com/gpu if the job has GPUs."""


Made = Callable[[Job, KubernetesOptions], Manifest]


def render_as(make: Made, launcher: str) -> Callable[[Job, KubernetesOptions], Launch]:
    """What renders a kind: its manifest as a file, and the kubectl that hands it in."""

    def render(job: Job, options: KubernetesOptions) -> Launch:
        manifest = make(job, options)
        text = yaml_text(manifest)
        name = f"{job.name}.yaml"
        apply = Command(("kubectl", "create", "-f", name), range(0))
        return Launch(launcher, (apply,), (File(name, text),), starts_here=False)

    return render


def jobset(job: Job, options: KubernetesOptions) -> Manifest:
    """A JobSet (jobset.x-k8s.io/v1alpha2): one indexed Job, a pod a node.

    A pod's number is its JOB_COMPLETION_INDEX, and node 0 has the name NAME-node-0-0.NAME in DNS. Nothing is repeated when it fails: a second
    try would hide the first.
    """
    head = f"{job.name}-node-0-0.{job.name}"
    pod = _pod(
        job, options, "JobSet", "$(JOB_COMPLETION_INDEX)", head, {**job.environment, "BUSBW_NODES": str(job.nodes)}
    )
    template = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "activeDeadlineSeconds": whole_seconds(job.time_limit_s),
        "template": pod,
    }
    return _manifest(
        *("jobset.x-k8s.io/v1alpha2", "JobSet", job, options),
        {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": template}}],
        },
    )


def leaderworkerset(job: Job, options: KubernetesOptions) -> Manifest:
    """A LeaderWorkerSet (leaderworkerset.x-k8s.io/v1): one group, its leader node 0. For what serves: its pods start again when they end."""
    pod = _pod(job, options, "LeaderWorkerSet", "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)", job.environment)
    del pod["spec"]["restartPolicy"]  # pods of a StatefulSet always start again
    return _manifest(
        *("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", job, options),
        {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": job.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": pod,
            },
        },
    )


def mpijob(job: Job, options: KubernetesOptions) -> Manifest:
    """An MPIJob (kubeflow.org/v2beta1): a launcher with mpirun, and workers with sshd; mpirun finds them in the operator's hosts file.

    The launcher is made when workers are ready, so that it need not be repeated. With the host's network sshd listens elsewhere: port 22 is
    the node's own.
    """
    job.equal_nodes("MPIJob")
    if options.mpi not in ("OpenMPI", "Intel", "MPICH"):
        raise InputError(f"mpi={options.mpi}: there are OpenMPI, Intel and MPICH.")
    image = job.needs_image("MPIJob")
    port = options.ssh_port if options.host_network else 22
    environment = dict(job.environment) | {"BUSBW_RANKS_PER_NODE": str(job.ranks_per_node)}
    names = sorted(environment)
    if options.mpi == "OpenMPI":
        argv = ["mpirun", "--allow-run-as-root", "-np", str(job.ranks), "--map-by", f"ppr:{job.ranks_per_node}:node"]
        argv += ["--bind-to", "none", "--timeout", str(whole_seconds(job.time_limit_s))]
        argv += ["--mca", "plm_rsh_args", f"-p {port}"] if port != 22 else []
        argv += [word for name in names for word in ("-x", name)]
    else:
        argv = ["mpirun", "-n", str(job.ranks), "-ppn", str(job.ranks_per_node), "-genvlist", ",".join(names)]
        if port != 22:
            # Hydra's -launcher-exec takes a program without words; ssh reads the port from its configuration.
            raise InputError(
                "MPIJob with host_network: only Open MPI can be told the port of sshd; use mpi=OpenMPI, or set Port in the image's ssh_config and leave host_network out."
            )
    worker = _pod(replace(job, environment={}), options, "MPIJob", "0", None, {})
    container = worker["spec"]["containers"][0]
    container["command"] = ["/usr/sbin/sshd", "-De", *(["-p", str(port)] if port != 22 else [])]
    container["readinessProbe"] = {"tcpSocket": {"port": port}, "initialDelaySeconds": 2, "periodSeconds": 2}
    launcher = {
        "spec": {
            "restartPolicy": "Never",
            **_access(options),
            "containers": [
                {
                    "name": "mpi-launcher",
                    "image": image,
                    "command": [_literal(word) for word in (*argv, *job.argv)],
                    "env": _env(environment),
                    **({"workingDir": job.working_directory} if job.working_directory else {}),
                }
            ],
        }
    }
    return _manifest(
        *("kubeflow.org/v2beta1", "MPIJob", job, options),
        {
            "slotsPerWorker": job.ranks_per_node,
            "mpiImplementation": options.mpi,
            "sshAuthMountPath": f"{options.ssh_home.rstrip('/')}/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": whole_seconds(job.time_limit_s),
            },
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": launcher},
                "Worker": {"replicas": job.nodes, "template": worker},
            },
        },
    )


def trainjob(job: Job, options: KubernetesOptions) -> Manifest:
    """A TrainJob (trainer.kubeflow.org/v1alpha1): the runtime's torchrun settings (PET_*) and our command; the rest is patched into its pods."""
    job.equal_nodes("TrainJob")
    if options.host_network:
        raise InputError(
            "TrainJob: its patches have no hostNetwork. Set it in the ClusterTrainingRuntime, and name that with --launcher-option runtime=NAME."
        )
    image = job.needs_image("TrainJob")
    pod = _pod(job, options, "TrainJob", "0", None, {})["spec"]
    container = pod["containers"][0]
    patched = {
        "name": "node",
        **{key: container[key] for key in ("securityContext", "volumeMounts") if key in container},
    }
    spec = {
        key: pod[key]
        for key in ("affinity", "tolerations", "volumes", "serviceAccountName", "imagePullSecrets")
        if key in pod
    }
    # torchrun takes the number of nodes, of ranks and where they meet from PET_*, which the runtime sets.
    argv = ["torchrun", "--max-restarts=0", "--no-python", *job.argv]
    patch = {
        "manager": "busbw.dev/launch",
        "trainingRuntimeSpec": {
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {"spec": {"template": {"spec": {**spec, "containers": [patched]}}}},
                        }
                    ]
                }
            }
        },
    }
    return _manifest(
        *("trainer.kubeflow.org/v1alpha1", "TrainJob", job, options),
        {
            "runtimeRef": {"name": options.runtime},
            "activeDeadlineSeconds": whole_seconds(job.time_limit_s),
            "trainer": {
                "image": image,
                "numNodes": job.nodes,
                "numProcPerNode": job.ranks_per_node,
                "command": [_literal(word) for word in argv],
                **({"env": _env(job.environment)} if job.environment else {}),
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [patch],
        },
    )


def _manifest(version: str, kind: str, job: Job, options: KubernetesOptions, spec: Manifest) -> Manifest:
    metadata = {"name": job.name, **({"namespace": options.namespace} if options.namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _pod(  # noqa: PLR0917 - what a pod differs in
    job: Job,
    options: KubernetesOptions,
    kind: str,
    node: str,
    head: str | None,
    environment: Mapping[str, str],
) -> Manifest:
    """The template of a node's pod. node: a reference to its number; head: the address of node 0."""
    container: Manifest = {
        "name": "mpi-worker" if kind == "MPIJob" else "ranks",
        "image": job.needs_image(kind),
        "command": _command(job, options, kind, node, head),
        **({"env": _env(environment)} if environment else {}),
        **({"workingDir": job.working_directory} if job.working_directory else {}),
        "resources": _resources(job, options),
        # Pinned memory of verbs and EFA is bound by RLIMIT_MEMLOCK, which a pod can't set; CAP_IPC_LOCK lifts it (mlock(2)).
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            *(
                {
                    "name": f"mount-{number}",
                    "mountPath": mount.target,
                    **({"readOnly": True} if mount.read_only else {}),
                }
                for number, mount in enumerate(job.mounts)
            ),
        ],
    }
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _quantity("shm", options.shm)}},
        *({"name": f"mount-{number}", "hostPath": {"path": mount.source}} for number, mount in enumerate(job.mounts)),
    ]
    spec: Manifest = {
        "restartPolicy": "Never",
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.host_network else {}),
        **_access(options),
        **_where(job, options),
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": {_LABEL: job.name}}, "spec": spec}


_LABEL = "busbw.dev/job"


def _command(job: Job, options: KubernetesOptions, kind: str, node: str, head: str | None) -> list[str]:
    if options.ranks_by == "script":
        words = node_argv(job, "\0")
    elif options.ranks_by == "torchrun":
        job.equal_nodes(f"{kind} with ranks_by=torchrun")
        several = head if job.nodes > 1 else None
        words = torchrun_argv(job, TorchrunOptions(), "\0", "\1" if several else None, job.argv)
    elif options.ranks_by == "argv":
        if job.ranks_per_node > 1:
            raise InputError(
                f"ranks_by=argv runs the command once a pod, and there are {job.ranks_per_node} ranks a node; use script or torchrun."
            )
        words = job.argv
    else:
        raise InputError(f"ranks_by={options.ranks_by}: there are script, torchrun and argv.")
    # References are Kubernetes' own; everything else is escaped so that it stays as it is.
    return [_literal(word).replace("\0", node).replace("\1", head or "") for word in words]


def _literal(word: str) -> str:
    """A word in which Kubernetes expands nothing: it takes $$ as $ and $(NAME) as a variable."""
    return word.replace("$", "$$")


def _env(environment: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": _literal(value)} for name, value in sorted(environment.items())]


def _resources(job: Job, options: KubernetesOptions) -> Manifest:
    """Requests equal limits, as extended resources and huge pages must, so that the pod is Guaranteed where CPU and memory are given."""
    amounts: dict[str, str] = {}
    if job.gpus_per_rank:
        amounts[_resource(options.gpu, "gpu")] = str(job.gpus_per_rank * job.ranks_per_node)
    if options.rdma:
        name, equals, count = options.rdma.partition("=")
        if not (equals and count.isdigit() and int(count) > 0):
            raise InputError(
                f"rdma={options.rdma}: write the device plug-in's resource and how many: rdma/hca_shared_devices_a=1."
            )
        amounts[_resource(name, "rdma")] = count
    if options.efa < 0:
        raise InputError(f"efa={options.efa}: write 0 or more.")
    if options.efa:
        amounts["vpc.amazonaws.com/efa"] = str(options.efa)
    pages = ("5120Mi" if options.efa else "") if options.hugepages == "auto" else options.hugepages
    if pages and pages != "none":
        amounts["hugepages-2Mi"] = _quantity("hugepages", pages)
    if memory := options.memory or ("32Gi" if pages and pages != "none" and not options.cpus else ""):
        amounts["memory"] = _quantity("memory", memory)
    if options.cpus:
        amounts["cpu"] = _quantity("cpus", options.cpus)
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def _resource(name: str, option: str) -> str:
    """An extended resource's name: a DNS domain, a slash, a name."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name):
        raise InputError(
            f"{option}={name}: a device resource is written as domain/name, such as nvidia.com/gpu or rdma/ib."
        )
    return name


def _quantity(option: str, text: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?", text):
        raise InputError(f"{option}={text}: write an amount as Kubernetes does, such as 16Gi or 500m.")
    return text


def _access(options: KubernetesOptions) -> Manifest:
    return {
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
    }


def _where(job: Job, options: KubernetesOptions) -> Manifest:
    affinity: Manifest = {}
    if job.hosts:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(job.hosts)}
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]
            }
        }
    if options.spread and job.nodes > 1:
        apart = {"labelSelector": {"matchLabels": {_LABEL: job.name}}, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    keys: Sequence[str] = (
        options.tolerate.split(",") if options.tolerate else ([options.gpu] if job.gpus_per_rank else [])
    )
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return {**({"affinity": affinity} if affinity else {}), **({"tolerations": tolerations} if tolerations else {})}
