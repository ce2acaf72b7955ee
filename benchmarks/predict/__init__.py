"""The figures of predicting: P1 to P10. P1 is measured; the others wait for the time model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options

__all__ = ["BENCHMARKS"]

_REPOSITORY = Path(__file__).parents[2]
_GOLDENS = _REPOSITORY / "tests" / "nccl" / "goldens"


def _nccl_equality(_: Options) -> Measured:
    from benchmarks.nccl_equality import compare_folder

    if not any(_GOLDENS.glob("*.xml")):
        raise NotMeasurableError(f"{_GOLDENS}: no recordings of NCCL there; run from a checkout")
    equality = compare_folder(_GOLDENS)
    note = f"{equality.cells} cells, {equality.choices} choices, {equality.setups} setups of NCCL 2.30.7"
    if equality.differences:
        note += f"; first difference: {equality.differences[0]}"
    return Measured(list(equality.shares), note=note)


def _not_yet(missing: str) -> Callable[[Options], Measured]:
    def measure(_: Options) -> Measured:
        raise NotMeasurableError(f"{missing} does not exist yet")

    return measure


_TIME_MODEL = "the time model (busbw.prediction)"
_BETTER = "platforms on which it is better than NCCL's estimate and than alpha-beta; share"

BENCHMARKS = (
    Benchmark("P1", "cells; choices equal to NCCL's own", "share", ("==", (1.0, 1.0)), _nccl_equality),
    Benchmark("P2", "median over tables of the median error of time, campaign left out", "share", ("<=", (0.08,)), _not_yet(_TIME_MODEL)),
    Benchmark("P3", "the same from 64 MiB; below 64 KiB", "share", ("<=", (0.05, 0.15)), _not_yet(_TIME_MODEL)),
    Benchmark("P4", "p90 of the error over rows; share of rows predicted", "share", ("<=;>=", (0.30, 0.98)), _not_yet(_TIME_MODEL)),
    Benchmark("P5", "distance of the 80 % interval's coverage from 0.8 overall; worst of three size classes; median half-width", "share", ("<=", (0.05, 0.15, 0.15)), _not_yet(_TIME_MODEL)),
    Benchmark("P6", "median error on rows of data/kernels, system left out", "share", ("<=", (0.12,)), _not_yet(_TIME_MODEL)),
    Benchmark("P7", _BETTER, "share", ("==", (1.0,)), _not_yet(_TIME_MODEL)),
    Benchmark("P8", "31 sizes x 8 collectives at 16,384 nodes; predictions a second, one core", "ms; 1/s", ("<;>=", (50.0, 100_000.0)), _not_yet(_TIME_MODEL), sized=True),
    Benchmark("P9", "all_reduce on gb300-nvl72 at 131,072 nodes; memory", "s; MB", ("<", (1.0, 300.0)), _not_yet(f"fabrics of a Cluster, and {_TIME_MODEL},"), sized=True),
    Benchmark("P10", "wrong inputs answered by one clear error", "of 4", ("==", (4.0,)), _not_yet("`busbw predict`")),
)  # fmt: skip
