"""Blueprints as NCCL topologies."""

from __future__ import annotations

import pytest

from busbw.errors import InputError
from busbw.hardware import find_node, load_nodes, node_topology
from busbw.hardware.formats import read_nccl_topology, write_nccl_topology


def nodes_that_nccl_runs_on():
    for node in load_nodes().values():
        joined = node.nvswitch is not None or node.accelerator.scale_up_shape.value == "none"
        if node.accelerator.compute_capability is not None and joined:
            yield node


@pytest.mark.parametrize("node", list(nodes_that_nccl_runs_on()), ids=lambda node: node.name)
def test_a_blueprint_has_its_gpus_nics_and_links_and_reads_back_as_written(node):
    topology, _ = node_topology(node)
    again, losses = read_nccl_topology(write_nccl_topology(topology), node.name)
    assert (again, losses) == (topology, [])
    assert [gpu.rank for gpu in topology.gpus] == list(range(node.gpus))
    assert sorted(net.device for net in topology.nets) == list(range(node.nics))
    assert {net.speed_bytes_per_s for net in topology.nets} == {node.nic_rate_bytes_per_s}
    links = node.accelerator.nvlinks.value if node.nvswitch else 0
    assert {gpu.nvlinks for gpu in topology.gpus} == {links}
    assert len(topology.cpus) == len(node.numa_nodes)


def test_hosts_of_one_nvlink_domain_are_numbered_through():
    """Three trays of four GPUs: ranks 0 to 11, three host hashes, NICs of different adapters."""
    topology, notes = node_topology(find_node("gb200-nvl72"), 3)
    assert [gpu.rank for gpu in topology.gpus] == list(range(12))
    assert len({cpu.host_hash for cpu in topology.cpus}) == 3
    assert len({net.get("guid") for net in topology.nets}) == 12
    assert all(gpu.has_c2c for gpu in topology.gpus)
    assert notes == []


def test_a_make_of_cpu_that_is_not_stated_is_a_guess_that_says_so():
    _, notes = node_topology(find_node("l40s-8"))
    assert len(notes) == 1
    assert "guess" in notes[0]


@pytest.mark.parametrize(
    ("name", "hosts", "said"),
    [
        ("mi300x-8", 1, "MI300X is no NVIDIA GPU"),
        ("dgx-1-v100", 1, "does not say which GPUs NVLink joins"),
        ("dgx-h100", 2, "1 to 1 hosts share NVLink"),
        ("gb200-nvl72", 19, "1 to 18 hosts share NVLink"),
    ],
)
def test_what_a_blueprint_does_not_say_is_refused(name, hosts, said):
    with pytest.raises(InputError, match=said):
        node_topology(find_node(name), hosts)
