"""A timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open: a process a rank, a thread a stream or connection.

What the end waited for stands in a process of its own, links as counters in another.
Format: "Trace Event Format" (Google, 2016): complete events, ph X, times in microseconds; counters, ph C; names, ph M.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from busbw.observations import Rows
from busbw.simulation import Tasks, Timeline, critical_path, link_load, written_out

__all__ = ["write_perfetto", "write_spans"]

_US = 1e-6
_BINS = 200
_MOST_LINKS = 64
"""The busiest ones have a counter."""


def write_perfetto(timeline: Timeline, path: Path, names: Sequence[str] = ()) -> int:
    """Writes the tasks of a recorded run; how many there were. One rank an orbit where the run was folded.

    names: of a graph's tasks, stream by stream. Raises InputError where tasks were not recorded.
    """
    tasks = written_out(timeline)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        first = True
        for event in _events(timeline, tasks, names):
            file.write(("" if first else ",\n") + json.dumps(event))
            first = False
            written += event["ph"] == "X" and event["pid"] != _path_process(timeline)
        file.write("\n]}\n")
    return written


def write_spans(spans: Rows, path: Path) -> int:
    """Writes rows of the table `spans`, a process a rank, a thread a lane, from the first beginning on; how many there were."""
    rows = spans.batch.to_pylist()
    zero = min((row["begin_ns"] for row in rows), default=0)
    lanes = sorted({(row["rank"], row["lane"]) for row in rows}, key=lambda each: (each[0], len(each[1]), each[1]))
    threads = {lane: number for number, lane in enumerate(lanes)}
    events = [_name("process_name", rank, f"rank {rank}") for rank in sorted({rank for rank, _ in lanes})]
    events += [_name("thread_name", rank, lane, threads[rank, lane]) for rank, lane in lanes]
    events += [
        {"name": row["name"], "ph": "X", "pid": row["rank"], "tid": threads[row["rank"], row["lane"]], "ts": (row["begin_ns"] - zero) / 1000,
         "dur": (row["end_ns"] - row["begin_ns"]) / 1000}
        for row in rows
    ]  # fmt: skip
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}), encoding="utf-8")
    return len(rows)


def _path_process(timeline: Timeline) -> int:
    return timeline.program.ranks


def _name(kind: str, pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    thread = {} if tid is None else {"tid": tid}
    return {"name": kind, "ph": "M", "pid": pid, **thread, "args": {"name": name}}


def _events(timeline: Timeline, tasks: Tasks, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    expansion, program = timeline.expansion, timeline.program
    for rank in sorted({int(rank) for rank in expansion.stream_rank}):
        yield _name("process_name", rank, timeline.network.rank_name(rank))
    threads: dict[tuple[int, int, int], int] = {}
    lanes: dict[int, list[int]] = {}

    def thread(pid: int, stream: int, channel: int, name: str) -> Iterator[dict[str, Any]]:
        """Connections to several peers may send at once, so each has its own."""
        if (pid, stream, channel) not in threads:
            threads[pid, stream, channel] = len(threads) + 1
            yield _name("thread_name", pid, name, threads[pid, stream, channel])

    on_path = set(critical_path(timeline).rows.tolist())
    waited = _path_process(timeline)
    if on_path:
        yield _name("process_name", waited, "critical path")
    for row in range(len(tasks)):
        begin, end, channel = int(tasks.begin_ps[row]), int(tasks.end_ps[row]), int(tasks.channel[row])
        if begin < 0 or end < 0 or (end == begin and names):
            continue
        stream = int(tasks.stream[row])
        more: dict[str, Any] = {}
        if channel < 0:
            pid = int(expansion.stream_rank[stream])
            said = program.streams[int(expansion.stream_name[stream])].name
            name = names[stream] if stream < len(names) else "computing"
            # A graph has a stream a task: they share threads, as many as compute at once.
            lane = stream
            if names:
                free = lanes.setdefault(pid, [])
                lane = next((at for at, until in enumerate(free) if until <= begin), len(free))
                free[lane : lane + 1] = [end]
            yield from thread(pid, lane, -1, "computing" if names else said)
            tid = threads[pid, lane, -1]
        else:
            pid, other = int(expansion.src_rank[channel]), int(expansion.dst_rank[channel])
            said = program.channels[int(expansion.channel_name[channel])].name
            yield from thread(pid, -2, channel, f"{said} to rank {other}")
            tid = threads[pid, -2, channel]
            name = names[stream] if stream < len(names) else f"to rank {other}"
            link = int(tasks.bottleneck[row])
            number = int(expansion.link[link]) if link >= 0 else -1
            limit = timeline.network.link_name(number) if number >= 0 else "none"
            more = {"to": timeline.network.rank_name(other), "bytes": int(tasks.size_bytes[row]), "limited by": limit}
        event = {"name": name, "ph": "X", "ts": begin * _US, "dur": (end - begin) * _US, "pid": pid, "tid": tid}
        yield {**event, "args": {**more, "critical path": row in on_path}}
        if row in on_path:
            who = timeline.network.rank_name(pid)
            yield {**event, "name": f"{who}: {name}", "pid": waited, "tid": 0, "args": more}
    yield from _counters(timeline)


def _counters(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """How full the busiest links were, in percent."""
    if not timeline.end_ps:
        return
    links, load = link_load(timeline, _BINS)
    pid = _path_process(timeline) + 1
    if len(links):
        yield _name("process_name", pid, "links, % of their rate")
    width = timeline.end_ps * _US / _BINS
    for at in np.argsort(-load.sum(1), kind="stable")[:_MOST_LINKS].tolist():
        name, before = timeline.network.link_name(int(links[at])), -1.0
        for step, share in enumerate([*load[at].tolist(), 0.0]):
            value = round(100 * share, 1)
            if value != before:
                yield {"name": name, "ph": "C", "ts": step * width, "pid": pid, "args": {"%": value}}
                before = value
