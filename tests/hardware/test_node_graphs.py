"""A node as a graph, and as NCCL topology XML and back."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import LINK_KINDS, LinkTable, load_nodes, pcie_bytes_per_s
from busbw.hardware.formats import (
    node_from_nccl_topology,
    node_to_nccl_topology,
    read_nccl_topology,
    write_nccl_topology,
)

NODES = load_nodes()
GOLDEN = FilePath(__file__).parent / "nccl_golden"
GB = 1e9


@pytest.mark.parametrize("name", NODES)
def test_what_is_exported_and_read_again_is_the_same_graph(name):
    node = NODES[name]
    xml = write_nccl_topology(node_to_nccl_topology(node)[0])
    topology, losses = read_nccl_topology(xml, "exported.xml")
    read, more = node_from_nccl_topology(topology, "again", node.accelerator.name)
    assert [loss.kind for loss in losses] == [loss.kind for loss in more if loss.kind != "node-left-out"] == []
    assert read.graph.equals(node.graph)
    assert (read.gpus, read.nics, read.nic_rate_bytes_per_s) == (node.gpus, node.nics, node.nic_rate_bytes_per_s)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("dgxh100", "dgx-h100"),
        ("dgxa100", "dgx-a100"),
        ("dgxb200", "dgx-b200"),
        ("gb200_1host", "gb200-nvl72"),
        ("gb300_1host_800g", "gb300-nvl72"),
    ],
)
def test_a_blueprint_is_the_machine_whose_topology_nccl_was_fed(file, name):
    """The topology files were written for NCCL independently of the blueprints. Equal: devices, NVLinks, C2C, PCIe.

    DGX A100: the file numbers two NUMA nodes, the blueprint four of the eight real ones; so what is compared is what
    hangs together below PCIe switches, and every link but those to and between CPUs.
    """
    topology, _ = read_nccl_topology((GOLDEN / f"{file}.xml").read_bytes(), file)
    read, _ = node_from_nccl_topology(topology, file)
    node = NODES[name]
    assert (read.gpus, read.nics) == (node.gpus, node.nics)
    assert read.nic_rate_bytes_per_s == node.nic_rate_bytes_per_s
    assert read.accelerator.compute_capability == node.accelerator.compute_capability
    groups = [
        {(root.gpus, root.nics, root.bytes_per_s) for root in one.pcie if root.has_switch} for one in (read, node)
    ]
    assert groups[0] == groups[1]
    for gpu in range(node.gpus):
        assert read.gpu_gpu_path(0, gpu).bandwidth_bytes_per_s == node.gpu_gpu_path(0, gpu).bandwidth_bytes_per_s
        nic = node.rail_of_gpu(gpu)
        assert read.rail_of_gpu(gpu) == nic
        one, other = read.gpu_nic_path(gpu, nic), node.gpu_nic_path(gpu, nic)
        assert (len(one.links), one.bandwidth_bytes_per_s) == (len(other.links), other.bandwidth_bytes_per_s)


@pytest.mark.parametrize("name", NODES)
def test_every_link_has_its_reverse_of_the_same_rate(name):
    """A cable is full duplex: what goes there comes back."""
    links = NODES[name].graph.links
    rows = list(zip(links.src, links.dst, links.bandwidth_bytes_per_s, links.kind, strict=True))
    assert sorted(rows) == sorted((dst, src, rate, kind) for src, dst, rate, kind in rows)


@pytest.mark.parametrize("name", NODES)
def test_every_device_reaches_every_other(name):
    graph = NODES[name].graph
    for a in range(NODES[name].gpus + NODES[name].nics):
        for b in (0, NODES[name].gpus + NODES[name].nics - 1):
            path = graph.path(a, b)
            assert path.vertices[0] == a
            assert path.vertices[-1] == b
            for link, (src, dst) in zip(path.links, zip(path.vertices, path.vertices[1:], strict=False), strict=True):
                assert (graph.links.src[link], graph.links.dst[link]) == (src, dst)


def test_gpus_of_an_hgx_h100_meet_in_the_nvswitch_and_reach_their_nic_through_one_pcie_switch():
    node = NODES["dgx-h100"]
    path = node.gpu_gpu_path(0, 7)
    assert [node.graph.name(v) for v in path.vertices] == ["gpu0", "nvswitch0", "gpu7"]
    assert path.bandwidth_bytes_per_s == 450 * GB
    path = node.gpu_nic_path(3, 3)
    assert [node.graph.name(v) for v in path.vertices] == ["gpu3", "pcie_switch3", "nic3"]
    assert path.bandwidth_bytes_per_s == pcie_bytes_per_s(5, 16)
    through_cpu = node.gpu_nic_path(0, 7)
    assert "cpu0" in [node.graph.name(v) for v in through_cpu.vertices]
    assert through_cpu.bandwidth_bytes_per_s == 22 * GB  # UPI of Sapphire Rapids, as NCCL takes it


def test_without_nvlink_gpus_of_two_sockets_share_the_link_between_sockets():
    node = NODES["dgx-h100"]
    assert node.gpu_gpu_path(0, 7, nvlink=False).bandwidth_bytes_per_s == 22 * GB
    assert node.gpu_gpu_path(0, 1, nvlink=False).bandwidth_bytes_per_s == pcie_bytes_per_s(5, 16)


def test_a_gpu_of_gb200_reaches_its_nic_over_c2c_not_over_its_own_pcie_lane():
    """C2C 10 x 44.712 GB/s; the NIC's Gen5 x16 slot is the narrowest part."""
    node = NODES["gb200-nvl72"]
    path = node.gpu_nic_path(0, 0)
    kinds = [LINK_KINDS[node.graph.links.kind[link]] for link in path.links]
    assert kinds == ["c2c", "pcie"]
    assert path.bandwidth_bytes_per_s == pcie_bytes_per_s(5, 16)
    assert node.c2c_bytes_per_s == pytest.approx(447.12 * GB)


