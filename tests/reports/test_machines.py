"""Nodes and clusters drawn: every device is there, and the same machine gives the same bytes."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from busbw.hardware import Cluster, FabricPlan, load_nodes
from busbw.reports import cluster_svg, fabric_lines, node_lines, node_svg

NODES = load_nodes()


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-1-v100", "gb200-nvl72", "l40s-4", "p5", "gh200"])
def test_every_gpu_and_nic_is_drawn_once(name):
    node = NODES[name]
    texts = [element.text for element in ET.fromstring(node_svg(node)).iter("{http://www.w3.org/2000/svg}text")]
    lines = node_lines(node)
    for word, count in (("GPU", node.gpus), ("NIC", node.nics)):
        for number in range(count):
            assert texts.count(f"{word} {number}") == 1
            assert sum(f"- {word} {number} " in line for line in lines) == 1


def test_a_tree_of_text_names_what_a_gpu_has_beside_pcie():
    lines = node_lines(NODES["gb200-nvl72"])
    assert lines[0] == "NUMA node 0"
    assert lines[1] == "|- GPU 0         3.94 GB/s  C2C 447 GB/s  NVLink to NVSwitch 900 GB/s"


@pytest.mark.parametrize("nodes", [2, 12, 2048])
def test_a_fabric_is_drawn_switch_by_switch_or_level_by_level(nodes):
    cluster = Cluster("c", NODES["dgx-h100"], nodes)
    svg = cluster_svg(cluster)
    ET.fromstring(svg)
    assert svg == cluster_svg(cluster)
    assert ("leaf0" in svg) == (nodes < 2048)
    assert len(svg) < 1_000_000


def test_other_fabrics_are_drawn_too():
    torus = Cluster("t", NODES["gh200"], 27, FabricPlan(kind="torus", shape=(3, 3, 3)))
    ET.fromstring(cluster_svg(torus))
    assert fabric_lines(torus)[0].startswith("torus: 27 NICs, 0 switches")
    dragonfly = Cluster("d", NODES["dgx-a100"], 200, FabricPlan(kind="dragonfly+"))
    ET.fromstring(cluster_svg(dragonfly))
