"""Running a plan: on threads or processes of this machine, or in the simulated weak memory."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from busbw.collectives.collective import DTYPE_BYTES, OPERATIONS, REDUCING
from busbw.collectives.plan import Op, Plan
from busbw.execution._plan_run import PlanRank
from busbw.execution._plan_simulation import SimulatedPlan
from busbw.execution.communicator import PRIMITIVES, Communicator, GaveUpError
from busbw.execution.linking import LinkedPlan, link
from busbw.execution.tracing import Spans

__all__ = [
    "CallBuffers",
    "Places",
    "PlanRun",
    "Simulated",
    "as_flat",
    "check_operation",
    "forked",
    "gave_up",
    "known_dtype",
    "run",
    "simulate",
]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Result = TypeVar("Result")
_LINE = 64
_SPACES = 4  # program.hpp: input, output, scratch, packets


class PlanRun:
    """One rank of a communicator, ready to run a plan on inputs of a size: `PlanRun(comm, plan, elements)(source)`.

    All ranks make it with the same plan, and call it together. elements: of the input of each rank, or one number for all. What peers touch is
    copied into memory that all ranks map, and back; a plan that only sends and receives works on the arrays themselves.
    """

    def __init__(
        self,
        comm: Communicator,
        plan: Plan,
        elements: int | Sequence[int],
        dtype: str = "float32",
        *,
        slot_bytes: int | None = None,
    ) -> None:
        if comm.ranks != plan.ranks:
            raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks, the communicator has {comm.ranks}")
        self._comm, self._dtype = comm, known_dtype(dtype)
        self.linked = linked = link(plan, _each(elements, plan), DTYPE_BYTES[dtype], slot_bytes=slot_bytes)
        self._places = Places(linked, user_memory=linked.reaches_peers)
        memory = comm.shared(self._places.total_bytes).memory
        linked.set_semaphores(comm.rank, memory[comm.rank])
        comm.barrier()
        self._core = _core(linked, comm.rank, [self._places.wire(one) for one in memory])
        self._memory = memory
        self._bases = _bases(self._places, memory)
        self._spans: Spans | None = None

    def trace(self, spans: Spans | None = None) -> Spans:
        """Where each later call writes when each row of each block of this rank began and ended."""
        self._spans = Spans() if spans is None else spans
        return self._spans

    def __call__(self, source: Any, target: Any = None, op: str = "sum", *, times: int = 1) -> Array:
        """This rank's output, in `target` if there is one. times: runs in a row."""
        if times < 1:
            raise ValueError(f"times={times}: a plan is run once or more")
        return self._run(as_flat(source), None if target is None else as_flat(target), op, times)

    def _run(self, source: Array, target: Array | None, op: str, times: int) -> Array:
        check_operation(op)
        rank, linked = self._comm.rank, self.linked
        buffers = CallBuffers.of(linked, rank, source, target, self._dtype)
        bases = self._bases.copy()
        own = slice(rank * _SPACES, rank * _SPACES + 2)
        if linked.reaches_peers:
            inside = self._places.user(self._memory[rank])
            buffers = buffers.inside(inside, linked, rank)
        bases[own] = buffers.addresses
        _record(self._core, self._spans)
        stopped = self._core.run(bases, self._dtype, op, self._comm.wait_s, times)
        _recorded(self._core, self._spans, linked, rank)
        if stopped:
            raise GaveUpError(
                gave_up(self._core.report(), rank, linked.plan.name, self._comm.wait_s, deadline=stopped == 1)
            )
        return buffers.finished(op, linked.plan)


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a run in the simulated weak memory showed."""

    outputs: list[Array]
    races: list[str]
    """Accesses that nothing orders, and packets lost, in words."""
    deadlock: str
    """Where every thread stood when none could go on; empty if all ended."""
    primitives: int

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.races and not self.deadlock


def run(
    plan: Plan,
    arrays: Sequence[Any],
    op: str = "sum",
    *,
    dtype: str | None = None,
    backend: Literal["threads", "processes", "sockets", "sim"] = "threads",
    seed: int = 0,
    wait_s: float = 30.0,
    spans: Spans | None = None,
) -> list[Array]:
    """The output of every rank, for an input of every rank. Whoever only receives gives an array of the size that it will get.

    backend: ranks as threads of this process, as processes over shared memory or over TCP (sockets: plans that send and receive), or in the
    simulated weak memory by `seed` (small arrays).
    spans: gets when each row of each block began and ended, on threads and processes.
    op is what the plan's reductions do; dtype says what arrays of unsigned integers hold: bfloat16, float8_e4m3, float8_e5m2. The plan is taken as it is: verify it first. Raises ValueError for
    inputs that the collective can't have, GaveUpError for a rank that waits longer than wait_s (a plan that deadlocks), RuntimeError for what the simulation finds.

    >>> from busbw.collectives import plan_of
    >>> from busbw.collectives.algorithms import ring_all_reduce
    >>> [out.tolist() for out in run(plan_of(ring_all_reduce().bind(2)), [np.float32([1, 2, 3]), np.float32([10, 20, 30])])]
    [[11.0, 22.0, 33.0], [11.0, 22.0, 33.0]]
    """
    given = [as_flat(array) for array in arrays]
    if len(given) != plan.ranks:
        raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks, {len(given)} arrays are given")
    kinds = {array.dtype for array in given}
    if len(kinds) > 1:
        raise ValueError(f"arrays of one type are needed, not {', '.join(sorted(map(str, kinds)))}")
    kind = known_dtype(dtype or given[0].dtype.name)
    if DTYPE_BYTES[kind] != given[0].dtype.itemsize:
        raise ValueError(f"{kind} takes {DTYPE_BYTES[kind]} bytes, an element of the arrays {given[0].dtype.itemsize}")
    check_operation(op)
    if backend == "sim":
        if spans is not None:
            raise ValueError('backend="sim" has no time: a trace needs backend="threads" or "processes"')
        found = simulate(plan, given, op, dtype=kind, seed=seed)
        if not found.clean:
            raise RuntimeError(f"plan {plan.name!r}, seed {seed}: {found.deadlock or found.races[0]}")
        return found.outputs
    if backend == "processes":
        return _on_processes(plan, given, op, kind, wait_s=wait_s, spans=spans)
    if backend == "sockets":
        from busbw.execution.socket_run import run_on_sockets  # noqa: PLC0415 - it imports this module

        if spans is not None:
            raise ValueError('backend="sockets" records no spans: a trace needs backend="threads" or "processes"')
        return run_on_sockets(plan, given, op, kind, wait_s)
    if backend == "threads":
        return _on_threads(plan, given, op, kind, wait_s=wait_s, spans=spans)
    raise ValueError(f"no back end {backend!r}; there are threads, processes, sockets and sim")


def simulate(
    plan: Plan,
    arrays: Sequence[Array],
    op: str = "sum",
    *,
    dtype: str | None = None,
    seed: int = 0,
    threads: int = 1,
    launches: int = 1,
    slot_bytes: int | None = None,
) -> Simulated:
    """What one run in the simulated weak memory shows: the outputs of the last launch, and what nothing orders.

    threads: of a block. launches: one after the other on the same memory, with the same inputs: what a plan leaves behind for the next shows in
    the second. Time and memory grow with ranks x blocks x threads x bytes: for arrays of some hundred elements.
    """
    given = [as_flat(array) for array in arrays]
    kind = known_dtype(dtype or given[0].dtype.name)
    linked = link(plan, [array.size for array in given], DTYPE_BYTES[kind], slot_bytes=slot_bytes)
    places = Places(linked, user_memory=True)
    core = SimulatedPlan()
    for rank, one in enumerate(linked.ranks):
        core.add_rank(*one.columns, one.block_runs, linked.space_table(), linked.numbers(rank), one.semaphores)
    inputs, outputs = [], []
    for rank, array in enumerate(given):
        sizes = [space.size_bytes for space in linked.spaces[rank][:2]]
        inputs.append(np.tile(_bytes(array)[: sizes[0]], launches))
        outputs.append(np.zeros(sizes[1] * launches, np.uint8))
    heap = [at for rank in range(plan.ranks) for at in (0, *places.of(rank))]
    races, deadlock, primitives, _ = core.run(
        np.array([*heap, places.total_bytes], np.uint64), inputs, outputs, kind, op, seed, threads, launches
    )
    results = [
        _averaged(out[len(out) - len(out) // launches :].view(array.dtype), op, plan, kind)
        for out, array in zip(outputs, given, strict=True)
    ]
    return Simulated(results, list(races), deadlock, primitives)


# Where things lie


class Places:
    """Where wire, input, output, scratch and packets lie in the memory of a rank, which is laid out alike on all."""

    def __init__(self, linked: LinkedPlan, *, user_memory: bool) -> None:
        self._linked, self._shared = linked, user_memory and linked.in_place
        sizes = [linked.most_bytes(space) if space > 1 or user_memory else 0 for space in range(_SPACES)]
        if self._shared:
            sizes[0], sizes[1] = 0, max(sizes[:2])
        at = _up(linked.wire_bytes)
        self.offsets: list[int] = []
        for size in sizes:
            self.offsets.append(at)
            at += _up(size)
        self.total_bytes = at
        self._wire_bytes = _up(linked.wire_bytes)

    def of(self, rank: int) -> list[int]:
        """Where a rank's input, output, scratch and packets begin; in place, the first two share memory."""
        source, target, *others = self.offsets
        if self._shared:
            (behind, ahead), _ = _in_place(self._linked, rank)
            source, target = target + ahead, target + behind
        return [source, target, *others]

    def wire(self, memory: Bytes) -> Bytes:
        """The wire window."""
        return memory[: self._wire_bytes]

    def user(self, memory: Bytes) -> tuple[Bytes, Bytes]:
        """Input and output."""
        return memory[self.offsets[0] : self.offsets[1]], memory[self.offsets[1] : self.offsets[2]]


