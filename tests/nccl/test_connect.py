"""Trees over nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.nccl.connect import double_binary_tree


def text(nodes: int) -> str:
    def one(position):
        return f"{position.up};{position.down[0]},{position.down[1]}"

    trees = [double_binary_tree(node, nodes) for node in range(nodes)]
    return " ".join(f"{node}[{one(first)}|{one(second)}]" for node, (first, second) in enumerate(trees))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (4, "0[-1;-1,2|1;-1,-1] 1[2;-1,-1|3;2,0] 2[0;1,3|1;-1,-1] 3[2;-1,-1|-1;-1,1]"),
        (5, "0[-1;-1,4|1;3,-1] 1[2;-1,-1|-1;-1,0] 2[4;1,3|3;-1,-1] 3[2;-1,-1|0;2,4] 4[0;2,-1|3;-1,-1]"),
        (
            8,
            "0[-1;-1,4|1;-1,-1] 1[2;-1,-1|3;2,0] 2[4;1,3|1;-1,-1] 3[2;-1,-1|7;5,1] "
            "4[0;2,6|5;-1,-1] 5[6;-1,-1|3;6,4] 6[4;5,7|5;-1,-1] 7[6;-1,-1|-1;-1,3]",
        ),
    ],
)
def test_trees_are_those_that_nccl_prints(nodes, expected):
    """Recorded from NCCL 2.30.7's own code: node[up0;down,down|up1;down,down]."""
    assert text(nodes) == expected


@given(nodes=st.integers(1, 300))
def test_both_trees_reach_every_node_once_from_one_root(nodes):
    for which in (0, 1):
        places = [double_binary_tree(node, nodes)[which] for node in range(nodes)]
        assert [place.up for place in places].count(-1) == 1
        children = [child for place in places for child in place.down if child != -1]
        assert sorted(children) == [node for node in range(nodes) if places[node].up != -1]
        assert all(places[child].up == node for node in range(nodes) for child in places[node].down if child != -1)


@given(nodes=st.integers(1, 128).map(lambda half: 2 * half))
def test_with_an_even_number_a_leaf_of_one_tree_is_none_of_the_other(nodes):
    """So every node's links carry traffic both ways. Two nodes alone have one that is a leaf in each."""
    for node in range(nodes):
        first, second = double_binary_tree(node, nodes)
        assert (first.down == (-1, -1)) != (second.down == (-1, -1))
