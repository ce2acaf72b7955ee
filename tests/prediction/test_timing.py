"""Laws of the time model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from busbw.collectives import bus_factor
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.prediction import (
    PREDICTED,
    Situation,
    load_calibration,
    movements,
    moves_of,
    parts,
    predict,
    predict_in,
    priors,
    situation_of,
)

SIZES = [1 << place for place in range(3, 35)]
H100 = Situation(16, 2, "hopper", 450e9, "switch", "infiniband", 400e9, 8, True, False, "NCCL")
MI300X = Situation(8, 1, "cdna3", 448e9, "mesh", "roce", 400e9, 8, False, False, "RCCL")


def times(where: Situation, collective: str, figures: dict[str, float]) -> np.ndarray:
    found = movements(collective, where)
    block = moves_of(found, where, np.array(SIZES, np.float64))
    return parts(block, figures).total_s.reshape(len(SIZES), len(found))


@pytest.mark.parametrize("collective", PREDICTED)
@pytest.mark.parametrize("where", [H100, MI300X], ids=["h100", "mi300x"])
def test_every_bandwidth_doubled_and_no_latency_halves_every_time(where, collective):
    figures = load_calibration().figures(where.gpu, where.network)
    idle = {name: value if not name.endswith("_s") else 0.0 for name, value in figures.items()}
    fast = replace(
        where, intra_bytes_per_s=2 * where.intra_bytes_per_s, network_bytes_per_s=2 * where.network_bytes_per_s
    )
    assert times(fast, collective, idle) == pytest.approx(times(where, collective, idle) / 2)


@pytest.mark.parametrize("collective", PREDICTED)
def test_more_bytes_are_never_faster_within_one_algorithm(collective):
    found = times(H100, collective, load_calibration().figures("hopper", "infiniband"))
    assert (np.diff(found, axis=0) > 0).all()


@pytest.mark.parametrize("domains", [1, 2, 4, 64])
def test_a_rings_bus_bandwidth_never_exceeds_its_links_nor_its_nics(domains):
    """busbw is defined so that a ring's is what passes each link; of several domains each ring passes the NICs too."""
    where = replace(H100, ranks=8 * domains, domains=domains)
    found = movements("all_reduce", where)
    rings = [place for place, move in enumerate(found) if move.algorithm == "Ring"]
    figures = load_calibration().figures("hopper", "infiniband")
    took = times(where, "all_reduce", figures)[:, rings]
    busbw = np.array(SIZES)[:, None] * bus_factor("all_reduce", where.ranks) / took
    line = min(450e9, 400e9) if domains > 1 else 450e9
    assert (busbw < line).all()


def test_switches_that_reduce_let_bus_bandwidth_exceed_what_a_ring_reaches():
    """NVLS loads each link with S (1 + 1/n), a ring with 2(n-1)/n S; busbw counts the latter."""
    one = replace(H100, ranks=8, domains=1)
    found = {(m.algorithm, m.protocol): m.intra_wire for m in movements("all_reduce", one)}
    assert found["NVLS", "Simple"] == pytest.approx(1 + 1 / 8)
    assert found["Ring", "Simple"] == pytest.approx(2 * 7 / 8)


def test_two_domains_of_a_tree_pass_the_data_once_each_way():
    """Each of two domains is the root of one tree with half the data: S/2 up and S/2 down, so S a direction; deeper, 2 S."""
    wires = {
        n: {m.algorithm: m.inter_wire for m in movements("all_reduce", replace(H100, ranks=8 * n, domains=n))}
        for n in (2, 4)
    }
    assert wires[2]["Tree"] == wires[2]["NVLSTree"] == 1.0
    assert wires[4]["Tree"] == 2.0
    assert wires[2]["Ring"] == pytest.approx(2 * 15 / 16)


