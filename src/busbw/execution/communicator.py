"""A communicator of processes on one machine: each makes its own, with its rank, and they find each other by a name."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives.collective import DTYPE_BYTES, OPERATIONS
from busbw.execution._cpu import Rank
from busbw.execution.shared_memory import HEAD_BYTES, map_all

__all__ = ["Communicator", "GaveUpError", "SharedArray"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

SLOT_BYTES = 1 << 17
"""Of a strip: half of a level-2 cache of 256 KiB and more, so that who reads it finds it there. A guess."""
PRIMITIVES = ("nothing", "a signal", "a barrier", "a packet", "a message", "a free slot", "a flag", "a flush")
"""Of wait.hpp, Primitive."""


class GaveUpError(TimeoutError):
    """A wait ended at its deadline, or because another wait of this rank had; the message says who waited for whom."""


class SharedArray:
    """Memory of the same size on every rank that all of them map; `array` is this rank's. Collectives on it copy nothing besides."""

    def __init__(self, memory: list[Bytes], rank: int) -> None:
        self.memory = memory
        self.array = memory[rank]

    def offset_of(self, array: Array) -> int | None:
        """Where an array begins in this rank's memory, bytes; None if it is not all in it."""
        begin = array.__array_interface__["data"][0] - self.array.__array_interface__["data"][0]
        return int(begin) if begin >= 0 and begin + array.nbytes <= self.array.nbytes else None


