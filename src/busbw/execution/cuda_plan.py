"""Plans on GPUs: the interpreter of the device headers, on a linked plan whose tables and buffers lie in the GPUs' memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives.collective import DTYPE_BYTES, OPERATIONS, REDUCING
from busbw.collectives.plan import ConnectionKind, Plan
from busbw.execution.cuda import CudaCommunicator, DeviceArray
from busbw.execution.cuda_kernels import DIVIDE, MOST_THREADS, TYPES, Entry, Window, divide_bytes, source_of
from busbw.execution.linking import link
from busbw.execution.run import Places

__all__ = ["CudaPlanRun", "Program", "plan_source", "tables_of"]

Array = npt.NDArray[Any]
_REDUCE_OPS = ("sum", "prod", "min", "max")  # arithmetic.hpp, ReduceOp
_TABLE_ALIGNMENT = 64
_SPACES = 4  # program.hpp, kSpaces
THREADS = 256
"""Of a block. A guess: what the interpreter does between moves is one thread's work."""


class Program(ctypes.Structure):
    """Program of program.hpp. `plan_source` has the compiler compare sizes and places of fields with these."""

    _fields_ = (
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("blocks", ctypes.c_uint32),
        ("in_order", ctypes.c_bool),
        ("rows", ctypes.c_uint64),
        ("block_rows", ctypes.c_uint64),
        ("walks", ctypes.c_uint64),
        ("ways", ctypes.c_uint64),
        ("spaces", ctypes.c_uint64),
        ("groups", ctypes.c_uint64),
        ("block_runs", ctypes.c_uint64),
        ("chunk_bytes", ctypes.c_uint64),
        ("run_bytes", ctypes.c_uint64),
        ("grain", ctypes.c_uint64),
        ("runs", ctypes.c_uint32),
        ("wire", Window),
        ("blocks_at", ctypes.c_uint64),
        ("barriers_at", ctypes.c_uint64),
        ("semaphores_at", ctypes.c_uint64),
        ("proxy_at", ctypes.c_uint64),
        ("way_count", ctypes.c_uint32),
        ("wait_ns", ctypes.c_uint64),
    )


def plan_source(dtype: str) -> str:
    """The interpreter for elements of a type, as a kernel of the name `busbw_plan_<dtype>`."""
    checks = [f"static_assert(sizeof(Program) == {ctypes.sizeof(Program)} && kSpaces == {_SPACES});"]
    checks += [
        f"static_assert(__builtin_offsetof(Program, {name}) == {getattr(Program, name).offset});"
        for name, _ in Program._fields_
    ]
    return "\n".join(
        (
            '#include "busbw/device/kernels/interpreter.hpp"',
            source_of([]),
            *checks,
            f'extern "C" __global__ void __launch_bounds__({MOST_THREADS}, 1) busbw_plan_{dtype}('
            "const __grid_constant__ Program program, std::uint32_t op) {",
            f"  BUSBW_BLOCK;\n  run_plan(program, block, Arithmetic<{TYPES[dtype]}>{{}}, static_cast<ReduceOp>(op));\n}}\n",
        )
    )


