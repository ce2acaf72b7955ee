"""What a node looks like inside, and which part of it is marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reports import bundles

from busbw.diagnosis import Facts, Finding, LineRef
from busbw.diagnosis.facts import Event, Process
from busbw.hardware.formats import read_nccl_topology, read_topology_matrix
from busbw.reports.node_figure import node_svg
from busbw.reports.nodes import NodeMap, node_maps


def facts_of(matrix: str = "", xml: str = "", path: str = "node0/topo") -> Facts:
    facts = Facts()
    if matrix:
        facts.topologies.append((path, read_topology_matrix(matrix, path)[0]))
    if xml:
        facts.topologies.append((path, read_nccl_topology(xml, path)[0]))
    return facts


def the_map(facts: Facts, *findings: Finding) -> NodeMap:
    (found,) = node_maps(facts, findings)
    return found


def groups(node: NodeMap) -> list[tuple[str, list[list[str]]]]:
    return [(d.label, [[device.label for device in g.devices] for g in d.groups]) for d in node.domains]


def marks(node: NodeMap) -> list[tuple[str, str, int | None]]:
    """(what is marked, why, finding), devices by their names."""
    names = {f"device {k}": device.label for k, device in enumerate(node.devices)}
    return [(names.get(mark.target, mark.target), mark.text, mark.finding) for mark in node.marks]


def test_a_matrix_becomes_sockets_and_switches():
    """PIX and PXB are one switch, NUMA affinity and NODE one socket. DGX A100 (docs.nvidia.com/dgx/dgxa100-user-guide), rows of GPU6 on left out."""
    text = (Path(__file__).parents[1] / "hardware" / "data" / "topo_dgx_a100.txt").read_text()
    node = the_map(facts_of(text))
    assert groups(node)[:3] == [
        ("NUMA 3", [["GPU0", "GPU1", "NIC0", "NIC1"]]),
        ("NUMA 1", [["GPU2", "GPU3", "NIC2", "NIC3"]]),
        ("NUMA 7", [["GPU4", "GPU5", "NIC4", "NIC5"]]),
    ]
    assert groups(node)[3][0] == "socket not told"
    assert node.switch == "NVSwitch: 12 NVLinks a GPU"


def test_a_gpu_whose_nic_is_across_sockets_is_marked():
    node = the_map(facts_of(bundles.topo_matrix()))
    assert marks(node) == [
        ("GPU5", "GPU5: no NIC on its own socket, the nearest is across sockets (SYS)", None),
        ("sockets", "the way to the NIC crosses the link between sockets", None),
    ]


def test_the_finding_that_says_the_same_is_named():
    finding = Finding("vm-topology-file", 0.8, "major", "s", [LineRef("node0/topo", 35, 0, "a")], "r")
    node = the_map(facts_of(xml=bundles.topo_xml()), finding)
    assert ("group 6", "Gen1 x1, 0.25 GB/s: far below what it carries (bridge above a GPU)", 1) in marks(node)
    assert ("GPU1", "GPU1: 12 NVLinks, most have 18", None) in marks(node)


def test_the_tree_of_a_topology_file_is_drawn_as_it_is():
    node = the_map(facts_of(xml=bundles.topo_xml()))
    assert groups(node)[0] == ("NUMA 0", [[f"GPU{k}", f"mlx5_{k}"] for k in range(4)])
    assert [g.label for g in node.groups][5:7] == ["PCIe switch, Gen5 x16", "PCIe switch, Gen1 x1"]


@pytest.mark.parametrize(("host", "is_marked"), [("node0", True), ("node1", False)])
def test_a_gpu_named_by_its_bus_id_is_marked_on_its_own_host_only(host, is_marked):
    """Xid 79 of 0000:04:01, which is GPU3 in the tree of node0."""
    facts = facts_of(xml=bundles.topo_xml())
    at = LineRef("dmesg", 7, 0, "b")
    text = "NVRM: Xid (PCI:0000:04:01): 79, GPU has fallen off the bus."
    facts.events["kernel.xid"].append(Event("kernel.xid", at, text, "error", host=host))
    for name in ("node0", "node1"):
        facts.processes[name, 1] = Process(name, 1)
    finding = Finding("gpu-fallen-off-bus", 0.9, "fatal", "s", [at], "r")
    found = ("GPU3", f"GPU3: gpu-fallen-off-bus on {host}", 1) in marks(the_map(facts, finding))
    assert found == is_marked


def test_a_finding_that_names_every_gpu_marks_none():
    """What all have alike tells no part of the drawing from another."""
    facts = facts_of(xml=bundles.topo_xml())
    at = [LineRef("dmesg", k, 0, "b") for k in range(8)]
    for k in range(8):
        facts.events["kernel.xid"].append(Event("kernel.xid", at[k], f"Xid (PCI:0000:{k + 1:02x}:01): 79", "error"))
    finding = Finding("gpu-fallen-off-bus", 0.9, "fatal", "s", at, "r")
    assert [mark for mark in marks(the_map(facts, finding)) if mark[2] == 1] == []


def test_inactive_nvlinks_mark_the_gpu_in_the_heading_above_them():
    """`nvidia-smi nvlink -s` names the GPU once, then its links."""
    facts = facts_of(bundles.topo_matrix())
    facts.events["nvlink.gpu"].append(Event("nvlink.gpu", LineRef("nv", 1, 0, "b"), "GPU 2: H100", fields={"gpu": "2"}))
    down = LineRef("nv", 2, 0, "b")
    facts.events["nvlink.link_down"].append(Event("nvlink.link_down", down, "Link 0: inactive", "warning"))
    finding = Finding("nvlink-down", 0.9, "major", "s", [down], "r")
    assert ("GPU2", "GPU2: nvlink-down", 1) in marks(the_map(facts, finding))


def test_nodes_that_look_alike_are_drawn_once():
    facts = facts_of(bundles.topo_matrix(), path="node0/topo")
    facts.topologies += facts_of(bundles.topo_matrix(), path="node1/topo").topologies
    (node,) = node_maps(facts)
    assert node.paths == ("node0/topo", "node1/topo")


def test_more_devices_than_fit_are_counted():
    """No node has 72 GPUs; what does not fit is said."""
    cpus = "".join(
        f'<cpu numaid="{n}"><pci busid="{n:04x}:01:00.0" class="0x030200"><gpu dev="{n}" rank="{n}"/></pci></cpu>'
        for n in range(72)
    )
    node = the_map(facts_of(xml=f'<system version="1">{cpus}</system>'))
    assert len(node.devices) + node.left_out == 72
    assert node.left_out > 0


def test_the_drawing_marks_by_number_and_frame_and_says_it_in_words():
    svg = node_svg(the_map(facts_of(bundles.topo_matrix())))
    assert "Marked 1: GPU5: no NIC on its own socket" in svg
    assert svg.count("var(--alarm)") >= 4
    assert "#0102" not in svg


def test_pairs_of_gpus_are_joined_by_arcs_with_their_number_of_links():
    """Two bridged pairs (an A6000 box): NV4 between 0 and 1, and 2 and 3; PCIe between the pairs."""
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tNV4\tSYS\tSYS\nGPU1\tNV4\tX\tSYS\tSYS\nGPU2\tSYS\tSYS\tX\tNV4\nGPU3\tSYS\tSYS\tNV4\tX\n"
    node = the_map(facts_of(text))
    assert (node.switch, node.nvlinks) == ("", (("GPU0", "GPU1", 4), ("GPU2", "GPU3", 4)))
    assert node_svg(node).count(">NV4<") == 2


def test_a_file_of_several_hosts_is_a_node_each_and_those_alike_are_one_drawing():
    """NCCL's dump of a GB200 NVL72 holds all hosts, told apart by host_hash: three of two GPUs here, one with fewer NVLinks."""

    def host(h: int, links: int) -> str:
        gpus = "".join(
            f'\n<pci busid="{h:04x}:0{k + 1}:00.0" class="0x030200"><gpu dev="{k}" rank="{2 * h + k}">\n'
            f'<nvlink target="fffffff:ffff:ff" count="{links}" tclass="0x068000"/></gpu></pci>'
            for k in range(2)
        )
        return f'<cpu host_hash="0x{h}" numaid="0">{gpus}</cpu>\n'

    facts = facts_of(xml=f'<system version="1">{host(1, 18)}{host(2, 9)}{host(3, 18)}</system>')
    marked, rest = node_maps(facts)
    assert [text for _, text, _ in marks(marked)] == ["GPU0: 9 NVLinks, most have 18", "GPU1: 9 NVLinks, most have 18"]
    assert (len(rest.devices), len(rest.paths), rest.marks) == (2, 2, ())
