"""What a store promises: committed is there for good, uncommitted is not there, and every artefact counts once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from busbw.errors import InputError, Loss
from busbw.observations import SCHEMAS, Artefact, Rows, rows_of, sha256_of
from busbw.observations.store import RunWriter, Store


def artefact(folder: Path, name: str, text: str | None = None) -> Artefact:
    """A small file with its own content."""
    file = folder / name
    file.write_text(f"contents of {name}\n" if text is None else text, encoding="utf-8")
    return Artefact.of(file, name)


def counters(of: Artefact, values: int, first: int = 0) -> Rows:
    """Rows whose values are first, first + 1, ... so that a missing or a doubled one shows."""
    return rows_of("counters", [{"artefact": of.sha256, "value": float(first + i)} for i in range(values)])


def read(store: Store, *artefacts: Artefact, rows: int = 3, created_ns: int | None = None) -> str:
    """A run of a reader that finds `rows` counters in every artefact."""
    with store.begin(artefacts, created_ns=created_ns) as run:
        for one in artefacts:
            run.add(one, counters(one, rows))
            run.keep(one, ["test"])
        return run.commit()


def number(store: Store, sql: str) -> int:
    return store.query(sql).column(0)[0].as_py()


def files(folder: Path) -> dict[str, int]:
    """Every file under a folder, with the time of its last change."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def leftovers(folder: Path) -> list[str]:
    """Files that no committed run needs."""
    named = {"manifest.json", ".lock"}
    for manifest in folder.glob("*/manifest.json"):
        for entry in json.loads(manifest.read_text())["artefacts"]:
            named |= {name for names in entry["segments"].values() for name in names} | {entry["sha256"]}
    return [path for path in files(folder) if Path(path).name not in named]


# --- What comes back ------------------------------------------------------------------------------------------------


def test_what_is_committed_comes_back(tmp_path):
    store, log = Store(tmp_path / "store"), artefact(tmp_path, "rank0.log")
    with store.begin([log]) as run:
        run.add(log, rows_of("events", [{"artefact": log.sha256, "line": 7, "event": "x", "fields": {"a": "b"}}]))
        run.lose(log, Loss("truncated-row", "rank0.log", 9, "The last row is cut.", 2))
        run.keep(log, ["nccl_log", "text"])
        run.commit()
    assert store.query("SELECT line, event, fields['a'] AS a FROM events").to_pylist() == [
        {"line": 7, "event": "x", "a": "b"}
    ]
    assert store.query("SELECT * FROM artefacts").to_pylist() == [
        {"artefact": log.sha256, "path": "rank0.log", "size_bytes": log.size_bytes, "formats": ["nccl_log", "text"]}
    ]
    assert store.query("SELECT path, line, kind, detail, count FROM losses").to_pylist() == [
        {"path": "rank0.log", "line": 9, "kind": "truncated-row", "detail": "The last row is cut.", "count": 2}
    ]
    assert store.query("SELECT run_id, artefact, path FROM runs").to_pylist() == [
        {"run_id": run.run_id, "artefact": log.sha256, "path": "rank0.log"}
    ]
    assert store.kept(log.sha256).read_bytes() == log.file.read_bytes()
    assert store.problems() == []


def test_every_table_is_there_with_its_columns_and_types_also_without_rows(tmp_path):
    store = Store(tmp_path / "store")
    read(store, artefact(tmp_path, "a"))
    for table, schema in SCHEMAS.items():
        answer = store.query(f"SELECT * FROM {table}")
        assert answer.schema.names == schema.names
        assert [pa.types.is_floating(f.type) for f in answer.schema] == [pa.types.is_floating(f.type) for f in schema]
    assert store.query("SELECT * FROM pairs").num_rows == 0


