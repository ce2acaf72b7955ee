"""What a run measured is in the store however it ended, and `kept_run` says what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from busbw.errors import InputError
from busbw.measuring.keeping import Journal, kept_run, new_name
from busbw.measuring.request import Request
from busbw.measuring.running import run_in_threads
from busbw.observations import Circumstances
from busbw.observations.store import Store

REQUEST = Request("all_gather", 2, (64, 256), iterations=3, warm_up=0)


def _measure_one(journal):
    measured = run_in_threads(REQUEST)
    journal.head(measured)
    journal.row(measured, measured.rows[0])


def test_a_whole_run_is_kept_with_its_samples_and_circumstances(tmp_path, monkeypatch):
    """Variables that may be secret stay out. A call of a batch has no begin of its own, but its batch has one: a sample a batch and rank."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")
    journal = Journal(tmp_path, "first", [REQUEST], "threads")
    _measure_one(journal)
    journal.end()
    store = Store(tmp_path)
    run = store.recorded(journal.run_id)
    assert run is not None
    assert (run.name, run.status()) == ("first", "done")
    assert run.circumstances.environment["NCCL_DEBUG"] == "INFO"
    assert "MY_TOKEN" not in run.circumstances.environment
    settings = {row["name"] for row in store.query("SELECT name, value FROM settings").to_pylist()}
    assert {"machine", "cores", "memory"} <= settings
    rows = store.query("SELECT collective, size_bytes, ranks, in_place, iterations, wrong FROM measurements ORDER BY in_place")  # fmt: skip
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("all_gather", 64, 2, False, 3, 0.0), ("all_gather", 64, 2, True, 3, 0.0),
    ]  # fmt: skip
    counted = store.query("SELECT in_place, rank, sum(calls) AS n, min(start_ns) > 1.7e18 AS late FROM samples GROUP BY ALL ORDER BY ALL").to_pylist()  # fmt: skip
    assert [tuple(row.values()) for row in counted] == [(place, rank, 3, True) for place in (False, True) for rank in (0, 1)]  # fmt: skip


_DIES = """
import os, signal, sys
from busbw.measuring.keeping import Journal
from busbw.measuring.request import Request
from busbw.measuring.running import run_in_threads
request = Request("all_gather", 2, (64, 256), iterations=3, warm_up=0)
journal = Journal(sys.argv[1], "second", [request], "threads")
measured = run_in_threads(request)
journal.row(measured, measured.rows[0])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_was_killed_is_marked_keeps_its_rows_and_is_resumed(tmp_path):
    """Found by its name; what was measured besides is in the same run, which is done then."""
    assert subprocess.run([sys.executable, "-c", _DIES, tmp_path], check=False, env=os.environ).returncode == -signal.SIGKILL  # fmt: skip
    kept = kept_run(tmp_path, "second")
    assert (kept.status, kept.requests, kept.launcher) == ("died", (REQUEST,), "threads")
    assert kept.done() == [REQUEST.key(64)]
    again = Journal(tmp_path, kept.name, kept.requests, kept.launcher, run_id=kept.run_id)
    measured = run_in_threads(REQUEST, heard=lambda one: one.row and again.row(one.head, one.row), done=kept.done())
    again.end()
    assert [row.key for row in measured.rows] == [REQUEST.key(256)]
    whole = kept_run(tmp_path, kept.run_id)
    assert whole.status == "done"
    assert sorted(whole.done()) == sorted(REQUEST.key(size) for size in REQUEST.sizes_bytes)


def test_why_a_run_died_is_kept(tmp_path):
    journal = Journal(tmp_path, "third", [REQUEST], "threads")
    journal.end("rank 1 was killed by SIGKILL")
    run = Store(tmp_path).recorded(journal.run_id)
    assert run is not None
    assert run.status() == "died"
    assert [end.reason for end in run.ends.values()] == ["rank 1 was killed by SIGKILL"]


def test_there_must_be_such_a_run_and_it_must_have_ended(tmp_path):
    with pytest.raises(InputError, match="holds no run to resume"):
        kept_run(tmp_path, "fifth")
    with Store(tmp_path).record("early", Circumstances()) as killed_as_it_began:
        killed_as_it_began.finish(died="killed")
    with pytest.raises(InputError, match=r"it was killed as it began, or .* Start it anew"):
        kept_run(tmp_path, "early")
    journal = Journal(tmp_path, new_name("all_reduce", "builtin"), [REQUEST], "threads")
    with pytest.raises(InputError, match="is still being measured"):
        kept_run(tmp_path, journal.name)
    journal.end()
    with pytest.raises(InputError, match="has no run fifth"):
        kept_run(tmp_path, "fifth")
    with pytest.raises(InputError, match="is no name of a run"):
        kept_run(tmp_path, "a'b")
