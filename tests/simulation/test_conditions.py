"""What slow ranks, links that fail and others' traffic do, by times that can be derived."""

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.hardware.fabrics import FatTree, LinkRates, SingleSwitch
from busbw.simulation import (
    Background,
    Channel,
    Compute,
    Conditions,
    LinkFailure,
    Loop,
    Receive,
    Send,
    Shift,
    StallError,
    Stream,
    Table,
    TaskProgram,
    simulate,
)

B = 50e9
MIB = 1 << 20
TREE = FatTree(8, (2, 4), (1, 2), (1, 1), LinkRates(B, B))
"""Leaves of 2, two spines; D-mod-k sends to even ranks over spine 0."""


def one_message(ranks, src, dst, size=MIB):
    """A single transfer."""
    return TaskProgram(
        ranks,
        (Stream("s", (Send("c", size),), np.array([src])), Stream("r", (Receive("c"),), np.array([dst]))),
        (Channel("c", "s", "r", Table(np.array([src]), np.array([[dst]]))),),
    )


def ring(ranks, rounds, size=MIB, compute_s=0.0):
    """Rounds of computing, sending to the next and waiting for the one before."""
    body = (Loop(rounds, (Compute(compute_s), Send("next", size), Receive("next"))),)
    return TaskProgram(ranks, (Stream("rank", body),), (Channel("next", "rank", "rank", Shift((ranks,), (1,))),))


def test_a_slow_rank_computes_and_copies_slower():
    """At 0.8 a rank takes t / 0.8 to compute, every round, and its links carry 0.8 B, in and out."""
    star, slow = SingleSwitch(4, LinkRates(B, B)), Conditions(slow_ranks={2: 0.8})
    found = simulate(ring(4, 3, 0, compute_s=1e-5), star, conditions=slow)
    assert found.time_s == pytest.approx(3 * 1e-5 / 0.8, rel=1e-5)
    assert found.folded == 1
    for src, dst, part in ((2, 0, 0.8), (0, 2, 0.8), (0, 1, 1.0)):
        assert simulate(one_message(4, src, dst), star, conditions=slow).time_s == pytest.approx(MIB / B / part)


def test_a_degraded_link_carries_less_in_both_directions():
    """Half the rate on leaf0 - spine0."""
    halved = Conditions(degraded_links={"leaf0 -> spine0": 0.5})
    for src, dst in ((0, 4), (4, 0)):
        assert simulate(one_message(8, src, dst), TREE, conditions=halved).time_s == pytest.approx(2 * MIB / B)
    assert simulate(one_message(8, 0, 5), TREE, conditions=halved).time_s == pytest.approx(MIB / B)


def test_routes_go_round_a_link_that_is_down():
    """With spine 0 out of reach of leaf 0, its two flows to even ranks share spine 1."""
    program = TaskProgram(
        8,
        (Stream("s", (Send("c", MIB),), np.array([0, 1])), Stream("r", (Receive("c"),), np.array([4, 7]))),
        (Channel("c", "s", "r", Table(np.array([0, 1]), np.array([[4], [7]]))),),
    )
    assert simulate(program, TREE).time_s == pytest.approx(MIB / B)
    down = Conditions(failed_links=(LinkFailure("leaf0 -> spine0"),))
    assert simulate(program, TREE, conditions=down).time_s == pytest.approx(2 * MIB / B)


def test_a_link_that_fails_later_holds_messages_until_routes_change():
    """Down after 5 us, round it 30 us later: s / B + 30 us. Nobody else crosses spine 1."""
    fails = Conditions(failed_links=(LinkFailure("leaf0 -> spine0", at_s=5e-6, reroute_s=30e-6),))
    assert simulate(one_message(8, 0, 4), TREE, conditions=fails).time_s == pytest.approx(MIB / B + 30e-6)
    assert simulate(one_message(8, 0, 5), TREE, conditions=fails).time_s == pytest.approx(MIB / B)


def test_a_flap_shorter_than_any_reaction_holds_messages_until_it_is_over():
    """Down from 5 to 12 us: s / B + 7 us."""
    flap = Conditions(failed_links=(LinkFailure("leaf0 -> spine0", at_s=5e-6, reroute_s=1e-3, until_s=12e-6),))
    assert simulate(one_message(8, 0, 4), TREE, conditions=flap).time_s == pytest.approx(MIB / B + 7e-6)


