"""Clusters: routes from GPU to GPU, figures set anew, users' files."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import (
    LINK_KINDS,
    SETTINGS,
    Cluster,
    FabricPlan,
    find_cluster,
    find_switch,
    load_nodes,
    pcie_bytes_per_s,
    set_figures,
)
from busbw.hardware.fabrics import NvlinkDomains, RailOptimised, SingleSwitch
from busbw.hardware.what_if import parse_quantity

NODES = load_nodes()
GB = 1e9


def kinds(cluster, src, dst, **how):
    return [cluster.kind_name(link) for link in cluster.path(src, dst, **how).links]


def test_a_route_follows_links_from_the_source_gpu_to_the_destination_gpu():
    """Its NIC through its PCIe switch, up and down the fabric, and in again: 2 + 4 + 2 links between two leaves."""
    cluster = Cluster("c", NODES["dgx-h100"], 128)
    path = cluster.path(3, 100 * 8 + 5)
    names = [cluster.link_name(link) for link in path.links]
    assert kinds(cluster, 3, 805) == ["pcie"] * 2 + ["network"] * 4 + ["pcie"] * 2
    assert names[0] == "node0: gpu3 -> pcie_switch3"
    assert names[1] == "node0: pcie_switch3 -> nic3"
    assert names[-1] == "node100: pcie_switch5 -> gpu5"
    assert names[2].endswith("-> leaf3")  # rail 3 of group 0
    for before, after in pairwise(names[2:6]):
        assert before.split(" -> ")[1] == after.split(" -> ")[0]
    assert path.bandwidth_bytes_per_s == 50 * GB


def test_gpus_of_equal_place_need_one_leaf_and_pxn_brings_others_there():
    """Nodes 0 and 1 share their leaves: rail to rail is up and down. Across rails it takes a spine, or NVLink first."""
    cluster = Cluster("c", NODES["dgx-h100"], 128)
    assert kinds(cluster, 0, 8).count("network") == 2
    assert kinds(cluster, 0, 8 + 5).count("network") == 4
    assert kinds(cluster, 0, 8 + 5, pxn=True) == ["nvlink"] * 2 + ["pcie"] * 2 + ["network"] * 2 + ["pcie"] * 2


def test_inside_an_nvlink_domain_traffic_stays_on_nvlink_across_nodes():
    """18 trays of 4 GPUs: GPU 0 and GPU 71 meet in the NVSwitch; GPU 72 is in the next rack."""
    cluster = Cluster("racks", NODES["gb200-nvl72"], 36)
    path = cluster.path(0, 71)
    assert [cluster.link_name(link) for link in path.links] == ["node0: gpu0 -> nvswitch0", "node17: nvswitch0 -> gpu3"]
    assert path.bandwidth_bytes_per_s == 900 * GB
    assert set(kinds(cluster, 0, 72)) == {"c2c", "pcie", "network"}
    assert (cluster.domain_of_node(17), cluster.domain_of_node(18), cluster.gpus_per_domain) == (0, 1, 72)


@pytest.mark.parametrize("how", ["d-mod-k", "ecmp"])
def test_every_route_of_a_cluster_is_joined_and_ends_where_it_should(how):
    """Every link's end is the next one's start, by name; NICs join node and fabric."""
    cluster = Cluster("c", NODES["dgx-a100"], 40)
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, cluster.gpus, 60), rng.integers(0, cluster.gpus, 60)
    for padded, one, other in zip(
        cluster.routes(src, dst, how=how, flow=rng.integers(0, 9, 60)).links, src, dst, strict=True
    ):
        links = padded[padded >= 0]
        if not len(links):
            assert one == other
            continue
        names = [cluster.link_name(int(link)).split(": ")[-1].split(" -> ") for link in links]
        assert (names[0][0], names[-1][1]) == (f"gpu{one % 8}", f"gpu{other % 8}")
        inside = [LINK_KINDS[k] != "network" for k in cluster.kinds_of(links)]
        for index, (before, after) in enumerate(pairwise(names)):
            if inside[index] == inside[index + 1]:
                assert before[1] == after[0]


def test_131072_nodes_cost_no_more_than_one():
    """524,288 NICs on three levels of 144-port switches; what is held does not grow with nodes."""
    node = NODES["gb300-nvl72"]
    tracemalloc.start()
    cluster = Cluster("large", node, 131_072)
    fabric, path = cluster.fabric, cluster.path(0, cluster.gpus - 1)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 4e6
    assert isinstance(fabric, NvlinkDomains)
    assert (cluster.gpus, fabric.endpoints, fabric.levels) == (524_288, 524_288, 3)
    assert fabric.down[0] == 72  # one rail of four whole racks on a leaf
    assert sum(cluster.kind_name(link) == "network" for link in path.links) == 6


def test_what_a_nic_moves_is_the_least_of_its_rate_and_its_slot():
    """p5: 32 NICs of 100 Gb/s in Gen4 x8 slots, 400 Gb/s a GPU. L40S: 2 NICs of 400 Gb/s in Gen4 x16 slots for 8 GPUs."""
    p5 = Cluster("p5", NODES["p5"], 2)
    assert p5.nic_bytes_per_s == 12.5 * GB
    assert p5.network_bytes_per_s_per_gpu == 50 * GB
    l40s = Cluster("l40s", NODES["l40s-8"], 2)
    assert l40s.nic_bytes_per_s == min(50 * GB, pcie_bytes_per_s(4, 16))
    assert l40s.network_bytes_per_s_per_gpu == pcie_bytes_per_s(4, 16) / 4


def test_the_fabric_by_default_is_one_switch_else_rails():
    assert isinstance(Cluster("c", NODES["dgx-h100"], 8).fabric, SingleSwitch)  # 64 NICs, 64 ports
    assert isinstance(Cluster("c", NODES["dgx-h100"], 9).fabric, RailOptimised)
    plan = FabricPlan(kind="dragonfly+", switch=find_switch("quantum"))
    assert Cluster("c", NODES["dgx-a100"], 200, plan).fabric.kind == "dragonfly+"
    with pytest.raises(ValueError, match="do not fit one switch of 64 ports"):
        _ = Cluster("c", NODES["dgx-h100"], 9, FabricPlan(kind="single-switch")).fabric


def test_what_cannot_be_a_cluster_raises():
    node = NODES["dgx-h100"]
    with pytest.raises(ValueError, match="0 nodes"):
        Cluster("c", node, 0)
    with pytest.raises(ValueError, match="routing 'magic'"):
        Cluster("c", node, 1, routing="magic")
    with pytest.raises(ValueError, match="2 host names for 1 nodes"):
        Cluster("c", node, 1, hosts=("a", "b"))
    with pytest.raises(ValueError, match="GPUs 0 to 7"):
        Cluster("c", node, 1).path(0, 8)
    with pytest.raises(ValueError, match="'fattree' is unknown"):
        FabricPlan(kind="fattree")


# What if.


@pytest.mark.parametrize(
    ("setting", "text", "read", "value"),
    [
        ("nic.rate", "800Gb/s", lambda c: c.node.nic_rate_bytes_per_s, 100 * GB),
        ("nic.rate", "25GB/s", lambda c: c.node.nic_rate_bytes_per_s, 25 * GB),
        ("nvlink.rate", "900GB/s", lambda c: c.node.gpu_gpu_path(0, 1).bandwidth_bytes_per_s, 900 * GB),
        ("pcie.generation", "6", lambda c: c.node.gpu_nic_path(0, 0).bandwidth_bytes_per_s, pcie_bytes_per_s(6, 16)),
        ("pcie.width", "8", lambda c: c.node.gpu_nic_path(0, 0).bandwidth_bytes_per_s, pcie_bytes_per_s(5, 8)),
        ("cpu.rate", "100GB/s", lambda c: c.node.gpu_nic_path(0, 7).bandwidth_bytes_per_s, pcie_bytes_per_s(5, 16)),
        ("gpu", "B200-SXM", lambda c: c.node.gpu_gpu_path(0, 1).bandwidth_bytes_per_s, 900 * GB),
        ("gpu.memory", "288GB", lambda c: c.node.accelerator.memory_bytes.value, 288 * GB),
        ("gpu.flops.bf16", "2e15", lambda c: c.node.accelerator.dense_flops["bf16"].value, 2e15),
        ("switch", "spectrum-x", lambda c: c.link_rates.switch_bytes_per_s, 100 * GB),
        ("switch.latency", "1us", lambda c: c.link_rates.switch_latency_s, 1e-6),
        ("fabric.oversubscription", "3", lambda c: c.fabric.oversubscription(), 3.0),
        ("fabric.levels", "3", lambda c: c.fabric.levels, 3),
        ("nodes", "7", lambda c: c.nodes, 7),
    ],
)
def test_a_figure_set_anew_is_the_one_in_use(setting, text, read, value):
    cluster, _ = find_cluster("dgx-h100", 64, {setting: text})
    assert read(cluster) == pytest.approx(value)


def test_what_the_user_set_says_so_as_its_source():
    cluster, _ = find_cluster("dgx-h100", 1, {"nvlink.rate": "900GB/s"})
    assert cluster.node.accelerator.scale_up_bytes_per_s.source == "set by the user: nvlink.rate=900GB/s"


@pytest.mark.parametrize(
    ("setting", "text", "said"),
    [
        ("nic.rat", "1Gb/s", "Did you mean nic.rate"),
        ("nic.rate", "800", "write it with its unit, 800Gb/s or 100GB/s"),
        ("nic.rate", "800ns", "is no rate"),
        ("nodes", "-1", "whole number"),
        ("switch", "quantum-9", "Did you mean quantum"),
        ("gpu", "H1000", "not in the catalogue"),
        ("pcie.generation", "9", "PCIe generation 9 is unknown"),
        ("fabric", "fattree", "known: automatic"),
    ],
)
def test_a_setting_that_cannot_be_says_what_can(setting, text, said):
    with pytest.raises(InputError, match=said):
        find_cluster("dgx-h100", 4, {setting: text})


def test_case_tells_bits_from_bytes():
    assert parse_quantity("8Gb/s", "rate") == parse_quantity("1GB/s", "rate") == 1e9
    assert parse_quantity("1TB/s", "rate") == 1e12
    with pytest.raises(ValueError, match="no rate"):
        parse_quantity("8gb/s", "rate")


def test_every_setting_is_explained():
    assert all(what for what, _ in SETTINGS.values())
    assert set_figures(Cluster("c", NODES["dgx-h100"], 1), {}) == Cluster("c", NODES["dgx-h100"], 1)


def test_an_unknown_cluster_names_the_nearest():
    with pytest.raises(InputError, match=r"dgx-h10: no cluster of this name and no file\. Did you mean dgx-h100"):
        find_cluster("dgx-h10")


# Users' files.

FULL = """\
schema: 1
name: lab
nodes: 24
node:
  accelerator: L40S
  nic: {name: ConnectX-7, rate: 200Gb/s}
  pcie:
    - {numa: 0, gpus: [0, 1], nics: [0], generation: 4}
    - {numa: 1, gpus: [2, 3], nics: [1], generation: 4}
