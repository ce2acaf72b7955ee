"""The real launchers start ranks, and a failure is named, on this machine. Each test says why it is skipped where its launcher is not there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.launching.slurm_cluster import SlurmCluster

import busbw
from busbw.cli.read import keep_file
from busbw.launching import Job, LaunchError, Line, allowed, launch
from busbw.observations.store import Store

WHO = (
    (
        "import os, sys; sys.path[:0] = [SRC]; from busbw.launching.environment import place; p = place(os.environ); "
        "os.write(1, f'{p.rank} {p.ranks} {p.local_rank} {p.local_ranks} {p.node} {p.nodes} {p.launcher}\\n'.encode())"  # in one piece
    ).replace("SRC", repr(str(Path(busbw.__file__).parents[1])))
)
HERE = str(Path(sys.executable).parent)
TOOLS = f"{HERE}:{os.environ['PATH']}"


def run(argv: list[str], launcher: str, *options: str, **fields: Any) -> tuple[list[str], str]:
    """What ranks wrote on standard output, sorted, and why the launch failed; nothing if it did not."""
    lines: list[Line] = []
    job = Job(**{"argv": tuple(argv), "time_limit_s": 60.0, "environment": allowed(os.environ)} | fields)
    error = ""
    try:
        launch(job, launcher, options, write=lines.append)
    except LaunchError as failed:
        error = str(failed)
    return [line.text.decode().rstrip("\n") for line in lines if not line.to_error], error


def stored_sizes(output: list[str], folder: Path) -> list[int]:
    """Sizes of a benchmark's table, read into a store and asked for in SQL."""
    (folder / "output.txt").write_text("\n".join(output) + "\n")
    assert keep_file(folder / "output.txt", folder / "store")
    answer = Store(folder / "store").query("SELECT size_bytes FROM measurements WHERE time_ns > 0 ORDER BY size_bytes")
    return [int(size) for size in answer.column(0).to_pylist()]


FLAVOURS = pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
SIZES = [4, 64, 1024, 16384]


def program_of(flavour: str) -> str:
    program = f"mpirun.{flavour}"
    if shutil.which(program) is None:
        pytest.skip(f"no {program}: apt-get install {'openmpi-bin' if flavour == 'openmpi' else 'mpich'}")
    return f"program={program}"


@FLAVOURS
def test_mpirun_runs_a_benchmark_into_the_store(flavour: str, mpi_program: Callable[[str], Path], tmp_path: Path):
    output, error = run([str(mpi_program(flavour))], "mpirun", program_of(flavour), ranks=2)
    assert error == ""
    assert stored_sizes(output, tmp_path) == SIZES


@FLAVOURS
def test_a_rank_under_mpirun_knows_its_place_and_its_failure_is_named(flavour: str):
    here = {"ranks": 2, "hosts": ("localhost",)}
    output, error = run([sys.executable, "-S", "-c", WHO], "mpirun", program_of(flavour), **here)
    assert (sorted(output), error) == ([f"0 2 0 2 0 1 {flavour}", f"1 2 1 2 0 1 {flavour}"], "")
    variable = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}[flavour]
    script = f'echo begun; [ "${variable}" = 1 ] || exec sleep 50; sleep 0.5; echo "no memory" >&2; exit 3'
    output, error = run(["sh", "-c", script], "mpirun", program_of(flavour), **here)
    assert (output, error) == (["begun", "begun"], "rank 1 on localhost ended with status 3: no memory")


def test_torchrun_with_gloo():
    """gloo's all_reduce of ones on two ranks is 2; the rank that then fails is named with what it said."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch: pip install torch==2.13.0")
    script = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(4)
dist.all_reduce(ones)
{WHO}
print(ones.tolist(), flush=True)
if p.rank == 1:
    raise SystemExit("bad card")
dist.barrier()
"""
    output, error = run(
        [sys.executable, "-c", script], "torchrun", f"program={sys.executable} -m torch.distributed.run", ranks=2
    )
    assert sorted(output) == ["0 2 0 2 0 1 torchrun", "1 2 1 2 0 1 torchrun", *["[2.0, 2.0, 2.0, 2.0]"] * 2]
    assert re.fullmatch("rank 1 on [^ ]+ ended with status 1: .*bad card.*", error)


QUEUE = "queue_s=60"


