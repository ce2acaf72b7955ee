"""Fabrics, one kind a file: networks between NIC ports whose routes are computed, not stored.

Imports only `busbw.hardware.links`. `fabric.py` says what every fabric offers.
"""

from busbw.hardware.fabrics.dragonfly_plus import DragonflyPlus
from busbw.hardware.fabrics.fabric import Fabric, LinkRates
from busbw.hardware.fabrics.fat_tree import FatTree, fat_tree_shape
from busbw.hardware.fabrics.graph import GraphFabric
from busbw.hardware.fabrics.nvlink_domains import NvlinkDomains, rail_shape
from busbw.hardware.fabrics.rail_optimised import RailOptimised
from busbw.hardware.fabrics.single_switch import SingleSwitch
from busbw.hardware.fabrics.torus import Torus

__all__ = [
    "DragonflyPlus",
    "Fabric",
    "FatTree",
    "GraphFabric",
    "LinkRates",
    "NvlinkDomains",
    "RailOptimised",
    "SingleSwitch",
    "Torus",
    "fat_tree_shape",
    "rail_shape",
]
