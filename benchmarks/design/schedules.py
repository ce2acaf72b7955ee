"""D10, and the parametric half of D7: schedules that do not grow with the ranks, proved where nobody can execute all of them."""

from __future__ import annotations

import time

from benchmarks.rows import Benchmark, Measured, Options

__all__ = ["BENCHMARKS", "parametric_proof"]

_RANKS = 131_072
_PROVED = ("ring_all_reduce", "bruck_all_gather", "pat_reduce_scatter", "two_shot_all_reduce", "binomial_broadcast")


def parametric_proof(options: Options) -> tuple[float, str]:
    """(seconds of the slowest proof, what was proved and how)."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.proof import prove

    ranks = 1024 if options.smoke else _RANKS
    slowest, notes = 0.0, []
    for name in _PROVED:
        took = []
        for _ in range(1 if options.smoke else 3):
            begun = time.perf_counter()
            proof = prove(LIBRARY[name]().bind(ranks))
            took.append(time.perf_counter() - begun)
        if not proof.holds:
            raise RuntimeError(f"{name} at {ranks} ranks is not proved: {proof.faults[0]}")
        slowest = max(slowest, min(took))
        notes.append(f"{name} {min(took):.2f} s ({proof.symmetry or proof.method})")
    return slowest, f"proofs at {ranks} ranks: " + ", ".join(notes)


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
