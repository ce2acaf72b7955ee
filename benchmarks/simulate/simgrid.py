"""SimGrid on the same jobs, in the same go where it is installed (Debian: libsimgrid-dev 3.32); else what was recorded is shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

__all__ = ["simgrid"]

_SOURCE = Path(__file__).with_name("simgrid_job.cpp")
_LONGEST_S = 100
"""Of one job; SimGrid's all_to_all of 1,024 took longer than that."""


@lru_cache(maxsize=1)
def _program() -> Path | None:
    """The program, compiled once; None without compiler or library."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="busbw-simgrid-"))
    made = folder / "job"
    command = [compiler, "-std=c++17", "-O2", str(_SOURCE), "-lsimgrid", "-o", str(made)]
    ran = subprocess.run(command, capture_output=True, check=False, timeout=300)
    return made if ran.returncode == 0 else None


def simgrid(job: str, ranks: int, size_bytes: int) -> tuple[float, float] | None:
    """Simulated seconds and CPU seconds, all of the process counted; None where SimGrid is not installed or did not end in time."""
    program = _program()
    if program is None:
        return None
    before = os.times()
    try:
        ran = subprocess.run(
            [program, job, str(ranks), str(size_bytes)], capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return None
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return (float(ran.stdout), cpu) if ran.returncode == 0 else None
