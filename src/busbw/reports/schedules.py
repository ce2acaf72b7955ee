"""A schedule drawn: the trees of one root level by level, or the ranks on a circle with the messages of the first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from busbw.reports.svg import FIRST, INK, MUTED, SECOND, drawing, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from busbw.synthesis import Candidate, Forest

__all__ = ["schedule_svg"]

_WIDTH, _HEIGHT = 8.0, 4.6
_MOST_LABELS = 80
"""Ranks of a level, or on the circle, up to which each has its number written."""
_MOST_MESSAGES = 2000


def schedule_svg(candidate: Candidate, title: str, prefix: str = "s") -> str:
    """The winner of a design as an <svg>: for a forest the first tree of its first root, else the first step."""
    with drawing(_WIDTH, _HEIGHT, bare=True) as (figure, axes):
        said = _draw_tree(axes, candidate.forest) if candidate.forest is not None else _draw_step(axes, candidate)
        axes.text(0.2, _HEIGHT - 0.25, title, color=INK, fontsize=10, va="center")
        axes.text(0.2, 0.18, said, color=MUTED, fontsize=8, va="center")
        return to_svg(figure, prefix, title, said)


def _draw_tree(axes: Axes, forest: Forest) -> str:
    from busbw.synthesis import tree_depths  # noqa: PLC0415 - the type alone is known above

    parent = forest.parent[0]
    depth = tree_depths(forest.root[:1], forest.parent[:1])[0]
    deepest = int(depth.max())
    place = np.zeros(len(parent))
    at: dict[int, tuple[float, float]] = {}
    width = _widths(forest)
    used = forest.way[0][forest.way[0] >= 0]
    widest = width[used].max()
    for level in range(deepest + 1):
        members = np.flatnonzero(depth == level)
        above = np.where(parent[members] >= 0, place[parent[members]], 0.5)
        members = members[np.lexsort((members, above))]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        height = _HEIGHT - 0.7 - level * (_HEIGHT - 1.3) / max(1, deepest)
        for rank in map(int, members):
            at[rank] = (0.3 + place[rank] * (_WIDTH - 0.6), height)
    for rank, (x, y) in at.items():
        above_rank = int(parent[rank])
        if above_rank >= 0:
            colour = FIRST if width[forest.way[0, rank]] == widest else SECOND
            axes.plot([at[above_rank][0], x], [at[above_rank][1], y], color=colour, linewidth=0.6, zorder=1)
    for level in range(deepest + 1):
        members = np.flatnonzero(depth == level)
        crowded = len(members) > _MOST_LABELS
        for rank in map(int, members):
            x, y = at[rank]
            if crowded:
                axes.plot([x], [y], marker="o", markersize=1.6, color=INK, zorder=2)
            else:
                axes.text(x, y, str(rank), fontsize=6 if len(members) > 24 else 8, color=INK, ha="center", va="center",
                          zorder=3, bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": MUTED, "linewidth": 0.4})  # fmt: skip
    more = f"; {len(forest.root) - 1} more trees" if len(forest.root) > 1 else ""
    narrow = "; the second colour: over narrower links" if (width[used] < widest).any() else ""
    return f"tree of rank {int(forest.root[0])}, depth {deepest}{more}{narrow}"


def _widths(forest: Forest) -> NDArray[np.int64]:
    """The narrowest link of every way."""
    return np.asarray(np.minimum.reduceat(forest.graph.capacity[forest.way_edges], forest.way_begin[:-1]), np.int64)


def _draw_step(axes: Axes, candidate: Candidate) -> str:
    from busbw.collectives import expand  # noqa: PLC0415

    bound = candidate.bind()
    moves = expand(bound, whole=True)
    away = moves.src != moves.dst
    first = moves.step[away].min()
    chosen = away & (moves.step == first)
    pairs = np.unique(np.stack([moves.src[chosen], moves.dst[chosen]], 1), axis=0)
    centre, radius = (_WIDTH / 2, _HEIGHT / 2 - 0.02), _HEIGHT / 2 - 0.65
    angle = [math.pi / 2 - 2 * math.pi * rank / bound.ranks for rank in range(bound.ranks)]
    at = [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angle]
    for src, dst in pairs[:_MOST_MESSAGES]:
        axes.annotate(
            "", at[dst], at[src], arrowprops={"arrowstyle": "->", "color": FIRST, "lw": 0.6, "shrinkA": 4, "shrinkB": 4}
        )
    for rank, (x, y) in enumerate(at):
        if bound.ranks > _MOST_LABELS:
            axes.plot([x], [y], marker="o", markersize=1.6, color=INK)
        else:
            axes.text(x, y, str(rank), fontsize=7, color=INK, ha="center", va="center")
    return f"{candidate.name}: messages of the first of {candidate.steps} steps, {len(pairs)} in all"
