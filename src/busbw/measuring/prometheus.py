"""The latest run as Prometheus reads it: for node_exporter's textfile collector, or to be pushed.

Format: "Exposition formats", prometheus.io/docs, text format 0.0.4: HELP and TYPE once before a metric's lines; backslash, quote and new line
are escaped in label values. Without timestamps, which the textfile collector refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from busbw.collectives import bus_factor
from busbw.measuring.results import Cell, Results

__all__ = ["exposition"]


def exposition(run: Results, status: str | None = None) -> str:
    """Text of gauges: median time and bus bandwidth of each cell, when the run was kept or began, how it ended.

    A cell that a run measured several times is one line, its median. status: of a recorded run.
    """
    cells = sorted(run.times_s.items(), key=lambda item: tuple(str(value) for value in item[0]))
    times = {cell: median(seconds) for cell, seconds in cells}
    lines: list[str] = []
    lines += _metric(
        "busbw_time_seconds", "Median time of a call.", ((_labels(cell), seconds) for cell, seconds in times.items())
    )
    lines += _metric(
        "busbw_bus_bandwidth_bytes_per_second", "Size over median time, times the factor of the collective.",
        ((_labels(cell), rate) for cell, seconds in times.items() if (rate := _busbw(cell, seconds)) is not None),
    )  # fmt: skip
    lines += _metric(
        "busbw_measurements", "Times that each cell was measured, or its samples were summed up, in the run.",
        ((_labels(cell), float(len(seconds))) for cell, seconds in cells),
    )  # fmt: skip
    named = {"run": run.name}
    if run.created_ns is not None:
        lines += _metric(
            "busbw_run_created_timestamp_seconds", "When the run began or was kept.", [(named, run.created_ns / 1e9)]
        )
    if status is not None:
        states = [({**named, "status": one}, float(one == status)) for one in ("running", "done", "died")]
        lines += _metric("busbw_run_status", "1 for how the run stands.", states)
    return "\n".join(lines) + "\n"


def _busbw(cell: Cell, seconds: float) -> float | None:
    if cell.collective in (None, "barrier") or not cell.ranks or cell.ranks < 2 or seconds <= 0:
        return None
    try:
        return float(cell.size_bytes * bus_factor(cell.collective, cell.ranks) / seconds)
    except (KeyError, ValueError):  # what is measured is no collective
        return None


def _labels(cell: Cell) -> Mapping[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in cell._asdict().items()
        if value is not None
    }


def _metric(name: str, told: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    """Lines of one gauge; none if it has no value."""
    for number, (labels, value) in enumerate(values):
        if number == 0:
            yield f"# HELP {name} {told}"
            yield f"# TYPE {name} gauge"
        listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{listed}}} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
