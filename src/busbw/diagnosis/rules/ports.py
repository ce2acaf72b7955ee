"""Ports of NICs and switches: one that is down, slow, or of another kind than its siblings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from busbw.diagnosis.facts import Event, Facts, Port, lines_of
from busbw.diagnosis.findings import Finding
from busbw.units import format_rate

__all__ = ["RULES"]

_CABLE = "Reseat or change the cable and transceiver between the two ports named, check the switch port's speed and state, then the adapter."
_TELL = ["mlxlink -d DEV -c -e on both ends", "iblinkinfo | grep -i -e could -e down"]


def _nics(facts: Facts) -> list[Port]:
    return [port for port in facts.ports if not port.on_switch]


def _ends(port: Port) -> str:
    """Both ends of the cable, as far as known."""
    other = f" to {port.peer}" + (f" port {port.peer_port}" if port.peer_port is not None else "") if port.peer else ""
    return port.name + other


def _common_switch(ports: Sequence[Port]) -> str:
    """What to say if several ports hang on one switch."""
    switches = {port.device if port.on_switch else port.peer for port in ports}
    only = next(iter(switches)) if len(switches) == 1 else None
    return f"; all of them at {only}" if only and len(ports) > 1 else ""


def _complaints(facts: Facts, ports: Iterable[Port]) -> list[Event]:
    """Failures of the job that name a port's device on its host, or come from its host."""
    events = facts.all(
        "nccl.ib_completion", "nccl.ib_async", "nccl.ib_call_failed", "nccl.ib_no_device", "nccl.connect_failed"
    )
    found = [
        e for port in ports for e in events
        if (port.host is not None and e.host == port.host) or (e.host is None and port.device is not None and port.device in e.text.split(":"))
    ]  # fmt: skip
    return list({id(e): e for e in found}.values())


def port_down_here_only(facts: Facts) -> Iterator[Finding]:
    """A NIC's port is down on one host and active on the others.

    Fires when at least two other hosts have the same device active with the same link layer; a port that looks for its partner (Polling) beside active ones of its host is a
    weaker sign. Surer when the job fails on that host. Minor for a port that NCCL does not use on any host, or that is slower than most ports there: for storage or management.
    Silent when the device is down everywhere, which is a port that nobody uses, on network interfaces that NCCL does not name, and on switches.
    """
    by_device: dict[tuple[str | None, int | None], list[Port]] = defaultdict(list)
    by_host: dict[str, list[Port]] = defaultdict(list)
    for port in _nics(facts):
        if port.state is not None and _in_use(facts, port):
            by_device[port.device, port.port].append(port)
            by_host[port.place].append(port)
    odd, others = [], []
    for same in by_device.values():
        up = [p for p in same if p.active]
        layers = {p.link_layer for p in up}
        down = [p for p in same if not p.active and (p.link_layer is None or p.link_layer in layers)]
        if down and len({p.place for p in up}) >= 2 and len(down) < len(up):
            odd += down
            others += up[:1]
    if odd:
        complaints = _complaints(facts, odd)
        of_the_job = _of_the_job(facts, odd)
        odd.sort(key=lambda p: p not in of_the_job)
        matters = bool(complaints or of_the_job)
        yield Finding(
            "link-rate-degraded", 0.85 if complaints else (0.7 if matters else 0.3), "major" if matters else "minor",
            f"{_ends(odd[0])} is {odd[0].state} ({odd[0].physical_state or 'physical state unknown'}) and active on the other hosts" + (f"; {len(odd)} such ports" if len(odd) > 1 else "") + _common_switch(odd),
            lines_of([*odd[:8], *others[:2], *complaints[:3]]), _CABLE, _TELL,
        )  # fmt: skip
        return
    for here in by_host.values():
        polling = [p for p in here if not p.active and "poll" in (p.physical_state or "").lower()]
        up = [p for p in here if p.active]
        if polling and len(up) > len(polling):
            yield Finding(
                "link-rate-degraded", 0.4, "minor", f"{_ends(polling[0])} looks for its partner while {len(up)} ports of the host are active", lines_of([*polling, *up[:2]]),
                _CABLE + " If the port is not meant to be used, keep NCCL off it with NCCL_IB_HCA.", _TELL,
            )  # fmt: skip


