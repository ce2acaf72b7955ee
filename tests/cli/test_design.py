"""`busbw design`: a table, JSON, the winner's file and drawing, and one clear error for what cannot be."""

from __future__ import annotations

import json

import pytest

from busbw.collectives.schedule_json import from_json

FAST = ("--time-limit", "0")
"""Ranked by the model: a second less each."""


def test_the_page_shows_bound_and_candidates(busbw, golden):
    ran = busbw("design", "all-gather", "--cluster", "dgx-h100", "--nodes", "4", "--bytes", "64MiB")
    assert ran.status == 0
    golden("design_all_gather.txt", ran.out)


def test_json_file_and_drawing_are_of_the_winner(busbw, tmp_path):
    """8 nodes: 56 GPUs' data enter a node at 400 GB/s; size / 64 of it each."""
    out, svg = tmp_path / "best.json", tmp_path / "best.svg"
    ran = busbw("design", "all_gather", "--cluster", "dgx-h100", "--nodes", "8", "--objective", "throughput", "--json", "--out", out, "--draw", svg)  # fmt: skip
    answer = json.loads(ran.out)
    best = answer["candidates"][0]
    assert (answer["schema"], answer["ranks"], best["origin"], best["trees_per_root"]) == (1, 64, "forest", 1)
    assert answer["bound"]["rates_s"] == pytest.approx(answer["size_bytes"] / 64 * 56 / 400e9)
    assert 0 <= best["over_bound"] < 0.01
    assert from_json(out.read_text()).bind(64).ranks == 64
    assert svg.read_text().startswith("<svg")


def test_the_first_step_of_a_library_schedule_is_drawn(busbw, tmp_path):
    """At 8 bytes to all, sending at once is best."""
    svg = tmp_path / "best.svg"
    busbw("design", "all-to-all", "--cluster", "dgx-h100", "--objective", "latency", "--draw", svg, *FAST)
    assert "first of 1 step" in svg.read_text()


def test_the_winners_file_is_bound_to_the_cluster_and_can_be_verified(busbw, tmp_path):
    """Two nodes of 8: a schedule of the library with axes of its own is written with their sizes, and with the root that was asked for."""
    out = tmp_path / "best.json"
    for arguments in (("all-reduce", "--nodes", "2"), ("broadcast", "--objective", "latency", "--root", "3")):
        busbw("design", *arguments, "--cluster", "dgx-h100", "--out", out, *FAST)
        ran = busbw("verify", out)
        assert ran.status == 0 and "schedule legal" in ran.out and "plan legal" in ran.out
    assert from_json(out.read_text()).bind().root == 3


def test_the_winner_is_written_as_a_plan_by_ending_or_word(busbw, tmp_path):
    """The same formats as of convert; what a target can't say is named."""
    plan, goal, xml = tmp_path / "best.json", tmp_path / "best.goal", tmp_path / "best.xml"
    how = ("all-reduce", "--cluster", "dgx-h100", "--bytes", "64KiB", *FAST)
    ran = busbw("design", *how[:4], "1GiB", *FAST, "--out", xml, "--target", "msccl")
    assert ran.status == 0 and "NCCL NVLS Simple (its choice) is not written" in ran.err
    assert busbw("verify", xml, "--target", "msccl").status == 0
    assert busbw("design", *how, "--out", plan, "--to", "busbw-json").status == 0
    assert json.loads(plan.read_text())["format"] == "busbw-plan"
    assert busbw("design", *how, "--out", goal, "--switches", "none").status == 0
    assert goal.read_text().startswith("num_ranks 8\n")
    assert busbw("design", *how, "--out", plan, "--to", "mscclpp", "--switches", "none").status == 0
    assert "memory" in plan.read_text() and busbw("verify", plan).status == 0
    assert "give --out FILE" in busbw("design", *how, "--to", "goal").err
    assert "there are msccl-xml" in busbw("design", *how, "--out", plan, "--to", "x").err


def test_switches_that_add_have_a_bound_of_their_own(busbw):
    """One DGX H100, 1 GiB: 14 vectors into 8 GPUs of 450 GB/s, or one vector over a port; NVLS sends 9/8 of it, so it beats the first alone."""
    ran = busbw("design", "all-reduce", "--cluster", "dgx-h100", "--bytes", "1GiB", "--json", *FAST)
    answer = json.loads(ran.out)
    (nvls,) = (one for one in answer["candidates"] if one["name"].startswith("NCCL NVLS "))
    bound = answer["bound"]
    assert bound["rates_s"] == pytest.approx(2 * 7 / 8 * 2**30 / 450e9)
    assert bound["switches_s"] == pytest.approx(2**30 / 450e9)
    assert (nvls["in_network"], nvls["timed_by"]) == (True, "prediction")
    assert nvls["over_bound"] == pytest.approx(1 / 8, abs=0.01)
    without = json.loads(
        busbw("design", "all-reduce", "--cluster", "dgx-h100", "--switches", "none", "--json", *FAST).out
    )
    assert without["bound"]["switches_s"] is None and not any(one["in_network"] for one in without["candidates"])


