"""Files that describe a machine or a fabric, from outside: text in, nodes and graphs out."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.hardware import find_cluster, load_nodes, pcie_bytes_per_s
from busbw.hardware.fabrics import FatTree, LinkRates
from busbw.hardware.formats.hostlist import expand_hostlist, natural_order
from busbw.hardware.formats.ibnetdiscover import fabric_from_ibnetdiscover, read_ibnetdiscover
from busbw.hardware.formats.machine import read_fabric, read_node
from busbw.hardware.formats.slurm_topology import fabric_from_slurm, read_slurm_topology
from busbw.hardware.routing import d_mod_k

OPENSM = Path(__file__).parent / "opensm"
NODES = load_nodes()
GB = 1e9

# Host lists.


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a,b[9-11]-ib", ["a", "b9-ib", "b10-ib", "b11-ib"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("", []),
    ],
)
def test_a_host_list_expands_as_slurm_writes_it(text, names):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[1-", "not closed"),
        ("n]1[", "do not match"),
        ("n[3-1]", "backwards"),
        ("n[a-b]", "no number"),
        ("n[1-9999999]", "more than"),
        ("n[1-2000][1-2000]", "more than"),
    ],
)
def test_a_host_list_that_is_none_says_why(text, said):
    with pytest.raises(ValueError, match=said):
        expand_hostlist(text)


@given(st.text(alphabet="n[]1-,0 ", max_size=40))
def test_any_text_is_a_host_list_or_a_value_error(text):
    try:
        names = expand_hostlist(text)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in names)


def test_hosts_sort_by_number():
    assert sorted(["n10", "n9", "m11"], key=natural_order) == ["m11", "n9", "n10"]


# InfiniBand: recorded with infiniband-diags on ibsim, 648 hosts (36 leaves, 18 spines).


def read_648():
    return read_ibnetdiscover(gzip.decompress((OPENSM / "ibnetdiscover_648_hosts.txt.gz").read_bytes()), "648.txt")


def test_the_graph_of_a_recorded_fabric_is_the_fat_tree_it_was_made_from():
    """648 adapters and 1,296 cables; every switch has 36 ports in use; routes are as long as on our tree."""
    fabric, losses = read_648()
    assert losses == []
    assert len(fabric.devices) == 648 + 54
    assert len(fabric.cables) == 648 + 36 * 18
    graph, hosts, losses = fabric_from_ibnetdiscover(fabric, 1)
    assert losses == []
    assert hosts == tuple(f"h{number}" for number in range(648))
    table = graph.link_table()
    assert set(np.bincount(table.src)[648:]) == {36}
    assert set(table.bandwidth_bytes_per_s) == {1 * GB}  # 4x SDR: 8 Gb/s of data
    tree = FatTree(648, (18, 36), (1, 18), (1, 1), LinkRates(1.0, 1.0))
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 648, 40), rng.integers(0, 648, 40)
    assert np.array_equal(d_mod_k(graph, src, dst).lengths, d_mod_k(tree, src, dst).lengths)


def test_by_destination_a_graph_chooses_the_spine_that_opensm_chose():
    """Ports of a leaf in order: destination j goes to spine j mod 18, as the recorded table of L0 says."""
    graph, _, _ = fabric_from_ibnetdiscover(read_648()[0], 1)
    dst = np.arange(18, 648, 7)
    up = d_mod_k(graph, np.zeros(len(dst), np.int64), dst).links[:, 1]
    assert [graph.vertex_name(int(v)) for v in graph.link_ends(up)[1]] == [f"S{j % 18}" for j in dst]


SMALL = """\
switchguid=0x200000(200000)
Switch\t8 "S-0000000000200000"\t\t# "L0" base port 0 lid 2 lmc 0
[1]\t"H-0000000000100000"[1](100001) \t\t# "host0 HCA-1" lid 1 4xNDR
[2]\t"H-0000000000100002"[1](100003) \t\t# "host1 HCA-1" lid 5 4xNDR
[3]\t"S-00000000002000ff"[1]\t\t# "gone" lid 9 4xNDR
[4]\tgarbage

caguid=0x100000
Ca\t1 "H-0000000000100000"\t\t# "host0 HCA-1"
[1](100001) \t"S-0000000000200000"[1]\t\t# lid 1 lmc 0 "L0" lid 2 4xNDR

