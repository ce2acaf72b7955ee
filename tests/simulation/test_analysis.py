"""Critical path, exposed communication and load of links, on runs small enough to be counted by hand."""

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware.fabrics import FatTree, LinkRates, SingleSwitch
from busbw.simulation import (
    Channel,
    Compute,
    Conditions,
    LinkFailure,
    Loop,
    Receive,
    Send,
    Shift,
    Stream,
    Table,
    TaskProgram,
    causes,
    critical_path,
    exposure,
    link_load,
    simulate,
    written_out,
)

B, L = 50e9, 1e-6
MIB = 1 << 20


def ring(ranks, rounds, size=MIB):
    """Rounds of a message to the next and one from the one before."""
    body = (Loop(rounds, (Send("next", size), Receive("next"))),)
    return TaskProgram(ranks, (Stream("rank", body),), (Channel("next", "rank", "rank", Shift((ranks,), (1,))),))


def star(ranks, latency_s=L):
    """One switch."""
    return SingleSwitch(ranks, LinkRates(B, B, 0.0, latency_s))


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("fold", [True, False])
def test_a_ring_s_path_is_its_rounds(fold, fast_forward):
    """k rounds of s / B on a link and 2 L of latency, whether rounds were run or counted."""
    timeline = simulate(ring(8, 100), star(8), fold=fold, fast_forward=fast_forward)
    path = critical_path(timeline)
    assert len(path.rows) == 100
    assert path.shares_s["latency"] == pytest.approx(100 * 2 * L)
    assert sum(path.shares_s.values()) == pytest.approx(timeline.time_s, abs=1e-12)
    on_links = {name: s for name, s in path.shares_s.items() if "->" in name}
    assert sum(on_links.values()) == pytest.approx(100 * MIB / B)


def test_periods_that_were_counted_are_written_out_as_they_would_have_run():
    """Row by row the same as without fast-forward: times, channels, and what each waited for."""
    fast, slow = (simulate(ring(5, 40), star(5), fold=False, fast_forward=fast) for fast in (True, False))
    assert fast.repeats
    a, b = written_out(fast), written_out(slow)
    for name in ("channel", "posted_ps", "begin_ps", "end_ps", "size_bytes", "bottleneck", "cause"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_the_path_names_the_rank_that_computes_longest():
    """Ranks compute 10 us, rank 2 takes twice as long: then its message."""
    body = (Compute(10e-6), Send("next", MIB), Receive("next"))
    program = TaskProgram(4, (Stream("rank", body),), (Channel("next", "rank", "rank", Shift((4,), (1,))),))
    path = critical_path(simulate(program, star(4), conditions=Conditions(slow_ranks={2: 0.5})))
    assert path.shares_s["rank 2 computing"] == pytest.approx(20e-6)
    assert path.longest == "nic2 -> leaf0"


def test_communication_is_exposed_where_nothing_computes():
    """30 us of computing beside s / B = 21 us of message: hidden but for its latency's end. With 10 us: the rest is exposed."""
    for compute_s in (30e-6, 10e-6):
        streams = (Stream("comm", (Send("next", MIB), Receive("next"))), Stream("compute", (Compute(compute_s),)))
        program = TaskProgram(4, streams, (Channel("next", "comm", "comm", Shift((4,), (1,))),))
        found = exposure(simulate(program, star(4), fold=False))
        assert found.computing_s == pytest.approx([compute_s] * 4)
        assert found.communicating_s == pytest.approx([MIB / B + 2 * L] * 4)
        assert found.exposed_s == pytest.approx([max(0.0, MIB / B + 2 * L - compute_s)] * 4, abs=1e-12)


def test_links_are_busy_while_they_carry():
    """One message over the first half of the time, then computing as long: its links at 1, then at 0."""
    streams = (
        Stream("s", (Send("c", MIB), Compute(2 * MIB / B)), np.array([0])),
        Stream("r", (Receive("c"),), np.array([1])),
    )
    program = TaskProgram(2, streams, (Channel("c", "s", "r", Table(np.array([0]), np.array([[1]]))),))
    timeline = simulate(program, star(2, 0.0))
    links, load = link_load(timeline, bins=4)
    assert [timeline.network.link_name(int(link)) for link in links] == ["nic0 -> leaf0", "leaf0 -> nic1"]
    assert load == pytest.approx(np.array([[1, 1, 0, 0]] * 2), abs=1e-6)
    used, part = timeline.utilisation()
    assert np.array_equal(used, links)
    assert part == pytest.approx([0.5, 0.5])


def test_bytes_on_links_are_those_of_messages_folded_or_not():
    """Each link of a ring carries what its rank sends."""
    for fold in (True, False):
        _, load = simulate(ring(8, 100), star(8), fold=fold).link_bytes()
        assert set(load.tolist()) == {100 * MIB}


def test_causes_are_ranked_by_what_the_run_gains_without_them():
    """A link down for 30 us on the way costs more than a rank that is slow elsewhere."""
    tree = FatTree(8, (2, 4), (1, 2), (1, 1), LinkRates(B, B))
    streams = (Stream("s", (Send("c", MIB),), np.array([0])), Stream("r", (Receive("c"),), np.array([4])))
    program = TaskProgram(8, streams, (Channel("c", "s", "r", Table(np.array([0]), np.array([[4]]))),))
    down = LinkFailure("leaf0 -> spine0", at_s=5e-6, reroute_s=30e-6)
    conditions = Conditions(slow_ranks={1: 0.5}, failed_links=(down,))
    found = causes(program, tree, conditions, simulate(program, tree, conditions=conditions))
    assert [(c.kind, c.name) for c in found] == [
        ("failed_link", "leaf0 -> spine0 down"),
        ("slow_rank", "rank 1 at 0.5 of its speed"),
    ]
    assert [c.saves_s for c in found] == [pytest.approx(30e-6), pytest.approx(0.0)]


def test_without_tasks_there_is_no_path():
    """The message says how to get one."""
    with pytest.raises(InputError, match="record=True"):
        critical_path(simulate(ring(4, 3), star(4), record=False))
