"""PCI trees that a virtual machine hides or invents."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.hardware.formats import NcclTopology

__all__ = ["RULES"]

_REMEDY = "Give NCCL the real tree (NCCL_TOPO_FILE of the provider or of the bare machine), or a virtual machine with a faithful PCI topology; then check GPUDirect."


def hidden_links(facts: Facts) -> Iterator[Finding]:
    """The PCI tree of a guest has no link speeds, so NCCL assumes a slow one.

    Fires when NCCL cannot read max_link_speed or max_link_width of PCI devices (src/graph/xml.cc) and falls back to a default, stronger
    when the system it sees has 12 GB/s at most. Silent for network interfaces without a PCI device, such as lo.
    """
    unreadable = [e for e in facts.all("nccl.topo_unreadable") if "link_speed" in e.text or "link_width" in e.text]
    defaults = [
        e for e in facts.all("nccl.topo_unknown_value") if e.fields.get("value", "") in ("", "Unknown", "Unknown speed")
    ]
    hidden = [e for e in facts.all("nccl.topo_no_path") if "pci" in e.text and e.level == "warning"]
    if hidden:
        yield Finding(
            "vm-topology-file", 0.65, "fatal", "a PCI device that NCCL looks for is not in /sys: the topology is hidden or its file is of another machine", lines_of([*hidden, *facts.setting("NCCL_TOPO_FILE")]),
            _REMEDY, ["systemd-detect-virt; lspci -tv", "run once without NCCL_TOPO_FILE"],
        )  # fmt: skip
    if not unreadable:
        return
    slow = [e for e in facts.all("nccl.system") if float(e.fields.get("max_bw", "0")) <= 12.0]
    graphs = [e for e in facts.all("nccl.graph") if e.fields.get("type_inter") in ("PHB", "SYS")]
    yield Finding(
        "vm-topology-file", 0.8 if slow or graphs else 0.55, "major" if slow or graphs else "minor", "the PCI tree shows no link speeds: a virtual machine hides the topology", lines_of([*unreadable[:4], *defaults[:2], *slow, *graphs[:3]]),
        _REMEDY, ["systemd-detect-virt; lspci -tv", "NCCL_TOPO_DUMP_FILE=topo.xml and compare with a bare machine"],
    )  # fmt: skip


def bottleneck_in_topology_file(facts: Facts) -> Iterator[Finding]:
    """A topology file describes a PCI link so slow that no real one is like it, above a GPU or NIC.

    Fires on elements of NCCL's topology XML whose speed times width is far below what the device needs, and on a system of under 1 GB/s.
    Silent on links of unknown speed of some devices only.
    """
    refs = []
    worst = None
    for path, topology in facts.topologies:
        if isinstance(topology, NcclTopology):
            bottlenecks = topology.pcie_bottlenecks()
            for b in bottlenecks:
                ref = facts.line_of(path, b.pci.line)
                if ref is not None:
                    refs.append(ref)
                    worst = b if worst is None or b.bytes_per_s < worst.bytes_per_s else worst
            if bottlenecks:
                refs += [r for g in topology.without_gpudirect() if (r := facts.line_of(path, g.line)) is not None]
    blank = []
    for path, topology in facts.topologies:
        if isinstance(topology, NcclTopology):
            gpus = [p for p in topology.pcis if p.is_gpu]
            unknown = [
                p
                for p in gpus
                if (p.get("link_speed") or "").strip().lower() in ("", "unknown", "unknown speed") or p.link_width == 0
            ]
            if gpus and len(unknown) == len(gpus):
                blank += [r for p in unknown if (r := facts.line_of(path, p.line)) is not None]
    if blank:
        yield Finding(
            "vm-topology-file", 0.75, "major", f"none of the {len(blank)} GPUs has a PCI link speed or width: a virtual machine shows a flat bus", blank[:12], _REMEDY,
            ["systemd-detect-virt; lspci -tv"],
        )  # fmt: skip
    crawling = [
        e for e in facts.all("nccl.topo_link") if e.fields.get("link") == "PCI" and 0 < float(e.fields["bw"]) < 1.0
    ]
    crawling += [e for e in facts.all("nccl.system") if 0 < float(e.fields.get("max_bw", "0")) < 1.0]
    if worst is not None and refs:
        yield Finding(
            "vm-topology-file", 0.85, "major", f"the topology holds a PCI link of {worst.bytes_per_s / 1e9:.2f} GB/s: {worst.reason}", sorted(set(refs))[:12],
            "Correct the element (16 GT/s x16 between CPU and switch, or no artificial bridge) and enable GPUDirect RDMA in the guest. " + _REMEDY,
            ["NCCL_TOPO_DUMP_FILE=topo.xml without the file"],
        )  # fmt: skip
    elif crawling:
        yield Finding(
            "vm-topology-file", 0.6, "major", "NCCL believes in links of under 1 GB/s", lines_of([*crawling, *facts.setting("NCCL_TOPO_FILE")]), _REMEDY,
            ["NCCL_TOPO_DUMP_FILE=topo.xml and look for low link_speed or link_width"],
        )  # fmt: skip


def no_path_found(facts: Facts) -> Iterator[Finding]:
    """NCCL found no path for a pattern and fell back to a simple order: a sure sign that the topology it sees is odd.

    Fires on that line (src/graph/search.cc) and on a NET that graph and topology do not agree on. A topology file, a virtual machine, or
    a defect of the search are the usual causes. Silent otherwise.
    """
    missing = facts.all("nccl.topo_attribute_missing")
    if missing:
        yield Finding(
            "vm-topology-file", 0.7, "fatal", f"the topology file lacks the attribute {missing[0].fields.get('attribute')}", lines_of([*missing, *facts.setting("NCCL_TOPO_FILE")]),
            "Use the file that fits this NCCL version and instance type, or unset NCCL_TOPO_FILE.", ["run once without NCCL_TOPO_FILE"],
        )  # fmt: skip
    events = facts.all("nccl.topo_simple_order", "nccl.topo_missing_net")
    if events and not facts.all("nccl.topo_unreadable"):
        lines = lines_of([*events, *facts.setting("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")])
        tell = ["NCCL_TOPO_DUMP_FILE=topo.xml on every host and compare them", "the same run with another NCCL version"]
        yield Finding(
            "library-bug-version",
            0.45,
            "fatal",
            "NCCL finds no path between GPUs and NICs",
            lines,
            "Try another NCCL version.",
            tell,
        )
        yield Finding(
            "vm-topology-file", 0.35, "fatal", "the topology that NCCL sees lacks a path", lines, _REMEDY, tell
        )


RULES = (no_path_found, hidden_links, bottleneck_in_topology_file)
