"""NCCL's choice in a situation: the same as on the whole cluster, and cut to what a table says of ranks and NICs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from busbw.hardware import find_cluster, load_nodes
from busbw.hardware.formats import node_to_nccl_topology
from busbw.hardware.formats.nccl_topo_xml import NvLink
from busbw.nccl import Algorithm, Protocol, communicator, function_of, read_settings
from busbw.prediction import (
    FASTEST,
    Situation,
    chosen,
    cut_topology,
    model_in,
    movements,
    predict_in,
    situation_of,
)

SIZES = [8 << place for place in range(31)]
H100 = Situation(16, 2, "hopper", 450e9, "switch", "infiniband", 400e9, 8, True, False, "NCCL", "dgx-h100")


def names(where: Situation, collective: str, sizes: list[int]) -> list[str]:
    found = movements(collective, where)
    places = chosen(where, model_in(where), found, collective, sizes)
    return ["?" if p == FASTEST else f"{found[p].algorithm} {found[p].protocol}" for p in places.tolist()]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_the_choice_on_the_blueprint_is_what_nccl_chooses_on_the_cluster(collective, nodes):
    cluster, _ = find_cluster("dgx-h100", nodes)
    function = function_of(collective)
    assert function is not None
    own = communicator(node_to_nccl_topology(cluster.node)[0], nodes).choices(function, SIZES)
    expected = [f"{Algorithm(a).name} {Protocol(p).name}" for a, p in zip(own.algorithm, own.protocol, strict=True)]
    assert names(situation_of(cluster), collective, SIZES) == expected


def test_without_nvls_two_nodes_take_trees_or_rings():
    """What a table rules out is not chosen, and of the rest NCCL's estimate decides."""
    assert "NVLSTree Simple" in names(H100, "all_reduce", [1 << 28])
    assert names(replace(H100, nvls=False), "all_reduce", [1 << 28])[0].split()[0] in ("Tree", "Ring")


def test_where_no_blueprint_is_named_or_rccl_runs_nobodys_choice_is_known():
    for where in (replace(H100, node=""), replace(H100, library="RCCL", node="mi300x-8")):
        assert set(names(where, "all_reduce", SIZES)) == {"?"}


def test_on_efa_the_plugin_tunes_so_that_nccls_choice_says_nothing():
    """Two nodes over EFA: unknown, and the prediction takes the fastest. One node, and EFA's first generation: NCCL chooses."""
    efa = replace(H100, network="efa")
    assert set(names(efa, "all_reduce", SIZES)) == {"?"}
    assert "?" not in names(replace(efa, ranks=8, domains=1), "all_reduce", SIZES)
    assert "?" not in names(replace(efa, network="efa-v1"), "all_reduce", SIZES)
    found = predict_in(efa, "all_reduce", SIZES, model=model_in(efa))
    assert set(found.channels) == {None}
    assert any("tunes instead of NCCL" in note for note in found.notes)


def test_rccl_lets_all_pairs_of_a_full_mesh_exchange_from_1_kib_on():
    """Two steps instead of a ring's 14, so 1 KiB takes less than 512 B (23 and 13 us, ROCm/rocm-blogs); never where settings name rings."""
    mesh = Situation(8, 1, "cdna3", 448e9, "mesh", "roce", 0.0, 0, False, False, "RCCL")
    found = predict_in(mesh, "all_reduce", [512, 1024, 1 << 30])
    assert found.algorithm == ("Ring", "AllPairs", "Ring")
    assert found.time_s[1] < found.time_s[0]
    ring = predict_in(mesh, "all_reduce", [512, 1024], settings=read_settings({"NCCL_ALGO": "Ring"}))
    assert set(ring.algorithm) == {"Ring"}
    assert "AllPairs" not in {
        move.algorithm for move in movements("all_reduce", replace(mesh, ranks=16, domains=2, network_bytes_per_s=4e11))
    }


def test_sends_go_by_ll_while_a_peer_gets_at_most_32_kib():
    """NCCL_P2P_LL_THRESHOLD is 16 KiB a channel, and a peer behind NVLink has two: of 16 ranks' all_to_all 512 KiB in all."""
    assert names(H100, "all_to_all", [512 << 10, (512 << 10) + 16]) == ["P2P LL", "P2P Simple"]
    assert names(H100, "send_recv", [32 << 10, (32 << 10) + 1]) == ["P2P LL", "P2P Simple"]


def test_a_cut_topology_has_the_first_gpus_and_nics_spread_over_sockets():
    """4 of 8 NICs of all GPUs: every second. 2 GPUs: ranks 0 and 1, and the first NIC."""
    whole, _ = node_to_nccl_topology(load_nodes()["dgx-h100"])
    half = cut_topology(whole, 8, 4, 25e9)
    assert [net.get("dev") for net in half.nets] == ["0", "2", "4", "6"]
    assert {net.get("speed") for net in half.nets} == {"200000"}
    assert len(half.gpus) == 8
    few = cut_topology(whole, 2, 1, gpudirect=False)
    assert [gpu.rank for gpu in few.gpus] == [0, 1]
    assert [(net.get("dev"), net.get("gdr")) for net in few.nets] == [("0", "0")]


def test_links_to_gpus_that_were_cut_off_are_cut_off():
    """Of a mesh of 4 superchips 2 remain: each has NVLinks to the other alone."""
    whole, _ = node_to_nccl_topology(load_nodes()["gh200-4"])
    for topology, peers in ((whole, 3), (cut_topology(whole, 2), 1)):
        links = [[child for child in gpu.children if isinstance(child, NvLink)] for gpu in topology.gpus]
        assert [len({link.get("target") for link in mine}) for mine in links] == [peers] * len(topology.gpus)


def test_a_choice_is_made_for_each_size():
    places = chosen(H100, model_in(H100), movements("all_reduce", H100), "all_reduce", SIZES)
    assert places.shape == (len(SIZES),)
    assert places.dtype == np.int64
