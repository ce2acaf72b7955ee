"""M1: what the measuring loop adds to a call, beside a bare loop of the same library in the same processes, in turns; and how soon a run is there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["overhead"]

_RANKS = 2
_CALLS = 8
"""Of a turn: about as long as a scheduler's slice lasts undisturbed on a busy machine."""
_QUANTILE = 0.05
"""Of all turns, which takes the place of the least: two bare loops differ by 0.2 % in it, by 1 % in the least (measured on two busy cores)."""
_SIZES = {"builtin": 128 << 10, "torch": 64 << 10, "mpi": 256 << 10}
"""Bytes at which a call takes 20 us and more on any machine that this has been tried on."""
_TURNS, _TURNS_SMOKE = 600, 20
_STARTS, _STARTS_SMOKE = 7, 1


def overhead(options: Options) -> Measured:
    """Largest share over the back ends, in percent; seconds of the fastest whole run of one call."""
    found: dict[str, float | None] = {}
    shares = []
    for backend, size in _SIZES.items():
        if backend != "builtin" and importlib.util.find_spec({"torch": "torch", "mpi": "mpi4py"}[backend]) is None:
            found[f"{backend}: not installed"] = None
            continue
        bare, ours = _both(backend, size, _TURNS_SMOKE if options.smoke else _TURNS)
        found[f"{backend} bare us"], found[f"{backend} ours us"] = bare * 1e6, ours * 1e6
        shares.append((ours / bare - 1) * 100)
    started = min(_start_s() for _ in range(_STARTS_SMOKE if options.smoke else _STARTS))
    return Measured([max(shares), started], found, f"{len(shares)} back ends")


def _start_s() -> float:
    begun = time.perf_counter()
    argv = [sys.executable, "-m", "busbw", "run", "all-reduce", "--bytes", "8", "--iterations", "1", "--no-in-place"]
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - begun


def _both(backend: str, size: int, turns: int) -> tuple[float, float]:
    """Seconds of a call in a bare loop and in ours, each nearly the least of all turns, of the rank that took longest."""
    from busbw.launching import LaunchError, launch_local
    from busbw.measuring.running import How, end_by_launcher

    with tempfile.TemporaryDirectory(prefix="busbw-m1-") as folder:
        argv = [sys.executable, "-m", "benchmarks.measure.overhead", backend, str(size), str(turns), folder]
        try:
            if backend == "mpi":
                written: list[bytes] = []
                end_by_launcher(How("mpirun", 120.0), argv, _RANKS, written.append)
                lines = next(line for line in written if b"[" in line).decode()
                lines = lines[lines.rindex("[") :]
            else:
                lines = launch_local(argv, _RANKS, deadline_s=120)[0].out
        except LaunchError as error:
            raise NotMeasurableError(f"{backend}: {error}") from error
    bare, ours = json.loads(lines.splitlines()[-1])
    return float(bare), float(ours)


def _bare(backend: Any, buffer: Any) -> Callable[[int], None]:
    """A loop as anybody would write it, on the buffer that ours has: another one, at another place, makes a difference of 4 %."""
    if hasattr(backend, "comm"):
        call, given = backend.comm.all_reduce, (buffer, buffer)
    elif hasattr(backend, "world"):
        from mpi4py import MPI

        call, given = backend.world.Allreduce, (MPI.IN_PLACE, buffer)
    else:
        import torch.distributed

        call, given = torch.distributed.all_reduce, (buffer,)

    def loop(calls: int) -> None:
        for _ in range(calls):
            call(*given)

    return loop


def _rank(name: str, size: int, turns: int, folder: str) -> None:
    from busbw.measuring.backends import backend_named
    from busbw.measuring.measure import time_block
    from busbw.measuring.rank import rank_here
    from busbw.measuring.request import Request

    rank = rank_here()
    if name == "mpi" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    backend = backend_named(name, rank, _RANKS, folder)
    buffer = backend.empty(size // 4, "float32")
    backend.write(buffer, np.zeros(size // 4, np.float32))
    call = backend.bind(Request("all_reduce", _RANKS, (size,), backend=name), buffer, buffer, 0)
    bare = _bare(backend, buffer)
    bare(5)
    took: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * turns):
        # The first of two turns is the slower one, whichever it is: bare, ours, ours, bare.
        which = (turn // 2 + turn) % 2
        if which:
            stamps = time_block(backend, call, [1] * _CALLS)
            took[1].append((stamps[-1][1] - stamps[0][0]) / 1e9)
        else:
            backend.barrier()
            begun = time.perf_counter()
            bare(_CALLS)
            took[0].append(time.perf_counter() - begun)
    least = np.array([np.quantile(one, _QUANTILE) / _CALLS for one in took])
    slowest = backend.together(least, "max")
    if rank == 0:
        print(json.dumps(slowest.tolist()))
    backend.close()


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