def _up(value: int) -> int:
    return -(-value // _LINE) * _LINE


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _bases(places: Places, memory: Sequence[Bytes]) -> npt.NDArray[np.uint64]:
    """Addresses of every rank's spaces."""
    return np.array([_address(one) + at for rank, one in enumerate(memory) for at in places.of(rank)], np.uint64)


def _core(linked: LinkedPlan, rank: int, wires: list[Bytes], threads: int = 1) -> PlanRank:
    one = linked.ranks[rank]
    return PlanRank(*one.columns, one.block_runs, linked.space_table(), linked.numbers(rank), wires, threads)


@dataclass(frozen=True, slots=True)
class CallBuffers:
    """Input and output of a call on a rank: the user's, or their copies where all ranks see them."""

    source: Bytes
    target: Bytes
    """Both as bytes; in place, the one is part of the other."""
    result: Array
    """What the user gets: `target` shows its memory, unless `apart`."""
    dtype: str
    apart: bool = False

    @staticmethod
    def of(linked: LinkedPlan, rank: int, source: Array, target: Array | None, dtype: str) -> CallBuffers:
        """Those of a call. Raises ValueError for arrays of another size or type than the plan was linked for."""
        width = DTYPE_BYTES[dtype]
        gives, gets = (space.size_bytes // width for space in linked.spaces[rank][:2])
        if source.dtype.itemsize != width or source.size < gives:
            raise ValueError(f"rank {rank}: an input of {gives} {dtype} is needed, not {source.size} {source.dtype}")
        out = np.zeros(gets, source.dtype) if target is None else target
        if out.dtype != source.dtype or out.size != gets:
            raise ValueError(f"rank {rank}: an output of {gets} {source.dtype} is needed, not {out.size} {out.dtype}")
        given, made = _bytes(source)[: gives * width], _bytes(out)
        if linked.in_place:
            first, whole = _in_place(linked, rank)
            if first[1] >= 0 and _address(given) == _address(made) + first[1] and first[0] == 0:
                return CallBuffers(given, made, out, dtype)
            both = np.zeros(whole, np.uint8)
            both[first[1] : first[1] + len(given)] = given
            return CallBuffers(both[first[1] :], both[first[0] :], out, dtype, apart=True)
        return CallBuffers(given, made, out, dtype)

    def inside(self, memory: tuple[Bytes, Bytes], linked: LinkedPlan, rank: int) -> CallBuffers:
        """The same in memory that all ranks map."""
        source, target = memory
        if linked.in_place:
            first, _ = _in_place(linked, rank)
            source, target = target[first[1] :], target[first[0] :]
        source[: len(self.source)] = self.source
        return CallBuffers(source, target, self.result, self.dtype, apart=True)

    @property
    def addresses(self) -> tuple[int, int]:
        """Of input and output."""
        return _address(self.source), _address(self.target)

    def finished(self, op: str, plan: Plan) -> Array:
        """The user's array, filled, and divided where an average was asked for."""
        if self.apart:
            _bytes(self.result)[:] = self.target[: self.result.nbytes]
        return _averaged(self.result, op, plan, self.dtype)


def _in_place(linked: LinkedPlan, rank: int) -> tuple[tuple[int, int], int]:
    """Where output and input begin in the memory that they share, bytes, and how large it is."""
    source, target = linked.spaces[rank][:2]
    kind = linked.plan.collective
    if kind in ("all_gather", "gather"):
        return (0, rank * source.part_bytes), target.size_bytes
    if kind in ("reduce_scatter", "scatter"):
        return (rank * target.part_bytes, 0), source.size_bytes
    return (0, 0), max(source.size_bytes, target.size_bytes)


# Back ends


def _on_threads(
    plan: Plan, arrays: list[Array], op: str, dtype: str, *, wait_s: float, spans: Spans | None
) -> list[Array]:
    linked = link(plan, [array.size for array in arrays], DTYPE_BYTES[dtype])
    places = Places(linked, user_memory=False)
    memory = [_lines(places.total_bytes) for _ in arrays]
    wires = [places.wire(one) for one in memory]
    buffers = [CallBuffers.of(linked, rank, array, None, dtype) for rank, array in enumerate(arrays)]
    bases = _bases(places, memory)
    for rank, of in enumerate(buffers):
        linked.set_semaphores(rank, memory[rank])
        bases[rank * _SPACES : rank * _SPACES + 2] = of.addresses
    cores = [_core(linked, rank, wires) for rank in range(plan.ranks)]
    for core in cores:
        _record(core, spans)
    stopped = [0] * plan.ranks

    def as_rank(rank: int) -> None:
        stopped[rank] = cores[rank].run(bases, dtype, op, wait_s)

    threads = [threading.Thread(target=as_rank, args=(rank,)) for rank in range(plan.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, core in enumerate(cores):
        _recorded(core, spans, linked, rank)
    for rank in sorted(range(plan.ranks), key=lambda rank: stopped[rank] != 1):
        if stopped[rank]:
            raise GaveUpError(gave_up(cores[rank].report(), rank, plan.name, wait_s, deadline=stopped[rank] == 1))
    return [of.finished(op, plan) for of in buffers]


def _on_processes(
    plan: Plan, arrays: list[Array], op: str, dtype: str, *, wait_s: float, spans: Spans | None
) -> list[Array]:
    name = f"run-{os.getpid()}-{threading.get_ident()}"
    sizes = [array.size for array in arrays]

    def as_rank(rank: int) -> tuple[Array, Spans | None]:
        comm = Communicator(plan.ranks, rank=rank, name=name, wait_s=wait_s)
        ready = PlanRun(comm, plan, sizes, dtype)
        mine = None if spans is None else ready.trace(Spans(spans.most))
        return ready(arrays[rank], op=op), mine

    found = forked(plan.ranks, as_rank)
    for _, its in found:
        if spans is not None and its is not None:
            spans.join(its)
    return [output for output, _ in found]


def forked(ranks: int, body: Callable[[int], Result]) -> list[Result]:
    """What body gives on each rank, the ranks being processes forked from this one. Raises what the first that failed raised; the others are ended then."""
    context = multiprocessing.get_context("fork")  # a plan's ranks are functions, which can't be sent
    answers: Any = context.Queue()

    def as_rank(rank: int) -> None:
        try:
            answers.put((rank, body(rank), None))
        except Exception as error:  # whoever started the ranks raises it
            answers.put((rank, None, error))

    processes = [context.Process(target=as_rank, args=(rank,), daemon=True) for rank in range(ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the children touch none of them
        for process in processes:
            process.start()
    found: dict[int, Result] = {}
    errors: list[Exception] = []
    while len(found) + len(errors) < ranks:
        try:
            rank, result, error = answers.get(timeout=0.2)
        except queue.Empty:
            dead = [place for place, one in enumerate(processes) if one.exitcode not in (None, 0)]
            if dead:
                errors.append(
                    GaveUpError(f"the process of rank {dead[0]} ended with status {processes[dead[0]].exitcode}")
                )
                break
            continue
        if error is not None:
            errors.append(error)
        else:
            found[rank] = result
    for process in processes:
        if errors:
            process.terminate()
        process.join()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(ranks)]


def _record(core: PlanRank, spans: Spans | None) -> None:
    core.trace(0 if spans is None else spans.most)


def _recorded(core: PlanRank, spans: Spans | None, linked: LinkedPlan, rank: int) -> None:
    """Hands over what the core has written down, rows as the names of their operations."""
    if spans is None:
        return
    rows, dropped = core.spans()
    names = [Op(int(op)).name.lower() for op in linked.ranks[rank].plan.instructions["op"]]
    spans.extend(rank, ((block, names[row], begin, end) for block, row, begin, end in rows), dropped)


def gave_up(report: tuple[int, int, int, int, int, int], rank: int, name: str, wait_s: float, *, deadline: bool) -> str:
    """What is said of a rank that waited in vain. report: as `PlanRank.report` gives it."""
    _, primitive, block, peer, expected, seen = report
    if not deadline:
        return f"rank {rank} stopped plan {name!r} because another wait of it had been given up"
    what = PRIMITIVES[primitive] if primitive < len(PRIMITIVES) else "something"
    return (
        f"rank {rank}, block {block} of plan {name!r} waited {wait_s:g} s for {what} of rank {peer}: number {expected} was due, {seen} had come. "
        "That rank has died or is busy, or the plan deadlocks: `busbw verify` tells."
    )


# Arrays


def _lines(size_bytes: int) -> Bytes:
    """Zeros that begin at a cache line."""
    raw = np.zeros(size_bytes + _LINE, np.uint8)
    begin = -_address(raw) % _LINE
    return raw[begin : begin + size_bytes]


def as_flat(given: Any) -> Array:
    """An array, or what speaks DLPack, as one row of elements in the same memory. Raises ValueError where it is not contiguous."""
    array = given if isinstance(given, np.ndarray) else np.from_dlpack(given)
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous: pass np.ascontiguousarray(x)")
    return array.reshape(-1)


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def known_dtype(dtype: str) -> str:
    """The type, if there is arithmetic of it; else raises ValueError."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"no arithmetic of {dtype}; there is {', '.join(DTYPE_BYTES)}")
    return dtype


def check_operation(op: str) -> None:
    """Raises ValueError for an operation that there is not."""
    if op not in OPERATIONS:
        raise ValueError(f"no operation {op!r}; there are {', '.join(OPERATIONS)}")


def _each(elements: int | Sequence[int], plan: Plan) -> Sequence[int]:
    return [elements] * plan.ranks if isinstance(elements, int) else elements


def _averaged(result: Array, op: str, plan: Plan, dtype: str) -> Array:
    """Sums over ranks divided by their number where avg was asked for, as NCCL has it: integers as integers."""
    if op != "avg" or plan.collective not in REDUCING:
        return result
    if dtype.startswith("float8"):
        raise ValueError("there is no average of float8: divide the sum")
    if dtype == "bfloat16":
        wide = (result.astype(np.uint32) << 16).view(np.float32) / np.float32(plan.ranks)
        bits = wide.view(np.uint32)
        result[:] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return result
    if result.dtype.kind in "iu":
        result[:] = np.trunc(result / plan.ranks) if result.dtype.itemsize < 8 else _toward_zero(result, plan.ranks)
        return result
    np.divide(result, result.dtype.type(plan.ranks), out=result)
    return result


def _toward_zero(values: Array, divisor: int) -> Array:
    """Integers divided as C divides them."""
    quotient: Array = np.sign(values) * (np.abs(values) // values.dtype.type(divisor))
    return quotient
