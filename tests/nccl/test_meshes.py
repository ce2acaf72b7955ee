"""GPUs joined by NVLink without a switch: the search must find rings that use all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from busbw.errors import InputError
from busbw.hardware import PcieRoot, find_node
from busbw.hardware.formats import node_to_nccl_topology
from busbw.nccl import communicator
from busbw.nccl.communicator import named_topology
from busbw.nccl.settings import Settings


def test_rings_of_a_dgx_1_use_every_nvlink_once_each_way():
    """24 NVLinks are 48 directions; a ring of 8 GPUs takes 8, so 6 rings are the most, and NCCL doubles their channels."""
    topology, nodes, notes = named_topology("dgx-1-v100", 1, Settings())
    inputs = communicator(topology, nodes).inputs
    assert (inputs.ring.channels, inputs.channels, notes) == (6, 12, [])
    used = Counter((a, b) for ring in inputs.ring.gpus for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    mesh = find_node("dgx-1-v100").nvlink_mesh
    assert used == {way: links for a, b, links in mesh for way in ((a, b), (b, a))}


def test_rings_of_four_v100_are_those_that_nccl_wrote_in_a_public_report():
    """NVIDIA/nccl#713, server A: 4 V100, each pair joined by 2 NVLinks; the graph file that NCCL dumped has 6 rings.

    The first four of them are compared.
    """
    roots = (PcieRoot(0, (0, 1), (0,), 3, 16), PcieRoot(1, (2, 3), (1,), 3, 16))
    mesh = tuple((a, b, 2) for a, b in combinations(range(4), 2))
    node = replace(find_node("dgx-1-v100"), gpus=4, pcie=roots, nvlink_mesh=mesh)
    ring = communicator(node_to_nccl_topology(node)[0], 1).inputs.ring
    assert (ring.channels, ring.type_intra.name, ring.type_inter.name) == (6, "NVL", "PIX")
    assert ring.gpus[:4] == ((0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1), (0, 2, 1, 3))


def test_a_blueprint_without_nvidia_gpus_is_refused():
    with pytest.raises(InputError, match="MI300X is no NVIDIA GPU"):
        named_topology("mi300x-8", 1, Settings())
