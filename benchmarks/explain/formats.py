"""Whether each format's fixture is read as it should be: by its reader, with its rows, without loss.

formats.json lists {"format", "file", "reader", "origin", "rows": {table: count}, "losses": [kinds]}; files lie beside it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["nonconforming", "what_is_read"]


def what_is_read(file: Path) -> tuple[list[str], dict[str, int], list[str]]:
    """Readers that found something in a file, rows a table, and kinds of losses, over all members if it is an archive."""
    from busbw.errors import Loss
    from busbw.observations import Rows
    from busbw.readers import Reading, find_artefacts, read_artefact

    artefacts, losses = find_artefacts([str(file)])
    readers: set[str] = set()
    kinds = {loss.kind for loss in losses}
    rows: Counter[str] = Counter()
    for artefact in artefacts:
        reading = Reading(artefact)
        for item in read_artefact(artefact, reading):
            if isinstance(item, Rows):
                rows[item.table] += item.batch.num_rows
            elif isinstance(item, Loss):
                kinds.add(item.kind)
        readers.update(reading.formats)
    return sorted(readers), dict(rows), sorted(kinds)


def nonconforming(listing: Path) -> tuple[list[str], int]:
    """What is not as the list says, in words, and how many formats it has."""
    formats: list[dict[str, Any]] = json.loads(listing.read_text(encoding="utf-8"))
    wrong = []
    for entry in formats:
        readers, rows, losses = what_is_read(listing.parent / entry["file"])
        if entry["reader"] not in readers:
            wrong.append(f"{entry['format']}: read by {', '.join(readers) or 'nobody'}, not by {entry['reader']}")
        elif rows != entry["rows"]:
            wrong.append(f"{entry['format']}: rows {rows}, not {entry['rows']}")
        elif losses != entry.get("losses", []):
            wrong.append(f"{entry['format']}: losses {losses}, not {entry.get('losses', [])}")
    return wrong, len(formats)
