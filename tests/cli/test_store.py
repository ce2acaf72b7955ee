"""`busbw store`, and the forms in which a store's rows leave it."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from busbw.observations.store import Circumstances, MeasuredCell, Store

CELL = MeasuredCell("all_reduce", 1 << 20, "float32", "sum", 4, 1, False, "builtin")


def recorded(folder, name="nightly", slow=1.0, commits=1) -> str:
    """A run of one cell: 100 iterations on 4 ranks, 1000 ns each; rank 3 comes 50 ns late."""
    with Store(folder).record(name, Circumstances("n1")) as run:
        for _ in range(commits):
            for rank in range(4):
                run.samples(
                    CELL, rank=rank, host="n1", time_ns=np.full(100, int(1000 * slow)), arrival_ns=50 * (rank == 3)
                )
            run.commit()
    return run.run_id


def test_info_tells_runs_rows_and_bytes(busbw, tmp_path):
    recorded(tmp_path / "lab")
    ran = busbw("store", "info", tmp_path / "lab")
    assert ran.status == 0
    assert "1 runs" in ran.out
    assert "1 recorded (1 done)" in ran.out
    assert re.search(r"samples +400", ran.out)
    told = json.loads(busbw("store", "info", tmp_path / "lab", "--json").out)
    assert (told["schema"], told["recorded"], told["rows"], told["schema_versions"]) == (
        1,
        {"done": 1},
        {"samples": 400},
        {"2": 1},
    )


def test_compact_and_prune_say_what_they_did(busbw, tmp_path):
    run = recorded(tmp_path / "lab", commits=3)
    assert re.match(
        r"1 runs compacted: \d+ files, .* -> \d+ files", busbw("store", "compact", tmp_path / "lab", "--grace", "0").out
    )
    assert busbw("store", "compact", tmp_path / "lab", "--grace", "0").out == "nothing to compact\n"
    assert "0 runs" in busbw("store", "prune", tmp_path / "lab", "--older-than", "1d").err
    ran = busbw("store", "prune", tmp_path / "lab", "--older-than", "0h", "--dry-run")
    assert ran.out.startswith(run)
    assert "would be removed" in ran.err
    assert (
        json.loads(busbw("store", "prune", tmp_path / "lab", "--older-than", "0h", "--json").out)["runs"][0]["run"]
        == run
    )
    assert busbw("store", "info", tmp_path / "lab").status == 2


@pytest.mark.parametrize(
    "verb", [["info"], ["compact"], ["prune", "--older-than", "1d"], ["prometheus"], ["copy", "elsewhere"]]
)
def test_a_folder_that_is_no_store_is_named(busbw, tmp_path, verb):
    ran = busbw("store", verb[0], tmp_path / "typo", *verb[1:])
    assert ran.status == 2
    assert f"{tmp_path / 'typo'}: holds no run. Fill a store" in ran.err
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("age", ["90", "d", "-1d", "1y", ""])
def test_an_age_that_is_none_is_refused(busbw, tmp_path, age):
    recorded(tmp_path / "lab")
    ran = busbw("store", "prune", tmp_path / "lab", f"--older-than={age}")
    assert ran.status == 2
    assert "write an age as 90d, 12w or 36h" in ran.err


def test_copy_makes_a_store_that_answers_the_same(busbw, tmp_path):
    run = recorded(tmp_path / "lab")
    assert busbw("store", "copy", tmp_path / "lab", tmp_path / "other").out == f"{run}\n"
    assert "0 runs copied" in busbw("store", "copy", tmp_path / "lab", tmp_path / "other").err
    assert Store(tmp_path / "other").query("SELECT count(*) AS n FROM samples").to_pylist() == [{"n": 400}]


def test_prometheus_text_is_what_the_textfile_collector_takes(busbw, tmp_path):
    """1 MiB in 1000 ns on 4 ranks: 1048.576 GB/s, times 2 (n - 1) / n = 1.5. Each metric: HELP, TYPE, then its lines, no timestamps."""
    recorded(tmp_path / "lab", name='a "b" \\c')
    assert busbw("store", "prometheus", tmp_path / "lab", "-o", tmp_path / "busbw.prom").status == 0
    lines = (tmp_path / "busbw.prom").read_text().splitlines()
    cell = 'tool="builtin",collective="all_reduce",size_bytes="1048576",dtype="float32",redop="sum",ranks="4",nodes="1",in_place="false"'
    assert lines[:3] == [
        "# HELP busbw_time_seconds Median time of a call.",
        "# TYPE busbw_time_seconds gauge",
        f"busbw_time_seconds{{{cell}}} 1e-06",
    ]
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values[f"busbw_bus_bandwidth_bytes_per_second{{{cell}}}"]) == pytest.approx(1048.576e9 * 1.5)
    assert values['busbw_run_status{run="a \\"b\\" \\\\c",status="done"}'] == "1"
    assert all(
        re.fullmatch(r'# (HELP|TYPE) [a-z_]+ .+|[a-z_]+\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+\} [0-9.e+-]+', line)
        for line in lines
    )
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(set(helped)) == len(helped)


def test_rows_leave_in_every_format(busbw, tmp_path):
    recorded(tmp_path / "lab")
    sql = "SELECT rank, count(*) AS n, rank FROM samples GROUP BY ALL ORDER BY ALL"
    due = {"rank": [0, 1, 2, 3], "n": [100] * 4, "rank_2": [0, 1, 2, 3]}

    def made(form: str):
        file = tmp_path / f"out.{form}"
        assert busbw("query", sql, "--store", tmp_path / "lab", "--format", form, "-o", file).status == 0
        return file

    assert pq.read_table(made("parquet")).to_pydict() == due
    assert pa.ipc.open_file(made("arrow")).read_all().to_pydict() == due
    assert made("csv").read_text().splitlines()[:2] == ["rank,n,rank_2", "0,100,0"]
    assert json.loads(made("json").read_text())["rows"][3] == {"rank": 3, "n": 100, "rank_2": 3}
    assert "rank_2" in made("table").read_text()


def test_formats_that_exclude_each_other_are_refused(busbw, tmp_path):
    for options in (["--json", "--csv"], ["--json", "--format", "csv"], ["--format", "xml"]):
        assert busbw("query", "SELECT 1", "--store", tmp_path, *options).status == 2


def test_standard_questions_are_asked_by_name(busbw, tmp_path):
    a, b = recorded(tmp_path / "lab"), recorded(tmp_path / "lab", "second", slow=1.5)

    def rows(*options: str):
        ran = busbw("query", "--store", tmp_path / "lab", "--json", *options)
        assert ran.status == 0, ran.err
        return json.loads(ran.out)["rows"]

    (latest,) = rows("--standard", "latest")
    assert (latest["run_id"], latest["run"], latest["samples"], latest["p50_ns"]) == (b, "second", 400, 1500.0)
    (both,) = rows("--standard", "percentiles")
    assert (both["samples"], both["min_ns"], both["max_ns"], both["p50_ns"], both["mean_ns"]) == (
        800,
        1000,
        1500,
        1250.0,
        1250.0,
    )
    (one,) = rows("--standard", "percentiles", "--run", a)
    assert (one["samples"], one["p99_ns"]) == (400, 1000.0)
    assert [(row["rank"], row["ratio"]) for row in rows("--standard", "rank-medians", "--run", a)] == [
        (rank, 1.0) for rank in range(4)
    ]
    (worst, *others) = rows("--standard", "stragglers")
    assert (worst["rank"], worst["host"], worst["last_share"], worst["expected"], worst["p50_arrival_ns"]) == (
        3,
        "n1",
        1.0,
        0.25,
        50.0,
    )
    assert [row["last_times"] for row in others] == [0, 0, 0]
    (compared,) = rows("--standard", "compare", "--run", a, "--run", b)
    assert (compared["a_ns"], compared["b_ns"], compared["ratio"]) == (1000.0, 1500.0, 1.5)
    assert [(row["run_id"], row["p50_ns"]) for row in rows("--standard", "history")] == [(a, 1000.0), (b, 1500.0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one SELECT, or --standard NAME"),
        (["SELECT 1", "--standard", "latest"], "give one SELECT, or --standard NAME"),
        (["SELECT 1", "--run", "x"], "--run belongs to --standard"),
        (["--standard", "fastest"], "--standard fastest: there are latest, percentiles"),
        (["--standard", "compare", "--run", "0" * 32], "--standard compare takes 2 of --run, not 1"),
        (["--standard", "percentiles", "--run", "x' OR 1=1 --"], "is no run id: 32 hexadecimal digits"),
    ],
)
def test_a_standard_question_that_is_none_is_refused(busbw, tmp_path, options, message):
    recorded(tmp_path / "lab")
    ran = busbw("query", "--store", tmp_path / "lab", *options)
    assert ran.status == 2
    assert message in ran.err


def test_recorded_runs_are_compared_by_the_medians_of_their_cells(busbw, tmp_path):
    recorded(tmp_path / "a")
    recorded(tmp_path / "b", slow=1.5)
    ran = busbw("compare", tmp_path / "a", tmp_path / "b", "--json", "--junit", tmp_path / "junit.xml")
    (row,) = json.loads(ran.out)["rows"]
    assert (row["tool"], row["collective"], row["a_s"], row["b_s"], row["samples"]) == (
        "builtin",
        "all_reduce",
        pytest.approx(1e-6),
        pytest.approx(1.5e-6),
        [1, 1],
    )
    assert 'name="1 MiB"' in (tmp_path / "junit.xml").read_text()


def test_a_recorded_run_that_summed_itself_up_is_taken_at_its_word(busbw, tmp_path):
    """Samples of the same cells would count it twice."""
    with Store(tmp_path / "a").record("run", Circumstances()) as run:
        run.samples(CELL, rank=0, time_ns=[1000])
        run.append(
            "measurements",
            [{"tool": "busbw", "collective": "all_reduce", "size_bytes": 8, "ranks": 4, "time_ns": 2000}],
        )
    (row,) = json.loads(busbw("compare", tmp_path / "a", tmp_path / "a", "--json").out)["rows"]
    assert (row["size_bytes"], row["a_s"]) == (8, pytest.approx(2e-6))


def test_answers_come_as_arrow_and_say_what_is_missing(tmp_path, monkeypatch):
    import sys

    from busbw.errors import InputError

    recorded(tmp_path / "lab")
    answer = Store(tmp_path / "lab").query("SELECT rank FROM samples LIMIT 1")
    assert answer.arrow().to_pydict() == pa.table(answer).to_pydict() == {"rank": [0]}
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=f"{name} is not installed: pip install {name}"):
            getattr(answer, name)()


def test_pandas_keeps_nanoseconds_exact(tmp_path):
    """A column with NULLs: floats would round 2^53 + 1."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'busbw[bench]'")
    recorded(tmp_path / "lab")
    frame = Store(tmp_path / "lab").query("SELECT * FROM (VALUES (9007199254740993), (NULL)) t(time_ns)").pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["time_ns"].iloc[0] == 2**53 + 1


def test_polars_takes_an_answer(tmp_path):
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    recorded(tmp_path / "lab")
    frame = Store(tmp_path / "lab").query("SELECT * FROM (VALUES (9007199254740993), (NULL)) t(time_ns)").polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["time_ns"].to_list() == [2**53 + 1, None]
