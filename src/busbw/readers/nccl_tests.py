"""nccl-tests and rccl-tests: the tables and comment lines of `all_reduce_perf` and its sisters, 2017 to 2.19.

A row is size, count, type, and where the version prints them reduction and root; then one half out of place and one
in place, each time, algbw, busbw and the number of wrong elements. Columns are found by the names in the header, so
their order and number may differ; rows without a header are read by their shape. Sources: NVIDIA/nccl-tests
src/common.cu and src/util.cu (2.19.6 and every layout before), ROCm/rccl-tests src/common.cu.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, PlainLine, Template
from busbw.units import GB

__all__ = ["COLLECTIVE_OF_PROGRAM", "READER"]

COLLECTIVE_OF_PROGRAM: Mapping[str, str | None] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
    "hypercube": None,
}
"""Our word for the `X` of `X_perf`; hypercube is an exchange that has none."""

_SOURCE = "nccl-tests src/util.cu; src/common.cu before 2.17.3"
_OPTIONS = (
    "nThread {threads:d} nGpus {gpus:d} minBytes {min_bytes:d} maxBytes {max_bytes:d} step: {step:d}({step_kind:w})"
)
_FAILURE = "nccl_tests.failure"
_CHECKS = "nccl-tests src/common.h: CUDACHECK, NCCLCHECK, TESTCHECK; rccl-tests: HIPCHECK"

TEMPLATES = (
    Template(
        "nccl_tests.version",
        "nccl-tests version {version:w} nccl-headers={nccl_headers:d} nccl-library={nccl_library:d}",
        f"{_SOURCE}: writeDeviceReport, since 2.17.3",
        "info",
    ),
    Template("nccl_tests.version", "rccl-tests: Version {version:w}", "rccl-tests src/common.cu: run", "info"),
    Template("nccl_tests.start", "Collective test starting: {collective:w}", f"{_SOURCE}, since 2.14", "info"),
    Template(
        "nccl_tests.options",
        _OPTIONS + " warmup iters: {warmup_iterations:d} iters: {iterations:d} agg iters: {aggregated:d}"
        " validation: {validation:d} graph: {graph:d}",
        f"{_SOURCE}: since 2.10",
        "info",
    ),
    Template(
        "nccl_tests.options",
        _OPTIONS + " warmup iters: {warmup_iterations:d} iters: {iterations:d}",
        "nccl-tests src/common.cu before 2.10",
        "info",
    ),
    Template("nccl_tests.options", _OPTIONS, "any version, cut", "info"),
    Template(
        "nccl_tests.device",
        "Rank {rank:d} Group {group:d} Pid {pid:d} on {host:w} device {device:d} [{bus_id:w}] {name:s}",
        f"{_SOURCE}: since 2.13",
        "info",
    ),
    Template(
        "nccl_tests.device",
        "Rank {rank:d} Pid {pid:d} on {host:w} device {device:d} [{bus_id:w}] {name:s}",
        "nccl-tests src/common.cu up to 2.13; rccl-tests src/common.cu",
        "info",
    ),
    Template(
        "nccl_tests.device",
        "Rank {rank:d} on {host:w} device {device:d} [{bus_id:w}] {name:s}",
        "nccl-tests src/common.cu of 2017",
        "info",
    ),
    Template("nccl_tests.out_of_bounds", "Out of bounds values : {count:d} {status:w}", _SOURCE, "info"),
    Template("nccl_tests.average", "Avg bus bandwidth : {value:w} {status:w}", _SOURCE + ", NCCL_TESTS_MIN_BW", "info"),
    Template("nccl_tests.average", "Avg bus bandwidth : {value:w}", _SOURCE, "info"),
    Template("nccl_tests.concluded", "Collective test concluded: {collective:w}", f"{_SOURCE}, since 2.14", "info"),
    Template(_FAILURE, "^{host:w}: Test {what:w} failure {file:w}:{source_line:d} '{message:s}'$", _CHECKS, "error"),
    Template(_FAILURE, "^{host:w}: Test {what:w} failure {file:w}:{source_line:d} '{message:s}", _CHECKS, "error"),
    Template(_FAILURE, "Test {what:w} failure {file:w}:{source_line:d} '{message:s}'$", _CHECKS, "error"),
    Template(_FAILURE, "Test {what:w} failure {file:w}:{source_line:d} '{message:s}", _CHECKS, "error"),
    Template(_FAILURE, ".. {host:w} pid {pid:d}: Test failure {file:w}:{source_line:d}", _CHECKS, "error"),
    Template(_FAILURE, "Test timeout ({timeout_s:d}s) {file:w}:{source_line:d}", "nccl-tests src/common.cu", "error"),
    Template(_FAILURE, "^# error: {message:s}", "nccl-tests src/util.cu: writeErrors, since 2.17.3", "error"),
)  # fmt: skip

_TYPE = r"(?:u?int|char|half|float|double|bf|fp|f8|f16|f32|f64)\w*"
_SIGNATURE = re.compile(r"^(?:[\w.-]{1,64}:\s)?[#\s]*(?:(?:size|bytes)\s+(?:count|N)\s|\d+\s+\d+\s+[a-z]\w*\s)")
_PREFIX = re.compile(r"\s*([\w.-]{1,64}):\s+(?=#|\d+\s+\d+\s+[a-z])")
_DEVICE = re.compile(
    r"Rank\s+(\d{1,9})(?:\s+Group\s+(\d+))?(?:\s+Pid\s+\d+)?\s+on\s+(\S+)\s+device\s+(\d{1,9})\s+\[[^\]]*\]\s*(.*)"
)
_PROGRAM = re.compile(
    rf"(?<![\w-])({'|'.join(sorted(COLLECTIVE_OF_PROGRAM, key=len, reverse=True))})_perf(?:_mpi)?(?!\w)"
)
_THREADS_GPUS = re.compile(r"nThread\s+(\d{1,6})\s+nGpus\s+(\d{1,6})")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )iters: (\d{1,9})\b")
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|prun|prterun|srun|torchrun|flux run|aprun|jsrun)\b")
_PROCESSES = re.compile(r"\s(?:-n|-np|--np|--ntasks)[\s=]*(\d{1,7})\b")
_FLAG = re.compile(r"\s(?:-(g|t)\s*|--(ngpus|nthreads)[\s=])(\d{1,6})\b")
_BLANK_HALF = re.compile(r"\s*\d+\s+\d+\s+\S+(?:\s+\S+)?\s+-?\d+\s{25,}\S")
_LETTERS = re.compile(rf"{_TYPE}", re.ASCII)
_INTEGER = re.compile(r"\d{1,18}", re.ASCII)
_ROOT = re.compile(r"-?\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,9})?(?:e[-+]?\d{1,2})?|-?inf|-?nan", re.ASCII)
_WORD = re.compile(r"[a-z][a-z_]{0,15}", re.ASCII)
_WRONG = re.compile(rf"(?:{_NUMBER.pattern})\*?|N/A", re.ASCII)

_COLUMN_OF_WORD = {
    "size": "size", "bytes": "size", "count": "count", "n": "count", "type": "dtype", "redop": "redop", "op": "redop",
    "root": "root", "time": "time", "cputime": "time", "algbw": "algbw", "busbw": "busbw", "#wrong": "wrong",
    "wrong": "wrong", "error": "error", "res": "error", "delta": "error", "i_min": "min", "min": "min", "i_max": "max",
    "max": "max", "i_p99": "p99", "p99": "p99", "i_cv%": "cv", "cv(%)": "cv", "cv%": "cv", "timestamp": "timestamp",
}  # fmt: skip
_SHAPES = {
    "size": _INTEGER, "count": _INTEGER, "dtype": _LETTERS, "redop": _WORD, "root": _ROOT, "time": _NUMBER,
    "algbw": _NUMBER, "busbw": _NUMBER, "wrong": _WRONG, "error": _WRONG, "min": _NUMBER, "max": _NUMBER,
    "p99": _NUMBER, "cv": _NUMBER,
}  # fmt: skip
_HALF = ("time", "algbw", "busbw", "wrong")
_HALF_WITH_ITERATIONS = (*_HALF, "min", "max", "p99", "cv")
_FRAGMENTS: tuple[tuple[str, ...], ...] = (
    ("size", "count", "dtype", "redop", "root", *_HALF, *_HALF),
    ("size", "count", "dtype", "redop", "root", *_HALF_WITH_ITERATIONS, *_HALF_WITH_ITERATIONS),
    ("size", "count", "dtype", "redop", *_HALF, *_HALF),
    ("size", "count", "dtype", "root", *_HALF, *_HALF),
    ("size", "count", "dtype", *_HALF, *_HALF),
)
"""Layouts of rows that stand without a header, the newest first."""

_LONGEST_TIME_NS = 2**62
_MOST_RANKS = 1_000_000
"""More is a misread line, not a communicator."""
_SLACK = 1.001


class _Device(NamedTuple):
    rank: int
    group: str
    host: str
    device: int


@dataclass(slots=True)
class _Command:
    """A command line that starts a test, as far as it was printed."""

    program: str | None = None
    processes: int | None = None
    gpus_per_process: int | None = None
    rccl: bool = False
    spent: bool = False
    """A table that ended after it was of this run; the next needs a command of its own."""


@dataclass(slots=True)
class _Run:
    """What the lines before a table say about it."""

    program: str | None = None
    rccl: bool = False
    version: str | None = None
    gpus_per_process: int | None = None
    iterations: int | None = None
    devices: list[_Device] = field(default_factory=list)
    has_table: bool = False


@dataclass(slots=True)
class _Half:
    in_place: bool
    values: dict[str, str]


@dataclass(slots=True)
class _Row:
    line: PlainLine
    key: tuple[str, ...]
    first: dict[str, str]
    halves: list[_Half]


@dataclass(slots=True)
class _Table:
    run: _Run
    command: _Command | None
    line: PlainLine
    columns: tuple[str, ...]
    """Names of the columns in order; empty for rows without a header."""
    cpu_time: bool | None = None
    us_per_unit: float = 1.0
    only_in_place: bool = False
    rows: list[_Row] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """One process's output, as far as the launcher's prefixes tell it from others."""

    run: _Run = field(default_factory=_Run)
    table: _Table | None = None
    only_in_place: bool = False


class NcclTestsReader:
    """Tables and comment lines of nccl-tests and rccl-tests, anywhere in a log."""

    name = "nccl-tests"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """The GPUs that the tests list before a table."""
        mine = events.filter(pa.compute.equal(events.column("event"), "nccl_tests.device"))
        if mine.num_rows == 0:
            return
        rows = []
        for row in mine.select(["artefact", "line", "byte_offset", "fields"]).to_pylist():
            fields = dict(row["fields"])
            rows.append(
                {key: row[key] for key in ("artefact", "line", "byte_offset")}
                | {
                    "host": fields["host"],
                    "pid": _bounded(fields.get("pid"), 2**62),
                    "device": _bounded(fields["device"], 2**31 - 1),
                    "rank": _bounded(fields["rank"], 2**31 - 1),
                    "kind": "gpu",
                    "bus_id": fields["bus_id"],
                    "name": fields["name"].strip(),
                    "attributes": [("group", fields["group"])] if "group" in fields else [],
                }
            )
        yield rows_of("devices", rows)

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` for each half of each row of each table; damage counted by kind."""
        losses = Losses(artefact.path)
        tables = _Reading(losses).tables(lines)
        tables = _without_copies(tables, losses)
        measurements: list[dict[str, Any]] = []
        for index, table in enumerate(tables):
            measurements.extend(_measurements(table, index, artefact, losses))
        if measurements:
            yield rows_of("measurements", measurements)
        yield from losses


