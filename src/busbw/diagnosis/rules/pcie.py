"""PCIe: peer traffic redirected by ACS or the IOMMU, links trained below what they can."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from busbw.diagnosis.facts import Device, Event, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import real

__all__ = ["RULES"]


_CARRIES_COLLECTIVES = re.compile(
    r"3D controller|VGA|Display controller|Infiniband|Ethernet|Processing accel|NVIDIA|Mellanox|AMD/ATI|Instinct",
    re.IGNORECASE,
)
_BRIDGE = re.compile(r"PCI bridge", re.IGNORECASE)
_OTHER = re.compile(r"USB|SATA|Non-Volatile|Audio|Serial|RAID")


def _owner(event: Event, before: Event | None) -> str:
    """What lspci says of the device an event is about: by the event's own words, else by the header above it."""
    if "bus_id" in event.fields:
        return f"{event.fields['bus_id']} {event.fields.get('device_class', '')}"
    return before.text if before is not None else ""


def _above_gpus_and_nics(facts: Facts) -> set[str] | None:
    """Bus ids of bridges above a GPU or NIC, by the tree of `lspci -t`; None without a tree."""
    parents = {
        d.bus_id: d.attributes["parent"] for d in facts.hardware if d.kind == "pci_tree" and "parent" in d.attributes
    }
    if not parents:
        return None
    above: set[str] = set()
    for device in facts.hardware:
        if device.kind == "pci_device" and _CARRIES_COLLECTIVES.search(device.attributes.get("class", "")):
            at, hops = parents.get(device.bus_id), 0
            while at is not None and hops < _DEEPEST_TREE:
                above.add(at)
                at, hops = parents.get(at), hops + 1
    return above or None


_DEEPEST_TREE = 32
"""Bridges above one another; real trees have under ten, a damaged listing may have a loop."""


_PEER = re.compile(
    r"3D controller|Processing accel|Infiniband|(?:VGA|Display) .*(?:NVIDIA|AMD/ATI)|Ethernet .*(?:Mellanox|Broadcom|Amazon)",
    re.IGNORECASE,
)
"""Devices that may read and write each other's memory."""
_WHOLE = re.compile(r"Host bridge|ISA bridge|USB controller|SMBus", re.IGNORECASE)
"""Devices of every machine and of no question about peers: where one is listed, lspci was asked for all."""


def _no_peers(facts: Facts) -> bool:
    """Whether every listing of lspci is whole and shows fewer than two devices that could be peers."""
    peers: dict[str, set[str]] = defaultdict(set)
    whole: set[str] = set()
    for event in facts.all("pci.device"):
        found = peers[event.at.artefact]
        if _PEER.search(event.text):
            found.add(event.fields.get("bus_id", "") or event.text)
        if _WHOLE.search(event.text):
            whole.add(event.at.artefact)
    return bool(whole) and whole == set(peers) and all(len(found) < 2 for found in peers.values())


def access_control(facts: Facts) -> Iterator[Finding]:
    """ACS redirects peer-to-peer traffic to the root complex.

    Fires when a port has request redirection on (ReqRedir+, or bit 2 of ACSCtl; PCI Express Base Specification, ACS Control Register). With a
    tree (lspci -t) only bridges above a GPU or NIC count. Less sure in a whole lspci without one, where a port may lead to neither. Silent when the bits are off, for other devices, and on a machine
    with fewer than two GPUs and RDMA NICs: it has no peers. A port that only lists ACSCap has not turned it on.
    """
    if _no_peers(facts):
        return
    on = []
    before: Event | None = None
    above = _above_gpus_and_nics(facts)
    for event in facts.all("pci.device", "pci.acs"):
        if event.name == "pci.device":
            before = event
            continue
        if _OTHER.search(_owner(event, before)) or (
            above is not None and event.fields.get("bus_id", "") not in ("", *above)
        ):
            continue
        flags = event.fields.get("flags", "")
        bits = re.match(r"0x([0-9a-f]+)", flags)
        if "ReqRedir+" in flags or (bits is not None and int(bits[1], 16) & 0b100):
            on.append(event)
    if on:
        whole_listing = before is not None and above is None
        yield Finding(
            "pcie-acs-enabled", 0.65 if whole_listing else 0.85, "fatal", f"{len(on)} PCIe ports redirect peer-to-peer requests (ACS)", lines_of(on),
            "Turn ACS off on the bridges above GPUs and NICs: in the BIOS, or setpci -s BRIDGE ECAP_ACS+6.w=0000 after every boot; in VMs use ATS.",
            ["lspci -vvv | grep -i acsctl", "p2pBandwidthLatencyTest with and without"],
        )  # fmt: skip


