"""Cases whose answer fits on a line. B is a link's rate, L a latency, s a size; times are exact to the picosecond."""

import math

import numpy as np
import pytest

from busbw.hardware.fabrics import FatTree, GraphFabric, LinkRates, SingleSwitch
from busbw.hardware.links import NETWORK, LinkTable
from busbw.simulation import (
    Channel,
    Compute,
    Delay,
    Loop,
    Others,
    Receive,
    Send,
    Shift,
    Stream,
    Table,
    TaskProgram,
    simulate,
)

B = 50e9
L = 1e-6
PS = 1e-12
MIB = 1 << 20


def star(ranks, rate=B, latency_s=0.0):
    """One switch; each rank's two links have the latency, so a way has twice of it."""
    return SingleSwitch(ranks, LinkRates(rate, rate, 0.0, latency_s))


def line(rates, latency_s=0.0):
    """Switches in a row, a rank at each; the ranks' own links are so wide that they never count."""
    switches = len(rates) + 1
    rows = []
    for rank in range(switches):
        rows += [(rank, switches + rank, 1e15, 0.0, NETWORK), (switches + rank, rank, 1e15, 0.0, NETWORK)]
    for at, rate in enumerate(rates):
        a, b = switches + at, switches + at + 1
        rows += [(a, b, rate, latency_s, NETWORK), (b, a, rate, latency_s, NETWORK)]
    return GraphFabric(LinkTable.of(rows), switches, tuple(f"v{v}" for v in range(2 * switches)))


def flows(ranks, *pairs, **options):
    """One message a flow (source, destination, bytes, start in seconds), each of a stream of its own; who receives waits."""
    streams, channels = [], []
    for at, (src, dst, size, *rest) in enumerate(pairs):
        start, weight = (*rest, *(0.0, 1)[len(rest) :])
        send = (Delay(start), Send(f"c{at}", size)) if start else (Send(f"c{at}", size),)
        streams += [Stream(f"s{at}", send, np.array([src])), Stream(f"r{at}", (Receive(f"c{at}"),), np.array([dst]))]
        peers = Table(np.array([src]), np.array([[dst]]))
        channels.append(Channel(f"c{at}", f"s{at}", f"r{at}", peers, weight=weight, **options))
    return TaskProgram(ranks, tuple(streams), tuple(channels))


def arrivals_s(program, network, **given):
    """When each flow of `flows` arrived."""
    timeline = simulate(program, network, **given)
    return [timeline.ends_ps[2 * at + 1] * PS for at in range(len(program.channels))]


def exactly(time_s):
    """To the picosecond, rounding of a few rates allowed for."""
    return pytest.approx(time_s, abs=4 * PS, rel=1e-10)


def all_ranks(ranks, body, *channels):
    """A program of one stream that all ranks run."""
    return TaskProgram(ranks, (Stream("rank", body),), channels)


def ring_channel(ranks, **options):
    """From each rank to the next."""
    return Channel("next", "rank", "rank", Shift((ranks,), (1,)), **options)


def test_a_message_takes_its_bytes_and_the_latency_of_its_way():
    """s / B + 2 L."""
    assert arrivals_s(flows(2, (0, 1, MIB)), star(2, latency_s=L)) == [exactly(MIB / B + 2 * L)]


def test_a_message_without_bytes_takes_the_latency():
    """2 L."""
    assert arrivals_s(flows(2, (0, 1, 0)), star(2, latency_s=L)) == [exactly(2 * L)]


def test_two_flows_share_a_link():
    """Both get B / 2 at the receiver."""
    assert arrivals_s(flows(3, (0, 2, MIB), (1, 2, MIB)), star(3)) == [exactly(2 * MIB / B)] * 2


def test_a_short_flow_leaves_the_link_to_a_long_one():
    """The short one gets B / 2 until 2 s / B; then the long one has all of B: (s + 3 s) / B."""
    assert arrivals_s(flows(3, (0, 2, MIB), (1, 2, 3 * MIB)), star(3)) == [exactly(2 * MIB / B), exactly(4 * MIB / B)]


def test_a_flow_that_comes_later_takes_half_from_then_on():
    """After s / 2 at B the first has s / 2 left at B / 2: 3 s / 2B in all; the second then has s / 2 left: 2 s / B."""
    late = MIB / 2 / B
    found = arrivals_s(flows(3, (0, 2, MIB), (1, 2, MIB, late)), star(3))
    assert found == [exactly(1.5 * MIB / B), exactly(2 * MIB / B)]


