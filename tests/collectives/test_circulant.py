"""The round-optimal broadcast over circulant graphs: Traeff's conditions on its blocks, and its number of rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.collectives import expand, violations
from busbw.collectives.algorithms import census_all_reduce, circulant_broadcast, circulant_reduce
from busbw.collectives.circulant import received_blocks, skips
from busbw.collectives.cost import cost


def broken_condition(ranks: int) -> str:
    """What arXiv 2312.11236, section 2, asks of blocks, where it isn't so; empty if it is."""
    s, blocks, rank = skips(ranks), received_blocks(ranks), np.arange(ranks)
    rounds = len(s) - 1
    own = blocks.max(0)  # the one block of this turn
    for v in range(1, ranks):
        expected = [c - rounds for c in range(rounds) if c != own[v]] + [own[v]]
        if sorted(blocks[:, v]) != sorted(expected):
            return f"rank {v} does not get {rounds} different blocks"
    for k in range(rounds):
        sender = (rank - s[k]) % ranks
        held = (blocks[:k, sender] == blocks[k]).any(0) | (blocks[k] == own[sender] - rounds)
        held[sender == 0] = blocks[k, sender == 0] == k
        if not held[1:].all():
            return f"round {k}: rank {sender[1:][~held[1:]][0]} does not hold what it sends"
    return ""


@pytest.mark.parametrize("ranks", [*range(2, 140), 255, 257, 1000, 1023, 1025])
def test_every_rank_holds_what_it_sends_and_gets_as_many_blocks_as_rounds(ranks: int):
    """A block that a rank sends came earlier in the turn, or is its own of the turn before; the root sends block k in round k."""
    assert broken_condition(ranks) == ""


def test_skips_halve_rounded_up():
    """13: 7, 4, 2, 1. Halving once rounded up is dividing by a power of two rounded up."""
    assert skips(13) == [1, 2, 4, 7, 13]
    assert skips(1) == [1]
    assert received_blocks(1).shape == (0, 1)


@settings(max_examples=25)
@given(ranks=st.integers(2, 33), blocks=st.integers(1, 9), data=st.data())
def test_broadcast_and_reduce_take_as_few_rounds_as_there_can_be(ranks: int, blocks: int, data: st.DataObject):
    """m - 1 + ceil(log2 p), one block a rank and round, from and to any root; nobody gets a block twice."""
    root = data.draw(st.integers(0, ranks - 1))
    for schedule in (circulant_broadcast(), circulant_reduce()):
        bound = schedule.bind(ranks, blocks=blocks, root=root)
        assert violations(bound) == []
        assert cost(bound).steps == blocks - 1 + (ranks - 1).bit_length()
    moves = expand(circulant_broadcast().bind(ranks, blocks=blocks, root=root))
    for end in (moves.src, moves.dst):
        assert np.unique(np.stack([moves.step, end]), axis=1).shape[1] == len(moves)
    assert np.unique(np.stack([moves.dst, moves.dst_index]), axis=1).shape[1] == len(moves) == (ranks - 1) * blocks


@given(ranks=st.integers(1, 40))
def test_a_census_takes_ceil_log2_rounds_of_the_whole_vector(ranks: int):
    """Bar-Noy, Kipnis, Schieber: any number of ranks, no folding."""
    bound = census_all_reduce().bind(ranks)
    assert violations(bound) == []
    assert cost(bound).steps == cost(bound).sent_share() == (ranks - 1).bit_length()