def slower_with_p2p(facts: Facts) -> Iterator[Finding]:
    """Copies between GPUs are slower with P2P than staged through the host.

    Fires when the median of the pairs with P2P enabled is below half of that with P2P disabled (CUDA sample p2pBandwidthLatencyTest):
    direct traffic takes a detour through the root complex or the IOMMU. Silent when P2P wins, and for pairs without peer access.
    """
    by_kind: dict[str, dict[tuple[str, str], float]] = {}
    refs = {}
    for pair in facts.pairs:
        if pair.src != pair.dst:
            by_kind.setdefault(pair.quantity, {})[pair.src, pair.dst] = pair.value
            refs[pair.quantity, pair.src, pair.dst] = pair
    access = by_kind.get("peer_access", {})
    off, on = by_kind.get("unidirectional_p2p_disabled", {}), by_kind.get("unidirectional_p2p_enabled", {})
    common = [p for p in on if p in off and access.get(p, 1.0) > 0]
    if not common:
        return
    slower = [p for p in common if on[p] < off[p] / 2]
    if len(slower) * 2 < len(common):
        return
    ratio = statistics.median(off[p] / on[p] for p in slower if on[p] > 0)
    claimed = [refs["peer_access", *p] for p in slower if ("peer_access", *p) in refs]
    shown = [refs["unidirectional_p2p_enabled", *p] for p in slower] + [
        refs["unidirectional_p2p_disabled", *p] for p in slower
    ]
    lines = lines_of([*shown, *claimed])
    yield Finding(
        "iommu-p2p", 0.6, "fatal", f"direct copies between GPUs are {ratio:.1f} times slower than through the host on {len(slower)} pairs", lines,
        "Boot with iommu=pt or with the IOMMU off, turn ACS off on the bridges; NCCL_P2P_DISABLE=1 gets a job through meanwhile.",
        ["cat /proc/cmdline; dmesg | grep -i -e iommu -e dmar", "lspci -vvv | grep -i acsctl"],
    )  # fmt: skip
    yield Finding(
        "pcie-acs-enabled", 0.35, "fatal", "ACS on the bridges above the GPUs may send direct copies through the root complex", lines,
        "setpci -s BRIDGE ECAP_ACS+6.w=0000, or off in the BIOS.", ["lspci -vvv | grep -i acsctl"],
    )  # fmt: skip


def iommu_in_the_way(facts: Facts) -> Iterator[Finding]:
    """The IOMMU translates, and so breaks or slows, traffic between devices.

    Fires on RCCL's warning about a missing iommu=pt, on translation faults in the kernel log, and weakly on an IOMMU that is on without
    pass-through. Silent when the command line has iommu=pt or the IOMMU off.
    """
    warned = facts.all("rccl.iommu_not_passthrough")
    faults = facts.all("kernel.iommu_fault")
    command = facts.all("kernel.command_line")
    passthrough = any("iommu=pt" in e.text or "iommu=off" in e.text for e in command)
    on = [
        e
        for e in [*facts.all("kernel.iommu_on"), *command]
        if "IOMMU enabled" in e.text or "intel_iommu=on" in e.text or "amd_iommu=on" in e.text
    ]
    if passthrough and not faults:
        return
    remedy = "Boot with iommu=pt (or with the IOMMU off); NCCL_P2P_DISABLE=1 gets a job through meanwhile."
    tell = ["cat /proc/cmdline", "run once with NCCL_P2P_DISABLE=1"]
    if warned or faults:
        yield Finding(
            "iommu-p2p", 0.8, "fatal", "the IOMMU translates peer-to-peer traffic" + (f": {len(faults)} faults" if faults else ""), lines_of([*faults, *warned, *command]),
            remedy, tell,
        )  # fmt: skip
    elif on and facts.all("nccl.p2p_disabled", "nccl.p2p_disabled_nvlink", "nccl.p2p_not_enabled"):
        yield Finding("iommu-p2p", 0.5, "major", "the IOMMU is on without pass-through", lines_of(on), remedy, tell)