def _below(port: Port) -> list[str]:
    """What of a link is below what both of its ends can do, for people; empty if nothing is."""
    found = []
    if port.possible_width is not None and port.width is not None and port.width < port.possible_width:
        found.append(f"{port.width}X instead of {port.possible_width}X")
    rate, possible = port.rate_bytes_per_s, port.possible_rate_bytes_per_s
    if rate is not None and possible is not None and rate < 0.95 * possible:
        found.append(f"{format_rate(rate)} instead of {format_rate(possible)}")
    return found


def _of_the_job(facts: Facts, down: Sequence[Port]) -> set[Port]:
    """Those of ports that are down that belong to the job's network: NCCL uses their device somewhere, else it is as fast elsewhere as most ports are."""
    used = facts.all("nccl.ib_devices")
    if used:
        words = {word for event in used for word in _words(event)}
        return {port for port in down if port.device in words}
    active = [p for p in _nics(facts) if p.active and p.rate_bytes_per_s]
    if not active:
        return set(down)
    usual = Counter(p.rate_bytes_per_s or 0.0 for p in active).most_common(1)[0][0]
    best: dict[tuple[str | None, int | None], float] = {}
    for p in active:
        best[p.device, p.port] = max(best.get((p.device, p.port), 0.0), p.rate_bytes_per_s or 0.0)
    return {port for port in down if best.get((port.device, port.port), usual) >= 0.95 * usual}


def _words(event: Event) -> set[str]:
    """What may be names of devices in a line."""
    return set(re.split(r"[^\w.-]+", event.text))


def _in_use(facts: Facts, port: Port) -> bool:
    """Whether the job may use a port: a plain network interface only if NCCL names it."""
    if port.node_kind != "netdev":
        return True
    named = facts.all("nccl.socket_devices", "nccl.bootstrap_interface", "nccl.socket_interface", "rdma.netdev")
    return any(port.device in _words(event) for event in named)


def link_below_its_ends(facts: Facts) -> Iterator[Finding]:
    """A link runs below what both of its ends can, or below the same links elsewhere.

    Fires on the width or speed that iblinkinfo or mlxlink say a link could have, and when an active port has a lower rate than most ports of its link
    layer and at least three others have that rate. Minor where most links could do more: that is how the fabric is set. A management or storage NIC may be slower by design, so the comparison alone is
    minor, unless the port has fewer lanes, the same device is faster on two other hosts, NCCL uses it beside faster ones, or the job fails there. Silent when all are alike, when every host has as many slow ones,
    on ports that are down, and on network interfaces that NCCL does not name.
    """
    ports_in_use = [p for p in facts.ports if _in_use(facts, p)]
    low = sorted((p for p in ports_in_use if _below(p)), key=lambda p: p.rate_bytes_per_s or 0.0)
    if low:
        by_design = len(low) > 2 and len(low) * 2 > sum(1 for p in ports_in_use if p.active)
        first = low[0]
        yield Finding(
            "link-rate-degraded", 0.4 if by_design else 0.85, "minor" if by_design else "major", f"{_ends(first)} runs {', '.join(_below(first))}" + (f"; {len(low)} such ports" if len(low) > 1 else "") + _common_switch(low),
            lines_of(low), _CABLE, _TELL,
        )  # fmt: skip
        if not by_design:
            return
    groups: dict[tuple[bool, str], list[Port]] = defaultdict(list)
    for port in ports_in_use:
        if port.active and port.rate_bytes_per_s:
            groups[port.on_switch, port.link_layer or ""].append(port)
    for (switch, _), ports in groups.items():
        usual, times = Counter(p.rate_bytes_per_s for p in ports).most_common(1)[0]
        below = [p for p in ports if (p.rate_bytes_per_s or 0) < 0.95 * (usual or 0)]
        if not below or times < 3 or len(below) * 2 >= len(ports) or _one_on_every_host(below, ports):
            continue
        complaints = _complaints(facts, below)
        meant = _meant_to_be_fast(facts, below, ports)
        below.sort(key=lambda p: p not in meant)
        sure = bool(complaints or meant)
        yield Finding(
            "link-rate-degraded", 0.75 if complaints else ((0.4 if switch else 0.6) if sure else 0.3), "major" if sure else "minor",
            f"{_ends(below[0])} runs at {format_rate(below[0].rate_bytes_per_s or 0)}, {times} others at {format_rate(usual or 0)}" + (f"; {len(below)} such ports" if len(below) > 1 else "") + _common_switch(below),
            lines_of([*below[:8], *[p for p in ports if p.rate_bytes_per_s == usual][:2], *complaints[:3]]), _CABLE, _TELL,
        )  # fmt: skip


