"""Predicted bus bandwidth over size with its interval, and what was measured laid on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from busbw.reports.svg import ALARM, BAND, FIRST, MUTED, SECOND, drawing, label_decades, label_sizes, to_svg
from busbw.units import GB, format_bytes, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from busbw.prediction import Predictions

__all__ = ["MeasuredPoint", "draw_prediction", "prediction_svg"]

INTERVAL = "80 % of healthy measurements"


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A measured bus bandwidth."""

    size_bytes: int
    busbw_bytes_per_s: float
    is_slow: bool = False
    """Whether it is ringed as slower than the interval."""


def prediction_svg(
    result: Predictions, measured: Sequence[MeasuredPoint] = (), title: str = "", prefix: str = "b"
) -> str:
    """Bus bandwidth over size, both logarithmic, as an <svg> for a page; `standalone` makes a file of it.

    A mark shows where the algorithm or protocol changes, with the name of what begins there.
    """
    points = [point for point in measured if point.size_bytes > 0 and point.busbw_bytes_per_s > 0]
    with drawing(6.4, 3.9) as (figure, axes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(True, which="major")
        draw_prediction(axes, result)
        _mark_changes(axes, result)
        if points:
            axes.plot(
                [point.size_bytes for point in points],
                [point.busbw_bytes_per_s / GB for point in points],
                linestyle="none",
                marker="o",
                markersize=4,
                color=SECOND,
                label="measured",
                zorder=4,
            )
        slow = [point for point in points if point.is_slow]
        if slow:
            axes.plot(
                [point.size_bytes for point in slow],
                [point.busbw_bytes_per_s / GB for point in slow],
                linestyle="none",
                marker="o",
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=ALARM,
                markeredgewidth=1.2,
                label="slower than the interval",
                zorder=5,
            )
        sizes = [*result.size_bytes.tolist(), *(point.size_bytes for point in points)]
        label_sizes(axes, sizes)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * _ROOM)
        label_decades(axes)
        axes.set_xlabel("size of the larger buffer of a rank")
        axes.set_ylabel("busbw, GB/s")
        if title:
            axes.set_title(title, fontsize=9, loc="left")
        axes.legend(loc="lower right", frameon=False, fontsize=8)
        return to_svg(
            figure, prefix, title or f"bus bandwidth over size, {result.collective}", _described(result, points)
        )


def draw_prediction(axes: Axes, result: Predictions, label: str = "predicted", colour: str = FIRST) -> None:
    """The predicted line and its interval on axes of size and GB/s."""
    order = np.argsort(result.size_bytes, kind="stable")
    sizes = result.size_bytes[order]
    # busbw is bytes over time, so the longest time is the lowest bandwidth.
    low, middle, high = (
        (result.busbw_bytes_per_s * result.time_s / time)[order] / GB
        for time in (result.high_s, result.time_s, result.low_s)
    )
    axes.fill_between(sizes, low, high, color=BAND, linewidth=0, zorder=1, label=INTERVAL)
    axes.plot(sizes, middle, color=colour, linewidth=1.4, marker="" if len(sizes) > 1 else "_", zorder=3, label=label)


def _mark_changes(axes: Axes, result: Predictions) -> None:
    """A line where what runs changes, named above in one of two rows; names that fit in neither are left out."""
    order = np.argsort(result.size_bytes, kind="stable").tolist()
    span = np.log2(max(2.0, float(result.size_bytes.max()) / float(result.size_bytes.min())))
    begins = [-np.inf, -np.inf]
    last = ""
    for place in order:
        name = f"{result.algorithm[place]} {result.protocol[place]}"
        if name == last:
            continue
        last = name
        size = float(result.size_bytes[place])
        axes.axvline(size, color=MUTED, linewidth=0.6, linestyle=(0, (2, 3)), zorder=2)
        row = next((row for row, begin in enumerate(begins) if np.log2(size) - begin >= span * _APART), None)
        if row is None:
            continue
        begins[row] = np.log2(size)
        axes.annotate(
            name, (size, 1.0), xycoords=("data", "axes fraction"), xytext=(2, -8 - 9 * row), textcoords="offset points",
            fontsize=7, color=MUTED,
        )  # fmt: skip


_ROOM = 2.5
"""Times the largest bandwidth that the axis goes on, for the names above the curve."""
_APART = 0.16
"""Share of the width that a name takes, of the longest one, NVLSTree Simple: tried."""


def _described(result: Predictions, points: Sequence[MeasuredPoint]) -> str:
    last = int(np.argmax(result.size_bytes))
    told = [
        f"Predicted {format_rate(float(result.busbw_bytes_per_s[last]))} at {format_bytes(int(result.size_bytes[last]))}, "
        f"{len(result.size_bytes)} sizes."
    ]
    if points:
        slow = sum(point.is_slow for point in points)
        told.append(f"{len(points)} measured points, {slow} of them slower than the interval.")
    return " ".join(told)
