"""What runs measured, cell by cell, and what they said of where they ran: the input of every comparison."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from busbw.collectives import bus_factor, collective_named
from busbw.errors import InputError, Loss
from busbw.observations import Rows
from busbw.observations.store import Store
from busbw.readers import Reading, find_artefacts, read_artefact

__all__ = ["Cell", "Results", "results_of", "time_s"]

_MOST_ROWS = 2_000_000
_NS = 1e-9
_VERSIONS = {
    "nccl.version": "NCCL",
    "nccl.rccl_version": "RCCL",
    "nccl.cuda_driver": "CUDA driver",
    "driver.version": "GPU driver",
    "ofi.version": "aws-ofi-nccl",
}
"""Events that say which version ran, and what of."""
_MEASURED = (
    "tool", "tool_version", "collective", "size_bytes", "dtype", "redop", "ranks", "nodes", "in_place", "time_ns", "algbw_bytes_per_s",
    "busbw_bytes_per_s", "algorithm",
)  # fmt: skip


_SAMPLED = "collective, size_bytes, dtype, redop, ranks, nodes, in_place, algorithm, variant"


class Cell(NamedTuple):
    """What was measured: results of equal cells may be compared. None: the tool does not say."""

    tool: str | None
    collective: str | None
    size_bytes: int
    dtype: str | None
    redop: str | None
    ranks: int | None
    nodes: int | None
    in_place: bool | None
    algorithm: str | None = None
    variant: str | None = None
    """What else was chosen, such as cuda_graph."""


@dataclass(frozen=True, slots=True)
class Results:
    """One run: a file, a folder, or what a store keeps as one."""

    name: str
    """The path as the user gave it; of a store the first path that the run read."""
    run: str | None
    """Of a store."""
    created_ns: int | None
    """When it was put into the store, since the epoch."""
    times_s: Mapping[Cell, tuple[float, ...]]
    said: Mapping[str, frozenset[str]]
    """Versions, settings and hosts by name: what else may differ between two runs."""


def results_of(path: str, spool: Path | None = None) -> tuple[list[Results], list[Loss]]:
    """The runs at one path, earliest first, and what could not be read: a store has several, a file or folder is one.

    spool: a folder for what archives hold. Raises InputError for a path that does not exist, or a store without a run.
    """
    store = Store(path)
    if store.has_runs():
        runs, left_out = _of_store(store, path)
        return runs, [*store.problems(), *_not_compared(path, left_out)]
    artefacts, losses = find_artefacts([path], spool)
    tables: dict[str, list[pa.RecordBatch]] = defaultdict(list)
    rows = 0
    for artefact in artefacts:
        reading = Reading(artefact)
        for item in read_artefact(artefact, reading):
            if isinstance(item, Rows) and item.table in ("measurements", "settings", "events"):
                batch = item.batch
                if item.table == "events":
                    batch = batch.filter([name in _VERSIONS for name in batch.column("event").to_pylist()])
                rows += batch.num_rows
                if rows > _MOST_ROWS:
                    raise InputError(
                        f"{path}: more than {_MOST_ROWS:,} rows. Compare single files, or a store of them."
                    )
                tables[item.table].append(batch)
        losses += [loss for loss in reading.losses if loss not in losses]
    listed = {name: [row for batch in batches for row in batch.to_pylist()] for name, batches in tables.items()}
    measured = listed.get("measurements", ())
    times, said = _times(measured), _said(listed)
    losses = [*losses, *_not_compared(path, len(measured) - sum(map(len, times.values())))]
    return [Results(path, None, None, times, said)], losses


def _of_store(store: Store, path: str) -> tuple[list[Results], int]:
    runs: dict[str, dict[str, Any]] = {}
    for row in store.query(
        "SELECT run_id, min(path) AS path, any_value(created_ns) AS created_ns FROM runs GROUP BY run_id"
    ).to_pylist():
        runs[row["run_id"]] = {"path": row["path"], "created_ns": row["created_ns"], "tables": defaultdict(list)}
    read_by = "(SELECT DISTINCT run_id, artefact FROM runs)"
    events = ", ".join(f"'{name}'" for name in _VERSIONS)
    queries = {
        "measurements": f"SELECT run_id, {', '.join(_MEASURED)} FROM measurements JOIN {read_by} USING (artefact)",
        # A recorded run that summed up nothing itself: the median of each cell. Its samples are no repeats: they share a run.
        "samples": f"SELECT run_id, backend AS tool, NULL AS tool_version, {_SAMPLED}, quantile_cont(time_ns, 0.5) AS time_ns, "
        "NULL AS algbw_bytes_per_s, NULL AS busbw_bytes_per_s FROM samples WHERE run_id IS NOT NULL AND artefact NOT IN "
        f"(SELECT artefact FROM measurements WHERE artefact IS NOT NULL) GROUP BY run_id, backend, {_SAMPLED}",
        "settings": f"SELECT DISTINCT run_id, host, name, value FROM settings JOIN {read_by} USING (artefact)",
        "events": f"SELECT DISTINCT run_id, host, event, fields FROM events JOIN {read_by} USING (artefact) WHERE event IN ({events})",
    }
    for table, sql in queries.items():
        for batch in store.query(sql).to_batches(max_chunksize=100_000):
            for row in batch.to_pylist():
                runs[row["run_id"]]["tables"]["measurements" if table == "samples" else table].append(row)
    ordered = sorted(runs.items(), key=lambda item: (item[1]["created_ns"], item[0]))
    found = [
        Results(
            f"{path}: {run['path']}",
            name,
            run["created_ns"],
            _times(run["tables"]["measurements"]),
            _said(run["tables"]),
        )
        for name, run in ordered
    ]
    rows = sum(len(run["tables"]["measurements"]) for run in runs.values())
    return found, rows - sum(len(times) for result in found for times in result.times_s.values())


def _not_compared(path: str, rows: int) -> list[Loss]:
    """What is said of rows that lack a size or a time."""
    return [Loss("not-measured", path, None, "rows without a size or a time are not compared", rows)] if rows else []


def _times(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, tuple[float, ...]]:
    found: dict[Cell, list[float]] = defaultdict(list)
    for row in rows:
        seconds = time_s(row)
        if row["size_bytes"] is None or seconds is None:
            continue
        named = collective_named(row["collective"]) or row["collective"]
        cell = Cell(
            row["tool"],
            named,
            row["size_bytes"],
            row["dtype"],
            row["redop"],
            row["ranks"],
            row["nodes"],
            row["in_place"],
            row.get("algorithm"),
            row.get("variant"),
        )
        found[cell].append(seconds)
    return {cell: tuple(times) for cell, times in found.items()}


def time_s(row: Mapping[str, Any]) -> float | None:
    """Seconds of a row of `measurements`: as measured, or from its algorithm or bus bandwidth; None if nothing tells.

    size_bytes / algbw, or size_bytes * factor / busbw (`bus_factor`).

    >>> time_s({"time_ns": None, "size_bytes": 1000, "algbw_bytes_per_s": 2e9, "busbw_bytes_per_s": None})
    5e-07
    """
    if row["time_ns"] and row["time_ns"] > 0:
        return float(row["time_ns"]) * _NS
    size, algbw, busbw = row["size_bytes"], row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]
    if size and algbw and 0 < algbw < math.inf:
        return float(size / algbw)
    collective, ranks = collective_named(row.get("collective")), row.get("ranks")
    if size and busbw and 0 < busbw < math.inf and collective not in (None, "barrier") and ranks and ranks > 1:
        return float(size * bus_factor(collective, ranks) / busbw)
    return None


def _said(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in tables.get("measurements", ()):
        if row["tool_version"]:
            found[str(row["tool"])].add(row["tool_version"])
    for row in tables.get("settings", ()):
        if row["name"] and row["value"] is not None:
            found[row["name"]].add(row["value"])
    for row in tables.get("events", ()):
        version = dict(row["fields"] or ()).get("version")
        if version:
            found[_VERSIONS[row["event"]]].add(version)
    for table in ("settings", "events"):
        found["hosts"].update(row["host"] for row in tables.get(table, ()) if row["host"])
    return {name: frozenset(values) for name, values in found.items() if values}