def _meant_to_be_fast(facts: Facts, slow: Sequence[Port], ports: Sequence[Port]) -> set[Port]:
    """Those of slow ports of which something says that they are not slow by design."""
    lanes = Counter(p.width for p in ports if p.width is not None)
    usual_lanes = lanes.most_common(1)[0][0] if lanes else 0
    rates: dict[tuple[str | None, int | None], dict[str, float]] = defaultdict(dict)
    on_host: dict[str, set[str | None]] = defaultdict(set)
    for p in ports:
        rates[_model(p), p.port][p.place] = p.rate_bytes_per_s or 0.0
    least = max((p.rate_bytes_per_s or 0.0 for p in slow), default=0.0)
    for p in ports:
        if (p.rate_bytes_per_s or 0.0) > least:
            on_host[p.place].add(p.device)
    used = [(e.host, _words(e)) for e in facts.all("nccl.ib_devices")]

    def meant(port: Port) -> bool:
        if port.width is not None and port.width < (usual_lanes or 0):
            return True
        if port.on_switch:
            return False
        same = rates[_model(port), port.port]
        faster = sum(1 for rate in same.values() if rate > (port.rate_bytes_per_s or 0.0))
        if faster > 1 and faster == len(same) - 1:
            return True
        fast = on_host[port.place]
        return any(
            port.device in words and words & fast
            for host, words in used
            if None in (host, port.host) or host == port.host
        )

    return {port for port in slow if meant(port)}


def _model(port: Port) -> str | None:
    """The device without the name of its host, which tools of the fabric print in front of it."""
    words = (port.device or "").split()
    return " ".join(words[1:]) if len(words) > 1 else port.device


def _one_on_every_host(below: Sequence[Port], ports: Sequence[Port]) -> bool:
    """Whether every one of several hosts has as many slow ports, by whatever name: that is how the hosts are built."""
    hosts = {p.place for p in ports}
    times = Counter(p.place for p in below)
    return len(hosts) > 1 and set(times) == hosts and len(set(times.values())) == 1


def another_link_layer(facts: Facts) -> Iterator[Finding]:
    """The same device speaks InfiniBand on some hosts and Ethernet on others.

    Fires when a device's link layer differs between hosts that both have it active. They cannot talk to each other. Silent when every host has it
    the same way, when hosts have as many ports of each layer under other names, when the rates say that they are not the same kind of device, and on a device that is down.
    """
    by_device: dict[tuple[str | None, int | None], dict[str, list[Port]]] = defaultdict(lambda: defaultdict(list))
    for port in _nics(facts):
        if port.active and port.link_layer:
            by_device[port.device, port.port][port.link_layer.lower()].append(port)
    for layers in by_device.values():
        if len(layers) > 1:
            few = min(layers.values(), key=len)
            rest = [p for ports in layers.values() if ports is not few for p in ports]
            if {p.place for p in few} & {p.place for p in rest} or _only_names_differ(facts, few, rest):
                continue
            rates = [max((p.rate_bytes_per_s or 0.0 for p in side), default=0.0) for side in (few, rest)]
            if min(rates) > 0 and max(rates) > _SAME_CLASS * min(rates):
                continue
            yield Finding(
                "net-plugin-mismatch", 0.6, "major", f"{few[0].name} speaks {few[0].link_layer}, on {len(rest)} other hosts {rest[0].link_layer}", lines_of([*few, *rest[:3]]),
                "Give the NIC the same link type on every host (mlxconfig -d DEV set LINK_TYPE_P1=), or choose NICs of one kind with NCCL_IB_HCA.", ["ibv_devinfo | grep -e hca_id -e link_layer on every host"],
            )  # fmt: skip
            return


