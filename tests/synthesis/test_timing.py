"""Candidates on a cluster: NCCL's by prediction, others by simulated links, on one footing; none beats its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives.algorithms import ring_all_gather
from busbw.collectives.bounds import CapacityGraph
from busbw.hardware import find_cluster
from busbw.prediction import load_calibration, movements, moves_of, parts, situation_of
from busbw.simulation import simulate
from busbw.synthesis import Candidate, Design, design, message_alpha_s, ranked_on, summing_switches
from busbw.synthesis.design import Busy
from busbw.synthesis.timing import shared_links_s


def designed(name: str, nodes: int, collective: str, size: int, **how) -> Design:
    cluster = find_cluster(name, nodes)[0]
    graph = CapacityGraph.of_cluster(cluster)
    found = design(
        graph, collective, size, alpha_s=message_alpha_s(cluster), near_alpha_s=message_alpha_s(cluster, near=True), gpus_per_node=cluster.gpus_per_domain,
    )  # fmt: skip
    return ranked_on(cluster, graph, found, **how)


@pytest.mark.parametrize(
    ("name", "nodes", "collective", "size"),
    [
        ("dgx-h100", 1, "reduce_scatter", 1 << 30),
        ("dgx-h100", 3, "all_gather", 1 << 24),
        ("dgx-a100", 2, "all_reduce", 1 << 12),
        ("mi300x-8", 1, "reduce_scatter", 1 << 24),
        ("gb200-nvl72", 2, "broadcast", 1 << 16),
        ("p5", 3, "scatter", 240),  # NVLink and a rail take less than the straight way over spines
        ("dgx-1-v100", 1, "all_reduce", 8),  # two NVLinks are quicker than the way over PCIe, twice
        ("v100-pcie-4", 1, "gather", 13),  # NCCL's P2P: some of its peers are further away than GPU 1
        ("a100-pcie-8", 3, "all_reduce", 1 << 40),  # NCCL's trees: fewer bytes on a NIC than any schedule can do with
    ],
)
def test_no_candidate_is_faster_on_the_links_than_its_bound(name: str, nodes: int, collective: str, size: int):
    """Those that use switches which add have a bound of their own; times are in order, and say where they are from."""
    found = designed(name, nodes, collective, size)
    times = [candidate.time_s for candidate in found.candidates]
    assert times == sorted(times)
    for candidate in found.candidates:
        if candidate.links_s is not None:
            assert found.gap(candidate) >= -1e-6
            assert candidate.time_s > candidate.links_s
    by = {candidate.origin: candidate.timed_by for candidate in found.candidates}
    assert by["nccl"] == "prediction"
    assert found.best is not None and found.best.timed_by in ("simulation", "simulation, fitted", "prediction")


def test_a_ring_takes_what_the_prediction_says_of_one():
    """Large all_gather on one node: launch, 7 steps, and bytes over what rings reach of NVLink; prediction adds home copies, an eighth, and slots to fill."""
    cluster, size = find_cluster("dgx-h100", 1)[0], 1 << 32
    (ring,) = (c for c in designed("dgx-h100", 1, "all_gather", size).candidates if c.name == "ring_all_gather")
    assert ring.links_s == pytest.approx(simulate(ring_all_gather().bind(8), cluster, size_bytes=size).time_s)
    where, figures = situation_of(cluster), load_calibration().figures("hopper", "infiniband")
    moves = [move for move in movements("all_gather", where) if (move.algorithm, move.protocol) == ("Ring", "Simple")]
    predicted = parts(moves_of(moves, where, np.array([float(size)])), figures)
    home = figures["copy_factor"] * moves[0].copied * size / where.intra_bytes_per_s / figures["ring_share"]
    assert ring.time_s == pytest.approx(float(predicted.total_s[0] - predicted.fill_s[0]) - home, rel=0.01)


def test_which_switches_add():
    """NVSwitches of Hopper; with SHARP the leaves too; none of A100's; none where none was asked for."""
    hopper, ampere = find_cluster("dgx-h100", 2)[0], find_cluster("dgx-a100", 2)[0]
    graph = CapacityGraph.of_cluster(hopper)
    assert [graph.name(v).split()[0] for v in summing_switches(graph, hopper)] == ["nvswitch0", "nvswitch0"]
    assert len(summing_switches(graph, hopper, "sharp")) == graph.vertices - graph.gpus
    assert summing_switches(CapacityGraph.of_cluster(ampere), ampere) == []
    assert summing_switches(graph, hopper, "none") == []
    with pytest.raises(ValueError, match="nvls, sharp, none"):
        summing_switches(graph, hopper, "some")


def test_sharp_is_ranked_beside():
    """The fabric adds: one vector up, one down; without a simulation of it, by prediction, and above the bound of switches that add."""
    found = designed("dgx-h100", 4, "all_reduce", 1 << 30, switches="sharp", limit_s=0)
    (sharp,) = (candidate for candidate in found.candidates if "CollNetChain" in candidate.name)
    assert sharp.in_network and sharp.bind().schedule.kind == "all_reduce"
    assert found.switches_bound_s <= found.bound_s
    assert found.gap(sharp) >= 0


def test_without_time_all_are_the_models_and_that_is_said():
    found = designed("dgx-h100", 1, "all_gather", 1 << 20, limit_s=0)
    assert any("were not simulated within 0 s" in note for note in found.notes)
    assert {c.timed_by for c in found.candidates if c.origin != "nccl"} == {"model"}


def test_faster_network_cards_make_no_design_slower():
    """Whatever ran on the slower cards runs on the faster ones, no link of which carries less; 2 % for the number of slices, which is searched."""
    times = []
    for rate in ("400Gb/s", "800Gb/s"):
        cluster = find_cluster("dgx-h100", 4, {"nic.rate": rate})[0]
        graph = CapacityGraph.of_cluster(cluster)
        found = design(
            graph, "all_gather", 1 << 26, alpha_s=message_alpha_s(cluster), near_alpha_s=message_alpha_s(cluster, near=True), gpus_per_node=8
        )  # fmt: skip
        best = ranked_on(cluster, graph, found).best
        assert best is not None
        times.append(best.time_s)
    assert times[1] <= 1.02 * times[0]


@given(
    links=st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-6, 1e-3)),
    faster=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    shares=st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)),
)
def test_time_on_links_that_are_no_slower_is_no_longer(links, faster, shares):
    """Links inside nodes and of the network, either the busier before and after: what both take, one after the other, falls with either."""

    def took(inside_s: float, network_s: float) -> float:
        busy = (Busy(inside_s, inside_s), Busy(network_s, network_s))
        candidate = Candidate("any", "library", None, (), 2, 1, 1, 0.0, steps_between=1, busy=busy)
        return shared_links_s(candidate, inside_s + network_s, shares)

    before = took(*links)
    assert before == pytest.approx(links[0] / shares[0] + links[1] / shares[1])  # each at its own share
    assert took(links[0] * faster[0] + 1e-9, links[1] * faster[1] + 1e-9) <= before * (1 + 1e-12) + 1e-8