def test_a_failure_changes_no_time_that_steady_state_counted():
    """Fast-forward stops before the network changes."""
    fails = Conditions(failed_links=(LinkFailure("leaf0 -> spine0", at_s=1e-4, reroute_s=1e-3),))
    program = ring(8, 500, 65_536)
    fast, slow = (simulate(program, TREE, conditions=fails, fast_forward=fast) for fast in (True, False))
    assert fast.end_ps == slow.end_ps
    assert fast.messages_run < slow.messages_run == slow.messages
    assert slow.time_s == pytest.approx(500 * 65_536 / B + 1e-3, rel=2e-2)


def test_background_traffic_takes_its_share_and_is_not_waited_for():
    """Others ask for 3/4 B of the receiver's link; fair is half: 2 s / B. Then they go on without us."""
    others = Conditions(background=(Background(1, 2, 0.75 * B),))
    star = SingleSwitch(3, LinkRates(B, B))
    assert simulate(one_message(3, 0, 2), star, conditions=others).time_s == pytest.approx(2 * MIB / B)
    few = Conditions(background=(Background(1, 2, 0.25 * B),))
    assert simulate(one_message(3, 0, 2), star, conditions=few).time_s == pytest.approx(MIB / 0.75 / B)


def test_one_seed_gives_one_answer_and_seeds_differ():
    """Speeds and starts are drawn from the seed alone."""
    star, program = SingleSwitch(16, LinkRates(B, B)), ring(16, 5, compute_s=1e-5)
    times = [
        simulate(program, star, conditions=Conditions(speed_spread=0.09, start_spread_s=1e-6, seed=seed)).end_ps
        for seed in (1, 1, 2, 3)
    ]
    assert times[0] == times[1]
    assert len(set(times)) == 3
    assert min(times) > simulate(program, star).end_ps


def test_a_spread_of_speeds_slows_messages_as_a_slow_rank_does():
    """One message ends with the slower of its two ends; one that is fast carries no more than its link."""
    star = SingleSwitch(2, LinkRates(B, B))
    for seed in range(4):
        spread = Conditions(speed_spread=0.3, seed=seed)
        slower = min(1.0, *spread.drawn(2))
        took = simulate(one_message(2, 0, 1), star, conditions=spread).time_s
        assert took == pytest.approx(MIB / (B * slower), rel=1e-6)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("leaf0 -> spine9", "no spine9 in this fabric"),
        ("leaf0 -> leaf1", "is not there; leaf0 has leaf0 -> "),
        ("9999", "links are numbered from 0 to 31"),
        ("leaf0", "write two ends"),
    ],
)
def test_a_link_that_is_not_there_is_named_with_links_that_are(link, said):
    """As users mistype them."""
    with pytest.raises(InputError, match=said):
        simulate(one_message(8, 0, 4), TREE, conditions=Conditions(degraded_links={link: 0.5}))


def test_no_way_left_is_said_with_its_ends():
    """The only link of rank 0."""
    down = Conditions(failed_links=(LinkFailure("nic0 -> leaf0"),))
    with pytest.raises(InputError, match=r"no way leads from rank 0 to rank 4 once nic0 -> leaf0.* is down"):
        simulate(one_message(8, 0, 4), TREE, conditions=down)


