"""Hardware: the catalogue of products, node blueprints, expected figures, and the files that describe a machine.

Every figure carries its source. Imports only `busbw.errors`, `busbw.units` and `busbw.statistics`.
"""

from busbw.hardware.blueprints import Cluster, Node, PcieRoot, find_node, load_nodes
from busbw.hardware.catalogue import (
    Accelerator,
    Catalogue,
    Figure,
    Nic,
    NvSwitch,
    Switch,
    find_accelerator,
    load_catalogue,
    pcie_bytes_per_s,
)
from busbw.hardware.expected import (
    ExpectedRange,
    ExpectedTime,
    Tier,
    expected_busbw,
    expected_small_message_time,
    matching_tiers,
    nccl_nvlink_bytes_per_s,
    nccl_pcie_bytes_per_s,
    nic_tier,
    tiers,
)
from busbw.hardware.node_topology import node_topology

__all__ = [
    "Accelerator",
    "Catalogue",
    "Cluster",
    "ExpectedRange",
    "ExpectedTime",
    "Figure",
    "Nic",
    "Node",
    "NvSwitch",
    "PcieRoot",
    "Switch",
    "Tier",
    "expected_busbw",
    "expected_small_message_time",
    "find_accelerator",
    "find_node",
    "load_catalogue",
    "load_nodes",
    "matching_tiers",
    "nccl_nvlink_bytes_per_s",
    "nccl_pcie_bytes_per_s",
    "nic_tier",
    "node_topology",
    "pcie_bytes_per_s",
    "tiers",
]
