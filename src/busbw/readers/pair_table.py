"""Lists and matrices of host pairs with one figure, as people make them who test the nodes of a cluster two by two.

    host0,host1     49.36            host0  host1  host2
    host2 host3 88.4 GB/s     host0      -   49.3   88.1
    host4 <-> host5: 12.3     host1   49.2      -   88.0
    host0:mlx5_0 host1:mlx5_0 48.1

An end may name its NIC. The figure is read as busbw in GB/s (1e9), which is what such scripts take from nccl-tests. To stay silent on other
text, three lines of this shape must stand together, both ends must be names of one kind (`host0` and `host1`, or
addresses), and none a GPU or another part of a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template
from busbw.units import GB

__all__ = ["READER"]

_LEAST_LINES = 3
_NAME = r"(?:(?:[A-Za-z][\w.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3})(?::[A-Za-z][\w.-]{0,30})?)"
_PAIR = re.compile(
    rf"\s*(?P<a>{_NAME})(?P<between>\s*(?:,|;|<-+>|-+>|<=>|=>|/|\|)\s*|\s+)(?P<b>{_NAME})"
    r"(?:\s*[:=,;]\s*|\s+)(?P<value>\d{1,6}(?:\.\d{1,6})?)(?:\s*(?P<unit>GB/s|GBps))?\s*(?:[#(].*)?$"
)
_SIGNATURE = re.compile(rf"^\s*{_NAME}(?:\s*(?:,|;|<-+>|-+>|<=>|=>|/|\|)\s*|\s+){_NAME}[\s:=,;]")
_CELL = re.compile(r"\d{1,6}(?:\.\d{1,6})?|-+|x|X|N/A|n/a|nan|\.", re.ASCII)
_FIGURE = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_DIGITS = re.compile(r"\d+")
_NOT_HOSTS = re.compile(
    r"(?:gpu|cuda|nic|mlx|ib|eth|rank|dev|device|step|epoch|iter|layer|block|channel|ring|tree|numa|cpu)\W*\d*", re.I
)


class PairTableReader(Lines):
    """Host pairs with one figure each."""

    name = "pair-table"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `pairs` a line or cell, quantity busbw, bytes/s."""
        rows: list[dict[str, Any]] = []
        together: list[dict[str, Any]] = []
        skip_to = 0
        for i, line in enumerate(lines):
            if i < skip_to:
                continue
            text = line.text
            if line.event is None and text[-1:] not in ".,;" and (found := _pair(text)) is not None:
                together.append(_row(artefact, line, *found))
                continue
            if text.lstrip()[:1] == "#":
                continue
            if len(together) >= _LEAST_LINES:
                rows.extend(together)
            together = []
            first = text.split(None, _LEAST_LINES - 1)
            if (
                line.event is None
                and len(first) == _LEAST_LINES
                and _are_hosts(first[:-1])
                and _are_hosts(text.split())
            ):
                cells, skip_to = _matrix(artefact, lines, i, text.split())
                rows.extend(cells)
        if len(together) >= _LEAST_LINES:
            rows.extend(together)
        if rows:
            yield rows_of("pairs", rows)


READER = PairTableReader()


def _pair(text: str) -> tuple[str, str, float] | None:
    """The two ends and the figure of a line that looks like a pair of hosts."""
    if len(text) > 256 or (found := _PAIR.match(text)) is None:
        return None
    a, b = found["a"], found["b"]
    if a == b or not _are_hosts([a, b]):
        return None
    if found["unit"] is None and found["between"].isspace() and "." not in found["value"]:
        return None
    return a, b, float(found["value"])


def _are_hosts(names: Sequence[str]) -> bool:
    """Names that differ in their numbers only: host0 and host1, 10.0.0.1 and 10.0.0.2."""
    if names[0][:1] != names[1][:1] or _DIGITS.search(names[0]) is None:
        return False
    return (
        len({_DIGITS.sub("0", name) for name in names}) == 1
        and len(set(names)) == len(names)
        and re.fullmatch(_NAME, names[0]) is not None
        and _NOT_HOSTS.fullmatch(names[0]) is None
    )


def _matrix(
    artefact: Artefact, lines: Sequence[PlainLine], header: int, names: list[str]
) -> tuple[list[dict[str, Any]], int]:
    """The cells of a square matrix under a line of names, and the index of the line after it."""
    rows: list[dict[str, Any]] = []
    at = header + 1
    for line in lines[at : at + len(names)]:
        tokens = line.text.split()
        if len(tokens) != len(names) + 1 or tokens[0] not in names or not all(map(_CELL.fullmatch, tokens[1:])):
            break
        for name, cell in zip(names, tokens[1:], strict=True):
            if name != tokens[0] and _FIGURE.fullmatch(cell):
                rows.append(_row(artefact, line, tokens[0], name, float(cell)))
        at += 1
    return (rows, at) if at - header > _LEAST_LINES - 1 else ([], header + 1)


def _row(artefact: Artefact, line: PlainLine, src: str, dst: str, value: float) -> dict[str, Any]:
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "quantity": "busbw",
        "src": src,
        "dst": dst,
        "value": value * GB,
        "unit": "bytes/s",
    }
