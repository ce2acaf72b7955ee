"""The figures of designing: D1 to D12, one file a family."""

from __future__ import annotations

from benchmarks.design import greedy

__all__ = ["BENCHMARKS"]

BENCHMARKS = (*greedy.BENCHMARKS,)
