"""`busbw predict`, `busbw score`, `busbw calibrate`: tables, JSON, and one clear error for what cannot be."""

from __future__ import annotations

import json

import pytest

ROW = {"bytes": 1 << 30, "time_us": 4022.0}
TABLE = {"id": "one", "campaign": "one", "tool": "nccl-tests", "collective": "all_reduce", "ranks": 8, "health": "healthy",
         "hardware": {"gpu": "H100 SXM5 80GB", "gpus_per_node": 8, "nodes": 1, "switch_inline_reduction": {"nvls": "yes"}},
         "software": {"library": "NCCL"}, "rows": [ROW, ROW | {"bytes": None}]}  # fmt: skip


def test_the_page_shows_time_interval_choice_and_what_is_waited_for(busbw, golden):
    ran = busbw("predict", "all-reduce", "--cluster", "dgx-h100", "--nodes", "2", "--bytes", "8:16GiB:64")
    assert ran.status == 0
    golden("predict_all_reduce.txt", ran.out)


def test_json_holds_the_same_and_the_parts_of_each_time(busbw):
    arguments = ("predict", "all_reduce", "--cluster", "dgx-h100", "--nodes", "2", "--bytes", "1G", "--json")
    answer = json.loads(busbw(*arguments).out)
    (row,) = answer["rows"]
    assert (answer["schema"], answer["ranks"], row["size_bytes"]) == (1, 16, 2**30)
    assert row["low_s"] <= row["time_s"] <= row["high_s"]
    assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 2 * 15 / 16)
    assert sum(row["parts"].values()) >= row["time_s"]  # links and NICs overlap


def test_a_variable_changes_the_choice_and_a_figure_the_time(busbw):
    arguments = ("predict", "all-reduce", "--cluster", "dgx-h100", "--nodes", "4", "--bytes", "8G", "--json", "--env")
    ring = json.loads(busbw(*arguments, "NCCL_ALGO=Ring").out)["rows"][0]
    slow = json.loads(busbw(*arguments, "NCCL_ALGO=Ring", "--set", "nic.rate=100Gb/s").out)["rows"][0]
    assert ring["algorithm"] == slow["algorithm"] == "Ring"
    assert slow["waits_for"] == "NICs"
    assert slow["time_s"] > 3 * ring["time_s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-reduce", "--cluster", "dgx-h10"), "dgx-h100"),
        (("all-reduce", "--cluster", "gb200-nvl72", "--nodes", "19"), "nearest: 18 or 20"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "0"), "at least one node"),
        (
            ("all-reduce", "--cluster", "dgx-h100", "--env", "NCCL_ALGO=NVLS", "--env", "NCCL_NVLS_ENABLE=0"),
            "switches it off",
        ),
        (("all-redcue", "--cluster", "dgx-h100"), "nearest: all-reduce"),
        (("barrier", "--cluster", "dgx-h100"), "no time model"),
        (("all-reduce", "--cluster", "dgx-h100", "--bytes", "8:4:2"), "write the smaller size first"),
        (("all-reduce", "--cluster", "dgx-h100", "--bytes", "1Q"), "is no size"),
        (("all-reduce", "--cluster", "dgx-h100", "--set", "nic.rate=fast"), "fast"),
        (("all-reduce", "--cluster", "dgx-h100", "--nccl", "1.0"), "1.0"),
    ],
)
def test_what_cannot_be_is_one_error_that_says_how_to_mend_it(busbw, arguments, said):
    ran = busbw("predict", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err


def test_an_xml_bomb_as_cluster_is_refused(busbw, tmp_path):
    bomb = tmp_path / "bomb.xml"
    bomb.write_text(
        '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><system version="1">&b;</system>'
    )
    ran = busbw("predict", "all-reduce", "--cluster", bomb)
    assert (ran.status, ran.out) == (2, "")
    assert "bomb.xml" in ran.err


def test_score_shows_the_error_of_each_table_and_what_was_refused(busbw, tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(TABLE))
    ran = busbw("score", path)
    assert ran.status == 0
    assert "not-measured" in ran.out
    answer = json.loads(busbw("score", tmp_path, "--json").out)
    assert set(answer) == {"schema", "overall", "groups", "sources"}
    assert answer["overall"]["rows"] == answer["overall"]["refused"] == 1
    assert answer["sources"][0]["rows"][0]["measured"] == pytest.approx(4.022e-3)


def test_score_of_nothing_it_can_read_is_wrong_use(busbw, tmp_path):
    (tmp_path / "odd.json").write_text("[]")
    assert busbw("score", tmp_path).status == 2
    assert "no such file" in busbw("score", tmp_path / "none").err
    (tmp_path / "sick.json").write_text(json.dumps(TABLE | {"health": "sick"}))
    assert "--all" in busbw("score", tmp_path).err


def test_a_calibration_made_of_a_table_predicts_that_table_better(busbw, tmp_path):
    """A machine a third slower than any known one; after calibrating the prediction moves towards it."""
    slow = TABLE | {
        "rows": [{"bytes": 1 << place, "time_us": (1 << place) / 150e9 * 1e6 + 30} for place in range(10, 34)]
    }
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    made = tmp_path / "made" / "mine.json"
    made.parent.mkdir()
    assert busbw("calibrate", tmp_path / "slow.json", "-o", made).status == 0
    before, after = (
        json.loads(busbw("score", tmp_path / "slow.json", "--json", *more).out)["overall"]["median_abs_pct"]
        for more in ((), ("--calibration", made))
    )
    assert after < before
