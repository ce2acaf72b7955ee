"""ucx_perftest: its box table, its `Final:` row, and the comma-separated form (`-v`).

MB/s is 2^20 bytes/s. The third group of columns is called latency for the *_lat tests and overhead for the others
(always latency in 1.6): time_ns is filled from a latency only, which is half a round trip. Size and test stand in no
row: they come from the command line or from the box that the server prints. Progress rows are passed over. Source:
run with 1.13.1; a box of 1.6 in openucx/ucx issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from busbw.errors import Loss
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template

__all__ = ["READER"]

_MB = float(2**20)
"""ucx_perftest's MB/s. Checked: message rate times size, 1.13.1."""

_SIGNATURE = re.compile(r"^\|.*(?:bandwidth \(MB/s\)|# iterations)|^(?:\w[\w.-]*,)?iterations,[\d.]+_percentile_lat,")
_BOX = re.compile(r"\|.*bandwidth \(MB/s\).*message rate")
_NAMES = re.compile(r"\|(?:\s*(Stage|Test)\s*\|)?\s*# iterations\s*\|\s*(\S+)\s*\|")
_CSV = re.compile(
    r"(?:\w[\w.-]*,)?iterations,([\d.]+)_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\s*$"
)
_PROGRESS = re.compile(r"\s*\[thread \d+\]")
_COMMAND = re.compile(r"\bucx_perftest\b(.*)")
_TEST_OPTION = re.compile(r"\s-t\s*([a-z0-9_]+)")
_SIZE_OPTION = re.compile(r"\s-s\s*(\d{1,18})(?=\s|$)")
_SIZE_BOX = re.compile(r"\|\s*Message size:\s*(\d{1,18})\s*\|")
_TEST_BOX = re.compile(r"\|\s*Test:\s*(.*?)\s*\|")
_BATCH = re.compile(r"(\S+)\s+.*-t\s")
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_TIME = re.compile(r"\d{1,12}\.\d{3}|nan|inf", re.ASCII)
_RATE = re.compile(r"\d{1,12}\.\d{2}|nan|inf", re.ASCII)
_SHAPES = (_COUNT, _TIME, _TIME, _TIME, _RATE, _RATE, _COUNT, _COUNT)


@dataclass(slots=True)
class _Box:
    """A table that is open, and what is known of the test in it."""

    index: int
    labelled: str | None
    """First cell of the header: Stage, Test, or None in old versions."""
    csv: bool = False
    is_latency: bool = False
    percentile: str | None = None
    size: int | None = None
    test: str | None = None
    last: dict[str, Any] | None = None
    """The newest row where only the last of all counts."""


@dataclass(slots=True)
class _Losses:
    path: str
    met: dict[str, Loss] = field(default_factory=dict)

    def add(self, kind: str, line: int, detail: str) -> None:
        known = self.met.get(kind)
        self.met[kind] = replace(known, count=known.count + 1) if known else Loss(kind, self.path, line, detail)


class UcxPerftestReader(Lines):
    """Results of ucx_perftest, anywhere in a log."""

    name = "ucx-perftest"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a test: the whole run's average, never a progress row."""
        losses = _Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        box: _Box | None = None
        heading: PlainLine | None = None
        size: int | None = None
        test: str | None = None
        tables = 0
        for line in lines:
            text = line.text
            if text.startswith("|") and len(text) < 512:
                if _BOX.match(text):
                    heading = line
                elif heading is not None and (names := _NAMES.match(text)) is not None:
                    _close(box, rows)
                    box = _Box(tables, names[1], size=size, test=test)
                    box.is_latency = names[1] is not None and "latency (usec)" in heading.text
                    box.percentile = names[2] if names[2].endswith("%ile") else None
                    tables, heading = tables + 1, None
                elif (found := _SIZE_BOX.match(text)) is not None:
                    size = int(found[1])
                elif (found := _TEST_BOX.match(text)) is not None:
                    test = found[1]
            elif "ucx_perftest" in text and (command := _COMMAND.search(text)) is not None:
                _close(box, rows)
                box = None
                options = " " + command[1]
                one_size, one_test = _SIZE_OPTION.search(options), _TEST_OPTION.search(options)
                size, test = (int(one_size[1]) if one_size else None), (one_test[1] if one_test else None)
            elif "_percentile_lat," in text and (csv := _CSV.match(text)) is not None:
                _close(box, rows)
                box = _Box(
                    tables, "label" if not text.startswith("iterations") else None, True, False, csv[1], size, test
                )
                tables += 1
            elif box is not None and not text.startswith("+"):
                row = _row(artefact, line, box, losses)
                if row is None:
                    continue
                if box.labelled is None:
                    box.last = row
                else:
                    rows.append(row)
        _close(box, rows)
        if rows:
            yield rows_of("measurements", rows)
        yield from losses.met.values()


READER = UcxPerftestReader()


def _close(box: _Box | None, rows: list[dict[str, Any]]) -> None:
    """Keeps the last row of a box whose rows carry no label."""
    if box is not None and box.last is not None:
        rows.append(box.last)
        box.last = None


def _row(artefact: Artefact, line: PlainLine, box: _Box, losses: _Losses) -> dict[str, Any] | None:
    """A final row; None for progress rows and the lines of others."""
    text = line.text
    if box.csv:
        tokens = text.strip().split(",")
        if len(tokens) < 2:
            return None
        tokens = tokens[1:] if box.labelled else tokens
    else:
        if _PROGRESS.match(text):
            return None
        tokens = text.split()
        if box.labelled and tokens and not _COUNT.fullmatch(tokens[0]):
            tokens = tokens[1:]
    if not tokens or not _COUNT.fullmatch(tokens[0]):
        return None
    if len(tokens) == 1 and not text.lstrip().startswith("Final:") and not text[:1].isspace():
        return None
    for i, shape in enumerate(_SHAPES):
        if i == len(tokens) or (i == len(tokens) - 1 and not shape.fullmatch(tokens[i])):
            detail = f"row has {len(tokens)} of {len(_SHAPES)} figures; the output is cut. Run the test again"
            losses.add("truncated-row", line.number, detail)
            return None
        if not shape.fullmatch(tokens[i]):
            if i > 1:
                detail = (
                    f"figure {i + 1} is {tokens[i][:24]!r}; another program wrote into the row. Give it its own file"
                )
                losses.add("damaged-row", line.number, detail)
            return None
    test = box.test
    is_latency = "lat" in test if test is not None else box.is_latency
    time = tokens[3] if is_latency else None
    p99 = tokens[1] if is_latency and (box.percentile or "").startswith("99.0") else None
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "tool": "ucx_perftest",
        "table_index": box.index,
        "collective": "send_recv" if test is not None and re.match(r"(?:ucp_)?(?:tag|am|stream)", test) else None,
        "size_bytes": box.size,
        "ranks": 2,
        "time_ns": _nanoseconds(time),
        "algbw_bytes_per_s": None if tokens[5][-1] in "nf" else float(tokens[5]) * _MB,
        "iterations": int(tokens[0]),
        "p99_ns": _nanoseconds(p99),
    }


def _nanoseconds(token: str | None) -> int | None:
    return None if token is None or token[-1] in "nf" else round(float(token) * 1e3)
