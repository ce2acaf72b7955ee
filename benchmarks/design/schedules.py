"""D10, and the parametric half of D7: schedules that do not grow with the ranks, proved where nobody can execute all of them."""

from __future__ import annotations

import time

from benchmarks.rows import Benchmark, Measured, Options

__all__ = ["BENCHMARKS", "parametric_proof"]

_RANKS = 131_072
_SLOW_S = 1.0
_SMOKE = ("ring_all_reduce", "bruck_all_gather", "pat_reduce_scatter", "two_shot_all_reduce", "binomial_broadcast")


def parametric_proof(options: Options) -> tuple[float, str]:
    """(seconds of the slowest proof of the library, which ones take long, and which are not decided)."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.proof import NotProvedError, prove

    ranks = 1024 if options.smoke else _RANKS
    shapes = {1: (ranks,), 2: (ranks // 8, 8), 3: (ranks // 64, 8, 8)}
    times: dict[str, float] = {}
    undecided = []
    for name in _SMOKE if options.smoke else LIBRARY:
        schedule = LIBRARY[name]()
        begun = time.process_time()
        try:
            proof = prove(schedule.bind(*shapes[len(schedule.axes)]))
        except NotProvedError:
            undecided.append(name)
            continue
        times[name] = time.process_time() - begun
        if not proof.holds:
            raise RuntimeError(f"{name} at {ranks} ranks is not proved: {proof.faults[0]}")
    slowest = max(times, key=lambda name: times[name])
    slow = sorted((name for name, took in times.items() if took > _SLOW_S), key=lambda name: -times[name])
    note = f"{len(times)} schedules of {len(times) + len(undecided)} are proved at {ranks} ranks, {len(times) - len(slow)} of them in {_SLOW_S:g} s of CPU time each"
    if slow and not options.smoke:
        note += "; longer: " + ", ".join(f"{name} {times[name]:.1f} s" for name in slow)
    if undecided:
        note += f"; not decided: {', '.join(undecided)}"
    return times[slowest], note


def _ring(options: Options) -> Measured:
    """D10: bytes of the ring's JSON; most operations of a rank; milliseconds to lower one."""
    from busbw.collectives.algorithms import ring_all_reduce
    from busbw.collectives.lowering import lower
    from busbw.collectives.schedule_json import to_json

    schedule = ring_all_reduce()
    bound = schedule.bind(_RANKS)
    operations, took = 0, []
    for rank in (0, 1, _RANKS // 2, _RANKS - 1):
        for in_place in (True, False):
            begun = time.perf_counter()
            plan = lower(bound, rank, in_place=in_place)
            took.append(time.perf_counter() - begun)
            operations = max(operations, plan.operations)
    typical = sorted(took)[len(took) // 2]
    return Measured(
        [len(to_json(schedule)), operations, typical * 1e3],
        note=f"median of {len(took)} ranks; slowest {max(took) * 1e3:.1f} ms",
    )


BENCHMARKS = (
    Benchmark("D10", "ring at 131,072 ranks: schedule; operations a rank; one rank lowered", "B; operations; ms", ("<=;<=;<=", (4096, 64, 10.0)), _ring),
)  # fmt: skip
