"""`busbw simulate`: tables, JSON, files for Perfetto, and one clear error for what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.exchange import target_named, write_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.schedule_json import to_json

FABRIC = ("--cluster", "dgx-h100", "--nodes", "2")


def test_the_page_shows_time_and_what_the_critical_path_is_made_of(busbw, golden):
    ran = busbw("simulate", "collective", "all-reduce", *FABRIC, "--bytes", "1MiB:1GiB:32")
    assert ran.status == 0
    golden("simulate_all_reduce.txt", ran.out)


def test_json_holds_the_same(busbw):
    ran = busbw("simulate", "collective", "all_reduce", *FABRIC, "--bytes", "1GiB", "--json")
    answer = json.loads(ran.out)
    (row,) = answer["rows"]
    assert (answer["schema"], answer["ranks"], row["size_bytes"], row["seeds"]) == (1, 16, 2**30, 1)
    assert sum(row["critical_path_s"].values()) == pytest.approx(row["time_s"])
    assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 2 * 15 / 16)


def test_a_fault_is_named_with_what_it_costs(busbw):
    ran = busbw(
        "simulate",
        "collective",
        "all-reduce",
        *FABRIC,
        "--straggler",
        "3=0.5",
        "--degrade-link",
        "nic0 -> leaf0=0.9",
        "--json",
    )
    causes = json.loads(ran.out)["rows"][0]["causes"]
    assert [cause["kind"] for cause in causes] == ["slow_rank", "degraded_link"]
    assert causes[0]["name"] == "rank 3 (node0 gpu3) at 0.5 of its speed"
    assert causes[0]["saves_s"] > causes[1]["saves_s"] >= 0


def test_seeds_give_a_distribution(busbw):
    ran = busbw(
        "simulate",
        "collective",
        "all-to-all",
        *FABRIC,
        "--bytes",
        "1MiB",
        "--speed-spread",
        "0.1",
        "--seeds",
        "3",
        "--json",
    )
    row = json.loads(ran.out)["rows"][0]
    assert row["seeds"] == 3
    assert row["p99_s"] >= row["time_s"]


def test_perfetto_opens_the_tasks(busbw, tmp_path):
    file = tmp_path / "trace.json"
    ran = busbw(
        "simulate", "collective", "all-gather", *FABRIC, "--bytes", "1MiB", "--no-fold", "--perfetto", str(file)
    )
    assert ran.status == 0
    events = json.loads(file.read_text())["traceEvents"]
    messages = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in messages} == set(range(17)), "16 ranks and the critical path"
    assert all(event["dur"] > 0 for event in messages)
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} >= {"rank 9 (node1 gpu1)"}


def test_a_report_is_written(busbw, tmp_path):
    file = tmp_path / "report.html"
    ran = busbw("simulate", "collective", "all-gather", *FABRIC, "--bytes", "1MiB", "--report", str(file))
    assert ran.status == 0 and "report: " in ran.err
    assert "Links over time" in file.read_text()


def test_sizes_and_nodes_are_swept_and_kept(busbw, tmp_path):
    """Two numbers of nodes and two sizes: four points, which the store answers for afterwards."""
    words = ("simulate", "collective", "all-gather", "--cluster", "dgx-h100", "--nodes", "1:2:2", "--bytes", "8,1MiB")
    rows = json.loads(busbw(*words, "--store", str(tmp_path), "--json").out)["rows"]
    assert [(row["nodes"], row["ranks"], row["size_bytes"]) for row in rows] == [
        (1, 8, 8), (1, 8, 1 << 20), (2, 16, 8), (2, 16, 1 << 20),
    ]  # fmt: skip
    again = busbw(*words, "--store", str(tmp_path), "--json")
    assert "4 of them already there" in again.err and json.loads(again.out)["rows"] == rows
    asked = busbw("query", "SELECT ranks, size_bytes, time_ns FROM measurements ORDER BY ALL", "--store", str(tmp_path))
    assert [line.split()[:2] for line in asked.out.splitlines()[-4:]] == [
        ["8", "8"], ["8", str(1 << 20)], ["16", "8"], ["16", str(1 << 20)],
    ]  # fmt: skip


def test_a_graph_is_simulated(busbw, tmp_path):
    file = tmp_path / "two.goal"
    file.write_text(
        "num_ranks 2\nrank 0 {\nl1: calc 1000\nl2: send 1b to 1 tag 1\nl2 requires l1\n}\nrank 1 {\nl1: recv 1b from 0 tag 1\n}\n"
    )
    row = json.loads(busbw("simulate", "graph", str(file), *FABRIC, "--json").out)["rows"][0]
    assert row["time_s"] == pytest.approx(1e-6 + 0.6e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-redcue", *FABRIC), "nearest: all-reduce"),
        (("all-reduce", *FABRIC, "--algorithm", "ringg"), "nearest: ring_all_reduce"),
        (("all-reduce", "--cluster", "mi300x-8", "--algorithm", "nvls_all_reduce"), "no switch there adds or copies"),
        (("all-reduce", *FABRIC, "--fail-link", "nic0 -> leaf0"), "no way leads from node0 nic0 to node1 nic0"),
        (("all-reduce", *FABRIC, "--fail-link", "leaf7 -> spine0"), "no leaf7 in this fabric"),
        (("all-reduce", *FABRIC, "--fail-link", "nic0 -> leaf0@1e30s"), "times are 0 to 9.2e+06 s"),
        (("all-reduce", *FABRIC, "--degrade-link", "nic0 -> leaf0=0"), "above 0, or fail the link"),
        (("all-reduce", *FABRIC, "--straggler", "99=0.5"), "rank 99"),
        (("all-reduce", *FABRIC, "--straggler", "fast"), "NAME=VALUE"),
        (("all-reduce", *FABRIC, "--routing", "psychic"), "there is d-mod-k, ecmp, spray, adaptive"),
        (("all-reduce", *FABRIC, "--memory-limit", "1MiB"), "memory limit"),
        (("all-reduce", *FABRIC, "--seeds", "1000000"), "100,000 are run at most"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "0"), "--nodes 0: 1 to"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "2:x"), "write a number"),
        (("all-reduce", "--cluster", "dgx-h10"), "dgx-h100"),
    ],
)
def test_what_cannot_be_is_one_error_that_says_how_to_mend_it(busbw, arguments, said):
    ran = busbw("simulate", "collective", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in " ".join(ran.err.split())


def test_a_barrier_moves_no_data(busbw):
    """Each of its log2(8) rounds costs a message's latency, microseconds; 1 GiB over NVLink would take milliseconds."""
    ran = busbw("simulate", "collective", "barrier", "--cluster", "dgx-h100", "--json")
    (row,) = json.loads(ran.out)["rows"]
    assert row["size_bytes"] == 0
    assert 0 < row["time_s"] < 20e-6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-reduce", "--cluster", "gh200"), "one GPU"),
        (("barrier", *FABRIC, "--bytes", "1MiB"), "moves no data"),
        (("all-reduce", *FABRIC, "--straggler", "1=inf"), "inf of its speed"),
        (("all-reduce", *FABRIC, "--straggler", "x=1"), "RANK=SPEED"),
        (("all-reduce", *FABRIC, "--degrade-link", "nic0 -> leaf0"), "LINK=PART"),
        (("all-reduce", *FABRIC, "--speed-spread", "inf"), "from 0 on"),
        (("all-reduce", *FABRIC, "--time-limit", "nan"), "above 0"),
        (("all-reduce", *FABRIC, "--set", "nic.rate=1e400Gb/s"), "is no rate"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "1000000"), "take larger switches"),
    ],
)
def test_wrong_words_are_one_error_each(busbw, arguments, said):
    ran = busbw("simulate", "collective", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err


def test_a_schedule_from_a_file_runs_as_the_one_of_the_library(busbw, tmp_path):
    """Its axes are open: they get the cluster's nodes and GPUs, as those of the library do."""
    file = tmp_path / "ring.json"
    file.write_text(to_json(LIBRARY["ring_all_reduce"]()))
    ours = busbw("simulate", "collective", "--schedule", file, *FABRIC)
    theirs = busbw("simulate", "collective", "all-reduce", "--algorithm", "ring_all_reduce", *FABRIC)
    assert ours.status == 0 and ours.out == theirs.out


def test_a_schedule_must_fit_the_cluster_and_the_words(busbw, tmp_path):
    """8 ranks are fixed in the file; two nodes have 16 GPUs."""
    file, other = tmp_path / "ring.json", tmp_path / "other.json"
    file.write_text(to_json(replace(LIBRARY["ring_all_reduce"](), fixed=(("r", 8),))))
    other.write_text("{}")
    for arguments, said in (
        (("--schedule", file), "ring_all_reduce with r=8 is for 8 ranks; 2 x dgx-h100 has 16 GPUs"),
        (("all-gather", "--schedule", file), "is a schedule of all-reduce, not of all-gather"),
        (("all-reduce", "--schedule", file, "--algorithm", "ring_all_reduce"), "leave --algorithm out"),
        (("--schedule", other), "no plan. Known are MSCCL XML"),
        ((), "Give a COLLECTIVE, or --schedule"),
    ):
        ran = busbw("simulate", "collective", *arguments, *FABRIC)
        assert (ran.status, ran.out) == (2, "") and said in " ".join(ran.err.split())


def test_a_plan_of_a_file_is_simulated_with_its_slots(busbw, tmp_path):
    """MSCCL XML: slices that wait for credit take longer than the same ring without limits; other ranks, other collectives are refused."""
    file = tmp_path / "ring.xml"
    file.write_text(write_plan(plan_of(LIBRARY["ring_all_reduce"]().bind(8)), target_named("rccl")))
    ran = busbw("simulate", "collective", "--schedule", file, "--cluster", "dgx-h100", "--bytes", "64MiB", "--json")
    ideal = busbw(*["simulate", "collective", "all-reduce", "--cluster", "dgx-h100", "--bytes", "64MiB", "--json"])
    found, bound = (json.loads(one.out)["rows"][0]["time_s"] for one in (ran, ideal))
    assert bound < found < 2 * bound
    for arguments, said in (
        (("all-gather", "--cluster", "dgx-h100"), "is a plan of all-reduce, not of all-gather"),
        (("--cluster", "dgx-h100", "--nodes", "2"), "is for 8 ranks; 2 x dgx-h100 has 16 GPUs"),
    ):
        wrong = busbw("simulate", "collective", *arguments, "--schedule", file)
        assert (wrong.status, wrong.out) == (2, "") and said in " ".join(wrong.err.split())
