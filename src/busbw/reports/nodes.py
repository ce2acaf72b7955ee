"""What a node looks like inside, from the files that describe it, and which part of it findings are about.

Two sources: NCCL's topology XML holds the PCI tree itself; `nvidia-smi topo -m` only says how near two devices are, so
the tree is the smallest one that gives these words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from busbw.diagnosis.facts import Event, Facts, LinkGroup
from busbw.diagnosis.findings import Finding
from busbw.hardware.formats import NcclTopology, TopologyMatrix
from busbw.hardware.formats.nccl_topo_xml import Cpu, Gpu, Net, NvLink, Pci, TopologyElement
from busbw.units import format_rate

__all__ = ["MAX_DEVICES", "Device", "Domain", "Mark", "NodeMap", "PcieGroup", "node_maps"]

MAX_DEVICES = 48
"""GPUs and NICs of one drawing; a node has 16 GPUs and some 20 NICs at most, a whole NVL72 is not one node."""
MAX_DRAWINGS = 4
LEAST_SURE = 0.3
"""Below this confidence a finding marks nothing: with every guess marked no part stands out."""
_OF_HARDWARE = frozenset({"gpu", "pcie", "nvlink", "nic", "host", "fabric", "virtualisation", "hardware"})
"""Layers of findings that are about a part of a node; what software does wrong is not marked on one."""
MOST_NVLINKS = 18
"""NVLinks of a GPU (Hopper, Blackwell). Source: NVIDIA H100 data sheet. More links than these in a row of a matrix are
not cables to each peer but the same links, shared through a switch."""

_BUS_ID = re.compile(r"\b(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?(?![0-9a-fA-F:])")
_NIC = re.compile(r"\b(?:mlx\d_(?:bond_)?\d+|bnxt_re\d+|irdma\d+|ionic_\d+|rdmap\d+s\d+|efa_\d+)\b")
_SWITCHED = ("PIX", "PXB")
_SAME_SOCKET = ("PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or NIC. `names` are all the words by which a log may call it, in lower case."""

    label: str
    kind: str
    """gpu or nic."""
    note: str
    names: frozenset[str]
    lines: frozenset[int]


