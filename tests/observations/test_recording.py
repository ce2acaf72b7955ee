"""What a recorded run promises: acknowledged rows are there for good, cost few bytes, and say what they measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.measure.store import recording_trials

from busbw.errors import InputError
from busbw.observations import SCHEMAS, Artefact, Circumstances, rows_of
from busbw.observations.store import MeasuredCell, Recorder, Store, cell_number
from busbw.observations.store.places import LocalPlace

CELL = MeasuredCell("all_reduce", 1024, "float32", "sum", 2, 1, False, "builtin")
NOWHERE = Circumstances(host="n1")


def record(store: Store, name: str = "run", **options) -> Recorder:
    return store.record(name, NOWHERE, **options)


def times(store: Store, run: str | None = None) -> list[int]:
    where = f"WHERE run_id = '{run}'" if run else ""
    return store.query(f"SELECT time_ns FROM samples {where} ORDER BY time_ns").column(0).to_pylist()


# --- What comes back ------------------------------------------------------------------------------------------------


def test_every_column_of_a_sample_comes_back(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(
            CELL._replace(algorithm="ring", variant="cuda_graph"), rank=[0, 1], peer=[1, 0], iteration=7, calls=10, time_ns=[5, 6],
            start_ns=[1_790_000_000_000_000_001, 3], arrival_ns=[0, 4], host={0: "a", 1: "b"},
        )  # fmt: skip
    rows = store.query("SELECT * EXCLUDE (artefact) FROM samples ORDER BY rank").to_pylist()
    cell = CELL._replace(algorithm="ring", variant="cuda_graph")
    same = {
        "line": None,
        "byte_offset": None,
        "run_id": run.run_id,
        "cell": cell_number(cell),
        **cell._asdict(),
        "iteration": 7,
        "calls": 10,
    }
    assert rows == [
        same
        | {"rank": 0, "peer": 1, "time_ns": 5, "start_ns": 1_790_000_000_000_000_001, "arrival_ns": 0, "host": "a"},
        same | {"rank": 1, "peer": 0, "time_ns": 6, "start_ns": 3, "arrival_ns": 4, "host": "b"},
    ]


def test_columns_may_be_values_for_all_and_what_is_not_known_is_null(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(MeasuredCell("barrier", 0), rank=None, time_ns=np.array([3, 4], np.uint32), host={0: "a"})
        run.samples(MeasuredCell("barrier", 0), rank=3, time_ns=5, host={2: "a"})
        run.samples(MeasuredCell("barrier", 0), rank=3, time_ns=[], host="a")
    rows = store.query(
        "SELECT rank, peer, iteration, time_ns, dtype, host, arrival_ns FROM samples ORDER BY time_ns"
    ).to_pylist()
    assert [(row["rank"], row["iteration"], row["time_ns"]) for row in rows] == [(None, 0, 3), (None, 1, 4), (3, 0, 5)]
    assert {row[name] for row in rows for name in ("peer", "dtype", "host", "arrival_ns")} == {None}


def test_samples_of_a_rank_lie_together_and_are_counted_within_it(tmp_path):
    """Iteration-major input, as a benchmark gathers it: rank 0, 1, 0, 1; times 0, 1, 2, 3."""
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(CELL, rank=[0, 1, 0, 1], time_ns=[0, 1, 2, 3])
    (segment,) = (tmp_path / "store" / run.run_id).glob("rows-*.parquet")
    rows = pq.read_table(segment, columns=["rank", "iteration", "time_ns"]).to_pydict()
    assert rows == {"rank": [0, 0, 1, 1], "iteration": [0, 1, 0, 1], "time_ns": [0, 2, 1, 3]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time_ns": [1, 2], "rank": [1, 2, 3]}, "columns of samples differ in length: rank 3, time_ns 2"),
        ({"time_ns": [1.5], "rank": 0}, "time_ns holds float64; integers are wanted, times in nanoseconds"),
        ({"time_ns": [[1]], "rank": 0}, "time_ns has 2 dimensions"),
        ({"time_ns": 1, "rank": 2**40}, "1099511627776 does not fit into 32 bits"),
        ({"time_ns": 1, "rank": -1}, "rank -1 is below 0"),
    ],
)
def test_what_is_no_sample_is_refused(tmp_path, given, message):
    with record(Store(tmp_path / "store")) as run, pytest.raises(ValueError, match=message):
        run.samples(CELL, **given)


def test_cells_are_told_by_what_was_measured_alone():
    assert cell_number(CELL) == cell_number(MeasuredCell(*CELL))
    changed = [CELL._replace(**{name: "x"}) for name in CELL._fields]
    assert len({cell_number(cell) for cell in [CELL, *changed]}) == len(CELL) + 1


def test_rows_of_other_tables_go_with_a_batch_and_point_to_the_run(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.append("measurements", [{"collective": "all_reduce", "size_bytes": 8, "time_ns": 5, "backend": "builtin"}])
        run.append("settings", rows_of("settings", [{"name": "NCCL_ALGO", "value": "Ring"}]).batch)
        run.append("pairs", pa.table({"src": ["a"], "dst": ["b"], "value": [1]}))
        assert run.commit() == 3
    assert store.query("SELECT run_id, time_ns, backend FROM measurements JOIN runs USING (artefact)").to_pylist() == [
        {"run_id": run.run_id, "time_ns": 5, "backend": "builtin"}
    ]
    assert store.query("SELECT value FROM settings WHERE name = 'NCCL_ALGO'").to_pylist() == [{"value": "Ring"}]
    assert store.query("SELECT src, value FROM pairs").to_pylist() == [{"src": "a", "value": 1.0}]


def test_rows_that_do_not_fit_are_refused(tmp_path):
    with record(Store(tmp_path / "store")) as run:
        with pytest.raises(ValueError, match=r"no rows can be added to 'samples' here; .*samples\(\) adds samples"):
            run.append("samples", [])
        with pytest.raises(ValueError, match="table pairs has no column"):
            run.append("pairs", [{"nonsense": 1}])
        with pytest.raises(ValueError, match="rows of pairs do not fit its columns"):
            run.append("pairs", pa.table({"value": ["high"]}))


def test_secrets_are_blanked_in_rows_and_circumstances(tmp_path):
    store = Store(tmp_path / "store")
    told = Circumstances("n1", ("run", "--password=hunter2"), {"AWS_SECRET_ACCESS_KEY": "hunter2", "NCCL_ALGO": "Ring"})
    with store.record("run", told) as run:
        run.append("settings", [{"name": "AWS_SECRET_ACCESS_KEY", "value": "hunter2"}])
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert store.recorded(run.run_id).circumstances.environment == {"NCCL_ALGO": "Ring"}


def test_circumstances_are_settings_so_that_comparisons_see_them(tmp_path):
    store = Store(tmp_path / "store")
    told = Circumstances("n1", (), {"NCCL_ALGO": "Ring"}, {"NCCL": "2.28.3"}, "4f", "abc", True)
    with store.record("run", told):
        pass
    rows = store.query("SELECT host, name, value, origin FROM settings ORDER BY name").to_pylist()
    assert {row["host"] for row in rows} == {"n1"}
    assert [(row["name"], row["value"], row["origin"]) for row in rows] == [
        ("NCCL", "2.28.3", "version"),
        ("NCCL_ALGO", "Ring", "environment"),
        ("git", "abc with changes", "git"),
        ("topology", "4f", "topology"),
    ]


def test_the_circumstances_of_this_process_are_its_versions_and_allowed_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    told = Circumstances.here(argv=["busbw", "run"], versions={"NCCL": "2.28.3"}, folder=tmp_path)
    assert told.environment["NCCL_DEBUG"] == "INFO"
    assert "MY_TOKEN" not in told.environment
    assert {"busbw", "Python", "NCCL"} <= set(told.versions)
    assert (told.git_commit, told.git_changed) == (None, None)


# --- Bytes ----------------------------------------------------------------------------------------------------------


def test_a_long_run_of_one_cell_costs_what_its_noise_holds(tmp_path):
    """Times of 20 us with 5 % noise have log2(1000 sqrt(2 pi e)) = 12.0 bits each, 1.5 bytes; all else of a sample repeats."""
    store, random = Store(tmp_path / "store"), np.random.default_rng(1)
    samples = 400_000
    with record(store) as run:
        for rank in range(4):
            run.samples(CELL, rank=rank, host="n1", time_ns=random.normal(20_000, 1_000, samples // 4).astype(np.int64))
    size = sum(path.stat().st_size for path in (tmp_path / "store" / run.run_id).iterdir())
    assert size / samples < 1.5 + 0.3


# --- Batches, writers, ends -----------------------------------------------------------------------------------------


def test_nothing_is_there_before_commit_and_all_after(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(CELL, rank=0, time_ns=[1, 2])
        assert times(store) == []
        assert run.commit() == 2
        assert times(store) == [1, 2]
        assert run.commit() == 0
        run.samples(CELL, rank=1, time_ns=[3])
        assert run.cells() == {CELL: 2}
    assert times(store) == [1, 2, 3]
    assert store.query("SELECT cell, samples FROM cells").to_pylist() == [{"cell": cell_number(CELL), "samples": 3}]


def test_recorders_of_many_processes_write_into_one_run(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as first, record(store, run_id=first.run_id) as second:
        second.samples(CELL, rank=1, time_ns=[2])
        first.samples(CELL, rank=0, time_ns=[1])
    assert times(store, first.run_id) == [1, 2]
    assert store.recorded(first.run_id).status() == "done"
    assert store.query("SELECT count(*) AS n FROM runs").to_pylist() == [{"n": 1}]


def status(store: Store, run: str) -> tuple[str, str | None]:
    ends = store.recorded(run).ends.values()
    return store.recorded(run).status(), next((end.reason for end in ends if end.reason), None)


def test_an_error_marks_the_run_as_died_and_keeps_what_it_measured(tmp_path):
    store = Store(tmp_path / "store")
    run = record(store)
    with pytest.raises(RuntimeError), run:
        run.samples(CELL, rank=0, time_ns=[1])
        raise RuntimeError("rank 3 is gone")
    assert status(store, run.run_id) == ("died", "RuntimeError: rank 3 is gone")
    assert times(store) == [1]


def test_a_run_whose_process_was_killed_has_died_and_resumes(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from busbw.observations import Circumstances; from busbw.observations.store import *\n"
        "run = Store(Path(sys.argv[1])).record('run', Circumstances()); cell = MeasuredCell('all_reduce', 8)\n"
        "run.samples(cell, rank=0, time_ns=[1]); run.commit(); run.samples(cell, rank=0, time_ns=[2])\n"
        "print(run.run_id, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    store, run = Store(tmp_path / "store"), killed.stdout.strip()
    assert status(store, run) == ("died", None)
    assert times(store) == [1]
    with record(store, run_id=run, resume=True) as again:
        assert again.cells() == {MeasuredCell("all_reduce", 8): 1}
        assert store.recorded(run).status() == "running"
        again.samples(MeasuredCell("all_reduce", 16), rank=0, time_ns=[3])
    assert store.recorded(run).status() == "done"
    assert times(store) == [1, 3]


def test_a_writer_of_another_machine_lives_as_long_as_it_is_heard_of(tmp_path):
    store = Store(tmp_path / "store")
    run = record(store)
    assert store.recorded(run.run_id).status() == "running"
    (path,) = (tmp_path / "store" / run.run_id).glob("writer-*.json")
    told = json.loads(path.read_text()) | {"machine": "elsewhere"}
    path.write_text(json.dumps(told))
    assert store.recorded(run.run_id).status() == "running"
    path.write_text(json.dumps(told | {"started_ns": told["started_ns"] - 2 * 3600 * 10**9}))
    assert store.recorded(run.run_id).status() == "died"
    run.samples(CELL, rank=0, time_ns=[1])
    run.commit()
    assert store.recorded(run.run_id).status() == "running"


def test_what_is_no_run_to_resume_is_named(tmp_path):
    with pytest.raises(InputError, match=f"no recorded run {'0' * 32} to resume"):
        record(Store(tmp_path), run_id="0" * 32, resume=True)
    with pytest.raises(ValueError, match="'x' is no run id: 32 hexadecimal digits"):
        record(Store(tmp_path), run_id="x")


def test_a_full_disk_ends_the_recorder_and_keeps_what_was_acknowledged(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    run = record(store)
    run.samples(CELL, rank=0, time_ns=[1])
    run.commit()
    run.samples(CELL, rank=0, time_ns=[2])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="Free some space; what was committed before is safe"):
            run.commit()
    with pytest.raises(ValueError, match="has ended, or could not write"):
        run.samples(CELL, rank=0, time_ns=[3])
    assert times(store) == [1]


def test_a_damaged_record_is_reported_and_the_rest_is_there(tmp_path):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(CELL, rank=0, time_ns=[1])
        run.commit()
        run.samples(CELL, rank=0, time_ns=[2])
    first, _ = sorted((tmp_path / "store" / run.run_id).glob("commit-*.json"))
    first.write_text("{")
    assert times(store) == [2]
    (problem,) = store.problems()
    assert (problem.kind, problem.path) == ("damaged-manifest", str(first))


@pytest.mark.parametrize("name", ["../x.parquet", "rows-0-1-samples.parquet", "manifest.json"])
def test_a_record_cannot_name_a_file_that_is_no_segment(tmp_path, name):
    store = Store(tmp_path / "store")
    with record(store) as run:
        run.samples(CELL, rank=0, time_ns=[1])
    (path,) = (tmp_path / "store" / run.run_id).glob("commit-*.json")
    told = json.loads(path.read_text())
    told["segments"]["samples"][0]["name"] = name
    path.write_text(json.dumps(told))
    assert times(store) == []
    assert [problem.kind for problem in store.problems()] == ["damaged-manifest"]


def test_runs_of_files_and_recorded_ones_live_in_one_store(tmp_path):
    store, log = Store(tmp_path / "store", stale_after_s=0), tmp_path / "log"
    log.write_text("x")
    with record(store) as run:
        run.samples(CELL, rank=0, time_ns=[1])
    one = Artefact.of(log, "log")
    with store.begin([one]) as writer:
        writer.add(one, rows_of("settings", [{"artefact": one.sha256, "name": "A", "value": "b"}]))
        writer.commit()
    assert times(store) == [1]
    assert store.query("SELECT path, status FROM runs ORDER BY created_ns").to_pylist() == [
        {"path": "run", "status": "done"}, {"path": "log", "status": "done"},
    ]  # fmt: skip
    assert store.problems() == []


# --- Schema versions ------------------------------------------------------------------------------------------------


def test_a_store_of_schema_1_is_read_and_goes_on(tmp_path):
    """Written by the first version from cli/demo_inputs/healthy/nccl-tests.txt: ten rows; columns that came later are NULL."""
    shutil.copytree(Path(__file__).parent / "data" / "store_schema_1", tmp_path / "store")
    store = Store(tmp_path / "store")
    count = "SELECT count(*) AS rows, count(time_ns) AS times, count(backend) AS backends FROM measurements"
    assert store.query(count).to_pylist() == [{"rows": 10, "times": 10, "backends": 0}]
    assert store.problems() == []
    with record(store) as run:
        run.append("measurements", [{"time_ns": 5, "backend": "builtin"}])
        run.samples(CELL, rank=0, time_ns=[1])
    assert store.query(count).to_pylist() == [{"rows": 11, "times": 11, "backends": 1}]
    assert store.query("FROM measurements").schema.names == SCHEMAS["measurements"].names


# --- Upkeep ---------------------------------------------------------------------------------------------------------


def batches(store: Store, count: int, **options) -> str:
    """A run of `count` commits, one sample each: times 0, 1, ..."""
    with record(store, **options) as run:
        for number in range(count):
            run.samples(CELL._replace(size_bytes=8 << (number % 2)), rank=0, time_ns=[number])
            run.append("settings", [{"name": "A", "value": str(number)}])
            run.commit()
    return run.run_id


def test_compaction_keeps_every_row_in_few_files(tmp_path):
    store = Store(tmp_path / "store")
    run = batches(store, 6)
    cells = store.recorded(run).cells()
    (done,) = store.compact()
    assert done.run_id == run
    assert done.files[1] < done.files[0]
    assert len(list((tmp_path / "store" / run).glob("rows-*"))) == 2
    assert not list((tmp_path / "store" / run).glob("commit-*"))
    assert times(store) == list(range(6))
    assert store.query("SELECT count(*) AS n FROM settings WHERE name = 'A'").to_pylist() == [{"n": 6}]
    assert store.recorded(run).cells() == cells
    assert store.recorded(run).status() == "done"
    assert store.compact() == []


def test_a_run_goes_on_after_compaction(tmp_path):
    store = Store(tmp_path / "store")
    run = batches(store, 3)
    for first in (3, 4):
        store.compact()
        with record(store, run_id=run) as more:
            more.samples(CELL, rank=0, time_ns=[first])
    store.compact()
    assert times(store) == [0, 1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "store" / run).glob("sealed-*")] == ["sealed-000003.json"]


def test_of_two_compactions_at_a_time_one_gives_up(tmp_path, monkeypatch):
    """Both read the same batches; if both replaced them, rows would be there twice."""
    from busbw.observations.store import upkeep

    store = Store(tmp_path / "store")
    batches(store, 3)
    merged = upkeep._merged

    def and_another_is_faster(table: str, paths: list[Path]):
        monkeypatch.setattr(upkeep, "_merged", merged)
        upkeep._compact(LocalPlace(store.folder), upkeep.recorded_runs(LocalPlace(store.folder))[0][0])
        return merged(table, paths)

    monkeypatch.setattr(upkeep, "_merged", and_another_is_faster)
    store.compact()
    assert times(store) == [0, 1, 2]
    assert store.query("SELECT count(*) AS n FROM settings WHERE name = 'A'").to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("calls", range(1, 5))
def test_a_compaction_that_is_killed_leaves_every_row_once(tmp_path, monkeypatch, calls):
    """It dies at its nth step that changes the store: two segments, the seal, the removal."""
    store, done = Store(tmp_path / "store"), []
    batches(store, 3)

    class KilledError(Exception):
        pass

    def until(step):
        def stepped(*given):
            done.append(step)
            if len(done) == calls:
                raise KilledError
            return step(*given)

        return stepped

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        for name in ("write", "create", "remove"):
            patched.setattr(LocalPlace, name, until(getattr(LocalPlace, name)))
        store.compact()
    assert times(store) == [0, 1, 2]
    store.compact()
    assert times(store) == [0, 1, 2]
    assert len(list((tmp_path / "store").glob("*/sealed-*"))) == 1


def test_readers_find_every_row_while_a_run_is_written_and_compacted(tmp_path):
    """Rows that were acknowledged before a query began are in its answer, once."""
    store = Store(tmp_path / "store")
    acknowledged, failures, ended = [0], [], threading.Event()

    def read() -> None:
        while not ended.is_set():
            due = acknowledged[0]
            if due:
                found = times(store)
                if found[:due] != list(range(due)) or len(set(found)) != len(found):
                    failures.append((due, found))

    reader = threading.Thread(target=read)
    reader.start()
    with record(store) as run:
        for number in range(15):
            run.samples(CELL, rank=0, time_ns=[number])
            run.commit()
            acknowledged[0] = number + 1
            if number % 10 == 5:
                store.compact(grace_s=0.2)
    ended.set()
    reader.join()
    assert failures == []


def test_leftovers_of_killed_writers_go_once_they_are_old(tmp_path):
    store = Store(tmp_path / "store")
    run = batches(store, 1)
    folder = tmp_path / "store" / run
    left = [folder / f"rows-{'0' * 16}-000001-samples.parquet", folder / ".rows-x.parquet.17.00.part"]
    for path in left:
        path.write_bytes(b"x")
    store.compact()
    assert all(path.exists() for path in left)
    assert store.content().leftover_bytes == 2
    Store(tmp_path / "store", stale_after_s=0).compact()
    assert not any(path.exists() for path in left)
    assert times(store) == [0]


def test_pruning_removes_old_runs_and_no_other(tmp_path):
    store, log = Store(tmp_path / "store", stale_after_s=-1), tmp_path / "log"
    log.write_text("x")
    one = Artefact.of(log, "log")
    with store.begin([one], created_ns=1) as writer:
        writer.keep(one, ["test"])
        writer.commit()
    old, running = batches(store, 2), record(store)
    now = store.recorded(running.run_id).created_ns + 1
    new = batches(store, 1)
    assert [pruned.run_id for pruned in store.prune(before_ns=now, dry_run=True)] == [writer.run_id, old]
    assert store.query("SELECT count(*) AS n FROM runs").to_pylist() == [{"n": 4}]
    assert {pruned.run_id for pruned in store.prune(before_ns=now)} == {writer.run_id, old}
    assert {path.name for path in (tmp_path / "store").iterdir() if not path.name.startswith(".")} == {
        new,
        running.run_id,
        "artefacts",
    }
    assert not list((tmp_path / "store" / "artefacts").iterdir())
    assert times(store) == [0]


def test_what_a_store_holds_is_counted(tmp_path):
    store = Store(tmp_path / "store")
    with pytest.raises(InputError, match="holds no run"):
        store.content()
    batches(store, 3)
    content = store.content()
    assert (content.runs, content.recorded, content.rows) == (0, {"done": 1}, {"samples": 3, "settings": 3})
    assert (content.schemas, content.leftover_bytes, content.problems) == ({2: 3}, 0, ())
    assert content.size_bytes == sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())


def test_a_missing_segment_of_a_recorded_run_is_named(tmp_path):
    store = Store(tmp_path / "store")
    run = batches(store, 1)
    (segment,) = (tmp_path / "store" / run).glob("rows-*-samples.parquet")
    segment.unlink()
    with pytest.raises(InputError, match=f"{segment.name}: this segment of run is gone, though its run names it"):
        store.query("SELECT 1")
    assert store.compact() == []


def test_killed_writers_lose_nothing_that_they_acknowledged():
    """A sample of M6: three writers and a compaction, killed at random moments while a thread queries."""
    trials = recording_trials(1, seed=8)
    assert (trials.lost, trials.duplicates, trials.unreadable) == (0, 0, 0)
