"""The rings and trees of a plan as one SVG: a channel a panel; a tree in levels, anything else round a circle."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.collectives.shapes import Shape

__all__ = ["plan_svg"]

_PANEL = 260.0
_RADIUS = 95.0
_DOT = 9.0
_MOST_RANKS = 128
"""More ranks are no picture any more."""
_MOST_PANELS = 12
_COLUMNS = 4


def plan_svg(name: str, shapes: Sequence[Shape]) -> str:
    """The drawing as a document of its own; same shapes in, same bytes out. Raises InputError for more than 128 ranks."""
    if shapes and shapes[0].ranks > _MOST_RANKS:
        raise InputError(f"{shapes[0].ranks} ranks can't be drawn so that one can read it; at most {_MOST_RANKS}")
    kept = shapes[:_MOST_PANELS]
    columns = min(_COLUMNS, max(len(kept), 1))
    rows = max(1, math.ceil(len(kept) / columns))
    width, height = columns * _PANEL, rows * (_PANEL + 30) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        'font-family="DejaVu Sans, sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#3b6ea5"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14">{escape(name)}</text>',
    ]
    for number, shape in enumerate(kept):
        left, top = number % columns * _PANEL, 40 + number // columns * (_PANEL + 30)
        parts += _panel(shape, left, top)
    if len(shapes) > len(kept):
        parts.append(f'<text x="12" y="{height - 8:g}">and {len(shapes) - len(kept)} channels more</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(shape: Shape, left: float, top: float) -> list[str]:
    places = _levels(shape) if "tree" in shape.name else _circle(shape)
    parts = [
        f'<g transform="translate({left:g} {top:g})">',
        f'<text x="12" y="14">channel {shape.channel}: {escape(shape.name)}</text>',
    ]
    for src, dst in shape.edges:
        (x1, y1), (x2, y2) = places[src], places[dst]
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        dx, dy = (x2 - x1) / length * _DOT, (y2 - y1) / length * _DOT
        parts.append(
            f'<path d="M{x1 + dx:.1f} {y1 + dy:.1f}L{x2 - dx:.1f} {y2 - dy:.1f}" stroke="#3b6ea5" fill="none" marker-end="url(#tip)"/>'
        )
    for rank, (x, y) in sorted(places.items()):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT:g}" fill="#eef3f8" stroke="#1f2d3d"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" font-size="9">{rank}</text>')
    return [*parts, "</g>"]


def _ring_order(shape: Shape) -> list[int]:
    """Ranks in the order of the ring if it is one, by number otherwise."""
    met = sorted({rank for edge in shape.edges for rank in edge})
    if not shape.name.startswith("ring"):
        return met
    after, order = dict(shape.edges), [met[0]]
    while len(order) < len(met):
        order.append(after[order[-1]])
    return order


def _circle(shape: Shape) -> dict[int, tuple[float, float]]:
    order = _ring_order(shape)
    middle = _PANEL / 2
    return {
        rank: (
            middle + _RADIUS * math.sin(2 * math.pi * place / len(order)),
            middle + 10 - _RADIUS * math.cos(2 * math.pi * place / len(order)),
        )
        for place, rank in enumerate(order)
    }


def _levels(shape: Shape) -> dict[int, tuple[float, float]]:
    """Levels from the root: where all paths begin, or end, or the middle of a tree used both ways."""
    near: dict[int, set[int]] = defaultdict(set)
    into: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    for src, dst in shape.edges:
        near[src].add(dst)
        near[dst].add(src)
        into[dst] += 1
        out[src] += 1
    roots = [rank for rank in near if not into[rank]] if len([rank for rank in near if not into[rank]]) == 1 else []
    roots = roots or [rank for rank in near if not out[rank]]
    root = roots[0] if len(roots) == 1 else min(near, key=lambda rank: (_depth(near, rank), rank))
    levels = [[root]]
    met = {root}
    while True:
        below = [other for rank in levels[-1] for other in sorted(near[rank]) if other not in met]
        if not below:
            break
        met |= set(below)
        levels.append(below)
    step = (_PANEL - 60) / max(len(levels) - 1, 1)
    return {
        rank: (_PANEL * (place + 1) / (len(level) + 1), 40 + depth * step)
        for depth, level in enumerate(levels)
        for place, rank in enumerate(level)
    }


def _depth(near: dict[int, set[int]], root: int) -> int:
    level, met, depth = {root}, {root}, 0
    while level:
        level = {other for rank in level for other in near[rank]} - met
        met |= level
        depth += 1
    return depth
