"""Peer access between GPUs: not there, claimed and not there, needed by host buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding, Severity
from busbw.diagnosis.rules.shared import active, without_repeats
from busbw.hardware.formats import TopologyMatrix

__all__ = ["RULES"]

_WITHOUT_P2P = re.compile(r"GeForce\s+(?:RTX\s*)?[2-9]0\d\d|RTX\s*[2345]0[5-9]0\b|GeForce", re.IGNORECASE)
"""Consumer cards, for which the driver offers no peer access over PCIe (NVIDIA forum and driver release notes since Turing)."""


def _consumer_cards(facts: Facts) -> list[Event]:
    return [e for e in facts.all("nccl_tests.device", "nvlink.gpu") if _WITHOUT_P2P.search(e.text)]


def access_refused(facts: Facts) -> Iterator[Finding]:
    """NCCL counts on peer access, or on a shared host buffer, and the driver refuses.

    Fires on CUDA error 217 (peer access is not supported). Behind opening an IPC handle or enabling a peer it is P2P misdetected: processes
    with different device masks, containers, consumer cards. In NCCL's cuMem host allocation (src/include/alloc.h, shm.cc; 2.24 and later)
    it is the host buffer that needs the access. ncclMemAlloc maps device memory, so there it is peer access that fails. Silent on other errors at the same place.
    """
    errors = [e for text, e in facts.cuda_errors() if "peer access is not supported" in text]
    mapped = [e for text, e in facts.cuda_errors() if "mapping of buffer object failed" in text]
    errors = without_repeats(errors, facts.all("cuda.peer_unsupported", "nccl.ipc_open_failed"), mapped)
    if not errors:
        return
    host_side = [
        e
        for e in errors
        if (e.file in ("alloc.h", "shm.cc", "shmutils.cc", "allocator.cc") and e.function != "ncclMemAlloc")
        or "cuMemHost" in (e.function or "")
        or "CuMemHost" in e.text
    ]
    host_side += (
        [
            e
            for e in facts.all("nccl.backtrace")
            if e.fields.get("file", "").endswith(("shm.cc", "allocator.cc")) and e.fields.get("code") == "1"
        ]
        if host_side
        else []
    )
    p2p_links = [link for link in facts.links if link.transport == "P2P"]
    if host_side:
        yield Finding(
            "cumem-host-no-p2p", 0.75, "fatal", "NCCL's shared host buffers need peer access that these GPUs do not have", lines_of([*host_side, *errors]),
            "Set NCCL_CUMEM_HOST_ENABLE=0 (or NCCL_CUMEM_ENABLE=0), or upgrade NCCL.", ["nvidia-smi topo -p2p r", "run once with NCCL_CUMEM_HOST_ENABLE=0"],
        )  # fmt: skip
    yield Finding(
        "p2p-unsupported-misdetected", 0.2 if host_side else 0.8, "fatal", "peer access is assumed and the driver refuses it", lines_of([*p2p_links[:4], *errors]),
        "Make all GPUs visible to every process (same CUDA_VISIBLE_DEVICES, --gpus all), or set NCCL_P2P_DISABLE=1.",
        ["nvidia-smi topo -p2p r", "the CUDA sample p2pBandwidthLatencyTest inside the container"],
    )  # fmt: skip


def cards_without_p2p(facts: Facts) -> Iterator[Finding]:
    """These GPUs have no peer access; staging through the host is what to expect.

    Fires on NCCL's "Could not enable P2P" or SHM connections together with consumer cards. Minor: nothing is broken.
    Silent when these cards use P2P, and when a variable forbids it.
    """
    cards = _consumer_cards(facts)
    refused = facts.all("nccl.p2p_not_enabled")
    shm = [link for link in facts.links if link.transport == "SHM"]
    off = active(facts, "NCCL_P2P_DISABLE")
    if (cards and (refused or shm) and not off) or (refused and not facts.all("nccl.p2p_disabled_nvlink")):
        yield Finding(
            "p2p-unsupported-gpu", 0.6 if cards else 0.45, "minor", "no peer access between these GPUs: traffic is staged through host memory", lines_of([*refused, *cards, *shm]),
            "Nothing to mend on consumer cards; NCCL_P2P_DISABLE=1 saves the attempt. On data-centre cards check IOMMU, ACS and the virtual machine.",
            ["nvidia-smi topo -p2p r"],
        )  # fmt: skip


def pairs_without_access(facts: Facts) -> Iterator[Finding]:
    """`nvidia-smi topo -p2p` or the driver says that the chipset or the GPU does not support peer access.

    Fires on the status words CNS (chipset not supported), GNS (GPU not supported), TNS (topology) and NS in such a matrix.
    Silent where the driver says OK.
    """
    refs = set()
    for path, topology in facts.topologies:
        if isinstance(topology, TopologyMatrix):
            refs |= {
                ref
                for link in topology.gpu_links()
                if link.kind in ("CNS", "GNS", "NS", "TNS") and (ref := facts.line_of(path, link.line)) is not None
            }
    if refs:
        yield Finding(
            "p2p-unsupported-gpu", 0.6, "minor", "the driver offers no peer access between these GPUs", sorted(refs)[:12],
            "Expected on consumer cards and across some chipsets; NCCL then uses shared memory.", ["nvidia-smi topo -p2p r"],
        )  # fmt: skip


def hang_until_p2p_is_off(facts: Facts) -> Iterator[Finding]:
    """A job works only with NCCL_P2P_DISABLE=1 on a machine whose GPUs talk over PCIe.

    Fires when a note says so (the variable mentioned as a remedy) and a topology without NVLink, or none, is given. Direct PCIe traffic that
    never arrives is ACS or the IOMMU. Minor if the note stands alone. Silent when NVLink connects the GPUs.
    """
    remedies = [s for s in facts.setting("NCCL_P2P_DISABLE") if s.origin == "note" and s.value == "1"]
    matrices = [t for _, t in facts.topologies if isinstance(t, TopologyMatrix)]
    nvlink = any(link.nvlinks for t in matrices for link in t.gpu_links())
    if remedies and not nvlink:
        lines = lines_of(remedies)
        severity: Severity = "fatal" if matrices or facts.pairs or facts.failures() else "minor"
        tell = ["lspci -vvv | grep -i acsctl", "cat /proc/cmdline; dmesg | grep -i iommu", "p2pBandwidthLatencyTest"]
        yield Finding(
            "pcie-acs-enabled",
            0.45,
            severity,
            "direct traffic between GPUs over PCIe does not arrive",
            lines,
            "Turn ACS off on the bridges above the GPUs.",
            tell,
        )
        yield Finding(
            "iommu-p2p",
            0.4,
            severity,
            "direct traffic between GPUs over PCIe does not arrive",
            lines,
            "Boot with iommu=pt or with the IOMMU off.",
            tell,
        )


def mapping_over_bar1_failed(facts: Facts) -> Iterator[Finding]:
    """The driver cannot map one GPU's BAR1 for another: peer access over PCIe is reported and does not work.

    Fires on the driver's own errors for P2P over BAR1 (kern_bus_gh100.c, 525 and later): the address that the IOMMU gave is not aligned to 512 MB, or the
    mapping failed. Silent when the driver adds and removes such mappings without errors.
    """
    unaligned, failed = facts.all("kernel.bar1_unaligned"), facts.all("kernel.bar1_mapping_failed")
    if not unaligned and not failed:
        return
    lines = lines_of([*unaligned, *failed])
    tell = ["cat /proc/cmdline; dmesg | grep -i -e iommu -e dmar", "nvidia-smi topo -p2p r; p2pBandwidthLatencyTest"]
    yield Finding(
        "iommu-p2p", 0.65, "fatal", "the IOMMU's address of a GPU's BAR1 does not suit the driver: no peer access", lines,
        "Boot with iommu=pt or with the IOMMU off, and Resizable BAR and Above 4G Decoding on in the firmware; NCCL_P2P_DISABLE=1 gets a job through.", tell,
    )  # fmt: skip
    yield Finding(
        "p2p-unsupported-misdetected", 0.25, "fatal", "peer access over BAR1 is reported and cannot be set up", lines, "Use the vendor's driver, or NCCL_P2P_DISABLE=1.", tell,
    )  # fmt: skip


RULES = (hang_until_p2p_is_off, mapping_over_bar1_failed, access_refused, cards_without_p2p, pairs_without_access)
