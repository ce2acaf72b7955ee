"""`busbw verify`, `convert` and `show`: what is printed, and the exit status."""

from __future__ import annotations

import json

import pytest
from benchmarks.design.mutants import library_plans

from busbw.collectives.exchange.busbw_json import write_busbw_json
from busbw.collectives.exchange.msccl_xml import write_msccl_xml
from busbw.collectives.exchange.targets import TARGETS


@pytest.fixture
def ring(tmp_path):
    """A ring of three ranks, all_reduce in place, as XML for RCCL."""
    plan = dict(library_plans(3))["ring_all_reduce 3 in place"]
    path = tmp_path / "ring.xml"
    path.write_text(write_msccl_xml(plan, TARGETS["rccl"])[0])
    return path


def test_a_legal_plan_ends_with_status_0(busbw, ring):
    ran = busbw("verify", ring)
    assert ran.status == 0
    assert ": legal, same bits on all ranks: all_reduce on 3 ranks as rccl reads it" in ran.out


def test_a_wrong_plan_ends_with_status_1_and_shows_the_steps(busbw, ring):
    """The receives of rank 0 come from a FIFO that nobody fills: everybody waits."""
    ring.write_text(ring.read_text().replace('type="s"', 'type="cpy"'))
    ran = busbw("verify", ring)
    assert ran.status == 1
    assert "deadlock" in ran.out and " 1  rank 0 block 0 row" in ran.out
    told = json.loads(busbw("verify", ring, "--json").out)
    assert told["schema"] == 1 and not told["plans"][0]["legal"]
    assert told["plans"][0]["violations"][0]["steps"][0]["rank"] == 0


def test_a_file_that_holds_no_plan_is_wrong_use_but_does_not_stop_the_others(busbw, ring, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert busbw("verify", tmp_path / "notes.txt").status == 2
    ran = busbw("verify", tmp_path / "notes.txt", ring)
    assert ran.status == 0 and "no plan" in ran.err and "legal" in ran.out


def test_a_plan_goes_from_format_to_format(busbw, ring, tmp_path):
    ours, back, goal = tmp_path / "ring.json", tmp_path / "back.xml", tmp_path / "ring.goal"
    assert busbw("convert", ring, ours).status == 0
    assert busbw("convert", ours, back, "--target", "rccl").status == 0
    assert back.read_text() == ring.read_text()
    assert busbw("convert", ring, goal, "--bytes", "12KiB").status == 0
    assert goal.read_text().startswith("num_ranks 3\nrank 0 {\nl1: send 4096b to 1 tag 0 cpu 0\n")
    for words, said in (
        ((goal,), "needs --bytes"),
        ((goal, "--bytes", "much"), "--bytes much"),
        ((tmp_path / "ring.txt",), "give --to: there are msccl-xml"),
    ):
        ran = busbw("convert", ring, *words)
        assert ran.status == 2 and said in ran.err


def test_a_schedule_is_told_from_a_plan(busbw, tmp_path):
    out = tmp_path / "best.json"
    assert busbw("design", "all-to-all", "--cluster", "dgx-h100", "--out", out).status == 0
    for verb in ("verify", "show"):
        ran = busbw(verb, out)
        assert ran.status == 2 and "a schedule" in ran.err


def test_what_the_target_cannot_say_is_named_and_nothing_is_written(busbw, ring, tmp_path):
    ran = busbw("convert", ring, tmp_path / "plan.json", "--target", "mscclpp-0.10")
    assert ran.status == 2 and not (tmp_path / "plan.json").exists()
    assert "target-cannot-say: mscclpp-0.10 can't say SEND" in ran.err


def test_a_plan_is_summed_up_and_drawn(busbw, ring, tmp_path):
    drawing = tmp_path / "ring.svg"
    ran = busbw("show", ring, "--svg", drawing)
    assert ran.status == 0 and "ring of 3, 3 links" in ran.out
    text = drawing.read_text()
    assert text.startswith("<svg") and text.count("<circle") == 3 and "channel 0: ring of 3" in text
    assert json.loads(busbw("show", ring, "--json").out)["channels"] == [
        {"channel": 0, "shape": "ring of 3", "edges": [[0, 1], [1, 2], [2, 0]]}
    ]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("binomial_broadcast 4", "tree of 4"),
        ("binary_tree_all_reduce 4", "both ways along a tree of 4"),
        ("direct_all_to_all 4", "all to all of 4"),
    ],
)
def test_shapes_have_names(busbw, tmp_path, name, shape):
    path = tmp_path / "plan.json"
    path.write_text(write_busbw_json(dict(library_plans(4))[name]))
    assert json.loads(busbw("show", path, "--json").out)["channels"][0]["shape"] == shape
