"""What the tests of real launchers need: a benchmark of MPI, and Slurm on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launching.slurm_cluster import SlurmCluster, slurm_cluster, why_not

DATA = Path(__file__).parent / "data"


@pytest.fixture
def mpi_program(tmp_path: Path) -> Callable[[str], Path]:
    """`mpi_program("openmpi")` is a benchmark of all_reduce, compiled with that MPI."""

    def made(flavour: str) -> Path:
        compiler = shutil.which(f"mpicc.{flavour}")
        if compiler is None:
            pytest.skip(
                f"no mpicc.{flavour}: apt-get install {'libopenmpi-dev' if flavour == 'openmpi' else 'libmpich-dev'}"
            )
        program = tmp_path / f"all_reduce-{flavour}"
        done = subprocess.run(
            [compiler, "-O1", "-o", program, DATA / "mpi_all_reduce.c"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return program

    return made


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Slurm with nodes n1 to n4."""
    if reason := why_not():
        pytest.skip(reason)
    with slurm_cluster() as cluster:
        yield cluster
