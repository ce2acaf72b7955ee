"""Plans run by a process on each host of a mini cluster, checked, and timed from a common start to the last rank's end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.execute.plans import expected, inputs
from benchmarks.minicluster.namespaces import MiniCluster, end_with, enter_network
from busbw.collectives.plan import Plan
from busbw.execution import GaveUpError
from busbw.execution.socket_run import SocketRank
from busbw.execution.sockets import KEY_BYTES

__all__ = ["Case", "Timed", "ahead_of_others", "run_cases"]

Array = npt.NDArray[Any]

_PORT = 29600
_AHEAD_S = 0.01
"""From when the start is told to the start: for every rank to hear of it. A guess; who hears later begins at once, and shows in the times."""


_MOST_REPEATS, _ALIKE = 9, 1.02
"""A case is run again until its two best runs are within 2 %: a guess at what the machine's other work leaves alone."""


@dataclass(frozen=True, slots=True)
class Case:
    """A plan at a size, on some hosts: rank r runs on hosts[r]."""

    name: str
    plan: Plan
    size_bytes: int
    hosts: tuple[int, ...]
    repeats: int = 3
    """At least."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What a case took."""

    case: Case
    times_s: tuple[float, ...]
    wrong: int
    """Elements, of all ranks and of the first run."""
    rank_times_s: tuple[float, ...]
    """Of each rank, from the common start to its end, the least of the runs."""

    @property
    def best_s(self) -> float:
        """The least: others' work on the machine makes runs longer, never shorter."""
        return min(self.times_s)

    @property
    def median_s(self) -> float:
        """The middle one."""
        return float(np.median(self.times_s))


def ahead_of_others() -> None:
    """Lets this process run as soon as it has something to do, before what else the machine is busy with: a host of its own would. Ranks mostly sleep."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def run_cases(cluster: MiniCluster, cases: Sequence[Case], *, wait_s: float = 60.0) -> list[Timed]:
    """The times of cases, one after another. Raises GaveUpError if a rank does."""
    return [_run(cluster, case, wait_s, number) for number, case in enumerate(cases)]


def _run(cluster: MiniCluster, case: Case, wait_s: float, number: int) -> Timed:
    plan = case.plan
    if len(case.hosts) != plan.ranks:
        raise ValueError(f"{case.name}: {plan.ranks} ranks on {len(case.hosts)} hosts")
    per_rank = _elements(plan, case.size_bytes)
    arrays = inputs(plan, per_rank, "float32")
    due = expected(plan, arrays)
    addresses = [(cluster.address(host), _PORT + number % 1000) for host in case.hosts]
    key = os.urandom(KEY_BYTES)
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes = []

    parent = os.getpid()

    def as_rank(rank: int, pipe: Connection) -> None:
        end_with(parent)
        try:
            enter_network(cluster.network(case.hosts[rank]))
            ahead_of_others()
            gc.disable()
            how = {"key": key, "wait_s": wait_s, "buffer_bytes": cluster.links.window_bytes}
            with SocketRank(plan, rank, [array.size for array in arrays], addresses, **how) as comm:
                got = comm(arrays[rank])
                wanted = due[rank]
                wrong = 0 if wanted is None else int(np.count_nonzero(got != wanted))
                pipe.send(wrong)
                while (begin := pipe.recv()) is not None:
                    time.sleep(max(0.0, begin - time.monotonic()))
                    comm(arrays[rank], got)
                    pipe.send(time.monotonic())
        except EOFError:  # whoever asks is gone
            pass
        except Exception as error:  # told to whoever asks, who raises it
            pipe.send(error)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for rank in range(plan.ranks):
                mine, theirs = context.Pipe()
                process = context.Process(target=as_rank, args=(rank, theirs), daemon=True)
                process.start()
                theirs.close()
                pipes.append(mine)
                processes.append(process)
        wrong = sum(_answers(pipes, wait_s, case))
        times: list[float] = []
        ends: list[list[float]] = []
        while len(times) < case.repeats or (len(times) < _MOST_REPEATS and not _settled(times)):
            begin = time.monotonic() + _AHEAD_S
            for pipe in pipes:
                pipe.send(begin)
            ends.append([end - begin for end in _answers(pipes, wait_s, case)])
            times.append(max(ends[-1]))
        for pipe in pipes:
            pipe.send(None)
        return Timed(case, tuple(times), wrong, tuple(map(min, zip(*ends, strict=True))))
    finally:
        for process in processes:
            process.join(0.2)
            with contextlib.suppress(ProcessLookupError, TypeError):
                if process.is_alive() and process.pid:
                    os.kill(process.pid, signal.SIGKILL)
            process.join()
        for pipe in pipes:
            pipe.close()


def _settled(times: list[float]) -> bool:
    best = sorted(times)[:2]
    return best[-1] <= _ALIKE * best[0]


def _answers(pipes: list[Connection], wait_s: float, case: Case) -> list[Any]:
    """One answer of each rank."""
    found: dict[int, Any] = {}
    until = time.monotonic() + 2 * wait_s
    while len(found) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in found], max(0.0, until - time.monotonic()))
        if not ready:
            raise GaveUpError(f"{case.name}, {case.size_bytes} bytes: ranks {sorted(set(range(len(pipes))) - set(found))} did not answer within {2 * wait_s:g} s")  # fmt: skip
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                found[rank] = pipes[rank].recv()
            except EOFError:
                raise GaveUpError(f"{case.name}, {case.size_bytes} bytes: the process of rank {rank} has ended") from None  # fmt: skip
            if isinstance(found[rank], Exception):
                raise found[rank]
    return [found[rank] for rank in range(len(pipes))]


def _elements(plan: Plan, size_bytes: int) -> int:
    """Elements a rank gives for size_bytes, the larger of its buffers, as `inputs` counts them."""
    whole = size_bytes // 4
    parted = plan.collective in ("reduce_scatter", "scatter", "all_to_all", "all_gather", "gather")
    return whole // plan.ranks if parted else whole
