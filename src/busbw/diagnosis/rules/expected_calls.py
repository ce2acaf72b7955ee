"""Collectives of a trace that take longer than the cluster they ran on should need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from busbw.diagnosis.beside_model import KindOfCall, calls_beside_model
from busbw.diagnosis.facts import Facts
from busbw.diagnosis.findings import Check, Finding
from busbw.units import format_bytes, format_time_ns

__all__ = ["RULES", "checks"]

_SLOW = 1.5
"""Times the expected time. The model's own error on healthy tables is 5 % in the median and some 20 % at p90; kernels that compute beside a collective cost it up to a fifth more."""
_BEYOND_INTERVAL = 1.1
_FAST = 0.5
"""Times the expected time: beyond the model's error, so the cluster or a size is not what is said. A guess."""
_LEAST_LOST_NS = 20_000
_LEAST_BYTES = 1 << 16
"""What is smaller varies from site to site."""
_FEWEST_CALLS = 5
"""Of a kind whose calls not every rank recorded: in none of them may a rank without a trace have been late."""
_PLAIN = 0.05
"""Of the time of the steps."""
_FEWEST_WAITS = 10
_WORTH_A_WORD = 0.1


def slower_than_expected(facts: Facts) -> Iterator[Finding]:
    """A collective takes longer than the cluster should need for it, waiting for late ranks not counted.

    Fires where `--cluster` names what the traces ran on, and calls of 64 KiB or more take over 1.5 times the expected time and more than its interval allows: in the median, counting of
    each call the rank that spent least in it, where every rank of the group has a trace; else in the shortest of five calls or more. Silent where ranks wait for a late one, which `last_to_come` tells.
    Reads: process group, bytes and duration of kernels of NCCL (Kineto, Nsight Systems with NVTX payloads, NCCL Inspector).
    """
    if facts.cluster is None:
        return
    known = [kind for kind in calls_beside_model(facts) if kind.ratio is not None and kind.size_bytes >= _LEAST_BYTES]
    slow = [kind for kind in known if _is_slow(kind)]
    if not slow:
        return
    worst = slow[0]
    lost = sum(kind.lost_ns for kind in slow)
    steps = sum(step.time_ns for step in facts.steps)
    ranks = max(1, len({(step.at.path, step.rank, step.pid, step.device) for step in facts.steps}))
    share = lost * ranks / steps if steps else None
    others = f"; so is it with {len(slow) - 1} more of {len(known)} kinds of calls" if len(slow) > 1 else ""
    bound = "" if worst.matched else " or less"
    waiting = (
        "waiting for late ranks is not in it"
        if worst.matched
        else "waiting for a rank without a trace may be in it, or for one whose calls cannot be matched"
    )
    yield Finding(
        "collective-slower-than-expected", 0.7 if worst.matched else 0.45, "minor" if share is not None and share < _PLAIN else "major",
        f"{_call(worst)} takes {format_time_ns(worst.took_ns)}{bound}, {worst.ratio or 0:.1f} times the {format_time_ns(worst.expected_ns or 0)} expected on {facts.cluster.name} "
        f"(healthy: up to {format_time_ns(worst.high_ns or 0)}), in {worst.calls} calls; {waiting}{others}{_where(slow, known, facts)}",
        [line for kind in slow[:6] for line in kind.lines][:12], "Run nccl-tests of this collective, size and ranks on the same nodes, with nothing beside it: if that is slow too, look at links, NICs and NCCL's settings (NCCL_DEBUG=INFO); if not, at what runs beside it in the "
        "step: kernels that take its SMs or memory bandwidth, other groups on the same NICs.",
        [f"busbw predict {worst.collective.replace('_', '-')} --cluster {facts.cluster.name} --nodes {max(1, worst.ranks // worst.inside)} --bytes {worst.size_bytes}", "nccl-tests of the same collective, size and ranks"],
    )  # fmt: skip


def _is_slow(kind: KindOfCall) -> bool:
    return (
        kind.expected_ns is not None
        and kind.high_ns is not None
        and (kind.matched or kind.calls >= _FEWEST_CALLS)
        and kind.took_ns
        > max(_SLOW * kind.expected_ns, _BEYOND_INTERVAL * kind.high_ns, kind.expected_ns + _LEAST_LOST_NS)
    )


def _count(kinds: int) -> str:
    return "one kind of call takes" if kinds == 1 else f"{kinds} kinds of calls take"


def _call(kind: KindOfCall) -> str:
    return f"{kind.collective} of {format_bytes(kind.size_bytes)} between {kind.ranks} ranks ({kind.group})"


def _where(slow: Sequence[KindOfCall], known: Sequence[KindOfCall], facts: Facts) -> str:
    """Whether it is the network or the links inside nodes, as far as the groups tell."""
    apart = [kind.inside < kind.ranks for kind in slow]
    right = [kind for kind in known if not _is_slow(kind)]
    if all(apart) and any(kind.inside == kind.ranks for kind in right):
        return "; groups within an NVLink domain are as fast as expected, so it is the network"
    if not any(apart) and any(kind.inside < kind.ranks for kind in right):
        return "; groups between nodes are as fast as expected, so it is the links within the nodes"
    return ""


def checks(facts: Facts) -> Iterator[Check]:
    """Whether collectives take what the model expects; how much of their time was waiting; how evenly ranks compute."""
    kinds = calls_beside_model(facts)
    known = [kind for kind in kinds if kind.ratio is not None and (kind.matched or kind.calls >= _FEWEST_CALLS)]
    if known and not any(_is_slow(kind) for kind in known):
        ratios, cluster = sorted(kind.ratio or 0 for kind in known), facts.cluster.name if facts.cluster else ""
        fast = min(
            (kind for kind in known if kind.size_bytes >= _LEAST_BYTES), key=lambda kind: kind.ratio or 0, default=None
        )
        too_fast = fast is not None and (fast.ratio or 0) < _FAST
        yield Check(
            "collectives beside the model",
            f"{_count(len(known))} {ratios[0]:.2f} to {ratios[-1]:.2f} of the time expected on {cluster}"
            + (f"; {_call(fast)} is faster than {cluster} can be: is --cluster what the job ran on?" if fast and too_fast else ""),
            list((fast if fast and too_fast else known[0]).lines[:1]), decisive=not too_fast,
        )  # fmt: skip
    matched = [kind for kind in kinds if kind.matched]
    spent, waited = sum(kind.spent_ns for kind in matched), sum(kind.waited_ns for kind in matched)
    if spent and sum(kind.calls for kind in matched) >= _FEWEST_WAITS and waited > _WORTH_A_WORD * spent:
        most = max(matched, key=lambda kind: kind.waited_ns)
        yield Check(
            "waiting inside collectives", f"{waited / spent * 100:.0f} % of the time that ranks spend in collectives is waiting for the last one to come, most in {_call(most)}",
            list(most.lines[:1]), decisive=False,
        )  # fmt: skip


RULES = (slower_than_expected,)
