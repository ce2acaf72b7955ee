"""Measured curves and pair matrices as SVG fragments to stand inside an HTML page.

Colours are the page's own (CSS variables), so one drawing serves light and dark. Same data in, same bytes out.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busbw.diagnosis.facts import Curve, Pair, Point
from busbw.hardware import ExpectedRange
from busbw.reports.excerpts import visible
from busbw.units import GB, format_bytes, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HEAT_STEPS", "PairMatrix", "curve_svg", "pair_matrices", "pair_svg"]

HEAT_STEPS = 8
"""Shades of a pair matrix, `--heat-0` (as it should be) to `--heat-7` (worst)."""
MAX_ENDS = 96
"""Rows and columns of a pair matrix that are drawn."""

_SHOWN = {"bytes/s": (1 / GB, "GB/s"), "ns": (1e-3, "us"), "s": (1e6, "us"), "1": (1.0, "")}
"""Units of tables as the field prints them, with the factor."""

# Stand-ins for the page's colours: values no other part of a drawing uses, replaced once the SVG is written.
_INK, _MUTED, _GRID, _BAND, _FIRST, _SECOND, _ALARM, _PAPER = (f"#0102{n:02x}" for n in range(8))
_VARIABLES = {
    _INK: "--ink",
    _MUTED: "--muted",
    _GRID: "--grid",
    _BAND: "--band",
    _FIRST: "--first",
    _SECOND: "--second",
    _ALARM: "--alarm",
    _PAPER: "--paper",
    **{f"#0103{n:02x}": f"--heat-{n}" for n in range(HEAT_STEPS)},
    "#0103ff": "--heat-none",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "busbw",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}


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
    curve: Curve, expected: ExpectedRange | None = None, evidence: Collection[tuple[str, int]] = (), prefix: str = "c"
) -> str | None:
    """Bus bandwidth over size, or time over size where a table has no bandwidth; None with less than two points.

    evidence: (path, line) of rows that a finding names; their points are ringed. prefix keeps ids apart on one page.
    """
    rates = [p for p in curve.points if p.size_bytes and 0 < (p.busbw_bytes_per_s or 0) < math.inf]
    times = [p for p in curve.points if p.size_bytes and (p.time_ns or 0) > 0]
    by_rate = len(rates) > 1
    points = rates if by_rate else times
    if len({p.size_bytes for p in points}) < 2:
        return None

    def value(point: Point) -> float:
        return (point.busbw_bytes_per_s or 0) / GB if by_rate else (point.time_ns or 0) / 1e3

    with _drawing(5.6, 3.1) as (figure, axes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(True, which="major")
        series = {
            False: ("out of place", _FIRST, "o"),
            True: ("in place", _SECOND, "s"),
            None: ("measured", _FIRST, "o"),
        }
        for in_place, (label, colour, marker) in series.items():
            chosen = sorted((p for p in points if p.in_place is in_place), key=lambda p: p.size_bytes or 0)
            if chosen:
                xs, ys = [p.size_bytes or 0 for p in chosen], [value(p) for p in chosen]
                axes.plot(xs, ys, color=colour, marker=marker, markersize=3, linewidth=1.3, label=label, zorder=3)
        ringed = [p for p in points if (p.at.path, p.at.line) in evidence]
        if ringed:
            axes.plot(
                [p.size_bytes or 0 for p in ringed],
                [value(p) for p in ringed],
                linestyle="none",
                marker="o",
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=_ALARM,
                markeredgewidth=1.2,
                label="named by a finding",
                zorder=4,
            )
        sizes = [p.size_bytes or 0 for p in points]
        if expected is not None and by_rate and max(sizes) >= expected.reached_at_bytes:
            _draw_expected(axes, expected, max(sizes))
        _label_sizes(axes, sizes)
        _label_decades(axes)
        axes.set_xlabel("size of the larger buffer of a rank")
        axes.set_ylabel("busbw, GB/s" if by_rate else "time, us")
        axes.legend(loc="best", frameon=False, fontsize=8)
        kind = "bus bandwidth" if by_rate else "time"
        return _svg(figure, prefix, f"{kind} over size, {curve.collective or curve.tool}, {len(points)} points")


def _draw_expected(axes: Axes, expected: ExpectedRange, largest: int) -> None:
    low, high = expected.low_bytes_per_s / GB, expected.high_bytes_per_s / GB
    left = min(expected.reached_at_bytes, largest / 2)
    label = f"expected, {format_rate(expected.low_bytes_per_s)} or more"
    axes.fill_between([left, largest], low, high, color=_BAND, linewidth=0, zorder=1, label=label)
    axes.plot([left, largest], [low, low], color=_MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)


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


def pair_svg(matrix: PairMatrix, prefix: str = "p") -> str:
    """A heat map, darker where worse, with the figures written in where there is room. The diagonal has no shade."""
    rows, columns = len(matrix.src), len(matrix.dst)
    off_diagonal = [
        v
        for i, row in enumerate(matrix.values)
        for j, v in enumerate(row)
        if v is not None and not _is_self(matrix, i, j)
    ]
    usual = statistics.median(off_diagonal) if off_diagonal else 0.0
    cell = 0.46 if columns <= 12 else 0.34 if columns <= 24 else max(6.4 / columns, 0.06)
    with _drawing(1.0 + cell * columns, 0.7 + cell * 0.62 * rows) as (figure, axes):
        from matplotlib.patches import Rectangle  # noqa: PLC0415 - loaded only where something is drawn

        for i, row in enumerate(matrix.values):
            for j, value in enumerate(row):
                step = None if value is None or _is_self(matrix, i, j) else _heat(value, usual, matrix.low_is_bad)
                fill = "#0103ff" if step is None else f"#0103{step:02x}"
                axes.add_patch(
                    Rectangle((j, i), 1, 1, facecolor=fill, edgecolor=_PAPER, linewidth=0.8 if columns <= 24 else 0)
                )
                if value is not None and columns <= 24:
                    ink = _PAPER if step is not None and step >= HEAT_STEPS // 2 else _INK
                    size = 8 if columns <= 12 else 6.5
                    figure_text = f"{value:.3g}" if value < 1e4 else f"{value:.0f}"
                    axes.text(j + 0.5, i + 0.5, figure_text, color=ink, fontsize=size, ha="center", va="center")
        axes.set_xlim(0, columns)
        axes.set_ylim(rows, 0)
        every = max(1, max(rows, columns) // 32)
        axes.set_xticks([j + 0.5 for j in range(0, columns, every)], [_short(e) for e in matrix.dst[::every]])
        axes.set_yticks([i + 0.5 for i in range(0, rows, every)], [_short(e) for e in matrix.src[::every]])
        if max((len(_short(e)) for e in matrix.dst), default=0) > 4:
            axes.tick_params(axis="x", labelrotation=60)
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("to", fontsize=8)
        axes.set_ylabel("from", fontsize=8)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return _svg(figure, prefix, f"{matrix.title}, {rows} by {columns}")


def _is_self(matrix: PairMatrix, i: int, j: int) -> bool:
    return matrix.src[i] == matrix.dst[j]


def _heat(value: float, usual: float, low_is_bad: bool) -> int:
    """Shade by how many times worse than the median a pair is: none up to 1.1 times, the last from 4 times on."""
    worse = (usual / value if value > 0 else math.inf) if low_is_bad else (value / usual if usual > 0 else 1.0)
    if worse <= 1.1:
        return 0
    return min(HEAT_STEPS - 1, 1 + int((HEAT_STEPS - 2) * min(1.0, math.log(worse) / math.log(4))))


def _ends(names: Iterable[str]) -> tuple[str, ...]:
    """Each end once, numbers in their order."""
    return tuple(
        sorted(
            dict.fromkeys(names), key=lambda n: [(len(p), p) if p.isdigit() else (0, p) for p in re.split(r"(\d+)", n)]
        )
    )


def _short(end: str) -> str:
    """An end as a label: what the drawing font cannot show becomes `?`, long names lose their beginning."""
    text = visible(end).encode("ascii", "replace").decode()
    return text if len(text) <= 14 else "..." + text[-11:]


def _label_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """About six ticks at powers of two, in KiB, MiB, GiB."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415 - loaded only where something is drawn

    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, math.ceil((last - first) / 6))
    ticks = [2**k for k in range(last, first - 1, -step)][::-1]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _label_decades(axes: Axes) -> None:
    """Plain numbers, about six to ten whatever the range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415 - loaded only where something is drawn

    low, high = axes.get_ylim()
    if high / low < 4:
        low, high = low / 1.5, high * 1.5
        axes.set_ylim(low, high)
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


@contextlib.contextmanager
def _drawing(width_inches: float, height_inches: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure and its axes in this module's style, without a window and without state outside the block."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its notes about font caches are not for the user
    import matplotlib as mpl  # noqa: PLC0415 - half a second, needed only where something is drawn
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width_inches, height_inches), layout="tight")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        yield figure, axes


def _svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an <svg> element: colours of the page, own ids, no prologue, no metadata, no outside names."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=").replace("'DejaVu Sans'", "system-ui, sans-serif")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"#010[23][0-9a-f]{2}", lambda m: f"var({_VARIABLES[m[0]]})" if m[0] in _VARIABLES else m[0], svg)
    width = re.search(r'width="([\d.]+)pt"', svg)
    svg = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", svg, count=2)
    shown = f"max-width:{float(width[1]) * 4 / 3:.0f}px" if width else ""
    return re.sub(r"<svg\b", f'<svg role="img" aria-label="{_attribute(label)}" style="{shown}"', svg, count=1).strip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
