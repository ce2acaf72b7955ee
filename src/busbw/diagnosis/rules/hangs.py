"""Ranks compared call by call: who called something else, who is missing, who is gone, who comes last, and where all are stuck."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from busbw.diagnosis.facts import Collective, Event, Facts, Progress, lines_of
from busbw.diagnosis.findings import Check, Finding, LineRef
from busbw.diagnosis.rules.desync import EFFECTS
from busbw.units import format_time_ns

__all__ = ["RULES", "checks"]

_DUMPS = "flight-recorder"
_INSPECTOR = "nccl-inspector"
_RAS = "ncclras"

_BLOCKING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves these before the last one has come."""
_SAME_INPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"})
"""All ranks give as many elements. all_to_all may be uneven, scatter has an input at the root only."""
_MOST_NAMED = 6

_LOOK_AT_THE_RANK = "Look at that rank's stack and log at the time: data loading, compilation, checkpoint, an exception; a longer timeout only hides it."
_LOOK_BELOW = (
    "Look below the API: NIC counters and link state, Xid and ECC, NCCL's proxy threads of the ranks of this group."
)
_SAME_CALLS = "Make every rank issue the same collectives in the same order (no rank-dependent branches, same shapes and types, same number of batches)."


@dataclass(slots=True)
class _Lane:
    """What one rank did in one group."""

    artefact: str
    rank: int | None
    host: str | None
    path: str
    calls: dict[int, list[Collective]] = field(default_factory=dict)
    elsewhere: Collective | None = None
    """A call of this rank in another group, if it made none in this one."""

    @property
    def name(self) -> str:
        rank = f"rank {self.rank}" if self.rank is not None else PurePath(self.path).name
        return f"{rank} ({self.host})" if self.host else rank

    @property
    def first(self) -> int:
        return min(self.calls, default=1)

    @property
    def last(self) -> int:
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
class _Group:
    """A process group or communicator as the ranks whose files are there saw it."""

    name: str
    members: tuple[int, ...]
    lanes: list[_Lane]

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


def _groups(facts: Facts, source: str) -> list[_Group]:
    """Groups with their ranks. Files of two runs in which one rank appears twice are kept apart by folder, or left out."""
    by_group: dict[tuple[str, str, int], dict[tuple[str, int | None], _Lane]] = defaultdict(dict)
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
        artefact = "" if source == _INSPECTOR else call.at.artefact
        lane = lanes.get((artefact, call.rank))
        if lane is None:
            lane = lanes[artefact, call.rank] = _Lane(call.at.artefact, call.rank, call.host, call.at.path)
        lane.calls.setdefault(call.seq, []).append(call)
    found = []
    members_of = list(lists)
    for (group, desc, number), lanes in by_group.items():
        name = f"group {desc or group}" if desc or group else "a group"
        for together in _runs(list(lanes.values())):
            together.sort(key=lambda lane: (lane.rank is None, lane.rank or 0, lane.path))
            found.append(_Group(name, members_of[number], together))
    return found


def _runs(lanes: list[_Lane]) -> Iterator[list[_Lane]]:
    if _no_rank_twice(lanes):
        yield lanes
        return
    folders: dict[PurePath, list[_Lane]] = defaultdict(list)
    for lane in lanes:
        folders[PurePath(lane.path).parent].append(lane)
    for inside in folders.values():
        if _no_rank_twice(inside):
            yield inside


def _no_rank_twice(lanes: Sequence[_Lane]) -> bool:
    ranks = [lane.rank for lane in lanes if lane.rank is not None]
    return len(ranks) == len(set(ranks))


def _names(lanes: Iterable[_Lane]) -> str:
    names = [lane.name for lane in lanes]
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


def _describe(call: Collective) -> str:
    words = [call.op or call.name.rsplit(":", 1)[-1]]
    elements = call.input_numel if call.input_numel is not None else call.output_numel
    if elements is not None:
        words.append(f"of {elements} elements")
    if call.dtype:
        words.append(call.dtype)
    return " ".join(words)


@dataclass(slots=True)
class _Mismatch:
    seq: int
    what: str
    odd: list[tuple[_Lane, Collective]]
    others: list[tuple[_Lane, Collective]]

    @property
    def done(self) -> bool:
        return all(call.done for _, call in [*self.odd, *self.others])


