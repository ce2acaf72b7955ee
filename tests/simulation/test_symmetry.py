"""Folding and fast-forward change no time: what is simulated once for many ranks is what each of them would do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.hardware.fabrics import FatTree, LinkRates, SingleSwitch
from busbw.hardware.routing import d_mod_k, ecmp
from busbw.simulation import (
    Channel,
    Compute,
    Loop,
    Others,
    Receive,
    Send,
    Shift,
    Stream,
    TaskProgram,
    _flow,
    simulate,
)


def both(program, network, **given):
    """The same program folded and fast-forwarded, and with neither."""
    folded = simulate(program, network, **given)
    plain = simulate(program, network, fold=False, fast_forward=False, **given)
    return folded, plain


@st.composite
def trees(draw):
    """Trees of two levels whose leaves are full, and single switches; odd rates, so that shares are no round numbers."""
    rates = LinkRates(
        draw(st.sampled_from([12.5e9, 50e9, 33.3e9])),
        draw(st.sampled_from([12.5e9, 50e9, 77.7e9])),
        draw(st.sampled_from([0.0, 3e-7])),
        draw(st.sampled_from([0.0, 1e-6, 1.3e-7])),
    )
    below, leaves = draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([1, 2, 3, 4]))
    if leaves == 1:
        return SingleSwitch(below, rates)
    up = draw(st.sampled_from([w for w in range(1, below + 1) if below % w == 0]))
    cables = draw(st.sampled_from([1, 2] if below % (2 * up) == 0 else [1]))
    return FatTree(below * leaves, (below, leaves), (1, up), (1, cables), rates)


@st.composite
def programs(draw, ranks):
    """One stream a rank: loops of shifts and exchanges with all others, some computing."""
    channels = [Channel("next", "rank", "rank", Shift((ranks,), (draw(st.integers(1, ranks - 1)),)))]
    channels.append(Channel("all", "rank", "rank", Others((ranks,), 0), weight=draw(st.sampled_from([1, 3]))))
    size = st.sampled_from([0, 1, 1000, 65_537, 1 << 20])
    pair = st.builds(lambda name, n: (Send(name, n), Receive(name)), st.sampled_from(["next", "all"]), size)
    work = st.builds(lambda t: (Compute(t),), st.sampled_from([0.0, 1e-6, 3.7e-6]))
    body = draw(st.lists(st.one_of(pair, work), min_size=1, max_size=4))
    flat = tuple(step for steps in body for step in steps)
    return TaskProgram(ranks, (Stream("rank", (Loop(draw(st.integers(1, 40)), flat), *flat)),), tuple(channels))


@given(st.data(), trees())
def test_folding_and_fast_forward_change_no_picosecond(data, network):
    """Every rank ends at the same picosecond, by D-mod-k and by spray, whatever the symmetry of the case."""
    program = data.draw(programs(network.endpoints))
    folded, plain = both(program, network, routing=data.draw(st.sampled_from(["d-mod-k", "spray"])))
    assert plain.folded == 1
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    assert folded.end_ps == plain.end_ps


def test_a_full_tree_folds_an_exchange_of_all_to_one_rank():
    """Leaves of 4 with 4 spines: D-mod-k loads all links of a level alike, so one rank stands for all 16."""
    tree = FatTree(16, (4, 4), (1, 4), (1, 1), LinkRates(50e9, 50e9))
    program = TaskProgram(
        16,
        (Stream("rank", (Send("all", 1 << 20), Receive("all"))),),
        (Channel("all", "rank", "rank", Others((16,), 0)),),
    )
    assert simulate(program, tree).folded == 16
    assert simulate(program, tree, routing="ecmp").folded == 1, "a hash keeps no symmetry"


def test_a_ring_through_leaves_folds_to_the_ranks_of_one_leaf():
    """A ring by rank number crosses a spine at the last rank of each leaf alone, so places below a leaf differ."""
    tree = FatTree(16, (4, 4), (1, 4), (1, 1), LinkRates(50e9, 50e9, 0, 1e-6))
    ring = TaskProgram(
        16,
        (Stream("rank", (Loop(30, (Send("next", 1 << 16), Receive("next"))),)),),
        (Channel("next", "rank", "rank", Shift((16,), (1,))),),
    )
    folded, plain = both(ring, tree)
    assert folded.folded == 4
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    assert folded.messages_run < folded.messages == 4 * 30, "the steady state was counted, not run"


@pytest.mark.parametrize(
    "shape",
    [
        ((4, 3), (1, 2), (1, 2)),
        ((4, 4, 2), (1, 2, 4), (1, 2, 1)),
        ((5,), (1,), (1,)),
        ((2, 3, 2), (2, 2, 1), (1, 1, 2)),
    ],
)
def test_the_core_takes_the_ways_that_the_hardware_states(shape):
    """All pairs of a tree, by D-mod-k and by ECMP with two seeds: the same links in the same order."""
    down, up, parallel = shape
    tree = FatTree(int(np.prod(down)), down, up, parallel, LinkRates(1e9, 1e9))
    src, dst = (
        part.ravel().astype(np.int64) for part in np.meshgrid(np.arange(tree.endpoints), np.arange(tree.endpoints))
    )
    for hashed, seed in ((False, 0), (True, 0), (True, 7)):
        begin, link = _flow.tree_ways(list(down), list(up), list(parallel), src, dst, src, dst, seed, hashed)
        stated = (ecmp(tree, src, dst, seed=seed) if hashed else d_mod_k(tree, src, dst)).links
        assert np.array_equal(np.diff(begin), (stated >= 0).sum(1))
        assert np.array_equal(link, stated[stated >= 0])
