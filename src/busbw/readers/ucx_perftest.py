"""ucx_perftest: its box table, its `Final:` row, and the comma-separated form (`-v`).

MB/s is 2^20 bytes/s. The third group of columns is called latency for the *_lat tests and overhead for the others
(always latency in 1.6; overhead over a batch whose lines name the tests): time_ns is filled from a latency only, which is half a round trip.
Size and test stand in no row: they come from the command line, from the box that the server prints, or from the lines of a
batch file in the same text; where none of these is there, that is counted as lost. Progress rows are passed over; with
several threads only the whole run has figures. Source: run with 1.13.1; a box of 1.6 in openucx/ucx issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbw.errors import Losses
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
_TEST_BOX = re.compile(r"\|\s*Test:\s*(.{0,200}?)\s*\|")
_BATCH = re.compile(r"(?P<label>[^\s|#$+>-]\S{0,63})(?P<options>(?:\s+-\w+(?:\s+[^\s-]\S*)?)+)\s*")
"""A line of a batch file: a label, then options."""
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_TIME = re.compile(r"\d{1,12}\.\d{3}|nan|inf", re.ASCII)
_RATE = re.compile(r"\d{1,12}\.\d{2}|nan|inf", re.ASCII)
_SHAPES = (_COUNT, _TIME, _TIME, _TIME, _RATE, _RATE, _COUNT, _COUNT)
_THREADS_SHAPES = (_COUNT, _TIME, _RATE, _COUNT)
"""-T: iterations, and the figures of the whole run."""


_GETS = re.compile(r"(?:ucp_)?(?:get|fadd|swap|cswap)(?:$|_lat)")
"""Tests of which 1.13.1 prints a latency though their name does not say so."""
_MOST_BATCH_LINES = 10_000


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


class UcxPerftestReader(Lines):
    """Results of ucx_perftest, anywhere in a log."""

    name = "ucx-perftest"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a test: the whole run's average, never a progress row."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        box: _Box | None = None
        heading: PlainLine | None = None
        size: int | None = None
        test: str | None = None
        batch: dict[str, tuple[str | None, int | None]] = {}
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
            elif " -t" in text and (listed := _BATCH.fullmatch(text)) is not None:
                one_size, one_test = _SIZE_OPTION.search(listed["options"]), _TEST_OPTION.search(listed["options"])
                if len(batch) < _MOST_BATCH_LINES:
                    batch[listed["label"]] = (one_test[1] if one_test else None, int(one_size[1]) if one_size else None)
            elif box is not None and not text.startswith("+"):
                row = _row(artefact, line, box, batch, losses)
                if row is None:
                    continue
                if box.labelled is None:
                    box.last = row
                else:
                    rows.append(row)
        _close(box, rows)
        for row in rows:
            if row["size_bytes"] is None:
                detail = "no command line and no box of the server say the size of the messages; it stays unknown. Keep the command with the output"
                losses.add("size-unknown", row["line"], detail)
        if rows:
            yield rows_of("measurements", rows)
        yield from losses


READER = UcxPerftestReader()


def _close(box: _Box | None, rows: list[dict[str, Any]]) -> None:
    """Keeps the last row of a box whose rows carry no label."""
    if box is not None and box.last is not None:
        rows.append(box.last)
        box.last = None


def _row(
    artefact: Artefact,
    line: PlainLine,
    box: _Box,
    batch: Mapping[str, tuple[str | None, int | None]],
    losses: Losses,
) -> dict[str, Any] | None:
    """A final row; None for progress rows and the lines of others."""
    text = line.text
    label: str | None = None
    if box.csv:
        tokens = [token.strip() for token in text.split(",")]  # a count is padded to four
        if len(tokens) < 2:
            return None
        if box.labelled:
            label, tokens = tokens[0], tokens[1:]
    else:
        if _PROGRESS.match(text):
            return None
        tokens = text.split()
        if box.labelled and tokens and not _COUNT.fullmatch(tokens[0]):
            label, tokens = tokens[0], tokens[1:]
    if not tokens or not _COUNT.fullmatch(tokens[0]):
        return None
    if len(tokens) == 1 and not text.lstrip().startswith("Final:") and not text[:1].isspace():
        return None
    several_threads = len(tokens) == len(_THREADS_SHAPES) and all(
        shape.fullmatch(token) for shape, token in zip(_THREADS_SHAPES, tokens, strict=True)
    )
    shapes = _THREADS_SHAPES if several_threads else _SHAPES
    for i, shape in enumerate(shapes):
        if i == len(tokens) or (i == len(tokens) - 1 and not shape.fullmatch(tokens[i])):
            detail = f"row has {len(tokens)} of {len(shapes)} figures; the output is cut. Run the test again"
            losses.add("truncated-row", line.number, detail)
            return None
        if not shape.fullmatch(tokens[i]):
            if i > 1:
                detail = (
                    f"figure {i + 1} is {tokens[i][:24]!r}; another program wrote into the row. Give it its own file"
                )
                losses.add("damaged-row", line.number, detail)
            return None
    test, size = box.test, box.size
    is_batch = label is not None and label != "Final:"
    if is_batch and label is not None and label in batch:
        test, size = batch[label]
    elif is_batch and test is None and not box.is_latency:
        detail = "the box over a batch says overhead whatever its tests are, and nothing says which test a label is: its times stay unknown. Keep the batch file"
        losses.add("test-unknown", line.number, detail)
    is_latency = _prints_latency(box, test, is_batch)
    overall, rate = (tokens[1], tokens[2]) if several_threads else (tokens[3], tokens[5])
    p99 = tokens[1] if is_latency and not several_threads and (box.percentile or "").startswith("99.0") else None
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "tool": "ucx_perftest",
        "table_index": box.index,
        "collective": "send_recv" if test is not None and re.match(r"(?:ucp_)?(?:tag|am|stream)", test) else None,
        "size_bytes": size,
        "ranks": 2,
        "time_ns": _nanoseconds(overall if is_latency else None),
        "algbw_bytes_per_s": None if rate[-1] in "nf" else float(rate) * _MB,
        "iterations": int(tokens[0]),
        "p99_ns": _nanoseconds(p99),
    }


def _prints_latency(box: _Box, test: str | None, is_batch: bool) -> bool:
    """Whether the third group of columns is a latency. The box says so; not in 1.6, nor over a batch whose lines name the tests."""
    if not box.csv and box.labelled is not None and (box.is_latency or not is_batch):
        return box.is_latency
    return test is not None and ("lat" in test or _GETS.match(test) is not None)


def _nanoseconds(token: str | None) -> int | None:
    return None if token is None or token[-1] in "nf" else round(float(token) * 1e3)
