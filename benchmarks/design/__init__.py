"""The figures of designing: one file a family."""

from benchmarks.design import bounds, forests, greedy

__all__ = ["BENCHMARKS"]

BENCHMARKS = (*bounds.BENCHMARKS, *forests.BENCHMARKS, *greedy.BENCHMARKS)