@pytest.fixture
def slurm_here(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Slurm's commands find the cluster."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    return slurm


@pytest.mark.usefixtures("slurm_here")
def test_slurm_runs_a_benchmark_on_four_nodes_into_the_store(mpi_program: Callable[[str], Path], tmp_path: Path):
    """Open MPI by srun with PMIx, a rank a node; then ranks learn their places, and the one that fails is named with its node."""
    environment = allowed(os.environ) | {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
    output, error = run(
        [str(mpi_program("openmpi"))], "slurm", QUEUE, "mpi=pmix", ranks=4, ranks_per_node=1, environment=environment
    )
    assert error == ""
    assert stored_sizes(output, tmp_path) == SIZES
    output, error = run(
        [sys.executable, "-S", "-c", WHO], "slurm", QUEUE, "switches=1@00:01:00", ranks=3, ranks_per_node=2
    )
    assert (sorted(output), error) == (["0 3 0 2 0 2 slurm", "1 3 1 2 0 2 slurm", "2 3 0 1 1 2 slurm"], "")
    script = '[ "$SLURM_PROCID" = 2 ] || exec sleep 50; echo "no link" >&2; exit 3'
    output, error = run(["sh", "-c", script], "slurm", QUEUE, ranks=4, ranks_per_node=1, hosts=("n1", "n2", "n3", "n4"))
    assert (output, error) == ([], "rank 2 on n3 ended with status 3: no link")


@pytest.mark.usefixtures("slurm_here")
def test_slurm_runs_a_script_as_an_array(tmp_path: Path):
    """Each task of the array runs all ranks; what they wrote is in files, and is passed on. A hanging rank is ended at the limit, not at Slurm's minute."""
    fields: dict[str, Any] = {"ranks": 2, "ranks_per_node": 1, "working_directory": str(tmp_path)}
    output, error = run(
        ["sh", "-c", 'echo "$SLURM_ARRAY_TASK_ID $SLURM_PROCID"'], "slurm", QUEUE, "mode=sbatch", "array=0-1", **fields
    )
    assert (sorted(output), error) == (["0 0", "0 1", "1 0", "1 1"], "")
    assert len(list(tmp_path.glob("busbw-*_[01].out"))) == 2
    script = '[ "$SLURM_PROCID" = 0 ] || exec sleep 50'
    output, error = run(
        ["sh", "-c", script], "slurm", QUEUE, "mode=sbatch", time_limit_s=1.0, hosts=("n1", "n2"), **fields
    )
    assert re.fullmatch(
        r"job \d+: rank 1 on n2 had not ended within its time limit \(status 124\); it wrote no error", error
    )


@pytest.mark.skipif(
    os.environ.get("BUSBW_SLOW_TESTS") != "ON",
    reason="takes 25 s, which Slurm needs to give a node up; BUSBW_SLOW_TESTS=ON runs it",
)
def test_slurm_ends_a_job_that_loses_a_node(slurm_here: SlurmCluster, tmp_path: Path):
    """n3 dies while all ranks run. Slurm notices after SlurmdTimeout; what had been written is left, and the node is named."""
    up = tmp_path / "up"
    watch = threading.Thread(target=lambda: (appears(up), slurm_here.lose("n3")))
    watch.start()
    script = f'echo begun; [ "$SLURM_PROCID" != 2 ] || {{ sleep 1; : > {up}; }}; exec sleep 50'
    output, error = run(["sh", "-c", script], "slurm", QUEUE, ranks=4, ranks_per_node=1, hosts=("n1", "n2", "n3", "n4"))
    watch.join()
    assert (output, error) == (["begun"] * 4, "the job on n3 was lost with its node; it wrote no error")


def appears(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def test_ansible_checks_this_node_and_runs_the_command(tmp_path: Path):
    """The words of the command are data: Ansible expands nothing in them. A check that fails says what to do, and nothing is run."""
    playbook = shutil.which("ansible-playbook", path=TOOLS)
    if playbook is None:
        pytest.skip("no ansible-playbook: pip install ansible-core")
    options = (f"program={playbook}", f"python={sys.executable}", "shm_bytes=1")
    environment = allowed(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ANSIBLE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}.items():
            patch.setenv(name, value)
        output, error = run(["echo", "{{ 6 * 7 }} $HOME"], "ansible", *options, environment=environment)
        assert error == ""
        assert '"{{ 6 * 7 }} $HOME"' in "".join(output)
        output, error = run(["touch", str(tmp_path / "ran")], "ansible", *options, "gpus=99", environment=environment)
    assert error.startswith("the job on localhost ended: 0 GPUs answer, 99 are expected")
    assert not (tmp_path / "ran").exists()
