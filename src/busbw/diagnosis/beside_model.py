"""Collectives of traces beside what the model expects of them on the cluster that the user names.

A rank that comes early waits inside the collective, and its kernel is long for that. What the network needed is what the last one to come spent: the
shortest of the ranks' times for a call that all of them recorded. Where traces of some ranks are missing, the last to come may be one of
those; then the shortest of all calls of a kind is taken, and is an upper bound.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from busbw.diagnosis.call_groups import INSPECTOR, NSIGHT, TRACES, CallGroup, call_groups
from busbw.diagnosis.facts import Collective, Facts, UnnumberedCalls, lines_of
from busbw.diagnosis.findings import LineRef
from busbw.errors import InputError
from busbw.hardware import Cluster

__all__ = [
    "ExpectedStep",
    "KindOfCall",
    "StepPart",
    "calls_beside_model",
    "figures_json",
    "read_expected",
    "step_beside_model",
]


@dataclass(frozen=True, slots=True)
class KindOfCall:
    """Calls of one group with the same collective and size."""

    group: str
    collective: str
    size_bytes: int
    ranks: int
    inside: int
    """Members in one NVLink domain."""
    calls: int
    matched: bool
    """Whether every rank of the group recorded them, so that waiting is known."""
    took_ns: int
    """What the transfer needed; an upper bound unless `matched`."""
    waited_ns: int
    """All ranks and calls together: in the collective, but only for ranks that came later. 0 unless `matched`."""
    spent_ns: int
    """All ranks and calls together."""
    expected_ns: int | None
    """By the model; None: no cluster was named, or the model knows no such call."""
    high_ns: int | None
    """80 % of measurements of healthy clusters lie between the low end and this."""
    lines: Sequence[LineRef]

    @property
    def ratio(self) -> float | None:
        """Taken over expected."""
        return self.took_ns / self.expected_ns if self.expected_ns else None

    @property
    def lost_ns(self) -> int:
        """Beyond what was expected, all calls together."""
        return max(0, self.took_ns - (self.expected_ns or self.took_ns)) * self.calls


@dataclass(frozen=True, slots=True)
class ExpectedStep:
    """What `busbw simulate training --json` says of a step. Seconds."""

    model: str
    layout: str
    step_s: float
    low_s: float
    high_s: float
    breakdown_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step, measured and expected. Seconds."""

    name: str
    measured_s: float
    expected_s: float


_LARGEST_EXPECTED_BYTES = 1 << 24
_COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")


