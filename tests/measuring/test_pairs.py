"""Pairs of nodes: every pair once, in rounds without a node twice; a fault is planted and named."""

from __future__ import annotations

import itertools

import pytest

from busbw.errors import InputError
from busbw.execution import run_threads
from busbw.launching import LaunchError
from busbw.measuring import running
from busbw.measuring.builtin import Builtin
from busbw.measuring.measure import Place
from busbw.measuring.pairs import (
    ends_of,
    failing_part,
    groups_of,
    matching_rounds,
    measure_round,
    pair_rows,
    rail_devices,
    scales,
)  # fmt: skip
from busbw.measuring.request import Request


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 13, 64])
def test_every_pair_meets_once_in_as_few_rounds_as_can_be(nodes):
    """A perfect matching of n nodes has n/2 pairs, so n(n-1)/2 pairs need n-1 rounds; of an odd n one node rests in each of n."""
    rounds = matching_rounds(nodes)
    assert len(rounds) == nodes - 1 + nodes % 2
    for pairs in rounds:
        assert len(set(itertools.chain(*pairs))) == 2 * len(pairs) == nodes - nodes % 2
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(nodes), 2))


def test_one_node_has_no_pair():
    with pytest.raises(InputError, match="two are needed"):
        matching_rounds(1)


def test_a_round_measures_each_pair_both_ways_on_every_rail():
    """3 nodes of 2 rails: nodes 0 and 2 meet, node 1 rests; rail k of one sends to rail k of the other, and what arrives is right."""
    request = Request("bandwidth", 6, (4096,), iterations=1, warm_up=0)
    told = run_threads(6, lambda comm: measure_round(Builtin(comm), request, 4096, [(0, 2)], rails=2))
    assert [one[:2] for one in told[0]] == [(0, 4), (1, 5), (4, 0), (5, 1)]
    assert all(rate > 0 and wrong == 0 for _, _, rate, wrong in told[0])
    assert told[1:] == [[]] * 5
    rows = list(pair_rows("builtin", [f"n{rank}" for rank in range(6)], told[0]))
    assert (rows[0]["src"], rows[0]["dst"], rows[0]["unit"]) == ("n0", "n4", "bytes/s")


def test_ends_are_named_after_hosts_and_nics():
    places = [Place(rank, host, 1, ()) for rank, host in enumerate(["a.lan", "a.lan", "b.lan", "b.lan"])]
    assert ends_of(places, 2, rail_devices({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1"})) == [
        "a:mlx5_0", "a:mlx5_3", "b:mlx5_0", "b:mlx5_3",
    ]  # fmt: skip
    assert ends_of(places, 1) == ["a-0", "a-1", "b-2", "b-3"]
    assert rail_devices({"UCX_NET_DEVICES": "all"}) == []


def test_bisection_finds_one_bad_host_in_few_runs():
    """Of 64 hosts, 6 halvings of two runs at most each."""
    tried = []

    def fails(part):
        tried.append(part)
        return 37 in part

    assert failing_part(range(64), fails) == [37]
    assert len(tried) <= 12


def test_bisection_finds_two_hosts_that_fail_together():
    """Each alone is well, and neither half of all fails."""
    assert failing_part(range(16), lambda part: {1, 14} <= set(part), least=2) == [1, 14]


def test_ladders():
    assert scales(2) == [2]
    assert scales(9) == [2, 4, 8, 9]
    assert groups_of(10, 4) == [range(4), range(4, 8), range(8, 10), range(8), range(10)]
    with pytest.raises(InputError, match="11 nodes a leaf of 10"):
        groups_of(10, 11)


def test_the_hosts_that_fail_are_found_by_running_on_parts_of_them(monkeypatch):
    """n3 fails in every job that it takes part in; two ranks a host throughout."""
    asked = []

    def run(requests, how, **_):
        asked.append((how.hosts, requests[0].ranks))
        if "n3" in how.hosts:
            raise LaunchError("rank 6 on n3 was killed by SIGKILL")

    monkeypatch.setattr(running, "run_requests", run)
    how = running.How("ssh", 5.0, hosts=("n0", "n1", "n2", "n3"), ranks=8)
    assert running.failing_hosts(Request("all_reduce", 8, (1024,), backend="torch"), how) == ["n3"]
    assert all(ranks == 2 * len(hosts) for hosts, ranks in asked)
    assert running.failing_hosts(Request("all_reduce", 4, (8,)), running.How("ssh", 5.0, hosts=("n0", "n1"), ranks=4)) == []  # fmt: skip
