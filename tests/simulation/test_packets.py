"""Packets over the routes of fabrics and clusters: textbook cases, with the answer worked out in the test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.hardware.fabrics import FatTree, GraphFabric, LinkRates, SingleSwitch, Torus
from busbw.hardware.links import NETWORK, LinkTable
from busbw.hardware.routing import ecmp
from busbw.simulation import (
    PACKET_ROUTINGS,
    TRANSPORTS,
    Channel,
    PacketFlows,
    Receive,
    Send,
    Shift,
    StallError,
    Stream,
    TaskProgram,
    packet_settings,
    simulate,
    simulate_packets,
)

RATE = 12.5e9
LATENCY_S = 1e-6
RATES = LinkRates(RATE, RATE, 0.0, LATENCY_S)
SWITCH = SingleSwitch(16, RATES)
TREE = FatTree(64, (4, 4, 4), (1, 4, 4), (1, 1, 1), RATES)
"""Three levels, non-blocking."""


def sending_s(size_bytes: float) -> float:
    return size_bytes / RATE


@pytest.mark.parametrize(("dst", "hops"), [(1, 2), (5, 4), (63, 6)])
def test_one_packet_is_stored_and_forwarded_at_each_hop(dst, hops):
    """h hops of a three-level tree cost h times sending and latency; 4096 bytes of payload and 64 of header."""
    settings = packet_settings("roce")
    timeline = simulate_packets(PacketFlows.of(0, dst, 4096), TREE, transport=settings, routing="d-mod-k")
    assert timeline.delivered_s[0] == pytest.approx(hops * (sending_s(4160) + LATENCY_S), rel=1e-9)
    assert timeline.completed_s[0] == pytest.approx(
        timeline.delivered_s[0] + hops * (sending_s(64) + LATENCY_S), rel=1e-9
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_long_flow_takes_what_its_link_carries_but_for_headers(transport):
    """10 MB at 12.5 GB/s are 0.8 ms; 3 % are allowed beside headers and, for receiver-driven ones, the rate of pulls."""
    settings = packet_settings(transport)
    if settings.sender in ("ndp", "hpcc", "swift"):
        settings = replace(settings, window_packets=40)  # of a round trip: 4 latencies and sending, about 15 packets
    timeline = simulate_packets(PacketFlows.of(0, 1, 10_000_000), SWITCH, transport=settings, routing="d-mod-k")
    wire_s = sending_s(10_000_000) * settings.packet_bytes / settings.payload_bytes / (settings.pull_rate or 1)
    wire_s /= settings.eta if settings.sender == "hpcc" else 1
    assert timeline.ended == "done"
    assert wire_s <= timeline.last_s * 1.03
    assert timeline.last_s <= wire_s * 1.03


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", PACKET_ROUTINGS)
def test_every_byte_arrives(transport, routing):
    """Whatever is trimmed, dropped, paused or out of order: what was sent is delivered, once."""
    rng = np.random.default_rng(7)
    src, dst = rng.integers(0, 64, 60), rng.integers(0, 64, 60)
    sizes = rng.integers(0, 60_000, 60)
    settings = packet_settings(transport)
    if routing in ("spray", "random", "adaptive"):
        settings = replace(settings, in_order=False)
    timeline = simulate_packets(PacketFlows.of(src, dst, sizes), TREE, transport=settings, routing=routing)
    assert timeline.ended == "done"
    assert (timeline.flow_counts["delivered_bytes"] == sizes).all()
    assert (timeline.completed_s >= timeline.delivered_s).all()
    assert (timeline.utilisation() <= 1 + 1e-9).all()


@pytest.mark.parametrize("ranks", [2, 16])
def test_flows_and_packets_agree_on_a_ring_that_nobody_shares(ranks):
    """Each rank sends to the next: flows take size / rate, packets headers and their answers' 1.5 % besides."""
    settings = packet_settings("roce")
    wire = 20_000_000 * settings.packet_bytes // settings.payload_bytes
    body = (Send("next", wire), Receive("next"))
    program = TaskProgram(ranks, (Stream("rank", body),), (Channel("next", "rank", "rank", Shift((ranks,), (1,))),))
    src = np.arange(ranks)
    flows = PacketFlows.of(src, (src + 1) % ranks, 20_000_000)
    packets = simulate_packets(flows, SWITCH, transport=settings, routing="d-mod-k")
    fluid_s = float(simulate(program, SingleSwitch(ranks, RATES)).ends_ps.max()) * 1e-12
    assert fluid_s <= packets.last_s <= 1.03 * fluid_s


