"""PyTorch profiler traces (Kineto's Chrome trace JSON), a file a rank, as a task graph.

Lanes are the streams of a GPU, or, in a trace without GPU, the threads. What a lane did stays in its order and takes its time, but collectives, which
take what the simulated network makes of them. Between lanes:
- a kernel comes after its launch (`correlation`); a thread takes the time it took from launch to launch;
- a thread that waits (cudaStreamSynchronize, cudaDeviceSynchronize, ...) goes on when the kernels that it had launched, and that had ended then, end;
- NCCL's kernels come after the kernels that were launched before them, as PyTorch orders streams when it calls a collective;
- a kernel that could have begun, and did so only when a collective had ended, comes after it (within `_WAITED_US`).
Collectives are met by process group and order. Ranks of a group without a trace do as the first that has one.
Source: pytorch/kineto, traces of torch 1.13 to 2.13; arguments of `record_param_comms` (torch/csrc/distributed/c10d/ParamCommsUtils.hpp).
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from busbw.collectives import collective_named
from busbw.errors import InputError, Losses
from busbw.simulation.formats.building import ALGORITHMS, GraphBuilder
from busbw.simulation.graph import TaskGraph

__all__ = ["is_kineto", "rank_of", "read_kineto"]

_PS_PER_US = 1_000_000
_MOST_RANKS = 1 << 20
_WAITED_US = 50.0
"""Between the end of a collective and the begin of what waited for it, at most. A guess: launching out of a stream's queue takes some 10 us."""
_LONGEST_US = 1e11
"""Of an event: more than a day is damage, and would overflow once many are added."""
_LONGEST_NAME = 80
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_NCCL = re.compile(r"^(?:nccl|rccl)(?:Dev)?Kernel_?(\w+?)(?:_|\()", re.IGNORECASE)
_GLOO = re.compile(r"^gloo:(\w+)$")
_WAITS = re.compile(r"Synchronize$|^(?:cuda|hip)Memcpy(?!.*Async)")
_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2,
    "byte": 1, "uint8": 1, "char": 1, "int8": 1, "bool": 1, "short": 2, "int16": 2, "int": 4, "int32": 4, "long": 8, "int64": 8, "long int": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "signed char": 1, "unsigned char": 1,
}  # fmt: skip


@dataclass(slots=True)
class _Event:
    """A span of a lane, microseconds."""

    begin: float
    end: float
    name: str
    correlation: int | None = None
    call: _Call | None = None
    task: int = -1
    """Its end."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective as one rank saw it."""

    kind: str
    size_bytes: int
    group: str
    members: tuple[int, ...]


@dataclass(slots=True)
class _Trace:
    rank: int
    ranks: int
    path: str
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    streams: dict[str, list[_Event]] = field(default_factory=lambda: defaultdict(list))
    threads: dict[str, list[_Event]] = field(default_factory=lambda: defaultdict(list))
    launches: dict[str, list[_Event]] = field(default_factory=lambda: defaultdict(list))


def is_kineto(document: Any) -> bool:
    """Whether a JSON document is a Chrome trace."""
    return isinstance(document, dict) and isinstance(document.get("traceEvents"), list)


def rank_of(document: Mapping[str, Any]) -> int | None:
    """The rank that a trace says it is of; None where it does not."""
    rank = _of(document, "distributedInfo").get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def read_kineto(
    documents: Mapping[int, tuple[str, Mapping[str, Any]]], losses: Losses, *, ranks: int | None = None
) -> TaskGraph:
    """The graph of the traces of some ranks. ranks: of the job; None: as many as the traces say. Raises InputError for traces without work."""
    traces = [_trace(rank, path, document, losses) for rank, (path, document) in sorted(documents.items())]
    count = ranks if ranks is not None else max(*(trace.ranks for trace in traces), max(documents) + 1)
    if max(documents) >= count:
        raise InputError(
            f"{documents[max(documents)][0]}: a trace of rank {max(documents)}, but there are {count} ranks."
        )
    builder = GraphBuilder(count, traces[0].path)
    calls: dict[str, dict[int, list[tuple[_Call, str, int, int]]]] = defaultdict(dict)
    for trace in traces:
        met = _Rank(builder, trace, count)
        met.build()
        for call, name, come, go in met.calls:
            calls[call.group].setdefault(trace.rank, []).append((call, name, come, go))
    if not len(builder.kind):
        raise InputError(
            f"{traces[0].path}: no kernel and no operation in it. Profile with activities CPU and CUDA, then export."
        )
    for group, by_rank in calls.items():
        _join(builder, group, by_rank, losses)
    return builder.graph()


