"""D7, D8, D9 and D11: plans verified, wrong plans found, right ones let pass, damaged files survived."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from benchmarks.design.schedules import parametric_proof
from benchmarks.rows import Benchmark, Measured, Options

__all__ = ["BENCHMARKS"]

_SEED = 1


def _speed(options: Options) -> Measured:
    """D7: the slowest of three shapes, scaled to a million instructions, in CPU time; the slowest proof at 131,072 ranks."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.legality import verify_plan
    from busbw.collectives.lowering import plan_of

    per_million, notes = [], []
    for name, shape in (("ring_all_reduce", (708,)), ("ring_all_gather", (708,)), ("pairwise_all_to_all", (256,))):
        bound = LIBRARY[name]().bind(8 if options.smoke else shape[0])
        plan = plan_of(bound)
        held = [plan.rank(rank) for rank in range(plan.ranks)]
        took = []
        for _ in range(1 if options.smoke else 3):
            begun = time.process_time()
            verdict = verify_plan(replace(plan, rank_plan=held.__getitem__))
            took.append(time.process_time() - begun)
        if not verdict.legal:
            return Measured(None, note=f"{name} is called illegal")
        per_million.append(min(took) / verdict.instructions * 1e6)
        notes.append(f"{name} {verdict.instructions} in {min(took):.2f} s")
    proof_s, proved = parametric_proof(options)
    return Measured([max(per_million), proof_s], note="; ".join([*notes, proved]))


def _mutants(options: Options) -> Measured:
    """D8: every number of ranks from 2 to 8, in and out of place."""
    from benchmarks.design.mutants import CLASSES, tally
    from benchmarks.design.progress import Progress

    found = tally([2, 3], 1, _SEED) if options.smoke else tally(list(range(2, 9)), 3, _SEED, Progress("D8"))
    counts = ", ".join(f"{found.total(one)} {one}" for one in ("killed", "equivalent", "missed"))
    equivalent = ", ".join(
        f"{found.counts[kind, 'equivalent']} {kind}" for kind in CLASSES if found.counts[kind, "equivalent"]
    )
    first = f"; first: {found.missed[0]}" if found.missed else ""
    total = sum(found.counts.values())
    return Measured(
        len(found.missed),
        note=f"{total} mutants of {len(CLASSES)} classes of {found.plans} plans: {counts}; equivalent, all orders tried: {equivalent}{first}",
    )


_VARIED_RANKS = 16
"""Up to here plans are made on several channels, in slices, with other roots and axes of 1, too; beyond, they only take longer."""


def _false_alarms(options: Options) -> Measured:
    """D9: every number of ranks from 2 to 64, every shape of schedules of several axes."""
    from benchmarks.design.mutants import library_plans, library_variants
    from benchmarks.design.progress import Progress
    from busbw.collectives.legality import verify_plan

    sizes = [2, 3, 4, 6] if options.smoke else list(range(2, 65))
    notes = None if options.smoke else Progress("D9")
    alarms: list[str] = []
    plans = 0
    for ranks in sizes:
        key = f"{ranks} ranks"
        found = notes.known(key) if notes else None
        if found is None:
            found = {"plans": 0, "alarms": []}
            several = [] if options.smoke or ranks > _VARIED_RANKS else library_variants(ranks)
            for name, plan in itertools.chain(library_plans(ranks, 2 if options.smoke else None), several):
                found["plans"] += 1
                verdict = verify_plan(plan)
                if not verdict.legal:
                    found["alarms"].append(f"{name}: {verdict.violations[0]}")
            if notes:
                notes.learn(key, found)
        plans += found["plans"]
        alarms += found["alarms"]
    return Measured(
        len(alarms),
        note=f"{plans} plans at {sizes[0]} to {sizes[-1]} ranks" + (f"; first: {alarms[0]}" if alarms else ""),
    )


def _fuzz(options: Options) -> Measured:
    """D11: parsers, and what `busbw verify`, `convert` and `show` do."""
    from benchmarks.design.fuzz import fuzz_files
    from benchmarks.design.progress import Progress

    trials = 300 if options.smoke else 200_000
    wrong = fuzz_files(trials, _SEED, None if options.smoke else Progress("D11"))
    return Measured(len(wrong), note=f"{trials} files" + (f"; first: {wrong[0]}" if wrong else ""))


BENCHMARKS = (
    Benchmark("D7", "verify a million plan operations, slowest of three shapes; proof at 131,072 ranks, slowest of the library", "s; s", ("<=;<=", (1.0, 1.0)), _speed, sized=True),
    Benchmark("D8", "mutants of every library schedule at 2-8 ranks that are missed", "mutants", ("==", (0,)), _mutants),
    Benchmark("D9", "library schedules that are called illegal", "plans", ("==", (0,)), _false_alarms),
    Benchmark("D11", "damaged files that end in anything but a plan or one clear error", "files", ("==", (0,)), _fuzz),
)  # fmt: skip
