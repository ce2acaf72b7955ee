"""Hosts that are network namespaces: where this machine gives them, a collective between them gives what it must, and nothing is left behind."""

from __future__ import annotations

import subprocess

import pytest
from benchmarks.minicluster.comparing import compare
from benchmarks.minicluster.namespaces import HostsRefusedError, Links, MiniCluster


@pytest.fixture
def hosts():
    """Starts hosts, or skips with the reason for which this machine has none."""

    def start(count: int, links: Links | None = None) -> MiniCluster:
        try:
            return MiniCluster(count, links)
        except HostsRefusedError as error:
            pytest.skip(str(error))

    return start


def interfaces() -> list[str]:
    """Of this machine, by name."""
    said = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    return sorted(line.split(":")[1] for line in said.splitlines())


def test_three_hosts_agree_and_leave_nothing(hosts):
    """Every algorithm of three hosts gives what it must. How near its time is to the simulated one, `python -m benchmarks` says."""
    with hosts(3) as cluster:
        before = interfaces()
        found = compare(cluster, [16 << 10], repeats=1, pair_sizes=[32 << 10])
        assert found.wrong == 0
        assert {row.name for row in found.rows} >= {"ring", "tree", "all_to_all"}
    assert interfaces() == before


def test_hosts_and_links_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="1 hosts: a mini cluster has 2 to 16"):
        MiniCluster(1)
    with pytest.raises(ValueError, match="3 hosts make no 2 equal groups"):
        MiniCluster(3, Links(groups=2))
    with pytest.raises(ValueError, match="a share of the rate is above 0"):
        Links(slowed={0: 0.0})
