"""The schedule behind NCCL's choice computes the collective, and costs what the closed form of its algorithm says."""

from __future__ import annotations

import pytest

from busbw.collectives import violations
from busbw.collectives.cost import cost
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.nccl import Algorithm, Choice, Function, Protocol, Settings, communicator, named_topology, schedule
from busbw.nccl.schedules import ring_orders, trees
from busbw.prediction import situation_of
from busbw.prediction.movement import movements

CLUSTERS = [
    ("dgx-a100", 1),
    ("dgx-a100", 3),
    ("dgx-h100", 1),
    ("dgx-h100", 2),
    ("dgx-h100", 5),
    ("gh200", 4),
    ("l40s-8", 2),
]


def model_of(name: str, nodes: int):
    topology, counted, _ = named_topology(name, nodes, Settings())
    return communicator(topology, counted)


def chosen(function: Function, algorithm: Algorithm, channels: int = 2) -> Choice:
    return Choice(function, 1 << 20, algorithm, Protocol.Simple, channels, 16, 0.0)


@pytest.mark.parametrize(("name", "nodes"), CLUSTERS)
def test_what_nccl_chooses_computes_the_collective(name, nodes):
    model = model_of(name, nodes)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for size in (1 << 10, 1 << 20, 1 << 30):
            choice = model.choice(collective, size)
            bound = schedule(choice, model)
            assert bound.ranks == model.inputs.ranks
            assert violations(bound) == [], f"{collective} {size} {choice.algorithm.name}"


@pytest.mark.parametrize(("name", "nodes"), CLUSTERS)
def test_a_ring_passes_every_rank_and_enters_a_node_once(name, nodes):
    model = model_of(name, nodes)
    per_node = model.gpus_per_node
    for order in ring_orders(model, model.inputs.channels):
        assert sorted(order) == list(range(model.inputs.ranks))
        entries = sum(a // per_node != b // per_node for a, b in zip(order, order[1:] + order[:1], strict=True))
        assert entries == (nodes if nodes > 1 else 0)


@pytest.mark.parametrize(("name", "nodes"), CLUSTERS)
def test_in_both_halves_of_the_channels_no_node_has_three_children_and_inner_nodes_of_one_are_leaves_of_the_other(
    name, nodes
):
    model = model_of(name, nodes)
    per_node, inner = model.gpus_per_node, []
    for tree in (trees(model, model.inputs.channels)[0], trees(model, model.inputs.channels)[-1]):
        below = [0] * nodes
        for rank, parent in enumerate(tree.parent):
            if parent != -1 and parent // per_node != rank // per_node:
                below[parent // per_node] += 1
        assert max(below) <= 2
        inner.append({node for node in range(nodes) if below[node]})
    if nodes > 1:
        assert len(inner[0] & inner[1]) <= 1  # an odd number of nodes leaves one inner in both


@pytest.mark.parametrize(("name", "nodes"), [("dgx-a100", 1), ("dgx-a100", 4), ("dgx-h100", 3)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_closed_form_of_a_ring_is_its_schedule(name, nodes, collective):
    """Steps: those inside domains and between them together. Bytes: the wire share of the busiest link."""
    function = {
        "all_reduce": Function.AllReduce,
        "all_gather": Function.AllGather,
        "reduce_scatter": Function.ReduceScatter,
    }
    cluster, _ = find_cluster(name, nodes)
    ring = next(m for m in movements(collective, situation_of(cluster)) if m.algorithm == "Ring")
    counted = cost(schedule(chosen(function[collective], Algorithm.Ring), model_of(name, nodes)))
    assert counted.steps == ring.intra_steps + ring.inter_steps
    assert counted.sent_share() == pytest.approx(ring.intra_wire)


@pytest.mark.parametrize(("name", "nodes"), [("dgx-a100", 1), ("dgx-a100", 2), ("dgx-a100", 4), ("dgx-h100", 8)])
def test_the_closed_form_of_a_tree_is_its_schedule(name, nodes):
    """A chain of n GPUs up and down, and as many levels as log2 of the nodes says; the schedule's chain may begin lower in a node that
    hands its children to the second GPU of the chain, so it is longer by at most one step a level and way."""
    cluster, _ = find_cluster(name, nodes)
    tree = next(m for m in movements("all_reduce", situation_of(cluster)) if m.algorithm == "Tree")
    counted = cost(
        schedule(
            chosen(Function.AllReduce, Algorithm.Tree, model_of(name, nodes).inputs.channels), model_of(name, nodes)
        )
    )
    steps = tree.intra_steps + tree.inter_steps
    assert steps <= counted.steps <= steps + tree.inter_steps + 2


def test_what_has_no_schedule_is_refused_by_name():
    with pytest.raises(InputError, match="CollNetChain AllReduce over 2 nodes: its schedule is not known here"):
        schedule(chosen(Function.AllReduce, Algorithm.CollNetChain), model_of("dgx-h100", 2))
    large = model_of("dgx-h100", 1 << 20)
    with pytest.raises(InputError, match="Ask for fewer nodes"):
        schedule(chosen(Function.AllReduce, Algorithm.Ring, 16), large)
