"""IP interfaces for bootstrap and sockets: none at all, or one that leads nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active, is_multi_node, unroutable_address, unroutable_interface

__all__ = ["RULES"]

_REMEDY = "Set NCCL_SOCKET_IFNAME to the interface that reaches the other hosts (=eth0 for an exact name, ^docker0,lo to exclude)."
_TELL = [
    "ip -br addr on two hosts; ping -I IFACE PEER",
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET: the 'Bootstrap : Using' line of every rank",
]


def _chosen(facts: Facts) -> list[Event]:
    return facts.all("nccl.bootstrap_interface", "nccl.socket_interface")


def _leads_nowhere(event: Event) -> bool:
    return unroutable_interface(event.fields.get("interface", "")) or unroutable_address(
        event.fields.get("address", "")
    )


def no_interface(facts: Facts) -> Iterator[Finding]:
    """NCCL finds no IP interface it may use.

    Fires on "no socket interface found" (src/bootstrap.cc) and on a socket that cannot be created for lack of an address family
    (2.3 to 2.6 without interface). With NCCL_SOCKET_IFNAME set, the name matching nothing is the likelier cause.
    Silent when an interface was found, be it a wrong one.
    """
    refused = [e for e in facts.all("nccl.socket_create_failed") if "family" in e.fields.get("error", "").lower()]
    events = facts.all("nccl.no_interface") + refused
    if not events:
        return
    names = active(facts, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    forced = bool(names)
    if forced:
        yield Finding(
            "wrong-socket-interface", 0.7, "fatal", f"no interface matches NCCL_SOCKET_IFNAME={names[0].value}", lines_of([*events, *names]),
            f"Correct NCCL_SOCKET_IFNAME ({names[0].value} exists on no or not on every host), or unset it.", _TELL,
        )  # fmt: skip
    yield Finding(
        "no-ip-interface", 0.25 if forced else 0.85, "fatal", "no usable IP interface where the process runs", lines_of(events),
        "Give the container a network (--network=host or a bridge); on a single node NCCL_SOCKET_IFNAME=lo will do.",
        ["ip -br addr inside the container"],
    )  # fmt: skip


def interface_leads_nowhere(facts: Facts) -> Iterator[Finding]:
    """Peers are called at an address that is the same on every host, or that no host of the job has.

    Fires when a connection fails (NCCL sockets, Open MPI's TCP) and an address in play is loopback, link-local or of a container bridge;
    weaker when such an interface was chosen on a job of several hosts; weakest on a failed connection alone. Silent on one host.
    """
    failures = facts.all("nccl.connect_failed", "mpi.tcp_refused", "nccl.bootstrap_timeout")
    bad_targets = [
        e for e in failures if unroutable_address(e.fields.get("peer", "") + " " + e.fields.get("address", ""))
    ]
    bad_choices = [e for e in _chosen(facts) if _leads_nowhere(e)]
    bad_lists = [
        e
        for e in facts.all("nccl.socket_devices", "nccl.ib_devices")
        if any(_entry_leads_nowhere(entry) for entry in e.fields.get("interfaces", e.fields.get("oob", "")).split())
    ]
    bridges = [
        e
        for e in facts.all("net.interface")
        if unroutable_interface(e.fields.get("interface", "")) and e.fields.get("interface") != "lo"
    ]
    if bad_targets:
        kinds = lines_of([*bad_targets, *facts.all("mpi.tcp_unexpected_peer"), *bad_choices, *bridges])
        mpi = any(e.name.startswith("mpi.") for e in bad_targets)
        yield Finding(
            "wrong-socket-interface", 0.9, "fatal", "peers are called at an address that is local to every host", kinds,
            "Open MPI: --mca btl_tcp_if_exclude lo,docker0 (and oob_tcp_if_exclude). " + _REMEDY if mpi else _REMEDY, _TELL,
        )  # fmt: skip
    elif failures and (bad_choices or bad_lists):
        yield Finding(
            "wrong-socket-interface", 0.8, "fatal", "connections fail and an interface that leads to no other host is among those offered",
            lines_of([*bad_choices, *bad_lists, *failures]), _REMEDY, _TELL,
        )  # fmt: skip
    elif bad_choices and (is_multi_node(facts) or _peer_elsewhere(facts)):
        yield Finding(
            "wrong-socket-interface", 0.5, "major", "the bootstrap uses an interface that leads to no other host", lines_of(bad_choices),
            _REMEDY, _TELL,
        )  # fmt: skip
    elif failures:
        unreachable = [
            e
            for e in failures
            if "no route" in e.text.lower() or "unreachable" in e.text.lower() or "timed out" in e.text.lower()
        ]
        yield Finding(
            "wrong-socket-interface", 0.6 if unreachable else 0.45, "fatal", "a peer cannot be reached at the address it announced",
            lines_of([*failures, *_chosen(facts)]), _REMEDY + " A firewall between the hosts does the same: NCCL needs all ports.", _TELL,
        )  # fmt: skip


def _peer_elsewhere(facts: Facts) -> bool:
    """Whether NCCL_COMM_ID or MASTER_ADDR name a real host: then the job is not alone on this one."""
    return any(s.value and not unroutable_address(s.value) for s in active(facts, "NCCL_COMM_ID", "MASTER_ADDR"))


def _entry_leads_nowhere(entry: str) -> bool:
    name = entry.split("]", 1)[-1].split(":", 1)[0]
    return name != "lo" and (unroutable_interface(name) or unroutable_address(entry.split(":", 1)[-1]))


RULES = (no_interface, interface_leads_nowhere)
