"""Sweeps: the same figures wherever points run, nothing done twice, nothing lost that was done."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from busbw.collectives.algorithms import direct_all_to_all
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import held_plan
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.hardware.blueprints import load_nodes
from busbw.observations.store import Store, leftovers, manifest, places
from busbw.simulation import Conditions, Kept, Point, simulate, sweep
from busbw.simulation.sweep import MOST_POINTS, outcome_of

CLUSTER = find_cluster("dgx-h100", 1)[0]
POINTS = [
    Point(direct_all_to_all().bind(8), CLUSTER, size, given={"size_bytes": size, "seed": 0})
    for size in (8, 1 << 10, 1 << 20)
]


def times(outcomes):
    return {place: outcome.figures["time_s"] for place, outcome in outcomes}


def test_any_executor_gives_what_running_here_gives():
    here = times(sweep(POINTS, executor="here"))
    with ThreadPoolExecutor(2) as pool:
        assert times(sweep(POINTS, executor=pool)) == here
    assert len(here) == 3 and here[0] < here[2]


def test_a_point_on_any_node_can_be_sent_to_another_process():
    """Executors pickle what they send; the machine on the other side must be the same one."""
    for node in load_nodes():
        cluster, _ = find_cluster(node, 2)
        point = Point(direct_all_to_all().bind(cluster.gpus), cluster, 8, Conditions(slow_ranks={0: 0.5}))
        assert pickle.loads(pickle.dumps(point)) == point


def test_a_plan_can_be_sent_to_another_process():
    """Lowered when asked for, or held."""
    plan = plan_of(direct_all_to_all().bind(8))
    held = held_plan(list(plan), name=plan.name, collective=plan.collective, chunks=plan.chunks)
    for one in (plan, held):
        assert (
            pickle.loads(pickle.dumps(Point(one, CLUSTER, 1 << 20))).run().time_s
            == simulate(plan, CLUSTER, size_bytes=1 << 20).time_s
        )


def test_points_are_run_once(tmp_path):
    """A second sweep over more points runs only those that are new; a store answers for all of them."""
    first = times(sweep(POINTS[:2], executor="here", kept=Kept(tmp_path)))
    kept = Kept(tmp_path)
    again = times(sweep(POINTS, executor="here", kept=kept))
    assert kept.found == 2 and {place: again[place] for place in first} == first
    rows = Store(tmp_path).query("SELECT size_bytes, time_ns FROM measurements ORDER BY size_bytes").to_pylist()
    assert [(row["size_bytes"], row["time_ns"]) for row in rows] == [
        (point.size_bytes, round(again[place] * 1e9)) for place, point in enumerate(POINTS)
    ]


def test_keeping_a_point_reads_no_other(tmp_path, monkeypatch):
    """A sweep reads as many files for its last point as for its second."""
    reads = count_reads(monkeypatch)
    kept, told = Kept(tmp_path), []
    for seed in range(6):
        point = replace(POINTS[0], given={"seed": seed})
        before = len(reads)
        kept.put(point, outcome_of(point))
        told.append(len(reads) - before)
    assert told[2:] == told[1:2] * 4
    assert len(Kept(tmp_path)._known) == 6


def count_reads(monkeypatch):
    """Folders listed and manifests read by the store, as they are."""
    reads = []
    for module, name in (
        (places, "names_in"),
        (leftovers, "names_in"),
        (leftovers, "run_folders"),
        (manifest, "_read_run"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real: (reads.append(given), real(*given))[1])
    return reads


def test_what_was_asked_names_a_point(tmp_path):
    """Another seed is another point, even where the result is the same."""
    kept = Kept(tmp_path)
    list(sweep(POINTS[:1], executor="here", kept=kept))
    assert Kept(tmp_path).get(POINTS[0]) is not None
    assert Kept(tmp_path).get(replace(POINTS[0], given={"size_bytes": 8, "seed": 1})) is None


def test_an_executor_is_not_flooded():
    """Points are given as others end."""

    class Counting(ThreadPoolExecutor):
        most = 0
        given = 0

        def submit(self, *what, **named):
            future: Future = super().submit(*what, **named)
            self.given += 1
            future.add_done_callback(lambda _: setattr(self, "given", self.given - 1))
            self.most = max(self.most, self.given)
            return future

    many = [replace(POINTS[0], given={"seed": seed}) for seed in range(100)]
    with Counting(1) as pool:
        assert len(list(sweep(many, executor=pool))) == 100
        assert pool.most <= 64


SWEEP = (sys.executable, "-m", "busbw", "simulate", "collective", "all-to-all", "--cluster", "dgx-h100", "--nodes", "2",
         "--bytes", "1MiB", "--speed-spread", "0.1", "--seeds")  # fmt: skip


def runs_in(folder):
    return len(list(folder.glob("*/manifest.json")))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_goes_on_from_there(tmp_path, how):
    """Killed: whole points stay. Ctrl-C: the same, and what is done is shown."""
    long = subprocess.Popen(
        [*SWEEP, "5000", "--store", tmp_path, "--engine", "here", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while runs_in(tmp_path) < 3 and time.monotonic() < until and long.poll() is None:
        time.sleep(0.02)
    os.kill(long.pid, how)
    out, err = long.communicate(timeout=60)
    done = runs_in(tmp_path)
    assert 3 <= done < 5000
    if how == signal.SIGINT:
        assert long.returncode == 2 and "of 5000 points are done; the same command goes on from there" in err
        assert json.loads(out)["rows"][0]["seeds"] in (
            done,
            done - 1,
        )  # the signal may come between keeping and counting
    kept = Kept(tmp_path)
    assert len(kept._known) == done
    rows = Store(tmp_path).query("SELECT count(*) AS n, count(DISTINCT artefact) AS a FROM measurements").to_pylist()
    assert rows == [{"n": done, "a": done}]


def test_going_on_runs_only_what_is_missing(busbw_line, tmp_path):
    first = json.loads(busbw_line(*SWEEP[3:], "2", "--store", tmp_path, "--json").stdout)
    second = busbw_line(*SWEEP[3:], "3", "--store", tmp_path, "--json")
    assert f"3 points kept in {tmp_path}, 2 of them already there" in second.stderr
    assert json.loads(second.stdout)["rows"][0]["seeds"] == 3
    assert first["rows"][0]["seeds"] == 2


@pytest.fixture
def busbw_line():
    def run(*arguments):
        ran = subprocess.run(
            [sys.executable, "-m", "busbw", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran

    return run


def test_more_points_than_a_folder_bears_are_refused():
    with pytest.raises(InputError, match="100,001 points"):
        list(sweep(POINTS[:1] * (MOST_POINTS + 1)))