def test_adaptive_routing_avoids_what_d_mod_k_collides_on():
    """Two flows to even ranks from one leaf: D-mod-k puts both on spine 0; who looks takes both spines."""
    program = TaskProgram(
        8,
        (Stream("s", (Send("c", MIB),), np.array([0, 1])), Stream("r", (Receive("c"),), np.array([4, 6]))),
        (Channel("c", "s", "r", Table(np.array([0, 1]), np.array([[4], [6]]))),),
    )
    assert simulate(program, TREE).time_s == pytest.approx(2 * MIB / B)
    assert simulate(program, TREE, routing="adaptive").time_s == pytest.approx(MIB / B)


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(slow_ranks={10: 0.8}),
        Conditions(slow_ranks={10: 0.8, 99: 0.5}),
        Conditions(degraded_links={"leaf2 -> spine0": 0.3}),
        Conditions({10: 0.8}, failed_links=(LinkFailure("leaf2 -> spine0", at_s=3e-4, reroute_s=1e-4),)),
        Conditions({10: 0.8}, failed_links=(LinkFailure("leaf2 -> spine0", at_s=3e-4, reroute_s=1e-4, until_s=2e-3),)),
        Conditions(degraded_links={"nic27 -> leaf3": 0.3}),
    ],
)
@pytest.mark.parametrize("algorithm", ["hierarchical_all_reduce", "direct_all_to_all"])
def test_faults_on_some_rails_leave_the_others_alike(conditions, algorithm):
    """16 nodes of 8 on 8 rails, leaves of 8: GPUs that nothing is wrong with anywhere turn among themselves; every rank ends as it does alone."""
    cluster, _ = find_cluster("dgx-h100", 16, {"switch.ports": "16"})
    schedule = LIBRARY[algorithm]()
    bound = schedule.bind(16, 8) if len(schedule.axes) == 2 else schedule.bind(128)
    folded = simulate(bound, cluster, size_bytes=1 << 24, conditions=conditions, record=False)
    plain = simulate(
        bound, cluster, size_bytes=1 << 24, conditions=conditions, record=False, fold=False, fast_forward=False
    )
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    if algorithm == "hierarchical_all_reduce":
        assert folded.messages < plain.messages / 2


def test_on_three_levels_rails_fold_too():
    """Leaves of 4 nodes, pods of one leaf a rail: ports towards cores are picked by rail as well, and turn with it."""
    cluster, _ = find_cluster("dgx-h100", 32, {"switch.ports": "16", "fabric.levels": "3"})
    bound = LIBRARY["hierarchical_all_reduce"]().bind(32, 8)
    for conditions in (Conditions({10: 0.8}), Conditions(degraded_links={"leaf2 -> spine0.0": 0.3}), Conditions()):
        given = {"size_bytes": 1 << 24, "conditions": conditions, "record": False}
        folded, plain = (
            simulate(bound, cluster, **given, **how) for how in ({}, {"fold": False, "fast_forward": False})
        )
        assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
        assert folded.messages < plain.messages


def test_more_pairs_of_ranks_than_memory_holds_are_refused_before_they_are_made(monkeypatch):
    """A ring of four is four pairs."""
    monkeypatch.setattr("busbw.simulation.expansion._MOST_CONNECTIONS", 3)
    star = SingleSwitch(4, LinkRates(B, B))
    with pytest.raises(InputError, match=r"4 pairs of ranks .* 3 are simulated at most"):
        simulate(ring(4, 1), star, fold=False)
    assert simulate(ring(4, 1), star).time_s > 0


@pytest.mark.parametrize(
    ("conditions", "size", "said"),
    [
        (
            Conditions(failed_links=(LinkFailure("leaf0 -> nic3", 1e-6, None),)),
            MIB,
            "is down, and routes never change",
        ),
        (Conditions(), (1 << 60) - 1, "longer than the 106 days"),
    ],
)
def test_a_stall_names_the_link_first_and_what_is_wrong_with_it(conditions, size, said):
    """2^60 B / 12.5 MB/s are 9.2e10 s, and int64 picoseconds end after 9.2e6 s."""
    star = SingleSwitch(4, LinkRates(12.5e6, 12.5e6))
    with pytest.raises(StallError, match=rf"^nothing moves any more at [0-9.]+ us: [^;]*which stands before .*{said}"):
        simulate(LIBRARY["ring_all_reduce"]().bind(4), star, size_bytes=size, conditions=conditions)


@pytest.mark.parametrize("at_s", [1e30, float("nan"), float("inf")])
def test_times_that_the_clock_does_not_hold_are_refused(at_s):
    """Instead of wrapping into the past."""
    with pytest.raises(ValueError, match=r"times are 0 to 9\.2e\+06 s"):
        LinkFailure("leaf0 -> spine1", at_s)


@pytest.mark.parametrize("part", [1e-300, 1e-15, 1e300])
def test_speeds_beyond_what_integers_hold_are_refused(part):
    """Instead of a rate that has become 0 or negative."""
    with pytest.raises(ValueError, match=r"1e-05 to 100000 are simulated"):
        Conditions({0: part})
