"""The figures of simulating."""

from __future__ import annotations

from benchmarks.simulate import packets

__all__ = ["BENCHMARKS"]

BENCHMARKS = packets.BENCHMARKS
