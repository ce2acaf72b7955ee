"""The one loop that measures, whatever the back end: checks a call's result, warms up, then times calls until the median is known well enough."""

from __future__ import annotations

import gc
import itertools
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives import bus_factor
from busbw.errors import InputError
from busbw.measuring.backends import WINDOW, Backend, Call, bind_messages
from busbw.measuring.elements import encoded, item_bytes, stored_as
from busbw.measuring.request import IN_PLACE, POINT_TO_POINT, Precision, Request, request_from
from busbw.measuring.samples import FEWEST, Half, half_of, relative_width
from busbw.measuring.truth import Places, due, given, places, wrong_elements

__all__ = ["Clock", "Measured", "MeasuredRow", "Place", "clock_of", "measure", "rows", "time_block", "time_calls"]

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

_ONE_BY_ONE_S = 20e-6
"""From here on every call is timed: two looks at the clock and a place in a list take 0.1 to 0.2 us (measured by `python -m benchmarks measure --only M1`)."""
_BATCH_S = 200e-6
"""Of a batch of shorter calls: less than a scheduler's slice, so that on a busy machine some are undisturbed."""
_FEWEST_CALLS = 5
_FIRST_BLOCK = 16
"""Samples before ranks ask each other for the first time whether they go on; each block is half as long again as all before."""
_MOST_SAMPLES = 10_000
_TRIPS = 20
_YARDSTICKS = 5
_MOST_COPIES = 2048
"""Of a try: back ends whose ranks copy by numpy need 0.1 us for each, and fifty tries are made."""
_CLOCK_TRIPS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs."""

    rank: int
    host: str
    pid: int
    cores: tuple[int, ...]
    """That it may run on."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What to add to each rank's `time.perf_counter_ns` to have time since the epoch on rank 0's clock, (ranks,), and how far off that may be."""

    offsets_ns: IntArray
    error_ns: IntArray
    """0 on rank 0's host; else half the fastest round trip of its host's first rank."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One size."""

    size_bytes: int
    """nccl-tests' size: the larger of a rank's send and receive buffers, in whole elements for each rank."""
    count: int
    out_of_place: Half | None
    in_place: Half | None
    copy_s: float
    """Copying as many bytes as a rank stores, by all ranks at the same time: what bounds the time from below, with the half round trip."""
    refused: str | None = None
    """Why the back end could not do it; there are no halves then."""
    key: str = ""
    predicted_s: float | None = None

    def halves(self) -> Iterator[Half]:
        """Those that were measured."""
        yield from (half for half in (self.out_of_place, self.in_place) if half is not None)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave."""

    request: Request
    round_trip_s: float | None
    """Of a bare cache line from rank 0 to rank 1 and back; None where the back end has no such thing."""
    about: dict[str, str] = field(default_factory=dict)
    """What the back end says of itself."""
    places: tuple[Place, ...] = ()
    rows: tuple[MeasuredRow, ...] = ()
    clock_error_s: float = 0.0
    """How far off the begin of a rank's calls may be beside rank 0's."""

    def busbw_bytes_per_s(self, size_bytes: int, half: Half) -> tuple[float, float]:
        """Both algbw and busbw; busbw of a single rank is 0, as nothing moves. Both directions count for bidirectional messages."""
        algbw = size_bytes / half.time_s if half.time_s > 0 else 0.0
        name = self.request.collective
        if name in POINT_TO_POINT:
            pairs = self.request.ranks // 2 if name == "message_rate" else 1
            return algbw, algbw * (2 if name == "bidirectional" else pairs)
        return algbw, 0.0 if name == "barrier" else algbw * bus_factor(name, self.request.ranks)

    def bound_s(self, row: MeasuredRow) -> float:
        """No call can be faster: a line must cross once, and what is stored must be stored; without data neither."""
        if row.size_bytes == 0:
            return 0.0
        return max(row.copy_s, (self.round_trip_s or 0.0) / 2)


def measure(backend: Backend, request: Request) -> Measured:
    """All rows of a request; all ranks call."""
    head, made = rows(backend, request)
    return Measured(request, head.round_trip_s, head.about, head.places, tuple(made), head.clock_error_s)


def rows(backend: Backend, request: Request, done: Iterable[str] = ()) -> tuple[Measured, Iterator[MeasuredRow]]:
    """What a request's rows have in common, and the rows as they are measured, without those whose keys are done; all ranks call both.

    Raises InputError if the back end can't do it at all.
    """
    if backend.ranks != request.ranks:
        raise InputError(f"{request.ranks} ranks are asked for, {backend.ranks} run")
    if refused := backend.refuses(request):
        raise InputError(f"back end {request.backend}: {refused}")
    clock, spots = clock_of(backend), _places(backend)
    trip = backend.round_trip_s() if backend.ranks > 1 else None
    if trip is not None:
        trip = float(backend.together(np.array([trip]), "max")[0])
    head = Measured(request, trip, backend.about(), spots, (), float(clock.error_ns.max(initial=0)) / 1e9)
    skipped = frozenset(done)
    return head, (
        _row(backend, request, size, clock) for size in request.sizes_bytes if request.key(size) not in skipped
    )


def _places(backend: Backend) -> tuple[Place, ...]:
    """Of all ranks, on rank 0; nothing on the others."""
    host = socket.gethostname().encode()[:64].ljust(64, b"\0")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mask = np.zeros(64, np.int64)  # 4096 cores
    for core in cores:
        if core < 64 * 63:
            mask[core // 63] |= 1 << (core % 63)
    mine = np.concatenate([np.array([os.getpid()]), np.frombuffer(host, np.int64), mask])
    told = backend.gathered(mine)
    if told is None:
        return ()
    return tuple(
        Place(
            rank,
            line[1:9].tobytes().rstrip(b"\0").decode("ascii", "replace"),
            int(line[0]),
            tuple(word * 63 + bit for word in range(64) for bit in range(63) if int(line[9 + word]) >> bit & 1),
        )
        for rank, line in enumerate(told)
    )


def clock_of(backend: Backend) -> Clock:
    """The clocks of all ranks beside rank 0's, on rank 0; all ranks call.

    Ranks of a host share CLOCK_MONOTONIC, which `perf_counter_ns` reads on Linux. The first rank of every other host exchanges messages with
    rank 0, one host after the other; in the fastest of twenty, rank 0's clock said (sent + received) / 2 when the other looked at its own
    (Cristian, 1989).
    """
    boot = _boot_number()
    words = backend.gathered(np.array([boot]))
    hosts = np.zeros(backend.ranks)
    if words is not None:
        _, hosts_of = np.unique(words[:, 0], return_inverse=True)
        hosts = hosts_of.astype(np.float64)
    hosts = backend.together(hosts if backend.rank == 0 else np.zeros(backend.ranks), "sum").astype(int)
    epoch = time.time_ns() - time.perf_counter_ns()
    offsets, errors = np.full(backend.ranks, epoch, np.int64), np.zeros(backend.ranks, np.int64)
    for host in sorted(set(hosts.tolist()) - {int(hosts[0])}):
        first = int(np.flatnonzero(hosts == host)[0])
        if backend.rank in (0, first):
            offset, error = _offset_of(backend, first)
            offsets[hosts == host] += offset
            errors[hosts == host] = error
        backend.barrier()
    return Clock(offsets, errors)


def _offset_of(backend: Backend, other: int) -> tuple[int, int]:
    """What to add to the clock of another host's rank to have rank 0's, and the error, on rank 0."""
    mine, theirs = backend.empty(1, "int64"), backend.empty(1, "int64")
    best = (0, 1 << 62)
    for _ in range(_CLOCK_TRIPS):
        if backend.rank == 0:
            sent = time.perf_counter_ns()
            backend.window(mine, other, theirs, None, 1)
            backend.window(mine, None, theirs, other, 1)
            got = time.perf_counter_ns()
            if got - sent < 2 * best[1]:
                best = ((sent + got) // 2 - int(backend.read(theirs)[0]), (got - sent) // 2)
        else:
            backend.window(mine, None, theirs, 0, 1)
            backend.write(mine, np.array([time.perf_counter_ns()]))
            backend.window(mine, 0, theirs, None, 1)
    return best


def _boot_number() -> int:
    """The same on all ranks of a running kernel, another on any other: 62 bits of boot id or host name."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        text = socket.gethostname().encode()
    return int.from_bytes(text.replace(b"-", b"")[:15], "big") & ((1 << 62) - 1)


