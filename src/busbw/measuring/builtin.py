"""Collectives between ranks of this machine, measured and checked: what `busbw run --backend builtin` shows.

Every rank runs `measure` with the same request, in a process or a thread of its own. A row's time is the mean of its calls and of the ranks,
as nccl-tests has it; every element of a result is compared with the one that numpy gives, once for each row and place.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives import bus_factor
from busbw.execution import Communicator, Span, Spans, run_threads
from busbw.launching import LaunchError, launch_local

__all__ = [
    "COLLECTIVES",
    "DTYPES",
    "OPERATIONS",
    "Half",
    "Measured",
    "MeasuredRow",
    "Request",
    "measure",
    "run_in_threads",
    "run_processes",
]

Array = npt.NDArray[Any]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = ("sum", "prod", "min", "max", "avg")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_BATCHES = 5
"""Fewest, and of the yardsticks."""
_MOST_BATCHES = 200
_TRIPS = 20
"""Of a batch. Few: where ranks share a core each lasts as long as a scheduler's slice."""
_BATCH_S = 200e-6
"""Of a batch: shorter than a scheduler's slice, so that on a busy machine some are undisturbed."""
_LONGEST_S = 0.1
"""Of the calls of a half of a row, unless five take longer."""
_MOST_CALLS = 10_000
_HOSTS_WAIT_S = 60.0
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure."""

    collective: str
    ranks: int
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    window: bool = False
    """all_reduce on memory that all ranks map, which copies nothing."""
    in_place: bool = True
    """Whether in-place calls are measured besides."""
    iterations: int | None = None
    """Calls of a half of a row; as many as take a tenth of a second, at most 10,000, if None."""
    trace: bool = False
    """Whether each rank writes down when its calls began and ended; a batch of calls, which follow each other without Python, is one."""


@dataclass(frozen=True, slots=True)
class Half:
    """Out of place, or in place."""

    time_s: float
    """Mean of the calls and of the ranks."""
    best_s: float
    """Mean of the calls in the fastest batch, of the rank that took longest."""
    wrong: int
    """Elements, of all ranks, that are not what they must be."""
    calls: int


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One size."""

    size_bytes: int
    """nccl-tests' size: the larger of a rank's send and receive buffers, in whole elements for each rank."""
    count: int
    out_of_place: Half
    in_place: Half | None
    copy_s: float
    """Copying as many bytes as a rank stores, by all ranks at the same time: what bounds the time from below, with the half round trip."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave."""

    request: Request
    round_trip_s: float | None
    """Of a bare cache line from rank 0 to rank 1 and back."""
    reads_peers_memory: bool
    pids: tuple[int, ...]
    rows: tuple[MeasuredRow, ...] = field(default_factory=tuple)
    spans: Spans = field(default_factory=Spans)
    """Of all ranks, where a trace was asked for."""

    def busbw_bytes_per_s(self, size_bytes: int, half: Half) -> tuple[float, float]:
        """Both algbw and busbw; busbw of a single rank is 0, as nothing moves."""
        algbw = size_bytes / half.time_s if half.time_s > 0 else 0.0
        return algbw, algbw * bus_factor(self.request.collective, self.request.ranks)

    def bound_s(self, row: MeasuredRow) -> float:
        """No call can be faster: a line must cross once, and what is stored must be stored; without data neither."""
        if row.size_bytes == 0:
            return 0.0
        return max(row.copy_s, (self.round_trip_s or 0.0) / 2)