class CudaPlanRun:
    """One rank of a communicator of GPUs, ready to run a plan on inputs of a size: `CudaPlanRun(comm, plan, elements)(source)`.

    All ranks make it with the same plan, and call it together. elements: of the input of each rank, or one number for all. Inputs and outputs are
    copied into memory that all ranks map, and back. Raises ValueError for plans with ports, whose proxy runs on CPUs only, and for those with more
    blocks than are sure to run at once.
    """

    def __init__(
        self, comm: CudaCommunicator, plan: Plan, elements: int | Sequence[int], dtype: str = "float32"
    ) -> None:
        if comm.ranks != plan.ranks:
            raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks, the communicator has {comm.ranks}")
        if dtype not in TYPES:
            raise ValueError(f"no arithmetic of {dtype}; there is {', '.join(TYPES)}")
        each = [elements] * plan.ranks if isinstance(elements, int) else elements
        self._comm, self._dtype = comm, dtype
        self.linked = linked = link(plan, each, DTYPE_BYTES[dtype])
        if any((one.plan.connections["kind"] == ConnectionKind.PORT).any() for one in linked.ranks):
            raise ValueError(f"plan {plan.name!r} has ports; their proxy runs on CPUs only")
        self._blocks = len(linked.ranks[comm.rank].plan.blocks)
        most = max(len(one.plan.blocks) for one in linked.ranks)
        if most > comm.blocks:
            raise ValueError(f"plan {plan.name!r} has {most} blocks, {comm.blocks} are sure to run at once here")
        self._kernel = comm.kernel(plan_source(dtype), f"busbw_plan_{dtype}")
        places = Places(linked, user_memory=True)
        self._window = comm.shared(places.total_bytes)
        wire = np.zeros(linked.wire_bytes, np.uint8)
        linked.set_semaphores(comm.rank, wire)
        self._window.array[: len(wire)].fill(wire, comm.stream)
        self._places = places.of(comm.rank)
        bases = [base + at for rank, base in enumerate(self._window.addresses) for at in places.of(rank)]
        self._program = self._placed(bases)
        comm.barrier()

    def _placed(self, bases: list[int]) -> Program:
        """The struct, with its tables on the GPU."""
        comm, linked = self._comm, self.linked
        one = linked.ranks[comm.rank]
        rows, blocks, walks, ways, groups = one.columns
        spaces = np.column_stack([np.array(bases, np.uint64), linked.space_table().reshape(-1, 3)])
        tables = {
            "rows": rows, "block_rows": blocks, "walks": walks, "ways": ways, "groups": groups,
            "block_runs": one.block_runs.view(np.uint8), "spaces": np.ascontiguousarray(spaces).view(np.uint8).reshape(-1),
        }  # fmt: skip
        offsets, whole = dict[str, int](), bytearray()
        for name, table in tables.items():
            whole += bytes(-len(whole) % _TABLE_ALIGNMENT)
            offsets[name] = len(whole)
            whole += table.tobytes()
        self._tables: DeviceArray = comm.array(np.frombuffer(bytes(whole), np.uint8))
        numbers = [int(n) for n in linked.numbers(comm.rank)]
        program = Program()
        program.rank, program.ranks, program.blocks, program.in_order = (
            numbers[0],
            numbers[1],
            numbers[2],
            bool(numbers[3]),
        )
        program.chunk_bytes, program.run_bytes, program.grain, program.runs = numbers[4:8]
        program.blocks_at, program.barriers_at, program.semaphores_at, program.proxy_at = numbers[8:12]
        for name, offset in offsets.items():
            setattr(program, name, self._tables.address + offset)
        program.wire = self._window.struct
        program.way_count, program.wait_ns = len(one.ways), int(comm.wait_s * 1e9)
        return program

    def __call__(self, source: Array, op: str = "sum", *, times: int = 1) -> Array:
        """This rank's output. op: what the plan's reductions do. times: runs in a row."""
        if op not in OPERATIONS:
            raise ValueError(f"no operation {op!r}; there are {', '.join(OPERATIONS)}")
        comm, rank = self._comm, self._comm.rank
        gives, gets = (space.size_bytes for space in self.linked.spaces[rank][:2])
        given = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if given.nbytes != gives:
            raise ValueError(f"rank {rank}: an input of {gives} bytes is needed, not {given.nbytes}")
        begin, end = self._places[0], self._places[1]
        self._window.array[begin : begin + gives].fill(given, comm.stream)
        number = _REDUCE_OPS.index("sum" if op == "avg" else op)
        arguments = [bytes(self._program), struct.pack("<I", number)]
        out = self._window.array[end : end + gets]
        for _ in range(times if self._blocks else 0):
            comm.launch(
                self._kernel, arguments, blocks=self._blocks, threads=THREADS, stream=comm.stream, with_comm=False
            )
        if op == "avg" and self.linked.plan.collective in REDUCING and gets:
            count = gets // DTYPE_BYTES[self._dtype]
            comm.launch_entry(Entry(DIVIDE, self._dtype), divide_bytes(out.address, count, comm.ranks))
        comm.driver.synchronize(comm.stream)
        comm.check(self._window.addresses[rank])
        return out.numpy(comm.stream).view(source.dtype)


def tables_of(program: Program) -> Iterator[tuple[str, int]]:
    """Where each table lies, in the order of addresses."""
    names = ("rows", "block_rows", "walks", "ways", "groups", "block_runs", "spaces")
    yield from ((name, int(getattr(program, name))) for name in names)
