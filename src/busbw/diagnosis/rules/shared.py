"""Questions that several rules ask of the facts."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from busbw.diagnosis.facts import Event, Facts, Setting
from busbw.hardware.formats import TopologyMatrix

__all__ = [
    "Job", "active", "address_of", "bus_number", "has_nvlink", "is_multi_node", "jobs", "node_count", "real", "unroutable_address", "unroutable_interface", "whole",
    "without_repeats",
]  # fmt: skip

_LOCAL_INTERFACES = re.compile(
    r"^(lo|docker\d*|br-|virbr|veth|vnet|lxc|lxdbr|podman|cni|flannel|cali|tunl|kube|dummy|cilium|weave|nodelocaldns|tailscale|wg\d)"
)
_ADDRESS = re.compile(r"(?P<v4>\d{1,3}(?:\.\d{1,3}){3})|\[?(?P<v6>[0-9a-fA-F]{0,4}:[0-9a-fA-F:]*:[0-9a-fA-F:]*)")

_LOCAL_NETWORKS = tuple(
    ipaddress.ip_network(n)
    for n in (
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.17.0.0/16",
        "172.18.0.0/16",
        "192.168.122.0/24",
        "::1/128",
        "fe80::/10",
    )
)
"""Loopback, link-local, and the default networks of Docker and libvirt: the same on every host, so no way to another one."""


def whole(text: str) -> int | None:
    """A whole number of at most 18 ASCII digits; None for anything else a variable may hold."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def real(text: str) -> float | None:
    """A decimal number; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None


def address_of(text: str) -> str | None:
    """The first IP address in a text such as `eth0:10.0.0.4<0>`."""
    match = _ADDRESS.search(text)
    return (match["v4"] or match["v6"]) if match else None


def unroutable_address(text: str) -> bool:
    """Whether the address in the text means something else on every host."""
    address = address_of(text)
    if address is None:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in _LOCAL_NETWORKS)


def unroutable_interface(name: str) -> bool:
    """Whether an interface of this name leads to no other host: loopback, container and virtual bridges."""
    return _LOCAL_INTERFACES.match(name) is not None


def node_count(facts: Facts) -> int | None:
    """Hosts of the job as far as anybody says so: NCCL's nNodes, host names, nodes of a benchmark. None: unknown."""
    said = [n for e in facts.all("nccl.comm_nodes") if (n := e.number("nodes")) is not None]
    said += [c.nodes for c in facts.curves if c.nodes is not None]
    if len(facts.hosts) > 1:
        said.append(len(facts.hosts))
    return max(said, default=None)


def is_multi_node(facts: Facts) -> bool:
    """Whether the job certainly spans hosts."""
    return (node_count(facts) or 0) > 1 or any(link.transport == "NET" for link in facts.links)


def active(facts: Facts, *names: str) -> list[Setting]:
    """Settings that were in force: what a sentence or a trial mentions is not."""
    return [s for s in facts.setting(*names) if s.origin != "note"]


def has_nvlink(facts: Facts) -> bool:
    """Whether a topology, a graph or a message shows NVLink between GPUs."""
    for _, topology in facts.topologies:
        if isinstance(topology, TopologyMatrix) and any(link.nvlinks for link in topology.gpu_links()):
            return True
    if any(e.fields.get("type_intra", "").startswith("NV") for e in facts.all("nccl.graph")):
        return True
    return bool(facts.all("nccl.p2p_disabled_nvlink", "nvlink.link_up", "nvlink.link_down"))


def without_repeats(*groups: Iterable[Event]) -> list[Event]:
    """The events of all groups, each line once, in the order met."""
    seen: dict[tuple[str, int], Event] = {}
    for group in groups:
        for event in group:
            seen.setdefault((event.at.path, event.at.line), event)
    return list(seen.values())


@dataclass(frozen=True, slots=True)
class Job:
    """Processes (host, pid) that share communicators."""

    processes: frozenset[tuple[str | None, int | None]]
    comm_id: str
    """Of its largest communicator."""


def jobs(facts: Facts) -> list[Job]:
    """The jobs that the communicators tell apart: processes are of one job if they share one, directly or over others."""
    members: dict[str, set[tuple[str | None, int | None]]] = defaultdict(set)
    for event in facts.all("nccl.comm"):
        if event.fields.get("comm_id"):
            members[event.fields["comm_id"]].add((event.host, event.pid))
    job_of: dict[tuple[str | None, int | None], str] = {}
    together: dict[str, set[tuple[str | None, int | None]]] = {}
    for comm_id, processes in members.items():
        merged = set(processes)
        for older in {job_of[process] for process in processes if process in job_of}:
            merged |= together.pop(older)
        together[comm_id] = merged
        job_of |= dict.fromkeys(merged, comm_id)
    largest = sorted(members, key=lambda comm_id: -len(members[comm_id]))
    return [
        Job(frozenset(merged), next(comm_id for comm_id in largest if members[comm_id] <= merged))
        for merged in together.values()
    ]


_BUS = re.compile(r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<slot>[0-9a-fA-F]{2})(?:\.[0-7])?")


def bus_number(text: str) -> int | None:
    """A GPU's place on the bus as one number, from `0000:1b:00.0` or NCCL's hexadecimal busId; None for other words.

    NCCL: domain, bus, device and function from the left, of which the last 4 bits are the function (src/misc/utils.cc, busIdToInt64).

    >>> bus_number("0000:1b:00"), bus_number("1b000"), bus_number("GPU-1")
    (6912, 6912, None)
    """
    found = _BUS.fullmatch(text.strip())
    if found is not None:
        return int(found["domain"] or "0", 16) << 16 | int(found["bus"], 16) << 8 | int(found["slot"], 16)
    if re.fullmatch(r"[0-9a-fA-F]{1,12}", text.strip()):
        return int(text, 16) >> 4
    return None
