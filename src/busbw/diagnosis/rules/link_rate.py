"""Network links below their rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def port_below_siblings(facts: Facts) -> Iterator[Finding]:
    """A port runs at a lower rate than the other ports of the job.

    Fires when most ports have one rate and some an RDMA rate below it (ibstat, ibstatus). A host may have a slower storage or
    management NIC, so one port below is less sure than one of a kind.
    """
    rates = []
    active = True
    for event in facts.all("rdma.device", "rdma.port_state", "rdma.rate"):
        if event.name == "rdma.device":
            active = True
        elif event.name == "rdma.port_state":
            active = "active" in event.text.lower()
        elif active and event.fields.get("rate"):
            rates.append((float(event.fields["rate"]), event))
    if len(rates) < 2:
        return
    usual, number = Counter(rate for rate, _ in rates).most_common(1)[0]
    below = [e for rate, e in rates if rate < usual]
    if below and number > len(below):
        yield Finding(
            "link-rate-degraded", 0.6, "major", f"{len(below)} of {len(rates)} ports run below {usual:g} Gb/s", lines_of([*below, *(e for r, e in rates if r == usual)][:8]),
            "Reseat or change the cable, check the switch port's speed setting, then the adapter.", ["mlxlink -d DEV -c -e", "iblinkinfo | grep -i could"],
        )  # fmt: skip


def port_down(facts: Facts) -> Iterator[Finding]:
    """A port of an RDMA device polls for a partner or never got its address.

    Fires on ibstat and ibv_devinfo lines of ports that are polling or initialising while others are active. Silent on ports that are
    disabled or simply down: unused ports are normal; and when no port is active.
    """
    states = facts.all("rdma.port_state", "rdma.physical_state")
    down = [e for e in states if any(w in e.text.lower() for w in ("polling", "init", "linkerrorrecovery"))]
    up = [e for e in states if any(w in e.text.lower() for w in ("active", "linkup", "link_up"))]
    if down and up:
        yield Finding(
            "link-rate-degraded", 0.4, "minor", f"{len(down)} ports poll or initialise", lines_of([*down, *up[:2]]),
            "Check cable and switch port; if the port is not meant to be used, keep NCCL off it with NCCL_IB_HCA.", ["ibstat; mlxlink -d DEV"],
        )  # fmt: skip


RULES = (port_below_siblings, port_down)