READER = NcclTestsReader()


class _Reading:
    """Goes through the lines once and sorts them into tables."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.streams: dict[int | str | None, _Stream] = {}
        self.command: _Command | None = None
        self.found: list[_Table] = []

    def tables(self, lines: Sequence[PlainLine]) -> list[_Table]:
        continued = ""
        for line in lines:
            text = line.text
            who: int | str | None = line.rank
            if ": " in text[:66] and (prefix := _PREFIX.match(text)):
                who, text = prefix[1], text[prefix.end() :]
            start = text.lstrip(" \t")[:1]
            if "0" <= start <= "9":
                self.row(self.stream(who), line, text)
            elif line.event is not None and line.event.startswith("nccl_tests."):
                self.comment(self.stream(who), line.event, text)
            elif "algbw" in text:
                self.header(self.stream(who), line, text)
            elif "-place" in text:
                self.stream(who).only_in_place = "in-place" in text and "out-of-place" not in text
            elif start == "#" and ("(us)" in text or "(ms)" in text):
                table = self.stream(who).table
                if table is not None and not table.rows:
                    table.us_per_unit = 1e3 if "(ms)" in text else 1.0
            elif "_perf" in text:
                self.launched(continued + text)
            continued = continued + text[:-1] if text.endswith("\\") and len(continued) < 16384 else ""
        return self.found

    def stream(self, who: int | str | None) -> _Stream:
        if who not in self.streams:
            self.streams[who] = _Stream()
        return self.streams[who]

    def launched(self, text: str) -> None:
        """A command line, or a sentence, that names a test."""
        found = list(_PROGRAM.finditer(text))
        programs = {match[1] for match in found}
        if len(programs) != 1:
            return
        command = _Command(program=programs.pop(), rccl="rccl" in text)
        before, arguments = text[: found[-1].start()], text[found[-1].end() :]
        if re.search(r"\s-\w", arguments):
            per_process = 1
            for short, long, number in _FLAG.findall(arguments):
                per_process *= int(number) if short or long else 1
            command.gpus_per_process = per_process
            if not _LAUNCHER.search(before):
                command.processes = 1
            elif processes := _PROCESSES.findall(before):
                command.processes = int(processes[-1])
        self.command = command

    def comment(self, stream: _Stream, event: str, text: str) -> None:
        """A comment line of the test itself; those before a table describe it, those after it end it."""
        run = stream.run
        match event.removeprefix("nccl_tests."):
            case "version":
                stream.run, stream.table = _Run(version=_version(text), rccl="rccl-tests" in text), None
            case "start":
                if run.has_table or run.devices or run.program:
                    run = stream.run = _Run()
                stream.table = None
                run.program = _program_of(text)
            case "options":
                if run.has_table or run.devices or run.gpus_per_process:
                    run = stream.run = _Run()
                stream.table = None
                if shape := _THREADS_GPUS.search(text):
                    run.gpus_per_process = int(shape[1]) * int(shape[2])
                if iterations := _ITERATIONS.search(text):
                    run.iterations = int(iterations[1])
            case "device":
                if run.has_table:
                    run, stream.table = _Run(), None
                    stream.run = run
                if device := _DEVICE.search(text):
                    run.devices.append(_Device(int(device[1]), device[2] or "", device[3], int(device[4])))
                    run.rccl = run.rccl or "AMD" in device[5] or "Instinct" in device[5]
            case "out_of_bounds" | "average":
                stream.table = None
                if self.command is not None:
                    self.command.spent = True
            case "concluded":
                stream.table = None
                if run.has_table and run.program is None:
                    run.program = _program_of(text)
            case _:
                pass

    def header(self, stream: _Stream, line: PlainLine, text: str) -> None:
        words = text.lstrip("# \t").split()
        columns = tuple(_COLUMN_OF_WORD.get(word.lower(), "?") for word in words)
        if columns[:3] != ("size", "count", "dtype") or not {"time", "algbw", "busbw"}.issubset(columns):
            return
        if stream.table is not None and not stream.table.rows and stream.table.columns == columns:
            return
        stream.table = self.open(stream, line, columns)
        stream.table.cpu_time = "cputime" in words
        stream.table.us_per_unit = 1e3 if words[0] == "bytes" else 1.0
        stream.table.only_in_place = stream.only_in_place

    def open(self, stream: _Stream, line: PlainLine, columns: tuple[str, ...]) -> _Table:
        if stream.run.has_table and stream.table is None:
            stream.run = _Run(version=stream.run.version, rccl=stream.run.rccl)
        stream.run.has_table = True
        command = self.command if self.command is not None and not self.command.spent else None
        return _Table(stream.run, command, line, columns)

    def row(self, stream: _Stream, line: PlainLine, text: str) -> None:
        tokens = text.split()
        table = stream.table
        columns = table.columns if table is not None else ()
        if not columns:
            columns = _fragment_columns(tokens) or ()
            if not columns:
                return
        if table is None:
            table = stream.table = self.open(stream, line, ())
        row, damage, why = _parse_row(line, text, tokens, columns, table)
        if damage is not None:
            self.losses.add(damage, line.number, why)
        if row is not None:
            if not table.rows:
                self.found.append(table)
            table.rows.append(row)


def _version(text: str) -> str | None:
    found = re.search(r"(?:nccl-tests version|rccl-tests: Version)\s+(\S+)", text)
    return found[1] if found else None


def _program_of(text: str) -> str | None:
    found = _PROGRAM.search(text)
    return found[1] if found else None


def _fragment_columns(tokens: list[str]) -> tuple[str, ...] | None:
    """The layout of a row that stands alone; None if it is no row of this tool."""
    if len(tokens) < 11 or not _LETTERS.fullmatch(tokens[2]):
        return None
    for columns in _FRAGMENTS:
        if len(tokens) >= len(columns) and all(
            _SHAPES[column].fullmatch(token) for column, token in zip(columns, tokens, strict=False)
        ):
            rest = tokens[len(columns) :]
            if not rest or not _NUMBER.fullmatch(rest[0]):
                return columns
    return None


def _parse_row(
    line: PlainLine, text: str, tokens: list[str], columns: tuple[str, ...], table: _Table
) -> tuple[_Row | None, str | None, str]:
    """The row as far as it is whole, the kind of damage, what to say about it; (None, None, "") for a foreign line."""
    first: dict[str, str] = {}
    halves: list[_Half] = []
    half: _Half | None = None
    skipped_half = _BLANK_HALF.match(text) is not None
    times = columns.count("time")
    i = 0
    column_index = 0
    while column_index < len(columns):
        column = columns[column_index]
        if column == "timestamp":
            i = min(i + 2, len(tokens))
            column_index += 1
            continue
        if column == "time" and half is None and not halves and skipped_half and times == 2:
            column_index = columns.index("time", column_index + 1)
            halves.append(_Half(False, {}))
        if i == len(tokens):
            row = _whole(line, tokens, i, first, halves)
            if half is None and not any(column in _SHAPES for column in columns[column_index:]):
                return row, None, ""
            if i < 3 and not text[:1].isspace():
                return None, None, ""
            return row, "truncated-row", _cut_detail(len(tokens), len(columns))
        token = tokens[i]
        shape = _SHAPES.get(column)
        if column == "redop" and _ROOT.fullmatch(token):
            column_index += 1
            continue
        if shape is not None and not shape.fullmatch(token):
            if i < 3:
                return None, None, ""
            row = _whole(line, tokens, i, first, halves)
            if i == len(tokens) - 1:
                return row, "truncated-row", _cut_detail(len(tokens), len(columns))
            detail = (
                f"column {i + 1} is {token[:24]!r}, not {column}; another program wrote into the row, or it was edited"
            )
            return row, "damaged-row", detail + ". Give each process its own file"
        if column == "time":
            half = _Half(table.only_in_place if times == 1 else bool(halves), {})
        if half is None:
            first[column] = token
        else:
            half.values[column] = token
            if column_index + 1 == len(columns) or columns[column_index + 1] in ("time", "timestamp"):
                halves.append(half)
                half = None
        i += 1
        column_index += 1
    if i < len(tokens) and _NUMBER.fullmatch(tokens[i]):
        detail = f"row has {len(tokens)} columns, its header has {len(columns)}; two rows may have run together"
        return None, "damaged-row", detail
    return _whole(line, tokens, i, first, halves), None, ""


def _cut_detail(found: int, expected: int) -> str:
    return (
        f"row has {found} columns, its header has {expected}; the output looks cut. "
        "Run the test again with unbuffered stdout (stdbuf -oL), or copy all of its output"
    )


def _whole(line: PlainLine, tokens: list[str], used: int, first: dict[str, str], halves: list[_Half]) -> _Row | None:
    complete = [half for half in halves if half.values]
    return _Row(line, tuple(tokens[:used]), first, complete) if complete else None


def _without_copies(tables: list[_Table], losses: Losses) -> list[_Table]:
    """Tables without the rows that several processes, or a file pasted twice, printed again."""
    kept: list[_Table] = []
    seen: dict[str | None, list[set[tuple[str, ...]]]] = {}

    def copied(row: _Row) -> None:
        detail = "the same row, digit for digit, was printed before, as when every rank prints the table; one was kept"
        losses.add("duplicate-row", row.line.number, detail)

    for table in tables:
        keys = {row.key for row in table.rows}
        program = table.run.program
        if any(keys <= other for other in seen.get(program, ())):
            for row in table.rows:
                copied(row)
            continue
        mine: set[tuple[str, ...]] = set()
        rows = []
        for row in table.rows:
            if row.key in mine:
                copied(row)
            else:
                mine.add(row.key)
                rows.append(row)
        table.rows = rows
        seen.setdefault(program, []).append(mine)
        kept.append(table)
    return kept


def _measurements(table: _Table, index: int, artefact: Artefact, losses: Losses) -> Iterator[dict[str, Any]]:
    program = table.run.program or (table.command.program if table.command is not None else None)
    program = program or _program_by_factor(table)
    collective = COLLECTIVE_OF_PROGRAM[program] if program is not None else None
    rccl = table.run.rccl or (table.command is not None and table.command.rccl)
    old = "error" in table.columns
    ranks, nodes = _size_of_group(table, program, losses, old)
    comparable = program not in ("hypercube", "alltoallv") and not table.cpu_time
    if old and program not in ("all_reduce", "reduce", "broadcast"):
        comparable = False  # algbw of all_gather and reduce_scatter was another one before 2020-06
    common = {
        "artefact": artefact.sha256,
        "tool": "rccl-tests" if rccl else "nccl-tests",
        "tool_version": table.run.version,
        "table_index": index,
        "collective": collective,
        "ranks": ranks,
        "nodes": nodes,
        "time_is_cpu": table.cpu_time,
        "iterations": table.run.iterations,
    }
    for row in table.rows:
        redop = row.first.get("redop")
        root = row.first.get("root")
        whole_row = common | {
            "line": row.line.number,
            "byte_offset": row.line.byte_offset,
            "size_bytes": int(row.first["size"]),
            "count": int(row.first["count"]),
            "dtype": row.first["dtype"],
            "redop": None if redop in (None, "none") else redop,
            "root": int(root) if root is not None and int(root) >= 0 else None,
        }
        for half in row.halves:
            values = half.values
            if any("inf" in token or "nan" in token for token in values.values()):
                detail = (
                    "a figure is inf or nan, as when the time was 0; it is kept as unknown. Raise the iterations (-n)"
                )
                losses.add("not-finite", row.line.number, detail)
            if comparable and not _agrees(int(row.first["size"]), values, table.us_per_unit):
                detail = (
                    f"size {row.first['size']} in {values['time']} is not algbw {values['algbw']} GB/s; "
                    "the row was edited, or digits were lost. It is kept as printed"
                )
                losses.add("inconsistent-row", row.line.number, detail)
            yield whole_row | {
                "in_place": half.in_place,
                "time_ns": _nanoseconds(values.get("time"), table.us_per_unit),
                "algbw_bytes_per_s": _rate(values.get("algbw")),
                "busbw_bytes_per_s": _rate(values.get("busbw")),
                "wrong": _finite(values.get("wrong", "N/A").rstrip("*")),
                "min_ns": _nanoseconds(values.get("min"), 1.0),
                "max_ns": _nanoseconds(values.get("max"), 1.0),
                "p99_ns": _nanoseconds(values.get("p99"), 1.0),
                "cv_pct": _finite(values.get("cv")),
            }


def _size_of_group(table: _Table, program: str | None, losses: Losses, old: bool) -> tuple[int | None, int | None]:
    """Ranks of the communicator and its nodes, as far as the lines before the table say and its figures agree."""
    ranks, nodes = _listed_group(table.run)
    if ranks is None and table.command is not None and not table.run.devices:
        processes = table.command.processes
        per_process = table.run.gpus_per_process or table.command.gpus_per_process
        if processes is not None and per_process is not None and 0 < processes * per_process <= _MOST_RANKS:
            ranks, nodes = processes * per_process, 1 if processes == 1 else None
    if old or program in ("hypercube", "alltoallv"):
        return ranks, nodes
    if ranks is None:
        return _ranks_by_factor(program, table.rows), None
    if _factor_fits(ranks, program, table.rows):
        return ranks, nodes
    if table.run.devices:
        detail = (
            f"busbw / algbw does not fit {ranks} ranks, so the list of devices before the table is cut or another's"
        )
        losses.add("incomplete-device-list", table.line.number, detail + ". Keep the whole output of the test")
    return _ranks_by_factor(program, table.rows), None


def _fastest(rows: list[_Row]) -> tuple[float, float]:
    """The algbw and busbw of the half with the largest algbw, GB/s."""
    best = (0.0, 0.0)
    for row in rows:
        for half in row.halves:
            algbw, busbw = _finite(half.values.get("algbw")), _finite(half.values.get("busbw"))
            if algbw is not None and busbw is not None and algbw > best[0]:
                best = (algbw, busbw)
    return best


def _program_by_factor(table: _Table) -> str | None:
    """all_reduce or reduce_scatter where figures leave no other: both reduce without a root, one with factor > 1."""
    if "error" in table.columns or table.cpu_time or not table.rows:
        return None
    if any(row.first.get("redop", "none") == "none" or row.first.get("root", "-1") != "-1" for row in table.rows):
        return None
    algbw, busbw = _fastest(table.rows)
    if algbw < 1.0 or busbw < 0.4 * algbw:
        return None
    if busbw > 1.02 * algbw:
        return "all_reduce"
    return "reduce_scatter" if busbw < 0.98 * algbw else None


def _ranks_by_factor(program: str | None, rows: list[_Row]) -> int | None:
    """The only number of ranks that busbw / algbw of every row allows, within their printed digits; None if not one.

    all_reduce: busbw / algbw = 2(n-1)/n; those that keep their own share: (n-1)/n.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    scale = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}.get(program or "")
    if scale is None:
        return None
    low, high = 1.0, math.inf
    for row in rows:
        for half in row.halves:
            algbw, busbw = _finite(half.values.get("algbw")), _finite(half.values.get("busbw"))
            if algbw is None or busbw is None or algbw < 1.0:
                continue
            rounding, bus_rounding = _half_digit(half.values["algbw"]), _half_digit(half.values["busbw"])
            least = (busbw - bus_rounding) / (algbw + rounding) / scale
            most = (busbw + bus_rounding) / (algbw - rounding) / scale
            low = max(low, 1 / (1 - least) if least < 1 else math.inf)
            high = min(high, 1 / (1 - most) if most < 1 else math.inf)
    if high > _MOST_RANKS or low > high or math.floor(high) != math.ceil(low):
        return None
    return math.floor(high)


