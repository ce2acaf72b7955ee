"""The comma-separated files of rccl-tests (`-x FILE -Z csv`), its JSON is in readers/nccl_tests_json.py.

Builds with MPI wrote a header without `nodes` above rows with it (to May 2026), so every column from `ranks` on was one to the left of its
name; such rows are read by their own number of columns, and the file is counted as repaired. Blanks around values and quotes are those
of 2024. time is us, GB/s is 1e9 bytes/s. Source: ROCm/rocm-systems projects/rccl-tests src/common.cu, Reporter::writeFile; pull request
6004; ROCm/rccl-tests pull requests 93 and 140.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbw.collectives import collective_named
from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place
from busbw.readers.json_values import integer, small_integer
from busbw.readers.text_values import finite, nanoseconds
from busbw.units import GB

__all__ = ["READER"]

_SIGNATURE = re.compile(r"^\s*(?:numCycle\s*,\s*)?(?:collective|name)\s*,.*\balgbw\s*,\s*busbw\b", re.IGNORECASE)
_NAMES = {"name": "collective", "inplace": "inplace", "wrong": "#wrong"}


class RcclTestsCsvReader(Lines):
    """CSV tables of rccl-tests."""

    name = "rccl-tests-csv"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        header: list[str] = []
        index = -1
        for line in lines:
            text = line.text
            if len(text) > 2048 or "," not in text:
                continue
            if _SIGNATURE.match(text) is not None:
                header = [_NAMES.get(word.strip().lower(), word.strip().lower()) for word in text.split(",")]
                index += 1
                continue
            if not header:
                continue
            values = [value.strip() for value in next(csv.reader([text], skipinitialspace=True), [])]
            known = _named(header, values, line, losses)
            if known is None:
                continue
            size = integer(known.get("size"))
            if (
                size is None
                or known.get("inplace") not in ("0", "1")
                or not known.get("type", "0")[:1].isalpha()
                or not values[-1]
            ):
                detail = "the values of a row do not fit its header; it is cut or damaged and was left out. Run the test again"
                losses.add("damaged-row", line.number, detail)
                continue
            rows.append(place(artefact, line) | _measurement(known, size, index))
        if rows:
            yield rows_of("measurements", rows)
        yield from losses


READER = RcclTestsCsvReader()


def _named(header: Sequence[str], values: Sequence[str], line: PlainLine, losses: Losses) -> Mapping[str, str] | None:
    """The values by their true names; None for the lines of others and for damage, which is counted."""
    if len(values) == len(header):
        return dict(zip(header, values, strict=True))
    if len(values) == len(header) + 1 and "ranks" in header and "nodes" not in header:
        detail = "the header lacks the column nodes (rccl-tests with MPI, to May 2026); rows were read with it. Do not load this file by header"
        losses.add("repaired", line.number, detail)
        at = header.index("ranks")
        return dict(zip([*header[:at], "nodes", *header[at:]], values, strict=True))
    if len(values) > 3 and values[0].isdigit():
        detail = f"a row has {len(values)} values, its header {len(header)} names; it was left out. Run the test again"
        losses.add("truncated-row" if len(values) < len(header) else "damaged-row", line.number, detail)
    return None


def _measurement(known: Mapping[str, str], size: int, index: int) -> dict[str, Any]:
    ranks, per_rank = small_integer(known.get("ranks")), small_integer(known.get("gpusperrank"))
    members = ranks * (per_rank or 1) if ranks else small_integer(known.get("gpus"))
    redop = known.get("redop")
    rates = {name: finite(known.get(name)) for name in ("algbw", "busbw")}
    return {
        "tool": "rccl-tests",
        "table_index": index,
        "collective": collective_named(known.get("collective")),
        "size_bytes": size,
        "dtype": known.get("type") or None,
        "redop": None if redop in ("none", "", None) else redop,
        "ranks": members or None,
        "nodes": small_integer(known.get("nodes")) or None,
        "in_place": {"0": False, "1": True}.get(known.get("inplace", "")),
        "time_ns": nanoseconds(known.get("time")),
        "algbw_bytes_per_s": None if rates["algbw"] is None else rates["algbw"] * GB,
        "busbw_bytes_per_s": None if rates["busbw"] is None else rates["busbw"] * GB,
        "wrong": finite(known.get("#wrong")),
    }
