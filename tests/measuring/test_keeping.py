"""What a run measured is in the store however it ended, and `kept_run` says what is missing."""

from __future__ import annotations

import json

import pytest

from busbw.errors import InputError
from busbw.measuring.keeping import Journal, kept_run, new_name, recover
from busbw.measuring.request import Request
from busbw.measuring.running import run_in_threads
from busbw.observations.store import Store

REQUEST = Request("all_gather", 2, (64, 256), iterations=3, warm_up=0)


def _measure_one(journal):
    measured = run_in_threads(REQUEST)
    journal.head(measured)
    journal.row(measured, measured.rows[0])


def test_a_whole_run_is_committed_with_its_circumstances(tmp_path, monkeypatch):
    """Variables that may be secret stay out."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")
    journal = Journal(tmp_path, "first", [REQUEST], "threads")
    _measure_one(journal)
    run = journal.end("complete")
    assert not list((tmp_path / "unfinished").iterdir())
    store = Store(tmp_path)
    assert store.query("SELECT DISTINCT run_id FROM runs").to_pylist() == [{"run_id": run}]
    settings = {row["name"]: row["value"] for row in store.query("SELECT name, value FROM settings").to_pylist()}
    assert settings["NCCL_DEBUG"] == "INFO"
    assert "MY_TOKEN" not in settings
    assert {"kernel", "cores", "busbw"} <= set(settings)
    rows = store.query("SELECT collective, size_bytes, ranks, in_place, iterations, wrong FROM measurements ORDER BY in_place")  # fmt: skip
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("all_gather", 64, 2, False, 3, 0.0), ("all_gather", 64, 2, True, 3, 0.0),
    ]  # fmt: skip
    assert store.query("SELECT count(*) AS n FROM losses").to_pylist() == [{"n": 0}]


def test_a_run_that_was_killed_is_marked_and_keeps_its_rows(tmp_path):
    """Its journal ends in the middle of a line, and nobody holds it."""
    journal = Journal(tmp_path, "second", [REQUEST], "threads")
    _measure_one(journal)
    journal._out.write('{"table": "measurem')
    journal._out.flush()
    journal._out.close()
    assert recover(tmp_path) == ["second"]
    assert recover(tmp_path) == []
    (ended,) = Store(tmp_path).query("SELECT fields FROM events WHERE event = 'busbw.run.ended'").to_pylist()
    assert dict(ended["fields"])["state"] == "died"
    kept = kept_run(tmp_path, "second")
    assert not kept.complete
    assert kept.requests == (REQUEST,)
    assert kept.done() == [REQUEST.key(64)]


def test_a_run_that_is_still_measuring_is_left_alone(tmp_path):
    journal = Journal(tmp_path, "third", [REQUEST], "threads")
    assert recover(tmp_path) == []
    journal.end("interrupted")


def test_a_resumed_run_has_the_rows_of_all_its_parts(tmp_path):
    """Found by its name or by the id of any part."""
    journal = Journal(tmp_path, "fourth", [REQUEST], "threads")
    _measure_one(journal)
    run = journal.end("died", "rank 1 was killed by SIGKILL")
    kept = kept_run(tmp_path, run)
    again = Journal(tmp_path, kept.name, kept.requests, kept.launcher, part=kept.parts)
    measured = run_in_threads(REQUEST, heard=lambda one: one.row and again.row(one.head, one.row), done=kept.done())
    again.end("complete")
    assert [row.key for row in measured.rows] == [REQUEST.key(256)]
    whole = kept_run(tmp_path, "fourth")
    assert whole.complete
    assert sorted(whole.done()) == sorted(REQUEST.key(size) for size in REQUEST.sizes_bytes)


def test_there_must_be_such_a_run(tmp_path):
    with pytest.raises(InputError, match="holds no run to resume"):
        kept_run(tmp_path, "fifth")
    Journal(tmp_path, new_name("all_reduce", "builtin"), [REQUEST], "threads").end("complete")
    with pytest.raises(InputError, match="has no run fifth"):
        kept_run(tmp_path, "fifth")
    with pytest.raises(InputError, match="is no name of a run"):
        kept_run(tmp_path, "a'b")


def test_a_row_is_in_the_journal_before_the_next_begins(tmp_path):
    journal = Journal(tmp_path, "sixth", [REQUEST], "threads")
    _measure_one(journal)
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert lines[0]["busbw"] == "observations"
    assert [line["fields"]["key"] for line in lines if line.get("event") == "busbw.run.row"] == [REQUEST.key(64)]
    journal.end("complete")
