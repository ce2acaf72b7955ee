"""OSU micro-benchmarks: `osu_latency`, `osu_bw`, `osu_allreduce` and the others, versions 3 to 7.

A title (`# OSU MPI Latency Test v7.4`), a header that starts with `# Size`, rows of bytes and figures. MB/s is 1e6
bytes/s, latency of a point-to-point test is one way. The size column is the message of one rank; for allgather,
alltoall, gather and scatter one of its blocks, so their size_bytes needs the number of ranks, which only the command
line says. Source: run with 7.4; titles and headers of 3.x to 7.x in public logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template

__all__ = ["READER"]

_MB = 1e6
"""OSU's MB/s. Checked against the message rate of osu_mbw_mr, 7.4."""

_TEMPLATES = (
    Template("osu.title", "^# OSU {name:s} Test v{version:w}", "OSU micro-benchmarks, print_preamble", "info"),
    Template("osu.validation_error", "DATA VALIDATION ERROR: {message:s}", "OSU micro-benchmarks, -c", "error"),
)  # fmt: skip

_TITLE = re.compile(
    r"#?\s*OSU\s+(?:(?:MPI|OpenSHMEM|UPC\+\+|UPC|NCCL|RCCL|XCCL)(?:-\w+)?\s+)?(.{1,80}?)\s+Test(?:\s+v(\S+))?\s*$"
)
_HEADER = re.compile(r"#?\s*(?:Size\s{2,}\S|(?:Avg )?Latency ?\(us\)|Overall ?\(us\))")
_SIGNATURE = re.compile(r"^#\s*(?:Size\s{2,}\S|Avg Latency)|^#?\s*OSU\s.*Test")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(?:MPI_)?(\w+)")
_PROGRAM = re.compile(r"\bosu_([a-z_]+)\b")
_PROCESSES = re.compile(r"\b(?:mpirun|mpiexec|prun|srun|mpirun_rsh)\b.*?\s(?:-n|-np|--np|--ntasks)[\s=]*(\d{1,7})\b")
_INTEGER = re.compile(r"\d{1,18}", re.ASCII)
_FIGURE = re.compile(r"\d{1,15}\.\d{2,9}|nan|-nan|inf", re.ASCII)
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_GAP = re.compile(r"\s{2,}")

_PROGRAM_OF_TITLE = {
    "latency": "osu_latency", "multi latency": "osu_multi_lat", "multi-threaded latency": "osu_latency_mt",
    "bandwidth": "osu_bw", "bi-directional bandwidth": "osu_bibw", "multiple bandwidth / message rate": "osu_mbw_mr",
    "broadcast latency": "osu_bcast", "barrier latency": "osu_barrier",
}  # fmt: skip
_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v", "bcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "barrier": "barrier", "latency": "send_recv", "bw": "send_recv", "bibw": "send_recv", "mbw_mr": "send_recv",
    "multi_lat": "send_recv", "latency_mt": "send_recv", "latency_mp": "send_recv",
}  # fmt: skip
_SIZE_IS_A_BLOCK = frozenset({"all_gather", "all_to_all", "all_to_all_v", "gather", "scatter"})
_COLUMN_OF_TITLE = {
    "size": "size", "latency (us)": "time", "latency(us)": "time", "avg latency(us)": "time",
    "avg latency (us)": "time", "min latency(us)": "min", "max latency(us)": "max", "iterations": "iterations",
    "bandwidth (mb/s)": "rate", "mb/s": "rate", "p50 tail lat(us)": "p50", "p90 tail lat(us)": "p90",
    "p99 tail lat(us)": "p99", "validation": "validation", "pure comm.(us)": "time", "min comm.(us)": "min",
    "max comm.(us)": "max",
}  # fmt: skip
_KNOWN_VALIDATION = {"pass": 0.0, "fail": 1.0}


@dataclass(slots=True)
class _Test:
    """What the lines before the rows say."""

    program: str | None = None
    version: str | None = None
    dtype: str | None = None
    ranks: int | None = None
    index: int = -1
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class OsuReader(Lines):
    """Tables of the OSU micro-benchmarks, anywhere in a log."""

    name = "osu"
    templates: Sequence[Template] = _TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row. wrong: 0 for Pass, 1 (at least one) for Fail, NULL without -c."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        test, command, tables = _Test(), _Test(), 0
        for line in lines:
            text = line.text
            start = text.lstrip(" \t")[:1]
            if "0" <= start <= "9":
                if test.columns and (row := _row(artefact, line, test, losses)) is not None:
                    rows.append(row)
            elif start == "#" or test.program is not None or "OSU" in text:
                if (title := _TITLE.match(text)) is not None:
                    program = _program(title[1])
                    fits = command.program is None or program in (None, command.program)
                    known = command if fits else _Test()
                    test, command = _Test(program or known.program, title[2], None, known.ranks), _Test()
                elif (datatype := _DATATYPE.match(text)) is not None:
                    test.dtype = datatype[1].lower()
                elif _HEADER.match(text) is not None:
                    names = _GAP.split(text.lstrip("# \t").rstrip())
                    test.names = tuple(names)
                    test.columns = tuple(_COLUMN_OF_TITLE.get(name.lower(), "?") for name in names)
                    if "time" in test.columns or "rate" in test.columns:
                        test.index, tables = tables, tables + 1
                    else:
                        test.columns = ()
            if "osu_" in text and start != "#" and (program_name := _PROGRAM.search(text)) is not None:
                processes = _PROCESSES.search(text[: program_name.start()][:4096])
                command = _Test(f"osu_{program_name[1]}", ranks=int(processes[1]) if processes else None)
        if rows:
            yield rows_of("measurements", rows)
        yield from losses


