"""Start-up: strangers at the bootstrap socket."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def foreign_connection(facts: Facts) -> Iterator[Finding]:
    """Something that is not part of the job talks to NCCL's bootstrap socket.

    Fires on a wrong magic or type in the first bytes of a connection (src/misc/socket.cc, 2.14 and later), and on a bootstrap message
    whose announced length makes no sense (over 1 MiB: text of another protocol read as a length). Silent when two lengths are both small:
    that is two jobs or versions meeting; and when both types are those of NCCL's transports.
    """
    strange = [
        e
        for e in facts.all("nccl.message_truncated")
        if (e.number("got") or 0) > 2**20 or (e.number("want") or 0) > 2**26
    ]
    events = [e for e in facts.all("nccl.foreign_connection") if not _of_transports(e)] + strange
    if events:
        yield Finding(
            "bootstrap-foreign-connection", 0.8, "fatal", f"{len(events)} connections to the bootstrap socket do not speak NCCL's protocol",
            lines_of(events),
            "Keep port scanners and health probes off the job's ports (firewall, NCCL_SOCKET_IFNAME on a private network); NCCL 2.14 and later drops them.",
            ["ss -tnp on the rank 0 node while the job starts: which process holds the other end"],
        )  # fmt: skip


_NET_SOCKET, _NET_IB = 3, 4
"""ncclSocketType of the two built-in networks: src/include/socket.h, 2.14 and later."""


def _of_transports(event: Event) -> bool:
    return {event.number("got"), event.number("want")} == {_NET_SOCKET, _NET_IB}


def transports_differ(facts: Facts) -> Iterator[Finding]:
    """One rank connects over InfiniBand or RoCE to a rank that listens over TCP, or the other way round.

    Fires when the type of a connection is that of the other built-in network (src/misc/socket.cc, 2.14 and later: 3 is NET/Socket, 4 is NET/IB). Silent on other types.
    """
    events = [e for e in facts.all("nccl.foreign_connection") if _of_transports(e)]
    if events:
        networks = facts.all("nccl.network")
        differ = list(
            {
                e.fields.get("network", "").split(maxsplit=1)[0]: e
                for e in networks
                if e.fields.get("network", "").strip()
            }.values()
        )
        lines = lines_of([*events, *differ, *facts.all("nccl.ib_no_device", "nccl.ib_no_library")])
        yield Finding(
            "net-plugin-mismatch", 0.8, "fatal", "some ranks use InfiniBand or RoCE and others TCP sockets", lines,
            "See why one host finds no RDMA device: its container, driver, NCCL_IB_HCA, NCCL_IB_DISABLE. Or set NCCL_NET alike on all ranks.", ["NCCL_DEBUG=INFO: 'Using network' of every rank", "ibv_devinfo on every host"],
        )  # fmt: skip
        yield Finding(
            "env-mismatch-between-ranks",
            0.15,
            "fatal",
            "ranks run with different network settings",
            lines,
            "Start all ranks with the same NCCL variables.",
            ["env | grep NCCL on every host"],
        )


def ranks_disagree_on_the_job(facts: Facts) -> Iterator[Finding]:
    """The bootstrap root counts other ranks than it expects: two jobs share an id or a port, or a rank started twice.

    Fires on the messages of src/bootstrap.cc about rank counts. Silent otherwise.
    """
    events = facts.all("nccl.rank_count_mismatch", "nccl.rank_checked_in_twice")
    if events:
        yield Finding(
            "env-mismatch-between-ranks", 0.6, "fatal", "ranks disagree on how many there are", lines_of(events),
            "Start every rank with the same world size and unique id; end leftovers of an earlier run that still use the port.",
            ["print RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every rank"],
        )  # fmt: skip
        yield Finding(
            "bootstrap-foreign-connection", 0.3, "fatal", "a process of another job reached this bootstrap socket", lines_of(events),
            "Give every job its own MASTER_PORT or NCCL_COMM_ID.",
        )  # fmt: skip


RULES = (foreign_connection, transports_differ, ranks_disagree_on_the_job)