def test_incast_ends_when_the_receivers_link_has_carried_all():
    """15 senders of 1 MB: 15 MB of payload and headers over one link, pulled at 0.99 of it, and a round trip."""
    flows = PacketFlows.of(range(1, 16), 0, 1_000_000)
    settings = packet_settings("ndp")
    timeline = simulate_packets(flows, SWITCH, transport=settings)
    packets = 15 * -(-1_000_000 // settings.payload_bytes)
    link_s = sending_s(packets * settings.packet_bytes)
    round_trip_s = 4 * LATENCY_S + 2 * sending_s(settings.packet_bytes + settings.control_bytes)
    assert link_s < timeline.last_s <= link_s / settings.pull_rate + 3 * round_trip_s
    assert timeline.flow_counts["trimmed_packets"].sum() > 0


def test_flows_whose_hashes_collide_get_half():
    """Two flows from one leaf to another: on one uplink each gets half, on two each gets all."""
    labels = np.arange(40)
    routes = ecmp(TREE, np.full(40, 0), np.full(40, 16), labels).links
    other = ecmp(TREE, np.full(40, 1), np.full(40, 17), labels).links
    shared = [set(one[:-1]) & set(two[:-1]) for one, two in zip(routes[:, 1:-1], other[:, 1:-1], strict=True)]
    flows = PacketFlows.of([0, 1], [16, 17], 4_000_000)
    last = {}
    for meets in (True, False):
        label = next(int(labels[i]) for i, links in enumerate(shared) if bool(links) is meets)
        last[meets] = simulate_packets(
            flows, TREE, transport="roce", routing="ecmp", flow_label=np.array([label, label])
        ).last_s
    assert last[True] / last[False] == pytest.approx(2, rel=0.05)


def test_spray_beats_hashing_on_a_permutation():
    """A full-bisection tree carries any permutation when packets spread; hashed flows collide."""
    src = np.arange(64)
    dst = (src + 21) % 64
    flows = PacketFlows.of(src, dst, 500_000)
    spread = simulate_packets(flows, TREE, transport="ndp", routing="spray").last_s
    hashed = simulate_packets(flows, TREE, transport="roce", routing="ecmp").last_s
    assert hashed > 1.5 * spread


def test_a_ring_of_links_without_credit_is_named():
    """A torus of one ring, flows over half of it both ways, buffers of one packet: a cycle of links that wait."""
    ring = Torus(5, (5,), RATES)
    src = np.arange(5)
    flows = PacketFlows.of(src, (src + 2) % 5, 200_000)
    settings = packet_settings("infiniband", credit_packets=1)
    with pytest.raises(StallError, match=r"stands still.*->.*->"):
        simulate_packets(flows, ring, transport=settings, routing="d-mod-k")
    timeline = simulate_packets(flows, ring, transport=settings, routing="d-mod-k", partial=True)
    assert timeline.ended == "stalled"
    assert len(timeline.waiting_links) == 5


def test_limits_return_what_is_known():
    flows = PacketFlows.of(0, 1, 10_000_000)
    timeline = simulate_packets(flows, SWITCH, end_at_s=100e-6)
    assert timeline.ended == "time limit"
    assert np.isnan(timeline.completed_s[0])
    assert 0 < timeline.flow_counts["delivered_bytes"][0] < 10_000_000
    assert simulate_packets(flows, SWITCH, most_events=1000).ended == "event limit"
    assert simulate_packets(PacketFlows.of(0, 1, 10**9), SWITCH, most_bytes=1).ended == "memory limit"


@pytest.mark.parametrize(
    ("flows", "network", "said"),
    [
        (PacketFlows.of(0, 99, 1), SWITCH, "endpoints 0 to 15"),
        (PacketFlows.of(0, 1, 1, lane=1), SWITCH, "lane"),
    ],
)
def test_wrong_flows_are_named(flows, network, said):
    with pytest.raises(InputError, match=said):
        simulate_packets(flows, network)


def joined(*rows):
    """A graph of two NIC ports and two switches in a row; rows: rate of each cable."""
    ends = [(0, 2), (2, 3), (3, 1)]
    table = []
    for (a, b), rate in zip(ends, rows, strict=False):
        table += [(a, b, rate, LATENCY_S, NETWORK), (b, a, rate, LATENCY_S, NETWORK)]
    return GraphFabric(LinkTable.of(table), 2, ("a", "b", "left", "right"))


@pytest.mark.parametrize("routing", ["d-mod-k", "ecmp", "spray"])
def test_what_cannot_be_reached_is_named(routing):
    with pytest.raises(InputError, match="no way leads from"):
        simulate_packets(PacketFlows.of(0, 1, 1), joined(RATE, RATE), routing=routing)


def test_a_link_without_bandwidth_is_named():
    with pytest.raises(InputError, match="link left -> right has no bandwidth, nor have 1 others"):
        simulate_packets(PacketFlows.of(0, 1, 1), joined(RATE, 0.0, RATE))


@pytest.mark.parametrize("transport", ["roce", "infiniband"])
def test_twice_the_rate_without_latency_takes_half(transport):
    """Sending times halve, and nothing else takes time: so does the end of every flow, to the picosecond."""
    rng = np.random.default_rng(3)
    src, dst = rng.permutation(16), rng.integers(0, 16, 16)
    flows = PacketFlows.of(src, dst, rng.integers(1, 40, 16) * 4096)
    settings = packet_settings(transport, header_bytes=64)
    slow, fast = (
        simulate_packets(flows, SingleSwitch(16, LinkRates(rate, rate)), transport=settings, routing="d-mod-k")
        for rate in (12.5e9, 25e9)
    )
    assert slow.completed_s == pytest.approx(2 * fast.completed_s, rel=1e-12)


def test_ctrl_c_returns_what_is_known():
    def interrupt(_events, _simulated_s):
        raise KeyboardInterrupt

    flows = PacketFlows.of(range(1, 16), 0, 4_000_000_000)
    timeline = simulate_packets(flows, SWITCH, transport="infiniband", routing="d-mod-k", progress=interrupt)
    assert timeline.ended == "interrupted"
    assert 0 < timeline.flow_counts["delivered_bytes"].sum() < flows.size_bytes.sum()


@pytest.mark.parametrize(
    ("wrong", "said"), [({"transport": "tcp"}, "known: ndp"), ({"routing": "bgp"}, "known: d-mod-k")]
)
def test_wrong_words_are_answered_by_the_right_ones(wrong, said):
    with pytest.raises(InputError, match=said):
        simulate_packets(PacketFlows.of(0, 1, 1), SWITCH, **wrong)


def test_the_same_seed_gives_the_same_bytes():
    src = np.arange(64)
    flows = PacketFlows.of(src, (src + 33) % 64, 300_000)
    one, same, other = (
        simulate_packets(flows, TREE, transport="eqds", routing="spray", seed=seed) for seed in (3, 3, 4)
    )
    assert one.completed_s.tobytes() == same.completed_s.tobytes()
    assert all(column.tobytes() == same.link_counts[name].tobytes() for name, column in one.link_counts.items())
    assert one.completed_s.tobytes() != other.completed_s.tobytes()


def test_samples_show_the_queue_that_an_incast_builds():
    """Line rate without pause: 7 of 8 packets that come at a time wait before the receiver's link."""
    flows = PacketFlows.of(range(1, 9), 0, 400_000)
    settings = packet_settings("roce", pause_above_packets=10_000, resume_below_packets=9_000)
    timeline = simulate_packets(flows, SWITCH, transport=settings, routing="d-mod-k", sample_every_s=5e-6)
    queued = timeline.queued_bytes.max(1)
    begun = timeline.sample_s < 30e-6
    growth = np.polyfit(timeline.sample_s[begun], queued[begun], 1)[0]
    assert growth == pytest.approx(7 * RATE, rel=0.1)
    assert queued.max() <= timeline.link_counts["most_queued_bytes"].max()


def test_flows_of_a_cluster_cross_nodes_and_stay_inside():
    """GPUs of one node over NVLink, of others over NICs; the links are the cluster's own, in its numbers."""
    cluster, _ = find_cluster("dgx-h100", 4)
    flows = PacketFlows.of([0, 0, 8], [1, 17, 25], 1_000_000)
    for routing in ("d-mod-k", "spray"):
        timeline = simulate_packets(flows, cluster, transport="ndp", routing=routing)
        assert timeline.ended == "done"
        assert timeline.durations_s[0] < timeline.durations_s[1]
        wire = 1_000_000 / cluster.nic_bytes_per_s
        assert timeline.durations_s[1] >= wire
    used = simulate_packets(flows, cluster, routing="d-mod-k").link_ids
    there = cluster.routes(flows.src, flows.dst, how="d-mod-k").links
    assert set(there[there >= 0]) <= set(used)
