"""The figures of designing: bounds and forests here, one file a family."""

from benchmarks.design import bounds

__all__ = ["BENCHMARKS"]

BENCHMARKS = (*bounds.BENCHMARKS,)
