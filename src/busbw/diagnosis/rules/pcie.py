"""PCIe: peer traffic redirected by ACS or the IOMMU, links trained below what they can."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def access_control(facts: Facts) -> Iterator[Finding]:
    """ACS redirects peer-to-peer traffic to the root complex.

    Fires when a port has request redirection on (ReqRedir+, or bit 2 of ACSCtl; PCI Express Base Specification, ACS Control Register).
    Less sure in a whole lspci, where a port may lead to neither GPU nor NIC. Silent when the bits are off, and for other devices. A port that only lists ACSCap has not turned it on.
    """
    on = []
    device = ""
    for event in facts.all("pci.device", "pci.acs"):
        if event.name == "pci.device":
            device = event.text
            continue
        if re.search(r"USB|SATA|Non-Volatile|Audio|Serial|RAID", device):
            continue
        flags = event.fields.get("flags", "")
        bits = re.match(r"0x([0-9a-f]+)", flags)
        if "ReqRedir+" in flags or (bits is not None and int(bits[1], 16) & 0b100):
            on.append(event)
    if on:
        yield Finding(
            "pcie-acs-enabled", 0.65 if device else 0.85, "fatal", f"{len(on)} PCIe ports redirect peer-to-peer requests (ACS)", lines_of(on),
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


def narrow_link(facts: Facts) -> Iterator[Finding]:
    """A PCIe link of a GPU, NIC or bridge runs at lower width or speed than it can.

    Fires when LnkSta is below the LnkCap before it (lspci -vv), and on the kernel's "available PCIe bandwidth, limited by". A lower width
    is sure; a lower speed alone may be power saving of an idle device, so look again under load.
    Silent on disks and other devices that carry no collective.
    """
    capability: Event | None = None
    slow: list[tuple[Event, Event, bool]] = []
    device: Event | None = None
    for event in facts.all("pci.device", "pci.link_capability", "pci.link_status"):
        if event.name == "pci.device":
            device, capability = event, None
        elif event.name == "pci.link_capability":
            capability = event
        elif capability is None:
            if "(downgraded)" in event.text:
                slow.append((event, event, "Width" in event.text and "(downgraded)" in event.text.split("Width", 1)[1]))
        else:
            if device is not None and not re.search(
                r"3D controller|VGA|Infiniband|Ethernet|PCI bridge|Processing accel|NVIDIA|Mellanox|AMD",
                device.text,
                re.IGNORECASE,
            ):
                continue
            narrower = (event.number("width") or 0) < (capability.number("width") or 0)
            slower = float(event.fields["speed"]) < float(capability.fields["speed"])
            if narrower or slower:
                slow.append((capability, event, narrower))
    limited = [e for e in facts.all("kernel.pcie_limited") if re.search(r"mlx5|nvidia|bnxt|amdgpu|irdma", e.text)]
    limited = [e for e in limited if float(e.fields["available"]) < 0.6 * float(e.fields["capable"])]
    if not slow and not limited:
        return
    sure = any(narrow for _, _, narrow in slow) or bool(limited)
    yield Finding(
        "pcie-link-degraded", 0.8 if sure else 0.55, "major" if sure else "minor", f"{len(slow) + len(limited)} PCIe links run below what they can",
        lines_of([*(e for pair in slow for e in pair[:2]), *limited]),
        "Read LnkSta again under load (an idle GPU saves power at 2.5 GT/s); if it stays: reseat card or riser, check BIOS slot settings, replace.",
        ["nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv under load", "lspci -vv -s BUSID | grep Lnk"],
    )  # fmt: skip


RULES = (access_control, slower_with_p2p, iommu_in_the_way, narrow_link)