def test_all_to_all_sends_what_is_for_ranks_elsewhere_through_the_nics():
    """Each of 8 GPUs sends 8 of its 16 parts to the other domain: 8 * 8/16 S."""
    for move in movements("all_to_all", H100):
        assert move.inter_wire == pytest.approx(8 * 8 / 16)
        assert move.intra_wire == pytest.approx(7 / 16)


def test_open_paths_of_several_domains_use_a_mesh_better_than_rings_of_one():
    """K8 has 56 arcs: 7 closed rings of 8 arcs, or 8 open paths of 7. A path a ring would be 8/7 as many."""
    one = {m.algorithm: m.links for m in movements("all_reduce", MI300X)}
    two = {m.algorithm: m.links for m in movements("all_reduce", replace(MI300X, ranks=16, domains=2))}
    assert two["Ring"] / one["Ring"] == pytest.approx(8 / 7)


def test_one_rank_moves_nothing_and_takes_a_launch():
    alone = replace(H100, ranks=1, domains=1)
    found = predict_in(alone, "all_reduce", [8, 1 << 30])
    assert found.time_s == pytest.approx(load_calibration().figures("hopper", "infiniband")["launch_s"])


def test_a_faster_nic_speeds_up_what_waits_for_nics():
    slow, _ = find_cluster("dgx-h100", 4, {"nic.rate": "200Gb/s"})
    fast, _ = find_cluster("dgx-h100", 4, {})
    sizes = [1 << 33]
    before, after = predict(slow, "all_to_all", sizes), predict(fast, "all_to_all", sizes)
    assert before.limit(0) == after.limit(0) == "NICs"
    assert before.time_s[0] / after.time_s[0] == pytest.approx(2, rel=0.02)


def test_intervals_hold_the_prediction_and_widen_where_nothing_was_measured():
    known = predict_in(H100, "all_reduce", SIZES)
    unknown = predict_in(replace(H100, gpu="pascal"), "all_reduce", SIZES)
    for found in (known, unknown):
        assert (found.low_s <= found.time_s).all()
        assert (found.time_s <= found.high_s).all()
    assert any("No measurement of pascal" in note for note in unknown.notes)
    width = [float(np.median(found.high_s / found.low_s)) for found in (known, unknown)]
    assert width[1] > width[0]


def test_nodes_that_do_not_fill_domains_are_spread_evenly_or_the_nearest_count_is_named():
    """Domains of 18 nodes of 4 GPUs. 32 are twice 16, 20 twice 10; 19 is prime and more than one domain."""
    shapes = {n: situation_of(find_cluster("gb200-nvl72", n)[0]) for n in (18, 20, 32, 36)}
    assert {n: (w.domains, w.domain_ranks) for n, w in shapes.items()} == {
        18: (1, 72), 20: (2, 40), 32: (2, 64), 36: (2, 72)
    }  # fmt: skip
    with pytest.raises(InputError, match="nearest: 18 or 20"):
        situation_of(find_cluster("gb200-nvl72", 19)[0])
    assert situation_of(find_cluster("gb200-nvl72", 19)[0], mnnvl=False).domains == 19


def test_every_parameter_of_the_shipped_calibration_has_a_prior_and_a_source():
    shipped = load_calibration()
    assert set(shipped.parameters) == set(priors().parameters)
    assert all(parameter.source for parameter in shipped.parameters.values())
    assert shipped.fitted_to


@pytest.mark.parametrize(("domains", "inside", "crossings"), [(1, 8, 0), (2, 8, 2), (4, 8, 4), (2, 1, 1), (16, 1, 15)])
def test_a_ring_passes_between_domains_as_often_as_its_longest_way_does(domains, inside, crossings):
    """Of N hops in a ring a part takes N-1: with GPUs to spare a hop inside, it passes all D borders; alone D-1."""
    where = replace(H100, ranks=domains * inside, domains=domains, nvls=False)
    rings = [move for move in movements("all_gather", where) if move.algorithm == "Ring"]
    assert {(move.intra_steps, move.inter_steps) for move in rings} == {(domains * inside - 1 - crossings, crossings)}


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(1 << 30, 128 * 131072), ((1 << 30) - 1, 128 * 65536), ((64 << 20) - 1, 128 * 32768), (1 << 20, 128 * 16384)],
)
def test_nvls_moves_a_chunk_of_each_channel_and_head_at_once(size_bytes, expected):
    """Hopper: 16 channels x 8 heads. Chunks halve below 64 rounds of 128 KiB (1 GiB), 8 of 64 KiB (64 MiB), 2 of 32 KiB (8 MiB)."""
    one = replace(H100, ranks=8, domains=1)
    assert moves_of(movements("all_reduce", one)[-1:], one, np.array([float(size_bytes)])).round_bytes == [expected]


