"""DeepEP's tests (test_low_latency.py, test_internode.py, test_intranode.py): bandwidth and time of dispatch and combine, a line a rank.

GB/s is 1e9 bytes/s; bytes are the tokens that a rank sends, FP8 for dispatch and BF16 for combine, so the size of a row is not known.
Dispatch and combine are all_to_all_v. Tuning prints a rate over RDMA and one over NVLink for the same transfer: both are events, only
the best of each becomes a row, that over RDMA where there is one. Source: deepseek-ai/DeepEP tests/ (2025); outputs in public issues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from busbw.observations import rows_of
from busbw.readers.base import Item, Lines, Template
from busbw.readers.text_values import finite, nanoseconds
from busbw.units import GB

__all__ = ["READER"]

_LOW_LATENCY = "DeepEP tests/test_low_latency.py"
_NORMAL = "DeepEP tests/test_internode.py, test_intranode.py"
TEMPLATES: tuple[Template, ...] = (
    Template(
        "deepep.both",
        "Dispatch + combine bandwidth: {gbps:f} GB/s, avg_t={avg_us:f} us, min_t={min_us:f} us, max_t={max_us:f} us",
        _LOW_LATENCY,
        "info",
    ),
    Template(
        "deepep.apart",
        "Dispatch bandwidth: {dispatch_gbps:f} GB/s, avg_t={dispatch_us:f} us | Combine bandwidth: {combine_gbps:f} GB/s, avg_t={combine_us:f} us",
        _LOW_LATENCY,
        "info",
    ),
    Template(
        "deepep.send_recv",
        "Dispatch send/recv time: {dispatch_send_us:f} + {dispatch_recv_us:f} us | Combine send/recv time: {combine_send_us:f} + {combine_recv_us:f} us",
        _LOW_LATENCY,
        "info",
    ),
    Template("deepep.best", "[tuning] Best {what:s}: SMs {sms:d}, NVL chunk {nvl_chunk:d}, RDMA chunk {rdma_chunk:d}, {rest:s}: {rdma_gbps:f} GB/s (RDMA), {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.best", "[tuning] Best {what:s}: SMs {sms:d}, NVL chunk {nvl_chunk:d}, RDMA chunk {rdma_chunk:d}: {rdma_gbps:f} GB/s (RDMA), {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.best", "[tuning] Best {what:s}: SMs {sms:d}, NVL chunk {nvl_chunk:d}, {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.best", "[tuning] Best {what:s}: SMs {sms:d}, NVL chunk {nvl_chunk:d}: {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.tuning", "[tuning] SMs {sms:d}, NVL chunk {nvl_chunk:d}, RDMA chunk {rdma_chunk:d}, {rest:s}: {rdma_gbps:f} GB/s (RDMA), {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.tuning", "[tuning] SMs {sms:d}, NVL chunk {nvl_chunk:d}, RDMA chunk {rdma_chunk:d}: {rdma_gbps:f} GB/s (RDMA), {nvl_gbps:f} GB/s (NVL)", _NORMAL, "info"),
    Template("deepep.buffer", "Allocating buffer size: {megabytes:f} MB ...", _LOW_LATENCY, "info"),
    Template("deepep.timeout", "~DeepEP {what:s}timeout{rest:s}", "DeepEP csrc/kernels", "error"),
)  # fmt: skip
_TABLES = ("both", "dispatch", "combine", "best dispatch", "best combine")
"""What each table_index holds."""


class DeepepReader(Lines):
    """Results of DeepEP's tests."""

    name = "deepep"
    templates: Sequence[Template] = TEMPLATES

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """Rows of `measurements`: table 0 dispatch and combine together, 1 dispatch, 2 combine, 3 and 4 the best of tuning."""
        rows: list[dict[str, Any]] = []
        for event in events.select(["artefact", "line", "byte_offset", "event", "fields"]).to_pylist():
            name, fields = event.pop("event"), dict(event.pop("fields"))
            for what, rate, times in _figures(name, fields):
                value = finite(rate)
                rows.append(event | {
                    "tool": "deepep", "table_index": _TABLES.index(what), "collective": "all_to_all_v",
                    "algbw_bytes_per_s": None if value is None else value * GB,
                } | {column: nanoseconds(time) for column, time in times.items()})  # fmt: skip
        if rows:
            yield rows_of("measurements", rows)


READER = DeepepReader()


def _figures(name: str, fields: Mapping[str, str]) -> Iterator[tuple[str, str | None, dict[str, str | None]]]:
    """(what, GB/s, times) of an event."""
    if name == "deepep.both":
        times = {"time_ns": fields.get("avg_us"), "min_ns": fields.get("min_us"), "max_ns": fields.get("max_us")}
        yield "both", fields.get("gbps"), times
    elif name == "deepep.apart":
        for what in ("dispatch", "combine"):
            yield what, fields.get(f"{what}_gbps"), {"time_ns": fields.get(f"{what}_us")}
    elif name == "deepep.best":
        what = "best combine" if fields.get("what", "").lower().startswith("combine") else "best dispatch"
        yield what, fields.get("rdma_gbps") or fields.get("nvl_gbps"), {}
