"""Ranks compared call by call, from PyTorch's Flight Recorder: who called something else, who is missing, where all are stuck."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from busbw.diagnosis.call_groups import DUMPS, CallGroup, Lane, call_groups, describe, lane_names, mismatch
from busbw.diagnosis.facts import Collective, Event, Facts, lines_of
from busbw.diagnosis.findings import Check, Finding
from busbw.diagnosis.remedies import LOOK_AT_THE_RANK, SAME_CALLS
from busbw.diagnosis.rules.desync import EFFECTS

__all__ = ["RULES", "checks"]

_LOOK_BELOW = (
    "Look below the API: NIC counters and link state, Xid and ECC, NCCL's proxy threads of the ranks of this group."
)


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


def _also_known_as(lanes: Sequence[Lane], group: CallGroup, facts: Facts) -> tuple[str, list[Event]]:
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


def _without_dump(group: CallGroup, facts: Facts) -> str:
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
    for group in call_groups(facts, DUMPS):
        found = mismatch(group)
        if found is None:
            continue
        odd, other = found.odd[0][1], found.others[0][1]
        alias, known = _also_known_as([lane for lane, _ in found.odd], group, facts)
        yield Finding(
            "collective-mismatch", 0.5 if found.done else (0.93 if found.what == "operation" else 0.9), "fatal",
            f"{group.name}, call {found.seq}: {lane_names(lane for lane, _ in found.odd)} called {describe(odd)}, {lane_names(lane for lane, _ in found.others)} {describe(other)} ({found.what} differs){alias}",
            lines_of([*(call for _, call in [*found.odd[:6], *found.others[:6]]), *known], most=16), SAME_CALLS, ["TORCH_SHOW_CPP_STACKTRACES=1 TORCH_NCCL_TRACE_CPP_STACK=1: the frames of this call on both ranks"],
        )  # fmt: skip


@dataclass(slots=True)
class _Wait:
    """Ranks that wait in a call and those that never made it."""

    group: CallGroup
    seq: int
    waiting: list[Lane]
    behind: list[Lane]


def _never_here(group: CallGroup, dumps: Mapping[str, Collective]) -> list[Lane]:
    """Members whose dump shows no call in this group."""
    seen = {lane.rank for lane in group.lanes}
    ranks = Counter(call.rank for call in dumps.values())
    return [
        Lane(artefact, call.rank, call.host, call.at.path, {}, call)
        for artefact, call in dumps.items()
        if call.rank in group.members and call.rank not in seen and ranks[call.rank] == 1
    ]


def _waits(facts: Facts) -> list[_Wait]:
    found = []
    dumps: dict[str, Collective] = {}
    for call in facts.collectives:
        if call.source == DUMPS:
            dumps.setdefault(call.at.artefact, call)
    for group in call_groups(facts, DUMPS):
        if mismatch(group) is not None:
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
            f"{wait.group.name}: {lane_names(behind)} made no call after {min(lane.last for lane in behind)}; {lane_names(wait.waiting)} wait in call {wait.seq}, {describe(call)}{alias}{_without_dump(wait.group, facts)}",
            lines, LOOK_AT_THE_RANK, tell,
        )  # fmt: skip
        if few_wait:
            yield Finding(
                "collective-mismatch", 0.4, "fatal", f"{wait.group.name}: {lane_names(wait.waiting)} made a call, {wait.seq}, that most ranks did not make",
                lines, SAME_CALLS, tell,
            )  # fmt: skip


def all_wait_in_one_call(facts: Facts) -> Iterator[Finding]:
    """Every rank is in the same collective, and none completed it.

    Fires on dumps of PyTorch's Flight Recorder of a group's ranks that all have the same call next and not done. If it was started on most
    ranks and not on a few, those GPUs may be busy with something else. Less sure when dumps of members are missing. Silent when one rank
    completed the call or lacks it.
    """
    for group in call_groups(facts, DUMPS):
        if len(group.lanes) < 2 or mismatch(group) is not None:
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
            f"{group.name}: all {len(group.lanes)} ranks are in call {seq}, {describe(group.lanes[0].calls[seq][0])}, and none completed it{without}",
            lines, _LOOK_BELOW, tell,
        )  # fmt: skip
        if mixed:
            yield Finding(
                "rank-late-or-stuck", 0.4, "fatal", f"{group.name}: the GPU of {lane_names(rest)} did not start call {seq}, which {len(started)} ranks started",
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
        if call.source != DUMPS:
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
                lines_of([*told, *first[:8]]), LOOK_AT_THE_RANK, ["py-spy dump --pid PID of that rank", "a second dump a minute later: is it the same call"],
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


def checks(facts: Facts) -> Iterator[Check]:
    """What ranks were found to agree on: calls of the Flight Recorder."""
    dumps = call_groups(facts, DUMPS)
    compared = [group for group in dumps if len(group.lanes) > 1]
    if dumps and all(group.complete() and mismatch(group) is None for group in dumps):
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


RULES = (calls_differ, rank_lacks_next_call, all_wait_in_one_call, transfer_without_partner)
