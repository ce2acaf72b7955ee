"""What a run measures goes into a store row by row: a journal that survives the run, committed when the run ends, however it ends.

    STORE/unfinished/<name>.<part>.jsonl   a file of rows (`observations.rows_file`), fsynced after each; locked as long as its run lives
    STORE/unfinished/<name>.<part>.out/    what programs that measured have printed

A journal that nobody holds is of a run that died: whoever comes next marks it so and commits it. `--resume` looks up what a run had measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from busbw import __version__
from busbw.errors import InputError, Loss
from busbw.measuring.measure import Measured, MeasuredRow, head_from, head_json, row_from, row_json
from busbw.measuring.request import POINT_TO_POINT, REDUCING, ROOTED, Request, request_from
from busbw.observations import ROWS_FILE, SCHEMAS, Artefact, Rows
from busbw.observations.secrets import is_allowed_variable
from busbw.observations.store import Store
from busbw.observations.tables import SCHEMA_VERSION

__all__ = ["Journal", "Kept", "keep_files", "kept_run", "machine_facts", "new_name", "recover"]

_UNFINISHED = "unfinished"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_BEGUN, _ROW, _OUTPUT, _ENDED = "busbw.run.begun", "busbw.run.row", "busbw.run.output", "busbw.run.ended"
_ORIGIN = "busbw run"
_TOOL_S = 5.0
"""For git and nvidia-smi to answer."""


def new_name(what: str, backend: str) -> str:
    """A run's name, for people: when, what, by what, and chance."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{stamp}-{what.replace('_', '-')}-{backend}-{os.urandom(2).hex()}"


def machine_facts() -> dict[str, str]:
    """What this machine, and the folder that the run was started in, are: processor, cores, memory, kernel, commit."""
    found = {"kernel": platform.release(), "machine": platform.machine(), "python": platform.python_version()}
    if hasattr(os, "sched_getaffinity"):
        found["cores"] = str(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE):
            found["processor"] = model[1].strip()
    with contextlib.suppress(OSError):
        nodes = [
            entry.name for entry in Path("/sys/devices/system/node").iterdir() if re.fullmatch(r"node\d+", entry.name)
        ]
        found["numa_nodes"] = str(len(nodes))
    with contextlib.suppress(OSError, ValueError):
        found["memory_bytes"] = str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if commit := _told(["git", "rev-parse", "HEAD"]):
        found["git.commit"] = commit
        found["git.changed"] = str(bool(_told(["git", "status", "--porcelain", "--untracked-files=no"]))).lower()
    return found


def _told(argv: Sequence[str]) -> str:
    """What a program prints; nothing if it is not there, fails, or takes too long."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        ended = subprocess.run(list(argv), check=False, capture_output=True, text=True, timeout=_TOOL_S, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


class Journal:
    """The rows of one run, as they come. Call `end` however the run ends; a process that is killed leaves the file to `recover`."""

    def __init__(
        self, store: Path, name: str, requests: Sequence[Request], launcher: str, *, part: int = 0, more: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name of a run: letters, digits, dots, dashes.")
        self.store, self.name = store, name
        folder = store / _UNFINISHED
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.{part}.jsonl"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._out: IO[str] = os.fdopen(descriptor, "w", encoding="utf-8")
        self._rows = 0
        self._write({"busbw": ROWS_FILE, "schema": SCHEMA_VERSION, "run": name})
        self._event(
            _BEGUN,
            {
                "name": name,
                "part": str(part),
                "launcher": launcher,
                "requests": json.dumps([request.to_json() for request in requests]),
                **(more or {}),
            },
        )
        for variable, value in sorted(os.environ.items()):
            if is_allowed_variable(variable):
                self._setting(variable, value, "environment")
        for fact, value in machine_facts().items():
            self._setting(fact, value, _ORIGIN)
        self._sync()

    def head(self, head: Measured) -> None:
        """A request begins."""
        for fact, value in head.about.items():
            self._setting(fact, value, _ORIGIN)
        for place in head.places:
            self._write({
                "table": "devices", "host": place.host, "pid": place.pid, "rank": place.rank, "kind": "cpu",
                "name": head.about.get("memory", "CPU"), "attributes": {"cores": _ranges(place.cores)},
            })  # fmt: skip
        self._sync()

    def row(self, head: Measured, row: MeasuredRow) -> None:
        """A row was measured; it is on the disk when this returns."""
        self._write_all(measurements(head, row))
        self._write_all(samples(head, row))
        self._event(_ROW, {"key": row.key, "head": json.dumps(head_json(head)), "row": json.dumps(row_json(row))})
        self._rows += 1
        self._sync()

    def output(self, key: str, file: Path) -> None:
        """A program has ended, and what it printed is whole; the file lies in `outputs`."""
        self._event(_OUTPUT, {"key": key, "file": file.name})
        self._rows += 1
        self._sync()

    @property
    def outputs(self) -> Path:
        """A folder for what programs print."""
        folder = self.path.with_suffix(".out")
        folder.mkdir(exist_ok=True)
        return folder

    def pairs(self, key: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """A round of a matrix of pairs."""
        self._write_all({"table": "pairs", **row} for row in rows)
        self._event(_OUTPUT, {"key": key, "file": ""})
        self._rows += 1
        self._sync()

    def counters(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Figures of this machine."""
        self._write_all({"table": "counters", **row} for row in rows)
        self._sync()

    def end(self, state: str, reason: str = "") -> str:
        """The run's id in the store: commits what was measured. state: complete, died or interrupted."""
        _close_with(self._out, state, reason, self._rows)
        run = _commit(self.store, self.path, self.name)
        self._out.close()
        return run

    def _event(self, event: str, fields: Mapping[str, str], level: str = "info") -> None:
        self._write({"table": "events", "event": event, "level": level, "time_ns": time.time_ns(), "fields": dict(fields)})  # fmt: skip

    def _setting(self, name: str, value: str, origin: str) -> None:
        self._write({"table": "settings", "name": name, "value": value, "origin": origin})

    def _write(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value, allow_nan=False) + "\n")

    def _write_all(self, values: Iterable[Mapping[str, Any]]) -> None:
        for value in values:
            self._write(value)

    def _sync(self) -> None:
        self._out.flush()
        os.fsync(self._out.fileno())