def test_a_run_is_named_after_the_contents_it_read_and_nothing_else(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    a, b = artefact(tmp_path, "a"), artefact(tmp_path, "b")
    moved = Artefact.of(artefact(tmp_path / "elsewhere", "c", "contents of a\n").file, "c")
    assert read(Store(tmp_path / "s1"), a, b) == read(Store(tmp_path / "s2"), b, moved, b)
    assert read(Store(tmp_path / "s3"), a) != read(Store(tmp_path / "s4"), b)


def test_segments_carry_table_and_artefact_in_their_name(tmp_path):
    store, log = Store(tmp_path / "store"), artefact(tmp_path, "a")
    run = read(store, log)
    segment = tmp_path / "store" / run / f"counters-{log.sha256[:32]}.parquet"
    assert pq.read_metadata(segment).row_group(0).column(0).compression == "ZSTD"
    manifest = json.loads((tmp_path / "store" / run / "manifest.json").read_text())
    assert (manifest["schema"], manifest["run_id"]) == (2, run)
    assert manifest["artefacts"][0]["segments"] == {"counters": [segment.name]}
    assert manifest["artefacts"][0]["rows"] == {"counters": 3}


def test_nothing_is_created_before_the_first_begin(tmp_path):
    store = Store(tmp_path / "store")
    assert store.problems() == []
    with pytest.raises(
        InputError, match=re.escape(f"{tmp_path / 'store'}: holds no committed run. Fill a store: busbw read")
    ):
        store.query("SELECT 1")
    assert not (tmp_path / "store").exists()


def test_a_file_name_that_is_not_utf8_does_not_stop_a_run(tmp_path):
    store, log = Store(tmp_path / "store"), artefact(tmp_path, "a")
    odd = Artefact(log.sha256, "rank\udcff.log", log.file, log.size_bytes)
    read(store, odd)
    assert store.query("SELECT path FROM artefacts").to_pylist() == [{"path": "rank�.log"}]


@pytest.mark.parametrize("name", ["st*re[1]?", "it's", "host=n1", "sp ace"])
def test_a_store_may_have_any_name(tmp_path, name):
    """DuckDB would expand *, ?, [ and make a column of host=n1; a folder that the pattern matches must not be read."""
    read(Store(tmp_path / "stxre1y"), artefact(tmp_path, "other"), rows=50)
    store = Store(tmp_path / name)
    read(store, artefact(tmp_path, "a"))
    assert number(store, "SELECT count(*) FROM counters") == 3
    assert store.query("FROM counters").schema.names == SCHEMAS["counters"].names


# --- A large log ----------------------------------------------------------------------------------------------------


def test_rows_are_written_in_groups_as_they_come(tmp_path, monkeypatch):
    """1,000 rows in groups of 100: ten row groups, one segment, and never 200 rows in memory."""
    monkeypatch.setattr("busbw.observations.store.segments._ROW_GROUP_ROWS", 100)
    store, log = Store(tmp_path / "store"), artefact(tmp_path, "a")
    with store.begin([log]) as run:
        for first in range(0, 1000, 10):
            run.add(log, counters(log, 10, first))
            assert all(table.waiting_rows < 200 for table in run._tables.values())
        run_id = run.commit()
    (segment,) = (tmp_path / "store" / run_id).glob("*.parquet")
    assert pq.read_metadata(segment).num_row_groups == 10
    assert number(store, "SELECT count(DISTINCT value) FROM counters") == 1000


def test_what_waits_in_memory_is_bounded_over_all_artefacts(tmp_path, monkeypatch):
    monkeypatch.setattr("busbw.observations.store.writing._WAITING_BYTES", 20_000)
    store, logs = Store(tmp_path / "store"), [artefact(tmp_path, f"{i}") for i in range(50)]
    with store.begin(logs) as run:
        for first in range(0, 100, 10):
            for log in logs:
                run.add(log, counters(log, 10, first))
                waiting = sum(table.waiting_bytes for table in run._tables.values())
                assert waiting == run._waiting_bytes <= 20_000
        run.commit()
    assert number(store, "SELECT count(*) FROM counters") == 50 * 100


def test_a_table_goes_on_in_another_segment_when_too_many_are_open(tmp_path, monkeypatch):
    """Two artefacts take turns, one segment may be open: every turn starts a segment, and no row is lost or doubled."""
    monkeypatch.setattr("busbw.observations.store.writing._OPEN_SEGMENTS", 1)
    monkeypatch.setattr("busbw.observations.store.segments._ROW_GROUP_ROWS", 10)
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    with store.begin([a, b]) as run:
        for first in range(0, 30, 10):
            run.add(a, counters(a, 10, first))
            run.add(b, counters(b, 10, first))
        run_id = run.commit()
    names = sorted(path.name for path in (tmp_path / "store" / run_id).glob(f"*{a.sha256[:32]}*"))
    assert names == [f"counters-{a.sha256[:32]}{end}.parquet" for end in ("-0001", "-0002", "")]
    assert store.query(
        "SELECT count(*) AS n, count(DISTINCT value) AS d FROM counters GROUP BY artefact"
    ).to_pylist() == [
        {"n": 30, "d": 30},
        {"n": 30, "d": 30},
    ]


# --- Once, however often it is read ---------------------------------------------------------------------------------


def test_reading_the_same_files_again_writes_nothing(tmp_path):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    first = read(store, a, b)
    before = files(tmp_path / "store")
    with store.begin([a, b]) as run:
        assert run.is_stored(a)
        assert run.is_stored(b)
        run.add(a, counters(a, 3))
        assert run.commit() == first
    assert files(tmp_path / "store") == before
    assert number(store, "SELECT count(*) FROM counters") == 6


def test_an_artefact_of_two_runs_counts_once(tmp_path):
    """Run 1 reads A and B, run 2 reads B and C: B's rows and losses are there once, and run 2 still names B."""
    store, (a, b, c) = Store(tmp_path / "store"), [artefact(tmp_path, name) for name in "abc"]
    for pair in ([a, b], [b, c]):
        with store.begin(pair) as run:
            for one in pair:
                run.add(one, counters(one, 3))
                run.lose(one, Loss("cut", one.path, 1, "Cut."))
            run.commit()
    assert number(store, "SELECT count(*) FROM counters") == 9
    assert number(store, "SELECT count(*) FROM losses") == 3
    assert number(store, "SELECT count(*) FROM artefacts") == 3
    assert store.query("SELECT path, count(*) AS runs FROM runs GROUP BY path ORDER BY path").to_pylist() == [
        {"path": "a", "runs": 1},
        {"path": "b", "runs": 2},
        {"path": "c", "runs": 1},
    ]


def test_a_run_may_be_removed_and_the_others_stay_whole(tmp_path):
    store, (a, b, c) = Store(tmp_path / "store"), [artefact(tmp_path, name) for name in "abc"]
    first = read(store, a, b)
    with store.begin([b, c]) as run:
        assert run.is_stored(b)
        assert not run.is_stored(c)
        run.add(c, counters(c, 3))
        run.commit()
    for path in (tmp_path / "store" / first).iterdir():
        path.unlink()
    (tmp_path / "store" / first).rmdir()
    assert number(store, "SELECT count(*) FROM counters") == 6


def test_two_writers_of_the_same_files_at_once_make_one_run(tmp_path):
    """Both are allowed to commit; segments of the second, cut elsewhere than the first's, must not mix with them."""
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    with store.begin([a]) as one, store.begin([a]) as other:
        one.add(a, counters(a, 5))
        other.add(a, counters(a, 2))
        other.add(a, counters(a, 3, 2))
        assert one.commit() == other.commit()
    assert store.query("SELECT count(*) AS n, count(DISTINCT value) AS d FROM counters").to_pylist() == [
        {"n": 5, "d": 5}
    ]
    assert leftovers(tmp_path / "store") == []


def test_two_writers_of_overlapping_files_at_once_double_nothing(tmp_path):
    store, (a, b, c) = Store(tmp_path / "store"), [artefact(tmp_path, name) for name in "abc"]
    with store.begin([a, b]) as one, store.begin([b, c]) as other:
        for run, pair in ((one, (a, b)), (other, (b, c))):
            for of in pair:
                run.add(of, counters(of, 4))
        assert one.commit() != other.commit()
    assert number(store, "SELECT count(*) FROM counters") == 12


def test_files_with_the_same_content_count_once_and_both_paths_are_known(tmp_path):
    store = Store(tmp_path / "store")
    one, twin = artefact(tmp_path, "rank0.log", "same"), artefact(tmp_path, "copy.log", "same")
    with store.begin([one, twin]) as run:
        assert run.is_stored(twin)
        for each in (one, twin):
            run.add(each, counters(each, 3))
            run.lose(each, Loss("cut", each.path, 1, "Cut."))
            run.keep(each, ["test"])
        run.commit()
    assert number(store, "SELECT count(*) FROM counters") == 3
    assert number(store, "SELECT count(*) FROM losses") == 1
    assert sorted(store.query("SELECT path FROM runs").column(0).to_pylist()) == ["copy.log", "rank0.log"]


# --- Not committed, not there ---------------------------------------------------------------------------------------


def test_a_run_that_is_left_without_commit_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("busbw.observations.store.segments._ROW_GROUP_ROWS", 2)
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    with pytest.raises(KeyboardInterrupt), store.begin([a]) as run:
        run.add(a, counters(a, 3))
        run.keep(a, ["test"])
        assert leftovers(tmp_path / "store") != []
        raise KeyboardInterrupt
    assert files(tmp_path / "store").keys() == {".lock"}
    with pytest.raises(InputError, match="holds no committed run"):
        store.query("SELECT 1")


def test_a_run_without_manifest_is_not_there_and_can_be_read_again(tmp_path):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    read(store, a)
    run = read(store, b, rows=5)
    (tmp_path / "store" / run / "manifest.json").unlink()
    assert number(store, "SELECT count(*) FROM counters") == 3
    read(store, b, rows=7)
    assert number(store, "SELECT count(*) FROM counters") == 3 + 7


KILLED = """
import os, signal, sys
from pathlib import Path
from busbw.observations import Artefact, rows_of
from busbw.observations.store import Store, segments
segments._ROW_GROUP_ROWS = 2
one = Artefact.of(Path(sys.argv[2]), "a")
with Store(Path(sys.argv[1])).begin([one]) as run:
    run.add(one, rows_of("counters", [{"artefact": one.sha256, "value": float(i)} for i in range(3)]))
    run.keep(one, ["test"])
    if sys.argv[3] == "renamed":
        Path.replace_ = Path.replace
        def replace(self, target):
            if target.name == "manifest.json":
                os.kill(os.getpid(), signal.SIGKILL)
            return self.replace_(target)
        Path.replace = replace
        run.commit()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["writing", "renamed"])
def test_the_next_begin_removes_what_a_killed_writer_left_but_not_what_a_living_one_has(tmp_path, moment):
    store, a, b, c = Store(tmp_path / "store"), *(artefact(tmp_path, name) for name in "abc")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "store", a.file, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    assert leftovers(tmp_path / "store") != []
    with pytest.raises(InputError, match="holds no committed run"):
        store.query("SELECT 1")
    with store.begin([b]) as living:
        living.add(b, counters(b, 3))
        living._flush(next(iter(living._tables.values())))
        mine = {name for name in leftovers(tmp_path / "store") if living.run_id in name}
        assert {name for name in leftovers(tmp_path / "store") if name not in mine and a.sha256 not in name} == set()
        with Store(tmp_path / "store", stale_after_s=0).begin([c]):
            assert mine <= set(leftovers(tmp_path / "store"))
        living.commit()
    assert number(store, "SELECT count(*) FROM counters") == 3


def test_segments_without_manifest_go_only_when_they_are_old(tmp_path):
    """They may be arriving from another machine, the manifest last."""
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    run = read(store, a)
    (tmp_path / "store" / run / "manifest.json").unlink()
    read(store, b)
    assert (tmp_path / "store" / run).exists()
    time.sleep(0.01)
    with Store(tmp_path / "store", stale_after_s=0).begin([b]):
        assert not list((tmp_path / "store" / run).glob("*"))


def test_files_that_are_no_store_s_are_left_alone(tmp_path):
    """Somebody names a folder with other things in it as the store."""
    folder = tmp_path / "home"
    (folder / ("0" * 32)).mkdir(parents=True)
    mine = [folder / "manifest.json", folder / ("0" * 32) / "data.parquet", folder / ".profile"]
    for path in mine:
        path.write_text("mine")
    time.sleep(0.01)
    read(Store(folder, stale_after_s=0), artefact(tmp_path, "a"))
    assert [path.read_text() for path in mine] == ["mine"] * 3


# --- Killed and crowded ---------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from busbw.observations import Artefact, rows_of
from busbw.observations.store import Store, segments
segments._ROW_GROUP_ROWS = 64
folder, texts, commits = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = Store(folder)
print("ready", flush=True)
for commit in range(commits):
    one = Artefact.of(texts / str(commit), str(commit))
    with store.begin([one]) as run:
        for first in range(0, 200, 20):
            for table in ("counters", "pairs"):
                rows = [{"artefact": one.sha256, "value": float(i)} for i in range(first, first + 20)]
                run.add(one, rows_of(table, rows))
        run.keep(one, ["test"])
        run.commit()
    print(one.sha256, flush=True)
print("end", flush=True)
"""
ROWS = 200
WHOLE = """
    SELECT artefact, count(*) AS rows, count(DISTINCT value) AS distinct FROM counters GROUP BY artefact
    UNION ALL SELECT artefact, count(*), count(DISTINCT value) FROM pairs GROUP BY artefact
"""


def start_writer(folder: Path, texts: Path, commits: int) -> subprocess.Popen[str]:
    """A writer in its own process that says when it is ready and, after each commit, the artefact it has committed."""
    arguments = [sys.executable, "-c", WRITER, str(folder), str(texts), str(commits)]
    writer = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def test_what_was_acknowledged_survives_kill_9_at_any_moment_and_nothing_is_torn(tmp_path):
    """A writer of ten runs is killed at some moment after its 0th ... 5th commit. What it had named is whole.

    All else is whole or absent.
    """
    chance, commits = random.Random(9), 10
    for i in range(commits):
        artefact(tmp_path, str(i))
    writer = start_writer(tmp_path / "whole", tmp_path, commits)
    began = time.monotonic()
    writer.communicate()
    commit_s = (time.monotonic() - began) / commits
    cut_short = 0
    for trial in range(6):
        folder = tmp_path / f"store{trial}"
        writer = start_writer(folder, tmp_path, commits)
        said = [writer.stdout.readline().strip() for _ in range(trial)]
        time.sleep(commit_s * chance.random())
        writer.send_signal(signal.SIGKILL)
        said += writer.communicate()[0].split()
        cut_short += "end" not in said
        acknowledged = {line for line in said if line != "end"}
        if not list(folder.glob("*/manifest.json")):
            assert not acknowledged
            continue
        found = Store(folder).query(WHOLE).to_pylist()
        assert all(row["rows"] == row["distinct"] == ROWS for row in found)
        assert acknowledged <= {row["artefact"] for row in found}
        assert len(found) % 2 == 0
        assert len(found) // 2 <= len(acknowledged) + 1
        assert all(Store(folder).kept(sha256) for sha256 in acknowledged)
    assert cut_short >= 1


def test_processes_that_write_the_same_files_at_once_double_nothing(tmp_path):
    commits = 8
    for i in range(commits):
        artefact(tmp_path, str(i))
    writers = [start_writer(tmp_path / "store", tmp_path, commits) for _ in range(3)]
    assert ["end" in writer.communicate()[0] for writer in writers] == [True] * 3
    found = Store(tmp_path / "store").query(WHOLE).to_pylist()
    assert [(row["rows"], row["distinct"]) for row in found] == [(ROWS, ROWS)] * (2 * commits)
    assert leftovers(tmp_path / "store") == []


# --- Damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"schema": 1}', "\x00\xff", "[" * 100_000, '{"schema": "1"}', '{"schema": true}'],
)
def test_a_damaged_manifest_is_reported_and_the_other_runs_work(tmp_path, damage):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    read(store, a)
    manifest = tmp_path / "store" / read(store, b) / "manifest.json"
    manifest.write_text(damage, encoding="latin-1")
    assert number(store, "SELECT count(*) FROM counters") == 3
    (problem,) = store.problems()
    assert (problem.kind, problem.path) == ("damaged-manifest", str(manifest))
    assert "Read its files again with --store to mend it" in problem.detail
    read(store, b)
    assert store.problems() == []
    assert number(store, "SELECT count(*) FROM counters") == 6