def measure(comm: Communicator, request: Request) -> Measured:
    """The rows of a request; all ranks call. Its spans are this rank's."""
    spans = comm.trace() if request.trace else Spans()
    round_trip = None
    if comm.ranks > 1:
        round_trip = min(_timed(lambda: comm.round_trips(_TRIPS), comm) / _TRIPS for _ in range(2 * _BATCHES))
        round_trip = float(comm.all_reduce(np.array([round_trip]), op="max")[0])
    pids = tuple(int(pid) for pid in comm.all_gather(np.array([os.getpid()])))
    largest = max(request.sizes_bytes, default=0)
    window = None
    if request.window:
        window = comm.shared(2 * (-(-largest // 4096) * 4096 + 4096)).array
    rows = tuple(_row(comm, request, size, window) for size in request.sizes_bytes)
    comm.untrace()
    return Measured(request, round_trip, comm.reads_peers_memory, pids, rows, spans)


def _timed(call: Callable[[], Any], comm: Communicator) -> float:
    comm.barrier()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _given(rank: int, count: int, dtype: str) -> Array:
    """Small whole numbers, different on each rank, so that sums and products of 64 ranks are exact in float16 or wrap as numpy's do."""
    return ((np.arange(count, dtype=np.int64) * (rank + 1) + rank) % 3).astype(dtype)


def _reduced(ranks: int, count: int, dtype: str, op: str) -> Array:
    combine: Any = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    total = _given(0, count, dtype)
    for rank in range(1, ranks):
        total = combine(total, _given(rank, count, dtype))
    if op != "avg":
        return total
    if not np.issubdtype(total.dtype, np.floating):
        return np.asarray(np.trunc(total / ranks).astype(total.dtype))
    wide = total.astype(np.float32) if total.dtype.itemsize == 2 else total
    return np.asarray((wide / wide.dtype.type(ranks)).astype(total.dtype))


@dataclass(slots=True)
class _Case:
    """A collective on buffers: what it reads and stores, what calls it, and what must come out."""

    source: Array
    target: Array
    call: Callable[[int], Any]
    fill: Callable[[], None]
    due: Array | None


def _row(comm: Communicator, request: Request, size_bytes: int, window: Array | None) -> MeasuredRow:
    item = np.dtype(request.dtype).itemsize
    part = size_bytes // item // comm.ranks
    is_whole = request.collective in ("all_reduce", "broadcast", "reduce")
    count = size_bytes // item if is_whole else part * comm.ranks
    stored = part if request.collective == "reduce_scatter" else count
    halves = [_half(comm, request, _case(comm, request, count, in_place, window)) for in_place in (False, True)[: 1 + (request.in_place and request.collective in _IN_PLACE)]]  # fmt: skip
    a, b = np.ones(stored * item, np.uint8), np.ones(stored * item, np.uint8)
    comm.copies(a, b)
    times = max(1, (1 << 20) // max(1, stored * item))
    tries = max(_BATCHES, min(50, (64 << 20) // max(1, stored * item)))
    copy_s = min(_timed(lambda: comm.copies(a, b, times), comm) / times for _ in range(tries)) if stored else 0.0
    copy_s = float(comm.all_reduce(np.array([copy_s]), op="min")[0])
    shown = part if request.collective in ("all_gather", "reduce_scatter", "all_to_all") else count
    return MeasuredRow(count * item, shown, halves[0], halves[1] if len(halves) > 1 else None, copy_s)


def _case(comm: Communicator, request: Request, count: int, in_place: bool, window: Array | None) -> _Case:
    ranks, rank, dtype, op = comm.ranks, comm.rank, request.dtype, request.op
    part = count // ranks
    own = slice(rank * part, (rank + 1) * part)
    if window is not None:
        half = window.nbytes // 2
        whole, other = (window[at : at + count * np.dtype(dtype).itemsize].view(dtype) for at in (0, half))
    else:
        whole, other = np.empty(count, dtype), np.empty(0 if in_place else count, dtype)
    mine = _given(rank, count, dtype)
    match request.collective:
        case "all_reduce":
            target = whole if in_place else other
            return _Case(whole, target, lambda n: comm.all_reduce(whole, target, op, times=n), lambda: _set(whole, mine), _reduced(ranks, count, dtype, op))  # fmt: skip
        case "reduce":
            target = whole if in_place else other

            def reduce(calls: int) -> None:
                for _ in range(calls):
                    comm.reduce(whole, target, op)

            return _Case(whole, target, reduce, lambda: _set(whole, mine), _reduced(ranks, count, dtype, op) if rank == 0 else None)  # fmt: skip
        case "reduce_scatter":
            target = whole[own] if in_place else other[:part]
            return _Case(whole, target, lambda n: comm.reduce_scatter(whole, target, op, times=n), lambda: _set(whole, mine), _reduced(ranks, count, dtype, op)[own])  # fmt: skip
        case "all_gather":
            source, target = (whole[own], whole) if in_place else (whole[:part], other)
            due = np.concatenate([_given(r, part, dtype) for r in range(ranks)]) if ranks else whole
            return _Case(source, target, lambda n: comm.all_gather(source, target, times=n), lambda: _set(source, mine[:part]), due)  # fmt: skip
        case "all_to_all":
            due = np.concatenate([_given(r, count, dtype)[own] for r in range(ranks)])
            return _Case(whole, other, lambda n: comm.all_to_all(whole, other, times=n), lambda: _set(whole, mine), due)
        case _:
            target = whole if in_place else other
            return _Case(whole, target, lambda n: comm.broadcast(whole, target, times=n), lambda: _set(whole, mine), _given(0, count, dtype))  # fmt: skip


def _set(array: Array, values: Array) -> None:
    array[:] = values


def _half(comm: Communicator, request: Request, case: _Case) -> Half:
    """Checked first on fresh inputs; then timed."""
    if case.target is not case.source and not np.shares_memory(case.target, case.source):
        case.target[:] = case.target.dtype.type(1) + case.target.dtype.type(6)  # nowhere a result
    case.fill()
    comm.barrier()
    case.call(1)
    wrong = 0 if case.due is None else int(np.count_nonzero(case.target != case.due))
    wrong = int(comm.all_reduce(np.array([wrong]))[0])
    once = min(_timed(lambda: case.call(1), comm) for _ in range(3))
    once = float(comm.all_reduce(np.array([once]), op="max")[0])
    calls = request.iterations or max(_BATCHES, min(_MOST_CALLS, int(_LONGEST_S / max(once, 1e-7))))
    batches = min(calls, _MOST_BATCHES, max(_BATCHES, round(calls * once / _BATCH_S)))
    each = [calls // batches + (batch < calls % batches) for batch in range(batches)]
    took = np.array([_timed(partial(case.call, calls_here), comm) / calls_here for calls_here in each])
    mean = comm.all_reduce(took) / comm.ranks
    slowest = comm.all_reduce(took, op="max")
    return Half(float(np.average(mean, weights=each)), float(slowest.min()), wrong, calls)


def run_in_threads(request: Request, *, wait_s: float = _HOSTS_WAIT_S) -> Measured:
    """What a request gives with ranks as threads of this process."""
    of = run_threads(request.ranks, lambda comm: measure(comm, request), wait_s=wait_s)
    for other in of[1:]:
        of[0].spans.join(other.spans)
    return of[0]


def run_processes(request: Request, *, deadline_s: float) -> Measured:
    """What a request gives with ranks as processes of this host. Raises LaunchError."""
    argv = [sys.executable, "-m", "busbw.measuring.builtin", json.dumps(asdict(request))]
    ended = launch_local(argv, request.ranks, deadline_s=deadline_s)
    lines = ended[0].out.splitlines()
    if not lines:
        raise LaunchError("rank 0 ended without a result")
    measured = _from_json(json.loads(lines[-1]))
    for rank in ended[1:] if request.trace else ():
        measured.spans.join(_spans_of(json.loads(rank.out.splitlines()[-1])))
    return measured


def _spans_of(told: dict[str, Any]) -> Spans:
    return Spans(told["most"], [Span(**span) for span in told["recorded"]], told["dropped"])


def _from_json(told: dict[str, Any]) -> Measured:
    request = told["request"] | {"sizes_bytes": tuple(told["request"]["sizes_bytes"])}
    rows = tuple(
        MeasuredRow(
            row["size_bytes"],
            row["count"],
            Half(**row["out_of_place"]),
            Half(**row["in_place"]) if row["in_place"] else None,
            row["copy_s"],
        )
        for row in told["rows"]
    )
    return Measured(
        Request(**request), told["round_trip_s"], told["reads_peers_memory"], tuple(told["pids"]), rows, _spans_of(told["spans"]),
    )  # fmt: skip


def _end_with_parent() -> None:
    """Has this process end when the one that started it does, however that ends: nobody would read what it measures."""
    with suppress(OSError, AttributeError):  # Linux has prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not os.environ["BUSBW_JOB"].startswith(f"{os.getppid()}-"):
        sys.exit("the process that started this rank has ended")


def _main(arguments: Sequence[str]) -> None:
    _end_with_parent()
    told = json.loads(arguments[0])
    request = Request(**(told | {"sizes_bytes": tuple(told["sizes_bytes"])}))
    measured = measure(Communicator(request.ranks, wait_s=_HOSTS_WAIT_S), request)
    if int(os.environ["BUSBW_RANK"]) == 0:
        print(json.dumps(asdict(measured)))
    elif request.trace:
        print(json.dumps(asdict(measured.spans)))


if __name__ == "__main__":
    _main(sys.argv[1:])
