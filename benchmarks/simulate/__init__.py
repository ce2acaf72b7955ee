"""The figures of simulating: S1 to S12, one family a file."""

from __future__ import annotations

from benchmarks.rows import Benchmark
from benchmarks.simulate import flow, packets, rules, scale

__all__ = ["BENCHMARKS"]

BENCHMARKS = (
    *flow.BENCHMARKS,
    *packets.BENCHMARKS,
    Benchmark("S6", "hierarchical all_reduce of 1 GiB on 16,384 x 8 GPUs: error of its time; CPU time; memory with Python", "share; s; MB", ("<=;<;<", (0.001, 2.0, 500.0)), scale.hierarchical_16384, sized=True),
    Benchmark("S7", "the same on 1,024 nodes, a GPU at 0.8 and a leaf's uplink down: error of its time; both named; CPU time", "share; yes; s", ("<=;>=;<", (0.001, 1.0, 5.0)), scale.faulty_1024, sized=True),
    Benchmark("S8", "folded runs equal to unfolded ones; same seed, same bytes", "cases; yes", (">=", (1000.0, 1.0)), rules.folding, sized=True),
    Benchmark("S9", "textbook cases with the answer derived in the test", "cases", (">=", (20.0,)), rules.textbook),
    Benchmark("S11", "sanitizers that find nothing in the C++ tests", "sanitizers", (">=", (3.0,)), rules.sanitizers, sized=True),
    Benchmark("S12", "wrong inputs answered by one clear error", "of 4", ("==", (4.0,)), rules.wrong_inputs),
)  # fmt: skip
