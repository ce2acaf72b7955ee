"""busbw's own kernels as a back end: collectives between processes or threads of this machine (`busbw.execution`)."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw import __version__
from busbw.execution import Communicator
from busbw.measuring.backends import Call, Together
from busbw.measuring.elements import stored_as
from busbw.measuring.request import Request
from busbw.measuring.truth import sent_counts

__all__ = ["Builtin", "start"]

Array = npt.NDArray[Any]

_TRIPS = 20
"""Of a batch. Few: where ranks share a core each lasts as long as a scheduler's slice."""
_TRIES = 10
_NOTHING = np.empty(0, np.uint8)


def start(rank: int, ranks: int, meet: str) -> Builtin:
    """This rank, in a process; all ranks call, on one machine. The last part of meet is a name that all have, if no launcher has given one."""
    name = os.environ.get("BUSBW_JOB") or meet.rstrip("/").rpartition("/")[2]
    return Builtin(Communicator(ranks, rank=rank, name=name, wait_s=60.0))


class Builtin:
    """A rank of busbw's own communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.ranks = comm.rank, comm.ranks
        self.barrier = comm.barrier
        self._window: Array | None = None

    def about(self) -> dict[str, str]:
        """Version, and how larger messages go."""
        return {
            "busbw": __version__,
            "memory": "CPU",
            "reads_peers_memory": str(self.comm.reads_peers_memory).lower(),
        }

    def refuses(self, request: Request) -> str | None:
        """Window memory for anything but all_reduce."""
        if request.window and request.collective != "all_reduce":
            return "all-reduce alone runs on window memory; leave --window out."
        return None

    def empty(self, count: int, dtype: str) -> Array:
        """A numpy array."""
        return np.empty(count, stored_as(dtype))

    def window_memory(self, request: Request, count: int, other: int) -> tuple[Array, Array]:
        """Two arrays in memory that all ranks map, in the same place on each; other: elements of the second, which may be none."""
        if self._window is None:
            largest = max(request.sizes_bytes, default=0)
            self._window = self.comm.shared(2 * (-(-largest // 4096) * 4096 + 4096)).array
        kind = stored_as(request.dtype)
        half, item = self._window.nbytes // 2, kind.itemsize
        whole = self._window[: count * item].view(kind)
        return whole, self._window[half : half + other * item].view(kind) if other or not count else whole

    def write(self, buffer: Array, values: Array) -> None:
        """Copies."""
        buffer[:] = values

    def read(self, buffer: Array) -> Array:
        """The buffer itself."""
        return buffer

    def bind(self, request: Request, source: Array, target: Array, part: int) -> Call:
        """Calls in a row are made by the compiled core where it can."""
        comm, op, root = self.comm, request.op, request.root
        dtype = "bfloat16" if request.dtype == "bfloat16" else ""  # what the bits in uint16 are
        match request.collective:
            case "all_reduce":
                return lambda n: comm.all_reduce(source, target, op, dtype=dtype, times=n)
            case "reduce_scatter":
                return lambda n: comm.reduce_scatter(source, target, op, dtype=dtype, times=n)
            case "all_gather":
                return lambda n: comm.all_gather(source, target, times=n)
            case "all_to_all":
                return lambda n: comm.all_to_all(source, target, times=n)
            case "broadcast":
                return lambda n: comm.broadcast(source, target, root, times=n)
            case "reduce":
                return _often(partial(comm.reduce, source, target, op, root, dtype=dtype))
            case "gather":
                return _often(partial(comm.gather, source, target if self.rank == root else None, root))
            case "scatter":
                return _often(partial(comm.scatter, source, target, root))
            case "all_to_all_v":
                counts = sent_counts(part, self.ranks)
                sent, got = counts[self.rank].tolist(), counts[:, self.rank].tolist()
                return _often(partial(comm.all_to_all_v, source, sent, target, got))
            case _:
                return _often(comm.barrier)

    def window(self, source: Array, to: int | None, target: Array, origin: int | None, messages: int) -> None:
        """One message after the other: each is in the receiver's memory, or in a pipe, when its call returns."""
        sent, got = [0] * self.ranks, [0] * self.ranks
        if to is not None:
            sent[to] = source.size
        if origin is not None:
            got[origin] = target.size
        given, made = source if to is not None else _NOTHING, target if origin is not None else _NOTHING
        for _ in range(messages):
            self.comm.all_to_all_v(given, sent, made, got)

    def together(self, values: npt.NDArray[np.float64], op: Together) -> npt.NDArray[np.float64]:
        """By the communicator."""
        return self.comm.all_reduce(values, op=op)

    def gathered(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """By the communicator."""
        made = self.comm.gather(np.ascontiguousarray(values))
        return None if made is None else made.reshape(self.ranks, -1)

    def copies(self, source: Array, target: Array, times: int) -> None:
        """By the copy that the kernels use."""
        self.comm.copies(source, target, times)

    def round_trip_s(self) -> float | None:
        """A bare cache line from rank 0 to rank 1 and back."""
        best = float("inf")
        for _ in range(_TRIES):
            self.comm.barrier()
            begun = time.perf_counter()
            self.comm.round_trips(_TRIPS)
            best = min(best, (time.perf_counter() - begun) / _TRIPS)
        return best

    def close(self) -> None:
        """Nothing: the memory goes with the last process."""


def _often(once: Any) -> Call:
    def call(calls: int) -> None:
        for _ in range(calls):
            once()

    return call
