"""Times over many runs, each collective beside its own median, with the changes of level marked."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from busbw.reports.svg import ALARM, FIRST, GOOD, MUTED, drawing, printable, to_svg

if TYPE_CHECKING:
    from busbw.measuring import Cell, History, Series

__all__ = ["history_svg"]

_MOST = 6
"""Collectives that are drawn: those that changed most, then those with most runs."""


def history_svg(history: History, prefix: str = "h") -> str:
    """Time of each size beside its median over runs, and the median of those that changed: a panel for each collective, as an <svg> for a page."""
    families: dict[Cell, list[Series]] = defaultdict(list)
    for series in history.series:
        families[series.cell._replace(size_bytes=0)].append(series)
    changed = {event.family for event in history.events}
    chosen = sorted(families, key=lambda family: (family not in changed, -sum(s.runs.size for s in families[family])))[
        :_MOST
    ]
    runs = len(history.runs)
    with drawing(7.2, 1.0 + 1.25 * len(chosen)) as (figure, axes):
        axes.remove()
        panels = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
        for axes, family in zip(panels, chosen, strict=True):  # noqa: PLW2901 - the first axes are gone
            axes.patch.set_visible(False)
            axes.grid(True, axis="y")
            relative = np.full((len(families[family]), runs), np.nan)
            for row, series in enumerate(families[family]):
                relative[row, series.runs] = series.times_s / np.median(series.times_s)
                axes.plot(series.runs + 1, relative[row, series.runs], color=MUTED, linewidth=0.4, alpha=0.5)
            moved = {cell for event in history.events if event.family == family for cell, _ in event.cells}
            shown = relative[[not moved or series.cell in moved for series in families[family]]]
            at = np.flatnonzero(~np.isnan(shown).all(axis=0))
            axes.plot(at + 1, np.nanmedian(shown[:, at], axis=0), color=FIRST, linewidth=1.4)
            for event in history.events:
                if event.family == family:
                    colour = ALARM if event.ratio > 1 else GOOD
                    axes.axvspan(event.low + 1, event.high + 1, color=colour, alpha=0.15, linewidth=0)
                    axes.axvline(event.run + 1, color=colour, linewidth=1.0)
                    axes.annotate(
                        f"{(event.ratio - 1) * 100:+.1f} %", (event.run + 1, 1.0), xycoords=("data", "axes fraction"),
                        xytext=(3, -9), textcoords="offset points", fontsize=8, color=colour,
                    )  # fmt: skip
            words = [
                family.collective or family.tool or "",
                f"{family.ranks} ranks" if family.ranks else "",
                "in place" if family.in_place else "",
            ]
            axes.set_title(printable(" ".join(word for word in words if word), 60), fontsize=8.5, loc="left")
            axes.tick_params(labelsize=8)
        panels[-1].set_xlabel("run")
        figure.supylabel("time / median", fontsize=9)
        told = f"{len(history.events)} changes over {runs} runs; grey: single sizes, line: the median of those that changed, or of all."
        return to_svg(figure, prefix, "time over runs", told)
