"""Benchmark tables of any file that busbw reads (a log, CSV or JSON of nccl-tests, rccl-tests, OSU ...), to lay beside predictions.

Such a file seldom says all that a prediction needs: a cluster may be given, else it is looked for in the catalogue by
what the file names, and where that fails each row is refused with its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from busbw.accuracy.measured import MeasuredRow, MeasuredTable, Refusal, allowed_by
from busbw.collectives import bus_factor, collective_named
from busbw.errors import InputError, Loss
from busbw.hardware import Cluster, cluster_alike, find_accelerator
from busbw.observations import Artefact, Rows
from busbw.prediction import PREDICTED, Situation, situation_of
from busbw.readers import Reading, read_artefact

__all__ = ["Observed", "ObservedRow", "as_measured", "observed_tables", "situation_said"]

_MOST_ROWS = 1_000_000
_MOST_RANKS = 1 << 22
_MOST_BYTES = 1 << 60
"""What `busbw.prediction` takes at most."""
_NS = 1e-9
_ALGORITHM_VARIABLES = ("NCCL_ALGO", "NCCL_PROTO")
_LIBRARIES = {"nccl-tests": "NCCL", "rccl-tests": "RCCL", "all_reduce_bench.py": "NCCL"}
_TABLES = frozenset({"measurements", "devices", "settings", "events"})
_NO_SWEEP = frozenset({"nccl-inspector"})
"""Tools whose rows are single calls of a job."""


@dataclass(frozen=True, slots=True)
class ObservedRow:
    """One row of a benchmark, one of its halves; time_s is None where the tool printed none and it does not follow."""

    line: int
    size_bytes: int | None
    time_s: float | None
    in_place: bool | None


@dataclass(frozen=True, slots=True)
class Observed:
    """One table of a benchmark, with what its file says of where it ran."""

    id: str
    path: str
    tool: str
    collective: str | None
    ranks: int | None
    nodes: int | None
    gpu: str | None
    """The one kind of GPU that the file names; None for none or several."""
    sockets: bool
    """Whether NCCL said that it uses TCP sockets."""
    variables: dict[str, str] = field(hash=False)
    """Variables of NCCL that the file shows with one value only."""
    rows: tuple[ObservedRow, ...]

    @property
    def has_both_halves(self) -> bool:
        """Whether the rows in place say again what others say out of place."""
        return len({row.in_place is True for row in self.rows}) > 1

    @property
    def shown_rows(self) -> tuple[ObservedRow, ...]:
        """Those out of place; where there are none, all."""
        both = self.has_both_halves
        return tuple(row for row in self.rows if not (both and row.in_place is True))


def observed_tables(artefact: Artefact) -> tuple[list[Observed], list[Loss]]:
    """The tables of one file in their order, and what of it could not be read."""
    reading = Reading(artefact)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    losses: list[Loss] = []
    for item in read_artefact(artefact, reading):
        if isinstance(item, Rows) and item.table in _TABLES:
            kept = found[item.table]
            batch = item.batch
            if item.table == "events":
                batch = batch.filter([name == "nccl.network" for name in batch.column("event").to_pylist()])
            if len(kept) + batch.num_rows > _MOST_ROWS:
                losses.append(Loss("too-large", artefact.path, None, f"more than {_MOST_ROWS:,} rows of {item.table}"))
                continue
            kept += batch.to_pylist()
    tables: dict[tuple[str, int, int | None], list[dict[str, Any]]] = {}
    for row in found["measurements"]:
        if row["tool"] not in _NO_SWEEP:
            tables.setdefault((row["tool"] or "", row["table_index"] or 0, row["ranks"]), []).append(row)
    gpus = {
        accelerator.name: row["name"]
        for row in found["devices"]
        if (accelerator := find_accelerator(row["name"])) is not None
    }
    sockets = any(dict(row["fields"] or ()).get("network", "").startswith("Socket") for row in found["events"])
    values: dict[str, set[str]] = {}
    for row in found["settings"]:
        if row["name"] in _ALGORITHM_VARIABLES and row["value"] is not None:
            values.setdefault(row["name"], set()).add(row["value"])
    variables = {name: said.pop() for name, said in values.items() if len(said) == 1}
    gpu = next(iter(gpus.values())) if len(gpus) == 1 else None
    ids = [artefact.path if len(tables) == 1 else f"{artefact.path}#{place}" for place in range(len(tables))]
    return [
        _table(name, artefact.path, key[0], rows, gpu, sockets, variables)
        for name, (key, rows) in zip(ids, tables.items(), strict=True)
    ], [*losses, *reading.losses]


def _table(  # noqa: PLR0917 - one call, the parts of one table
    name: str,
    path: str,
    tool: str,
    rows: list[dict[str, Any]],
    gpu: str | None,
    sockets: bool,
    variables: dict[str, str],
) -> Observed:
    first = rows[0]
    collective = collective_named(first["collective"])
    ranks = first["ranks"] if first["ranks"] and 0 < first["ranks"] <= _MOST_RANKS else None
    return Observed(
        id=name,
        path=path,
        tool=tool,
        collective=collective,
        ranks=ranks,
        nodes=first["nodes"],
        gpu=gpu,
        sockets=sockets,
        variables=variables,
        rows=tuple(
            ObservedRow(row["line"], _size(row["size_bytes"]), _time_s(row, collective, ranks), row["in_place"])
            for row in rows
        ),
    )


def _size(size: int | None) -> int | None:
    """A size that can be; None for damage."""
    return size if size and 0 < size < _MOST_BYTES else None


def _time_s(row: dict[str, Any], collective: str | None, ranks: int | None) -> float | None:
    if row["time_ns"] and row["time_ns"] > 0:
        return float(row["time_ns"]) * _NS
    size, algbw, busbw = row["size_bytes"], row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]
    if size and algbw and 0 < algbw < math.inf:
        return float(size / algbw)
    if size and busbw and 0 < busbw < math.inf and ranks and ranks > 1 and collective in PREDICTED:
        return float(size * bus_factor(collective, ranks) / busbw)
    return None


def situation_said(
    table: Observed, cluster: Cluster | None = None, nodes: int | None = None
) -> tuple[Cluster, Situation]:
    """The cluster a table ran on, and its situation.

    cluster: what the user says it was, of which as many nodes are taken as the ranks fill; None: a catalogued one with
    the GPU that the file names. nodes: what the user says; None: what the file says. Raises InputError.
    """
    nodes = nodes if nodes is not None else table.nodes
    if cluster is None:
        if table.ranks is None:
            raise InputError("the file does not say how many ranks took part. Pass --cluster and --nodes.")
        found = cluster_alike(table.gpu, table.ranks, nodes)
    else:
        hosts = nodes or max(1, -(-(table.ranks or 1) // cluster.node.gpus))
        found = replace(cluster, nodes=hosts, hosts=())
    ranks = table.ranks or found.gpus
    if ranks > found.gpus:
        raise InputError(f"the file has {ranks} ranks, {found.nodes} x {found.name} have {found.gpus} GPUs.")
    if nodes and nodes > 1 and ranks < found.gpus:
        raise InputError(f"{ranks} ranks on {nodes} nodes leave GPUs of each idle, which is not modelled.")
    where = situation_of(found, ranks)
    return found, replace(where, network="sockets") if table.sockets and where.domains > 1 else where


def as_measured(
    tables: Iterable[Observed], cluster: Cluster | None = None, nodes: int | None = None
) -> list[MeasuredTable]:
    """The tables as the score takes them: rows that it can predict, the others refused with their kind."""
    return [_measured(table, cluster, nodes) for table in tables]


def _measured(table: Observed, cluster: Cluster | None, nodes: int | None) -> MeasuredTable:
    rows: list[MeasuredRow] = []
    in_place: list[MeasuredRow] = []
    refused: list[Refusal] = []
    why = _refusal_of_all(table, cluster)
    platform, both = "", table.has_both_halves
    if why is None:
        try:
            found, where = situation_said(table, cluster, nodes)
            platform = found.node.accelerator.name
        except InputError as error:
            kind = "hardware-unknown" if cluster is None and table.ranks is not None else "layout-unknown"
            why = (kind, str(error))
    for row in table.rows:
        second = both and row.in_place is True
        if why is not None:
            if not second:
                refused.append(Refusal(row.line, *why))
        elif not row.size_bytes or not row.time_s:
            if not second:
                refused.append(Refusal(row.line, "not-measured", "size or time is not stated"))
        else:
            collective = table.collective or ""
            algorithms, protocols = allowed_by(table.variables)
            made = MeasuredRow(row.line, collective, row.size_bytes, row.time_s, where, algorithms, protocols)
            (in_place if second else rows).append(made)
    return MeasuredTable(
        id=table.id,
        campaign=table.path,
        tool=table.tool,
        library=_LIBRARIES.get(table.tool, ""),
        health="unknown",
        platform=platform,
        rows=tuple(rows),
        rows_in_place=tuple(in_place),
        refused=tuple(refused),
    )


def _refusal_of_all(table: Observed, cluster: Cluster | None) -> tuple[str, str] | None:
    if table.collective is None and table.tool in _LIBRARIES:
        return "layout-unknown", "the file does not say which collective it measured; keep the command with the output"
    if table.collective not in PREDICTED:
        return "unsupported", f"{table.collective or table.tool}: not a collective that the model covers"
    if table.ranks == 1:
        return "not-measured", "one rank moves nothing"
    if table.ranks is None and cluster is None:
        return "layout-unknown", "the file does not say how many ranks took part; pass --cluster and --nodes"
    if cluster is None and find_accelerator(table.gpu) is None:
        named = "names no GPU" if table.gpu is None else f"names {table.gpu}"
        return "hardware-unknown", f"the file {named} that the catalogue knows; pass --cluster"
    return None
