"""Where the time of a training step goes, by the traces of profilers: who computes longer, what is not hidden, what the GPU waits for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator

from busbw.diagnosis.facts import Facts, Step, lines_of
from busbw.diagnosis.findings import Check, Finding, LineRef
from busbw.units import format_time_ns

__all__ = ["RULES", "checks", "steps_by_rank"]

_PLAIN = 0.2
"""Share of a step beyond which what could be hidden, or avoided, is worth a word. A guess; published training steps leave 5 to 20 % exposed."""
_SLOWER = 1.08
"""Ratio of computing times beyond which a GPU is called slow. GPUs of one kind differ by up to some 5 % at equal work (power limits)."""
_UNEVEN = 1.15
"""Ratio of computing times between ranks from which imbalance is worth a word. A choice: below it lies what `_SLOWER` calls a slow GPU."""
_MOST_OF_THEM = 0.7
_MOSTLY = 0.5
_LEAST_STEP_NS = 1_000_000


Whose = tuple[int | None, str, int | None, int | None]
"""Rank, file, process and GPU of a trace."""


def steps_by_rank(facts: Facts) -> dict[Whose, list[Step]]:
    """The steps of each rank's trace, the first left out where there are three or more: it holds what happens once."""
    found: dict[Whose, list[Step]] = defaultdict(list)
    for step in facts.steps:
        if step.time_ns >= _LEAST_STEP_NS:
            found[_whose(step)].append(step)
    return {whose: steps[1:] if len(steps) > 2 else steps for whose, steps in found.items()}


def computes_longer(facts: Facts) -> Iterator[Finding]:
    """The GPU of one rank needs longer for the same step than those of the others.

    Fires where traces of three ranks or more have the same steps, and one rank's kernels other than collectives take 8 % longer than the median of the others in
    70 % of the steps. Silent where ranks do different work: pipeline stages differ in steady ratios on several ranks, so two ranks or more must stand on either side of the
    median by less than that.
    """
    ranks = {whose: {step.number: step for step in steps} for whose, steps in steps_by_rank(facts).items()}
    shared = set.intersection(*(set(steps) for steps in ranks.values())) if len(ranks) > 2 else set()
    slow: dict[Whose, list[tuple[float, Step]]] = defaultdict(list)
    for number in shared:
        times = sorted(((steps[number].compute_ns, whose) for whose, steps in ranks.items()), key=lambda each: each[0])
        others = [time for time, _ in times[:-1]]
        usual = statistics.median(others)
        longest, whose = times[-1]
        if (
            usual > 0
            and longest > _SLOWER * usual
            and others[-1] <= (longest + usual) / 2
            and others[0] >= usual / _SLOWER
        ):
            slow[whose].append((longest / usual, ranks[whose][number]))
    for won in slow.values():
        if len(won) < _MOST_OF_THEM * len(shared):
            continue
        ratio = statistics.median(each for each, _ in won)
        name = _name(won[0][1])
        yield Finding(
            "slow-node", 0.8, "major",
            f"{name} computes {(ratio - 1) * 100:.0f} % longer than the other ranks in {len(won)} of {len(shared)} steps, so they wait for it",
            lines_of(step for _, step in won), f"Look at the GPU of {name}: clocks, power limit, throttling, memory errors; then at what else runs on it.",
            ["nvidia-smi -q -d PERFORMANCE,CLOCK,POWER on that host", "the same GEMM on that GPU and on another"],
        )  # fmt: skip


def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """A large part of the step is communication with nothing beside it.

    Fires where, in the median over ranks and steps, the GPU communicates during more than 20 % of the step while no kernel computes. Silent below that. A remark, not a fault: the layout may
    want it. Time that ranks wait for a late one is in it; `last_to_come` and `computes_longer` say so.
    """
    step, lines = _middle(facts, lambda step: step.exposed_ns)
    if step is not None:
        yield Finding(
            "communication-exposed", 0.7, "minor",
            f"communication that nothing hides takes {step.exposed_ns / step.time_ns * 100:.0f} % of the step ({format_time_ns(step.exposed_ns)} of {format_time_ns(step.time_ns)} on "
            f"{_name(step)}); longest: {step.longest}, {format_time_ns(step.longest_ns)}", lines,
            "Overlap it (gradient buckets, prefetch of parameters, split tensor-parallel GEMMs), move the group into a node, or look whether its bandwidth is what the network can do.",
            ["busbw predict of that collective at its size beside the trace", "nccl-tests of the same collective, size and ranks"],
        )  # fmt: skip


def starved(facts: Facts) -> Iterator[Finding]:
    """The GPU has nothing to do for a large part of the step.

    Fires where it neither computes, communicates nor copies during more than 20 % of the step, in the median over ranks and steps, and most kernels begin as soon
    as they are launched: the host comes late, not the network. Silent where kernels wait in the queue of their stream.
    """
    step, lines = _middle(facts, lambda step: step.idle_ns if step.at_once > _MOSTLY else 0)
    if step is not None:
        yield Finding(
            "gpu-starved", 0.7, "minor",
            f"the GPU has nothing to do for {step.idle_ns / step.time_ns * 100:.0f} % of the step ({format_time_ns(step.idle_ns)} of {format_time_ns(step.time_ns)} on {_name(step)}), and "
            f"{step.at_once * 100:.0f} % of its kernels begin as soon as they are launched", lines,
            "Take the host out of the way: CUDA graphs or torch.compile, more loader workers, no .item() or synchronisation in the step, ranks bound to cores near their GPU.",
            ["py-spy dump of the rank during a step", "a profile with Python stacks"],
        )  # fmt: skip


def _middle(facts: Facts, part: Callable[[Step], int]) -> tuple[Step | None, list[LineRef]]:
    """The step in the middle by the share of a part, and lines of those with the largest; None where that share is not plain."""
    ordered = sorted(
        (step for found in steps_by_rank(facts).values() for step in found), key=lambda step: part(step) / step.time_ns
    )
    middle = ordered[len(ordered) // 2] if ordered else None
    if middle is None or part(middle) <= _PLAIN * middle.time_ns:
        return None, []
    return middle, lines_of([middle, *reversed(ordered)], most=6)


def _whose(step: Step) -> Whose:
    # Kineto's traces name no process; there a rank has one GPU, and spans of copies may name another.
    return step.rank, step.at.path, step.pid, step.device if step.pid is not None else None


def _name(step: Step) -> str:
    rank = f"rank {step.rank}" if step.rank is not None else step.at.path.rsplit("/", 1)[-1]
    if step.rank is None and step.pid is not None:
        rank += f", GPU {step.device} of process {step.pid}"
    return f"{rank} ({step.host})" if step.host else rank


def checks(facts: Facts) -> Iterator[Check]:
    """How evenly the ranks compute, where no single one is slow: pipeline stages, experts and sequences of different lengths differ steadily."""
    ranks = {
        whose: statistics.median(step.compute_ns for step in steps) for whose, steps in steps_by_rank(facts).items()
    }
    if len(ranks) < 2 or any(True for _ in computes_longer(facts)):
        return
    low, high = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
    if ranks[high] > _UNEVEN * ranks[low] > 0:
        some = {whose: steps[0] for whose, steps in steps_by_rank(facts).items()}
        yield Check(
            "balance", f"ranks compute between {format_time_ns(round(ranks[low]))} ({_name(some[low])}) and {format_time_ns(round(ranks[high]))} ({_name(some[high])}) a step; stages, experts or sequences differ, and the others wait",
            lines_of([some[high]]), decisive=False,
        )  # fmt: skip


RULES = (computes_longer, exposed_communication, starved)