def _listed_group(run: _Run) -> tuple[int | None, int | None]:
    devices = dict.fromkeys(run.devices)
    if not devices:
        return None, None
    numbers = {device.rank for device in devices}
    sizes = Counter(device.group for device in devices)
    whole = numbers == set(range(len(numbers))) and len(numbers) % (run.gpus_per_process or 1) == 0
    if not whole:
        return (max(numbers) + 1, None) if len(sizes) == 1 and max(numbers) < _MOST_RANKS else (None, None)
    if len(set(sizes.values())) != 1:
        return None, None
    group = next(iter(devices)).group
    members = [device for device in devices if device.group == group]
    return len({device.rank for device in members}), len({device.host for device in members})


def _factor_fits(ranks: int, program: str | None, rows: list[_Row]) -> bool:
    """Whether busbw / algbw of the fastest half is a factor for so many ranks: nccl-tests, doc/PERFORMANCE.md."""
    algbw, busbw = _fastest(rows)
    if algbw < 1.0:
        return True
    share = (ranks - 1) / ranks
    if program == "all_reduce":
        factors = [2 * share]
    elif program in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        factors = [share]
    elif program in ("broadcast", "reduce", "sendrecv"):
        factors = [1.0]
    else:
        factors = [2 * share, share, 1.0]
    return any(abs(busbw / algbw - factor) <= 0.02 * max(factor, 0.5) for factor in factors)


