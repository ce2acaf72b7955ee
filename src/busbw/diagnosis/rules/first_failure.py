"""Who failed first, when the others only saw a connection close."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, Process, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.desync import EFFECTS
from busbw.diagnosis.rules.shared import address_of

__all__ = ["RULES"]

_REMEDY = "Mend what that process reports, or look at its host at that time (dmesg, memory, Xid); what the other ranks report is the consequence."
_TELL = ["the log of that process before its last line", "dmesg -T on its host"]


def _closed(facts: Facts) -> list[Event]:
    return [
        e for e in facts.all("nccl.peer_closed", "nccl.remote_result", "mpi.peer_lost") if "errno: 97" not in e.text
    ]


def _hosts_by_name(facts: Facts) -> dict[str, str]:
    """Hosts by what others call them: the address of their bootstrap interface, their name with and without domain."""
    known: dict[str, str] = {}
    ambiguous: set[str] = set()
    for event in facts.all("nccl.bootstrap_interface"):
        address = address_of(event.fields.get("address", ""))
        if address is not None and event.host is not None and known.setdefault(address, event.host) != event.host:
            ambiguous.add(address)
    for host in facts.hosts:
        known.setdefault(host, host)
        known.setdefault(host.split(".")[0], host)
    return {name: host for name, host in known.items() if name not in ambiguous}


def host_named_by_the_others(facts: Facts) -> Iterator[Finding]:
    """Processes of other hosts name one host as the end that closed the connection, and that host names nobody.

    Fires when the peers in "Connection closed by remote peer" (src/misc/socket.cc), by address or name, lead to one host that did not itself lose a
    peer before. Its last error, or its last line, is shown. Silent when hosts accuse each other, or when nobody knows whose address it is.
    """
    names = _hosts_by_name(facts)
    accusers: dict[str, list[Event]] = defaultdict(list)
    accusing: set[str] = set()
    for event in _closed(facts):
        said = event.fields.get("peer", "").split("<", 1)[0].strip()
        accused = names.get(address_of(said) or said) or names.get(said.split(".")[0])
        if accused is None or event.host is None or accused == event.host:
            continue
        accusers[accused].append(event)
        accusing.add(event.host)
    roots = [host for host in accusers if host not in accusing]
    if len(roots) != 1:
        return
    root = roots[0]
    own = [e for e in facts.failures() if e.host == root and e.name not in EFFECTS]
    last = own[-1:] or _last_lines(facts, root)
    times = len({(e.host, e.pid) for e in accusers[root]})
    yield Finding(
        "peer-process-died", 0.6 if own or times > 1 else 0.5, "fatal",
        f"{root} closed first: {times} processes of other hosts name it" + (f"; its own last error: {own[-1].text.strip()[:100]}" if own else ""),
        lines_of([*last, *accusers[root][:6]]), _REMEDY, _TELL,
    )  # fmt: skip


def _last_lines(facts: Facts, host: str) -> list[Event]:
    events = [p.events[-1] for (name, _), p in facts.processes.items() if name == host and p.events]
    return sorted(events, key=lambda e: e.at)[-1:]


def only_one_has_an_error_of_its_own(facts: Facts) -> Iterator[Finding]:
    """One process reports an error of its own; all others only lost their peer.

    Fires when exactly one process has an error that is no consequence of another's, or, where all lines have times, when its first one comes
    before every closed connection. Silent when several processes fail by themselves without times, and when nobody lost a peer.
    """
    closed = [e for e in _closed(facts) if e.pid is not None]
    if not closed:
        return
    own: dict[tuple[str | None, int | None], list[Event]] = defaultdict(list)
    for event in facts.failures():
        if event.pid is not None and event.name not in EFFECTS and event.name != "mpi.peer_lost":
            own[event.host, event.pid].append(event)
    first = _first(own, closed)
    if first is None:
        return
    others = [e for e in closed if (e.host, e.pid) != first]
    if not others:
        return
    process = facts.processes.get(first, Process(*first))
    error = own[first][-1]
    yield Finding(
        "peer-process-died", 0.5, "fatal", f"{process.name} fails by itself ({error.text.strip()[:100]}); the others ({len({(e.host, e.pid) for e in others})}) only lose their peer",
        lines_of([*own[first][-3:], *others[:4]]), _REMEDY, _TELL,
    )  # fmt: skip


def _first(
    own: dict[tuple[str | None, int | None], list[Event]], closed: list[Event]
) -> tuple[str | None, int | None] | None:
    if len(own) == 1:
        return next(iter(own))
    starts = {process: min((e.time_ns for e in events if e.time_ns is not None), default=None) for process, events in own.items()}  # fmt: skip
    ends = [e.time_ns for e in closed]
    if not own or any(start is None for start in starts.values()) or any(end is None for end in ends):
        return None
    process, start = min(starts.items(), key=lambda item: item[1] or 0)
    return process if all((start or 0) < (end or 0) for end in ends) else None


RULES = (host_named_by_the_others, only_one_has_an_error_of_its_own)
