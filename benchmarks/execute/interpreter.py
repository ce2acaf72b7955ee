"""X5: the plan interpreter beside the hand-written all_reduce, on the same two processes; and every plan of the library against numpy.

`python -m benchmarks.execute.interpreter [--ranks N] [--backend threads|processes|sim]` runs all of them and lists what is wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import Any

import numpy as np

from benchmarks.execute.plans import expected, inputs, library_plans
from busbw.collectives import plan_of
from busbw.collectives.algorithms import recursive_doubling_all_reduce
from busbw.execution import Communicator, PlanRun, run

__all__ = ["ratios", "wrong_plans"]

_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
_BATCH_BYTES = 2 << 20
"""Small calls follow each other until so much has moved, so that a batch is long against the clock and short against other jobs."""


def ratios(trials: int, sizes: tuple[int, ...] = _SIZES) -> dict[int, tuple[float, float]]:
    """By size, the least time of a plan and of `Communicator.all_reduce`, seconds: 2 ranks, in place, in turn.

    The plan is recursive doubling, which on two ranks moves what the hand-written kernel moves: everyone's vector to its peer, in one step.
    """
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    name = f"x5-{os.getpid()}"
    processes = [context.Process(target=_rank, args=(rank, name, trials, sizes, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found: dict[int, tuple[float, float]] = answers.get(timeout=600)
    for process in processes:
        process.join()
    return found


def _rank(rank: int, name: str, trials: int, sizes: tuple[int, ...], answers: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    comm = Communicator(2, rank=rank, name=name)
    plan = plan_of(recursive_doubling_all_reduce().bind(2), in_place=True)
    found = {}
    for size in sizes:
        array = np.zeros(size // 4, np.float32)
        calls = (PlanRun(comm, plan, array.size), comm.all_reduce)
        times = max(1, _BATCH_BYTES // size)
        least = [float("inf")] * len(calls)
        for _ in range(trials):
            for place, call in enumerate(calls):
                comm.barrier()
                begun = time.perf_counter()
                call(array, array, times=times)
                least[place] = min(least[place], (time.perf_counter() - begun) / times)
        found[size] = (least[0], least[1])
    if rank == 0:
        answers.put(found)


def wrong_plans(most_ranks: int, backend: Any = "threads") -> tuple[int, list[str]]:
    """How many plans of the library were run, and those that did not give numpy's result."""
    done, wrong = 0, []
    for name, plan in library_plans(most_ranks):
        for per_rank in (1, 61) if backend == "sim" else (0, 1, 61, 5003):
            arrays = inputs(plan, per_rank, "int32")
            done += 1
            try:
                outputs = run(plan, arrays, backend=backend)
            except (RuntimeError, TimeoutError, ValueError) as error:
                wrong.append(f"{name}, {per_rank} elements: {error}")
                continue
            for got, want in zip(outputs, expected(plan, arrays), strict=True):
                if want is not None and not np.array_equal(got, want):
                    wrong.append(f"{name}, {per_rank} elements: wrong result")
                    break
    return done, wrong


def main() -> int:
    """Lists the wrong ones; exit status 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute.interpreter", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", choices=("threads", "processes", "sim"), default="threads")
    options = parser.parse_args()
    done, wrong = wrong_plans(options.ranks, options.backend)
    print("\n".join(wrong))
    print(f"{done} runs, {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
