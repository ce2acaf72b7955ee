"""Node blueprints: what the known kinds of server hold."""

import dataclasses

import pytest

from busbw.hardware import Cluster, find_node, load_nodes

NODES = load_nodes()


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "nic_gbps"),
    [
        ("dgx-a100", 8, 8, 200),
        ("dgx-h100", 8, 8, 400),
        ("dgx-h200", 8, 8, 400),
        ("dgx-b200", 8, 8, 400),
        ("gb200-nvl72", 4, 4, 400),
        ("dgx-1-v100", 8, 4, 100),
        ("l40s-8", 8, 2, 400),
    ],
)
def test_network_of_a_node_is_its_nics_together(name, gpus, nics, nic_gbps):
    node = NODES[name]
    assert (node.gpus, node.nics) == (gpus, nics)
    assert node.network_bytes_per_s == nics * nic_gbps / 8 * 1e9


def test_a_dgx_a100_has_two_gpus_and_two_nics_under_each_switch():
    """As nvidia-smi topo -m of one prints (NVIDIA/DCGM#149): GPU0 is at PXB of NIC0 and NIC1, on NUMA node 3."""
    node = NODES["dgx-a100"]
    assert node.nearest_nics(0) == node.nearest_nics(1) == (0, 1)
    assert node.root_of_gpu(0).numa_node == 3


def test_a_gpu_without_a_nic_under_its_switch_takes_those_of_its_numa_node():
    node = NODES["l40s-8"]
    assert node.root_of_gpu(2).nics == ()
    assert node.nearest_nics(2) == node.root_of_gpu(0).nics
    assert NODES["l40s-4"].nearest_nics(3) == (0,)


def test_every_node_has_sources_and_nics_its_catalogue_knows():
    for node in NODES.values():
        assert node.sources, node.name
        assert node.nic_rate_bytes_per_s == (node.nic.rate_bytes_per_s.value or 0), node.name
        assert set(node.numa_nodes) == {root.numa_node for root in node.pcie}


def test_names_ignore_case_and_underscores_and_know_aliases():
    assert find_node("HGX_H100") is NODES["dgx-h100"]
    assert find_node("nothing") is None


def test_an_nvl72_rack_is_eighteen_trays():
    """72 GPUs, 4 a tray; the 19th tray opens a second NVLink domain."""
    rack = Cluster("rack", NODES["gb200-nvl72"], 18)
    assert (rack.gpus, rack.nvlink_domains) == (72, 1)
    assert Cluster("two", rack.node, 19).nvlink_domains == 2
    assert Cluster("hgx", NODES["dgx-h100"], 4).nvlink_domains == 4


def test_what_cannot_be_a_node_or_a_cluster_raises():
    node = NODES["dgx-h100"]
    with pytest.raises(ValueError, match="0 nodes"):
        Cluster("empty", node, 0)
    with pytest.raises(ValueError, match="PCIe roots hold GPUs"):
        dataclasses.replace(node, gpus=7)
    with pytest.raises(ValueError, match="between GPUs 0 and 8 cannot be"):
        dataclasses.replace(node, nvlink_mesh=((0, 8, 1),))
    with pytest.raises(ValueError, match="not numbered"):
        dataclasses.replace(node, pcie=tuple(dataclasses.replace(root, nics=(0,)) for root in node.pcie))
    with pytest.raises(KeyError, match="GPUs 0 to 7"):
        node.root_of_gpu(8)