@pytest.mark.parametrize("name", ["../../etc/passwd", "events-0.parquet", "counters-{sha}.txt", "events-{sha}.parquet"])
def test_a_manifest_cannot_name_a_file_that_is_no_segment_of_its_artefact(tmp_path, name):
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    manifest = tmp_path / "store" / read(store, a) / "manifest.json"
    content = json.loads(manifest.read_text())
    content["artefacts"][0]["segments"]["counters"] = [name.format(sha=a.sha256[:32])]
    manifest.write_text(json.dumps(content))
    assert [problem.kind for problem in store.problems()] == ["damaged-manifest"]


def test_a_run_of_a_later_version_is_reported_and_not_overwritten(tmp_path):
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    manifest = tmp_path / "store" / read(store, a) / "manifest.json"
    later = manifest.read_text().replace('"schema": 2', '"schema": 3')
    manifest.write_text(later)
    assert "Update busbw" in store.problems()[0].detail
    with pytest.raises(InputError, match="written by a later version"):
        store.begin([a])
    assert manifest.read_text() == later
    assert leftovers(tmp_path / "store") == []


def test_a_missing_segment_is_named_and_reading_again_mends_it(tmp_path):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    run = read(store, a, b)
    segment = tmp_path / "store" / run / f"counters-{b.sha256[:32]}.parquet"
    segment.unlink()
    message = (
        f"{segment}: this segment of b is gone, though its manifest names it (1 such in the store). Read the file again"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        store.query("SELECT 1")
    with store.begin([a, b]) as again:
        assert again.is_stored(a)
        assert not again.is_stored(b)
        again.add(b, counters(b, 3))
        again.commit()
    assert number(store, "SELECT count(*) FROM counters") == 6


def test_a_missing_segment_does_no_harm_while_another_run_has_its_artefact(tmp_path):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    first = read(store, a, created_ns=1)
    read(store, a, b, created_ns=2)
    next((tmp_path / "store" / first).glob("*.parquet")).unlink()
    assert number(store, "SELECT count(*) FROM counters") == 6


def test_a_segment_that_is_no_parquet_is_an_input_error(tmp_path):
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    next((tmp_path / "store" / read(store, a)).glob("*.parquet")).write_text("no parquet")
    with pytest.raises(InputError, match="a segment of counters cannot be read"):
        store.query("SELECT 1")


def test_a_store_cannot_be_where_a_file_is(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "below"):
        with pytest.raises(InputError, match=r"Give another --store|give another --store"):
            Store(folder).begin([artefact(tmp_path, "a")])
        with pytest.raises(InputError, match="holds no committed run"):
            Store(folder).query("SELECT 1")
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written_is_an_input_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot write to the store: Permission denied"):
        Store(tmp_path / "store").begin([Artefact("0" * 64, "a", tmp_path / "a", 0)])


def test_a_full_disk_is_an_input_error_and_leaves_what_was_committed(tmp_path, monkeypatch):
    store, a, b = Store(tmp_path / "store"), artefact(tmp_path, "a"), artefact(tmp_path, "b")
    read(store, a)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with store.begin([b]) as run:
        run.add(b, counters(b, 3))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(
            InputError, match=r"No space left on device\. Free some space; what was committed before is safe"
        ):
            run.commit()
    assert number(store, "SELECT count(*) FROM counters") == 3
    assert leftovers(tmp_path / "store") == []


def test_a_file_that_changed_after_it_was_hashed_is_not_kept(tmp_path):
    """A log still being written: what was appended is left out; what was overwritten is not what the hash names."""
    store, grown, changed = Store(tmp_path / "store"), artefact(tmp_path, "grown"), artefact(tmp_path, "changed")
    with grown.file.open("a") as out:
        out.write("more\n")
    changed.file.write_text("Contents of changed\n")
    read(store, grown, changed)
    assert sha256_of(store.kept(grown.sha256)) == grown.sha256
    assert store.kept(changed.sha256) is None
    assert store.query("SELECT path, kind FROM losses").to_pylist() == [
        {"path": "changed", "kind": "changed-while-read"}
    ]


def test_a_file_that_is_gone_is_a_loss(tmp_path):
    store, a = Store(tmp_path / "store"), artefact(tmp_path, "a")
    a.file.unlink()
    read(store, a)
    assert store.query("SELECT path, kind, detail FROM losses").to_pylist() == [
        {"path": "a", "kind": "unreadable", "detail": "No copy is kept: No such file or directory."}
    ]


# --- Wrong use ------------------------------------------------------------------------------------------------------


def announced_and_not(tmp_path: Path) -> tuple[RunWriter, Artefact, Artefact]:
    a, b = artefact(tmp_path, "a"), artefact(tmp_path, "b")
    return Store(tmp_path / "store").begin([a]), a, b


def test_an_artefact_must_be_announced(tmp_path):
    writer, _, stranger = announced_and_not(tmp_path)
    with writer as run:
        for use in (
            lambda: run.add(stranger, counters(stranger, 1)),
            lambda: run.lose(stranger, Loss("cut", "b", 1, "Cut.")),
            lambda: run.keep(stranger, []),
        ):
            with pytest.raises(ValueError, match="was not announced"):
                use()


def test_rows_must_fit_their_table_and_point_into_their_artefact(tmp_path):
    writer, a, other = announced_and_not(tmp_path)
    with writer as run:
        with pytest.raises(ValueError, match="point into another artefact"):
            run.add(a, counters(other, 1))
        with pytest.raises(ValueError, match="columns of counters are"):
            run.add(a, Rows("counters", rows_of("paths", [{"artefact": a.sha256}]).batch))
        with pytest.raises(ValueError, match="no rows can be added to 'losses'"):
            run.add(a, rows_of("losses", [{"artefact": a.sha256}]))


def test_a_run_takes_nothing_after_its_commit(tmp_path):
    writer, a, _ = announced_and_not(tmp_path)
    with writer as run:
        run.commit()
        with pytest.raises(ValueError, match="was committed or left"):
            run.add(a, counters(a, 1))
        with pytest.raises(ValueError, match="was committed or left"):
            run.commit()


def test_a_run_needs_an_artefact_with_a_hash(tmp_path):
    with pytest.raises(ValueError, match="at least one artefact"):
        Store(tmp_path / "store").begin([])
    with pytest.raises(ValueError, match="no SHA-256"):
        Store(tmp_path / "store").begin([Artefact("../x", "x", tmp_path / "x", 0)])
    assert not (tmp_path / "store").exists()


# --- SQL ------------------------------------------------------------------------------------------------------------


def test_an_sql_error_gives_duckdb_s_words_and_the_tables(tmp_path):
    store = Store(tmp_path / "store")
    read(store, artefact(tmp_path, "a"))
    with pytest.raises(InputError) as caught:
        store.query("SELECT bandwith FROM counters")
    assert 'Referenced column "bandwith" not found' in str(caught.value)
    assert "Tables: artefacts, calls, cells, choices, collective_progress, collectives, counters," in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH big AS (SELECT value FROM counters WHERE value > 0) SELECT sum(value) FROM big",
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2) SELECT max(i) FROM n",
        "FROM counters UNION ALL FROM counters LIMIT 1 -- a remark",
        "DESCRIBE counters;",
        "SHOW TABLES",
        "SUMMARIZE counters",
        "PIVOT counters ON value IN (1.0, 2.0) USING count(*)",
    ],
)
def test_what_only_reads_may_be_asked(tmp_path, sql):
    store = Store(tmp_path / "store")
    read(store, artefact(tmp_path, "a"))
    assert store.query(sql).num_rows > 0


