"""The figures of simulating: S1 to S12, one family a file."""

from __future__ import annotations

from benchmarks.rows import Benchmark, Measured, Options
from benchmarks.simulate import accuracy, flow, packets, rules, scale

__all__ = ["BENCHMARKS"]

_OF_PACKETS = {benchmark.id: benchmark for benchmark in packets.BENCHMARKS}


def _textbook(options: Options) -> Measured:
    """S9: the cases of flows, then those of packets and how far the two differ."""
    flows, of_packets = rules.textbook(options), _OF_PACKETS["S9"].measure(options)
    parts = of_packets.value if isinstance(of_packets.value, list) else [0.0, 1.0]
    return Measured([float(flows.value or 0), *map(float, parts)], of_packets.peers, f"{flows.note}; {of_packets.note}")  # type: ignore[arg-type]


BENCHMARKS = (
    *flow.BENCHMARKS,
    _OF_PACKETS["S5"],
    Benchmark("S6", "hierarchical all_reduce of 1 GiB on 16,384 x 8 GPUs: error of its time; CPU time; memory with Python", "share; s; MB", ("<=;<;<", (0.001, 2.0, 500.0)), scale.hierarchical_16384, sized=True),
    Benchmark("S7", "the same on 1,024 nodes, a GPU at 0.8 and a leaf's uplink down: error of its time; both named; CPU time", "share; yes; s", ("<=;>=;<", (0.001, 1.0, 5.0)), scale.faulty_1024, sized=True),
    Benchmark("S8", "folded runs equal to unfolded ones; same seed, same bytes", "cases; yes", (">=", (1000.0, 1.0)), rules.folding, sized=True),
    Benchmark("S9", "textbook cases of flows; of packets; long flow and ring, flow against packet", "cases; cases; share", (">=;>=;<=", (20.0, 12.0, 0.03)), _textbook),
    *accuracy.BENCHMARKS,
    Benchmark("S11", "sanitizers that find nothing in the C++ tests", "sanitizers", (">=", (3.0,)), rules.sanitizers, sized=True),
    Benchmark("S12", "wrong inputs answered by one clear error", "of 4", ("==", (4.0,)), rules.wrong_inputs),
)  # fmt: skip
