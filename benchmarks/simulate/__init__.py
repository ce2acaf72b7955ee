"""The figures of simulating: S1 to S12, one family a file."""

from __future__ import annotations

from benchmarks.simulate import flow, packets

__all__ = ["BENCHMARKS"]

BENCHMARKS = (*flow.BENCHMARKS, *packets.BENCHMARKS)