def _mismatch(group: _Group) -> _Mismatch | None:
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
            return _Mismatch(seq, what, odd, [(lane, call) for lane, call in known if key(call) == usual])
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


def _processes(facts: Facts) -> dict[int, Event]:
    """The line by which NCCL says which process and GPU a rank of the job is, from the job's largest communicator.

    Empty where several communicators of that size disagree: their ranks are not those of the job.
    """
    found: dict[int, Event] = {}
    largest = max((e.number("ranks") or 0 for e in facts.all("nccl.comm")), default=0)
    for event in facts.all("nccl.comm"):
        rank = event.number("rank")
        if rank is not None and event.number("ranks") == largest:
            known = found.setdefault(rank, event)
            if (known.host, known.pid) != (event.host, event.pid):
                return {}
    return found


def _also_known_as(lanes: Sequence[_Lane], group: _Group, facts: Facts) -> tuple[str, list[Event]]:
    """What NCCL's log says of these ranks, for the summary, and its lines: who they are, and their own last error."""
    processes = _processes(facts)
    if not processes or max((*group.members, *(lane.rank or 0 for lane in group.lanes)), default=0) > max(processes):
        return "", []
    known = [processes[lane.rank] for lane in lanes[:3] if lane.rank in processes]
    if not known:
        return "", []
    who = ", ".join(f"{e.host or 'a host'}:{e.pid} GPU {e.fields.get('bus_id', '?')}" for e in known)
    errors = [
        e for e in facts.failures() if (e.host, e.pid) in {(k.host, k.pid) for k in known} and e.name not in EFFECTS
    ]
    said = f", whose log says: {errors[-1].text.strip()[:100]}" if errors else ""
    return f"; to NCCL that is {who}{said}", [*known, *errors[-2:]]


def _without_dump(group: _Group, facts: Facts) -> str:
    """What to say of members without calls."""
    if not group.unseen:
        return ""
    if facts.ranks_left_out:
        return f"; {group.unseen} members left no dump or were not compared"
    return f"; {group.unseen} members left no dump"


def calls_differ(facts: Facts) -> Iterator[Finding]:
    """At one place in the order of a process group, ranks called different operations, or the same with another size or type.

    Fires on dumps of PyTorch's Flight Recorder: at equal group and sequence number, operation, type or number of elements differ. The ranks
    that differ from most are named. Less sure if all of them completed it. Silent on coalesced calls, uneven all_to_all and all_gather of
    lists that fit together, and on sizes of scatter.
    """
    for group in _groups(facts, _DUMPS):
        found = _mismatch(group)
        if found is None:
            continue
        odd, other = found.odd[0][1], found.others[0][1]
        alias, known = _also_known_as([lane for lane, _ in found.odd], group, facts)
        yield Finding(
            "collective-mismatch", 0.5 if found.done else (0.93 if found.what == "operation" else 0.9), "fatal",
            f"{group.name}, call {found.seq}: {_names(lane for lane, _ in found.odd)} called {_describe(odd)}, {_names(lane for lane, _ in found.others)} {_describe(other)} ({found.what} differs){alias}",
            lines_of([*(call for _, call in [*found.odd[:6], *found.others[:6]]), *known], most=16), _SAME_CALLS, ["TORCH_SHOW_CPP_STACKTRACES=1 TORCH_NCCL_TRACE_CPP_STACK=1: the frames of this call on both ranks"],
        )  # fmt: skip


@dataclass(slots=True)
class _Wait:
    """Ranks that wait in a call and those that never made it."""

    group: _Group
    seq: int
    waiting: list[_Lane]
    behind: list[_Lane]


def _never_here(group: _Group, dumps: Mapping[str, Collective]) -> list[_Lane]:
    """Members whose dump shows no call in this group."""
    seen = {lane.rank for lane in group.lanes}
    ranks = Counter(call.rank for call in dumps.values())
    return [
        _Lane(artefact, call.rank, call.host, call.at.path, {}, call)
        for artefact, call in dumps.items()
        if call.rank in group.members and call.rank not in seen and ranks[call.rank] == 1
    ]


