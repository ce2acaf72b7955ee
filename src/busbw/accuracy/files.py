"""What `busbw score` reads: measured/1 tables, workload files, and every benchmark table that a reader finds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbw.accuracy.curves import kernel_curves
from busbw.accuracy.measured import WORKLOADS, MeasuredTable, Refusal, read_measured
from busbw.accuracy.observed import Observed, as_measured, observed_tables
from busbw.accuracy.workloads import TrainingRow, read_rows
from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.observations import Artefact
from busbw.prediction import Curve
from busbw.readers import find_artefacts

__all__ = ["Scorable", "read_scorable"]

_MOST_JSON_BYTES = 64 << 20
_MOST_ROWS = 100_000
_LONGEST_ID = 200


@dataclass(slots=True)
class Scorable:
    """What the files hold."""

    tables: list[MeasuredTable] = field(default_factory=list)
    """measured/1."""
    observed: list[MeasuredTable] = field(default_factory=list)
    """Tables of benchmarks that readers found; whether they are of something healthy is not known."""
    workloads: list[MeasuredTable] = field(default_factory=list)
    """Files of training steps or requests; what cannot be predicted is refused, row by row."""
    curves: list[Curve] = field(default_factory=list)
    """Of a collectives.parquet, to fit to."""
    unread: list[str] = field(default_factory=list)
    """Why a file gave nothing."""


def read_scorable(
    paths: Sequence[str], cluster: Cluster | None = None, nodes: int | None = None, spool: Path | None = None
) -> Scorable:
    """Everything below the paths that can be scored. cluster and nodes: where logs were measured, as the user says it.

    spool: a folder for what archives hold. Raises InputError for a path that does not exist.
    """
    artefacts, losses = find_artefacts(paths, spool)
    found = Scorable(unread=[str(loss) for loss in losses])
    nothing: list[str] = []
    for artefact in artefacts:
        try:
            if artefact.path.endswith(".parquet"):
                found.curves += kernel_curves(artefact.file)
                continue
            document = _document(artefact)
            if document is not None and document.get("kind") in WORKLOADS:
                found.workloads.append(_workload(document, artefact))
            elif document is not None and isinstance(document.get("hardware"), dict):
                found.tables.append(read_measured(artefact.file))
            else:
                _add_observed(found, artefact, cluster, nodes, nothing)
        except InputError as error:
            found.unread.append(str(error))
    if nothing:
        shown = ", ".join(nothing[:4]) + (f" and {len(nothing) - 4} more" if len(nothing) > 4 else "")
        found.unread.append(f"{shown}: no table of a benchmark that could be scored.")
    return found


def _add_observed(
    found: Scorable, artefact: Artefact, cluster: Cluster | None, nodes: int | None, nothing: list[str]
) -> None:
    tables: list[Observed]
    tables, losses = observed_tables(artefact)
    found.unread += [str(loss) for loss in losses if tables or loss.kind in ("unreadable", "damaged", "truncated")]
    if tables:
        found.observed += as_measured(tables, cluster, nodes)
    else:
        nothing.append(artefact.path)


def _document(artefact: Artefact) -> Mapping[str, Any] | None:
    """The object of a JSON file with rows; None for another file."""
    if artefact.size_bytes > _MOST_JSON_BYTES or not artefact.head(64).lstrip().startswith(b"{"):
        return None
    try:
        document = json.loads(artefact.file.read_bytes())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("rows"), list) else None


def _workload(document: Mapping[str, Any], artefact: Artefact) -> MeasuredTable:
    kind = document["kind"]
    named = document.get("id")
    name = named[:_LONGEST_ID] if isinstance(named, str) and named else artefact.path
    rows = document["rows"][:_MOST_ROWS]
    steps: list[TrainingRow] = []
    if kind == "training":
        steps, refused = read_rows({"id": name, "rows": rows})
    else:
        refused = [
            Refusal(_row_id(row, place), "unsupported", "serving: requests are not predicted yet")
            for place, row in enumerate(rows)
        ]
    if len(document["rows"]) > _MOST_ROWS:
        refused.append(Refusal(None, "layout-unknown", f"more than {_MOST_ROWS} rows; the rest was left out"))
    return MeasuredTable(
        id=name,
        campaign=name,
        tool=kind,
        library="",
        health="unknown",
        platform="",
        rows=(),
        refused=tuple(refused),
        training=tuple(steps),
    )


def _row_id(row: Any, place: int) -> int | str:
    named = row.get("id") if isinstance(row, dict) else None
    return named[:_LONGEST_ID] if isinstance(named, str) and named else place
