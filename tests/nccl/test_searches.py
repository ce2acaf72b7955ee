"""Channels, GPU by GPU and net by net, that NCCL 2.30.7's own search lays into topologies made at random.

searches.json.gz was recorded by running src/graph/search.cc, paths.cc, topo.cc and xml.cc of NVIDIA/nccl 2.30.7, built for the CPU, on
topologies and variables drawn at random: NVLink in pairs, rings, meshes and switches, C2C, Broadcom switches, NICs that share an adapter,
rails, planes, GPUs and NICs without GPUDirect. They were recorded after the search was written; none was looked at while it was.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from busbw.hardware.formats import read_nccl_topology
from busbw.nccl import read_settings
from busbw.nccl.constants import load_constants
from busbw.nccl.paths import Paths
from busbw.nccl.search import NodeSearch
from busbw.nccl.topology import topology_graph

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "searches.json.gz").read_bytes()))


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry["name"])
def test_channels_are_those_of_nccl(entry):
    topology, losses = read_nccl_topology(entry["xml"], entry["name"])
    constants = load_constants()
    paths = Paths(topology_graph(topology, constants), constants, read_settings(entry["variables"]))
    search = NodeSearch(paths, constants, entry["several_nodes"])
    ring = search.ring()
    found = {"ring": ring, "tree": search.tree(ring), "nvls": search.nvls()}
    assert losses == []
    assert search.max_gb_per_s == pytest.approx(entry["max_bw"], abs=1e-3)
    assert search.total_gb_per_s == pytest.approx(entry["total_bw"], abs=1e-3)
    for name, graph in found.items():
        ours = {
            "pattern": int(graph.pattern),
            "cross_nic": graph.cross_nic,
            "channels": graph.channels,
            "bw_intra_GBps": round(graph.intra_gb_per_s, 4),
            "bw_inter_GBps": round(graph.inter_gb_per_s, 4),
            "type_intra": graph.type_intra.name,
            "type_inter": graph.type_inter.name,
            "same_channels": graph.same_channels,
            "latency_inter_us": round(graph.latency_inter_us, 3),
            "gpus": [list(channel) for channel in graph.gpus],
            "nets": [list(pair) for pair in graph.nets],
        }
        assert ours == entry["graphs"][name], name
