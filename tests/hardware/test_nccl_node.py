"""Nodes as the topology that NCCL would find in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from busbw.errors import InputError
from busbw.hardware import find_node, load_nodes
from busbw.hardware.formats import node_to_nccl_topology, read_nccl_topology, write_nccl_topology


@pytest.mark.parametrize("node", list(load_nodes().values()), ids=lambda node: node.name)
def test_a_blueprint_has_its_gpus_nics_and_links_and_reads_back_as_written(node):
    topology, _ = node_to_nccl_topology(node)
    again, losses = read_nccl_topology(write_nccl_topology(topology), node.name)
    assert (again, losses) == (replace(topology, path=node.name), [])
    assert sorted(gpu.rank for gpu in topology.gpus) == list(range(node.gpus))
    assert sorted(net.device for net in topology.nets) == list(range(node.nics))
    assert {net.speed_bytes_per_s for net in topology.nets} == {node.nic_rate_bytes_per_s}
    assert len(topology.cpus) == len(node.numa_nodes)
    if node.accelerator.compute_capability is not None:  # NVLinks of AMD have an element of their own
        at = [sum(links for *pair, links in node.nvlink_mesh if gpu in pair) for gpu in range(node.gpus)]
        switched = node.accelerator.nvlinks.value if node.nvswitch else 0
        assert {gpu.rank: gpu.nvlinks for gpu in topology.gpus} == {
            gpu: switched + links for gpu, links in enumerate(at)
        }


def test_hosts_of_one_nvlink_domain_are_numbered_through():
    """Three trays of four GPUs: ranks 0 to 11, three host hashes, NICs of different adapters."""
    topology, notes = node_to_nccl_topology(find_node("gb200-nvl72"), 3)
    assert [gpu.rank for gpu in topology.gpus] == list(range(12))
    assert len({cpu.host_hash for cpu in topology.cpus}) == 3
    assert len({net.get("guid") for net in topology.nets}) == 12
    assert all(gpu.has_c2c for gpu in topology.gpus)
    assert notes == []


def test_one_host_has_no_hash():
    """A made-up hash is there only to tell several hosts apart."""
    topology, _ = node_to_nccl_topology(find_node("gb200-nvl72"))
    assert {cpu.host_hash for cpu in topology.cpus} == {None}


def test_a_make_of_cpu_that_is_not_stated_is_a_guess_that_says_so():
    _, notes = node_to_nccl_topology(find_node("l40s-8"))
    assert notes == ["l40s-8: the CPU is 2x x86; taken as AuthenticAMD family 25 model 1, a guess."]


def test_bridges_that_a_blueprint_does_not_place_are_left_out_and_it_is_said():
    """A100 PCIe cards have NVLink only where somebody put a bridge on two of them."""
    topology, notes = node_to_nccl_topology(find_node("a100-pcie-8"))
    assert {gpu.nvlinks for gpu in topology.gpus} == {0}
    assert any("which GPUs NVLink joins is not stated" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "hosts", "said"),
    [("dgx-h100", 2, "1 to 1 hosts share NVLink"), ("gb200-nvl72", 19, "1 to 18 hosts share NVLink")],
)
def test_more_hosts_than_share_nvlink_are_refused(name, hosts, said):
    with pytest.raises(InputError, match=said):
        node_to_nccl_topology(find_node(name), hosts)
