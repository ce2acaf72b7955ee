"""A job says who runs where; what can't be meant is refused with how to mend it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.launching import Command, Job, Mount, allowed, hosts_of, launcher_named, options_of, render


@given(st.integers(1, 70), st.integers(1, 70))
def test_every_rank_is_on_one_node(ranks, per_node):
    job = Job(("true",), ranks, min(per_node, ranks))
    assert [rank for node in range(job.nodes) for rank in job.ranks_of(node)] == list(range(ranks))
    assert all(job.ranks_of(node) for node in range(job.nodes))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": ()}, "no command"),
        ({"ranks": 0}, "0 ranks: write 1 to"),
        ({"ranks": 2, "ranks_per_node": 3}, "3 ranks a node of 2 ranks"),
        ({"time_limit_s": 0.0}, "time limit 0 s"),
        ({"time_limit_s": float("nan")}, "time limit nan s"),
        ({"hosts": ("-oProxyCommand=x",)}, "is no name of a host"),
        ({"hosts": ("a", "a"), "ranks": 2, "ranks_per_node": 1}, "host a is named twice"),
        ({"hosts": ("a", "b")}, "2 hosts for 1 nodes"),
        ({"environment": {"A=B": "1"}}, "variable 'A=B'"),
        ({"name": "My_Job"}, "job name 'My_Job'"),
        ({"argv": ("a\0",)}, "NUL"),
    ],
)
def test_what_is_no_job(fields, said):
    with pytest.raises(InputError, match=said):
        Job(**({"argv": ("true",)} | fields))


def test_a_mount_has_no_letters_that_launchers_take_apart():
    with pytest.raises(InputError, match="absolute path"):
        Mount("data", "/data")
    with pytest.raises(InputError, match="colon"):
        Mount("/a:b", "/data")


def test_secrets_do_not_leave_with_the_environment():
    """Names are allowed, not forbidden: nobody can list all names of secrets."""
    here = {
        "NCCL_DEBUG": "INFO",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "PATH": "/bin",
        "BASH_FUNC_f%%": "() { :; }",
    }
    assert allowed(here) == {"NCCL_DEBUG": "INFO", "PATH": "/bin"}


def test_hosts_are_read_as_schedulers_write_them(tmp_path):
    assert hosts_of("n[1-3],x7") == ("n1", "n2", "n3", "x7")
    assert hosts_of("gpu[008-010,3]-ib") == ("gpu008-ib", "gpu009-ib", "gpu010-ib", "gpu3-ib")
    assert hosts_of("[fe80::1],10.0.0.1") == ("[fe80::1]", "10.0.0.1")
    file = tmp_path / "hosts"
    file.write_text("# rack 1\nn1 slots=8\n\nn[2-3]  # the others\n")
    assert hosts_of(f"@{file}") == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "a name is empty"), ("a,,b", "a name is empty"), ("n[3-1]", "no range"), ("n[1-x]", "no range"), ("n[1-2", "brackets"),
     ("n[0-99999999]", "more than"), ("@/no/such/file", "No such file")],
)  # fmt: skip
def test_hosts_that_cannot_be_read(text, said):
    with pytest.raises(InputError, match=said):
        hosts_of(text)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_shown_command_is_the_command(words):
    """What --dry-run prints can be pasted into a shell, whatever is in it."""
    shown = str(Command(("prog", *words), range(1), {"A": words[0]}))
    assert shlex.split(shown) == ["env", f"A={words[0]}", "prog", *words]


def test_options_are_told_apart_and_checked():
    slurm = launcher_named("slurm")
    options = options_of(
        slurm, ["mode=sbatch", "queue-s=60", "exclusive=yes", "arguments=--nice=5 --comment='a b'", "arguments=--hold"]
    )
    assert (options.mode, options.queue_s, options.exclusive) == ("sbatch", 60, True)
    assert options.arguments == ("--nice=5", "--comment=a b", "--hold")
    for given_, said in (
        ("partion=x", "nearest: partition"),
        ("partition", "write KEY=VALUE"),
        ("queue_s=1h", "write a whole number"),
        ("exclusive=maybe", "write yes or no"),
        ("arguments='", "close the quotes"),
    ):
        with pytest.raises(InputError, match=said):
            options_of(slurm, [given_])
    with pytest.raises(InputError, match="twice"):
        options_of(slurm, ["qos=a", "qos=b"])
    with pytest.raises(InputError, match="nearest: torchrun"):
        launcher_named("torch-run")


@pytest.mark.parametrize(
    ("launcher", "options", "fields", "said"),
    [
        ("local", [], {"hosts": ("n1",)}, "local runs on this machine"),
        ("local", [], {"ranks": 4, "ranks_per_node": 2}, "local is one node, not 2"),
        ("ssh", [], {}, "name the hosts"),
        ("torchrun", [], {"ranks": 3, "ranks_per_node": 2, "hosts": ("a", "b")}, "equally many ranks"),
        ("torchrun", [], {"ranks": 4, "ranks_per_node": 2}, "name them with --hosts"),
        ("mpirun", ["flavour=openmp"], {}, "there are openmpi, mpich, intel"),
        ("mpirun", ["program=/no/mpirun"], {}, "no such program"),
        ("mpirun", ["flavour=mpich", "bind=cores"], {}, "bind=cores: there are"),
        ("slurm", ["array=0-3"], {}, "only sbatch runs arrays"),
        ("slurm", ["mode=sbatch", "array=x"], {}, "array=x"),
        ("slurm", ["switches=two"], {}, "switches=two"),
        ("slurm", ["partition=a b"], {}, "partition=a b"),
        ("slurm", ["mode=sbatch"], {"working_directory": "/my data"}, "no spaces or quotes"),
        ("docker", [], {}, "with --image"),
        ("docker", [], {"image": "--privileged"}, "no name of an image"),
        ("apptainer", [], {"image": "i", "ranks": 2, "ranks_per_node": 1, "hosts": ("a", "b")}, "runs on this machine"),
        ("jobset", ["rdma=ib"], {"image": "i"}, "rdma/hca_shared_devices_a=1"),
        ("jobset", ["rdma=ib=1"], {"image": "i"}, "domain/name"),
        ("jobset", ["shm=16GB"], {"image": "i"}, "16Gi"),
        ("jobset", ["ranks_by=argv"], {"image": "i", "ranks": 2}, "once a pod"),
        ("jobset", ["ranks_by=mpi"], {"image": "i"}, "there are script, torchrun and argv"),
        ("mpijob", [], {"image": "i", "ranks": 3, "ranks_per_node": 2}, "equally many"),
        ("mpijob", ["mpi=MPICH", "host_network=yes"], {"image": "i"}, "port of sshd"),
        ("trainjob", ["host_network=yes"], {"image": "i"}, "ClusterTrainingRuntime"),
        ("ansible", [], {"ranks": 2, "ranks_per_node": 1}, "name them"),
    ],
)
def test_what_a_launcher_cannot_do_is_said_before_anything_runs(launcher, options, fields, said):
    with pytest.raises(InputError, match=said):
        render(Job(("true",), **fields), launcher, options)