def _agrees(size: int, values: dict[str, str], us_per_unit: float) -> bool:
    """Whether algbw is size / time, as far as the printed digits tell."""
    time, algbw = _finite(values.get("time")), _finite(values.get("algbw"))
    if time is None or algbw is None or size == 0:
        return True
    half_time, half_rate = _half_digit(values["time"]), _half_digit(values["algbw"])
    least = size / ((time + half_time) * us_per_unit * 1e-6) / GB
    most = size / ((time - half_time) * us_per_unit * 1e-6) / GB if time > half_time else math.inf
    return least / _SLACK - half_rate <= algbw <= most * _SLACK + half_rate


def _half_digit(token: str) -> float:
    """Half of the last digit that a number was printed with."""
    mantissa, _, exponent = token.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _finite(token: str | None) -> float | None:
    if token is None or token == "N/A":
        return None
    value = float(token)
    return value if math.isfinite(value) else None


def _rate(token: str | None) -> float | None:
    value = _finite(token)
    return None if value is None else value * GB


def _nanoseconds(token: str | None, us_per_unit: float) -> int | None:
    value = _finite(token)
    if value is None or not 0 <= value * us_per_unit * 1e3 < _LONGEST_TIME_NS:
        return None
    return round(value * us_per_unit * 1e3)


def _bounded(digits: str | None, most: int) -> int | None:
    if digits is None or len(digits) > 19:
        return None
    return int(digits) if 0 <= int(digits) <= most else None