def _close_with(out: IO[str], state: str, reason: str, rows: int) -> None:
    fields = {"state": state, "rows": str(rows)} | ({"reason": reason} if reason else {})
    level = "info" if state == "complete" else "error"
    text = f"the run ended: {state}" + (f"; {reason}" if reason else "")
    event = {"table": "events", "event": _ENDED, "level": level, "time_ns": time.time_ns(), "text": text, "fields": fields}  # fmt: skip
    out.write(json.dumps(event) + "\n")
    out.flush()
    os.fsync(out.fileno())


def _commit(store: Path, journal: Path, name: str) -> str:
    """Puts a journal, and what programs printed, into the store, and removes it here."""
    folder = journal.with_suffix(".out")
    outputs = sorted(folder.iterdir()) if folder.is_dir() else []
    run = keep_files(store, [(journal, f"{name}.jsonl"), *((file, file.name) for file in outputs)])
    journal.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    return run


def measurements(head: Measured, row: MeasuredRow) -> Iterator[dict[str, Any]]:
    """Rows of `measurements`: one for each half."""
    request = head.request
    for in_place, half in ((False, row.out_of_place), (True, row.in_place)):
        if half is None:
            continue
        algbw, busbw = head.busbw_bytes_per_s(row.size_bytes, half)
        spread = {"p99_ns": half.p99_s, "min_ns": half.min_s, "max_ns": half.max_s}
        yield {
            "table": "measurements",
            "tool": f"busbw {request.backend}",
            "tool_version": __version__,
            "collective": _stored_collective(request.collective),
            "size_bytes": row.size_bytes,
            "count": row.count,
            "dtype": request.dtype,
            "redop": request.op if request.collective in REDUCING else "none",
            "root": request.root if request.collective in ROOTED else -1,
            "ranks": request.ranks,
            "nodes": len({place.host for place in head.places}) or None,
            "in_place": in_place,
            "time_ns": round(half.time_s * 1e9),
            "algbw_bytes_per_s": algbw,
            "busbw_bytes_per_s": busbw,
            "wrong": float(half.wrong),
            "iterations": half.calls,
            **{name: round(value * 1e9) for name, value in spread.items() if not math.isnan(value)},
        }


def _stored_collective(name: str) -> str:
    """Tests of messages are told from each other by name: a window of messages one way is another thing than half a round trip."""
    return f"p2p_{name}" if name in POINT_TO_POINT else name


def samples(head: Measured, row: MeasuredRow) -> Iterator[dict[str, Any]]:
    """Rows of `samples`, where this version's tables have them: each rank's each call."""
    if "samples" not in SCHEMAS:
        return
    columns = set(SCHEMAS["samples"].names)
    request = head.request
    for in_place, half in ((False, row.out_of_place), (True, row.in_place)):
        if half is None or half.started_ns is None or half.took_ns is None:
            continue
        for rank in range(half.took_ns.shape[0]):
            for number, (started, took) in enumerate(zip(half.started_ns[rank].tolist(), half.took_ns[rank].tolist(), strict=True)):  # fmt: skip
                made = {
                    "tool": f"busbw {request.backend}", "collective": _stored_collective(request.collective), "size_bytes": row.size_bytes,
                    "dtype": request.dtype, "redop": request.op if request.collective in REDUCING else "none", "ranks": request.ranks,
                    "in_place": in_place, "rank": rank, "iteration": number, "start_ns": started, "started_ns": started,
                    "time_ns": round(took / half.batch), "duration_ns": round(took / half.batch), "batch": half.batch,
                }  # fmt: skip
                yield {"table": "samples", **{name: value for name, value in made.items() if name in columns}}


