"""What a reader is: the one interface behind which every format lives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from busbw.errors import Loss
from busbw.hardware.formats import NcclGraphs, NcclTopology, TopologyMatrix
from busbw.observations import Artefact, Rows

__all__ = [
    "EventReader",
    "FallbackReader",
    "FileReader",
    "Item",
    "LineReader",
    "Lines",
    "PlainLine",
    "TableReader",
    "Template",
    "Topology",
    "place",
    "place_and_host",
]

Topology = TopologyMatrix | NcclTopology | NcclGraphs


Item = Rows | Loss | Topology
"""What a reader yields: rows of a table, damage it met, or the topology of a node."""


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of one message, as data. Pattern language: busbw/scan/line_template.hpp."""

    event: str
    """What the message means, `source.meaning`, such as `nccl.ib_completion`."""
    pattern: str
    source: str = ""
    """Where the message comes from: file and function of the program that prints it, and versions."""
    level: str | None = None
    """info, warning or error, for lines that carry no level of their own."""
    table: str | None = None
    """The table that its lines become rows of; None: events. With a table the pattern begins at the start of the message and is tried before
    all those without. A field named like a column of the table becomes that column; the rest is for `TableReader.columns`, or dropped."""


@dataclass(frozen=True, slots=True)
class PlainLine:
    """A line without NCCL's marker, launcher prefixes taken off."""

    number: int
    byte_offset: int
    text: str
    rank: int | None
    host: str | None
    event: str | None
    """The template that took it, if one did."""


def place(artefact: Artefact, line: PlainLine) -> dict[str, Any]:
    """The columns that say where a row comes from."""
    return {"artefact": artefact.sha256, "line": line.number, "byte_offset": line.byte_offset}


def place_and_host(artefact: Artefact, line: PlainLine, host: str | None) -> dict[str, Any]:
    """The same, and the host that the row speaks of."""
    return place(artefact, line) | {"host": host}


@runtime_checkable
class FileReader(Protocol):
    """Reads a file that is one document: JSON, XML."""

    name: str

    def sniff(self, head: bytes) -> bool:
        """Whether these first 64 KiB are this format. By content, never by name."""
        ...

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Everything the file holds. Damage is yielded, not raised."""
        ...


@runtime_checkable
class LineReader(Protocol):
    """Reads lines and blocks of lines that stand anywhere in a text. All line readers share one scan of the file.

    `signature` says which plain lines make the reader worth calling. It sees the shape of a line, in which every digit is 0: it must not tell
    digits apart.
    """

    name: str
    templates: Sequence[Template]
    signature: re.Pattern[str] | None
    """`read_lines` is called only if some plain line matches; None: never."""

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """Rows of other tables that follow from this reader's events (schema of `events`)."""
        ...

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Blocks found among the plain lines of a file, in order."""
        ...


class Lines:
    """What most line readers have in common: subclass it and give what differs. Finds nothing by itself."""

    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = None

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """Nothing but the events themselves."""
        return iter(())

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """No blocks: this reader's lines are taken by templates alone."""
        return iter(())


@runtime_checkable
class TableReader(LineReader, Protocol):
    """A line reader with templates that have a table, where fields and columns are not the same."""

    def columns(self, table: str, fields: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
        """The columns of that table, from the fields of many lines that one template took; those it does not have are dropped.

        Fields by type, NULL where there is no such value: d and i int64, f double, x, w and s string, k dictionary of strings. Columns are
        of the table's type or of one that casts to it. Where a line stands and who wrote it is added to them.
        """
        ...


@runtime_checkable
class EventReader(LineReader, Protocol):
    """A line reader that knows more of its events than its templates can say."""

    def completed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The same events, row by row, with fields that their whole text tells, such as the device in front of the message."""
        ...


@runtime_checkable
class FallbackReader(LineReader, Protocol):
    """A line reader whose templates are tried after those of all others."""

    fallback: bool
