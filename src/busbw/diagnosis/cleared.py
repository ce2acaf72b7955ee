"""What looks alarming and is not the cause, and what was checked and is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Check, Cleared, Finding
from busbw.diagnosis.rules import benchmark, expected_calls, hangs, latecomers, ras, steps
from busbw.diagnosis.rules.desync import EFFECTS
from busbw.diagnosis.rules.shared import is_multi_node
from busbw.diagnosis.xids import xids
from busbw.hardware.formats import NcclTopology, TopologyMatrix

__all__ = ["cleared_lines", "is_harmless", "positive_checks", "unexplained"]

_HARMLESS: tuple[tuple[str, str, str], ...] = (
    (
        "nccl.net_plugin_absent",
        "no external network plugin",
        "NCCL looks for one and uses its own network when there is none",
    ),
    ("nccl.profiler_absent", "no profiler plugin", "optional"),
    ("nccl.tuner_absent", "no tuner plugin", "optional"),
    ("nccl.service_closed", "service thread: connection closed", "printed at a normal end too"),
    ("nccl.ib_no_library", "libibverbs missing", "needed only for InfiniBand or RoCE between hosts"),
    ("nccl.ib_no_device", "no RDMA device", "needed only between hosts"),
    ("nccl.topo_no_path", "a network interface without PCI device", "virtual interfaces have none"),
    ("rccl.numa_balancing", "NUMA balancing is on", "costs some performance, breaks nothing"),
    ("nccl.nvls_unavailable", "no NVLink SHARP", "only NVSwitch systems from Hopper on have it"),
    ("ofi.gpudirect", "a kind of registration is not supported", "the plugin chooses another one"),
    (
        "torch.barrier_device_unknown",
        "barrier before the device is known",
        "a warning; pass device_id to init_process_group",
    ),
    ("kernel.peermem", "messages of nvidia_peermem", "informational"),
    ("nccl.nvls_register_failed", "NVLS registration of a buffer", "NCCL goes on without it"),
)
_HARMLESS_NAMES = frozenset(name for name, _, _ in _HARMLESS)
_EFFECTS: tuple[tuple[str, str, str], ...] = (
    ("nccl.peer_closed", "connections closed by a peer", "the consequence of the peer's own failure"),
    ("nccl.remote_result", "remote errors", "the consequence of another rank's failure"),
    ("torch.store_lost", "the rendezvous store is gone", "rank 0 ended first"),
    ("torch.taken_down", "PyTorch takes the process down", "what it does after a timeout"),
    ("nccl.proxy_failed", "proxy operations failed", "they report the error of the rank they serve"),
)


def cleared_lines(facts: Facts, findings: Sequence[Finding]) -> Iterator[Cleared]:
    """Alarming lines that no finding rests on, with the reason why they are not the cause."""
    used = {(line.path, line.line) for f in findings[:3] for line in f.lines}

    def unused(events: Sequence[Event], keep: Callable[[Event], bool] = lambda _: True) -> list[Event]:
        return [e for e in events if (e.at.path, e.at.line) not in used and keep(e)]

    for name, what, why in _HARMLESS:
        events = unused(facts.all(name))
        if name == "nccl.ib_no_library" and is_multi_node(facts):
            continue
        if events:
            yield Cleared(what, why, lines_of(events, most=3))
    nonfatal = unused(facts.all("kernel.xid"), _harmless_kernel_line)
    if nonfatal:
        yield Cleared(
            "Xid of a kind that does not fail a job by itself",
            "nonfatal, a repair, or the end of a process",
            lines_of(nonfatal, most=3),
        )
    corrected = unused(
        facts.all("kernel.pcie_error", "kernel.pcie_aer"),
        lambda e: "corrected" in e.text.lower() and "uncorrected" not in e.text.lower(),
    )
    if corrected:
        yield Cleared(
            "corrected PCIe errors",
            "repaired by the link; many of them point at a bad link",
            lines_of(corrected, most=3),
        )
    if findings and findings[0].kind != "peer-process-died":
        for name, what, why in _EFFECTS:
            events = unused(facts.all(name))
            if events:
                yield Cleared(what, why, lines_of(events, most=3))


def unexplained(facts: Facts, findings: Sequence[Finding]) -> list[Event]:
    """Warnings and errors that no finding rests on and that are not known to be harmless; an abort, and where NCCL's errors went through.

    While there are any, nothing says that the system is healthy.
    """
    used = {(line.path, line.line) for f in findings for line in f.lines}
    errors = [e for e in facts.failures() if not is_harmless(e)]
    errors += [e for e in facts.all("nccl.comm_ended") if e.fields.get("state", "").startswith("Abort")]
    if not findings:
        errors += [e for e in facts.all("nccl.backtrace") if e.fields.get("code") not in ("0", "7")]
    else:
        errors = [e for e in errors if e.name not in EFFECTS]
    return [e for e in errors if (e.at.path, e.at.line) not in used]


def is_harmless(event: Event) -> bool:
    """Whether a warning or error is known to fail no job by itself, or says nothing where no rule fires."""
    return event.name in _HARMLESS_NAMES or _harmless_kernel_line(event) or _only_remarked(event)


def _harmless_kernel_line(event: Event) -> bool:
    text = event.text.lower()
    if event.name == "kernel.xid":
        known = xids().get(event.number("xid") or 0)
        return "nonfatal" in text or (known is not None and known.cause in ("consequence", "information"))
    if event.name in ("kernel.pcie_error", "kernel.pcie_aer"):
        return "corrected" in text and "uncorrected" not in text
    return event.name == "kernel.nic_link" and event.fields.get("state", "").lower().rstrip(".,") in ("up", "plugged")


def _only_remarked(event: Event) -> bool:
    """Lines that rules weigh, and that say nothing where none of them fires."""
    return event.name.startswith(
        ("debug.", "ucx.transport", "ras.", "gpu.throttle", "nvlink.", "kernel.pcie_limited", "torch.traceback")
    )


def positive_checks(facts: Facts) -> Iterator[Check]:
    """What was compared with what it should be, and came out right."""
    yield from benchmark.checks(facts)
    yield from hangs.checks(facts)
    yield from ras.checks(facts)
    yield from latecomers.checks(facts)
    yield from expected_calls.checks(facts)
    yield from steps.checks(facts)
    networks = [e for e in facts.all("nccl.network") if not e.fields.get("network", "").startswith("Socket")]
    if networks:
        yield Check(
            "network",
            f"NCCL uses {networks[0].fields['network'].strip()} on {len(networks)} processes",
            lines_of(networks, most=3),
        )
    providers = facts.all("ofi.provider")
    if providers:
        yield Check(
            "provider",
            f"libfabric provider {providers[0].fields.get('provider')} with {providers[0].fields.get('nics')} NICs",
            lines_of(providers, most=3),
        )
    rdma = [link for link in facts.links if link.network not in (None, "Socket")]
    direct = [link for link in rdma if link.gpudirect]
    if rdma and len(direct) == len(rdma):
        yield Check(
            "GPUDirect RDMA", f"on all {sum(link.count for link in rdma)} network connections", lines_of(direct, most=3)
        )
    complete = [e for e in facts.all("nccl.comm") if e.fields.get("state", "").startswith("COMPLETE")]
    if complete:
        seen = {e.number("rank") for e in complete}
        ranks = max((e.number("ranks") or 0) for e in complete)
        yield Check(
            "initialisation",
            f"{len(seen)} of {ranks} ranks completed it",
            lines_of(complete, most=3),
            decisive=len(seen) >= ranks,
        )
    connected = facts.all("nccl.connected")
    if connected:
        yield Check("connections", "rings and trees are connected", lines_of(connected, most=2))
    for path, topology in facts.topologies:
        if isinstance(topology, TopologyMatrix) and topology.gpus:
            kinds = sorted({link.kind for link in topology.gpu_links()})
            refs = [r for row in topology.rows[:2] if (r := facts.line_of(path, row.line)) is not None]
            yield Check("topology", f"{len(topology.gpus)} GPUs connected by {', '.join(kinds) or 'nothing'}", refs)
        elif isinstance(topology, NcclTopology) and topology.gpus and not topology.pcie_bottlenecks():
            refs = [r for g in topology.gpus[:2] if (r := facts.line_of(path, g.line)) is not None]
            yield Check("topology", f"{len(topology.gpus)} GPUs; no PCI link below what its devices need", refs)
    pairs = [p for p in facts.pairs if p.quantity == "peer_access" and p.src != p.dst]
    if pairs:
        allowed = sum(1 for p in pairs if p.value > 0)
        yield Check(
            "peer access",
            f"{allowed} of {len(pairs)} GPU pairs; none across sockets is normal without NVLink",
            lines_of(pairs, most=2),
        )