def keep_files(store: Path, files: Sequence[tuple[Path, str]]) -> str:
    """The run that files were kept as, together. A file is (where it is, how it is shown)."""
    from busbw.readers import Reading, read_artefact  # noqa: PLC0415 - loads every reader

    artefacts = [Artefact.of(path, shown) for path, shown in files]
    with Store(store).begin(artefacts) as writer:
        for artefact in artefacts:
            if writer.is_stored(artefact):
                continue
            reading = Reading(artefact)
            for item in read_artefact(artefact, reading):
                if isinstance(item, Rows):
                    writer.add(artefact, item)
                elif isinstance(item, Loss):
                    writer.lose(artefact, item)
            writer.keep(artefact, reading.formats)
        return writer.commit()


def recover(store: Path) -> list[str]:
    """Names of runs that died without a word, now marked so and committed."""
    found = []
    for path in sorted((store / _UNFINISHED).glob("*.jsonl")) if (store / _UNFINISHED).is_dir() else []:
        with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # it is still being measured
            if not path.exists():
                continue  # its run ended between two of our looks
            text = stream.read()
            whole = text.rfind("\n") + 1
            if not whole:
                path.unlink()
                continue
            stream.seek(len(text[:whole].encode("utf-8")))
            stream.truncate()
            if f'"event": "{_ENDED}"' not in text:
                rows = text.count(f'"event": "{_ROW}"')
                _close_with(stream, "died", "the process that measured ended without a word", rows)
            name = path.name.rsplit(".", 2)[0]
            _commit(store, path, name)
            found.append(name)
    return found


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run was asked for, and what it had measured."""

    name: str
    requests: tuple[Request, ...]
    launcher: str
    parts: int
    """So many times it was begun."""
    rows: tuple[tuple[Measured, MeasuredRow], ...]
    outputs: tuple[str, ...]
    """Keys of programs that have ended well."""
    complete: bool
    more: Mapping[str, str]

    def done(self) -> list[str]:
        """Keys of rows that need not be measured again."""
        return [row.key for _, row in self.rows] + list(self.outputs)


def kept_run(store: Path, name: str) -> Kept:
    """A run by its name, or by the id of one of its parts in the store. Raises InputError if there is none."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--resume {name!r}: is no name of a run.")
    recover(store)
    if not Store(store).has_runs():
        raise InputError(f"{store}: holds no run to resume.")
    mine = f"SELECT artefact FROM events WHERE event = '{_BEGUN}' AND (fields['name'] = '{name}' OR artefact IN (SELECT artefact FROM runs WHERE run_id = '{name}'))"
    rows = Store(store).query(
        f"SELECT event, fields FROM events WHERE artefact IN (SELECT artefact FROM events WHERE event = '{_BEGUN}' AND fields['name'] IN "
        f"(SELECT fields['name'] FROM events WHERE event = '{_BEGUN}' AND artefact IN ({mine}))) "
        f"AND event IN ('{_BEGUN}', '{_ROW}', '{_OUTPUT}', '{_ENDED}') ORDER BY time_ns"
    )
    events = [(row["event"], dict(row["fields"])) for row in rows.to_pylist()]
    begun = [fields for event, fields in events if event == _BEGUN]
    if not begun:
        raise InputError(f"{store}: has no run {name}. The note at the end of a run, or `busbw query \"SELECT fields FROM events WHERE event = '{_BEGUN}'\"`, says its name.")  # fmt: skip
    first = begun[0]
    requests = tuple(request_from(told) for told in json.loads(first["requests"]))
    measured = tuple(
        (head_from(json.loads(fields["head"])), row_from(json.loads(fields["row"])))
        for event, fields in events
        if event == _ROW
    )
    known = {"name", "part", "launcher", "requests"}
    more = {key: value for key, value in first.items() if key not in known}
    ended = [fields["state"] for event, fields in events if event == _ENDED]
    outputs = tuple(fields["key"] for event, fields in events if event == _OUTPUT)
    return Kept(first["name"], requests, first["launcher"], len(begun), measured, outputs, "complete" in ended, more)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as Linux lists cores: 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in parts)
