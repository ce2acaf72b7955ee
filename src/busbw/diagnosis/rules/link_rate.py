"""Network links below their rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def _rates_of_active_ports(facts: Facts) -> list[tuple[float, Event]]:
    """Rates of ports that are active, of the link layer that most of them have: a management NIC is no sibling."""
    told = {port.at.artefact for port in facts.ports}  # rules/ports.py compares those
    ports: list[dict[str, Event]] = []
    for event in facts.all("rdma.device", "rdma.port_state", "rdma.rate", "rdma.link_layer"):
        if event.at.artefact in told:
            continue
        if event.name == "rdma.device" or not ports or event.name in ports[-1]:
            ports.append({})
        ports[-1][event.name] = event
    active = [
        p
        for p in ports
        if "rdma.rate" in p and ("rdma.port_state" not in p or "active" in p["rdma.port_state"].text.lower())
    ]
    layers = [p["rdma.link_layer"].fields["layer"] if "rdma.link_layer" in p else "" for p in active]
    usual = Counter(layers).most_common(1)[0][0] if layers else ""
    return [
        (float(p["rdma.rate"].fields["rate"]), p["rdma.rate"])
        for p, layer in zip(active, layers, strict=True)
        if layer == usual
    ]


def port_below_siblings(facts: Facts) -> Iterator[Finding]:
    """A port runs at a lower rate than the other ports of the job.

    Fires when most ports have one rate and some an RDMA rate below it (ibstat, ibstatus). A host may have a slower storage or
    management NIC, so one port below is less sure than one of a kind. Silent on ports that are down: they show their lowest rate.
    """
    rates = _rates_of_active_ports(facts)
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
    told = {port.at.artefact for port in facts.ports}
    states = [e for e in facts.all("rdma.port_state", "rdma.physical_state") if e.at.artefact not in told]
    down = [e for e in states if any(w in e.text.lower() for w in ("polling", "init", "linkerrorrecovery"))]
    up = [e for e in states if any(w in e.text.lower() for w in ("active", "linkup", "link_up"))]
    if down and up:
        yield Finding(
            "link-rate-degraded", 0.4, "minor", f"{len(down)} ports poll or initialise", lines_of([*down, *up[:2]]),
            "Check cable and switch port; if the port is not meant to be used, keep NCCL off it with NCCL_IB_HCA.", ["ibstat; mlxlink -d DEV"],
        )  # fmt: skip


RULES = (port_below_siblings, port_down)
