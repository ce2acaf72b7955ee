"""The flow simulator's figures. Times are CPU seconds of one core, expanding the program counted, imports not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options
from benchmarks.simulate.simgrid import simgrid

__all__ = ["BENCHMARKS"]

_GIB, _MIB = 1 << 30, 1 << 20
_RING_MS = {64: 42.531, 256: 43.802, 1024: 47.000, 4096: 59.319}
"""2 (N - 1) (S / (N B) + 2 us), simulation.md 2.2."""
_RECORDED = "recorded"
"""Peers' figures: simulation.md 2.2 to 2.4, CPU seconds on two cores of an AMD EPYC."""


def _told(ran: bool, where: str = "") -> str:
    return f"SimGrid run here{f' {where}' if where else ''}, other peers {_RECORDED}" if ran else f"peers {_RECORDED}"


def _cpu_s(work: Callable[[], Any], tries: int = 1) -> tuple[float, Any]:
    """The least CPU time of some tries, and the last result."""
    least, result = float("inf"), None
    for _ in range(tries):
        begun = time.process_time()
        result = work()
        least = min(least, time.process_time() - begun)
    return least, result


def _ring_times(options: Options) -> Measured:
    from benchmarks.simulate.programs import ring_all_reduce, star
    from busbw.simulation import simulate

    worst = 0.0
    for ranks, stated in _RING_MS.items():
        program = ring_all_reduce(ranks, _GIB)
        whole = [simulate(program, star(ranks))]
        if ranks <= (64 if options.smoke else 1024):
            whole.append(simulate(program, star(ranks), fold=False, fast_forward=False, record=False))
        exact = 2 * (ranks - 1) * (-(-_GIB // ranks) / 50e9 + 2e-6) * 1e3
        worst = max(
            worst, *(abs(t.time_s * 1e3 / stated - 1) for t in whole), *(abs(t.time_s * 1e3 / exact - 1) for t in whole)
        )
    peers = {"SimGrid": 0.0, "LogGOPSim": 0.0, "ASTRA-sim aware s1 at 1024": 0.81, "ASTRA-sim unaware s16 at 256": 0.93}
    ran = None if options.smoke else simgrid("ring", 64, _GIB)
    if ran is not None:
        peers["SimGrid"] = abs(ran[0] * 1e3 / _RING_MS[64] - 1)
    return Measured(worst, peers, f"largest error at 64, 256, 1024, 4096; {_told(ran is not None, 'at 64')}")


_MEMORY = """
import re
from pathlib import Path
from benchmarks.simulate.programs import ring_all_reduce, star
from busbw.simulation import simulate
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
simulate(ring_all_reduce(2, 1 << 20), star(2))
before = peak()
simulate(ring_all_reduce(4096, 1 << 30), star(4096))
print(peak() - before, peak())
"""


def _ring_4096(options: Options) -> Measured:
    from benchmarks.simulate.programs import ring_all_reduce, star
    from busbw.simulation import simulate

    folded, _ = _cpu_s(lambda: simulate(ring_all_reduce(4096, _GIB), star(4096)), 5)
    ran = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode:
        raise NotMeasurableError(ran.stderr.strip().splitlines()[-1])
    added_mb, whole_mb = map(float, ran.stdout.split())
    ranks = 256 if options.smoke else 4096
    plain, timeline = _cpu_s(
        lambda: simulate(ring_all_reduce(ranks, _GIB), star(ranks), fold=False, fast_forward=False, record=False)
    )
    if timeline.messages_run < 2 * ranks * (ranks - 1):
        raise NotMeasurableError(f"only {timeline.messages_run} transfers were simulated")
    large, _ = _cpu_s(lambda: simulate(ring_all_reduce(131_072, _GIB), star(131_072)))
    peers = {"ASTRA-sim aware s1 s": 71.5, "ASTRA-sim MB": 5580.0}
    note = f"{timeline.messages_run} transfers; {whole_mb:.0f} MB with Python and its libraries; peers {_RECORDED}"
    return Measured([folded, added_mb, plain, large], peers, note)


def _ring_1024(options: Options) -> Measured:
    from benchmarks.simulate.programs import ring_all_reduce, star
    from busbw.simulation import simulate

    ranks = 128 if options.smoke else 1024
    took, _ = _cpu_s(
        lambda: simulate(ring_all_reduce(ranks, _GIB), star(ranks), fold=False, fast_forward=False, record=False), 2
    )
    peers = {"SimGrid": 6.7, "LogGOPSim": 7.4, "ASTRA-sim": 3.9}
    ran = None if options.smoke else simgrid("ring", ranks, _GIB)
    if ran is not None:
        peers["SimGrid"] = ran[1]
    return Measured(took, peers, _told(ran is not None))


def _all_to_all(options: Options) -> Measured:
    from benchmarks.simulate.programs import direct_all_to_all, leaf_and_spine
    from busbw.simulation import simulate

    leaves = 8 if options.smoke else 32
    ranks = leaves * leaves
    program, tree = direct_all_to_all(ranks, _MIB), leaf_and_spine(leaves)
    folded, timeline = _cpu_s(lambda: simulate(program, tree), 5)
    plain, whole = _cpu_s(lambda: simulate(program, tree, fold=False, record=False), 3)
    if whole.end_ps != timeline.end_ps:
        raise NotMeasurableError(f"folded {timeline.end_ps} ps, unfolded {whole.end_ps} ps")
    few = 4 if options.smoke else 16
    random_256, _ = _cpu_s(
        lambda: simulate(direct_all_to_all(few * few, _MIB), leaf_and_spine(few), routing="ecmp", record=False), 2
    )
    random_1024, spread = _cpu_s(lambda: simulate(program, tree, routing="ecmp", record=False))
    stated_s = (ranks - 1) * _MIB / 50e9
    error = abs(timeline.time_s / stated_s - 1)
    peers = {"ASTRA-sim aware at 1024": 10.4, "SimGrid at 256": 11.8, "LogGOPSim at 256": 1.6}
    ran = None if options.smoke else simgrid("all_to_all", 256, _MIB)
    if ran is not None:
        peers["SimGrid at 256"] = ran[1]
    told = _told(ran is not None)
    note = f"{timeline.time_s * 1e3:.3f} ms, random ECMP {spread.time_s * 1e3:.3f} ms; {told}; peers unfolded, s"
    return Measured([error, plain, folded, random_256, random_1024], peers, note)


BENCHMARKS = (
    Benchmark("S1", "ring all_reduce of 1 GiB: error of its time", "share", ("<=", (0.001,)), _ring_times),
    Benchmark("S2", "ring at 4096: folded; memory it adds; unfolded, not fast-forwarded; 131,072 folded", "s; MB; s; s", ("<", (0.05, 50.0, 5.0, 1.0)), _ring_4096, sized=True),
    Benchmark("S3", "ring at 1024 unfolded, not fast-forwarded", "s", ("<", (0.5,)), _ring_1024, sized=True),
    Benchmark("S4", "direct all_to_all of 1 MiB a pair at 1024: error of its time; unfolded; folded; random ECMP at 256; at 1024", "share; s; s; s; s", ("<=;<;<;<;<", (0.001, 0.2, 0.005, 0.3, 30.0)), _all_to_all, sized=True),
)  # fmt: skip
