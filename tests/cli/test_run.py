"""`busbw run`: measures on this machine; its table is read back by the reader of nccl-tests."""

from __future__ import annotations

import errno
import itertools
import json
import os

import pytest

from busbw.observations.store.places import LocalPlace


def test_rows_are_kept_as_they_were_printed(busbw, tmp_path):
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
        ("all_gather", 3, 12, 1, "float32", False), ("all_gather", 3, 12, 1, "float32", True),
        ("all_gather", 3, 996, 83, "float32", False), ("all_gather", 3, 996, 83, "float32", True),
    ]  # fmt: skip
    shown = [float(line[at]) * 1000 for line in printed for at in (5, 9)]
    assert [row[6] for row in rows] == pytest.approx(shown, rel=0.01, abs=1)
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
        ([], "what is to be measured"),
        (["all-reduce", "--confidence-width", "wide"], "--confidence-width wide: write a share"),
        (["all-reduce", "--resume", "x"], "--resume: say which store holds the run"),
        (["latency", "--ranks", "1"], "latency is between two ranks"),
        (["all-reduce", "--root", "2"], "root 2: is none of the ranks 0 to 1"),
        (["all-reduce", "--backend", "mpi", "--launcher", "local"], "ranks of MPI are started by its mpirun"),
        (["all-reduce", "--backend", "torch", "--launcher", "threads"], "ranks of torch are processes"),
        (["all-reduce", "--ranks", "0"], "--ranks 0: write 1 to 64"),
        (["all-reduce", "--dtype", "complex64"], "--dtype complex64: there are float32"),
        (["all-reduce", "--op", "median"], "--op median: there are sum"),
        (["all-reduce", "--backend", "verbs"], "back end verbs: there are builtin"),
        (["all-reduce", "--launcher", "slurn"], "launcher 'slurn': nearest: slurm"),
        (["all-reduce", "--backend", "nccl"], "back end nccl: "),
        (["pairs", "--ladder"], "--ladder: pairs has none"),
        (["all-reduce", "--hosts", "a,b"], "--launcher local: runs on this machine"),
        (
            ["all-reduce", "--launcher", "ssh", "--ranks", "3", "--nodes", "2"],
            "3 ranks cannot be spread over them evenly",
        ),
        (["all-gather", "--op", "prod"], "--op prod: all-gather reduces nothing"),
        (["all-reduce", "--bytes", "8:4:2"], "--bytes 8:4:2: it begins above its end"),
        (["all-gather", "--window"], "all-reduce alone runs on window memory"),
        (["all-reduce", "--iterations", "0"], "--iterations 0: write 1 or more"),
        (["all-reduce", "--bytes", "1TiB"], "more than is tried here (16 GiB)"),
        (["all-reduce", "--deadline", "nan"], "--deadline nan: write seconds"),
        (["all-reduce", "--bytes", "8", "--deadline", "0"], "had not ended after 0 s"),
        (["all-reduce", "--backend", "osu", "--trace", "t.json"], "osu prints times of many calls together"),
        (["pairs", "--perfetto", "t.json"], "pairs keeps rates"),
        (["all-reduce", "--dry-run", "--trace", "t.json"], "--dry-run makes no calls"),
        (["all-reduce", "--trace", "/"], "--perfetto /: is a folder"),
        (["all-reduce", "--trace", "none/t.json"], "there is no folder none; name a file that can be written"),
    ],
)
def test_wrong_use_is_one_message(busbw, arguments, said):
    ran = busbw("run", *arguments)
    assert ran.status == 2
    assert said in ran.err
    assert not ran.out


@pytest.mark.parametrize("launcher", ["local", "threads"])
def test_a_trace_has_every_timed_call_of_every_rank(busbw, tmp_path, launcher):
    """Five calls out of place and five in place, each long enough to be timed alone, one after the other on a rank, from a zero of all ranks."""
    path = tmp_path / "trace.json"
    asked = ["--bytes", "2MiB", "--iterations", "5", "--launcher", launcher, "--perfetto", path]
    ran = busbw("run", "all-gather", *asked)
    assert (ran.status, ran.err) == (0, f"busbw: 20 calls written to {path}\n")
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
    assert min(one["ts"] for one in events) == 0
    for rank in (0, 1):
        of = [one for one in events if one["pid"] == rank]
        assert [one["name"] for one in of] == ["all_gather 2 MiB"] * 5 + ["all_gather 2 MiB in place"] * 5
        assert all(one["ts"] + one["dur"] <= later["ts"] + 1e-3 for one, later in itertools.pairwise(of))


