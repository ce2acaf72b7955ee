"""A timeline in the tables of measurements, so that simulated beside measured is a join.

`measurements` holds the run as a benchmark's row, `collectives` what each rank saw, `counters` what each link carried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from busbw import __version__
from busbw.collectives import COLLECTIVES, bus_factor
from busbw.hardware.cluster import Cluster
from busbw.observations import SCHEMAS, Rows, rows_of
from busbw.simulation.timeline import Timeline

__all__ = ["TOOL", "observations"]

TOOL = "busbw simulate"
"""In the columns `tool` and `source`: rows that nobody measured."""
_PS_PER_NS = 1000


def observations(timeline: Timeline) -> tuple[Rows, ...]:
    """The rows of a run. Times count from its start; a run that was stopped early has no row of `measurements`.

    Only a run of a schedule or a plan is a collective of some size; of other programs and graphs there are `counters` alone.
    `counters` has a row a link that carried anything, one link of each class where the run was folded (`labels` then says how many are alike).
    """
    found: list[Rows] = []
    collective, size = timeline.program.notes.get("collective"), timeline.program.notes.get("size_bytes")
    if collective is not None and size is not None:
        if timeline.stopped is None:
            found.append(rows_of("measurements", [_measurement(timeline, collective, int(size))]))
        found.append(_ranks(timeline, collective, int(size)))
    counters = list(_links(timeline))
    if counters:
        found.append(rows_of("counters", counters))
    return tuple(found)


def _measurement(timeline: Timeline, collective: str, size_bytes: int) -> dict[str, Any]:
    ranks, place = timeline.program.ranks, timeline.network.place
    row = {
        "tool": TOOL, "tool_version": __version__, "table_index": 0, "collective": collective, "size_bytes": size_bytes, "ranks": ranks,
        "time_ns": _ns(timeline.end_ps), "iterations": 1,
    }  # fmt: skip
    if isinstance(place, Cluster):
        row["nodes"] = -(-ranks // place.node.gpus)
    if collective != "barrier" and timeline.end_ps:
        algbw = size_bytes / timeline.time_s
        row["algbw_bytes_per_s"] = algbw
        if collective in COLLECTIVES:  # a plan may be of a custom one
            row["busbw_bytes_per_s"] = algbw * bus_factor(collective, ranks)
    return row


def _ranks(timeline: Timeline, collective: str, size_bytes: int) -> Rows:
    """A row of `collectives` a rank: all come at once unless they came late, and end when their last stream does."""
    ends, ranks, place = timeline.rank_ends_ps(), timeline.program.ranks, timeline.network.place
    ended = ends >= 0
    completed = np.where(ended, _ns(ends), 0)
    columns: dict[str, Any] = {
        "rank": np.arange(ranks, dtype=np.int32),
        "source": pa.repeat(TOOL, ranks), "ranks": np.full(ranks, ranks, np.int32), "seq": np.zeros(ranks, np.int64),
        "op": pa.repeat(collective, ranks), "is_p2p": pa.repeat(False, ranks), "size_bytes": np.full(ranks, size_bytes),
        "state": pa.array(np.where(ended, "completed", "started").tolist(), pa.string()), "started_ns": np.zeros(ranks, np.int64),
        "completed_ns": pa.array(completed, mask=~ended), "duration_ns": pa.array(completed, mask=~ended),
    }  # fmt: skip
    if isinstance(place, Cluster):
        columns["host"] = pa.array([place.host(rank // place.node.gpus) for rank in range(ranks)])
        columns["device"] = np.arange(ranks, dtype=np.int32) % place.node.gpus
    schema = SCHEMAS["collectives"]
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(ranks, field.type)
        for field in schema
    ]
    return Rows("collectives", pa.RecordBatch.from_arrays(arrays, schema=schema))


def _links(timeline: Timeline) -> Iterator[dict[str, Any]]:
    links, carried = timeline.link_bytes()
    _, busy = timeline.utilisation()
    alike = {"ranks_alike": str(timeline.folded)} if timeline.folded > 1 else {}
    for link, size, share in zip(links.tolist(), carried.tolist(), busy.tolist(), strict=True):
        name = timeline.network.link_name(link)
        yield {"device": name, "name": "simulated.link_bytes", "value": float(size), "labels": alike}
        yield {"device": name, "name": "simulated.link_utilisation", "value": float(share), "labels": alike}


def _ns(ps: Any) -> Any:
    """Whole nanoseconds nearest to picoseconds."""
    return (ps + _PS_PER_NS // 2) // _PS_PER_NS