def _waits(facts: Facts) -> list[_Wait]:
    found = []
    dumps: dict[str, Collective] = {}
    for call in facts.collectives:
        if call.source == _DUMPS:
            dumps.setdefault(call.at.artefact, call)
    for group in _groups(facts, _DUMPS):
        if _mismatch(group) is not None:
            continue
        seq = group.next
        if seq == 1:
            group.lanes += _never_here(group, dumps)
        waiting = [lane for lane in group.lanes if seq in lane.calls and lane.done < seq]
        behind = [lane for lane in group.lanes if lane.last < seq]
        if waiting and behind and all(lane.done < seq for lane in group.lanes):
            found.append(_Wait(group, seq, waiting, behind))
    return found


def rank_lacks_next_call(facts: Facts) -> Iterator[Finding]:
    """Some ranks wait in a collective that others have not even enqueued.

    Fires on dumps of PyTorch's Flight Recorder: the slowest rank of a group has completed call n, some ranks wait in n+1 and others lack it.
    Those are named; a rank that itself waits in another group is not the culprit while another one is there. If most ranks lack it, the few may
    have made a call too many. Silent when somebody completed n+1: the dumps were taken one after the other.
    """
    waits = _waits(facts)
    in_a_call = {lane.artefact for wait in waits for lane in wait.waiting}
    roots = [wait for wait in waits if any(lane.artefact not in in_a_call for lane in wait.behind)]
    for wait in roots or waits:
        behind = [lane for lane in wait.behind if lane.artefact not in in_a_call] or wait.behind
        call = wait.waiting[0].calls[wait.seq][0]
        few_wait = len(wait.waiting) < len(behind)
        alias, known = _also_known_as(behind, wait.group, facts)
        lines = lines_of(
            [
                *(latest for lane in behind[:6] if (latest := lane.latest) is not None),
                *(lane.calls[wait.seq][0] for lane in wait.waiting[:6]),
                *known,
            ],
            most=16,
        )
        tell = ["py-spy dump --pid PID of that rank", "a second dump a minute later: is it the same call"]
        yield Finding(
            "rank-late-or-stuck", 0.5 if not roots or few_wait else 0.88, "fatal",
            f"{wait.group.name}: {_names(behind)} made no call after {min(lane.last for lane in behind)}; {_names(wait.waiting)} wait in call {wait.seq}, {_describe(call)}{alias}{_without_dump(wait.group, facts)}",
            lines, _LOOK_AT_THE_RANK, tell,
        )  # fmt: skip
        if few_wait:
            yield Finding(
                "collective-mismatch", 0.4, "fatal", f"{wait.group.name}: {_names(wait.waiting)} made a call, {wait.seq}, that most ranks did not make",
                lines, _SAME_CALLS, tell,
            )  # fmt: skip


def all_wait_in_one_call(facts: Facts) -> Iterator[Finding]:
    """Every rank is in the same collective, and none completed it.

    Fires on dumps of PyTorch's Flight Recorder of a group's ranks that all have the same call next and not done. If it was started on most
    ranks and not on a few, those GPUs may be busy with something else. Less sure when dumps of members are missing. Silent when one rank
    completed the call or lacks it.
    """
    for group in _groups(facts, _DUMPS):
        if len(group.lanes) < 2 or _mismatch(group) is not None:
            continue
        seq = group.next
        if not all(seq in lane.calls and lane.done < seq for lane in group.lanes):
            continue
        started = [lane for lane in group.lanes if all(call.state == "started" for call in lane.calls[seq])]
        rest = [lane for lane in group.lanes if lane not in started]
        mixed = bool(started) and len(rest) < len(started) and bool(rest)
        sure = 0.5 if group.unseen or mixed else (0.82 if not rest else 0.65)
        without = _without_dump(group, facts)
        lines = lines_of(lane.calls[seq][0] for lane in [*rest[:6], *started[:6]])
        tell = [
            "a second dump a minute later: is it the same call",
            "NIC counters and Xid on the nodes of this group",
            "ncclras -v while it hangs",
        ]
        yield Finding(
            "hang-inside-collective", sure, "fatal",
            f"{group.name}: all {len(group.lanes)} ranks are in call {seq}, {_describe(group.lanes[0].calls[seq][0])}, and none completed it{without}",
            lines, _LOOK_BELOW, tell,
        )  # fmt: skip
        if mixed:
            yield Finding(
                "rank-late-or-stuck", 0.4, "fatal", f"{group.name}: the GPU of {_names(rest)} did not start call {seq}, which {len(started)} ranks started",
                lines, "See what that GPU runs before the collective: a kernel that does not end, a copy, a wait for another stream.", tell,
            )  # fmt: skip


