"""What a reader makes of a text: the helper that the tests of all readers share."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbw.errors import Loss
from busbw.observations import Artefact, Rows
from busbw.readers.base import FileReader, Item, LineReader, Topology
from busbw.readers.text import TextScan, scan_text

DATA = Path(__file__).parent / "data"
FIXTURES = Path(__file__).parent / "fixtures"


@dataclass
class Found:
    """Everything that came out, by table, with unknown (NULL) columns and the artefact's hash left out."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    topologies: list[Topology] = field(default_factory=list)

    def __getattr__(self, table: str) -> list[dict[str, Any]]:
        if table.startswith("_"):
            raise AttributeError(table)
        return self.tables.get(table, [])

    def events_named(self, event: str) -> list[dict[str, str]]:
        """The fields of every event of this name."""
        return [dict(row["fields"]) for row in self.events if row.get("event") == event]

    @property
    def loss_counts(self) -> dict[str, int]:
        return {loss.kind: loss.count for loss in self.losses}


def columns(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """The named columns of rows; None where unknown."""
    return [tuple(row.get(name) for name in names) for row in rows]


def read_text(reader: LineReader | FileReader, text: str | bytes, name: str = "input.txt") -> Found:
    """Reads a text as if it stood in a file that the user calls `name`."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input"
        file.write_bytes(data)
        artefact = Artefact.of(file, name)
        if isinstance(reader, LineReader):
            return _sorted(list(scan_text(artefact, TextScan([reader]))))
        return _sorted(list(reader.read(artefact)))


def _sorted(items: list[Item]) -> Found:
    found = Found()
    for item in items:
        if isinstance(item, Rows):
            rows = [
                {name: value for name, value in row.items() if value is not None and name != "artefact"}
                for row in item.batch.to_pylist()
            ]
            found.tables.setdefault(item.table, []).extend(rows)
        elif isinstance(item, Loss):
            found.losses.append(item)
        else:
            found.topologies.append(item)
    return found