def test_show_tables_lists_the_tables_and_no_more(tmp_path):
    store = Store(tmp_path / "store")
    read(store, artefact(tmp_path, "a"))
    assert store.query("SHOW TABLES").column("name").to_pylist() == sorted([*SCHEMAS, "runs"])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_text('{store}/../outside')",
        "SELECT * FROM '{outside}'",
        "SELECT * FROM glob('{store}/../*')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('{beside}/*/*.parquet')",
        "SELECT * FROM sniff_csv('{outside}')",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
        "COPY counters TO '{store}/written'",
        "COPY counters TO '{written}'",
        "COPY (FROM counters) TO '{store}/written'",
        "COPY (PIVOT counters ON value USING count(*)) TO '{store}/written'",
        "WITH x AS (COPY counters TO '{store}/written') FROM x",
        "WITH x AS MATERIALIZED (COPY counters TO '{store}/written') FROM x",
        "SELECT * FROM (WITH x AS (COPY counters TO '{store}/written') FROM x)",
        "FROM query('WITH x AS (COPY counters TO ''{store}/written'') FROM x')",
        "EXPLAIN ANALYZE COPY counters TO '{store}/written'",
        "SELECT 1; COPY counters TO '{store}/written'",
        "ATTACH '{store}/written'",
        "EXPORT DATABASE '{store}/written'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "CREATE TABLE x AS FROM counters",
        "DROP VIEW counters",
        "INSERT INTO artefacts VALUES ('x', 'x', 1, [])",
        "WITH x AS (DELETE FROM artefacts RETURNING *) FROM x",
        "FROM local",
        "",
        ";",
        "-- nothing",
        "SELECT",
        "SELECT ?",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT 1 " + "+ 1" * 20_000,
    ],
)
def test_a_query_reads_the_store_and_nothing_else_and_writes_nothing(tmp_path, sql):
    folder, outside = tmp_path / "store", tmp_path / "outside"
    outside.write_text("not yours")
    local = pa.table({"outside": [1]})
    read(Store(tmp_path / "store-beside"), artefact(tmp_path, "b"))
    store = Store(folder)
    read(store, artefact(tmp_path, "a"))
    before = files(tmp_path)
    words = {"store": folder, "outside": outside, "beside": tmp_path / "store-beside", "written": tmp_path / "written"}
    with pytest.raises(InputError, match="the query was refused"):
        store.query(sql.format(**words))
    assert files(tmp_path) == before
    assert local.num_rows == 1


def test_a_query_changes_nothing_for_the_next(tmp_path):
    store = Store(tmp_path / "store")
    read(store, artefact(tmp_path, "a"))
    before = files(tmp_path / "store")
    assert number(store, "SELECT count(*) FROM counters") == number(store, "SELECT count(*) FROM counters") == 3
    assert files(tmp_path / "store") == before
