"""Expected figures: no healthy platform is called slow, sick ones are where the description suffices."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.hardware import (
    ExpectedRange,
    expected_busbw,
    expected_small_message_time,
    load_catalogue,
    matching_tiers,
    nccl_nvlink_bytes_per_s,
    nccl_pcie_bytes_per_s,
    nic_tier,
    tiers,
)

DATA = Path(__file__).parent / "data"
TABLES = json.loads((DATA / "measured.json").read_text())
"""Public nccl-tests, rccl-tests and RDMA tables (`origin`), cut to their rows of 64 MiB and more: [bytes, busbw in
GB/s]. Bytes are null where the publisher gives the best value only."""
PACKAGE = Path(load_catalogue.__wrapped__.__code__.co_filename).parent


def expected(table):
    return expected_busbw(
        table["gpu"],
        table["nodes"],
        table["ranks"],
        table["collective"],
        table["nic_gbps"],
        table["nics_per_node"],
        transport="socket" if "IPoIB" in table["nic"] else None,
        one_nvlink_domain="inside one NVLink domain" in table["fabric"],
    )


def ids(tables):
    return [f"{table['id']}-{table['collective']}-{table['nodes']}n" for table in tables]


NOT_SICK = [table for table in TABLES if table["health"] != "sick"]


@pytest.mark.parametrize("table", NOT_SICK, ids=ids(NOT_SICK))
def test_a_healthy_table_is_never_called_slow(table):
    """Its best row reaches the low bound, and so does every row from the size on where the plateau is said to begin."""
    found = expected(table)
    if found is None:
        return
    best = max(busbw for _, busbw in table["rows"])
    from_there_on = [busbw for size, busbw in table["rows"] if size is None or size >= found.reached_at_bytes]
    if max(size or 2**60 for size, _ in table["rows"]) >= 2**26:
        assert best * 1e9 >= found.low_bytes_per_s
    assert all(busbw * 1e9 >= found.low_bytes_per_s for busbw in from_there_on)


@pytest.mark.parametrize("table", NOT_SICK, ids=ids(NOT_SICK))
def test_a_healthy_table_does_not_exceed_what_the_platform_can(table):
    found = expected(table)
    assert found is None or max(busbw for _, busbw in table["rows"]) * 1e9 <= found.high_bytes_per_s


def test_most_tables_have_an_expectation():
    """None is for what the description cannot tell; if it were the rule, the table would be useless."""
    assert sum(expected(table) is not None for table in NOT_SICK) > 0.8 * len(NOT_SICK)


@pytest.mark.parametrize("name", ["cscs-gh200-2n-allreduce-nohook", "uccl-p5-2n-crossrail-writes"])
def test_a_sick_table_falls_below_the_low_bound(name):
    """Sockets instead of the interconnect; writes that cross rails. Both far below what their NICs carry."""
    table = next(table for table in TABLES if table["id"] == name)
    found = expected(table)
    assert found is not None
    assert max(busbw for _, busbw in table["rows"]) * 1e9 < found.low_bytes_per_s


@pytest.mark.parametrize(
    ("gpu", "collective", "healthy_gb_s"),
    [
        ("NVIDIA H100 80GB HBM3", "all_reduce", (360, 480)),
        ("NVIDIA A100-SXM4-80GB", "all_reduce", (215, 235)),
        ("NVIDIA B200", "all_reduce", (693, 839)),
        ("AMD Instinct MI300X", "all_reduce", (316, 316)),
        ("Tesla V100-SXM2-32GB", "all_reduce", (130, 130)),
        ("NVIDIA H200", "alltoall", (320, 325)),
    ],
)
def test_one_node_holds_the_figures_people_know(gpu, collective, healthy_gb_s):
    found = expected_busbw(gpu, 1, 8, collective, None, None)
    assert found is not None
    assert found.low_bytes_per_s < healthy_gb_s[0] * 1e9
    assert healthy_gb_s[1] * 1e9 < found.high_bytes_per_s
    assert found.source


def test_half_a_platform_is_called_slow():
    """An H100 node that lost NVLink (PCIe carries some 40 GB/s), an A100 pair with one of eight NICs."""
    h100 = expected_busbw("NVIDIA H100 80GB HBM3", 1, 8, "all_reduce", None, None)
    assert h100 is not None
    assert h100.low_bytes_per_s > 40e9
    a100 = expected_busbw("NVIDIA A100-SXM4-80GB", 2, 16, "all_reduce", 200, 8)
    assert a100 is not None
    assert a100.low_bytes_per_s > 25e9


def test_nodes_are_limited_by_their_nics_or_by_their_inside():
    """8 x 200 Gb/s are 200 GB/s, less than NVLink; 8 x 800 Gb/s are 800 GB/s, more than an H100 node carries."""
    wire = expected_busbw("H100-SXM-80GB", 4, 32, "all_gather", 200, 8)
    inside = expected_busbw("H100-SXM-80GB", 4, 32, "all_gather", 800, 8)
    assert wire is not None
    assert inside is not None
    assert wire.limited_by == "8 x 200 Gb/s NICs"
    assert inside.limited_by == "NVLink inside the node"


def test_all_to_all_between_nodes_is_limited_by_what_leaves_each_node():
    """Four nodes of 8 GPUs: of 32 shares 24 leave the node, over 400 GB/s, so S takes 8 * S * 24/32 / 400e9 s and busbw
    = S/t * 31/32 = 400e9 / 8 * 31/24."""
    found = expected_busbw("MI355X", 4, 32, "all_to_all", 400, 8)
    assert found is not None
    assert found.high_bytes_per_s == pytest.approx(1.05 * 400e9 / 8 * 31 / 24)
    assert found.low_bytes_per_s < 400e9 / 8 * 31 / 24


def test_one_rank_a_node_is_expected_to_use_one_nic():
    found = expected_busbw("GH200-96GB", 2, 2, "all_reduce", 200, 4)
    assert found is not None
    assert found.low_bytes_per_s <= 25e9


def test_sockets_are_measured_by_sockets():
    found = expected_busbw("NVIDIA A100-SXM4-40GB", 2, 16, "all_reduce", 200, 8, transport="socket")
    assert found is not None
    assert found.low_bytes_per_s < 3.17e9 < found.high_bytes_per_s


@pytest.mark.parametrize(
    ("gpu", "nodes", "ranks", "collective"),
    [
        ("NVIDIA Graphics Device", 1, 8, "all_reduce"),
        (None, 2, 16, "all_reduce"),
        ("NVIDIA H100", 1, 1, "all_reduce"),
        ("NVIDIA H100", 1, 8, "no_such_collective"),
        ("NVIDIA H100", 1, 2, "send_recv"),
        ("NVIDIA GH200 480GB", 1, 4, "all_reduce"),
        ("Tesla V100-SXM2-32GB", 1, 2, "all_reduce"),
    ],
)
def test_what_the_description_cannot_tell_is_none(gpu, nodes, ranks, collective):
    """Unknown product; one rank, which moves nothing; pairs of a mesh, which have one, two or no links."""
    assert expected_busbw(gpu, nodes, ranks, collective, 400, 8) is None


def test_several_nodes_without_their_nics_are_none():
    assert expected_busbw("H100-SXM-80GB", 2, 16, "all_reduce", None, 8) is None
    assert expected_busbw("H100-SXM-80GB", 2, 16, "all_reduce", 400, None) is None


def test_an_rdma_test_needs_no_gpu():
    """ib_write_bw from host memory over 200 Gb/s: 24.6 of 25 GB/s is healthy."""
    found = expected_busbw(None, 2, 2, "p2p", 200, 1)
    assert found is not None
    assert found.low_bytes_per_s < 24.6e9 < found.high_bytes_per_s


@pytest.mark.parametrize(("nodes", "ranks"), [(0, 8), (4, 2), (-1, 1)])
def test_impossible_runs_raise(nodes, ranks):
    with pytest.raises(ValueError, match="at least one node"):
        expected_busbw("H100-SXM-80GB", nodes, ranks, "all_reduce", 400, 8)


def test_an_unknown_transport_raises():
    with pytest.raises(ValueError, match="transport 'pigeon' is unknown"):
        expected_busbw("H100-SXM-80GB", 2, 16, "all_reduce", 400, 8, transport="pigeon")


@settings(deadline=None)
@given(
    gpu=st.sampled_from([None, *load_catalogue().accelerators]),
    nodes=st.integers(1, 2000),
    ranks_per_node=st.integers(1, 16),
    collective=st.sampled_from(["all_reduce", "alltoall", "ALL-GATHER", "reduce", "send_recv", "p2p", "?"]),
    nic_gbps=st.one_of(st.none(), st.sampled_from([0.0, 10.0, 100.0, 400.0, 800.0])),
    nics=st.one_of(st.none(), st.integers(0, 32)),
    one_domain=st.booleans(),
)
def test_any_platform_gives_none_or_a_range(  # noqa: PLR0917 -- one argument a strategy
    gpu, nodes, ranks_per_node, collective, nic_gbps, nics, one_domain
):
    found = expected_busbw(gpu, nodes, nodes * ranks_per_node, collective, nic_gbps, nics, one_nvlink_domain=one_domain)
    if found is not None:
        assert 0 < found.low_bytes_per_s <= found.high_bytes_per_s
        assert found.source
        assert found.limited_by
        assert found.reached_at_bytes > 0


@settings(deadline=None)
@given(rate=st.sampled_from([25.0, 100.0, 200.0, 400.0]), nics=st.integers(1, 8), nodes=st.integers(2, 64))
def test_faster_nics_never_lower_what_is_expected(rate, nics, nodes):
    slow = expected_busbw("H100-SXM-80GB", nodes, 8 * nodes, "all_reduce", rate, nics)
    fast = expected_busbw("H100-SXM-80GB", nodes, 8 * nodes, "all_reduce", 2 * rate, nics)
    assert slow is not None
    assert fast is not None
    assert fast.low_bytes_per_s >= slow.low_bytes_per_s


@pytest.mark.parametrize(
    ("nic_gbps", "measured_gb_s"),
    [(200, 24.685), (200, 24.58), (400, 48.36), (400, 43.7), (200, 22.86), (200, 23.28)],
)
def test_the_tier_of_a_nic_holds_what_was_measured_on_it(nic_gbps, measured_gb_s):
    """azure-ndv4-ib-read-bw, -write-bw, torchcomms-gb200-2n-ibgda, uccl-p5, cscs-gh200-2n1g, superbench loopback."""
    assert nic_tier(nic_gbps).holds(measured_gb_s * 1e9)


def test_tiers_of_different_nics_do_not_overlap():
    """Else a plateau could not be told to be one NIC of a rate. 50 and 56 Gb/s are as near as that."""
    ranges = sorted(
        (tier.low_bytes_per_s, tier.high_bytes_per_s)
        for tier in (nic_tier(rate) for rate in (1, 10, 25, 40, 50, 100, 200, 400, 800))
    )
    assert all(high < next_low for (_, high), (next_low, _) in pairwise(ranges))


@pytest.mark.parametrize(
    ("measured_gb_s", "name"),
    [
        (11.9, "one 100 Gb/s NIC"),
        (24.6, "one 200 Gb/s NIC"),
        (1.15, "one 10 Gb/s NIC"),
        (3.17, "TCP sockets"),
        (22.2, "PCIe Gen4 x16"),
        (13.0, "staging through host memory"),
        (77, "4 NVLinks"),
        (93.2, "4 NICs of 200 Gb/s"),
    ],
)
def test_a_plateau_is_recognised(measured_gb_s, name):
    """Figures of public reports: slow NICs, IPoIB, peer access off, an A100 pair joined by NV4, four HDR NICs."""
    among = tiers("NVIDIA A100-SXM4-80GB", 200, 8)
    assert name in [tier.name for tier in matching_tiers(measured_gb_s * 1e9, among)]


def test_tiers_are_named_once_and_have_sources():
    among = tiers("NVIDIA H100 80GB HBM3", 400, 8)
    assert len({tier.name for tier in among}) == len(among)
    assert all(tier.source and 0 < tier.low_bytes_per_s < tier.high_bytes_per_s for tier in among)
    assert sum(tier.kind == "nvlink" for tier in among) == 18
    assert not any(tier.kind == "nvlink" for tier in tiers("NVIDIA L40S"))


def test_nccls_own_link_rates():
    """Sources: NVIDIA/nccl src/graph/topo.h (NVLink) and topo.cc (PCIe), 2.30.7."""
    assert [nccl_pcie_bytes_per_s(generation, 16) / 1e9 for generation in (3, 4, 5, 6)] == [12, 24, 48, 96]
    assert nccl_pcie_bytes_per_s(1, 1) == pytest.approx(0.1875e9)
    assert [nccl_nvlink_bytes_per_s(sm) for sm in (70, 80, 90, 100)] == [20e9, 20e9, 20.6e9, 40.1e9]
    with pytest.raises(ValueError, match="no such link"):
        nccl_pcie_bytes_per_s(9, 16)


def test_more_ranks_never_have_a_lower_latency_floor():
    times = [expected_small_message_time(1, ranks) for ranks in (2, 4, 8)]
    lows = [time.low_s for time in times if time is not None]
    assert len(lows) == 3
    assert lows == sorted(lows)
    assert expected_small_message_time(1, 1) is None
    assert expected_small_message_time(512, 4096) is None


@pytest.mark.parametrize(
    ("nodes", "ranks", "measured_us"),
    [(1, 8, 13.0), (1, 8, 34.5), (1, 2, 7.0), (2, 16, 36.2), (2, 16, 218.6), (2, 8, 17.4), (32, 256, 62.0)],
)
def test_healthy_small_messages_are_within_their_range(nodes, ranks, measured_us):
    """nvidia-dgxc-h100-1n, superbench-a100-1n, vidur-h100-2w2, azure-ndv4-2n, mi300x-2n, cscs-gh200-2n, nccl#652."""
    time = expected_small_message_time(nodes, ranks)
    assert time is not None
    assert time.low_s <= measured_us * 1e-6 <= time.high_s


def test_an_empty_range_cannot_be_made():
    with pytest.raises(ValueError, match="is empty"):
        ExpectedRange(2.0, 1.0, "x", "y", 1)


FIGURES = {"low", "high", "p2p", "full", "two_nodes", "low_GB_s", "low_us", "practical_low", "collectives"}


def test_every_row_has_a_source_and_every_measured_table_an_origin():
    text = (PACKAGE / "expected.json").read_text()
    table = json.loads(text)
    rows = [row for part in table.values() for row in (part if isinstance(part, list) else [part])]
    rows = [row for row in rows if isinstance(row, dict) and FIGURES & row.keys()]
    assert len(rows) > 15
    assert all(row["source"] for row in rows)
    named = {table["id"] for table in TABLES if re.search(rf"\b{table['id']}\b", text)}
    assert len(named) > 20
    assert named <= table["origins"].keys()
    assert all(table["origins"].values())