def _join(
    builder: GraphBuilder, group: str, by_rank: Mapping[int, Sequence[tuple[_Call, str, int, int]]], losses: Losses
) -> None:
    """The k-th collective of a group on each rank is one."""
    for number in range(max(map(len, by_rank.values()))):
        here = {rank: calls[number] for rank, calls in by_rank.items() if number < len(calls)}
        said = {(call.kind, call.size_bytes, call.members) for call, *_ in here.values()}
        call, name, *_ = next(iter(here.values()))
        entered = {rank: come for rank, (_, _, come, _) in here.items()}
        left = {rank: go for rank, (_, _, _, go) in here.items()}
        if len(said) > 1 or len(here) < len(by_rank) or not set(here) <= set(call.members):
            losses.add(
                "mismatched-collective", None,
                f"collective {number} of process group {group or '?'} ({name[:40]}) differs between ranks or is missing on some; it takes no time",
            )  # fmt: skip
            for rank, go in left.items():
                builder.comes_after(go, [entered[rank]])
            continue
        if len(here) < len(call.members):
            losses.add(
                "absent-ranks",
                None,
                f"{len(call.members) - len(here)} ranks of process group {group or '?'} have no trace; they come with the first that has",
            )
        builder.collective(call.kind, call.members, call.size_bytes, name=name, entered=entered, left=left)