caguid=0x100002
Ca\t1 "H-0000000000100002"\t\t# "host1 HCA-1"
[1](100003) \t"S-0000000000200000"[2]\t\t# lid 5 lmc 0 "L0" lid 2 4xNDR
"""


@pytest.mark.parametrize("text", [SMALL, "SwitchName=leaf Nodes=n[1-4]\n"], ids=["ibnetdiscover", "slurm"])
def test_a_fabric_given_as_a_node_says_where_it_belongs(text):
    """`busbw hardware ibnetdiscover.txt`: a fabric is a key of a cluster's YAML."""
    with pytest.raises(InputError, match=r"f\.txt: describes a fabric, not a node.*fabric: \{file: f\.txt\}"):
        read_node(text.encode(), "f.txt", "f")


def test_what_a_fabric_file_lacks_is_a_loss_with_its_line():
    fabric, losses = read_ibnetdiscover(SMALL, "f.txt")
    assert [(loss.kind, loss.line) for loss in losses] == [("fabric-bad-line", 6), ("fabric-unknown-peer", 5)]
    graph, hosts, _ = fabric_from_ibnetdiscover(fabric, 1)
    assert hosts == ("host0", "host1")
    assert set(graph.link_table().bandwidth_bytes_per_s) == {50 * GB}
    with pytest.raises(InputError, match=r"no host with 8 adapters; hosts have \[1\]"):
        fabric_from_ibnetdiscover(fabric, 8)
    with pytest.raises(InputError, match="no switch and no adapter"):
        read_ibnetdiscover("hello", "f.txt")


def test_ports_below_a_damaged_head_are_no_ports_of_the_device_above():
    """The head of host1 is cut in its GUID; the switch's own line still tells of the cable."""
    damaged = SMALL.replace('Ca\t1 "H-0000000000100002"', 'Ca\t1 "H-00000').replace("\n\ncaguid", "\ncaguid")
    fabric, losses = read_ibnetdiscover(damaged, "f.txt")
    assert {device.name for device in fabric.devices.values()} == {"L0", "host0 HCA-1"}
    assert [(loss.kind, loss.line) for loss in losses if loss.kind == "fabric-bad-line"] == [("fabric-bad-line", 6)]
    assert sum(loss.count for loss in losses if loss.kind == "fabric-bad-line") == 2


def test_a_cable_whose_rate_is_cut_off_has_that_of_the_others():
    fabric, losses = read_ibnetdiscover(SMALL.replace("lid 1 4xNDR\n", "lid 1\n"), "f.txt")
    assert ("fabric-unknown-rate", 3) in [(loss.kind, loss.line) for loss in losses]
    graph, _, _ = fabric_from_ibnetdiscover(fabric, 1)
    assert set(graph.link_table().bandwidth_bytes_per_s) == {50 * GB}


@given(st.binary(max_size=400))
def test_any_bytes_are_a_fabric_or_an_input_error(data):
    for start in (b"", SMALL.encode()):
        with contextlib.suppress(InputError):
            fabric, _ = read_ibnetdiscover(start + data, "fuzz")
            fabric_from_ibnetdiscover(fabric, 1)


# Slurm.

TREE = """\
# two leaves
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-\\
4] LinkSpeed=1
SwitchName=spine Switches=leaf[1-2]
what is this
"""


def test_a_topology_conf_is_a_tree_of_switches():
    """n1 and n2 share a leaf; the link of a leaf upwards carries both its nodes."""
    topology, losses = read_slurm_topology(TREE.replace("\\\n", ""), "topology.conf")
    assert [(loss.kind, loss.line) for loss in losses] == [("topology-bad-line", 5)]
    graph, hosts, losses = fabric_from_slurm(topology, 2, 50 * GB)
    assert hosts == ("n1", "n2", "n3", "n4")
    assert [loss.kind for loss in losses] == ["fabric-rates-unknown"]
    assert list(d_mod_k(graph, np.array([0, 0, 0]), np.array([1, 2, 4])).lengths) == [2, 2, 4]
    assert graph.link_table().bandwidth_bytes_per_s.max() == 2 * 2 * 50 * GB


def test_scontrol_lists_nodes_of_spines_too_and_they_stay_on_their_leaves():
    text = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2] Switches=leaf1\n"
    topology, _ = read_slurm_topology(text, "scontrol.txt")
    assert topology.hosts == ("n1", "n2")
    assert [switch.nodes for switch in topology.switches] == [("n1", "n2"), ()]