def test_a_flow_takes_what_the_bottleneck_of_another_leaves():
    """Links A = 100, C = 400 GB/s in a row; f0 over both, f1 over A, f2 over C. A splits 50/50; f2 gets 350."""
    program = flows(3, (0, 2, MIB), (0, 1, MIB), (1, 2, MIB))
    assert arrivals_s(program, line([100e9, 400e9])) == [
        exactly(MIB / 50e9),
        exactly(MIB / 50e9),
        exactly(MIB / 350e9),
    ]


def test_a_parking_lot_gives_the_long_flow_the_share_of_its_fullest_link():
    """Three links; one flow over all, one over each: all get B / 2."""
    program = flows(4, (0, 3, MIB), (0, 1, MIB), (1, 2, MIB), (2, 3, MIB))
    assert arrivals_s(program, line([B, B, B])) == [exactly(2 * MIB / B)] * 4


def test_weights_divide_a_link():
    """Weight 3 beside 1: 3 B / 4 until 4 s / 3B, when the other has 2 s / 3 left for all of B: 2 s / B."""
    program = flows(3, (0, 2, MIB, 0.0, 3), (1, 2, MIB))
    assert arrivals_s(program, star(3)) == [exactly(4 * MIB / 3 / B), exactly(2 * MIB / B)]


def test_messages_cut_through():
    """Over five links: s / B once, not five times, and every latency."""
    assert arrivals_s(flows(6, (0, 5, MIB)), line([B] * 5, L)) == [exactly(MIB / B + 5 * L)]


def test_the_narrowest_link_of_a_way_counts():
    """s / min B."""
    assert arrivals_s(flows(4, (0, 3, MIB)), line([B, B / 7, B])) == [exactly(7 * MIB / B)]


def test_messages_of_one_channel_leave_one_after_another():
    """The k-th of n arrives at k s / B + 2 L; the last at n s / B + 2 L."""
    body = (Send("c0", MIB), Send("c0", MIB), Send("c0", MIB))
    program = TaskProgram(
        2,
        (Stream("s", body, np.array([0])), Stream("r", (Receive("c0"),) * 3, np.array([1]))),
        (Channel("c0", "s", "r", Table(np.array([0]), np.array([[1]]))),),
    )
    assert simulate(program, star(2, latency_s=L)).time_s == exactly(3 * MIB / B + 2 * L)


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_slots_bound_what_is_under_way(slots):
    """A message may leave when the one `slots` before it was received: n messages take n / slots turns of s / B + 2 L
    where these are longer than slots s / B, and n s / B + 2 L where not."""
    count, size, latency = 16, 50_000, 10e-6  # s / B = 1 us, 2 L = 20 us
    program = TaskProgram(
        2,
        (
            Stream("s", (Loop(count, (Send("c0", size),)),), np.array([0])),
            Stream("r", (Loop(count, (Receive("c0"),)),), np.array([1])),
        ),
        (Channel("c0", "s", "r", Table(np.array([0]), np.array([[1]])), slots=slots),),
    )
    turn, each = size / B + 2 * latency, size / B
    # The last of a turn's messages comes (slots - 1) s / B after its first.
    assert simulate(program, star(2, latency_s=latency)).time_s == exactly(count / slots * turn + (slots - 1) * each)


def test_a_channel_may_have_a_limit_of_its_own():
    """s over the limit, although the links have more."""
    assert arrivals_s(flows(2, (0, 1, MIB), rate_bytes_per_s=B / 4), star(2)) == [exactly(4 * MIB / B)]


def test_incast():
    """n - 1 senders of s each into one link: (n - 1) s / B."""
    program = flows(9, *((src, 8, MIB) for src in range(8)))
    assert arrivals_s(program, star(9)) == [exactly(8 * MIB / B)] * 8


@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_ring_all_reduce(ranks):
    """2 (n - 1) steps of s / n: 2 (n - 1) (s / (n B) + 2 L)."""
    chunk = 320 * 1024
    body = (Loop(2 * (ranks - 1), (Send("next", chunk), Receive("next"))),)
    found = simulate(all_ranks(ranks, body, ring_channel(ranks)), star(ranks, latency_s=L)).time_s
    assert found == pytest.approx(2 * (ranks - 1) * (chunk / B + 2 * L), rel=1e-9)


