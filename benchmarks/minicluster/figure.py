"""Measured and simulated times of a mini cluster as a drawing: a row for each algorithm and size."""

from __future__ import annotations

from benchmarks.minicluster.comparing import Comparison
from busbw.reports.svg import FIRST, MUTED, SECOND, drawing, standalone, to_svg
from busbw.units import format_bytes

__all__ = ["drawn"]

_ROW_INCHES = 0.23


def drawn(found: Comparison, where: str) -> str:
    """An SVG file: filled dots are measured, rings simulated, and how far the ring is off is written beside them."""
    from matplotlib.ticker import FuncFormatter

    rows = sorted(found.rows, key=lambda row: (row.size_bytes, row.name), reverse=True)
    with drawing(7.6, 0.9 + _ROW_INCHES * len(rows)) as (figure, axes):
        axes.set_xscale("log")
        for place, row in enumerate(rows):
            measured, simulated = row.timed.best_s * 1e3, row.predicted.simulated_s * 1e3
            axes.plot([measured], [place], "o", color=FIRST, markersize=5, label="measured" if not place else None)
            axes.plot([simulated], [place], "o", markerfacecolor="none", markeredgecolor=SECOND, markersize=9, markeredgewidth=1.3, label="simulated" if not place else None)  # fmt: skip
            axes.annotate(f"{row.error:+.1%}", (max(measured, simulated), place), (9, 0), textcoords="offset points", va="center", color=MUTED, fontsize=8)  # fmt: skip
            if place and rows[place - 1].size_bytes != row.size_bytes:
                axes.axhline(place - 0.5, color=MUTED, linewidth=0.6)
        axes.set_yticks(range(len(rows)), [f"{row.name}, {format_bytes(row.size_bytes)}" for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.set_xlabel(f"ms, {where}")
        axes.grid(axis="x")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * 1.5)  # for what is written beside the last
        axes.legend(loc="upper right", frameon=False)
        worst = f"The largest difference is {found.worst_error:.1%}."
        return standalone(to_svg(figure, "minicluster", f"Measured and simulated times, {where}", worst))
