"""Calls of collectives as the ranks of each group made them: what rules over calls compare."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from busbw.diagnosis.facts import Collective, Facts

__all__ = [
    "DUMPS",
    "INSPECTOR",
    "MOST_NAMED",
    "NSIGHT",
    "TRACES",
    "CallGroup",
    "Lane",
    "Mismatch",
    "call_groups",
    "comparable",
    "describe",
    "lane_names",
    "mismatch",
]

DUMPS = "flight-recorder"
INSPECTOR = "nccl-inspector"
TRACES = "kineto"
NSIGHT = "nsight-systems"

_BLOCKING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves these before the last one has come."""
_SAME_INPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"})
"""All ranks give as many elements. all_to_all may be uneven, scatter has an input at the root only."""
MOST_NAMED = 6
"""Ranks that a summary names; it counts the others."""


@dataclass(slots=True)
class Lane:
    """What one rank did in one group."""

    artefact: str
    rank: int | None
    host: str | None
    path: str
    calls: dict[int, list[Collective]] = field(default_factory=dict)
    elsewhere: Collective | None = None
    """A call of this rank in another group, if it made none in this one."""
    place: tuple[int | None, int | None] = (None, None)
    """Process and GPU, where a file may hold several and the rank is not known."""

    @property
    def name(self) -> str:
        """Rank 3 (host), as summaries name it."""
        rank = f"rank {self.rank}" if self.rank is not None else PurePath(self.path).name
        if self.rank is None and self.place != (None, None):
            rank += f", GPU {self.place[1]} of process {self.place[0]}"
        return f"{rank} ({self.host})" if self.host else rank

    @property
    def first(self) -> int:
        """The first sequence number here; 1 if there is none."""
        return min(self.calls, default=1)

    @property
    def last(self) -> int:
        """The last sequence number here; 0 if there is none."""
        return max(self.calls, default=0)

    @property
    def latest(self) -> Collective | None:
        """The last call here, else one that shows where the rank is."""
        return self.calls[self.last][0] if self.calls else self.elsewhere

    @property
    def done(self) -> int:
        """The last sequence number that completed. What left the ring buffer did."""
        finished = (seq for seq, calls in self.calls.items() if all(call.done for call in calls))
        return max(finished, default=self.first - 1)

    def only(self, seq: int) -> Collective | None:
        """The one call of this number; None for coalesced ones, which share it."""
        calls = self.calls.get(seq, ())
        return calls[0] if len(calls) == 1 else None


@dataclass(slots=True)
class CallGroup:
    """A process group or communicator as the ranks whose files are there saw it."""

    name: str
    members: tuple[int, ...]
    lanes: list[Lane]

    @property
    def unseen(self) -> int:
        """Members without a file; 0 if the members are not known."""
        return max(0, len(self.members) - len(self.lanes))

    def shared(self) -> list[int]:
        """Sequence numbers that two ranks or more have, in order."""
        seen = Counter(seq for lane in self.lanes for seq in lane.calls)
        return sorted(seq for seq, times in seen.items() if times > 1)

    @property
    def next(self) -> int:
        """What the slowest rank has to complete next."""
        return min(lane.done for lane in self.lanes) + 1

    def complete(self) -> bool:
        """Whether whatever a rank waits for, another one has completed."""
        return max(lane.done for lane in self.lanes) >= max(lane.last for lane in self.lanes)


def call_groups(facts: Facts, source: str) -> list[CallGroup]:
    """Groups with their ranks. Files of two runs in which one rank appears twice are kept apart by folder, or left out."""
    by_group: dict[tuple[str, str, int], dict[tuple[str, int | None, tuple[int | None, int | None]], Lane]] = (
        defaultdict(dict)
    )
    lists: dict[tuple[int, ...], int] = {}
    by_identity: dict[int, int] = {}  # calls share their lists of members, and a list may name every rank of the job
    for call in facts.collectives:
        if call.source != source or call.is_p2p or call.op in ("send", "recv"):
            continue
        number = by_identity.get(id(call.members))
        if number is None:
            number = by_identity[id(call.members)] = lists.setdefault(call.members, len(lists))
        lanes = by_group[call.group or "", call.desc or "", number]
        # A communicator's identity is one run's; two files of one rank continue each other.
        artefact = "" if source == INSPECTOR else call.at.artefact
        place = call.place if source == NSIGHT else (None, None)
        lane = lanes.get((artefact, call.rank, place))
        if lane is None:
            lane = lanes[artefact, call.rank, place] = Lane(
                call.at.artefact, call.rank, call.host, call.at.path, place=place
            )
        lane.calls.setdefault(call.seq, []).append(call)
    found = []
    members_of = list(lists)
    for (group, desc, number), lanes in by_group.items():
        name = f"group {desc or group}" if desc or group else "a group"
        for together in _runs(list(lanes.values())):
            together.sort(
                key=lambda lane: (lane.rank is None, lane.rank or 0, lane.path, lane.place[0] or 0, lane.place[1] or 0)
            )
            found.append(CallGroup(name, members_of[number], together))
    return found


