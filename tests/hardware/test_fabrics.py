"""Fabrics and routing: laws that hold for every kind and size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.hardware.fabrics import (
    DragonflyPlus,
    FatTree,
    GraphFabric,
    LinkRates,
    NvlinkDomains,
    RailOptimised,
    SingleSwitch,
    Torus,
    fat_tree_shape,
)
from busbw.hardware.links import LinkTable
from busbw.hardware.routing import candidates, d_mod_k, ecmp, least_loaded, spray

RATES = LinkRates(50e9, 100e9, 1e-6, 2e-6)


def graph_of(fabric):
    return GraphFabric(fabric.link_table(), fabric.slots, tuple(fabric.vertex_name(v) for v in range(fabric.vertices)))


@st.composite
def fat_trees(draw):
    levels = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    down = tuple(draw(st.integers(1, 4)) for _ in range(levels))
    up = (draw(st.integers(1, 2)), *(draw(small) for _ in range(levels - 1)))
    parallel = tuple(draw(st.integers(1, 2)) for _ in range(levels))
    return FatTree(math.prod(down), down, up, parallel, RATES)


@st.composite
def rails(draw):
    rails, nodes, ports = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.sampled_from([4, 6, 8]))
    try:
        return NvlinkDomains(nodes, rails, draw(st.integers(1, 3)), ports, RATES)
    except ValueError:  # does not fit three levels of so small switches
        return NvlinkDomains(1, rails, 1, 8, RATES)


@st.composite
def dragonflies(draw):
    groups, leaves, spines, ports = (draw(st.integers(1, 4)) for _ in range(4))
    slots = groups * leaves * ports
    return DragonflyPlus(slots, groups, leaves, spines, ports, draw(st.integers(1, 3)), RATES)


@st.composite
def tori(draw):
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    return Torus(math.prod(shape), shape, RATES)


FABRICS = st.one_of(fat_trees(), rails(), dragonflies(), tori())


def all_pairs(fabric):
    src, dst = np.divmod(np.arange(fabric.endpoints**2), fabric.endpoints)
    return src, dst


@given(FABRICS, st.sampled_from(["d_mod_k", "ecmp", "polarised", "least_loaded"]))
def test_every_route_is_a_shortest_path_of_links_that_exist(fabric, how):
    """From source to destination, each link beginning where the one before ends.

    Shortest: as long as breadth-first search on the table of links finds, which knows nothing of the kind of fabric.
    """
    src, dst = all_pairs(fabric)
    keep = np.random.default_rng(1).permutation(len(src))[:200]
    src, dst = src[keep], dst[keep]
    routes = {
        "d_mod_k": lambda: d_mod_k(fabric, src, dst),
        "ecmp": lambda: ecmp(fabric, src, dst, 7),
        "polarised": lambda: ecmp(fabric, src, dst, 7, polarised=True),
        "least_loaded": lambda: least_loaded(fabric, src, dst, np.zeros(fabric.links)),
    }[how]()
    table, distances = fabric.link_table(), graph_of(fabric)
    for links, one, other in zip(routes.links, fabric.slot(src), fabric.slot(dst), strict=True):
        path = links[links >= 0]
        assert len(path) == distances.distances(int(other))[one] or isinstance(fabric, Torus)
        at = one
        for link in path:
            assert table.src[link] == at
            at = table.dst[link]
        assert at == other


@given(tori())
def test_a_route_on_a_torus_takes_the_shorter_way_round_in_each_dimension(fabric):
    src, dst = all_pairs(fabric)
    one, other = (np.array(np.unravel_index(end, fabric.shape)) for end in (src, dst))
    sizes = np.array(fabric.shape)[:, None]
    ahead = (other - one) % sizes
    assert (d_mod_k(fabric, src, dst).lengths == np.minimum(ahead, sizes - ahead).sum(0)).all()


@given(FABRICS)
def test_links_come_in_cables_of_two_directions_and_every_id_is_one_link(fabric):
    table = fabric.link_table()
    assert np.array_equal(table.src[::2], table.dst[1::2])
    assert np.array_equal(table.dst[::2], table.src[1::2])
    assert np.array_equal(table.bandwidth_bytes_per_s[::2], table.bandwidth_bytes_per_s[1::2])
    assert table.src.min(initial=0) >= 0
    assert table.src.max(initial=0) < fabric.vertices
    assert len({fabric.vertex_name(v) for v in range(fabric.vertices)}) == fabric.vertices


@given(FABRICS)
def test_parts_of_a_sprayed_flow_sum_to_one_over_each_hop(fabric):
    """Nothing is lost on the way, and what enters a vertex leaves it."""
    src, dst = all_pairs(fabric)
    src, dst = src[:100], dst[::-1][:100]
    routes = spray(fabric, src, dst)
    sums = np.zeros((len(src), routes.hop.max(initial=0) + 1))
    np.add.at(sums, (routes.flow, routes.hop), routes.fraction)
    lengths = d_mod_k(fabric, src, dst).lengths
    expected = np.arange(sums.shape[1])[None, :] < lengths[:, None]
    assert np.allclose(sums, expected)
    assert (routes.fraction > 0).all()


@given(FABRICS)
def test_deterministic_routes_use_only_what_adaptive_routing_may_choose(fabric):
    src, dst = all_pairs(fabric)
    src, dst = src[:40], dst[::-1][:40]
    ends = fabric.link_table()
    for links, other in zip(d_mod_k(fabric, src, dst).links, dst, strict=True):
        for link in links[links >= 0]:
            assert link in candidates(fabric, int(ends.src[link]), int(other))
    assert len(candidates(fabric, int(fabric.slot(np.array([0]))[0]), 0)) == 0


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2)), max_size=2), st.integers(1, 200))
def test_d_mod_k_routes_a_shift_on_a_full_fat_tree_without_contention(leaf, upper, shift):
    """Zahavi 2010: with as many cables up as down at every level, slot j to j + s for all j uses each link once."""
    down, up, parallel = [leaf], [1], [1]
    for children, asked in upper:
        ports_below = down[-1] * parallel[-1]
        cables = asked if ports_below % asked == 0 else 1
        down.append(children)
        up.append(ports_below // cables)
        parallel.append(cables)
    tree = FatTree(math.prod(down), tuple(down), tuple(up), tuple(parallel), RATES)
    assert all(tree.oversubscription(level) in (0.5, 1.0) for level in range(1, tree.levels))
    src = np.arange(tree.endpoints)
    _, flows = d_mod_k(tree, src, (src + shift) % tree.endpoints).loads()
    assert flows.max(initial=1) == 1


def test_ecmp_collides_where_d_mod_k_and_spray_do_not():
    """648 slots, each to the one half the tree away: random choice of 18 uplinks by 18 flows loads the worst one more.

    Spray: every uplink of a full tree carries exactly one flow's worth.
    """
    tree = FatTree(648, (18, 36), (1, 18), (1, 1), RATES)
    src = np.arange(648)
    dst = (src + 324) % 648
    assert d_mod_k(tree, src, dst).loads()[1].max() == 1
    assert 3 <= ecmp(tree, src, dst).loads()[1].max() <= 10
    assert spray(tree, src, dst).loads()[1] == pytest.approx(1.0)


def test_polarised_hashes_leave_uplinks_of_the_second_tier_idle():
    """With one hash for all tiers, flows that chose uplink q of 4 at a leaf all choose uplink q of 4 at the spine.

    From one pod of 16 to another all six tiers have 16 links. Polarised, 4 of 16 spine uplinks carry all, and so 4 of
    16 links from cores down.
    """
    tree = FatTree(64, (4, 4, 4), (1, 4, 4), (1, 1, 1), RATES)
    src, dst = np.repeat(np.arange(16), 64), np.tile(np.arange(48, 64), 64)
    flows = np.arange(len(src))
    used = [len(ecmp(tree, src, dst, flows, polarised=p).loads()[0]) for p in (False, True)]
    assert used == [6 * 16, 4 * 16 + 2 * 4]


def test_least_loaded_spreads_a_full_permutation_evenly_over_uplinks():
    """18 flows of a leaf, 18 uplinks: taking the least loaded each time, none has two."""
    tree = FatTree(648, (18, 36), (1, 18), (1, 1), RATES)
    routes = least_loaded(tree, np.arange(18), np.arange(18) + 18, np.zeros(tree.links))
    assert routes.loads()[1].max() == 1
    with pytest.raises(ValueError, match="load has shape"):
        least_loaded(tree, np.array([0]), np.array([1]), np.zeros(3))


@pytest.mark.parametrize(("oversubscription", "share"), [(1, 1.0), (2, 0.5), (3, 1 / 3)])
def test_bisection_of_a_tree_shrinks_by_its_oversubscription(oversubscription, share):
    """All NICs of one half at line rate are slots / 2 * rate; o to 1 lets 1/o of it through. 48 = 24+24 = 32+16 = 36+12."""
    rates = LinkRates(50e9, 50e9)
    shape = fat_tree_shape(1152, 48, oversubscription=oversubscription)
    tree = FatTree(1152, *shape, rates)
    assert tree.oversubscription() == pytest.approx(oversubscription)
    assert tree.bisection_bytes_per_s() == pytest.approx(tree.slots / 2 * 50e9 * share)


@given(st.integers(2, 3), st.integers(2, 4))
def test_no_more_crosses_the_middle_than_the_bisection_says_and_spray_reaches_it(levels, size):
    """Every slot sends at its rate to the one half the tree away; the worst link tells what share arrives."""
    tree = FatTree(
        2 * size**levels,
        (size,) * (levels - 1) + (2 * size,),
        (1,) + (size,) * (levels - 1),
        (1,) * levels,
        LinkRates(1.0, 1.0),
    )
    src = np.arange(tree.endpoints)
    worst = spray(tree, src, (src + tree.endpoints // 2) % tree.endpoints).loads()[1].max()
    assert tree.endpoints / 2 / worst == pytest.approx(tree.bisection_bytes_per_s())


def test_four_levels_hold_what_three_do_not():
    """Switches of k ports: k^2 / 2 NIC ports on two levels, k^3 / 4 on three, k^4 / 8 on four; a refusal says how many there is room for."""
    for endpoints, levels in ((8**2 // 2, 2), (8**3 // 4, 3), (8**3 // 4 + 1, 4), (8**4 // 8, 4)):
        assert len(fat_tree_shape(endpoints, 8)[0]) == levels
    with pytest.raises(
        ValueError,
        match="do not fit 4 levels of switches of 8 ports, which hold 512; take larger switches, or fewer nodes",
    ):
        fat_tree_shape(513, 8)
    with pytest.raises(ValueError, match="which hold 128; take larger switches, or 4 levels"):
        fat_tree_shape(129, 8, levels=3)


@given(st.integers(1, 3000), st.sampled_from([8, 36, 40, 64]), st.sampled_from([1.0, 2.0, 3.0]))
def test_a_tree_made_for_a_number_of_ports_holds_them_and_no_switch_has_more_ports_than_it_has(endpoints, ports, over):
    try:
        down, up, parallel = fat_tree_shape(endpoints, ports, oversubscription=over)
    except ValueError as error:
        assert "do not fit 4 levels" in str(error)
        return
    assert math.prod(down) >= endpoints
    for level in range(len(down)):
        above = up[level + 1] * parallel[level + 1] if level + 1 < len(down) else 0
        assert down[level] * parallel[level] + above <= ports


def test_nic_r_of_every_node_of_a_group_hangs_on_one_leaf():
    """4 rails, leaves of 4: nodes 0 to 3 are group 0; NIC 2 of node 1 is beside NIC 2 of node 3, two links away."""
    fabric = RailOptimised(64, (4, 16), (1, 4), (1, 1), RATES, rails=4)
    same_rail = d_mod_k(fabric, np.array([1 * 4 + 2]), np.array([3 * 4 + 2]))
    other_rail = d_mod_k(fabric, np.array([1 * 4 + 2]), np.array([3 * 4 + 1]))
    assert (same_rail.lengths[0], other_rail.lengths[0]) == (2, 4)
    slots = fabric.slot(np.arange(64))
    assert sorted(slots) == list(range(64))


def test_no_nvlink_domain_is_split_between_leaves():
    """36 nodes in two domains of 18, 64-port switches: a leaf has 18 NICs of one rail, not 32."""
    fabric = NvlinkDomains(36, 4, 18, 64, RATES)
    assert fabric.down[0] == 18
    leaf = fabric.slot(np.arange(36 * 4)) // 18
    for domain in (0, 1):
        assert len(set(leaf[domain * 72 : domain * 72 + 72])) == 4


def test_two_groups_of_a_dragonfly_are_three_switch_links_apart():
    """NIC, leaf, spine, spine, leaf, NIC."""
    fabric = DragonflyPlus(32, 4, 2, 2, 4, 2, RATES)
    lengths = d_mod_k(fabric, np.zeros(4, np.int64), np.array([1, 4, 8, 31])).lengths
    assert list(lengths) == [2, 4, 5, 5]
    assert fabric.spine_ports == 3  # 2 cables to each of 3 groups, on 2 spines
    assert fabric.bisection_bytes_per_s() == 2 * 2 * 2 * 100e9


def test_rates_and_latencies_of_links_by_what_they_join():
    table = SingleSwitch(3, RATES).link_table()
    assert set(table.bandwidth_bytes_per_s) == {50e9}
    assert table.latency_s == pytest.approx(3e-6)
    tree = FatTree(4, (2, 2), (1, 2), (1, 1), RATES).link_table()
    assert sorted(set(tree.bandwidth_bytes_per_s)) == [50e9, 100e9]


def test_a_broken_graph_says_which_endpoints_have_no_way():
    one = LinkTable.of([(0, 2, 1.0, 0.0, 4), (2, 0, 1.0, 0.0, 4)])
    fabric = GraphFabric(one, 2, ("a", "b", "switch"))
    with pytest.raises(ValueError, match="no way leads from endpoint 0 to endpoint 1"):
        d_mod_k(fabric, np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="no way leads"):
        spray(fabric, np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="0 to 1"):
        d_mod_k(fabric, np.array([0]), np.array([2]))
    with pytest.raises(ValueError, match="pairs"):
        GraphFabric(LinkTable.of([(0, 2, 1.0, 0.0, 4)]), 2, ("a", "b", "switch"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FatTree(9, (2, 4), (1, 2), (1, 1), RATES), "9 NIC ports do not fit a tree of 8"),
        (lambda: FatTree(8, (2, 4), (1,), (1, 1), RATES), "one number a level"),
        (lambda: Torus(9, (3, 4), RATES), "has 12 endpoints, not 9"),
        (lambda: fat_tree_shape(100, 36, levels=1), "take 2 levels"),
        (lambda: fat_tree_shape(1000, 36, levels=2), "Take 3 levels"),
        (lambda: LinkRates(0, 1), "must be positive"),
        (lambda: DragonflyPlus(9, 1, 2, 2, 4, 1, RATES), "do not fit 8"),
    ],
)
def test_what_cannot_be_built_says_why(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_general_graph_has_no_bisection():
    """Its least cut into halves is NP-hard to find; who asks gets None, not an error."""
    cables = LinkTable.of([(0, 2, 1.0, 0.0, 4), (2, 0, 1.0, 0.0, 4), (1, 2, 1.0, 0.0, 4), (2, 1, 1.0, 0.0, 4)])
    assert GraphFabric(cables, 2, ("a", "b", "switch")).bisection_bytes_per_s() is None
