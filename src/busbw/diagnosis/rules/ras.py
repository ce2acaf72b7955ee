"""Ranks compared by the counts that NCCL's RAS keeps: who launched fewer collectives, who is gone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from busbw.diagnosis.call_groups import MOST_NAMED
from busbw.diagnosis.facts import Event, Facts, Progress, lines_of
from busbw.diagnosis.findings import Check, Finding, LineRef
from busbw.diagnosis.remedies import LOOK_AT_THE_RANK, SAME_CALLS

__all__ = ["RULES", "checks"]

_RAS = "ncclras"


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
            for rank in named[:MOST_NAMED]
        )
        few = len(named) * 2 <= len(ranks)
        tell = ["ncclras -v twice, a minute apart: do the same ranks stay behind", "py-spy dump --pid PID of that rank"]
        if both:
            yield Finding(
                "collective-mismatch", 0.7 if few else 0.5, "fatal", f"communicator {comm}: {who} launched fewer of one collective and more of another than the others",
                lines_of(rows), SAME_CALLS, tell,
            )  # fmt: skip
        else:
            yield Finding(
                "rank-late-or-stuck", 0.75 if few else 0.5, "fatal", f"communicator {comm}: {who} launched fewer collectives than the other ranks",
                lines_of(rows), LOOK_AT_THE_RANK, tell,
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
            "; ".join(dict.fromkeys(_peer(e) for e in named[:MOST_NAMED]))
            or f"{counted[0].fields.get('count', '?')} processes"
        )
        yield Finding(
            "peer-process-died", 0.82, "fatal", f"RAS considers dead: {who}", lines_of([*named, *counted, *silent]),
            "Find why it ended: its own log, host memory (dmesg), an Xid, a node that is off the network. At the end of a job it is normal.", tell,
        )  # fmt: skip
    elif silent or incomplete:
        who = (
            "; ".join(dict.fromkeys(_peer(e) for e in silent[:MOST_NAMED]))
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


def checks(facts: Facts) -> Iterator[Check]:
    """Whether all ranks launched as many collectives, by the counts of RAS."""
    counts = [row for row in facts.progress if row.source == _RAS]
    if counts and not facts.all("ras.peer_dead", "ras.rank_missing") and not list(launches_differ(facts)):
        comms = len({row.group for row in counts})
        yield Check(
            "RAS",
            f"all ranks of {comms} communicators launched the same collectives; RAS does not see whether data moves",
            lines_of(counts, most=3),
            decisive=False,
        )


RULES = (launches_differ, members_lost)
