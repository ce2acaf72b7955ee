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


_OTHERS = ("ucx.connect_failed", "gloo.peer_unreachable")
"""Connections of libraries that do not say whether the peer is on another host; one that is refused often tells of a peer that ended."""


def _remedy(events: list[Event]) -> str:
    """What to set, by whose connection failed."""
    names = {e.name.split(".", maxsplit=1)[0] for e in events}
    if names == {"ucx"}:
        return "Set UCX_NET_DEVICES to the interface (or RDMA device) that reaches the other hosts."
    if names == {"gloo"}:
        return "Set GLOO_SOCKET_IFNAME to the interface that reaches the other hosts, or let the host's name resolve to its address (/etc/hosts)."
    return _REMEDY


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

    Fires when a connection fails (NCCL sockets, Open MPI's, UCX's and gloo's TCP) and an address in play is loopback, link-local or of a container bridge;
    weaker when such an interface was chosen on a job of several hosts; weakest on a failed connection alone. Silent on one host.
    A peer on the same host that ended refuses a loopback connection too, so gloo's are less sure.
    """
    failures = facts.all("nccl.connect_failed", "mpi.tcp_refused", "nccl.bootstrap_timeout", *_OTHERS)
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
            "wrong-socket-interface", 0.7 if {e.name for e in bad_targets} == {"gloo.peer_unreachable"} else 0.9, "fatal", "peers are called at an address that is local to every host", kinds,
            "Open MPI: --mca btl_tcp_if_exclude lo,docker0 (and oob_tcp_if_exclude). " + _REMEDY if mpi else _remedy(bad_targets), _TELL,
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
            "wrong-socket-interface", 0.6 if unreachable else (0.3 if {e.name for e in failures} <= set(_OTHERS) else 0.45), "fatal", "a peer cannot be reached at the address it announced",
            lines_of([*failures, *_chosen(facts)]), _remedy(failures) + " A firewall between the hosts does the same: NCCL needs all ports.", _TELL,
        )  # fmt: skip


def _peer_elsewhere(facts: Facts) -> bool:
    """Whether NCCL_COMM_ID or MASTER_ADDR name a real host: then the job is not alone on this one."""
    return any(s.value and not unroutable_address(s.value) for s in active(facts, "NCCL_COMM_ID", "MASTER_ADDR"))


def _entry_leads_nowhere(entry: str) -> bool:
    name = entry.split("]", 1)[-1].split(":", 1)[0]
    return name != "lo" and (unroutable_interface(name) or unroutable_address(entry.split(":", 1)[-1]))


def gloo_mesh(facts: Facts) -> Iterator[Finding]:
    """Gloo's ranks do not find each other.

    Fires when gloo fell back to the loopback address because the host's name does not resolve and its mesh then fails, or the job spans hosts; weaker when the mesh fails by
    itself: an interface that does not lead to the peers is the usual cause (ProcessGroupGloo.cpp prints "no error" then). Silent when the peer reset or
    closed the connection: that peer ended.
    """
    failed = [
        e
        for e in facts.all("gloo.mesh_failed")
        if not any(w in e.text.lower() for w in ("reset by peer", "closed by peer"))
    ]
    loopback = facts.all("gloo.loopback")
    if (loopback and (failed or is_multi_node(facts))) or (failed and not facts.all("gloo.peer_unreachable")):
        yield Finding(
            "wrong-socket-interface", (0.85 if failed else 0.5) if loopback else 0.5, "fatal" if failed else "major",
            "gloo announces the loopback address to its peers" if loopback else "gloo's ranks cannot connect to each other", lines_of([*loopback, *failed]), _remedy(failed or loopback), _TELL[:1],
        )  # fmt: skip


def mpi_address(facts: Facts) -> Iterator[Finding]:
    """Open MPI meets an address that its peer did not announce, or its daemons cannot reach each other.

    Fires when an inbound connection comes from an address that is not among those known of the peer (help-mpi-btl-tcp.txt): interfaces on several networks, of
    which the two sides chose different ones. Fires when a daemon cannot complete its connection (oob_tcp_connection.c of Open MPI and PRRTE); a firewall does the same. Silent otherwise.
    """
    dropped = facts.all("mpi.inbound_dropped", "mpi.unexpected_address")
    if dropped:
        yield Finding(
            "wrong-socket-interface", 0.6, "major", "a peer connects from an address that it did not announce", lines_of(dropped),
            "Name one network that all hosts share: --mca btl_tcp_if_include 10.0.0.0/8 (its subnet), and oob_tcp_if_include.", ["ip -br addr on both hosts: several addresses on one interface, several subnets"],
        )  # fmt: skip
        yield Finding(
            "library-bug-version",
            0.25,
            "major",
            "Open MPI does not know all addresses of the peer",
            lines_of(dropped),
            "Try the newest release of the series.",
            ["the same run with btl_tcp_if_include"],
        )
    refused = facts.all("mpi.daemon_unreachable")
    if refused:
        remote = [
            e
            for e in facts.all("mpi.remote_host")
            if any(0 < e.at.line - r.at.line <= 4 and e.at.path == r.at.path for r in refused)
        ]
        nowhere = any(unroutable_address(e.fields.get("address", "")) for e in remote)
        yield Finding(
            "wrong-socket-interface", 0.85 if nowhere else 0.5, "fatal", "a daemon of the launcher cannot be reached at its address", lines_of([*refused, *remote]),
            "Choose the network: --mca oob_tcp_if_include (Open MPI 4), --prtemca oob_tcp_if_include (Open MPI 5, PRRTE). Open the firewall between the hosts.", ["nc -vz REMOTE PORT from the local host", "ip route get REMOTE"],
        )  # fmt: skip


RULES = (no_interface, interface_leads_nowhere, gloo_mesh, mpi_address)