def _row(backend: Backend, request: Request, size_bytes: int, clock: Clock) -> MeasuredRow:
    at = places(request, backend.rank, size_bytes, False)
    item = item_bytes(request.dtype)
    ways = (False, True)[: 1 + (request.in_place and request.collective in IN_PLACE)]
    halves = [_half(backend, request, size_bytes, in_place, clock) for in_place in ways]
    stored = (at.target.stop - at.target.start) * item
    copy_s = _copy_s(backend, stored)
    key = request.key(size_bytes)
    return MeasuredRow(at.size * item, at.count, halves[0], halves[1] if len(halves) > 1 else None, copy_s, None, key)


def _copy_s(backend: Backend, stored: int) -> float:
    """Of as many bytes as the rank that stores least, all ranks at once."""
    stored = int(backend.together(np.array([float(stored)]), "max")[0])
    if not stored:
        return 0.0
    a, b = np.ones(stored, np.uint8), np.ones(stored, np.uint8)
    backend.copies(a, b, 1)
    times = max(1, min(_MOST_COPIES, (1 << 20) // stored))
    tries = max(_YARDSTICKS, min(50, (64 << 20) // stored))
    took = [_timed(backend, lambda: backend.copies(a, b, times)) / times for _ in range(tries)]
    return float(backend.together(np.array([min(took)]), "min")[0])


def _timed(backend: Backend, call: Callable[[], Any]) -> float:
    backend.barrier()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _half(backend: Backend, request: Request, size_bytes: int, in_place: bool, clock: Clock) -> Half:
    """Checked first on fresh inputs; then timed."""
    at = places(request, backend.rank, size_bytes, in_place)
    if request.window and hasattr(backend, "window_memory"):
        whole, other = backend.window_memory(request, at.length, 0 if in_place else at.other_length)
    else:
        whole = backend.empty(at.length, request.dtype)
        other = whole if in_place else backend.empty(at.other_length, request.dtype)
    source, target = whole[at.source], (whole if in_place else other)[at.target]
    if request.collective in (*POINT_TO_POINT, "send_recv"):
        call = bind_messages(backend, request, source, target)
    else:
        call = backend.bind(request, source, target, at.part)
    wrong = _wrong(backend, request, at, (source, target), call)
    pairs = request.ranks // 2 if request.collective == "message_rate" else 1
    timed = 2 * pairs if request.collective in POINT_TO_POINT else request.ranks
    messages = {"latency": 2, "bandwidth": WINDOW, "bidirectional": WINDOW, "message_rate": WINDOW}
    stamps, calls = time_calls(backend, call, request.precision, takes_part=backend.rank < timed)
    told = backend.gathered(stamps.reshape(-1))
    if told is None:
        return Half(0.0, 0.0, wrong, int(calls.sum()))
    of_all = told.reshape(backend.ranks, -1, 2)
    return half_of(
        of_all,
        clock.offsets_ns,
        calls,
        wrong=wrong,
        messages=messages.get(request.collective, 1),
        ranks_timed=timed,
    )


def _wrong(backend: Backend, request: Request, at: Places, ends: tuple[Any, Any], call: Call) -> int:
    """Wrong elements of all ranks after one call."""
    source, target = ends
    must = due(request, backend.rank, at)
    stop = at.target.stop - at.target.start
    if stop:
        backend.write(target, encoded(np.full(stop, 7), request.dtype))  # nowhere a result
    if at.source.stop > at.source.start:
        backend.write(source, given(request, backend.rank, at.source.stop - at.source.start))
    backend.barrier()
    call(1)
    got = backend.read(target) if must is not None and stop else np.empty(0, stored_as(request.dtype))
    wrong = wrong_elements(request, got, must)
    return int(backend.together(np.array([float(wrong)]), "sum")[0])


def time_calls(
    backend: Backend, call: Call, precision: Precision, *, takes_part: bool = True
) -> tuple[IntArray, IntArray]:
    """Begin and end of each sample on this rank, (samples, 2) in ns of `perf_counter_ns`, and the calls in each, (samples,); all ranks call.

    Calls follow each other without a barrier, as in a bare loop; only between blocks do ranks meet and ask each other whether they go on.
    takes_part: whether this rank's times say anything.
    """
    once = min(_timed(backend, lambda: call(1)) for _ in range(3))
    if precision.warm_up:
        call(
            min(precision.warm_up, max(1, int(precision.limit_s / max(once, 1e-7)))) if once < precision.limit_s else 1
        )
        once = min(once, _timed(backend, lambda: call(1)))
    once = max(float(backend.together(np.array([once]), "max")[0]), 1e-7)
    batch = 1 if once >= _ONE_BY_ONE_S else max(1, round(_BATCH_S / once))
    if precision.iterations is not None:
        samples = max(1, min(precision.iterations, _MOST_SAMPLES, max(_FEWEST_CALLS, precision.iterations // batch)))
        each = [precision.iterations // samples + (i < precision.iterations % samples) for i in range(samples)]
        return np.array(time_block(backend, call, each), np.int64).reshape(-1, 2), np.array(each, np.int64)
    limit = max(_FEWEST_CALLS, min(_MOST_SAMPLES, int(precision.limit_s / (once * batch))))
    found: list[tuple[int, int]] = []
    begun = time.perf_counter()
    block = min(limit, _FIRST_BLOCK)
    while block:
        found += time_block(backend, call, [batch] * block)
        took = np.array([(end - start) for start, end in found], np.float64)
        state = np.array([relative_width(took), time.perf_counter() - begun])
        if len(found) < FEWEST:
            state[0] = math.inf
        if not takes_part:
            state[0] = 0.0
        width, elapsed = backend.together(np.nan_to_num(state, posinf=1e9), "max")
        if width <= precision.width or elapsed >= precision.limit_s:
            break
        left = int((precision.limit_s - elapsed) / (elapsed / len(found)))
        block = max(0, min(len(found) // 2, left, limit - len(found)))
    return np.array(found, np.int64).reshape(-1, 2), np.full(len(found), batch, np.int64)


def time_block(backend: Backend, call: Call, each: list[int]) -> list[tuple[int, int]]:
    """Begin and end of samples of so many calls each, one right after the other."""
    now = time.perf_counter_ns
    stamps: list[int] = []
    add = stamps.append
    collects = gc.isenabled()
    gc.disable()
    try:
        backend.barrier()
        add(now())
        for calls in each:
            call(calls)
            add(now())
    finally:
        if collects:
            gc.enable()
    return list(itertools.pairwise(stamps))


def row_json(row: MeasuredRow) -> dict[str, Any]:
    """A row without its samples, for another process or a store."""
    return {
        "key": row.key,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "copy_s": row.copy_s,
        "refused": row.refused,
        "out_of_place": row.out_of_place.to_json() if row.out_of_place else None,
        "in_place": row.in_place.to_json() if row.in_place else None,
    }


def row_from(told: dict[str, Any]) -> MeasuredRow:
    """The inverse of `row_json`."""

    def half(of: dict[str, Any] | None) -> Half | None:
        if of is None:
            return None
        known: dict[str, Any] = {
            name: math.nan if value is None and name != "last_rank" else value for name, value in of.items()
        }
        return Half(**known)

    return MeasuredRow(
        told["size_bytes"], told["count"], half(told["out_of_place"]), half(told["in_place"]), told["copy_s"], told["refused"], told["key"]
    )  # fmt: skip


def head_json(head: Measured) -> dict[str, Any]:
    """What rows have in common."""
    return {
        "request": head.request.to_json(),
        "round_trip_s": head.round_trip_s,
        "about": head.about,
        "places": [[place.rank, place.host, place.pid, list(place.cores)] for place in head.places],
        "clock_error_s": head.clock_error_s,
    }


def head_from(told: dict[str, Any]) -> Measured:
    """The inverse of `head_json`."""
    spots = tuple(Place(rank, host, pid, tuple(cores)) for rank, host, pid, cores in told["places"])
    return Measured(
        request_from(told["request"]), told["round_trip_s"], told["about"], spots, (), told["clock_error_s"]
    )
