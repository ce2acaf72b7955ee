"""The figures of measuring: M1 to M8."""

from __future__ import annotations

from benchmarks.measure.change_points import change_points
from benchmarks.measure.launchers import launchers_run
from benchmarks.measure.minicluster import circle, mini_cluster
from benchmarks.measure.overhead import overhead
from benchmarks.measure.pairs import culprits_named
from benchmarks.measure.store import killed_while_recording, ten_million_samples
from benchmarks.rows import Benchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS = (
    Benchmark(
        "M1", "what `busbw run` adds to a call of 20 us and more beside a bare loop, the back end where it is most; a whole run of one call", "%; s",
        ("<", (2.0, 1.0)), overhead, sized=True,
    ),
    Benchmark(
        "M2", "pairs of 64 nodes on 4 rails, 3 % noise, one host, NIC, rail, cable or path at 0.9: named first; false alarms on clean ones", "share",
        (">=;<=", (0.95, 0.05)), culprits_named,
    ),
    Benchmark(
        "M3", "change points, 2 % step at 1 % noise, n = 200: hit; false per flat series; hit beyond Otava's at that rate of false ones; time a series",
        "; ; ; ms", (">=;<=;>=;<", (0.95, 0.05, 0.0, 1.0)), change_points, sized=True,
    ),
    Benchmark(
        "M4", "mini cluster of network namespaces, every algorithm from 256 KiB on, calibrated on one pair: largest error of the simulated time; ranking of algorithms right",
        "%; share", ("<=;>=", (10.0, 1.0)), mini_cluster, sized=True,
    ),
    Benchmark(
        "M5", "store of 10 million samples with starts and arrivals: ingest; size; slowest standard query", "s; MB; s",
        ("<=", (5.0, 70.0, 1.0)), ten_million_samples, sized=True,
    ),
    Benchmark(
        "M6", "kill -9 in 100 trials of three writers and a compaction on one store: acknowledged rows lost", "rows", ("==", (0,)),
        killed_while_recording,
    ),
    Benchmark(
        "M7", "the circle: a synthesised all_reduce is legal, right on CPU ranks and on the mini cluster, within 15 % of prediction and simulation; one link halved: busbw explain on the store names it",
        "", ("==", (True,)), circle, sized=True,
    ),
    Benchmark(
        "M8", "real launchers that start ranks here, run a benchmark and name a failure: Slurm, Open MPI, MPICH, torchrun, manifests, Ansible", "of 6",
        ("==", (6.0,)), launchers_run, sized=True,
    ),
)  # fmt: skip