_OPPOSITE = {"send": "recv", "recv": "send"}


def transfer_without_partner(facts: Facts) -> Iterator[Finding]:
    """A send or receive waits for a rank that has not made its counterpart.

    Fires on dumps of PyTorch's Flight Recorder: a rank's send or receive is not done, and its peer, whose dump is there, made fewer counterparts and has none
    under way. Who waits for somebody else is not the culprit while there is one who does not; ranks that wait in a circle made their calls in
    another order. Silent when the counterpart is under way, and when the peer left no dump.
    """
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    latest: dict[str, Collective] = {}
    for call in facts.collectives:
        if call.source != _DUMPS:
            continue
        known = latest.get(call.at.artefact)
        if known is None or (call.created_ns or 0) >= (known.created_ns or 0):
            latest[call.at.artefact] = call
        if call.op in _OPPOSITE and call.peer is not None and call.rank is not None:
            mine = call.members.index(call.rank) if call.rank in call.members else call.rank
            groups[call.group or "", call.desc or ""][mine].append(call)
    by_rank = {call.rank: call for call in latest.values()}
    if len(by_rank) < len(latest):
        return  # dumps of two runs
    for (group, desc), ranks in groups.items():
        if any(len({call.at.artefact for call in calls}) > 1 for calls in ranks.values()):
            continue
        waits: dict[int, list[Collective]] = defaultdict(list)
        for mine, calls in ranks.items():
            for call in calls:
                theirs = _of_peer(call, ranks, by_rank)
                if call.done or theirs is None:
                    continue
                counterparts = [c for c in theirs if c.op == _OPPOSITE[call.op or ""] and c.peer == mine]
                made = sum(1 for c in calls if c.op == call.op and c.peer == call.peer)
                if len(counterparts) < made and all(c.done for c in counterparts):
                    waits[mine].append(call)
        culprits = sorted(
            {call.peer for calls in waits.values() for call in calls if call.peer is not None} - set(waits)
        )
        name = f"group {desc or group}" if desc or group else "a group"
        first = [calls[0] for calls in waits.values()]
        if culprits:
            told = [c for c in (by_rank.get(_job_rank(first[0], peer)) for peer in culprits[:4]) if c is not None]
            yield Finding(
                "rank-late-or-stuck", 0.65, "fatal", f"{name}: rank {culprits[0]} of the group made no counterpart to {first[0].name.rsplit(':', 1)[-1]}; {len(waits)} ranks wait",
                lines_of([*told, *first[:8]]), _LOOK_AT_THE_RANK, ["py-spy dump --pid PID of that rank", "a second dump a minute later: is it the same call"],
            )  # fmt: skip
        elif waits:
            yield Finding(
                "collective-mismatch", 0.55, "fatal", f"{name}: {len(waits)} ranks wait in sends and receives that nobody answers, in a circle", lines_of(first),
                "Order sends and receives so that no circle of ranks sends first, or put them in one batch (batch_isend_irecv).", ["TORCH_SHOW_CPP_STACKTRACES=1 TORCH_NCCL_TRACE_CPP_STACK=1: the frames of these calls"],
            )  # fmt: skip


def _job_rank(call: Collective, local: int) -> int:
    """A rank of the call's group by its number in the job."""
    return call.members[local] if 0 <= local < len(call.members) else local


def _of_peer(
    call: Collective, ranks: Mapping[int, list[Collective]], by_rank: Mapping[int | None, Collective]
) -> list[Collective] | None:
    """Sends and receives of the call's peer; None if it left no dump."""
    if call.peer is None or _job_rank(call, call.peer) not in by_rank:
        return None
    return ranks.get(call.peer, [])