def read_expected(path: Path) -> ExpectedStep:
    """The step in a file that `busbw simulate training --json` wrote. Raises InputError."""
    how = "Write it with `busbw simulate training ... --json > FILE`."
    try:
        with path.open("rb") as stream:
            told = json.loads(stream.read(_LARGEST_EXPECTED_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}. {how}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON: {str(error)[:120]}. {how}") from None
    parts = told.get("breakdown_s") if isinstance(told, dict) else None
    whole, low, high = (told.get(key) if isinstance(told, dict) else None for key in ("step_s", "low_s", "high_s"))
    if not (
        isinstance(parts, dict)
        and parts
        and all(_is_time(value) for value in (whole, low, high, *parts.values()))
        and whole
    ):
        raise InputError(f"{path}: no training step in it: step_s, low_s, high_s and breakdown_s are wanted. {how}")
    return ExpectedStep(
        str(told.get("model"))[:100],
        str(told.get("layout"))[:100],
        float(whole),
        float(low or 0),
        float(high or 0),
        {str(name): float(value) for name, value in parts.items()},
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def step_beside_model(facts: Facts, expected: ExpectedStep) -> list[StepPart]:
    """The step of the traces, median over ranks and steps, beside the expected one: the whole, then its parts. Empty without steps of traces.

    Waiting for late ranks is in the measured communication, and waiting for other stages in its idle time.
    """
    from busbw.diagnosis.rules.steps import steps_by_rank  # noqa: PLC0415 - the rules import this module

    steps = [step for found in steps_by_rank(facts).values() for step in found]
    if not steps:
        return []
    parts = expected.breakdown_s
    communication = sum(parts.get(name, 0.0) for name in _COMMUNICATION)
    computing = parts.get("compute", 0.0) + parts.get("optimizer", 0.0)

    def median(times_ns: list[int]) -> float:
        return statistics.median(times_ns) / 1e9

    return [
        StepPart("step", median([step.time_ns for step in steps]), expected.step_s),
        StepPart("computing", median([step.compute_ns for step in steps]), computing),
        StepPart("communication, exposed", median([step.exposed_ns for step in steps]), communication),
        StepPart(
            "copies, idle",
            median([step.copy_ns + step.idle_ns for step in steps]),
            max(0.0, sum(parts.values()) - computing - communication),
        ),
    ]


def calls_beside_model(facts: Facts) -> list[KindOfCall]:
    """Every kind of call with known bytes and ranks in the traces, those first that lose most. With a cluster in the facts, each with its expected time."""
    times = _Times(facts.cluster) if facts.cluster is not None else None
    found = [
        kind
        for source in (TRACES, NSIGHT, INSPECTOR)
        for group in call_groups(facts, source)
        for kind in _kinds(group, times)
    ]
    found += _unnumbered(facts, times)
    return sorted(found, key=lambda kind: (-kind.lost_ns, -kind.spent_ns, kind.group, kind.collective, kind.size_bytes))


def figures_json(kinds: Sequence[KindOfCall]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [
        {
            "group": kind.group, "collective": kind.collective, "size_bytes": kind.size_bytes, "ranks": kind.ranks, "ranks_in_a_domain": kind.inside,
            "calls": kind.calls, "matched": kind.matched, "took_s": kind.took_ns / 1e9, "waited_s": kind.waited_ns / 1e9 if kind.matched else None,
            "expected_s": kind.expected_ns / 1e9 if kind.expected_ns is not None else None, "high_s": kind.high_ns / 1e9 if kind.high_ns is not None else None,
        }
        for kind in kinds
    ]  # fmt: skip


def _kinds(group: CallGroup, times: _Times | None) -> list[KindOfCall]:
    calls_of: dict[int, list[Collective]] = defaultdict(list)
    for lane in group.lanes:
        for seq in lane.calls:
            call = lane.only(seq)
            if call is not None and call.duration_ns is not None:
                calls_of[seq].append(call)
    alike: dict[tuple[str, int, int], list[list[Collective]]] = defaultdict(list)
    for _, calls in sorted(calls_of.items()):
        op, size, ranks = calls[0].op, calls[0].size_bytes, calls[0].ranks or len(group.members)
        if op is not None and size and ranks > 1 and {call.op for call in calls} == {op}:
            alike[op, size, ranks].append(calls)
    found = []
    for (op, size, ranks), together in alike.items():
        matched = len(group.lanes) == ranks and all(len(calls) == ranks for calls in together)
        shortest = [min(calls, key=lambda call: call.duration_ns or 0) for calls in together]
        durations = [call.duration_ns or 0 for call in shortest]
        took = round(statistics.median(durations)) if matched else min(durations)
        inside = times.inside(group, ranks) if times is not None else 1
        expected, high = times.expected(op, size, ranks, inside) if times is not None else (None, None)
        worst = sorted(shortest, key=lambda call: -(call.duration_ns or 0))
        spent = sum(call.duration_ns or 0 for calls in together for call in calls)
        waited = spent - ranks * sum(durations) if matched else 0
        found.append(
            KindOfCall(
                group.name,
                op,
                size,
                ranks,
                inside,
                len(together),
                matched,
                took,
                waited,
                spent,
                expected,
                high,
                tuple(lines_of(worst, most=6)),
            )
        )
    return found


def _unnumbered(facts: Facts, times: _Times | None) -> list[KindOfCall]:
    """Kinds of calls that carry no number (traces of older PyTorch): all ranks' together, the shortest of all."""
    alike: dict[tuple[Any, ...], list[UnnumberedCalls]] = defaultdict(list)
    for calls in facts.unnumbered:
        alike[calls.source, calls.group, calls.desc, calls.members, calls.op, calls.size_bytes, calls.ranks].append(
            calls
        )
    found = []
    for (_, group, desc, members, op, size, ranks), together in alike.items():
        inside = times.together(members, ranks) if times is not None else 1
        expected, high = times.expected(op, size, ranks, inside) if times is not None else (None, None)
        shortest = sorted(together, key=lambda calls: calls.shortest_ns)
        name = f"group {desc or group}" if desc or group else "a group"
        spent = sum(calls.spent_ns for calls in together)
        found.append(
            KindOfCall(
                name, op, size, ranks, inside, max(calls.calls for calls in together), False, shortest[0].shortest_ns, 0, spent, expected, high, tuple(lines_of(shortest, most=6)),
            )
        )  # fmt: skip
    return found


class _Times:
    """What the model expects on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        from busbw.workloads.training.network import GroupTimes  # noqa: PLC0415 - loads the calibration

        self._groups = GroupTimes(cluster)
        self._known: dict[tuple[str, int, int, int], tuple[int, int] | tuple[None, None]] = {}

    def inside(self, group: CallGroup, ranks: int) -> int:
        """Members of a group that share NVLink: by their ranks in the job, else by their hosts, else as if they followed one another."""
        domain = self._groups.domain
        seen = {lane.host for lane in group.lanes if lane.host}
        if len(group.members) == ranks:
            return self.together(group.members, ranks)
        if len(group.lanes) == ranks and all(lane.host for lane in group.lanes):
            together = math.ceil(ranks / len(seen))
        else:
            together = ranks
        return _even(ranks, min(together, domain))

    def together(self, members: Sequence[int], ranks: int) -> int:
        """The same for these ranks of the job; where they are not known, for so many that follow one another."""
        domain = self._groups.domain
        if len(members) != ranks:
            return _even(ranks, domain)
        return _even(ranks, max(Counter(rank // domain for rank in members).values()))

    def expected(self, op: str, size: int, ranks: int, inside: int) -> tuple[int, int] | tuple[None, None]:
        """Time, and the upper end of its interval, ns."""
        key = (op, size, ranks, inside)
        if key not in self._known:
            self._known[key] = self._predicted(*key)
        return self._known[key]

    def _predicted(self, op: str, size: int, ranks: int, inside: int) -> tuple[int, int] | tuple[None, None]:
        from busbw.prediction import PREDICTED, model_in, predict_in  # noqa: PLC0415

        if op not in PREDICTED:
            return None, None
        try:
            where = replace(self._groups.situation(ranks, inside), node=self._groups.whole.node)
            found = predict_in(where, op, [size], model=model_in(where))
        except InputError:
            return None, None
        return round(float(found.time_s[0]) * 1e9), round(float(found.high_s[0]) * 1e9)


def _even(ranks: int, most: int) -> int:
    """The largest number up to `most` that divides the ranks."""
    return next(k for k in range(max(1, min(ranks, most)), 0, -1) if ranks % k == 0)
