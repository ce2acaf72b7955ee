"""The figures of measuring: those of M1 to M8 whose part exists."""

from __future__ import annotations

from benchmarks.measure.change_points import change_points
from benchmarks.rows import Benchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS = (
    Benchmark(
        "M3", "change points, 2 % step at 1 % noise, n = 200: hit; false per flat series; hit beyond Otava's at that rate of false ones; time a series",
        "; ; ; ms", (">=;<=;>=;<", (0.95, 0.05, 0.0, 1.0)), change_points, sized=True,
    ),
)  # fmt: skip