class Communicator:
    """One rank of a communicator of `ranks` processes on this machine that have agreed on `name`.

    Arrays are numpy arrays, or what gives one without a copy by DLPack (torch and cupy tensors on the CPU); they must be contiguous. bfloat16
    has no numpy type: pass uint16 and dtype="bfloat16". Reductions go by rank 0, 1, .. n-1 on every rank, so all ranks get the same bits.
    Sizes and types must be the same on all ranks, as in MPI; a rank that asks for something else makes the others wait until their deadline.
    wait_s: how long a rank waits for another before it raises GaveUpError; after that the communicator is of no more use.
    """

    def __init__(self, rank: int, ranks: int, name: str, *, wait_s: float = 30.0, slot_bytes: int = SLOT_BYTES) -> None:
        self.rank, self.ranks, self.name, self._wait_s = rank, ranks, name, wait_s
        control = _views(map_all(name, rank, ranks, Rank.control_bytes(ranks, slot_bytes), wait_s))
        self._core = Rank(rank, control, slot_bytes, wait_s)
        self._windows = itertools.count()
        self._shared: list[SharedArray] = []

    def shared(self, size_bytes: int) -> SharedArray:
        """Memory of at least size_bytes that all ranks map, zeros. All ranks call, with the same size, in the same order."""
        name = f"{self.name}-w{next(self._windows)}"
        made = SharedArray(_views(map_all(name, self.rank, self.ranks, size_bytes, self._wait_s)), self.rank)
        self._shared.append(made)
        return made

    @property
    def wait_s(self) -> float:
        """How long a rank waits for another."""
        return self._wait_s

    def barrier(self) -> None:
        """Nobody leaves before everybody has come."""
        self._check(self._core.barrier())

    def all_reduce(
        self, source: Any, target: Any = None, op: str = "sum", *, dtype: str | None = None, times: int = 1
    ) -> Array:
        """The reduction of all ranks' source, in target (new if None; may be source). op: sum, prod, min, max, avg. times: calls in a row."""
        given, made = _pair(source, target)
        if given.size != made.size:
            raise ValueError(f"source has {given.size} elements, target {made.size}")
        kind = _kind(given, dtype, op)
        for memory in self._shared:
            begin, end = memory.offset_of(given), memory.offset_of(made)
            if begin is not None and end is not None:
                self._check(self._core.all_reduce_window(memory.memory, begin, end, given.size, kind, op, times))
                return made
        self._check(self._core.all_reduce(_bytes(given), _bytes(made), given.size, kind, op, times))
        return made

    def reduce_scatter(
        self, source: Any, target: Any = None, op: str = "sum", *, dtype: str | None = None, times: int = 1
    ) -> Array:
        """This rank's part of the reduction of all ranks' source: part r of `ranks` equal ones on rank r."""
        given = _array(source)
        if given.size % self.ranks:
            raise ValueError(f"{given.size} elements have no equal part for each of {self.ranks} ranks")
        made = np.empty(given.size // self.ranks, given.dtype) if target is None else _array(target)
        if made.size * self.ranks != given.size or made.dtype != given.dtype:
            raise ValueError(
                f"target holds {made.size} {made.dtype}, a part is {given.size // self.ranks} {given.dtype}"
            )
        self._check(
            self._core.reduce_scatter(_bytes(given), _bytes(made), made.size, _kind(given, dtype, op), op, times)
        )
        return made

    def all_gather(self, source: Any, target: Any = None, *, times: int = 1) -> Array:
        """All ranks' source, one after the other, in the order of ranks."""
        given = _array(source)
        made = np.empty(given.size * self.ranks, given.dtype) if target is None else _array(target)
        if made.nbytes != given.nbytes * self.ranks:
            raise ValueError(
                f"target holds {made.nbytes} bytes; {self.ranks} sources of {given.nbytes} need more or less"
            )
        self._check(self._core.all_gather(_bytes(given), _bytes(made), times))
        return made

    def all_to_all(self, source: Any, target: Any = None, *, times: int = 1) -> Array:
        """Part s of the result is the part of rank s's source that is for this rank. source and target must not overlap."""
        given, made = _pair(source, target)
        if given.size % self.ranks:
            raise ValueError(f"{given.size} elements have no equal part for each of {self.ranks} ranks")
        if np.shares_memory(given, made):
            raise ValueError("source and target of all_to_all overlap")
        self._check(self._core.all_to_all(_bytes(given), _bytes(made), times))
        return made

    def broadcast(self, source: Any, target: Any = None, root: int = 0, *, times: int = 1) -> Array:
        """The root's source, on all ranks. On the others source gives the size only, and is the target if there is none."""
        given = _array(source)
        made = given if target is None else _array(target)
        if made.nbytes != given.nbytes:
            raise ValueError(f"target holds {made.nbytes} bytes, source {given.nbytes}")
        if not 0 <= root < self.ranks:
            raise ValueError(f"root {root} is none of the ranks 0..{self.ranks - 1}")
        self._check(self._core.broadcast(_bytes(given), _bytes(made), root, times))
        return made

    def _check(self, stopped: int) -> None:
        if not stopped:
            return
        _, primitive, _, peer, expected, seen = self._core.report()
        if stopped == 1:
            what = PRIMITIVES[primitive] if primitive < len(PRIMITIVES) else "something"
            raise GaveUpError(
                f"rank {self.rank} of {self.name} waited {self._wait_s:g} s for {what} of rank {peer}: number {expected} was due, {seen} had come. "
                "See that rank's log: it has died, is busy, or called something else."
            )
        raise GaveUpError(f"rank {self.rank} of {self.name} had given up before; make a new communicator")


def _views(memory: list[mmap.mmap]) -> list[Bytes]:
    return [np.frombuffer(one, np.uint8)[HEAD_BYTES:] for one in memory]


def _array(given: Any) -> Array:
    array = given if isinstance(given, np.ndarray) else np.from_dlpack(given)
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous: pass np.ascontiguousarray(x)")
    return array


def _pair(source: Any, target: Any) -> tuple[Array, Array]:
    given = _array(source)
    made = np.empty_like(given) if target is None else _array(target)
    if made.dtype != given.dtype or made.size != given.size:
        raise ValueError(f"target holds {made.size} {made.dtype}, source {given.size} {given.dtype}")
    return given, made


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _kind(array: Array, dtype: str | None, op: str) -> str:
    kind = dtype or array.dtype.name
    if kind not in DTYPE_BYTES or DTYPE_BYTES[kind] != array.dtype.itemsize or kind.startswith("float8"):
        raise ValueError(
            f"no reduction of {kind} in arrays of {array.dtype}; there are {', '.join(k for k in DTYPE_BYTES if not k.startswith('float8'))}"
        )
    if op not in OPERATIONS:
        raise ValueError(f"no operation {op!r}; there are {', '.join(OPERATIONS)}")
    return kind