def _runs(lanes: list[Lane]) -> Iterator[list[Lane]]:
    if _no_rank_twice(lanes):
        yield lanes
        return
    folders: dict[PurePath, list[Lane]] = defaultdict(list)
    for lane in lanes:
        folders[PurePath(lane.path).parent].append(lane)
    for inside in folders.values():
        if _no_rank_twice(inside):
            yield inside


def _no_rank_twice(lanes: Sequence[Lane]) -> bool:
    ranks = [lane.rank for lane in lanes if lane.rank is not None]
    return len(ranks) == len(set(ranks))


def lane_names(lanes: Iterable[Lane]) -> str:
    """Their names, the first few spelled out."""
    names = [lane.name for lane in lanes]
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def describe(call: Collective) -> str:
    """all_reduce of 4096 elements float32."""
    words = [call.op or call.name.rsplit(":", 1)[-1]]
    elements = call.input_numel if call.input_numel is not None else call.output_numel
    if elements is not None:
        words.append(f"of {elements} elements")
    if call.dtype:
        words.append(call.dtype)
    return " ".join(words)


@dataclass(slots=True)
class Mismatch:
    """A call that ranks do not agree on: the odd ones, and the others."""

    seq: int
    what: str
    """operation, type or size."""
    odd: list[tuple[Lane, Collective]]
    others: list[tuple[Lane, Collective]]

    @property
    def done(self) -> bool:
        """Whether all of them completed it."""
        return all(call.done for _, call in [*self.odd, *self.others])


def mismatch(group: CallGroup) -> Mismatch | None:
    """The first call that ranks do not agree on."""
    for seq in group.shared():
        calls = [(lane, call) for lane in group.lanes if (call := lane.only(seq)) is not None]
        if len(calls) < 2:
            continue
        kinds: tuple[tuple[str, Callable[[Collective], object]], ...] = (
            ("operation", lambda c: c.op or c.name), ("type", lambda c: c.dtype), ("size", _compared_size),
        )  # fmt: skip
        for what, key in kinds:
            known = [(lane, call) for lane, call in calls if key(call) is not None]
            values = Counter(key(call) for _, call in known)
            if len(values) < 2 or (
                what == "size" and _uneven_by_intent([call for _, call in calls], len(group.members))
            ):
                continue
            usual = values.most_common(1)[0][0]
            odd = [(lane, call) for lane, call in known if key(call) != usual]
            return Mismatch(seq, what, odd, [(lane, call) for lane, call in known if key(call) == usual])
    return None


def _compared_size(call: Collective) -> int | None:
    if call.op == "scatter":
        return call.output_numel
    return call.input_numel if call.op in _SAME_INPUT else None


def _uneven_by_intent(calls: Sequence[Collective], members: int) -> bool:
    """An all-gather of a list whose tensors differ: each rank's output holds just what all of them give."""
    if any(call.op != "all_gather" for call in calls) or (members and members != len(calls)):
        return False
    total = sum(call.input_numel or 0 for call in calls)
    return all(call.output_numel == total for call in calls)


def comparable(group: CallGroup) -> list[dict[int, Collective]]:
    """Calls that all ranks made, by the index of the rank's lane."""
    found = []
    for seq in group.shared():
        calls = {i: call for i, lane in enumerate(group.lanes) if (call := lane.only(seq)) is not None}
        if len(calls) == len(group.lanes) and all(call.op in _BLOCKING for call in calls.values()):
            found.append(calls)
    return found
