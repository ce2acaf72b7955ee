"""What a run measures goes into a store row by row: durable once measured, marked if the run dies, and looked up when it is resumed.

Rows of `measurements`, `samples`, `pairs` and `counters` are what others ask for. Events say the rest: `busbw.run.begun` the requests,
`busbw.run.row` a row as it is shown, `busbw.run.output` what a program printed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from busbw import __version__
from busbw.errors import InputError
from busbw.measuring.measure import Measured, MeasuredRow, head_from, head_json, row_from, row_json
from busbw.measuring.request import POINT_TO_POINT, REDUCING, ROOTED, Request, request_from
from busbw.measuring.samples import Half
from busbw.observations.store import MeasuredCell, Store

__all__ = ["Journal", "Kept", "kept_run", "machine_facts", "new_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_BEGUN, _ROW, _OUTPUT = "busbw.run.begun", "busbw.run.row", "busbw.run.output"
_ORIGIN = "busbw run"
_MOST_OUTPUT = 1 << 20
"""Characters of what a program printed that are kept. nccl-tests' table of a hundred sizes has 15,000."""


def new_name(what: str, backend: str) -> str:
    """A run's name, for people: when, what, by what, and chance."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{stamp}-{what.replace('_', '-')}-{backend}-{os.urandom(2).hex()}"


def machine_facts() -> dict[str, str]:
    """What this machine is: processor, cores, NUMA nodes, memory."""
    found = {"machine": platform.machine()}
    if hasattr(os, "sched_getaffinity"):
        found["cores"] = str(len(os.sched_getaffinity(0)))
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE):
            found["processor"] = model[1].strip()
    with suppress(OSError):
        nodes = [
            entry.name for entry in Path("/sys/devices/system/node").iterdir() if re.fullmatch(r"node\d+", entry.name)
        ]
        found["numa_nodes"] = str(len(nodes))
    with suppress(OSError, ValueError):
        found["memory_bytes"] = str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return found


class Journal:
    """The rows of one run in a store, as they come. Call `end` however the run ends; one that is killed is seen to have died."""

    def __init__(
        self, store: Path | str, name: str, requests: Sequence[Request], launcher: str, *, run_id: str | None = None, more: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name of a run: letters, digits, dots, dashes.")
        self.name = name
        self._recorder = Store(store).record(name, run_id=run_id, resume=run_id is not None)
        fields = {"name": name, "launcher": launcher, "requests": json.dumps([request.to_json() for request in requests])}  # fmt: skip
        self._event(_BEGUN, fields | dict(more or {}))
        self._settings(machine_facts())
        self._recorder.commit()

    @property
    def run_id(self) -> str:
        """Its id in the store."""
        return self._recorder.run_id

    def head(self, head: Measured) -> None:
        """A request begins."""
        self._settings(head.about)
        self._recorder.append(
            "devices",
            [
                {
                    "host": place.host, "pid": place.pid, "rank": place.rank, "kind": "cpu", "name": head.about.get("memory", "CPU"),
                    "attributes": [("cores", _ranges(place.cores))],
                }
                for place in head.places
            ],
        )  # fmt: skip
        self._recorder.commit()

    def row(self, head: Measured, row: MeasuredRow) -> None:
        """A row was measured; it is on the disk when this returns."""
        self._recorder.append("measurements", list(measurements(head, row)))
        for in_place, half in ((False, row.out_of_place), (True, row.in_place)):
            if half is not None:
                self._samples(head, row, half, in_place)
        self._event(_ROW, {"key": row.key, "head": json.dumps(head_json(head)), "row": json.dumps(row_json(row))})
        self._recorder.commit()

    def _samples(self, head: Measured, row: MeasuredRow, half: Half, in_place: bool) -> None:
        if half.started_ns is None or half.took_ns is None:
            return
        request = head.request
        ranks, count = half.took_ns.shape
        cell = MeasuredCell(
            _stored_collective(request.collective),
            row.size_bytes,
            request.dtype,
            request.op if request.collective in REDUCING else "none",
            request.ranks,
            _nodes(head),
            in_place,
            request.backend,
            None,
            "window" if request.window else None,
        )
        self._recorder.samples(
            cell,
            time_ns=np.rint(half.took_ns / half.batch).astype(np.int64).reshape(-1),
            rank=np.repeat(np.arange(ranks), count),
            calls=half.batch,
            start_ns=half.started_ns.reshape(-1),
            arrival_ns=(half.started_ns - half.started_ns.min(axis=0)).reshape(-1) if half.batch == 1 else None,
            host={place.rank: place.host for place in head.places},
        )

    def output(self, key: str, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A program has ended: what it printed, and the rows that its reader found there."""
        place = ("artefact", "line", "byte_offset")
        found = [{name: value for name, value in row.items() if name not in place} for row in rows]
        self._recorder.append("measurements", found)
        self._event(_OUTPUT, {"key": key}, text[:_MOST_OUTPUT])
        self._recorder.commit()

    def pairs(self, key: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """A round of a matrix of pairs."""
        self._recorder.append("pairs", list(rows))
        self._event(_OUTPUT, {"key": key})
        self._recorder.commit()

    def counters(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Figures of this machine."""
        self._recorder.append("counters", [{**row, "labels": list(row["labels"].items())} for row in rows])
        self._recorder.commit()

    @property
    def takes_rows(self) -> bool:
        """Until it has ended, or the store could not be written: its disk is full, its server gone."""
        return self._recorder.is_open

    def end(self, died: str | None = None) -> None:
        """Commits what waits, and says whether and why the run died, if the store can be written; else it is seen to have died once this process is gone."""
        self._recorder.finish(died=died)

    def _event(self, event: str, fields: Mapping[str, str], text: str | None = None) -> None:
        self._recorder.append("events", [{"event": event, "level": "info", "time_ns": time.time_ns(), "text": text, "fields": list(fields.items())}])  # fmt: skip

    def _settings(self, told: Mapping[str, str]) -> None:
        self._recorder.append("settings", [{"name": name, "value": value, "origin": _ORIGIN} for name, value in told.items()])  # fmt: skip


def measurements(head: Measured, row: MeasuredRow) -> Iterator[dict[str, Any]]:
    """Rows of `measurements`: one for each half."""
    request = head.request
    for in_place, half in ((False, row.out_of_place), (True, row.in_place)):
        if half is None:
            continue
        algbw, busbw = head.busbw_bytes_per_s(row.size_bytes, half)
        spread = {"p50_ns": half.median_s, "p99_ns": half.p99_s, "min_ns": half.min_s, "max_ns": half.max_s}
        yield {
            "tool": f"busbw {request.backend}",
            "backend": request.backend,
            "tool_version": __version__,
            "collective": _stored_collective(request.collective),
            "size_bytes": row.size_bytes,
            "count": row.count,
            "dtype": request.dtype,
            "redop": request.op if request.collective in REDUCING else "none",
            "root": request.root if request.collective in ROOTED else -1,
            "ranks": request.ranks,
            "nodes": _nodes(head),
            "in_place": in_place,
            "time_ns": round(half.time_s * 1e9),
            "algbw_bytes_per_s": algbw,
            "busbw_bytes_per_s": busbw,
            "wrong": float(half.wrong),
            "iterations": half.calls,
            **{name: round(value * 1e9) for name, value in spread.items() if not math.isnan(value)},
        }


def _nodes(head: Measured) -> int | None:
    return len({place.host for place in head.places}) or None


def _stored_collective(name: str) -> str:
    """Tests of messages are told from each other by name: a window of messages one way is another thing than half a round trip."""
    return f"p2p_{name}" if name in POINT_TO_POINT else name


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run was asked for, and what it had measured."""

    name: str
    requests: tuple[Request, ...]
    launcher: str
    run_id: str
    rows: tuple[tuple[Measured, MeasuredRow], ...]
    outputs: tuple[str, ...]
    """Keys of programs that have ended well."""
    status: str
    """running, done or died."""
    more: Mapping[str, str]

    def done(self) -> list[str]:
        """Keys of rows that need not be measured again."""
        return [row.key for _, row in self.rows] + list(self.outputs)


def kept_run(store: Path | str, name: str) -> Kept:
    """A run by its name or its id in the store. Raises InputError if there is none, or it is still measured."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--resume {name!r}: is no name of a run.")
    held = Store(store)
    if not held.has_runs():
        raise InputError(
            f"{store}: holds no run to resume. Begin one by the same command without --resume, with --store {store}; it says by which name it is resumed."
        )
    found = held.query(
        f"SELECT run_id, any_value(artefact) AS artefact, any_value(status) AS status FROM runs WHERE path = '{name}' OR run_id = '{name}' GROUP BY run_id"
    ).to_pylist()
    if len(found) != 1 or found[0]["status"] is None:
        raise InputError(f"{store}: has {'no' if not found else 'several'} run {name} of `busbw run`. See busbw query \"SELECT DISTINCT path, status FROM runs\" --store {store}")  # fmt: skip
    run = found[0]
    if run["status"] == "running":
        raise InputError(f"{store}: run {name} is still being measured; wait for it, or end it.")
    told = held.query(
        f"SELECT event, fields FROM events WHERE artefact = '{run['artefact']}' AND event IN ('{_BEGUN}', '{_ROW}', '{_OUTPUT}') ORDER BY time_ns"
    )
    events = [(row["event"], dict(row["fields"])) for row in told.to_pylist()]
    begun = [fields for event, fields in events if event == _BEGUN]
    if not begun and run["status"] == "died":
        raise InputError(
            f"{store}: run {name} holds nothing that says what it measured: it was killed as it began, or recorded by something else than `busbw run`. Start it anew."
        )
    if not begun:
        raise InputError(f"{store}: run {name} was recorded by something else than `busbw run`.")
    first = begun[0]
    measured = tuple(
        (head_from(json.loads(fields["head"])), row_from(json.loads(fields["row"])))
        for event, fields in events
        if event == _ROW
    )
    known = {"name", "launcher", "requests"}
    return Kept(
        first["name"],
        tuple(request_from(one) for one in json.loads(first["requests"])),
        first["launcher"],
        run["run_id"],
        measured,
        tuple(fields["key"] for event, fields in events if event == _OUTPUT),
        run["status"],
        {key: value for key, value in first.items() if key not in known},
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as Linux lists cores: 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in parts)
