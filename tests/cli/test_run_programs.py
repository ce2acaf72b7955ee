"""`busbw run` with the user's binaries, and of all pairs of nodes."""

from __future__ import annotations

import json
import shutil

import pytest

# nccl-tests 2.19.6, doc and src/common.cu: the layout of its table; the figures are made up.
NCCL_TESTS = """#!/bin/sh
echo "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007"
echo "# Collective test starting: all_reduce_perf"
echo "# nThread 1 nGpus 2 minBytes $2 maxBytes $4 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0"
echo "#  Rank  0 Group  0 Pid   4242 on      host0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3"
echo "#  Rank  1 Group  0 Pid   4242 on      host0 device  1 [0000:43:00] NVIDIA H100 80GB HBM3"
echo "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
echo "     1048576        262144     float     sum      -1    20.00   52.43   52.43       ${WRONG:-0}    21.00   49.93   49.93       0"
"""


def test_a_run_of_nccl_tests_is_shown_and_kept(busbw, tmp_path, monkeypatch):
    """What it prints is read by its reader, and lies in the store as it was; wrong elements give status 1."""
    program, store = tmp_path / "all_reduce_perf", tmp_path / "store"
    program.write_text(NCCL_TESTS)
    program.chmod(0o755)
    asked = ["run", "all-reduce", "--backend", "nccl-tests", "--bytes", "1MiB", "--programs", tmp_path]
    ran = busbw(*asked, "--store", store)
    assert ran.status == 0
    assert "1048576" in ran.out
    rows = json.loads(busbw("query", "SELECT tool, ranks, time_ns FROM measurements ORDER BY time_ns", "--store", store, "--json").out)["rows"]  # fmt: skip
    assert [tuple(row.values()) for row in rows] == [("nccl-tests", 2, 20_000), ("nccl-tests", 2, 21_000)]
    monkeypatch.setenv("WRONG", "3")
    assert busbw(*asked, "--json").status == 1


def test_a_program_that_fails_on_its_standard_output_is_quoted(busbw, tmp_path):
    """nccl-tests 2.19.6 without a driver: these lines on standard output, none on standard error, status 2 (run here)."""
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\necho \"vm: Test CUDA failure util.cu:674 'CUDA driver version is insufficient for CUDA runtime version'\"\nexit 2\n")  # fmt: skip
    program.chmod(0o755)
    ran = busbw("run", "all-reduce", "--backend", "nccl-tests", "--bytes", "8", "--programs", tmp_path)
    assert ran.status == 2
    assert "ended with status 2; it wrote no error, and last: vm: Test CUDA failure" in ran.err


def test_sizes_that_a_program_leaves_out_are_said(busbw, tmp_path):
    """It prints one row where two sizes were asked for."""
    program = tmp_path / "all_reduce_perf"
    program.write_text(NCCL_TESTS)
    program.chmod(0o755)
    ran = busbw("run", "all-reduce", "--backend", "nccl-tests", "--bytes", "1MiB:2MiB:2", "--programs", tmp_path)
    assert "printed rows of 1 sizes, 2 were asked for" in ran.err


def test_ucx_perftest_runs_here(busbw):
    """Its two sides find each other on a port that is free."""
    if shutil.which("ucx_perftest") is None:
        pytest.skip("no ucx_perftest: apt-get install ucx-utils")
    ran = busbw("run", "latency", "--backend", "ucx", "--bytes", "8,1KiB", "--iterations", "50", "--json")
    assert ran.status == 0
    rows = json.loads(ran.out)["rows"]
    assert [row["size_bytes"] for row in rows] == [8, 1024]
    assert all(row["time_ns"] > 0 for row in rows)


def test_pairs_are_measured_shown_and_judged(busbw, tmp_path):
    """Three nodes: six directed pairs in three rounds, of which --resume finds none missing. What a busy machine makes of it is not judged here."""
    store = tmp_path / "store"
    asked = ["run", "pairs", "--ranks", "3", "--bytes", "4KiB", "--iterations", "1", "--warm-up", "0"]
    ran = busbw(*asked, "--store", store, "--json")
    told = json.loads(ran.out)
    assert len(told["pairs"]) == 6
    assert told["wrong"] == 0
    assert ran.status == (1 if told["findings"] else 0)
    stored = busbw("query", "SELECT count(*) AS n, min(unit) AS u FROM pairs", "--store", store, "--json")
    assert json.loads(stored.out)["rows"] == [{"n": 6, "u": "bytes/s"}]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--ranks", "3", "--rails", "2"], "--rails 2: 3 ranks are no two nodes"),
        (["--ranks", "1"], "bandwidth is between two ranks"),
        (["--backend", "ucx"], "--backend ucx does not measure pairs"),
        (["--launcher", "threads"], "ranks of pairs are processes"),
    ],
)
def test_pairs_that_cannot_be_measured_are_one_message(busbw, more, said):
    ran = busbw("run", "pairs", *more)
    assert ran.status == 2
    assert said in ran.err


def test_a_suite_is_one_run(busbw, tmp_path):
    """Cells of two numbers of ranks; one that its back end cannot do is said, and the others are measured."""
    file, store = tmp_path / "suite.yaml", tmp_path / "store"
    file.write_text("- {collective: all-gather, bytes: 64, ranks: 2}\n- {collective: barrier, ranks: 3}\n")
    asked = ["run", "suite", "--suite", file, "--iterations", "1", "--warm-up", "0", "--launcher", "threads"]
    ran = busbw(*asked, "--store", store, "--json")
    assert ran.status == 0
    assert [(one["collective"], one["ranks"]) for one in json.loads(ran.out)["results"]] == [("all_gather", 2), ("barrier", 3)]  # fmt: skip
    runs = busbw("query", "SELECT count(DISTINCT run_id) AS n FROM runs", "--store", store, "--json")
    assert json.loads(runs.out)["rows"] == [{"n": 1}]


def test_figures_of_this_host_are_kept(busbw, tmp_path):
    store = tmp_path / "store"
    ran = busbw("run", "host", "--bytes", "16KiB", "--store", store, "--json")
    figures = json.loads(ran.out)["figures"]
    assert {"copy_bytes_per_s", "triad_bytes_per_s", "read_latency_s"} <= {one["name"] for one in figures}
    asked = busbw("query", "SELECT count(*) AS n FROM counters", "--store", store, "--json")
    assert json.loads(asked.out)["rows"] == [{"n": len(figures)}]
