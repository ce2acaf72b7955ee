"""Measured curves and pair matrices as SVG fragments to stand inside an HTML page.

Colours are the page's own (CSS variables), so one drawing serves light and dark. Same data in, same bytes out.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busbw.diagnosis.facts import Curve, Pair, Point
from busbw.hardware import ExpectedRange
from busbw.reports.predictions import draw_prediction
from busbw.reports.svg import (
    ALARM,
    BAND,
    FIRST,
    GOOD,
    HEAT_STEPS,
    INK,
    MUTED,
    PAPER,
    SECOND,
    drawing,
    heat_colour,
    label_decades,
    label_sizes,
    printable,
    to_svg,
)  # fmt: skip
from busbw.units import GB, format_bytes, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    from busbw.prediction import Predictions

__all__ = ["PairMatrix", "curve_svg", "odd_ends", "pair_matrices", "pair_svg"]

MAX_ENDS = 96
"""Rows and columns of a pair matrix that are drawn."""
MAX_WRITTEN = 24
"""Columns up to which the figures are written into the cells."""
MAX_POINTS = 400
"""Points of a curve that are drawn; of more, every k-th and those that a finding names."""
ODD = 1.25
"""From how many times worse than the median end on an end is marked as odd. A guess: rules judge, a drawing points."""

_SHOWN = {"bytes/s": (1 / GB, "GB/s"), "ns": (1e-3, "us"), "s": (1e6, "us"), "1": (1.0, "")}
"""Units of tables as the field prints them, with the factor."""


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Figures between ends, one quantity of one table. `values[i][j]` is from ends i to j; None: not measured."""

    title: str
    unit: str
    src: tuple[str, ...]
    dst: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low_is_bad: bool
    left_out: int
    """Ends beyond MAX_ENDS."""


