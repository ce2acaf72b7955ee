"""`busbw read` and `busbw query`: files into a store and answers out of it."""

from __future__ import annotations

import json
import shutil

from busbw.observations import Circumstances
from busbw.observations.store import Store


def test_read_shows_formats_and_rows(busbw, healthy_job):
    """Two rows, each with an out-of-place and an in-place half: four measurements."""
    ran = busbw("read", healthy_job)
    assert ran.status == 0
    row = next(line for line in ran.out.splitlines() if "table.txt" in line)
    assert "nccl-tests" in row
    assert "measurements 4" in row
    assert ran.out == "\n".join(line.rstrip() for line in ran.out.splitlines()) + "\n"


def test_read_as_json(busbw, healthy_job):
    answer = json.loads(busbw("read", healthy_job, "--json").out)
    assert answer["schema"] == 1
    assert answer["files"][0]["formats"] == ["nccl-tests"]
    assert answer["files"][0]["rows"]["measurements"] == 4
    assert "run" not in answer


def test_the_last_line_of_read_is_the_run(busbw, healthy_job, tmp_path):
    """The same files make the same run, as text and as JSON."""
    run = busbw("read", healthy_job, "--store", tmp_path / "lab").out.splitlines()[-1]
    again = json.loads(busbw("read", healthy_job, "--store", tmp_path / "lab", "--json").out)["run"]
    assert len(run) == 32
    assert again == run
    rows = json.loads(busbw("query", "SELECT DISTINCT run_id FROM runs", "--store", tmp_path / "lab", "--json").out)[
        "rows"
    ]
    assert rows == [{"run_id": run}]


def test_nothing_readable_makes_no_store(busbw, tmp_path):
    (tmp_path / "empty.log").write_text("")
    ran = busbw("read", tmp_path / "empty.log", "--store", tmp_path / "lab")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"busbw: {tmp_path / 'empty.log'}: empty:")
    assert not (tmp_path / "lab").exists()


def test_what_is_lost_beside_what_is_read_is_in_the_store(busbw, healthy_job, tmp_path):
    """The loss is met before the first row is kept."""
    (healthy_job / "a.log").write_text("")
    assert busbw("read", healthy_job, "--store", tmp_path / "lab").status == 0
    answer = busbw("query", "SELECT kind, count FROM losses", "--store", tmp_path / "lab", "--json")
    assert {"kind": "empty", "count": 1} in json.loads(answer.out)["rows"]


def test_query_prints_a_table_json_or_csv(busbw, healthy_job, tmp_path):
    lab = tmp_path / "lab"
    busbw("read", healthy_job, "--store", lab)
    sql = "SELECT size_bytes, wrong, root FROM measurements WHERE in_place ORDER BY ALL"
    table = busbw("query", sql, "--store", lab).out.splitlines()
    assert [line.split() for line in table if "\u2500" not in line] == [
        ["size_bytes", "wrong", "root"],
        ["4294967296", "0"],
        ["8589934592", "0"],
    ]
    assert json.loads(busbw("query", sql, "--store", lab, "--json").out) == {
        "schema": 1,
        "rows": [
            {"size_bytes": 4294967296, "wrong": 0.0, "root": None},
            {"size_bytes": 8589934592, "wrong": 0.0, "root": None},
        ],
    }
    assert busbw("query", sql, "--store", lab, "--csv").out == (
        "size_bytes,wrong,root\n4294967296,0.0,\n8589934592,0.0,\n"
    )


def test_csv_keeps_every_digit_and_maps_are_json(busbw, healthy_job, tmp_path):
    lab = tmp_path / "lab"
    busbw("read", healthy_job, "--store", lab)
    out = busbw("query", "SELECT 839160000001.5::DOUBLE AS x, MAP {'a': 'b'} AS m, 1 AS x", "--store", lab, "--csv").out
    assert out == 'x,m,x_2\n839160000001.5,"{""a"": ""b""}",1\n'


def test_a_refused_query_says_why_and_names_the_tables(busbw, healthy_job, tmp_path):
    lab = tmp_path / "lab"
    busbw("read", healthy_job, "--store", lab)
    ran = busbw("query", "SELECT * FROM nonsense", "--store", lab)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("busbw: ")
    assert "measurements" in ran.err


def test_a_store_that_is_not_there_is_status_2(busbw, tmp_path):
    ran = busbw("query", "SELECT 1", "--store", tmp_path / "nowhere")
    assert ran.status == 2
    assert not (tmp_path / "nowhere").exists()


def test_a_store_is_explained_as_the_files_of_its_latest_run(busbw, healthy_job, sick_job, tmp_path):
    """From the kept originals, though the files are gone; any other run by its name; a store that is empty is no input."""
    lab = tmp_path / "lab"
    sick = busbw("read", sick_job, "--store", lab).out.splitlines()[-1]
    told = json.loads(busbw("explain", sick_job, "--json").out)
    assert json.loads(busbw("explain", lab, "--json").out) == told
    busbw("read", healthy_job, "--store", lab)
    shutil.rmtree(sick_job)
    latest = busbw("explain", lab, "--json")
    assert json.loads(latest.out)["verdict"] != "faulty"
    assert "the latest of 2" in latest.err
    assert json.loads(busbw("explain", lab / sick, "--json").out) == told
    for file in (lab / "artefacts").iterdir():
        file.unlink()
    gone = busbw("explain", lab / sick)
    assert gone.status == 2
    assert "the store no longer keeps it" in gone.err


def test_a_run_that_was_recorded_is_explained_from_its_rows(busbw, tmp_path):
    """It has no file: its rows are shown as one. host3 is slow with every partner."""
    lab = tmp_path / "lab"
    with Store(lab).record("pairs of host0 to host4", Circumstances(host="host0")) as run:
        run.append("pairs", [
            {"tool": "busbw run", "quantity": "bandwidth", "src": f"host{a}", "dst": f"host{b}", "value": 3e9 if 3 in (a, b) else 6e9, "unit": "bytes/s"}
            for a in range(5)
            for b in range(a)
        ])  # fmt: skip
    ran = busbw("explain", lab)
    assert ran.status == 1
    assert "host3 is slow with every partner: 3 GB/s where others reach 6 GB/s" in ran.out
    assert f"pairs of host0 to host4 ({run.run_id}):" in ran.out
    assert '"src": "host3", "dst": "host0"' in ran.out
    twice = busbw("explain", lab, lab / run.run_id)
    assert (twice.status, twice.err) == (1, "")


def test_a_store_in_the_folder_of_the_job_is_not_read(busbw, healthy_job):
    """The same folder read twice is the same run; the store is named."""
    lab = healthy_job / "lab"
    first = busbw("read", healthy_job, "--store", lab).out.splitlines()[-1]
    again = json.loads(busbw("read", healthy_job, "--store", lab, "--json").out)
    assert again["run"] == first
    assert [(loss["kind"], loss["path"]) for loss in again["losses"]] == [("store-skipped", str(lab))]