def test_a_run_of_which_a_rank_dies_shows_what_it_measured_and_goes_on(busbw, tmp_path, monkeypatch):
    """A rank is lost at the second of three sizes: the first is shown and kept, --resume measures the others, and shows all."""
    from busbw.execution import Communicator, GaveUpError

    right = Communicator.all_gather

    def lost(self, source, target=None, **more):
        if source.nbytes == 128:
            raise GaveUpError("rank 1 waited for rank 0")
        return right(self, source, target, **more)

    asked = ["--iterations", "2", "--no-in-place", "--launcher", "threads"]
    store = tmp_path / "store"
    with monkeypatch.context() as patched:
        patched.setattr(Communicator, "all_gather", lost)
        ran = busbw("run", "all-gather", "--bytes", "64,256,1KiB", *asked, "--store", store)
    assert ran.status == 1
    assert "was measured in part, 1 rows: rank 1 waited for rank 0" in ran.err
    assert _sizes(ran.out) == ["64"]
    name = ran.err.partition("--resume ")[2].split()[0]
    ended = busbw("query", "SELECT DISTINCT status AS s FROM runs", "--store", store, "--json")
    assert json.loads(ended.out)["rows"] == [{"s": "died"}]
    again = busbw("run", "--resume", name, "--store", store)
    assert again.status == 0
    assert "1 rows were measured before, 2 are missing" in again.err
    assert _sizes(again.out) == ["64", "256", "1024"]
    assert "3 rows were measured before, 0 are missing" in busbw("run", "--resume", name, "--store", store).err


@pytest.mark.parametrize("launcher", ["threads", "local"])
def test_a_disk_that_is_full_ends_the_run_and_what_was_measured_is_shown(busbw, tmp_path, monkeypatch, launcher):
    """Of 5 sizes the second finds no room: ranks end, no row is lost that was kept, and --resume measures the others once there is room."""
    right = LocalPlace.write

    def full(self, run, files):
        if (
            any(name.startswith("commit-") for name in files)
            and sum("commit-" in name for name in self.names(run)) == 3
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        right(self, run, files)

    store, last = tmp_path / "store", 64 * 5
    asked = ["--iterations", "2", "--no-in-place", "--launcher", launcher, "--warm-up", "0"]
    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "write", full)
        ran = busbw(
            "run", "all-gather", "--bytes", ",".join(str(64 * k) for k in range(1, 6)), *asked, "--store", store
        )
    assert ran.status == 1
    assert "was measured in part" in ran.err
    assert "cannot write to the store: No space left on device. Free some space" in ran.err
    assert _sizes(ran.out)[0] == "64"
    assert str(last) not in _sizes(ran.out)
    name = ran.err.partition("--resume ")[2].split()[0]
    again = busbw("run", "--resume", name, "--store", store)
    assert again.status == 0, again.err
    assert "1 rows were measured before, 4 are missing" in again.err
    assert len(_sizes(again.out)) == 5


def _sizes(table):
    return [line.split()[0] for line in table.splitlines() if not line.startswith("#")]


def test_a_dry_run_shows_what_would_start(busbw):
    """Two ranks on each of two hosts, by ssh; nothing is started."""
    ran = busbw("run", "all-reduce", "--backend", "torch", "--ranks", "4", "--hosts", "n[1-2]", "--launcher", "ssh", "--bytes", "8", "--dry-run")  # fmt: skip
    assert ran.status == 0
    assert "busbw.measuring.rank" in ran.out
    assert "n1" in ran.out
    assert "n2" in ran.out


def test_a_ladder_is_one_run_of_more_and_more_ranks(busbw):
    """3 nodes of one rank: two, then all."""
    asked = [
        "--ladder",
        "--ranks",
        "3",
        "--bytes",
        "12",
        "--iterations",
        "1",
        "--warm-up",
        "0",
        "--launcher",
        "threads",
    ]
    told = json.loads(busbw("run", "all-gather", *asked, "--json").out)
    assert [(one["ranks"], one["rows"][0]["size_bytes"]) for one in told["results"]] == [(2, 8), (3, 12)]