def test_the_hybrid_cube_mesh_of_a_dgx_1_uses_all_six_links_of_each_gpu():
    """6 NVLinks of 25 GB/s a GPU; GPU 0 has two to GPU 3 and none to GPU 5."""
    node = NODES["dgx-1-v100"]
    for gpu in range(8):
        assert sum(links for a, b, links in node.nvlink_mesh if gpu in (a, b)) == 6
    assert node.gpu_gpu_path(0, 3).bandwidth_bytes_per_s == 50 * GB
    path = node.gpu_gpu_path(0, 5)
    assert LINK_KINDS[node.graph.links.kind[path.links[0]]] == "pcie"


@pytest.mark.parametrize("name", ["mi300x-8", "mi325x-8", "mi355x-8"])
def test_each_gpu_of_a_full_mesh_reaches_each_other_over_a_link_of_its_own(name):
    """AMD gives the rate of all seven links of a GPU: one carries a seventh, and none of it goes through the CPUs."""
    node = NODES[name]
    for gpu in range(1, 8):
        path = node.gpu_gpu_path(0, gpu)
        assert [LINK_KINDS[node.graph.links.kind[link]] for link in path.links] == ["nvlink"]
        assert path.bandwidth_bytes_per_s == pytest.approx(node.accelerator.scale_up_bytes_per_s.value / 7)


@pytest.mark.parametrize(("name", "rails"), [("dgx-h100", list(range(8))), ("p4d", [0, 0, 1, 1, 2, 2, 3, 3])])
def test_each_gpu_has_the_rail_of_the_nic_beside_it(name, rails):
    assert [NODES[name].rail_of_gpu(gpu) for gpu in range(8)] == rails


def test_ports_of_one_adapter_share_its_slot():
    """A two-port NIC, as NCCL writes it: two nets below one nic. Written after facts of NCCL's topology XML."""
    xml = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90"/></pci>
    <pci busid="0000:02:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic>
    <net name="mlx5_0" dev="0" speed="200000" port="1" gdr="1"/><net name="mlx5_0" dev="1" speed="200000" port="2" gdr="1"/>
    </nic></pci></cpu></system>"""
    topology, _ = read_nccl_topology(xml, "two-ports.xml")
    node, losses = node_from_nccl_topology(topology, "two-ports")
    assert losses == []
    assert (node.nics, node.nic_rate_bytes_per_s) == (2, 25 * GB)
    a, b = (node.gpu_nic_path(0, nic).links for nic in (0, 1))
    assert len(set(a) & set(b)) == 2  # to the CPU, and the slot


def test_a_static_topology_file_of_a_cloud_has_bare_functions():
    """As aws/aws-ofi-nccl topology/p4d-24xl-topo.xml writes devices: classes only, no gpu, no nic below."""
    xml = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="8 GT/s" link_width="16">
    <pci busid="0000:10:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
    <pci busid="0000:10:1d.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
    <pci busid="0000:10:1b.0" class="0x020000" link_speed="8 GT/s" link_width="16"/>
    </pci></cpu></system>"""
    topology, _ = read_nccl_topology(xml, "p4d.xml")
    node, losses = node_from_nccl_topology(topology, "p4d", "A100-SXM-40GB")
    assert [loss.kind for loss in losses] == ["node-unknown-rate"]
    root = NODES["p4d"].pcie[0]
    assert [(r.gpus, r.nics, r.bytes_per_s) for r in node.pcie] == [(root.gpus, root.nics, root.bytes_per_s)]
    with pytest.raises(InputError, match=r"p4d\.xml: says nothing of its GPUs.*Name the GPU"):
        node_from_nccl_topology(topology, "p4d")


def test_columns_of_unequal_length_are_no_table():
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        LinkTable(one, two, one.astype(float), one.astype(float), one)
