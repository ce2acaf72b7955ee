"""The figures of designing: one file a family."""

from benchmarks.design import bounds, greedy, plans

__all__ = ["BENCHMARKS"]

BENCHMARKS = (*bounds.BENCHMARKS, *greedy.BENCHMARKS, *plans.BENCHMARKS)
