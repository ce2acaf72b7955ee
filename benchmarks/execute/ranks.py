"""One rank of a contender that Python drives: `python -m benchmarks.execute.ranks ours|gloo RANK RANKS FOLDER`, as mpi_ranks.c for MPI.

Commands come on FOLDER/RANK.in, "COLLECTIVE BYTES BATCHES CALLS"; the answer on FOLDER/RANK.out is the nanoseconds of each batch of calls, or "wrong".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOST = 64 << 20
_PAGE = 2 << 20
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
Run = Callable[[int], None]


def _memory() -> np.ndarray:
    """MOST bytes as mpi_ranks.c has them: on huge pages where the system gives them."""
    mapped = mmap.mmap(-1, MOST + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    begin = -whole.__array_interface__["data"][0] % _PAGE
    return whole[begin : begin + MOST].view(np.float32)


class Ours:
    """busbw's kernels. The calls of a batch follow each other in C++, as the peers' do in C; NAME_from_python calls from here each time."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        from busbw.execution import Communicator

        self.comm = Communicator(ranks, rank=rank, name=folder.name, wait_s=120)
        self.window = self.comm.shared(2 * MOST).array.view(np.float32)
        self.source, self.target = _memory(), _memory()

    def barrier(self) -> None:
        """Waits for the other ranks."""
        self.comm.barrier()

    def run(self, name: str, size_bytes: int) -> tuple[np.ndarray, np.ndarray, Run]:
        """Source, target and what calls the collective so many times."""
        count, comm = size_bytes // 4, self.comm
        source, target = self.source[:count], self.target[:count]
        part, own = count // comm.ranks, slice(count // comm.ranks)
        match name.removesuffix("_from_python"):
            case "all_reduce_window":
                source, target = self.window[:count], self.window[MOST // 4 : MOST // 4 + count]
                call: Any = comm.all_reduce
            case "reduce_scatter":
                call, target = comm.reduce_scatter, target[own]
            case "all_gather":
                call, source = comm.all_gather, source[own]
            case "broadcast":
                call, source = comm.broadcast, target
            case "round_trip":
                return source[:part], target[:part], comm.round_trips
            case other:
                call = getattr(comm, other)
        if name.endswith("_from_python"):

            def each(calls: int) -> None:
                for _ in range(calls):
                    call(source, target)

            return source, target, each
        return source, target, lambda calls: call(source, target, times=calls)


class Gloo:
    """torch.distributed's gloo."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{folder}/gloo")
        self.torch = torch
        self.memory = _memory()

    def barrier(self) -> None:
        """Waits for the other ranks."""
        self.torch.distributed.barrier()

    def run(self, name: str, size_bytes: int) -> tuple[np.ndarray, np.ndarray, Run]:
        """all_reduce in place, which is all it has: a sum goes on growing from call to call."""
        assert name == "all_reduce"
        array = self.memory[: size_bytes // 4]
        tensor, all_reduce = self.torch.from_numpy(array), self.torch.distributed.all_reduce

        def each(calls: int) -> None:
            for _ in range(calls):
                all_reduce(tensor)

        return array, array, each


def _is_right(name: str, target: np.ndarray, ranks: int) -> bool:
    """Rank r gave r + 1 everywhere."""
    total = ranks * (ranks + 1) / 2
    first, last = total, total
    if name in ("all_gather", "all_to_all"):
        first, last = 1, ranks
    if name == "broadcast":
        first = last = 1
    return target.size == 0 or (target[0] == first and target[-1] == last)


def main() -> None:
    """Answers until it is ended."""
    kind, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    contender = {"ours": Ours, "gloo": Gloo}[kind](rank, ranks, folder)
    with (folder / f"{rank}.in").open() as commands, (folder / f"{rank}.out").open("w") as answers:
        for line in commands:
            name, size_bytes, batches, calls = line.split()
            source, target, run = contender.run(name, int(size_bytes))
            target[:] = 0
            source[:] = rank + 1
            contender.barrier()
            run(1)
            if name != "round_trip" and not _is_right(
                name.removesuffix("_from_python").removesuffix("_window"), target, ranks
            ):
                print("wrong", file=answers, flush=True)
                continue
            took = []
            for _ in range(int(batches)):
                contender.barrier()
                begun = time.perf_counter_ns()
                run(int(calls))
                took.append(time.perf_counter_ns() - begun)
            print(*took, file=answers, flush=True)


if __name__ == "__main__":
    main()