def launches_differ(facts: Facts) -> Iterator[Finding]:
    """Ranks of a communicator have launched different numbers of collectives.

    Fires on the JSON status of ncclras: counts of an operation differ between the ranks of a communicator. Ranks that are behind in one
    operation and ahead in another called different ones. Less sure where many ranks differ: a status of a running job is no snapshot.
    Silent when all counts are equal, and when RAS says that members are dead or missing, which explains it.
    """
    lost = {e.fields.get("comm") for e in facts.all("ras.peer_dead", "ras.rank_missing")}
    by_comm: dict[str | None, dict[int, dict[str, Progress]]] = defaultdict(lambda: defaultdict(dict))
    for row in facts.progress:
        if row.source == _RAS and row.rank is not None and row.op is not None and row.last_enqueued is not None:
            by_comm[row.group][row.rank][row.op] = row
    for comm, ranks in by_comm.items():
        if comm in lost or len(ranks) < 2:
            continue
        low, high = _behind_and_ahead(ranks)
        if not low:
            continue
        both = sorted(low & high)
        named = both or sorted(low)
        odd = set(named)
        shown = [*named[:6], *[rank for rank in ranks if rank not in odd][:6]]
        rows = [next(iter(ranks[rank].values())) for rank in shown]
        who = ", ".join(
            f"rank {rank}" + (f" ({host})" if (host := next(iter(ranks[rank].values())).host) else "")
            for rank in named[:_MOST_NAMED]
        )
        few = len(named) * 2 <= len(ranks)
        tell = ["ncclras -v twice, a minute apart: do the same ranks stay behind", "py-spy dump --pid PID of that rank"]
        if both:
            yield Finding(
                "collective-mismatch", 0.7 if few else 0.5, "fatal", f"communicator {comm}: {who} launched fewer of one collective and more of another than the others",
                lines_of(rows), _SAME_CALLS, tell,
            )  # fmt: skip
        else:
            yield Finding(
                "rank-late-or-stuck", 0.75 if few else 0.5, "fatal", f"communicator {comm}: {who} launched fewer collectives than the other ranks",
                lines_of(rows), _LOOK_AT_THE_RANK, tell,
            )  # fmt: skip


def _behind_and_ahead(ranks: Mapping[int, Mapping[str, Progress]]) -> tuple[set[int], set[int]]:
    """Ranks with fewer, and with more, calls of some operation than most; without a majority the lowest are behind."""
    low: set[int] = set()
    high: set[int] = set()
    for op in {op for rows in ranks.values() for op in rows}:
        counts = {rank: rows[op].last_enqueued or 0 for rank, rows in ranks.items() if op in rows}
        values = Counter(counts.values())
        if len(values) < 2:
            continue
        usual, times = values.most_common(1)[0]
        if times * 2 <= len(counts):
            usual = max(values)
        low |= {rank for rank, count in counts.items() if count < usual}
        high |= {rank for rank, count in counts.items() if count > usual}
    if not low:  # a few are ahead, so most are behind
        return set(ranks) - high if high else set(), set()
    return low, high


def members_lost(facts: Facts) -> Iterator[Finding]:
    """RAS lost processes of the job: they are dead, or do not answer.

    Fires on the section DEAD of ncclras, on members that its JSON calls dead, on PEER_DEAD of its monitor, and weakly on members whose data is
    missing or that are unresponsive. Silent about a peer that was heard again, and about peers that only disconnected or are retried.
    """
    heard = {_peer(e): e.at for e in facts.all("ras.peer_recovered")}  # the last time
    named = [e for e in facts.all("ras.peer_dead") if not _heard_since(e, heard)]
    counted = facts.all("ras.dead")
    silent = [
        e
        for e in facts.all("ras.peer_missing", "ras.rank_missing", "ras.peer_unresponsive")
        if not _heard_since(e, heard)
    ]
    incomplete = facts.all("ras.incomplete")
    tell = ["the log of that rank; dmesg -T on its node (killed, Xid)", "ncclras -v again: does it come back"]
    if named or counted:
        who = (
            "; ".join(dict.fromkeys(_peer(e) for e in named[:_MOST_NAMED]))
            or f"{counted[0].fields.get('count', '?')} processes"
        )
        yield Finding(
            "peer-process-died", 0.82, "fatal", f"RAS considers dead: {who}", lines_of([*named, *counted, *silent]),
            "Find why it ended: its own log, host memory (dmesg), an Xid, a node that is off the network. At the end of a job it is normal.", tell,
        )  # fmt: skip
    elif silent or incomplete:
        who = (
            "; ".join(dict.fromkeys(_peer(e) for e in silent[:_MOST_NAMED]))
            or f"{incomplete[0].fields.get('count', '?')} of them"
        )
        yield Finding(
            "peer-process-died", 0.55, "fatal", f"RAS gets no answer from members: {who}", lines_of([*silent, *incomplete]),
            "See whether the process lives and its node is reachable: a stopped or frozen process, a node without network.", tell,
        )  # fmt: skip