def test_direct_all_to_all():
    """Each rank sends s to n - 1 others at once: (n - 1) s / B + 2 L."""
    program = all_ranks(16, (Send("all", MIB), Receive("all")), Channel("all", "rank", "rank", Others((16,), 0)))
    assert simulate(program, star(16, latency_s=L)).time_s == exactly(15 * MIB / B + 2 * L)


def test_recursive_doubling():
    """log2 n exchanges of s: log2 n (s / B + 2 L)."""
    ranks = 16
    near = np.arange(ranks)
    steps = range(int(math.log2(ranks)))
    body = tuple(step for k in steps for step in (Send(f"x{k}", MIB), Receive(f"x{k}")))
    channels = [Channel(f"x{k}", "rank", "rank", Table(near, (near ^ 1 << k)[:, None])) for k in steps]
    found = simulate(all_ranks(ranks, body, *channels), star(ranks, latency_s=L)).time_s
    assert found == exactly(4 * (MIB / B + 2 * L))


def test_a_chain_passes_slices_on_as_they_come():
    """k hops, n slices of t each: (k - 1 + n) t, and k latencies."""
    hops, slices, size = 4, 10, 125_000  # t = 2.5 us
    streams, channels = [], []
    for rank in range(hops + 1):
        steps = ((Receive(f"c{rank - 1}"),) if rank else ()) + ((Send(f"c{rank}", size),) if rank < hops else ())
        streams.append(Stream(f"r{rank}", (Loop(slices, steps),), np.array([rank])))
        if rank < hops:
            peers = Table(np.array([rank]), np.array([[rank + 1]]))
            channels.append(Channel(f"c{rank}", f"r{rank}", f"r{rank + 1}", peers))
    program = TaskProgram(hops + 1, tuple(streams), tuple(channels))
    found = simulate(program, star(hops + 1, latency_s=L)).time_s
    assert found == exactly((hops - 1 + slices) * size / B + hops * 2 * L)


def test_communication_hides_behind_computing():
    """Two streams of a rank run at once: the longer one counts."""
    sends = Stream("comm", (Send("next", MIB), Receive("next")))
    ring = Channel("next", "comm", "comm", Shift((4,), (1,)))
    for compute_s in (5e-6, 50e-6):
        program = TaskProgram(4, (sends, Stream("compute", (Compute(compute_s),))), (ring,))
        assert simulate(program, star(4)).time_s == exactly(max(compute_s, MIB / B))


def test_the_last_rank_to_arrive_delays_a_ring():
    """All start at once but one, which is late by d: after n - 1 steps everybody has waited for it."""
    ranks, late, chunk = 4, 30e-6, 100_000
    start = np.zeros(ranks)
    start[2] = late
    body = (Loop(ranks - 1, (Send("next", chunk), Receive("next"))),)
    program = TaskProgram(ranks, (Stream("rank", body, start_s=start),), (ring_channel(ranks),))
    assert simulate(program, star(ranks)).time_s == exactly(late + (ranks - 1) * chunk / B)


def test_two_flows_through_one_spine_port_share_it_unless_sprayed():
    """Leaves of 2 with 2 spines: destinations 4 and 6 leave by one port by D-mod-k (both even): 2 s / B. Sprayed, each
    spine carries half of both: s / B."""
    tree = FatTree(8, (2, 4), (1, 2), (1, 1), LinkRates(B, B))
    program = flows(8, (0, 4, MIB), (1, 6, MIB))
    assert arrivals_s(program, tree) == [exactly(2 * MIB / B)] * 2
    assert arrivals_s(program, tree, routing="spray") == [exactly(MIB / B)] * 2


def test_an_oversubscribed_leaf_halves_what_leaves_it():
    """4 ranks below a leaf with 2 uplinks: a shift by a leaf takes 2 s / B."""
    tree = FatTree(16, (4, 4), (1, 2), (1, 1), LinkRates(B, B))
    channel = Channel("far", "rank", "rank", Shift((16,), (4,)))
    assert simulate(all_ranks(16, (Send("far", MIB), Receive("far")), channel), tree).time_s == exactly(2 * MIB / B)