READER = OsuReader()


def _program(title: str) -> str | None:
    """The program that prints this title: 'Allreduce Latency' is osu_allreduce's."""
    name = title.strip().lower()
    if name in _PROGRAM_OF_TITLE:
        return _PROGRAM_OF_TITLE[name]
    one_sided = re.fullmatch(r"mpi_([a-z_]+) (latency|bandwidth|bi-directional bandwidth)", name)
    if one_sided is not None:
        kind = {"latency": "latency", "bandwidth": "bw"}.get(one_sided[2], "bibw")
        return f"osu_{one_sided[1]}_{kind}"
    found = re.fullmatch(r"(non-blocking )?([a-z_-]+) (?:personalized exchange )?(?:latency|bandwidth)", name)
    if found is None:
        return None
    collective = found[2].replace("all-to-all", "alltoall").replace("broadcast", "bcast")
    return f"osu_{'i' if found[1] else ''}{collective}"


def _row(artefact: Artefact, line: PlainLine, test: _Test, losses: Losses) -> dict[str, Any] | None:
    tokens = line.text.split()
    values: dict[str, str] = {}
    for i, column in enumerate(test.columns):
        if i == len(tokens):
            losses.add("truncated-row", line.number, _cut(i, len(test.columns)))
            return None
        token = tokens[i]
        if not _fits(column, test.names[i], token):
            if i == 0:
                return None
            if i == len(tokens) - 1:
                losses.add("truncated-row", line.number, _cut(i + 1, len(test.columns)))
            elif i > 1 or _FIGURE.fullmatch(token):
                detail = f"column {i + 1} is {token[:24]!r}, not {test.names[i]}; another program wrote into the row"
                losses.add("damaged-row", line.number, detail + ". Give each process its own file")
            return None
        values[column] = token
    if len(tokens) > len(test.columns) and (_FIGURE.fullmatch(tokens[len(test.columns)])):
        detail = f"row has {len(tokens)} columns, its header has {len(test.columns)}; two rows may have run together"
        losses.add("damaged-row", line.number, detail)
        return None
    return _measurement(artefact, line, test, values)


def _fits(column: str, name: str, token: str) -> bool:
    if column == "size":
        return _INTEGER.fullmatch(token) is not None
    if column == "iterations":
        return _COUNT.fullmatch(token) is not None
    if column == "validation":
        return token.lower() in _KNOWN_VALIDATION
    if column == "?" and "(" not in name and "/s" not in name:
        return True
    return _FIGURE.fullmatch(token) is not None


def _cut(found: int, expected: int) -> str:
    return f"row is cut in column {found} of {expected}; run the benchmark again, or copy all of its output"


def _measurement(artefact: Artefact, line: PlainLine, test: _Test, values: dict[str, str]) -> dict[str, Any]:
    base = (test.program or "").removeprefix("osu_")
    collective = _COLLECTIVES.get(base) or _COLLECTIVES.get(base.removeprefix("i"))
    block = int(values["size"]) if "size" in values else 0
    size: int | None = block
    if collective in _SIZE_IS_A_BLOCK:
        size = block * test.ranks if test.ranks is not None and block * test.ranks < 2**62 else None
    # With -z99.9 the one percentile column is called P99 too; only the default set of three is what it says.
    p99 = values.get("p99") if {"p50", "p90"}.issubset(values) else None
    rate = _number(values.get("rate"))
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "tool": test.program or "osu",
        "tool_version": test.version,
        "table_index": test.index,
        "collective": collective,
        "size_bytes": size,
        "count": block if test.dtype == "char" else None,
        "dtype": test.dtype,
        "ranks": test.ranks,
        "time_ns": _nanoseconds(values.get("time")),
        "algbw_bytes_per_s": None if rate is None else rate * _MB,
        "wrong": _KNOWN_VALIDATION.get(values.get("validation", "").lower()),
        "iterations": int(values["iterations"]) if "iterations" in values else None,
        "min_ns": _nanoseconds(values.get("min")),
        "max_ns": _nanoseconds(values.get("max")),
        "p99_ns": _nanoseconds(p99),
    }


def _number(token: str | None) -> float | None:
    return None if token is None or token[-1] in "nf" else float(token)


def _nanoseconds(token: str | None) -> int | None:
    value = _number(token)
    return None if value is None else round(value * 1e3)