@dataclass(frozen=True, slots=True)
class _Link:
    """What a device's link can, and what it does."""

    owner: str
    name: str
    """Model, as lspci prints it; empty if unknown. Devices of one model are siblings."""
    capability: Event
    status: Event
    narrower: bool
    slower: bool

    @property
    def idle_saves(self) -> bool:
        """Whether this kind of device lowers its speed when it has nothing to do: GPUs do, NICs do not."""
        return re.search(r"Infiniband|Ethernet|Mellanox", self.owner, re.IGNORECASE) is None


def _links(facts: Facts) -> Iterator[_Link]:
    """Links of GPUs and NICs, of bridges above them, and of devices that nothing is known of."""
    above = _above_gpus_and_nics(facts)
    models: dict[tuple[str, str], str] = {}
    before: Event | None = None
    capabilities: dict[tuple[str, str], Event] = {}
    for event in facts.all("pci.device", "pci.link_capability", "pci.link_status"):
        if event.name == "pci.device":
            before = event
            if "bus_id" in event.fields:
                models[event.at.artefact, event.fields["bus_id"]] = event.fields.get("name", "")
            capabilities.pop((event.at.artefact, ""), None)
            continue
        bus_id = event.fields.get("bus_id", "")
        if event.name == "pci.link_capability":
            capabilities[event.at.artefact, bus_id] = event
            continue
        owner = _owner(event, before)
        if (
            owner
            and not _CARRIES_COLLECTIVES.search(owner)
            and not (_BRIDGE.search(owner) and (above is None or bus_id in above))
        ):
            continue
        known = models.get((event.at.artefact, bus_id), "") if bus_id else (owner.split(": ", 1)[-1] if owner else "")
        capability = capabilities.get((event.at.artefact, bus_id))
        if capability is not None:
            narrower = (event.number("width") or 0) < (capability.number("width") or 0)
            slower = (real(event.fields.get("speed", "")) or 0.0) < (real(capability.fields.get("speed", "")) or 0.0)
        else:
            capability = event
            narrower = "Width" in event.text and "(downgraded)" in event.text.split("Width", 1)[1]
            slower = "(downgraded)" in event.text and not narrower
        if above is None and _BRIDGE.search(owner) and "bus_id" in event.fields:
            continue  # a whole listing: a bridge to a slot that is empty or holds a disk is narrow as well
        yield _Link(owner, known, capability, event, narrower, slower)


_RESTING_GT_PER_S = 2.5
"""The first generation: to it GPUs go back when they have nothing to do, and in it they are at the boot."""


def narrow_link(facts: Facts) -> Iterator[Finding]:
    """A PCIe link of a GPU or NIC, or of a bridge above one, runs at lower width or speed than it can.

    Fires when LnkSta is below the LnkCap before it (lspci -vv), and on the kernel's "available PCIe bandwidth, limited by". A lower width
    is sure. A lower speed counts for a NIC, and for a GPU whose siblings of the same model run faster; of a GPU alone, or at 2.5 GT/s, it may be power saving, so look again under load.
    Silent on disks and other devices that carry no collective, and on GPUs that all run slower: they are idle.
    """
    links = list(_links(facts))
    narrow = [link for link in links if link.narrower]
    slow = [link for link in links if link.slower and not link.narrower]
    by_model: dict[str, list[_Link]] = defaultdict(list)
    for link in links:
        if link.name:
            by_model[link.name].append(link)
    certain, open_question = [], []
    for link in slow:
        siblings = by_model.get(link.name, [])
        faster = [other for other in siblings if not other.slower]
        stands_out = len(faster) * 2 > len(siblings)
        resting = link.idle_saves and (real(link.status.fields.get("speed", "")) or 0.0) <= _RESTING_GT_PER_S
        if not link.idle_saves or (stands_out and not resting):
            certain.append(link)
        elif len(siblings) < 2 or stands_out:
            open_question.append(link)
    limited = [e for e in facts.all("kernel.pcie_limited") if re.search(r"mlx5|nvidia|bnxt|amdgpu|irdma", e.text)]
    limited = [e for e in limited if float(e.fields["available"]) < 0.6 * float(e.fields["capable"])]
    limited = [
        e for e in limited if re.search(r"mlx5|bnxt|irdma", e.text) or (e.number("speed") or 0) > _RESTING_GT_PER_S
    ]
    if not narrow and not certain and not open_question and not limited:
        return
    sure = bool(narrow or limited)
    confidence = 0.8 if sure else (0.65 if certain else 0.55)
    shown = narrow + certain + open_question
    yield Finding(
        "pcie-link-degraded", confidence, "major" if sure or certain else "minor", f"{len(shown) + len(limited)} PCIe links run below what they can",
        lines_of([*(e for link in shown for e in (link.capability, link.status)), *limited]),
        "Read LnkSta again under load (an idle GPU saves power at 2.5 GT/s); if it stays: reseat card or riser, check BIOS slot settings, replace.",
        ["nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv under load", "lspci -vv -s BUSID | grep Lnk"],
    )  # fmt: skip


