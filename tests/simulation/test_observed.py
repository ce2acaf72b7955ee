"""What a simulation says in the tables of measurements."""

from __future__ import annotations

import dataclasses

import pytest

from busbw.collectives.algorithms import ring_all_reduce
from busbw.hardware import find_cluster
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import observations, simulate

B, L = 50e9, 1e-6


def tables(timeline):
    return {rows.table: rows.batch.to_pylist() for rows in observations(timeline)}


def test_a_run_is_a_row_of_a_benchmark():
    """Ring of 4, 4 MB: 6 steps of 1 MB at 50 GB/s and 2 us: 132 us; busbw = 2 * 3/4 * 4 MB / 132 us."""
    timeline = simulate(ring_all_reduce().bind(4), SingleSwitch(4, LinkRates(B, B, 0.0, L)), size_bytes=4_000_000)
    (row,) = tables(timeline)["measurements"]
    assert {name: row[name] for name in ("collective", "size_bytes", "ranks", "time_ns", "tool", "nodes")} == {
        "collective": "all_reduce", "size_bytes": 4_000_000, "ranks": 4, "time_ns": 132_000, "tool": "busbw simulate", "nodes": None,
    }  # fmt: skip
    assert row["busbw_bytes_per_s"] == pytest.approx(1.5 * 4e6 / 132e-6)


def test_each_rank_has_its_end_and_each_link_its_bytes():
    """On a star all ranks end at once; each link carries 6 MB of the 6.6 MB that 132 us at 50 GB/s hold."""
    timeline = simulate(
        ring_all_reduce().bind(4), SingleSwitch(4, LinkRates(B, B, 0.0, L)), size_bytes=4_000_000, fold=False
    )
    found = tables(timeline)
    assert [(row["rank"], row["duration_ns"], row["state"]) for row in found["collectives"]] == [
        (rank, 132_000, "completed") for rank in range(4)
    ]
    carried = [row["value"] for row in found["counters"] if row["name"] == "simulated.link_bytes"]
    busy = [row["value"] for row in found["counters"] if row["name"] == "simulated.link_utilisation"]
    assert carried == [6_000_000] * 8
    assert busy == pytest.approx([6 / 6.6] * 8)


def test_ranks_of_a_cluster_have_hosts():
    cluster, _ = find_cluster("dgx-h100", 2)
    rows = tables(simulate(ring_all_reduce().bind(16), cluster, size_bytes=1 << 20))
    assert rows["measurements"][0]["nodes"] == 2
    assert [(row["host"], row["device"]) for row in rows["collectives"]][7:9] == [("node0", 7), ("node1", 0)]


def test_a_run_that_was_stopped_measured_nothing():
    """It has no time; what it carried is known."""
    whole = simulate(ring_all_reduce().bind(4), SingleSwitch(4, LinkRates(B, B, 0.0, L)), size_bytes=4_000_000)
    assert set(tables(dataclasses.replace(whole, stopped="interrupted"))) == {"collectives", "counters"}