@pytest.mark.parametrize(
    "text",
    [
        "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n",
        "- topology: t\n  block:\n    block_sizes: [2]\n    blocks:\n      - {block: b1, nodes: 'n[1-2]'}\n      - {block: b2, nodes: 'n[3-4]'}\n",
    ],
)
def test_blocks_are_joined_by_one_switch(text):
    topology, losses = read_slurm_topology(text, "topology")
    assert (losses, topology.blocks) == ([], True)
    graph, hosts, _ = fabric_from_slurm(topology, 1, 1.0)
    assert hosts == ("n1", "n2", "n3", "n4")
    assert list(d_mod_k(graph, np.array([0, 0]), np.array([1, 2])).lengths) == [2, 4]


def test_a_topology_yaml_is_a_tree_of_switches():
    text = "- topology: default\n  tree:\n    switches:\n      - {switch: s, children: 'l[1-2]'}\n      - {switch: l1, nodes: 'n[1-2]'}\n      - {switch: l2, nodes: n3}\n"
    graph, hosts, _ = fabric_from_slurm(read_slurm_topology(text, "topology.yaml")[0], 1, 1.0)
    assert hosts == ("n1", "n2", "n3")
    assert list(d_mod_k(graph, np.array([0]), np.array([2])).lengths) == [4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing: here", "no switch and no block"),
        ("a: [", r"topology:\d+: neither topology.conf nor YAML"),
        ("SwitchName=l Nodes=n[1-", r"topology:1: .*not closed"),
        ("- topology: &a t\n  tree: *a", "aliases"),
    ],
)
def test_a_topology_that_is_none_says_so(text, said):
    with pytest.raises(InputError, match=said):
        read_slurm_topology(text, "topology")


def test_switches_that_hang_on_each_other_are_refused():
    topology, _ = read_slurm_topology("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n1\n", "t")
    with pytest.raises(InputError, match="hangs on itself"):
        fabric_from_slurm(topology, 1, 1.0)


def test_a_cluster_file_takes_its_fabric_and_hosts_from_a_file_beside_it(tmp_path):
    (tmp_path / "topology.conf").write_text(
        "SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n3\nSwitchName=s Switches=l[1-2]\n"
    )
    (tmp_path / "c.yaml").write_text("node: dgx-h100\nfabric: {file: topology.conf}\n")
    cluster, losses = find_cluster(str(tmp_path / "c.yaml"))
    assert [loss.kind for loss in losses] == ["fabric-rates-unknown"]
    assert (cluster.nodes, cluster.host(2), cluster.fabric.kind) == (3, "n3", "graph")
    assert sum(cluster.kind_name(link) == "network" for link in cluster.path(0, 16).links) == 4
    with pytest.raises(InputError, match="which is not beside it"):
        (tmp_path / "c.yaml").write_text("node: dgx-h100\nfabric: {file: gone.conf}\n")
        find_cluster(str(tmp_path / "c.yaml"))


# hwloc: made after the grammar of lstopo 2.9 --of xml (run here) and of files of 8-GPU hosts.

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" nodeset="0x00000003">
    <info name="HostName" value="secret-host"/><info name="Architecture" value="x86_64"/>
    %s
  </object>
