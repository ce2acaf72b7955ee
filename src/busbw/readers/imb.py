"""Intel MPI Benchmarks (IMB-MPI1, IMB-NBC, IMB-RMA, IMB-EXT): tables of one or several groups of processes.

Times are us; t[usec] of PingPong is half of a round trip, t_avg of a collective the average over the processes, t_pure that of the
communication alone. Mbytes/sec is 1e6 bytes/s since 2018 and 2^20 before; without a version line it is told from size and time, or
stays unknown. It counts both directions for Sendrecv, four messages for Exchange. The size of Allgather, Alltoall, Gather and Scatter
is one block: here it is the whole buffer, block times processes. Message rates, t_ovrl, t_CPU and overlap have no column.
Source: intel/mpi-benchmarks src_c/IMB_output.c (2018 to 2021); outputs in public documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place
from busbw.readers.losses import add_broken_row
from busbw.readers.text_values import finite, nanoseconds

__all__ = ["READER"]

_MB, _MIB = 1e6, float(2**20)
TEMPLATES: tuple[Template, ...] = (
    Template("imb.version", "^# Intel(R) MPI Benchmarks {version:w}, {part:s} part", "IMB_general_info.c", "info"),
    Template("imb.version", "^# Intel (R) MPI Benchmarks {version:w}, {part:s} part", "IMB_general_info.c, to 2018", "info"),
    Template("imb.sample_failed", "out-of-mem.; needed X= {gigabytes:f} GB", "IMB_output.c", "warning"),
    Template("imb.sample_failed", "int-overflow.; The production rank*size caused int overflow", "IMB_output.c", "warning"),
    Template("imb.sample_failed", "time-out.; Time limit (secs_per_sample", "IMB_output.c", "warning"),
)  # fmt: skip

_VERSION = re.compile(r"#\s+Intel ?\(R\) MPI Benchmarks ([\w.]+)")
_BENCHMARK = re.compile(r"#\s*Benchmarking\s+(Multi-)?(\w+)\s*")
_PROCESSES = re.compile(r"#\s*#processes = (\d{1,7})\b.*")
_GROUPS = re.compile(r"#\s*\(\s*(\d{1,7}) groups of (\d{1,7}) processes each running simultaneous.*")
_HEADER = re.compile(r"\s*(?:Group\s+)?#(?:bytes\s+#)?repetitions\s+\S.*")
_SIGNATURE = re.compile(r"#repetitions\s+(?:t_?\w*\[usec\]|Mbytes/sec)|^#\s*Benchmarking\s+\w+\s*$")
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_FIGURE = re.compile(r"-?\d{1,15}\.\d{2}|-?nan|inf", re.ASCII)
_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherv": "all_gather", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter", "alltoall": "all_to_all", "alltoallv": "all_to_all_v", "bcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "gatherv": "gather", "scatter": "scatter", "scatterv": "scatter", "barrier": "barrier", "pingpong": "send_recv",
    "pingping": "send_recv", "sendrecv": "send_recv", "exchange": "send_recv", "uniband": "send_recv", "biband": "send_recv",
    "pingponganysource": "send_recv", "pingpongspecificsource": "send_recv", "pingpinganysource": "send_recv", "pingpingspecificsource": "send_recv",
}  # fmt: skip
_SIZE_IS_A_BLOCK = frozenset({"all_gather", "all_to_all", "all_to_all_v", "gather", "scatter"})
_MESSAGES = {"sendrecv": 2, "exchange": 4}
"""Messages of `#bytes` that Mbytes/sec counts for one t_max. Source: scale_bw in IMB_benchlist.c."""


@dataclass(slots=True)
class _Table:
    """An open table, and what stands before it."""

    benchmark: str | None
    ranks: int | None
    index: int
    columns: tuple[str, ...]
    mb_bytes: float | None
    """Bytes of a megabyte of this version; None: not known."""


class ImbReader(Lines):
    """Tables of the Intel MPI Benchmarks, anywhere in a log."""

    name = "imb"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row; an event `imb.table` a table, with the benchmark's name."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        version: str | None = None
        benchmark: str | None = None
        ranks: int | None = None
        table: _Table | None = None
        tables = 0
        for line in lines:
            text = line.text
            if len(text) > 1024:
                continue
            start = text.lstrip(" \t")[:1]
            if "0" <= start <= "9":
                if table is not None and (row := _row(table, line, losses)) is not None:
                    rows.append(place(artefact, line) | row | {"tool_version": version})
            elif "#" not in text:
                continue
            elif "Benchmarks" in text and (named := _VERSION.match(text)) is not None:
                version, table = named[1], None
            elif (found := _BENCHMARK.fullmatch(text)) is not None:
                benchmark, ranks, table = found[2], None, None
            elif (processes := _PROCESSES.fullmatch(text)) is not None:
                ranks = int(processes[1])
            elif (groups := _GROUPS.fullmatch(text)) is not None:
                ranks = int(groups[2])
            elif _HEADER.fullmatch(text) is not None:
                table = _Table(benchmark, ranks, tables, tuple(text.split()), _megabyte(version))
                fields = {
                    "table_index": str(tables),
                    "benchmark": benchmark or "unknown",
                    "columns": " ".join(table.columns),
                }
                event = {"event": "imb.table", "level": "info", "text": text.strip(), "fields": list(fields.items())}
                events.append(place(artefact, line) | event)
                tables += 1
        if rows:
            yield rows_of("measurements", rows)
        if events:
            yield rows_of("events", events)
        yield from losses


READER = ImbReader()


def _megabyte(version: str | None) -> float | None:
    """MEGA in IMB_output.c; releases are numbered by year since 2017, the change came with 2018."""
    year = re.match(r"(\d{1,4})", version) if version is not None else None
    return None if year is None else (_MB if int(year[1]) >= 2018 else _MIB)


def _row(table: _Table, line: PlainLine, losses: Losses) -> dict[str, Any] | None:
    tokens = line.text.split()
    values: dict[str, str] = {}
    for i, name in enumerate(table.columns):
        is_count = name in ("Group", "#bytes", "#repetitions") or name.startswith("Msg/sec")
        if i == len(tokens) or (_COUNT if is_count else _FIGURE).fullmatch(tokens[i]) is None:
            if line.event == "imb.sample_failed" or (i < 2 and i < len(tokens)):
                return None
            add_broken_row(losses, line.number, i + 1, len(table.columns), name, cut=i >= len(tokens) - 1)
            return None
        values[name] = tokens[i]
    if len(tokens) > len(table.columns) and _FIGURE.fullmatch(tokens[len(table.columns)]):
        detail = f"a row has {len(tokens)} columns, its header {len(table.columns)}; two rows may have run together"
        losses.add("damaged-row", line.number, detail)
        return None
    return _measurement(table, values, line.number, losses)


def _measurement(table: _Table, values: Mapping[str, str], line: int, losses: Losses) -> dict[str, Any]:
    name = (table.benchmark or "").lower()
    plain = name.removesuffix("_pure")
    collective = _COLLECTIVES.get(plain) or _COLLECTIVES.get(plain.removeprefix("i"))
    block = int(values["#bytes"]) if "#bytes" in values else None
    size = 0 if collective == "barrier" else block
    if collective in _SIZE_IS_A_BLOCK and block is not None:
        size = block * table.ranks if table.ranks is not None and block * table.ranks < 2**62 else None
    time = next((values[key] for key in ("t[usec]", "t_avg[usec]", "t_pure[usec]") if key in values), None)
    defects = finite(values.get("defects"))
    return {
        "tool": "imb",
        "table_index": table.index,
        "collective": collective,
        "size_bytes": size,
        "ranks": table.ranks,
        "time_ns": nanoseconds(time),
        "algbw_bytes_per_s": _rate(table, values, block, line, losses),
        "iterations": int(values["#repetitions"]) if "#repetitions" in values else None,
        "min_ns": nanoseconds(values.get("t_min[usec]")),
        "max_ns": nanoseconds(values.get("t_max[usec]")),
        "wrong": defects,
    }


def _rate(table: _Table, values: Mapping[str, str], block: int | None, line: int, losses: Losses) -> float | None:
    value = finite(values.get("Mbytes/sec"))
    if value is None:
        return None
    if table.mb_bytes is not None:
        return value * table.mb_bytes
    if value == 0:
        return 0.0 if block == 0 else None
    # Mbytes/sec is messages times size over the longest time. Time is rounded to 0.01 us, the rate to 0.01.
    longest = finite(values.get("t_max[usec]") or values.get("t[usec]"))
    moved = _MESSAGES.get((table.benchmark or "").lower(), 1) * (block or 0) * 1e6 / longest if longest else 0.0
    tolerance = (0.006 / longest if longest else 1.0) + 0.006 / value
    fits = [unit for unit in (_MB, _MIB) if moved and abs(value * unit / moved - 1) <= tolerance]
    if len(fits) == 1:
        return value * fits[0]
    detail = "Mbytes/sec is 1e6 bytes/s since 2018 and 2^20 before, and nothing here tells the version; it stays unknown. Keep the first lines"
    losses.add("unknown-unit", line, detail)
    return None