def _heard_since(event: Event, heard: Mapping[str, LineRef]) -> bool:
    at = heard.get(_peer(event))
    return at is not None and at.path == event.at.path and at > event.at


def _peer(event: Event) -> str:
    words = event.fields
    if "peer" in words:
        return " ".join(words["peer"].split()[:5])
    parts = [f"rank {words['rank']}"] if "rank" in words else []
    parts += [f"process {words['pid']}"] if "pid" in words else []
    parts += [f"on {words['node']}"] if "node" in words else []
    return " ".join(parts) or event.text


_FEWEST_CALLS = 10
"""Calls that must be comparable before a rank is called slow. A guess: fewer are easily a chance."""
_MOST_OF_THEM = 0.7
_LEAST_GAP_NS = 200_000
"""Ten times the time of a small all-reduce between nodes; below it jitter decides who comes last."""
_LEAST_LATENESS_NS = 50_000_000
"""Well above what NTP leaves between the clocks of hosts."""


def last_to_come(facts: Facts) -> Iterator[Finding]:
    """One rank comes last to most collectives, and the others wait for it.

    Fires on three ranks or more with at least ten comparable collectives. A rank that is late spends the shortest time in a blocking collective:
    below half of the others' median and 0.2 ms less, in 70 % of the calls (NCCL Inspector, Flight Recorder with timing); all ranks of a host count
    as one if no single rank stands out. Or its calls are created 50 ms or more after the others' (Flight Recorder); a lateness that never changes
    may be the host's clock. Silent about broadcast and reduce, where ranks leave early.
    """
    for source in (_INSPECTOR, _DUMPS):
        for group in _groups(facts, source):
            slow = _shortest(group, lambda lane: lane.name) or _shortest(group, lambda lane: lane.host)
            if slow is not None:
                yield _slow(group, slow, "spends the shortest time in", "so it comes last and they wait")
            elif source == _DUMPS and (slow := _created_last(group)) is not None:
                yield _slow(group, slow, "makes its call last in", "as the times of creation say")


@dataclass(slots=True)
class _Slow:
    who: str
    times: int
    of: int
    gap_ns: float
    calls: list[Collective]


def _slow(group: _Group, slow: _Slow, what: str, why: str) -> Finding:
    return Finding(
        "slow-node", 0.7, "major", f"{group.name}: {slow.who} {what} {slow.times} of {slow.of} collectives, by {format_time_ns(slow.gap_ns)} in the median, {why}",
        lines_of(slow.calls), f"Compare {slow.who} with the others before the collective: GPU clocks and throttling, data loading, CPU binding, a busy host.",
        ["nvidia-smi -q -d PERFORMANCE,CLOCK on that host", "a profile of that rank and of one other over the same step"],
    )  # fmt: skip


def _comparable(group: _Group) -> list[dict[int, Collective]]:
    """Calls that all ranks made, by the index of the rank's lane."""
    found = []
    for seq in group.shared():
        calls = {i: call for i, lane in enumerate(group.lanes) if (call := lane.only(seq)) is not None}
        if len(calls) == len(group.lanes) and all(call.op in _BLOCKING for call in calls.values()):
            found.append(calls)
    return found


def _shortest(group: _Group, place_of: Callable[[_Lane], str | None]) -> _Slow | None:
    """The place whose ranks spend far less time than the others in most calls."""
    places = [place_of(lane) for lane in group.lanes]
    if None in places or len(set(places)) < 3:
        return None
    wins: dict[str, list[tuple[float, Collective]]] = defaultdict(list)
    total = 0
    for calls in _comparable(group):
        longest: dict[str, tuple[int, Collective]] = {}
        for i, call in calls.items():
            place = places[i]
            if call.duration_ns is None or place is None:
                break
            if place not in longest or call.duration_ns > longest[place][0]:
                longest[place] = (call.duration_ns, call)
        else:
            total += 1
            place, (duration, call) = min(longest.items(), key=lambda item: item[1][0])
            usual = statistics.median(d for name, (d, _) in longest.items() if name != place)
            runner_up = min(d for name, (d, _) in longest.items() if name != place)
            if duration < usual / 2 <= runner_up and usual - duration >= _LEAST_GAP_NS:
                wins[place].append((usual - duration, call))
    return _winner(wins, total)