def test_tcp_carries_no_more_over_faster_nics():
    """The CPU copies: 8 NICs of 200 Gb/s carry no more than one of 100 Gb/s."""
    figures = load_calibration().figures("ampere", "sockets")
    slow = replace(H100, gpu="ampere", network="sockets", network_bytes_per_s=12.5e9, nvls=False)
    fast = replace(slow, network_bytes_per_s=200e9)
    assert times(fast, "all_reduce", figures) == pytest.approx(times(slow, "all_reduce", figures))


def test_a_site_that_launches_slowly_widens_small_sizes_and_not_large_ones():
    """The interval follows what the time is made of: launch differs from site to site, links hardly."""
    one = replace(H100, ranks=8, domains=1, node="dgx-h100")
    found = predict_in(one, "all_reduce", [8, 1 << 33])
    small, large = ((found.high_s - found.low_s) / 2 / found.time_s).tolist()
    assert small > 1.5 * large
    assert large < 0.1


def test_every_parameter_that_was_fitted_has_an_uncertainty():
    """A class that was measured is never known worse than before it was: prior spreads of common value and class together."""
    for name, parameter in load_calibration().parameters.items():
        assert 0 < parameter.uncertainty <= parameter.spread * 1.01, name
        for key, uncertainty in parameter.class_uncertainty.items():
            assert 0 < uncertainty <= 1.01 * np.hypot(parameter.spread, parameter.class_spread), (name, key)


def test_pcie_between_more_gpus_than_share_a_switch_carries_less_for_each():
    """Two GPUs below one switch reach the slot's rate; four pass root complexes, which more GPUs share."""
    pair = Situation(2, 1, "blackwell-pcie", 63e9, "none", "infiniband", 0.0, 0, False, False, "NCCL")
    figures = load_calibration().figures(pair.gpu, pair.network)
    rates = [
        bus_factor("all_reduce", n) / times(replace(pair, ranks=n), "all_reduce", figures)[-1].min() for n in (2, 4)
    ]
    assert rates[1] < 0.9 * rates[0]


def test_an_interval_can_be_asked_for_without_a_prediction():
    """Of an all_reduce by the fastest algorithm: below 1 and above."""
    low, high = load_calibration().interval(H100, 1 << 30)
    assert low < 1 < high


def test_more_racks_than_were_measured_make_no_interval_absurd():
    """The one table of many racks, 20, takes twice as long: no interval of the same hardware goes several times beyond that."""
    racks = predict(find_cluster("gb200-nvl72", 18 * 20)[0], "all_reduce", SIZES)
    all_of_them = predict(find_cluster("gb200-nvl72", 18 * 910)[0], "all_reduce", SIZES)
    for found in (racks, all_of_them):
        assert (found.high_s < 4 * found.time_s).all()
        assert (found.low_s > found.time_s / 4).all()
    assert (racks.high_s > 2 * racks.time_s).any()


def test_a_rank_sends_to_its_neighbour_alone_however_many_ranks_there_are():
    """nccl-tests' send_recv: each rank begins one message and receives one, so sends take as long on 1,024 nodes as on two."""
    two, many = (predict(find_cluster("dgx-h100", nodes)[0], "send_recv", [8, 1 << 30]) for nodes in (2, 1024))
    assert many.time_s == pytest.approx(two.time_s, rel=0.01)
