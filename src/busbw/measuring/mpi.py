"""MPI as a back end, through mpi4py: whatever library its `mpirun` belongs to, on any number of hosts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from busbw.errors import InputError
from busbw.measuring.backends import Call, CopiesByNumpy, Together
from busbw.measuring.elements import stored_as
from busbw.measuring.request import REDUCING, Request
from busbw.measuring.truth import sent_counts

__all__ = ["Mpi", "start"]

Array = npt.NDArray[Any]

_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


def start(rank: int, ranks: int, meet: str) -> Mpi:
    """This rank of COMM_WORLD. Raises InputError if MPI runs another number of ranks than were asked for."""
    world = MPI.COMM_WORLD
    library = MPI.Get_library_version().strip().splitlines()[0][:60]
    if world.size != ranks:
        raise InputError(
            f"back end mpi: {world.size} of {ranks} ranks are together in {library!r}. mpirun and the MPI library that mpi4py "
            "loads must be of the same MPI: put that library's mpirun first on PATH, or set MPI4PY_LIBMPI."
        )
    return Mpi(world)


class Mpi(CopiesByNumpy):
    """A rank of COMM_WORLD; buffers are numpy arrays."""

    def __init__(self, world: MPI.Comm) -> None:
        self.world = world
        self.rank, self.ranks = world.rank, world.size
        self.barrier = world.Barrier

    def about(self) -> dict[str, str]:
        """The library's own words."""
        import mpi4py  # noqa: PLC0415

        standard = ".".join(map(str, MPI.Get_version()))
        library = " ".join(MPI.Get_library_version().split())[:200]
        return {"mpi": library, "mpi_standard": standard, "mpi4py": mpi4py.__version__, "memory": "CPU"}

    def refuses(self, request: Request) -> str | None:
        """Averages, half precision and windows."""
        if request.window:
            return "window memory is of the builtin back end; leave --window out."
        if request.op == "avg" and request.collective in REDUCING:
            return "MPI has no operation avg; take sum."
        if request.dtype == "float16" and request.collective in REDUCING:
            return "MPI has no type of half precision; take float32."
        if request.dtype == "bfloat16" and request.collective in REDUCING:
            return "MPI has no type bfloat16; take float32, or --backend builtin."
        return None

    def empty(self, count: int, dtype: str) -> Array:
        """A numpy array."""
        return np.empty(count, stored_as(dtype))

    def write(self, buffer: Array, values: Array) -> None:
        """Copies."""
        buffer[:] = values

    def read(self, buffer: Array) -> Array:
        """The buffer itself."""
        return buffer

    def bind(self, request: Request, source: Array, target: Array, part: int) -> Call:
        """In place where source and target overlap."""
        world, root = self.world, request.root
        op = _OPS.get(request.op, MPI.SUM)
        kind = MPI._typedict[np.dtype(source.dtype).char] if not _is_half(source) else MPI.UNSIGNED_SHORT
        given: Any = [source, kind]
        made: Any = [target, kind]
        here: Any = MPI.IN_PLACE if np.shares_memory(source, target) else given
        is_root = self.rank == root
        match request.collective:
            case "all_reduce":
                return _often(partial(world.Allreduce, here, made, op))
            case "reduce_scatter":
                if (
                    here is MPI.IN_PLACE
                ):  # the result lies at the beginning of the buffer there; NCCL's lies at the rank's own place
                    scratch = np.empty_like(target)

                    def call(calls: int) -> None:
                        for _ in range(calls):
                            world.Reduce_scatter_block(given, [scratch, kind], op)
                            target[:] = scratch

                    return call
                return _often(partial(world.Reduce_scatter_block, here, made, op))
            case "all_gather":
                return _often(partial(world.Allgather, here, made))
            case "all_to_all":
                return _often(partial(world.Alltoall, given, made))
            case "all_to_all_v":
                counts = sent_counts(part, self.ranks)
                sent, got = counts[self.rank], counts[:, self.rank]
                return _often(partial(world.Alltoallv, [source, (sent, _starts(sent)), kind], [target, (got, _starts(got)), kind]))  # fmt: skip
            case "broadcast":
                if here is MPI.IN_PLACE:
                    return _often(partial(world.Bcast, made, root))

                def call_out(calls: int) -> None:
                    for _ in range(calls):
                        if is_root:
                            target[:] = source
                        world.Bcast(made, root)

                return call_out
            case "reduce":
                if not is_root:
                    return _often(partial(world.Reduce, given, None, op, root))
                return _often(partial(world.Reduce, here, made, op, root))
            case "gather":
                return _often(partial(world.Gather, given, made if is_root else None, root))
            case "scatter":
                return _often(partial(world.Scatter, given if is_root else None, made, root))
            case _:
                return _often(world.Barrier)

    def window(self, source: Array, to: int | None, target: Array, origin: int | None, messages: int) -> None:
        """Isend and Irecv of all, then a wait for all; a single message one way is sent by Send."""
        world = self.world
        if messages == 1 and origin is None:
            world.Send(_bytes(source), to if to is not None else MPI.PROC_NULL)
        elif messages == 1 and to is None and origin is not None:
            world.Recv(_bytes(target), origin)
        else:
            given, made = _bytes(source), _bytes(target)
            asked = [world.Irecv(made, origin) for _ in range(messages)] if origin is not None else []
            asked += [world.Isend(given, to) for _ in range(messages)] if to is not None else []
            MPI.Request.Waitall(asked)

    def together(self, values: npt.NDArray[np.float64], op: Together) -> npt.NDArray[np.float64]:
        """By Allreduce."""
        made = np.empty_like(values)
        self.world.Allreduce(values, made, _OPS[op])
        return made

    def gathered(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """By Gather."""
        made = np.empty((self.ranks, values.size), np.int64) if self.rank == 0 else None
        self.world.Gather(np.ascontiguousarray(values), made, 0)
        return made

    def close(self) -> None:
        """All leave together; mpi4py finalises when the process ends."""
        self.world.Barrier()


def _bytes(array: Array) -> Array:
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)


def _is_half(array: Array) -> bool:
    return array.dtype == np.float16


def _starts(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)[:-1]])


def _often(once: Any) -> Call:
    def call(calls: int) -> None:
        for _ in range(calls):
            once()

    return call