_SAME_CLASS = 1.5
"""FDR carries 54.5 Gb/s of data and the same adapter 40 Gb/s of Ethernet; from one generation to the next rates double."""


def _only_names_differ(facts: Facts, few: Sequence[Port], rest: Sequence[Port]) -> bool:
    """Whether all these hosts have as many active ports of each link layer: a kernel numbers them as it finds them."""
    places = {p.place for p in (*few, *rest)}
    layers: dict[str, Counter[str]] = {place: Counter() for place in places}
    for port in _nics(facts):
        if port.active and port.link_layer and port.place in layers:
            layers[port.place][port.link_layer.lower()] += 1
    counts = list(layers.values())
    return all(count == counts[0] for count in counts)


def mtu_differs(facts: Facts) -> Iterator[Finding]:
    """Active ports of one link layer have different MTUs.

    Fires when a minority of ports has another active MTU than the rest. Fatal where transfers fail: large packets may not pass. Otherwise minor, as
    both ends settle on the smaller one. Silent when all are alike, and about a management port that differs on every host.
    """
    groups: dict[str, list[Port]] = defaultdict(list)
    for port in _nics(facts):
        if port.active and port.mtu_bytes:
            groups[port.link_layer or ""].append(port)
    for ports in groups.values():
        usual, times = Counter(p.mtu_bytes for p in ports).most_common(1)[0]
        odd = [p for p in ports if p.mtu_bytes != usual]
        if not odd or times < 2 or len(odd) >= times or _one_on_every_host(odd, ports):
            continue
        failures = facts.all("nccl.ib_completion", "ucx.retry_exceeded")
        yield Finding(
            "mtu-mismatch", 0.5 if failures else 0.35, "fatal" if failures else "minor", f"{odd[0].name} has MTU {odd[0].mtu_bytes}, {times} other ports {usual}",
            lines_of([*odd[:6], *[p for p in ports if p.mtu_bytes == usual][:2], *failures[:4]]),
            "Set the same MTU on NICs and switch ports (9000 for RoCE with 4096 payload).", ["ping -M do -s 8972 PEER (RoCE with MTU 9000)", "ibv_devinfo | grep active_mtu on every host"],
        )  # fmt: skip


def port_refused(facts: Facts) -> Iterator[Finding]:
    """A benchmark of the fabric says that the port it should use is not active.

    Fires on perftest's "Port number N state is ...". Silent where the same output then reports results.
    """
    events = facts.all("perftest.port_down")
    measured = {curve.artefact for curve in facts.curves}
    events = [e for e in events if e.at.artefact not in measured]
    if events:
        yield Finding(
            "link-rate-degraded", 0.6, "major", f"port {events[0].fields.get('port', '?')} is {events[0].fields.get('state', 'not active')}", lines_of(events), _CABLE, _TELL,
        )  # fmt: skip


def comes_up_again(facts: Facts) -> Iterator[Finding]:
    """A port reports that its link is up again and again, without a line that it went down.

    Fires on three or more "Link up" of one interface in a kernel log (mlx5_core, other drivers) of which it never says down, outside the first five minutes
    after the boot (a guess), in which drivers bring ports up more than once. Silent on one or two, and where the downs stand there: another rule reads those.
    """
    changes: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in facts.all("kernel.nic_link"):
        uptime = event.fields.get("uptime_s")
        if "interface" in event.fields and (uptime is None or float(uptime) > 300):
            changes[event.at.path, event.fields["interface"]].append(event)
    for (_, interface), events in changes.items():
        states = {e.fields.get("state", "").lower().rstrip(".,") for e in events}
        if states == {"up"} and len(events) >= 3:
            yield Finding(
                "link-flap", 0.7, "major", f"the link of {interface} came up {len(events)} times", lines_of(events), _CABLE,
                ["ethtool --statistics IFACE | grep -i -e link_down -e phy", *_TELL[:1]],
            )  # fmt: skip


RULES = (comes_up_again, port_refused, port_down_here_only, link_below_its_ends, another_link_layer, mtu_differs)