</topology>
"""
PACKAGE = """<object type="Package" os_index="{0}" nodeset="0x0000000{1}">
 <info name="CPUVendor" value="GenuineIntel"/><info name="CPUFamilyNumber" value="6"/><info name="CPUModelNumber" value="143"/>
 <object type="NUMANode" os_index="{0}" nodeset="0x0000000{1}"/>
 <object type="Bridge" bridge_type="0-1" depth="0"><object type="Bridge" bridge_type="1-1" pci_link_speed="63.015385">
  <object type="Bridge" bridge_type="1-1" pci_link_speed="63.015385">
   <object type="Bridge" bridge_type="1-1"><object type="PCIDev" pci_busid="0000:1{0}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.015385">
     <info name="PCIDevice" value="GH100 [H100 SXM5 80GB]"/></object></object>
   <object type="Bridge" bridge_type="1-1"><object type="PCIDev" pci_busid="0000:2{0}:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="63.015385">
     <object type="OSDev" name="mlx5_{0}" osdev_type="{2}"/></object></object>
  </object></object>
  <object type="Bridge" bridge_type="1-1"><object type="PCIDev" pci_busid="0000:3{0}:00.0" pci_type="0200 [8086:1563] [0000:0000] 01" pci_link_speed="3.938462">
     <object type="OSDev" name="eth{0}" osdev_type="2"/></object></object>
 </object></object>"""


@pytest.mark.parametrize("osdev_type", [3, 48])
def test_an_hwloc_file_gives_gpus_nics_and_what_shares_a_switch(osdev_type):
    """hwloc 2 numbers kinds of devices (3: OpenFabrics), hwloc 3 writes a mask (32 OpenFabrics + 16 network)."""
    text = HWLOC % "".join(PACKAGE.format(numa, 1 << numa, osdev_type) for numa in (0, 1))
    node, losses = read_node(text.encode(), "host.xml", "host")
    assert [(loss.kind, loss.count) for loss in losses] == [("node-left-out", 2)]
    assert (node.accelerator.name, node.gpus, node.nics, node.nic.name) == ("H100-SXM-80GB", 2, 2, "ConnectX-7")
    assert [(root.numa_node, root.gpus, root.nics, root.has_switch) for root in node.pcie] == [
        (0, (0,), (0,), True),
        (1, (1,), (1,), True),
    ]
    assert node.gpu_nic_path(0, 0).bandwidth_bytes_per_s == pcie_bytes_per_s(5, 16)
    assert len(node.gpu_nic_path(0, 0).links) == 2
    assert "secret-host" not in repr(node)


def test_an_hwloc_file_with_other_declarations_is_refused():
    text = HWLOC.replace('SYSTEM "hwloc2.dtd"', '[<!ENTITY a "aaaa">]') % ""
    with pytest.raises(InputError, match="DOCTYPE or entity"):
        read_node(text.encode(), "bomb.xml", "bomb")
    with pytest.raises(InputError, match="no GPU in it"):
        read_node((HWLOC % "").encode(), "empty.xml", "empty")


# nvidia-smi topo -m: the table of NVIDIA/nccl#1264 (HGX H100), cut to four GPUs and their NICs.

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tNIC3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\tSYS\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tSYS\tPIX\tSYS\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\tPIX\tSYS\t56-111,168-223\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\tSYS\tPIX\t56-111,168-223\t1\t\tN/A
"""


def test_a_topology_matrix_gives_a_node_with_its_nics_beside_its_gpus():
    """18 links to each of three others are more than a GPU has, so they meet in a switch."""
    node, _ = read_node(MATRIX.encode(), "topo.txt", "host")
    assert (node.gpus, node.nics, node.accelerator.name) == (4, 4, "H100-SXM-80GB")
    assert "a guess" in node.sources["accelerator"]
    assert [node.rail_of_gpu(gpu) for gpu in range(4)] == [0, 1, 2, 3]
    assert node.numa_nodes == (0, 1)
    assert node.gpu_gpu_path(0, 3).bandwidth_bytes_per_s == 450 * GB


def test_a_matrix_of_a_mesh_keeps_its_pairs():
    """Hybrid cube mesh, four GPUs of it: NV1 and NV2 as NVIDIA/nccl#671 has them; the GPU must be named."""
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV1\tNV1\tNV2\nGPU1\tNV1\t X \tNV2\tNV1\nGPU2\tNV1\tNV2\t X \tNV2\nGPU3\tNV2\tNV1\tNV2\t X \n"
    with pytest.raises(InputError, match=r"names no products\. Name the GPU"):
        read_node(text.encode(), "topo.txt", "dgx1")
    node, _ = read_node(text.encode(), "topo.txt", "dgx1", "V100-SXM2-32GB")
    assert node.gpu_gpu_path(0, 3).bandwidth_bytes_per_s == 50 * GB
    assert node.gpu_gpu_path(0, 1).bandwidth_bytes_per_s == 25 * GB


@given(st.binary(max_size=300))
def test_any_bytes_are_a_node_or_an_input_error(data):
    for start in (b"", MATRIX.encode(), (HWLOC % PACKAGE.format(0, 1, 3)).encode(), b'<system version="1">'):
        with contextlib.suppress(InputError):
            read_node(start + data, "fuzz", "fuzz")


def test_a_fabric_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "x").write_text("hello\n")
    with pytest.raises(InputError, match="no switch and no block"):
        read_fabric(tmp_path / "x", NODES["dgx-h100"])
    with pytest.raises(InputError, match="cannot be read"):
        read_fabric(tmp_path / "gone", NODES["dgx-h100"])