def _of(value: Any, key: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e18:
        return None
    return float(value)


def _trace(rank: int, path: str, document: Mapping[str, Any], losses: Losses) -> _Trace:
    about = _of(document, "distributedInfo")
    world = about.get("world_size")
    trace = _Trace(rank, world if isinstance(world, int) and 0 < world < _MOST_RANKS else rank + 1, path)
    listed = about.get("pg_config")
    for group in listed if isinstance(listed, list) else []:
        if isinstance(group, dict) and isinstance(group.get("ranks"), list):
            trace.groups[str(group.get("pg_name"))] = tuple(r for r in group["ranks"] if isinstance(r, int) and r >= 0)
    for event in document["traceEvents"]:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        begin, took = _number(event.get("ts")), _number(event.get("dur"))
        if begin is None or took is None or not 0 <= took <= _LONGEST_US:
            losses.add("damaged-event", None, "an event without a time was left out")
            continue
        category, name, args = str(event.get("cat")), str(event.get("name")), _of(event, "args")
        correlation, thread = args.get("correlation"), f"{event.get('pid')} {event.get('tid')}"
        found = _Event(begin, begin + took, name[:_LONGEST_NAME], correlation if isinstance(correlation, int) else None)
        if category in _GPU:
            found.call = _call(name, args, trace, losses)
            trace.streams[f"{args.get('device')} {args.get('stream', event.get('tid'))}"].append(found)
        elif category in _RUNTIME:
            trace.launches[thread].append(found)
        elif category == "cpu_op" or (category == "user_annotation" and _GLOO.match(name)):
            found.call = _gloo(name, args, trace) if category == "user_annotation" else None
            trace.threads[thread].append(found)
    return trace


def _call(name: str, args: Mapping[str, Any], trace: _Trace, losses: Losses) -> _Call | None:
    """What a kernel of NCCL does, where its arguments say it."""
    is_nccl = _NCCL.match(name) is not None
    said = args.get("Collective name")
    if not is_nccl or not isinstance(said, str):
        if is_nccl:
            losses.add(
                "collective-without-size",
                None,
                f"{name[:40]} says neither size nor group; it takes the time it took. Profile with torch 2.2 or later",
            )
        return None
    kind = collective_named(
        said.lstrip("_").removesuffix("_base").removesuffix("_coalesced").replace("allgather_into_tensor", "allgather")
    )
    item = _BYTES.get(str(args.get("dtype")).lower())
    sent, received = _number(args.get("In msg nelems")), _number(args.get("Out msg nelems"))
    if kind is None or kind not in ALGORITHMS or item is None or sent is None or received is None:
        losses.add("collective-not-simulated", None, f"{said[:40]} of {args.get('dtype')}: it takes the time it took")
        return None
    group = str(args.get("Process Group Name", ""))
    members = _members(args, trace, group)
    if max(members) < _MOST_RANKS:
        trace.ranks = max(trace.ranks, max(members) + 1)
    return _Call(kind, int(max(sent, received, 0)) * item, group, members)


def _members(args: Mapping[str, Any], trace: _Trace, group: str) -> tuple[int, ...]:
    """The ranks of a process group: listed whole, or in the head of the trace, or by start and stride; all where nothing is said."""
    listed, size = args.get("Process Group Ranks"), _number(args.get("Group size"))
    if isinstance(listed, str) and "..." not in listed:
        ranks = tuple(map(int, re.findall(r"\d{1,8}", listed)))
        if ranks and (size is None or len(ranks) == size):
            return ranks
    if trace.groups.get(group):
        return trace.groups[group]
    start, stride = _number(args.get("Global rank start")), _number(args.get("Global rank stride"))
    if start is not None and stride is not None and size is not None and stride > 0 and 0 < size < _MOST_RANKS:
        return tuple(int(start + stride * place) for place in range(int(size)))
    return tuple(range(int(size) if size is not None and 0 < size < _MOST_RANKS else trace.ranks))


def _gloo(name: str, args: Mapping[str, Any], trace: _Trace) -> _Call | None:
    """A collective of gloo: all ranks, as nothing else is said; its size is that of the first tensor."""
    found = _GLOO.match(name)
    kind = collective_named(found[1]) if found else None
    dims, types = args.get("Input Dims"), args.get("Input type")
    if kind is None or kind not in ALGORITHMS or not isinstance(dims, list) or not isinstance(types, list):
        return None
    elements = (
        math.prod(n for n in dims[0] if isinstance(n, int) and n >= 0) if dims and isinstance(dims[0], list) else 0
    )
    item = _BYTES.get(str(types[0]).lower() if types else "")
    return _Call(kind, elements * item, "", tuple(range(trace.ranks))) if item else None


@dataclass(slots=True)
class _Rank:
    builder: GraphBuilder
    trace: _Trace
    ranks: int
    calls: list[tuple[_Call, str, int, int]] = field(default_factory=list)

    def build(self) -> None:
        """The tasks of one rank."""
        streams = {lane: _whole(events) for lane, events in self.trace.streams.items()}
        if streams:
            self.gpu(streams)
        else:
            self.cpu({lane: _outermost(events) for lane, events in self.trace.threads.items()})

    def gpu(self, streams: Mapping[str, list[_Event]]) -> None:
        """Streams and the threads that launch into them."""
        kernels = sorted((event for lane in streams.values() for event in lane), key=lambda event: event.begin)
        known = {event.correlation for event in kernels if event.correlation is not None}
        launched: dict[int, tuple[int, float]] = {}
        waits: list[tuple[float, int]] = []
        calls = [(lane, event) for lane, events in self.trace.launches.items() for event in _whole(events)]
        last: dict[str, tuple[float, int]] = {}
        for lane, event in sorted(calls, key=lambda each: each[1].end):
            launches, blocks = event.correlation in known, _WAITS.search(event.name) is not None
            if not launches and not blocks:
                continue
            before, earlier = last.get(lane, (event.begin, -1))
            # What waits took is not the thread's own time.
            until = event.begin if blocks else event.end
            task = self.compute(event.name, until - before, [earlier] if earlier >= 0 else [])
            if launches and event.correlation is not None:
                launched[event.correlation] = (task, event.begin if blocks else event.end)
            if blocks:
                task = self.compute(f"{event.name} done", 0.0, [task])
                waits.append((event.end, task))
            last[lane] = (event.end, task)
        order = {
            event.correlation: at
            for at, event in enumerate(
                sorted(kernels, key=lambda e: launched.get(e.correlation or -1, (0, e.begin))[1])
            )
        }
        by_launch = sorted((order[event.correlation], event) for event in kernels) if len(order) == len(kernels) else []
        collectives = [event for event in kernels if event.call is not None]
        ends = sorted((event.end, place) for place, event in enumerate(collectives))
        latest: dict[int, _Event] = {}
        previous: _Event | None = None
        for _, event in by_launch:
            if event.call is not None and previous is not None and previous.end <= event.begin:
                latest[id(event)] = previous
            if event.call is None:
                previous = event
        self.lanes(streams, collectives, ends, launched, latest)
        for end, task in waits:
            for lane_events in streams.values():
                at = bisect_right([event.end for event in lane_events], end)
                if at:
                    self.builder.comes_after(task, [lane_events[at - 1].task])

    def cpu(self, threads: Mapping[str, list[_Event]]) -> None:
        """Threads of a trace without a GPU: a collective comes after what other threads had done before it."""
        collectives = sorted(
            (e for lane in threads.values() for e in lane if e.call is not None), key=lambda e: e.begin
        )
        latest: dict[int, _Event] = {}
        others = sorted((e for lane in threads.values() for e in lane if e.call is None), key=lambda e: e.end)
        finished = [event.end for event in others]
        for event in collectives:
            at = bisect_right(finished, event.begin)
            if at:
                latest[id(event)] = others[at - 1]
        ends = sorted((event.end, place) for place, event in enumerate(collectives))
        self.lanes(threads, collectives, ends, {}, latest, gaps=True)

    def lanes(
        self, lanes: Mapping[str, list[_Event]], collectives: Sequence[_Event], ends: Sequence[tuple[float, int]],
        launched: Mapping[int, tuple[int, float]], latest: Mapping[int, _Event], *, gaps: bool = False,
    ) -> None:  # fmt: skip
        """Tasks of lanes, in the order in which they began, with the edges between them. gaps: what lies between two of a lane is its time, too."""
        events = sorted(
            ((event, lane) for lane, found in lanes.items() for event in found), key=lambda each: each[0].begin
        )
        before: dict[str, _Event] = {}
        for event, lane in events:
            earlier = before.get(lane)
            after = [earlier.task] if earlier is not None else []
            ready = earlier.end if earlier is not None else -math.inf
            if event.correlation is not None and event.correlation in launched:
                task, at = launched[event.correlation]
                after.append(task)
                ready = max(ready, at)
            if id(event) in latest and latest[id(event)].task >= 0:
                after.append(latest[id(event)].task)
            waited = self.waited_for(event, ready, collectives, ends)
            if waited is not None:
                after.append(waited.task)
                ready = waited.end
            gap = max(0.0, event.begin - ready) if gaps and math.isfinite(ready) else 0.0
            if event.call is not None:
                name = f"rank {self.trace.rank} {event.name}"
                come = self.compute(event.name, gap, after)
                event.task = self.builder.compute(self.trace.rank, name, 0)
                self.calls.append((event.call, name, come, event.task))
            else:
                event.task = self.compute(event.name, gap + event.end - event.begin, after)
            before[lane] = event

    def waited_for(
        self, event: _Event, ready: float, collectives: Sequence[_Event], ends: Sequence[tuple[float, int]]
    ) -> _Event | None:
        """The collective whose end let an event begin that could have begun before."""
        at = bisect_right(ends, (event.begin, len(collectives)))
        if not at:
            return None
        end, place = ends[at - 1]
        found = collectives[place]
        waits = ready < end and event.begin - end <= _WAITED_US and found is not event and found.task >= 0
        return found if waits else None

    def compute(self, name: str, took_us: float, after: Sequence[int]) -> int:
        """A computation of this rank."""
        return self.builder.compute(
            self.trace.rank,
            f"rank {self.trace.rank} {name}",
            round(min(max(0.0, took_us), _LONGEST_US) * _PS_PER_US),
            after,
        )


def _whole(events: list[_Event]) -> list[_Event]:
    """A lane's events in the order in which they ended, what overlaps cut: a stream does one thing at a time."""
    found = sorted(events, key=lambda event: (event.begin, event.end))
    for earlier, later in pairwise(found):
        earlier.end = min(earlier.end, max(later.begin, earlier.begin))
    return found


def _outermost(events: list[_Event]) -> list[_Event]:
    """Events of a thread that lie in no other."""
    found: list[_Event] = []
    for event in sorted(events, key=lambda each: (each.begin, -each.end)):
        if not found or event.begin >= found[-1].end:
            found.append(event)
    return found


def documents_of(texts: Mapping[str, bytes]) -> Iterator[tuple[str, Any]]:
    """Each file as JSON. Raises InputError for what is none."""
    for path, text in texts.items():
        try:
            yield path, json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: no JSON: {str(error)[:200]}.") from None