fabric:
  kind: fat-tree
  switch: quantum
  oversubscription: 2
routing: ecmp
hosts: n[01-24]
set:
  nic.latency: 700ns
"""


def test_a_file_gives_the_cluster_it_describes(tmp_path):
    """24 nodes of 2 NICs on 40-port switches, 2 to 1: 26 NICs and 13 uplinks a leaf, 2 leaves."""
    file = tmp_path / "lab.yaml"
    file.write_text(FULL)
    cluster, losses = find_cluster(str(file))
    assert losses == []
    assert (cluster.name, cluster.nodes, cluster.gpus, cluster.nics) == ("lab", 24, 96, 48)
    assert (cluster.fabric.kind, cluster.fabric.down, cluster.routing) == ("fat-tree", (26, 2), "ecmp")
    assert cluster.link_rates.nic_bytes_per_s == 25 * GB
    assert cluster.link_rates.nic_latency_s == pytest.approx(700e-9)
    assert (cluster.host(0), cluster.host(23)) == ("n01", "n24")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("kind: fat-tree", "kind: fattree"),
            r"lab\.yaml:11: fabric\.kind: 'fattree' is unknown\. Did you mean fat-tree",
        ),
        (("accelerator: L40S", "accelerator: L40X"), r"lab\.yaml:5: accelerator 'L40X'.*Did you mean L40S"),
        (("name: ConnectX-7", "name: ConnectX7"), r"lab\.yaml:6: NIC 'ConnectX7'.*Did you mean ConnectX-7"),
        (("rate: 200Gb/s", "rate: 200"), r"lab\.yaml:6: node\.nic\.rate: .*string.*200"),
        (
            ("nodes: 24", "node_count: 24"),
            r"lab\.yaml:3: node_count is no key of a cluster file\. Did you mean node, nodes",
        ),
        (("nodes: 24", "nodes: 0"), r"lab\.yaml:3: nodes: .*greater than or equal to 1"),
        (("gpus: [2, 3]", "gpus: [2, 4]"), r"lab\.yaml:4: .*Number GPUs and NICs from 0"),
        (
            ("generation: 4}\n    - {numa: 1", "generation: 9}\n    - {numa: 1"),
            r"lab\.yaml:8: node\.pcie\.0\.generation",
        ),
        (("switch: quantum", "switch: quantumm"), r"lab\.yaml:12: switch: .*Did you mean quantum"),
        (("nic.latency: 700ns", "nic.latenci: 700ns"), r"lab\.yaml:17: 'nic\.latenci'.*Did you mean nic\.latency"),
        (("hosts: n[01-24]", "hosts: n[01-24"), r"lab\.yaml:15: hosts: .*not closed"),
        (("hosts: n[01-24]", "hosts: n[01-23]"), "23 host names for 24 nodes"),
        (("name: lab", "name: &a lab"), r"lab\.yaml:2: anchors, aliases and tags"),
        (("name: lab", "name: lab\nname: lab2"), r"lab\.yaml:3: name is given twice, first on line 2"),
        (("name: lab", "name: [lab"), r"lab\.yaml:\d+: no YAML"),
        (("kind: fat-tree", "kind: graph"), r"lab\.yaml:11: .*needs `file:`"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line_and_how_to_mend_it(tmp_path, change, said):
    text = FULL.replace(*change)
    assert text != FULL
    file = tmp_path / "lab.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        find_cluster(str(file))


def test_a_known_node_may_be_named_or_changed(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("node: dgx-h100\nnodes: 2\n")
    assert find_cluster(str(file))[0].node == NODES["dgx-h100"]
    file.write_text("node:\n  base: dgx-h10\n")
    with pytest.raises(InputError, match=r"c\.yaml:2: node 'dgx-h10' is unknown\. Did you mean dgx-h100"):
        find_cluster(str(file))
    file.write_text("node:\n  gpus: 8\n")
    with pytest.raises(InputError, match=r"c\.yaml:1: node lacks accelerator, nic, pcie.*base: dgx-h100"):
        find_cluster(str(file))
    file.write_text("[]")
    with pytest.raises(InputError, match=r"c\.yaml:1: no cluster"):
        find_cluster(str(file))
