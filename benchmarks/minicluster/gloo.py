"""torch.distributed's gloo on the hosts of a mini cluster: `gloo_times`. This file is also what runs on each host, which is why it imports no busbw.

A rank reads lines `COLLECTIVE BYTES BEGIN` (BEGIN: seconds of the monotonic clock, which all namespaces share) and answers with the time at which it ended.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.minicluster.namespaces import MiniCluster

__all__ = ["COLLECTIVES", "gloo_times"]

COLLECTIVES = {"all_reduce": "ring", "all_to_all": "all_to_all, at once"}
"""What gloo is asked for, and which of our algorithms its way is: rings, and every peer at once. Source: pytorch/gloo, gloo/allreduce.cc and gloo/alltoall.cc."""
_PORT = 29500
_START_S = 120.0
_RUN_S = 120.0
_AHEAD_S = 0.01


def gloo_times(
    cluster: MiniCluster, collectives: Sequence[str], sizes: Sequence[int], repeats: int
) -> dict[tuple[str, int], list[float]]:
    """Seconds by collective and size. Raises NotMeasurableError where torch is not installed."""
    import select
    import subprocess
    from typing import IO

    from benchmarks.rows import NotMeasurableError

    if subprocess.run([sys.executable, "-c", "import torch.distributed"], check=False, capture_output=True).returncode:
        raise NotMeasurableError('gloo: torch is not installed; pip install "busbw[peers]"')
    environment = os.environ | {
        "MASTER_ADDR": cluster.address(0), "MASTER_PORT": str(_PORT), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(cluster.hosts),
    }  # fmt: skip
    ranks: list[subprocess.Popen[str]] = []

    def answers(wait_s: float) -> list[str]:
        found = []
        for rank, process in enumerate(ranks):
            out: IO[str] | None = process.stdout
            if out is None or not select.select([out], [], [], wait_s)[0] or not (line := out.readline()):
                raise NotMeasurableError(f"gloo: rank {rank} does not answer within {wait_s:g} s")
            found.append(line)
        return found

    try:
        for rank in range(cluster.hosts):
            argv = ["nsenter", f"--net={cluster.network(rank)}", sys.executable, __file__]
            ranks.append(
                subprocess.Popen(
                    argv, env=environment | {"RANK": str(rank)}, text=True, bufsize=1,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        answers(_START_S)
        found: dict[tuple[str, int], list[float]] = {}
        for size in sizes:
            for collective in collectives:
                times = []
                for _ in range(repeats + 1):
                    begin = time.monotonic() + _AHEAD_S
                    for process in ranks:
                        if process.stdin is not None:
                            process.stdin.write(f"{collective} {size} {begin!r}\n")
                    times.append(max(map(float, answers(_RUN_S))) - begin)
                found[collective, size] = times[1:]  # the first connects
        return found
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _rank() -> None:
    import ctypes
    import datetime
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with whoever started it
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_RUN_S))
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
    except OSError:
        pass
    print("ready", flush=True)
    for line in sys.stdin:
        collective, size, begin = line.split()
        given = torch.ones(int(size) // 4)
        got = torch.empty_like(given)
        time.sleep(max(0.0, float(begin) - time.monotonic()))
        if collective == "all_reduce":
            dist.all_reduce(given)
        else:
            dist.all_to_all_single(got, given)
        print(repr(time.monotonic()), flush=True)


if __name__ == "__main__":
    _rank()
