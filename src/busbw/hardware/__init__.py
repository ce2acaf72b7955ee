"""Hardware: the catalogue of products, node blueprints, expected figures, and the files that describe a machine.

Every figure carries its source. Imports only `busbw.errors`, `busbw.units` and `busbw.statistics`.
"""

from busbw.hardware.alike import cluster_alike
from busbw.hardware.blueprints import CpuId, Node, PcieRoot, cpu_link, find_node, load_nodes
from busbw.hardware.catalogue import (
    Accelerator,
    Catalogue,
    CpuLink,
    Figure,
    Latency,
    Nic,
    NvLink,
    NvSwitch,
    Switch,
    find_accelerator,
    find_switch,
    load_catalogue,
    pcie_bytes_per_s,
)
from busbw.hardware.cluster import FABRIC_KINDS, ROUTINGS, Cluster, FabricPlan
from busbw.hardware.cluster_files import find_cluster, read_cluster_file
from busbw.hardware.expected import (
    ExpectedRange,
    ExpectedTime,
    Tier,
    expected_busbw,
    expected_small_message_time,
    matching_tiers,
    nic_tier,
    tiers,
)
from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import LINK_KINDS, VERTEX_KINDS, LinkTable, NodeGraph, Path
from busbw.hardware.nccl_links import nccl_link_rates, nccl_nvlink_bytes_per_s, nccl_pcie_bytes_per_s
from busbw.hardware.what_if import SETTINGS, set_figures

__all__ = [
    "FABRIC_KINDS",
    "LINK_KINDS",
    "ROUTINGS",
    "SETTINGS",
    "VERTEX_KINDS",
    "Accelerator",
    "Catalogue",
    "Cluster",
    "CpuId",
    "CpuLink",
    "ExpectedRange",
    "ExpectedTime",
    "Fabric",
    "FabricPlan",
    "Figure",
    "Latency",
    "LinkTable",
    "Nic",
    "Node",
    "NodeGraph",
    "NvLink",
    "NvSwitch",
    "Path",
    "PcieRoot",
    "Switch",
    "Tier",
    "cluster_alike",
    "cpu_link",
    "expected_busbw",
    "expected_small_message_time",
    "find_accelerator",
    "find_cluster",
    "find_node",
    "find_switch",
    "load_catalogue",
    "load_nodes",
    "matching_tiers",
    "nccl_link_rates",
    "nccl_nvlink_bytes_per_s",
    "nccl_pcie_bytes_per_s",
    "nic_tier",
    "pcie_bytes_per_s",
    "read_cluster_file",
    "set_figures",
    "tiers",
]
