"""Tables as schedules: timed transfers and forests, as synthesis puts them out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import Tree, expand, forest, from_transfers, orbit_forest, violations


@st.composite
def trees(draw: st.DrawFn, ranks: int, root: int, chunks: int = 1) -> Tree:
    """Any spanning tree: each rank in a random order hangs itself below one before it."""
    order = [root, *draw(st.permutations([r for r in range(ranks) if r != root]))]
    parent = [-1] * ranks
    for place, rank in enumerate(order[1:], 1):
        parent[rank] = order[draw(st.integers(0, place - 1))]
    return Tree(root, parent, chunks)


@given(data=st.data(), ranks=st.integers(2, 9))
def test_trees_of_all_roots_gather_and_their_reverse_scatters_sums(data: st.DataObject, ranks: int):
    grown = [data.draw(trees(ranks, root, chunks)) for root in range(ranks) for chunks in (2, 1)]
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert violations(forest(kind, grown).bind()) == []


@given(data=st.data(), ranks=st.integers(2, 9))
def test_trees_of_one_root_broadcast_and_reduce(data: st.DataObject, ranks: int):
    root = data.draw(st.integers(0, ranks - 1))
    grown = [data.draw(trees(ranks, root)) for _ in range(3)]
    for kind in ("broadcast", "reduce"):
        assert violations(forest(kind, grown, parts=4).bind()) == []


@given(data=st.data(), nodes=st.integers(1, 4), gpus=st.integers(1, 4))
def test_the_translates_of_one_tree_are_a_forest(data: st.DataObject, nodes: int, gpus: int):
    if nodes * gpus == 1:
        return
    grown = [data.draw(trees(nodes * gpus, 0)) for _ in range(2)]
    for kind in ("all_gather", "reduce_scatter"):
        assert violations(orbit_forest(kind, grown, {"node": nodes, "gpu": gpus}).bind()) == []


def test_a_forest_is_as_many_steps_as_its_deepest_tree():
    """A chain of 5 ranks has depth 4."""
    chain = Tree(0, [-1, 0, 1, 2, 3])
    assert expand(forest("broadcast", [chain]).bind()).step.max() + 1 == 4
    assert expand(forest("all_reduce", [chain]).bind()).step.max() + 1 == 8


def test_all_to_all_goes_through_other_ranks():
    """3 ranks in a line: what 0 has for 2, and 2 for 0, passes 1. Chunk s * 3 + d is from s to d."""
    s = from_transfers(
        "all_to_all",
        3,
        3,
        step=[0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0],
        src=[0, 1, 1, 2, 0, 1, 2, 1, 0, 1, 2],
        dst=[1, 0, 2, 1, 1, 2, 1, 0, 0, 1, 2],
        chunk=[2, 3, 5, 6, 1, 2, 7, 6, 0, 4, 8],
    )
    assert violations(s.bind()) == []


def test_rows_keep_their_paths_and_channels():
    s = from_transfers(
        "broadcast", 3, 1, step=[5, 9], src=[2, 0], dst=[0, 1], chunk=[0, 0], root=2, channel=[0, 3], paths=["", "nvs0"]
    )
    moves = expand(s.bind())
    assert s.paths == ("nvs0",)
    assert (moves.path.tolist(), moves.channel.tolist(), moves.step.tolist()) == ([-1, 0], [0, 3], [0, 1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Tree(0, [-1, 2, 1]).depths(), "go round in a circle"),
        (lambda: forest("all_gather", [Tree(0, [-1, 0])]), "carry 0 chunks, those of rank 0 1"),
        (lambda: forest("broadcast", [Tree(0, [-1, 0]), Tree(1, [1, -1])]), "all trees have the same root"),
        (lambda: from_transfers("broadcast", 2, 1, step=[0], src=[0], dst=[2], chunk=[0]), "ranks are 0..1"),
        (lambda: from_transfers("broadcast", 2, 1, step=[0], src=[0, 1], dst=[1], chunk=[0]), "src has 2 rows"),
        (lambda: from_transfers("all_reduce", 2, 1, step=[0], src=[0], dst=[1], chunk=[0]), "whether it reduces"),
        (lambda: forest("broadcast", [Tree(0, [-1, 0])]).bind(3), "was made for r=2, not 3"),
        (lambda: forest("broadcast", [Tree(0, [-1, 0])]).bind(root=1), "start or end at root 0"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_ten_thousand_ranks_are_no_trouble():
    """A star of 10,000 ranks is one step of 9,999 moves."""
    ranks = 10_000
    star = Tree(0, [-1, *[0] * (ranks - 1)])
    moves = expand(forest("broadcast", [star]).bind())
    assert len(moves) == ranks - 1
    assert np.unique(moves.dst).size == ranks - 1