def test_a_file_says_its_nodes_and_a_torus_gets_its_own_algorithms(busbw, tmp_path):
    """4 x 4 nodes of one GPU: --nodes need not be given; buckets along the torus are at the bound."""
    file = tmp_path / "torus.yaml"
    file.write_text("name: ours\nnode: gh200\nnodes: 16\nfabric: {kind: torus, shape: [4, 4]}\n")
    answer = json.loads(busbw("design", "all-gather", "--cluster", file, "--objective", "throughput", "--json").out)
    best = answer["candidates"][0]
    assert (answer["ranks"], best["name"]) == (16, "torus_all_gather")
    assert 0 <= best["over_bound"] < 0.001


def test_failed_cables_are_gone_from_bound_and_simulation(busbw):
    """Node 1 of 5 without one of its 8 NICs: 32 GPUs' data enter it at 350 GB/s, as NIC 9 has leaf0 alone."""
    how = ("all-gather", "--cluster", "dgx-h100", "--nodes", "5", "--bytes", "1GiB", "--json", *FAST)
    answer = json.loads(busbw("design", *how, "--fail-link", "nic9 -> leaf0").out)
    assert answer["bound"]["rates_s"] == pytest.approx(2**30 / 40 * 32 / 350e9)
    assert any("whole cluster" in note for note in answer["notes"])
    assert "nic9 has cables to leaf0" in busbw("design", *how, "--fail-link", "nic9 -> nic8").err


def test_no_bytes_are_a_size_on_boxes_without_switches_too(busbw):
    """Like everywhere else: 0 B costs its steps. What the greedy way can't count is left out, and the others are not."""
    ran = busbw("design", "all-to-all", "--cluster", "mi300x-8", "--bytes", "0")
    assert ran.status == 0 and "greedy" in ran.out
    ran = busbw("design", "all-gather", "--cluster", "mi300x-8", "--bytes", "900000T", "--time-limit", "0")
    assert ran.status == 0 and "left out: greedy: 9.89" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("barrier", "--cluster", "dgx-h100"), "all-reduce"),
        (("all-reduce", "--cluster", "dgx-h100", "--objective", "fast"), "at-size"),
        (("all-reduce", "--cluster", "dgx-h100", "--bytes", "8:64:2"), "one size"),
        (("all-reduce", "--cluster", "dgx-h100", "--switches", "all"), "nvls, sharp, none"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "0"), "at least one node"),
        (("all-reduce", "--cluster", "gh200"), "one GPU"),
        (("broadcast", "--cluster", "dgx-h100", "--root", "8"), "0 to 7"),
        (
            ("all-reduce", "--cluster", "dgx-h100", "--nodes", "4", "--fail-link", "nic9 -> leaf1"),
            "such as leaf0 -> nic31",
        ),
        (("all-reduce", "--cluster", "dgx-h100", "--out", "x.txt"), "schedule-json"),
        (("all-reduce", "--cluster", "dgx-h100", "--out", "x.json", "--in-place"), "--in-place: x.json is a schedule"),
        (
            ("all-reduce", "--cluster", "dgx-h100", "--out", "x.json", "--to", "schedule-json", "--target", "msccl"),
            "--target msccl: x.json",
        ),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "1000000"), "schedules are designed for up to 131,072"),
    ],
)
def test_wrong_words_are_one_error_each(busbw, arguments, said):
    ran = busbw("design", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err


def test_a_collective_without_a_root_takes_none(busbw):
    ran = busbw("design", "all-reduce", "--cluster", "dgx-h100", "--root", "3", *FAST)
    assert ran.status == 2
    assert "--root 3: all-reduce has no root; leave it out" in ran.err


def test_more_gpus_than_links_are_written_out_for_are_refused_at_once(busbw):
    """100,000 nodes of 8: not begun, since it would not end while anybody waits."""
    ran = busbw("design", "all-reduce", "--cluster", "dgx-h100", "--nodes", "100000", *FAST)
    assert ran.status == 2
    assert "800,000 GPUs; schedules are designed for up to 131,072" in ran.err
