"""`busbw run`: measures on this machine; its table is read back by the reader of nccl-tests."""

from __future__ import annotations

import json

import pytest


def test_the_table_is_read_back_as_it_was_printed(busbw, tmp_path):
    """nccl-tests' size of all_gather is what comes out: 1000 bytes are 83 floats for each of 3 ranks, 996 bytes."""
    store = tmp_path / "store"
    ran = busbw(
        "run",
        "all-gather",
        "--ranks",
        "3",
        "--bytes",
        "12,1000",
        "--iterations",
        "2",
        "--launcher",
        "threads",
        "--store",
        store,
    )
    assert ran.status == 0
    printed = [line.split() for line in ran.out.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in printed] == [["12", "1", "float", "none", "-1"], ["996", "83", "float", "none", "-1"]]
    asked = 'SELECT collective, ranks, size_bytes, "count", dtype, in_place, time_ns, wrong FROM measurements ORDER BY size_bytes, in_place'
    rows = [tuple(row.values()) for row in json.loads(busbw("query", asked, "--store", store, "--json").out)["rows"]]
    assert [row[:6] for row in rows] == [
        ("all_gather", 3, 12, 1, "float", False), ("all_gather", 3, 12, 1, "float", True),
        ("all_gather", 3, 996, 83, "float", False), ("all_gather", 3, 996, 83, "float", True),
    ]  # fmt: skip
    assert [row[6] for row in rows] == [round(float(line[at]) * 1000) for line in printed for at in (5, 9)]
    assert all(row[7] == 0 for row in rows)
    lost = busbw("query", "SELECT count(*) AS n FROM losses", "--store", store, "--json")
    assert json.loads(lost.out)["rows"] == [{"n": 0}]


def test_json_says_what_was_measured_and_that_nothing_was_predicted(busbw):
    ran = busbw("run", "all_reduce", "--bytes", "64", "--iterations", "1", "--window", "--no-in-place", "--json")
    told = json.loads(ran.out)
    assert (told["schema"], told["collective"], told["ranks"], told["window"]) == (1, "all_reduce", 2, True)
    (row,) = told["rows"]
    assert row["size_bytes"] == 64
    assert row["in_place"] is None
    assert row["out_of_place"]["wrong"] == 0
    assert row["out_of_place"]["time_s"] > 0
    assert row["predicted_s"] is None
    assert told["notes"] == ["predicted_s: no calibration for this machine"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["allreduse"], "allreduse is no collective; nearest: all-reduce"),
        (["all-to-all-v"], "is not measured here; nearest: all-to-all"),
        (["all-reduce", "--ranks", "0"], "--ranks 0: write 1 to 64"),
        (["all-reduce", "--dtype", "complex64"], "--dtype complex64: there are float32"),
        (["all-reduce", "--op", "median"], "--op median: there are sum"),
        (["all-reduce", "--backend", "nccl"], "--backend nccl: there is builtin only"),
        (["all-reduce", "--launcher", "slurm"], "--launcher slurm: there are local and threads"),
        (["all-gather", "--op", "prod"], "--op prod: all-gather reduces nothing"),
        (["all-reduce", "--bytes", "8:4:2"], "--bytes 8:4:2: it begins above its end"),
        (["all-gather", "--window"], "all-reduce alone runs on window memory"),
        (["all-reduce", "--iterations", "0"], "--iterations 0: write 1 or more"),
        (["all-reduce", "--bytes", "1TiB"], "more than is tried here (16 GiB)"),
        (["all-reduce", "--deadline", "nan"], "--deadline nan: write seconds"),
        (["all-reduce", "--bytes", "8", "--deadline", "0"], "had not ended after 0 s"),
    ],
)
def test_wrong_use_is_one_message(busbw, arguments, said):
    ran = busbw("run", *arguments)
    assert ran.status == 2
    assert said in ran.err
    assert not ran.out


def test_a_trace_has_the_calls_of_every_rank(busbw, tmp_path):
    """Whoever launches the ranks; a file that can't be written is wrong use, said after the table."""
    for launcher in ("local", "threads"):
        asked = ("run", "all-gather", "--ranks", "3", "--bytes", "12", "--iterations", "2", "--launcher", launcher)
        path = tmp_path / f"{launcher}.json"
        assert busbw(*asked, "--trace", path).status == 0
        events = json.loads(path.read_text())["traceEvents"]
        assert {event["pid"] for event in events if event["name"] == "all_gather"} == {0, 1, 2}
    ran = busbw(*asked, "--trace", tmp_path / "none" / "trace.json")
    assert ran.status == 2
    assert "name a file that can be written" in ran.err