def _created_last(group: _Group) -> _Slow | None:
    if len(group.lanes) < 3:
        return None
    comparable = [calls for calls in _comparable(group) if all(c.created_ns is not None for c in calls.values())]
    offsets = _clock_offsets(group, comparable)
    wins: dict[str, list[tuple[float, Collective]]] = defaultdict(list)
    for calls in comparable:
        created = {i: (call.created_ns or 0) - offsets.get(i, 0) for i, call in calls.items()}
        order = sorted(created, key=lambda i: created[i])
        last, others = order[-1], order[:-1]
        usual = statistics.median(created[i] for i in others)
        late = created[last] - usual
        if late >= _LEAST_LATENESS_NS and created[others[-1]] - usual <= late / 2:
            wins[group.lanes[last].name].append((late, calls[last]))
    slow = _winner(wins, len(comparable))
    if slow is None or offsets:
        return slow
    gaps = sorted(gap for gap, _ in wins[slow.who])
    spread = gaps[len(gaps) * 9 // 10] - gaps[len(gaps) // 10]
    return slow if spread > slow.gap_ns / 10 else None


def _clock_offsets(group: _Group, comparable: Sequence[Mapping[int, Collective]]) -> dict[int, float]:
    """How much each rank's clock is ahead, from the ends of collectives, which all ranks reach together; empty if they are not known."""
    ended = [calls for calls in comparable if all(c.completed_ns is not None for c in calls.values())]
    if len(ended) < _FEWEST_CALLS:
        return {}
    middle = [statistics.median(c.completed_ns or 0 for c in calls.values()) for calls in ended]
    return {
        i: statistics.median((calls[i].completed_ns or 0) - m for calls, m in zip(ended, middle, strict=True))
        for i in range(len(group.lanes))
    }


def _winner(wins: Mapping[str, list[tuple[float, Collective]]], total: int) -> _Slow | None:
    if total < _FEWEST_CALLS or not wins:
        return None
    who, won = max(wins.items(), key=lambda item: len(item[1]))
    if len(won) < _MOST_OF_THEM * total:
        return None
    won = sorted(won, key=lambda pair: -pair[0])
    return _Slow(who, len(won), total, statistics.median(gap for gap, _ in won), [call for _, call in won[:6]])


def checks(facts: Facts) -> Iterator[Check]:
    """What ranks were found to agree on: calls of the Flight Recorder, counts of RAS, and that nobody regularly comes last (Inspector)."""
    dumps = _groups(facts, _DUMPS)
    compared = [group for group in dumps if len(group.lanes) > 1]
    if dumps and all(group.complete() and _mismatch(group) is None for group in dumps):
        ranks = len({lane.artefact for group in dumps for lane in group.lanes})
        calls = sum(len(lane.calls) for group in dumps for lane in group.lanes)
        lines = lines_of((lane.calls[lane.last][0] for group in dumps for lane in group.lanes), most=3)
        said = (
            f"{calls} calls of {ranks} ranks in {len(dumps)} process groups"
            if compared
            else f"{calls} calls of one rank; dumps of all ranks tell more"
        )
        yield Check(
            "collectives",
            f"{said}: completed, the same on all ranks" if compared else f"{said}: completed",
            lines,
            decisive=bool(compared),
        )
    counts = [row for row in facts.progress if row.source == _RAS]
    if counts and not facts.all("ras.peer_dead", "ras.rank_missing") and not list(launches_differ(facts)):
        comms = len({row.group for row in counts})
        yield Check(
            "RAS",
            f"all ranks of {comms} communicators launched the same collectives; RAS does not see whether data moves",
            lines_of(counts, most=3),
            decisive=False,
        )
    timed = [
        group
        for group in _groups(facts, _INSPECTOR)
        if len(group.lanes) > 2 and len(_comparable(group)) >= _FEWEST_CALLS
    ]
    if timed and not list(last_to_come(facts)):
        lines = lines_of((lane.calls[lane.last][0] for lane in timed[0].lanes), most=3)
        yield Check(
            "who comes last",
            f"no rank regularly, in {sum(len(_comparable(g)) for g in timed)} collectives of {len(timed)} communicators",
            lines,
        )


RULES = (
    calls_differ,
    rank_lacks_next_call,
    all_wait_in_one_call,
    transfer_without_partner,
    launches_differ,
    members_lost,
    last_to_come,
)