def curve_svg(
    curve: Curve,
    expected: ExpectedRange | None = None,
    evidence: Collection[tuple[str, int]] = (),
    prefix: str = "c",
    healthy: Predictions | None = None,
) -> str | None:
    """Bus bandwidth over size, or time over size where a table has no bandwidth; None with less than two points.

    healthy: what the time model gives for the platform, drawn with its interval instead of the plateau of `expected`.
    evidence: (path, line) of rows that a finding names; their points are ringed. prefix keeps ids apart on one page.
    """
    rates = [p for p in curve.points if p.size_bytes and 0 < (p.busbw_bytes_per_s or 0) < math.inf]
    times = [p for p in curve.points if p.size_bytes and (p.time_ns or 0) > 0]
    by_rate = len(rates) > 1
    points = _thinned(rates if by_rate else times, evidence)
    if len({p.size_bytes for p in points}) < 2:
        return None

    def value(point: Point) -> float:
        return (point.busbw_bytes_per_s or 0) / GB if by_rate else (point.time_ns or 0) / 1e3

    with drawing(4.8, 3.0) as (figure, axes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(True, which="major")
        series = {
            False: ("out of place", FIRST, "o"),
            True: ("in place", SECOND, "s"),
            None: ("measured", FIRST, "o"),
        }
        for in_place, (label, colour, marker) in series.items():
            chosen = sorted((p for p in points if p.in_place is in_place), key=lambda p: p.size_bytes or 0)
            if chosen:
                xs, ys = [p.size_bytes or 0 for p in chosen], [value(p) for p in chosen]
                # The two mostly lie on one another: hollow marks and a broken line leave the other in sight.
                look: dict[str, Any] = (
                    {"linestyle": (0, (3, 2)), "markerfacecolor": "none", "markersize": 4.5}
                    if in_place
                    else {"markersize": 3}
                )
                axes.plot(xs, ys, color=colour, marker=marker, linewidth=1.3, label=label, zorder=3, **look)
        ringed = [p for p in points if (p.at.path, p.at.line) in evidence]
        if ringed:
            axes.plot(
                [p.size_bytes or 0 for p in ringed],
                [value(p) for p in ringed],
                linestyle="none",
                marker="o",
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=ALARM,
                markeredgewidth=1.2,
                label="named by a finding",
                zorder=4,
            )
        sizes = [p.size_bytes or 0 for p in points]
        if healthy is not None and by_rate:
            draw_prediction(axes, healthy, "healthy, by the time model", GOOD)
        elif expected is not None and by_rate and max(sizes) >= expected.reached_at_bytes:
            _draw_expected(axes, expected, max(sizes))
        label_sizes(axes, sizes)
        label_decades(axes)
        axes.set_xlabel("size of the larger buffer of a rank")
        axes.set_ylabel("busbw, GB/s" if by_rate else "time, us")
        axes.legend(loc="best", frameon=False, fontsize=8)
        kind = "bus bandwidth" if by_rate else "time"
        title = f"{kind} over size, {curve.collective or curve.tool}, {len(points)} points"
        return to_svg(figure, prefix, title, _described(points, value, "GB/s" if by_rate else "us", expected, ringed))


def _thinned(points: Sequence[Point], evidence: Collection[tuple[str, int]]) -> list[Point]:
    every = math.ceil(len(points) / MAX_POINTS)
    return [p for k, p in enumerate(points) if k % every == 0 or (p.at.path, p.at.line) in evidence][: 2 * MAX_POINTS]


def _described(
    points: Sequence[Point],
    value: Callable[[Point], float],
    unit: str,
    expected: ExpectedRange | None,
    ringed: Sequence[Point],
) -> str:
    """What the curve shows, in words."""
    first, last = min(points, key=lambda p: p.size_bytes or 0), max(points, key=lambda p: p.size_bytes or 0)
    told = [
        f"From {value(first):.3g} {unit} at {format_bytes(first.size_bytes or 0)} to {value(last):.3g} {unit} at {format_bytes(last.size_bytes or 0)}."
    ]
    if expected is not None:
        told.append(
            f"Expected from {format_bytes(expected.reached_at_bytes)} on: {format_rate(expected.low_bytes_per_s)} or more."
        )
    if ringed:
        told.append(f"{len(ringed)} points are named by a finding.")
    return " ".join(told)


def _draw_expected(axes: Axes, expected: ExpectedRange, largest: int) -> None:
    low, high = expected.low_bytes_per_s / GB, expected.high_bytes_per_s / GB
    left = min(expected.reached_at_bytes, largest / 2)
    label = f"expected, {format_rate(expected.low_bytes_per_s)} or more"
    axes.fill_between([left, largest], low, high, color=BAND, linewidth=0, zorder=1, label=label)
    axes.plot([left, largest], [low, low], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)


def pair_matrices(pairs: Sequence[Pair], most: int = 6) -> list[PairMatrix]:
    """The matrices among the pairs: quantities measured between at least two sources and two destinations.

    A list that names less than half of the pairs of its ends is no matrix.
    """
    tables: dict[tuple[str, str, str, str], list[Pair]] = {}
    for pair in pairs:
        if not math.isfinite(pair.value):
            continue
        tables.setdefault((pair.at.path, pair.tool, pair.quantity, pair.unit), []).append(pair)
    found: list[PairMatrix] = []
    for (_, tool, quantity, unit), listed in tables.items():
        src, dst = _ends(p.src for p in listed), _ends(p.dst for p in listed)
        if len(src) < 2 or len(dst) < 2 or len(found) == most:
            continue
        possible = len(src) * len(dst)
        if set(src) & set(dst):
            src = dst = _ends([*src, *dst])
            possible = len(src) * (len(src) - 1)
        if 2 * len({(p.src, p.dst) for p in listed if p.src != p.dst}) < possible:
            continue
        scale, shown_unit = _SHOWN.get(unit, (1.0, unit))
        cells = {(p.src, p.dst): p.value * scale for p in listed}
        kept_src, kept_dst = src[:MAX_ENDS], dst[:MAX_ENDS]
        values = tuple(tuple(cells.get((a, b)) for b in kept_dst) for a in kept_src)
        is_time = unit.lower() in ("us", "ns", "ms", "s") or "latency" in quantity.lower()
        title = ", ".join(word for word in (quantity.replace("_", " "), tool) if word)
        left_out = max(len(src), len(dst)) - max(len(kept_src), len(kept_dst))
        found.append(PairMatrix(title, shown_unit, kept_src, kept_dst, values, not is_time, left_out))
    return found


def odd_ends(matrix: PairMatrix) -> tuple[frozenset[int], frozenset[int]]:
    """Rows and columns whose median is ODD times worse than the median of all rows, of all columns.

    Nothing is odd among fewer than three, nor where half of them or more would be.
    """
    rows = [
        [v for j, v in enumerate(row) if v is not None and not _is_self(matrix, i, j)]
        for i, row in enumerate(matrix.values)
    ]
    columns = [
        [v for i, row in enumerate(matrix.values) if (v := row[j]) is not None and not _is_self(matrix, i, j)]
        for j in range(len(matrix.dst))
    ]
    return _odd(rows, matrix.low_is_bad), _odd(columns, matrix.low_is_bad)


def _odd(lines: Sequence[Sequence[float]], low_is_bad: bool) -> frozenset[int]:
    medians = {k: statistics.median(line) for k, line in enumerate(lines) if line}
    if len(medians) < 3:
        return frozenset()
    usual = statistics.median(medians.values())
    found = frozenset(k for k, m in medians.items() if _times_worse(m, usual, low_is_bad) >= ODD)
    return found if 2 * len(found) < len(medians) else frozenset()


def pair_svg(matrix: PairMatrix, prefix: str = "p") -> str:
    """A heat map, darker where worse, with the figures written in where there is room. The diagonal has no shade.

    Rows and columns that are odd as a whole are framed, and their names carry an arrow.
    """
    rows, columns = len(matrix.src), len(matrix.dst)
    off_diagonal = [
        v
        for i, row in enumerate(matrix.values)
        for j, v in enumerate(row)
        if v is not None and not _is_self(matrix, i, j)
    ]
    usual = statistics.median(off_diagonal) if off_diagonal else 0.0
    odd_rows, odd_columns = odd_ends(matrix)
    cell = 0.46 if columns <= 12 else 0.34 if columns <= 24 else max(6.4 / columns, 0.06)
    with drawing(1.2 + cell * columns, 0.9 + cell * 0.62 * rows) as (figure, axes):
        steps = [
            [
                None if v is None or _is_self(matrix, i, j) else _heat(v, usual, matrix.low_is_bad)
                for j, v in enumerate(row)
            ]
            for i, row in enumerate(matrix.values)
        ]
        _fill_cells(axes, steps, apart=columns <= MAX_WRITTEN)
        if columns <= MAX_WRITTEN:
            for i, row in enumerate(matrix.values):
                for j, value in enumerate(row):
                    if value is not None:
                        _write_figure(axes, (i, j), value, steps[i][j], 8 if columns <= 12 else 6.5)
        for i in odd_rows:
            axes.add_patch(_frame((0, i), columns, 1))
        for j in odd_columns:
            axes.add_patch(_frame((j, 0), 1, rows))
        axes.set_xlim(0, columns)
        axes.set_ylim(rows, 0)
        every = max(1, max(rows, columns) // 32)
        shown_rows = sorted({*range(0, rows, every), *odd_rows})
        shown_columns = sorted({*range(0, columns, every), *odd_columns})
        axes.set_yticks([i + 0.5 for i in shown_rows], [_end_label(matrix.src[i], i in odd_rows) for i in shown_rows])
        axes.set_xticks(
            [j + 0.5 for j in shown_columns], [_end_label(matrix.dst[j], j in odd_columns) for j in shown_columns]
        )
        if max((len(printable(e)) for e in matrix.dst), default=0) > 4:
            axes.tick_params(axis="x", labelrotation=60)
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("to", fontsize=8)
        axes.set_ylabel("from", fontsize=8)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for labels, odd, shown in (
            (axes.get_yticklabels(), odd_rows, shown_rows),
            (axes.get_xticklabels(), odd_columns, shown_columns),
        ):
            for label, k in zip(labels, shown, strict=True):
                if k in odd:
                    label.set_color(ALARM)
                    label.set_fontweight("bold")
        return to_svg(figure, prefix, f"{matrix.title}, {rows} by {columns}", _pairs_described(matrix, usual))


def _fill_cells(axes: Axes, steps: Sequence[Sequence[int | None]], *, apart: bool) -> None:
    """One shape for each shade, whatever the number of cells; apart: with paper between them."""
    from matplotlib.patches import PathPatch  # noqa: PLC0415 - loaded only where something is drawn
    from matplotlib.path import Path  # noqa: PLC0415

    corners: dict[int | None, list[tuple[float, float]]] = {}
    for i, row in enumerate(steps):
        for j, length in ((j, 1) for j in range(len(row))) if apart else _runs(row):
            corners.setdefault(row[j], []).extend([(j, i), (j + length, i), (j + length, i + 1), (j, i + 1), (j, i)])
    rectangle = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for step, points in corners.items():
        fill = heat_colour(step)
        edge, width = (PAPER, 0.8) if apart else (fill, 0.2)
        shape = Path(points, rectangle * (len(points) // 5))
        axes.add_artist(PathPatch(shape, facecolor=fill, edgecolor=edge, linewidth=width))


def _runs(steps: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """(first, length) of neighbours of one shade: a large matrix is drawn in few shapes."""
    first = 0
    for k in range(1, len(steps) + 1):
        if k == len(steps) or steps[k] != steps[first]:
            yield first, k - first
            first = k


def _write_figure(axes: Axes, at: tuple[int, int], value: float, step: int | None, size: float) -> None:
    ink = PAPER if step is not None and step >= HEAT_STEPS // 2 else INK
    text = f"{value:.3g}" if value < 1e3 else f"{value:.0f}"
    axes.text(at[1] + 0.5, at[0] + 0.5, text, color=ink, fontsize=size, ha="center", va="center")


def _frame(at: tuple[float, float], width: float, height: float) -> Rectangle:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - loaded only where something is drawn

    return Rectangle(at, width, height, fill=False, edgecolor=ALARM, linewidth=1.8, zorder=5, clip_on=False)


def _end_label(end: str, is_odd: bool) -> str:
    return f"> {printable(end, 12)}" if is_odd else printable(end)


def _pairs_described(matrix: PairMatrix, usual: float) -> str:
    """What the matrix shows, in words."""
    told = [f"Median of the pairs: {usual:.3g} {matrix.unit}.".replace(" .", ".")]
    odd_rows, odd_columns = odd_ends(matrix)
    if odd_rows:
        told.append(f"Odd as a source: {', '.join(matrix.src[i] for i in sorted(odd_rows)[:8])}.")
    if odd_columns:
        told.append(f"Odd as a destination: {', '.join(matrix.dst[j] for j in sorted(odd_columns)[:8])}.")
    return " ".join(told)


def _is_self(matrix: PairMatrix, i: int, j: int) -> bool:
    return matrix.src[i] == matrix.dst[j]


def _heat(value: float, usual: float, low_is_bad: bool) -> int:
    """Shade by how many times worse than the median a pair is: none up to 1.1 times, the last from 4 times on."""
    worse = _times_worse(value, usual, low_is_bad)
    if worse <= 1.1:
        return 0
    return min(HEAT_STEPS - 1, 1 + int((HEAT_STEPS - 2) * min(1.0, math.log(worse) / math.log(4))))


def _times_worse(value: float, usual: float, low_is_bad: bool) -> float:
    if low_is_bad:
        return usual / value if value > 0 else math.inf if usual > 0 else 1.0
    return value / usual if usual > 0 else 1.0


def _ends(names: Iterable[str]) -> tuple[str, ...]:
    """Each end once, numbers in their order."""
    return tuple(
        sorted(
            dict.fromkeys(names), key=lambda n: [(len(p), p) if p.isdigit() else (0, p) for p in re.split(r"(\d+)", n)]
        )
    )
