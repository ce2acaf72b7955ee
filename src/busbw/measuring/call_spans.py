"""When each rank made the calls that a run timed, as spans: a timeline of what its table says in one figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from busbw.execution.tracing import MOST_SPANS, Spans
from busbw.measuring.measure import Measured, MeasuredRow
from busbw.measuring.request import POINT_TO_POINT
from busbw.measuring.samples import Half
from busbw.measuring.truth import peers
from busbw.units import format_bytes

__all__ = ["CallSpans", "call_spans"]


class CallSpans(NamedTuple):
    """Spans of all rows, and of how many rows there are none."""

    spans: Spans
    untimed: int
    """Rows that an earlier process measured: it kept their figures, but not for this one when each call was made."""


def call_spans(rows: Iterable[tuple[Measured, MeasuredRow]], most: int = MOST_SPANS) -> CallSpans:
    """A span for each sample of each rank that takes part: one call, or a batch of short ones, which the name says.

    Begins are since the epoch on rank 0's clock. The first `most` of a rank are kept, the others counted.
    """
    spans, untimed = Spans(most), 0
    kept: dict[int, int] = {}
    for head, row in rows:
        halves = [(half, in_place) for half, in_place in ((row.out_of_place, ""), (row.in_place, " in place")) if half]
        untimed += bool(halves) and all(half.started_ns is None for half, _ in halves)
        for half, in_place in halves:
            size = f" {format_bytes(row.size_bytes)}" if row.size_bytes else ""
            calls = f" x {half.batch}" if half.batch > 1 else ""
            _add(spans, kept, head, half, f"{head.request.collective}{size}{in_place}{calls}")
    return CallSpans(spans, untimed)


def _add(spans: Spans, kept: dict[int, int], head: Measured, half: Half, name: str) -> None:
    if half.started_ns is None or half.took_ns is None:
        return
    between_ranks = head.request.collective in (*POINT_TO_POINT, "send_recv")
    for rank, (begins, lasts) in enumerate(zip(half.started_ns.tolist(), half.took_ns.tolist(), strict=True)):
        if between_ranks and peers(head.request, rank) == (None, None):
            continue
        room = spans.most - kept.get(rank, 0)
        found = [(0, name, begin, begin + last) for begin, last in zip(begins[:room], lasts[:room], strict=True)]
        spans.extend(rank, found, len(begins) - len(found))
        kept[rank] = kept.get(rank, 0) + len(found)
