"""Where the regions of a schedule lie in a rank's buffers, and what is copied before and after.

In place: `data` is the buffer that input and output share. Out of place: it is the output (all_reduce, all_gather, broadcast, moe_*), where the
rank's own input is copied first; scratch for those whose output is smaller or not everywhere (reduce_scatter, reduce, gather, scatter), and
what is asked for is copied out at the end. Counts are in chunks of the plan: a chunk of the schedule is cut into as many as its pipelines and channels need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from busbw.collectives.expressions import IntArray
from busbw.collectives.plan import BlockBuilder, Span
from busbw.collectives.plan import Buffer as PlanBuffer
from busbw.collectives.schedule import BoundSchedule, Channels, Node, Par, Pipeline, Region, Seq, Transfer

__all__ = ["EXPERTS", "Emit", "Layout", "counts_of", "experts_of", "refinement_of"]

Emit: TypeAlias = Callable[[BlockBuilder], None]
"""Adds operations to a block."""
EXPERTS = ("moe_dispatch", "moe_combine")


def counts_of(bound: BoundSchedule) -> IntArray | None:
    """counts[s, d] of an all_to_all_v; without a table of them every block is one chunk."""
    if bound.schedule.kind != "all_to_all_v":
        return None
    table = dict(bound.schedule.tables).get("counts")
    each = np.full((bound.ranks, bound.ranks), bound.chunks // bound.ranks, np.int64)
    return each if table is None else table.array


def experts_of(bound: BoundSchedule) -> tuple[IntArray, IntArray]:
    """(has[t, r]: rank r has a part of token t before; gets[t, r]: it must have it after) of moe_dispatch and moe_combine, 0 or 1."""
    tables = {name: table.array for name, table in bound.schedule.tables}
    wanted = tables["wanted"]
    at_home = (tables["home"][:, None] == np.arange(bound.ranks)).astype(np.int64)
    if bound.schedule.kind == "moe_dispatch":
        return at_home, wanted
    return wanted, at_home * wanted.any(axis=1, keepdims=True)


def refinement_of(bound: BoundSchedule) -> int:
    """Into how many slices the plan cuts each chunk of the schedule, so that pipelines count in whole chunks."""

    def parts(node: Node) -> int:
        if isinstance(node, Transfer):
            return 1
        if isinstance(node, Seq | Par):
            return math.lcm(1, *(parts(child) for child in node.children))
        if isinstance(node, Pipeline):
            return bound.value(node.parts) * parts(node.body)
        return (bound.value(node.count) if isinstance(node, Channels) else 1) * parts(node.body)

    return parts(bound.schedule.body)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the regions of a schedule lie in a rank's buffers, and what is copied before and after. Counts in chunks of the plan."""

    rank: int
    fine: int
    places: Mapping[Region, tuple[PlanBuffer, int, int]]  # buffer, first chunk, chunks
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    before: tuple[tuple[Span, Span], ...] = ()
    after: tuple[tuple[Span, Span], ...] = ()

    @staticmethod
    def of(bound: BoundSchedule, rank: int, in_place: bool) -> Layout:
        """The layout of a rank."""
        fine = refinement_of(bound)
        whole, own = bound.chunks * fine, bound.value(bound.schedule.scratch) * fine
        each = whole // bound.ranks
        kind = bound.schedule.kind
        i, o, s = PlanBuffer.INPUT, PlanBuffer.OUTPUT, PlanBuffer.SCRATCH
        mine = (rank * each, each)
        scratch = {Region.SCRATCH: (s, 0, own)}
        if kind in ("all_to_all", "all_to_all_v", "send_recv"):
            places = {Region.INPUT: (i, 0, whole), Region.OUTPUT: (o, 0, whole), **scratch}
            counts = counts_of(bound)
            if counts is not None:
                return Layout(
                    rank, fine, places, int(counts[rank].sum()) * fine, int(counts[:, rank].sum()) * fine, own
                )
            return Layout(rank, fine, places, whole, whole, own)
        if kind == "barrier":
            return Layout(rank, fine, {Region.DATA: (s, own, whole), **scratch}, 0, 0, own + whole)
        sizes = {
            "all_gather": (each, whole), "reduce_scatter": (whole, each), "gather": (each, whole), "scatter": (whole, each),
        }.get(kind, (whole, whole))  # fmt: skip
        data = PlanBuffer.INPUT if kind == "reduce_scatter" else PlanBuffer.OUTPUT
        if in_place:
            return Layout(rank, fine, {Region.DATA: (data, 0, whole), **scratch}, *sizes, own)
        if kind in EXPERTS:
            has = np.flatnonzero(experts_of(bound)[0][:, rank])
            runs = np.split(has, np.flatnonzero(np.diff(has) != 1) + 1) if len(has) else []
            own_tokens = tuple(
                (Span(i, int(run[0]) * fine, len(run) * fine), Span(o, int(run[0]) * fine, len(run) * fine))
                for run in runs
            )
            return Layout(rank, fine, {Region.DATA: (o, 0, whole), **scratch}, whole, whole, own, own_tokens)
        aside = kind in ("reduce_scatter", "reduce", "gather", "scatter")
        place = (s, own, whole) if aside else (o, 0, whole)
        at = place[1]
        brings = rank == bound.root if kind in ("broadcast", "scatter") else True
        takes = aside and (rank == bound.root if kind in ("reduce", "gather") else True)
        first = mine if kind in ("all_gather", "gather") else (0, whole)
        last = mine if kind in ("reduce_scatter", "scatter") else (0, whole)
        before = ((Span(i, 0, first[1]), Span(place[0], at + first[0], first[1])),) if brings else ()
        after = ((Span(place[0], at + last[0], last[1]), Span(o, 0, last[1])),) if takes else ()
        return Layout(rank, fine, {Region.DATA: place, **scratch}, *sizes, own + whole if aside else own, before, after)

    def span(self, region: Region, index: int, count: int) -> Span:
        """Chunks of the schedule, as chunks of the plan."""
        buffer, first, _ = self.places[region]
        return Span(buffer, first + index * self.fine, count * self.fine)
