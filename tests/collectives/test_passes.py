"""Laws of what makes schedules out of schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import Tree, expand, forest, from_transfers, violations
from busbw.collectives.algorithms import (
    LIBRARY,
    bruck_all_to_all,
    direct_all_gather,
    direct_all_to_all,
    pat_all_gather,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from busbw.collectives.cost import cost
from busbw.collectives.passes import compose, folded, renamed_axes, reverse
from busbw.collectives.schedule_json import from_json, to_json

REVERSIBLE = [
    name
    for name in LIBRARY
    if LIBRARY[name]().kind not in ("barrier", "send_recv")
    and not any(t in name for t in ("bruck_all_to_all", "radix", "sharp", "census"))
]


@pytest.mark.parametrize("name", REVERSIBLE)
def test_backwards_twice_is_forwards(name: str):
    schedule = LIBRARY[name]()
    assert reverse(reverse(schedule)) == schedule


TWICE = (  # a rank gets what it has, or adds the whole vector more than once: right forwards only
    "recursive_doubling_all_reduce", "swing_all_reduce_latency", "one_shot_all_reduce", "scatter_all_gather_broadcast", "scatter_gather_reduce", "hierarchical_all_reduce_doubling",
)  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_a_schedule_that_brings_a_chunk_twice_is_wrong_backwards_and_that_is_told(name: str):
    assert violations(list(reverse(LIBRARY[name]()).bindings(4))[-1]) != []


@pytest.mark.parametrize("name", [name for name in REVERSIBLE if name not in TWICE])
def test_backwards_is_the_reverse_collective(name: str):
    """And takes as many steps, and as many bytes; multicast aside, as busy."""
    schedule = LIBRARY[name]()
    back = reverse(schedule)
    for ranks in (4, 6):
        for bound, other in zip(list(schedule.bindings(ranks))[:2], list(back.bindings(ranks))[:2], strict=True):
            assert violations(other) == []
            assert cost(bound).steps == cost(other).steps
            assert cost(bound).sent_share() == pytest.approx(cost(other).received_share())


def test_what_cannot_be_reversed_is_refused():
    """bruck_all_to_all reverses (each value goes to one place); a barrier, SHARP and partial sums in scratch don't."""
    assert violations(reverse(bruck_all_to_all()).bind(6)) == []
    with pytest.raises(ValueError, match="barrier has no reverse"):
        reverse(LIBRARY["dissemination_barrier"]())
    with pytest.raises(
        ValueError, match=r"in_network.py:[0-9]+: sharp_all_reduce: network_all_reduce can't be reversed"
    ):
        reverse(LIBRARY["sharp_all_reduce"]())
    with pytest.raises(ValueError, match="it uses scratch"):
        reverse(LIBRARY["census_all_reduce"]())


@given(ranks=st.integers(2, 12))
def test_all_reduce_is_reduce_scatter_then_all_gather(ranks: int):
    for scatter in (ring_reduce_scatter, LIBRARY["bruck_reduce_scatter"], LIBRARY["pat_reduce_scatter"]):
        for gather in (ring_all_gather, direct_all_gather, pat_all_gather):
            assert violations(compose(scatter(), gather()).bind(ranks)) == []


def test_schedules_that_do_not_fit_are_not_composed():
    with pytest.raises(ValueError, match="make no collective together"):
        compose(ring_all_gather(), ring_all_gather())
    with pytest.raises(ValueError, match=r"cuts into \|r\| chunks over r, .* into \|gpu\| over gpu"):
        compose(ring_reduce_scatter(), renamed_axes(ring_all_gather(), {"r": "gpu"}))


def test_tables_and_paths_of_both_are_kept_apart():
    """Two forests with tables of the same names and other contents, and paths."""
    a = forest("reduce_scatter", [Tree(0, [-1, 0, 1]), Tree(1, [1, -1, 1], paths={0: "x"}), Tree(2, [2, 2, -1])])
    b = forest("all_gather", [Tree(0, [-1, 0, 0]), Tree(1, [2, -1, 1], paths={2: "y"}), Tree(2, [2, 2, -1])])
    both = compose(a, b)
    assert violations(both.bind()) == []
    assert both.paths == ("x", "y")
    moves = expand(both.bind())
    named = {
        (both.paths[i], int(s), int(d)) for i, s, d in zip(moves.path, moves.src, moves.dst, strict=True) if i >= 0
    }
    assert named == {("x", 0, 1), ("y", 1, 2)}


@given(data=st.data(), ranks=st.integers(2, 7))
def test_renumbering_ranks_changes_nothing(data: st.DataObject, ranks: int):
    """The moves of an all_reduce under any permutation of ranks still make an all_reduce."""
    number = np.array(data.draw(st.permutations(range(ranks))))
    moves = expand(ring_all_reduce().bind(ranks))
    renumbered = from_transfers(
        "all_reduce", ranks, ranks, step=moves.step, src=number[moves.src], dst=number[moves.dst], chunk=moves.src_index, reduce=moves.action
    )  # fmt: skip
    assert violations(renumbered.bind()) == []


@given(ranks=st.integers(2, 7))
def test_what_is_written_out_and_read_back_moves_the_same(ranks: int):
    """from_transfers(expand(s)) is s, for an all_to_all through no one else."""
    moves = expand(direct_all_to_all().bind(ranks))
    chunk = moves.src * ranks + moves.src_index
    back = from_transfers("all_to_all", ranks, ranks, step=moves.step, src=moves.src, dst=moves.dst, chunk=chunk)
    assert violations(back.bind()) == []


def test_only_an_all_reduce_over_one_axis_folds():
    with pytest.raises(ValueError, match="only an all_reduce over one axis folds"):
        folded(ring_all_gather())


@pytest.mark.parametrize("name", LIBRARY)
def test_json_gives_back_the_schedule(name: str):
    schedule = LIBRARY[name]()
    text = to_json(schedule)
    assert from_json(text) == schedule
    assert to_json(from_json(text)) == text
    assert len(text) <= 100_000


def test_a_ring_for_any_number_of_ranks_is_less_than_4_kib():
    """Its size does not depend on the ranks: nothing is bound yet."""
    assert len(to_json(ring_all_reduce())) <= 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no JSON"),
        ("[]", "a schedule must be an object"),
        ('{"schema": 2}', "schema 2 of a schedule is not known"),
        ('{"schema": 1}', "lacks 'name'"),
        ('{"schema":1,"name":"x","kind":"sing","axes":["r"],"chunks":1,"body":{"seq":[]}}', "'sing' is no collective"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":["add",1],"body":{"seq":[]}}', "is no expression"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":"q","body":{"seq":[]}}', "means nothing here"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":true,"body":{"seq":[]}}', "is no expression"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":1,"body":{"seq":3}}', "wrong shape"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":1,"body":' + '{"seq":[' * 70 + "]}" * 70 + "}", "nested more than 64"),
        ('{"schema":1,"name":"x","kind":"barrier","axes":["r"],"chunks":1,"body":' + "[" * 100_000, "this is no JSON"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_schedule_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        from_json(text)