@dataclass(frozen=True, slots=True)
class PcieGroup:
    """Devices below one PCIe switch, or one device at a root port of its own."""

    label: str
    """Empty for a root port."""
    devices: tuple[Device, ...]
    names: frozenset[str] = frozenset()
    lines: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Domain:
    """A NUMA node with what hangs from it."""

    label: str
    groups: tuple[PcieGroup, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A part that something is wrong with."""

    target: str
    """`device 3` and `group 1` count from the left; `sockets` is the link between them."""
    text: str
    finding: int | None = None
    """Number of the finding that says so; None: the file itself shows it."""


@dataclass(frozen=True, slots=True)
class NodeMap:
    """One node. NVLinks: `switch` where all GPUs reach all with the same number, else `nvlinks` pair by pair."""

    paths: tuple[str, ...]
    domains: tuple[Domain, ...]
    switch: str
    """What the bar above the GPUs says; empty without NVLink all to all."""
    nvlinks: tuple[tuple[str, str, int], ...]
    marks: tuple[Mark, ...]
    left_out: int

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device that is drawn, from left to right."""
        return tuple(d for group in self.groups for d in group.devices)

    @property
    def groups(self) -> tuple[PcieGroup, ...]:
        """Every group that is drawn, from left to right."""
        return tuple(group for domain in self.domains for group in domain.groups)


@dataclass(frozen=True, slots=True)
class _Oddity:
    """Something odd that a file shows by itself; `kinds` of findings say the same."""

    text: str
    kinds: frozenset[str]
    label: str = ""
    line: int = -1


_ABOUT_NVLINK = frozenset({"nvlink-down", "nvlink-p2p-disabled"})
_ABOUT_PCIE = frozenset({"vm-topology-file", "pcie-link-degraded"})
_ABOUT_PATH = frozenset(
    {"vm-topology-file", "gdr-peermem-missing", "gdr-read-setting", "rail-cross-nic", "cpu-affinity-pinning"}
)


def node_maps(facts: Facts, findings: Sequence[Finding] = (), most: int = MAX_DRAWINGS) -> list[NodeMap]:
    """The nodes that files describe, alike ones once, those with a mark first."""
    named = _named_by(facts, findings)
    maps: dict[tuple[object, ...], NodeMap] = {}
    for path, topology in facts.topologies:
        if isinstance(topology, TopologyMatrix):
            found = [_from_matrix(path, topology)]
        elif isinstance(topology, NcclTopology):
            found = [_from_xml(path, one, alone=one is topology) for one in _by_host(topology)]
        else:
            continue
        about = _of_host(path, named, facts.hosts)
        own = _oddities(topology)
        for drawn in found:
            if not drawn.devices:
                continue
            marked = replace(drawn, marks=tuple(_marks(drawn, path, own, findings, about)))
            key = _look(marked)
            known = maps.get(key)
            maps[key] = marked if known is None else replace(known, paths=(*known.paths, path))
    return sorted(maps.values(), key=lambda drawn: not drawn.marks)[:most]


def _look(drawn: NodeMap) -> tuple[object, ...]:
    """What a drawing shows: nodes of one look are drawn once."""
    parts = tuple(
        (domain.label, tuple((g.label, tuple((d.label, d.note) for d in g.devices)) for g in domain.groups))
        for domain in drawn.domains
    )
    return parts, drawn.switch, drawn.nvlinks, drawn.marks, drawn.left_out


# --- from a matrix ----------------------------------------------------------------------------------------------------


def _from_matrix(path: str, matrix: TopologyMatrix) -> NodeMap:
    names = [*matrix.gpus, *matrix.nics][:MAX_DEVICES]
    word = {(a, b): link.kind for a, b in combinations(names, 2) if (link := matrix.link(a, b)) is not None}
    switches = _joined(names, (pair for pair, kind in word.items() if kind in _SWITCHED))
    sockets = _joined(names, [*_same_numa(matrix, names), *(p for p, kind in word.items() if kind in _SAME_SOCKET)])
    # A device without a row of its own, alone: the table does not say where it is.
    unplaced = [socket[0] for socket in sockets if len(socket) == 1 and matrix.row(socket[0]) is None]
    if len(unplaced) > 1:
        sockets = [socket for socket in sockets if socket[0] not in unplaced] + [unplaced]
    domains = []
    for socket in sockets:
        groups = []
        for members in switches:
            devices = tuple(_matrix_device(matrix, name) for name in members if name in socket)
            if devices:
                groups.append(PcieGroup("PCIe switch" if len(devices) > 1 else "", devices))
        rows = [matrix.row(name) for name in socket]
        numa = next((r.numa_affinity for r in rows if r is not None and r.numa_affinity not in (None, "N/A")), None)
        words = f"NUMA {numa}" if numa is not None else "socket not told" if socket is unplaced else "socket"
        domains.append(Domain(words, tuple(groups)))
    links = [link for link in matrix.gpu_links() if link.nvlinks and link.a in names and link.b in names]
    switch = _all_to_all([link.nvlinks or 0 for link in links], len(matrix.gpus))
    pairs = () if switch else tuple((link.a, link.b, link.nvlinks or 0) for link in links)
    return NodeMap(
        (path,), tuple(domains), switch, pairs, (),
        max(0, len(matrix.gpus) + len(matrix.nics) - len(names)),
    )  # fmt: skip


def _matrix_device(matrix: TopologyMatrix, name: str) -> Device:
    is_gpu = name in matrix.gpus
    called = "" if is_gpu else matrix.nic_name(name)
    names = {name.lower(), called.lower()} - {""}
    return Device(name, "gpu" if is_gpu else "nic", called if called != name else "", frozenset(names), frozenset())


def _same_numa(matrix: TopologyMatrix, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    by_numa: dict[str, list[str]] = defaultdict(list)
    for name in names:
        row = matrix.row(name)
        if row is not None and row.numa_affinity not in (None, "N/A", ""):
            by_numa[row.numa_affinity or ""].append(name)
    for alike in by_numa.values():
        yield from pairwise(alike)


def _joined(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The names in groups that pairs connect, each group in the order of the names."""
    group = {name: name for name in names}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for a, b in pairs:
        group[root(b)] = root(a)
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[root(name)].append(name)
    return list(found.values())


def _all_to_all(counts: Sequence[int], gpus: int) -> str:
    """What joins the GPUs where every pair has the same number of links; empty otherwise, and for a single pair.

    A table that lacks a row lacks the pairs of its GPU with others that lack theirs: a tenth may be missing.
    """
    if gpus < 3 or len(counts) < 0.9 * gpus * (gpus - 1) / 2 or len(set(counts)) != 1:
        return ""
    if counts[0] * (gpus - 1) > MOST_NVLINKS:
        return f"NVSwitch: {counts[0]} NVLinks a GPU"
    return f"NVLink, every GPU to every other: {counts[0]} links a pair"


def _matrix_oddities(matrix: TopologyMatrix) -> Iterator[_Oddity]:
    """What the matrix itself shows to be odd: a GPU without a NIC on its socket, a GPU with fewer NVLinks than others."""
    if matrix.nics:
        nearest = {gpu: links[0] for gpu in matrix.gpus if (links := matrix.nearest_nics(gpu))}
        across = [gpu for gpu, link in nearest.items() if link.crosses_numa]
        for gpu in across:
            text = f"{gpu}: no NIC on its own socket, the nearest is across sockets ({nearest[gpu].kind})"
            yield _Oddity(text, _ABOUT_PATH, label=gpu)
        if across:
            yield _Oddity("the way to the NIC crosses the link between sockets", _ABOUT_PATH, label="sockets")
    counts: dict[str, list[int]] = defaultdict(list)
    for link in matrix.gpu_links():
        if link.nvlinks:
            counts[link.a].append(link.nvlinks)
            counts[link.b].append(link.nvlinks)
    most = {gpu: max(found) for gpu, found in counts.items()}
    usual = Counter(most.values()).most_common(1)
    if len(most) > 2 and usual[0][1] > len(most) // 2:
        for gpu, found in most.items():
            if found < usual[0][0]:
                yield _Oddity(f"{gpu}: {found} NVLinks, the others have {usual[0][0]}", _ABOUT_NVLINK, label=gpu)


# --- from NCCL's topology file ----------------------------------------------------------------------------------------


def _by_host(topology: NcclTopology) -> list[NcclTopology]:
    """One topology for each host of a file that holds several, as NCCL writes it where NVLink spans hosts (GB200 NVL72)."""
    by_hash: dict[str | None, list[Cpu]] = defaultdict(list)
    for cpu in topology.cpus:
        by_hash[cpu.host_hash].append(cpu)
    if len(by_hash) < 2:
        return [topology]
    return [NcclTopology(tuple(cpus), topology.path) for cpus in by_hash.values()]


def _from_xml(path: str, topology: NcclTopology, *, alone: bool = True) -> NodeMap:
    """alone: the file describes one host; of several, ranks are left out, so that hosts that are alike look alike."""
    domains = []
    room = MAX_DEVICES
    left_out = 0
    for root in topology.roots:
        for top in [root] if not root.children or isinstance(root, Cpu | Pci) else root.children:
            groups = []
            for child in top.children if isinstance(top, Cpu) else [top]:
                group = _xml_group(child)
                if not alone:
                    group = replace(group, devices=tuple(_without_rank(d) for d in group.devices))
                if len(group.devices) > room:
                    left_out += len(group.devices)
                elif group.devices:
                    room -= len(group.devices)
                    groups.append(group)
            if groups:
                numa = top.numa_node if isinstance(top, Cpu) else None
                domains.append(Domain(f"NUMA {numa}" if numa is not None and numa >= 0 else "CPU", tuple(groups)))
    switched = [_switch_links(gpu) for gpu in topology.gpus]
    kept = [d for domain in domains for group in domain.groups for d in group.devices if d.kind == "gpu"]
    switch = ""
    pairs: tuple[tuple[str, str, int], ...] = ()
    usual = Counter(n for n in switched if n).most_common(1)
    if usual:
        switch = f"NVSwitch: {usual[0][0]} NVLinks a GPU"
    else:
        pairs = tuple(_xml_pairs(topology, kept))
    return NodeMap((path,), tuple(domains), switch, pairs, (), left_out)


def _xml_group(top: TopologyElement) -> PcieGroup:
    devices = list(_xml_devices(top, frozenset(), frozenset()))
    is_switch = isinstance(top, Pci) and len(devices) > 1
    label = ""
    if is_switch and isinstance(top, Pci):
        label = ", ".join(word for word in ("PCIe switch", _speed(top)) if word)
    bridges = [p for p in top.walk() if isinstance(p, Pci) and p.is_bridge]
    lines = frozenset({top.line, *(p.line for p in bridges)})
    if not is_switch:
        return PcieGroup("", tuple(replace(device, lines=device.lines | lines) for device in devices))
    names = frozenset(_bus_ids(top.bus_id)) if isinstance(top, Pci) else frozenset()
    return PcieGroup(label, tuple(devices), names, lines)


def _without_rank(device: Device) -> Device:
    return replace(device, note="") if device.kind == "gpu" else device


def _xml_devices(element: TopologyElement, above: frozenset[str], lines: frozenset[int]) -> Iterator[Device]:
    lines = lines | {element.line} if isinstance(element, Pci) and not element.is_bridge else lines
    if isinstance(element, Pci):
        above = frozenset(_bus_ids(element.bus_id))
    if isinstance(element, Gpu):
        words = {f"gpu{element.device}"} if element.device is not None else set()
        note = f"rank {element.rank}" if element.rank is not None else ""
        yield Device(_gpu_label(element), "gpu", note, above | words, lines | {element.line})
        return
    if isinstance(element, Net):
        words = {word for word in ((element.name or "").lower(), f"net{element.device}") if word}
        rate = format_rate(element.speed_bytes_per_s) if element.speed_bytes_per_s else ""
        yield Device(element.name or f"net {element.device}", "nic", rate, above | words, lines | {element.line})
        return
    for child in element.children:
        yield from _xml_devices(child, above, lines)


def _gpu_label(gpu: Gpu) -> str:
    return f"GPU{gpu.device}" if gpu.device is not None else "GPU"


def _switch_links(gpu: Gpu) -> int:
    return sum(child.count or 0 for child in gpu.children if isinstance(child, NvLink) and child.to_switch)


def _xml_pairs(topology: NcclTopology, drawn: Sequence[Device]) -> Iterator[tuple[str, str, int]]:
    known = {device.label for device in drawn}
    holder = {
        bus: _gpu_label(child)
        for pci in topology.pcis
        for child in pci.children
        if isinstance(child, Gpu)
        for bus in _bus_ids(pci.bus_id)
    }
    seen: dict[tuple[str, str], int] = {}
    for gpu in topology.gpus:
        for child in gpu.children:
            if isinstance(child, NvLink):
                other = next((holder[bus] for bus in _bus_ids(child.target) if bus in holder), None)
                if other is not None and other in known and _gpu_label(gpu) in known:
                    a, b = sorted((_gpu_label(gpu), other))
                    seen[a, b] = max(seen.get((a, b), 0), child.count or 0)
    yield from ((a, b, count) for (a, b), count in seen.items() if a != b)


def _xml_oddities(topology: NcclTopology) -> Iterator[_Oddity]:
    """Slow PCI links, devices without GPUDirect where others have it, GPUs with fewer NVLinks than most."""
    for found in topology.pcie_bottlenecks():
        speed = _speed(found.pci) or "PCIe link"
        text = f"{speed}, {format_rate(found.bytes_per_s)}: far below what it carries ({found.reason})"
        yield _Oddity(text, _ABOUT_PCIE, line=found.pci.line)
    without = topology.without_gpudirect()
    if 0 < len(without) < len(topology.gpus) + len(topology.nets):
        for device in without:
            label = _gpu_label(device) if isinstance(device, Gpu) else device.name or f"net {device.device}"
            yield _Oddity(f"{label}: no GPUDirect RDMA (gdr=0), others have it", _ABOUT_PATH, line=device.line)
    switched = {gpu.line: (_gpu_label(gpu), _switch_links(gpu)) for gpu in topology.gpus}
    usual = Counter(count for _, count in switched.values() if count).most_common(1)
    for line, (label, count) in switched.items():
        if usual and count < usual[0][0]:
            yield _Oddity(f"{label}: {count} NVLinks, most have {usual[0][0]}", _ABOUT_NVLINK, line=line)


def _speed(pci: Pci) -> str:
    if pci.link_gt_per_s is None or not pci.link_width:
        return ""
    generation = pci.link_generation
    return f"Gen{generation} x{pci.link_width}" if generation else f"{pci.link_gt_per_s:g} GT/s x{pci.link_width}"


def _bus_ids(text: str | None) -> list[str]:
    """The forms in which the bus ids in a text are compared: domain of four digits, function 0 left out."""
    found = []
    for match in _BUS_ID.finditer(text or ""):
        domain, bus, device, function = match.groups()
        end = "" if function in (None, "0") else f".{function}"
        found.append(f"{int(domain or '0', 16) & 0xFFFF:04x}:{bus.lower()}:{device.lower()}{end}")
    return found


# --- which part a finding is about ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Named:
    """Words for a device in a line that a finding rests on, with the host of that line."""

    finding: int
    kind: str
    path: str
    line: int
    host: str | None
    words: frozenset[str]


def _named_by(facts: Facts, findings: Sequence[Finding]) -> list[_Named]:
    wanted: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for number, finding in enumerate(findings, 1):
        if finding.confidence < LEAST_SURE or finding.layer not in _OF_HARDWARE:
            continue
        for ref in finding.lines:
            wanted[ref.path, ref.line].append((number, finding.kind))
    if not wanted:
        return []
    of_process = _gpu_of_process(facts)
    named: list[_Named] = []

    def keep(path: str, line: int, host: str | None, words: Iterable[str]) -> None:
        told = frozenset(words)
        named.extend(_Named(number, kind, path, line, host, told) for number, kind in wanted[path, line])

    met: set[tuple[str, int]] = set()
    for events in facts.events.values():
        for event in events:
            place = (event.at.path, event.at.line)
            if place in wanted:
                met.add(place)
                keep(*place, event.host, [*_words(event), *of_process.get((event.host, event.pid), ())])
    for link in facts.links:
        place = (link.at.path, link.at.line)
        if place in wanted:
            met.add(place)
            keep(*place, link.host, [*_net(link), *of_process.get((link.host, link.pid), ())])
    for path, line, word in _after_headings(facts):
        if (path, line) in wanted:
            keep(path, line, None, [word])
    for place in wanted.keys() - met:
        keep(*place, None, ())
    return named


def _words(event: Event) -> Iterator[str]:
    yield from _bus_ids(event.text)
    yield from (match[0].lower() for match in _NIC.finditer(event.text))
    if event.name == "nvlink.gpu" and event.number("gpu") is not None:
        yield f"gpu{event.number('gpu')}"


def _net(link: LinkGroup) -> Iterator[str]:
    """`net3` of a connection NET/IB/3/GDRDMA."""
    parts = link.via.split("/")
    if parts[0] == "NET" and len(parts) > 2 and parts[2].isdigit():
        yield f"net{parts[2]}"


def _gpu_of_process(facts: Facts) -> Mapping[tuple[str | None, int | None], tuple[str, ...]]:
    """Names of the GPU of a process, from the line in which NCCL says where its communicator runs (src/init.cc)."""
    found: dict[tuple[str | None, int | None], tuple[str, ...]] = {}
    for event in facts.all("nccl.comm"):
        words = []
        if (number := event.number("nvml_device")) is not None:
            words.append(f"gpu{number}")
        text = event.fields.get("bus_id", "").removeprefix("0x")
        if text and len(text) <= 8 and all(c in "0123456789abcdefABCDEF" for c in text):
            bus = int(text, 16)  # domain, bus, device, function in 20, 12, 4, 0 bits (src/misc/utils.cc)
            words.append(f"{bus >> 20:04x}:{bus >> 12 & 0xFF:02x}:{bus >> 4 & 0xFF:02x}")
        found.setdefault((event.host, event.pid), tuple(words))
    return found


def _after_headings(facts: Facts) -> Iterator[tuple[str, int, str]]:
    """(path, line, device) of lines that say what they are about in a line above: links of a GPU, the link of a PCI device."""
    heading: dict[str, str] = {}
    for event in facts.all("nvlink.gpu", "nvlink.link_down", "pci.device", "pci.link_status"):
        if event.name == "nvlink.gpu":
            heading[event.at.path] = f"gpu{event.number('gpu')}"
        elif event.name == "pci.device":
            heading[event.at.path] = next(iter(_bus_ids(event.text)), "")
        elif heading.get(event.at.path):
            yield event.at.path, event.at.line, heading[event.at.path]


def _oddities(topology: TopologyMatrix | NcclTopology) -> list[_Oddity]:
    return list(_matrix_oddities(topology) if isinstance(topology, TopologyMatrix) else _xml_oddities(topology))


def _marks(
    drawn: NodeMap, path: str, own: Sequence[_Oddity], findings: Sequence[Finding], named: Sequence[_Named]
) -> Iterator[Mark]:
    """One mark a part and finding, then what only the file shows. A finding that names all GPUs alike marks none of them."""
    devices, groups = drawn.devices, drawn.groups
    done: set[tuple[str, int | None]] = set()
    for oddity in own:
        number = next(
            (n for n, f in enumerate(findings, 1) if f.kind in oddity.kinds and any(r.path == path for r in f.lines)),
            None,
        )
        target = _place(drawn, oddity)
        if not target:
            continue
        done.add((target, number))
        yield Mark(target, oddity.text, number)
    found: dict[tuple[str, int], Mark] = {}
    for item in named:
        at_host = f" on {item.host}" if item.host else ""
        for k, device in enumerate(devices):
            if device.names & item.words or (item.path == path and item.line in device.lines):
                target = f"device {k}"
                found[target, item.finding] = Mark(target, f"{device.label}: {item.kind}{at_host}", item.finding)
        for k, group in enumerate(groups):
            if group.label and (group.names & item.words or (item.path == path and item.line in group.lines)):
                target = f"group {k}"
                text = f"PCIe switch above {group.devices[0].label}: {item.kind}{at_host}"
                found[target, item.finding] = Mark(target, text, item.finding)
    alike = [{f"device {k}" for k, d in enumerate(devices) if d.kind == kind} for kind in ("gpu", "nic")]
    for number in dict.fromkeys(number for _, number in found):
        targets = {target for target, n in found if n == number}
        for all_of_them in alike:
            if len(all_of_them) > 1 and all_of_them <= targets:
                targets -= all_of_them
        yield from (
            mark for (target, n), mark in found.items() if n == number and target in targets and (target, n) not in done
        )


def _place(drawn: NodeMap, oddity: _Oddity) -> str:
    if oddity.label == "sockets":
        return "sockets"
    for k, group in enumerate(drawn.groups):
        if group.label and oddity.line in group.lines:
            return f"group {k}"
    for k, device in enumerate(drawn.devices):
        if device.label == oddity.label or oddity.line in device.lines:
            return f"device {k}"
    return ""


def _of_host(path: str, named: Sequence[_Named], hosts: Iterable[str]) -> list[_Named]:
    """What may be about the node that a file describes: lines of the host in its path; any line where it names none."""
    words = set(re.split(r"[^a-z0-9-]+|-(?=topo|nccl|dmesg)", path.lower()))
    own = {host for host in hosts if host.lower() in words}
    return [item for item in named if not own or item.host is None or item.host in own or item.path == path]