def gpu_link_below_siblings(facts: Facts) -> Iterator[Finding]:
    """The PCIe link of one GPU is narrower, or under load slower, than those of the other GPUs of the job.

    Fires on width and generation of nvidia-smi (rows of devices: pcie link width and gen, now and at most): a width below its maximum that other
    GPUs reach, or a generation below that of most GPUs of the same name (or of no name, where the query left it out). The first generation is minor: a GPU without load goes back to it. Silent when all GPUs are alike, as idle ones save power and a slot may be narrow by design, and
    about the generation of a GPU that says it has no load.
    """
    by_name: dict[str, list[tuple[Device, float | None, float | None]]] = defaultdict(list)
    for device in facts.hardware:
        if device.kind == "gpu":
            by_name[device.name or ""].append((device, _attribute(device, "width"), _attribute(device, "gen")))
    for gpus in by_name.values():
        for what, index in (("width", 1), ("generation", 2)):
            loaded = [g for g in gpus if what == "width" or not _without_load(g[0])]
            values = [g[index] for g in loaded if g[index] is not None]
            if len(values) < 3:
                continue
            usual, times = Counter(values).most_common(1)[0]
            low = [g[0] for g in loaded if g[index] is not None and g[index] < usual]  # type: ignore[operator]
            if low and times * 2 > len(values):
                resting = what != "width" and all(
                    _attribute(device, "gen") == 1 and not device.attributes.get("utilization.gpu_pct")
                    for device in low
                )
                yield Finding(
                    "pcie-link-degraded", 0.7 if what == "width" else (0.3 if resting else 0.5), "minor" if resting else "major", f"{low[0].host or 'GPU'} {low[0].bus_id or low[0].name} runs PCIe {what} {_plain(low[0], what)}, {times} other GPUs {usual:g}",
                    lines_of([*low[:6], *[g[0] for g in loaded if g[index] == usual][:2]]),
                    "Read it again under load; if it stays: reseat card or riser, check BIOS slot settings, replace.", ["lspci -vv -s BUSID | grep Lnk"],
                )  # fmt: skip
                return


_NOW = {
    "width": re.compile(r"(?:.*[._])?pcie?[._](?:gpu_)?link[._](?:width[._]current|info.*width.*current)|.*link_widths?[._]current|pcie_link_width|pcie_width"),
    "gen": re.compile(r"(?:.*[._])?pcie?[._](?:gpu_)?link[._]gen[._](?:current|gpucurrent)|.*pcie_generation[._].*current|pcie_link_gen|pcie_gen"),
}  # fmt: skip
"""Attributes of nvidia-smi for what the link does now: --query-gpu (pcie.link.gen.current) and -q (PCIe Generation, Current)."""


def _attribute(device: Device, what: str) -> float | None:
    for key, value in device.attributes.items():
        if _NOW[what].fullmatch(key.lower()) and (found := real(value.lower().removesuffix("x"))) is not None:
            return found
    return None


_RESTS = re.compile(r"P(?:[5-9]|1[0-5])")
"""Performance states of a GPU that does nothing or little; P0 is the highest (nvml.h, nvmlPstates_t). Which a working GPU may be in is a guess."""


def _without_load(device: Device) -> bool:
    """Whether nvidia-smi says that the GPU has nothing to do."""
    state = device.attributes.get("pstate") or device.attributes.get("performance_state") or ""
    load = real(device.attributes.get("utilization.gpu_pct", "").removesuffix("%").strip())
    return _RESTS.fullmatch(state) is not None or load == 0.0


def _plain(device: Device, what: str) -> str:
    value = _attribute(device, "width" if what == "width" else "gen")
    return f"{value:g}" if value is not None else "unknown"


RULES = (access_control, slower_with_p2p, iommu_in_the_way, narrow_link, gpu_link_below_siblings)
