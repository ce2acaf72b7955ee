"""The user's binaries: what command a request becomes, and that what they print comes out as rows."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import pytest

from busbw.errors import InputError
from busbw.measuring.programs import invocations, read_rows
from busbw.measuring.request import Request


@pytest.fixture
def binaries(tmp_path):
    """Stand-ins: the programs themselves need GPUs."""

    def put(name, text="#!/bin/sh\nexit 0\n"):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return tmp_path

    return put


def _argv(request, folder, launcher="local"):
    return [[Path(one.argv[0]).name, *one.argv[1:]] for one in invocations(request, ["-G", "3"], folder, launcher)]


def test_nccl_tests_gets_its_own_words(binaries):
    """-d half for float16, -o only where something is reduced, -r only where there is a root; one process drives all GPUs unless MPI starts one each."""
    folder = binaries("all_reduce_perf")
    request = Request("all_reduce", 8, (8, 16, 32), "float16", "max", backend="nccl-tests", iterations=7)
    assert _argv(request, folder) == [
        ["all_reduce_perf", *["-b", "8", "-e", "32", "-f", "2", "-g", "8", "-c", "1", "-w", "5", "-n", "7", "-d", "half", "-o", "max", "-G", "3"]],
    ]  # fmt: skip
    (under_mpi,) = invocations(request, [], folder, "mpirun")
    assert under_mpi.processes == 8
    assert "-g 1 " in under_mpi.shown()
    binaries("broadcast_perf")
    (words,) = _argv(Request("broadcast", 2, (64,), "int8", backend="nccl-tests", root=1), folder)
    assert words[-6:] == ["-d", "int8", "-r", "1", "-G", "3"]


def test_sizes_that_no_factor_joins_are_several_runs(binaries):
    """8, 16, 32 go by 2; then 96 and 9216 by 96."""
    folder = binaries("all_reduce_perf")
    spans = [argv[1:7] for argv in _argv(Request("all_reduce", 2, (8, 16, 32, 96, 9216), backend="nccl-tests"), folder)]
    assert [(span[1], span[3], span[5]) for span in spans] == [("8", "32", "2"), ("96", "9216", "96")]


def test_osu_sizes_are_of_a_block_where_its_own_are(binaries):
    """all_gather of 4 ranks: our size is what comes out, OSU's what a rank gives."""
    folder = binaries("osu_allgather")
    (words,) = _argv(Request("all_gather", 4, (64, 128), backend="osu"), folder, "mpirun")
    assert words[:3] == ["osu_allgather", "-m", "16:32"]


def test_osu_steps_by_two_so_other_sizes_are_runs_of_their_own(binaries):
    """8 and 16 go by 2, 64 does not; float takes whole elements, for osu_allreduce 7.4 prints 7 where it moves 4 bytes."""
    folder = binaries("osu_allreduce")
    found = invocations(Request("all_reduce", 2, (7, 8, 16, 64), backend="osu"), [], folder, "mpirun")
    assert [(one.argv[2], one.sizes) for one in found] == [("4:16", 3), ("64:64", 1)]


def test_osu_gets_memory_for_large_messages(binaries):
    """It leaves out sizes that need more than -M, 512 MiB unless said (osu_allreduce --help, 7.4)."""
    folder = binaries("osu_bcast")
    small, large = (invocations(Request("broadcast", 2, (size,), backend="osu"), [], folder, "mpirun")[0].argv for size in (1 << 20, 1 << 30))  # fmt: skip
    assert "-M" not in small
    assert int(large[large.index("-M") + 1]) >= 2 << 30


def test_nixlbench_gets_names_that_it_has(binaries):
    """Flags of ai-dynamo/nixl, benchmark/nixlbench/src/utils/utils.cpp; blocks double, so 4096 and 65536 are two runs; etcd if the user names it."""
    folder = binaries("nixlbench")
    request = Request("bandwidth", 2, (4096, 8192, 65536), backend="nixl", iterations=32)
    first, second = invocations(request, [], folder, "local")
    words = dict(itertools.pairwise(first.argv[2:]))
    assert (words["--start_block_size"], words["--max_block_size"], words["--num_iter"], words["--large_blk_iter_ftr"]) == ("4096", "8192", "32", "1")  # fmt: skip
    assert words["--runtime_type"] == "ASIO"
    assert (first.sizes, second.sizes) == (2, 1)
    (asked, _) = invocations(request, ["--etcd_endpoints", "http://n1:2379"], folder, "local")
    assert "--runtime_type" not in asked.argv


@pytest.mark.parametrize(
    ("request_of", "said"),
    [
        (Request("barrier", 2, (0,), backend="nccl-tests"), "has no test of barrier"),
        (Request("all_reduce", 2, (8,), backend="nccl-tests"), "all_reduce_perf is not in .* It needs nccl-tests"),
        (Request("all_reduce", 2, (8,), op="max", backend="osu"), "reduce by sum"),
        (Request("all_reduce", 2, (8,), "float16", backend="osu"), "its types are float32, int32, int8"),
        (Request("broadcast", 2, (8,), root=1, backend="osu"), "is rank 0; leave --root out"),
        (Request("latency", 3, (8,), backend="osu"), "exactly 2 ranks, not 3"),
        (Request("message_rate", 3, (8,), backend="osu"), "write an even number"),
        (Request("all_reduce", 1, (8,), backend="osu"), "two ranks or more"),
        (Request("all_reduce", 2, (8,), backend="osu"), "leave --launcher local out"),
        (Request("bidirectional", 2, (8,), backend="nixl"), "one way"),
        (Request("bandwidth", 4, (8,), backend="nixl"), "write --ranks 2"),
        (Request("latency", 3, (8,), backend="ucx"), "between 2 ranks"),
        (Request("all_reduce", 2, (8,), backend="nixl"), "between two sides"),
    ],
)
def test_what_a_program_has_not_is_one_message(request_of, said, tmp_path):
    with pytest.raises(InputError, match=said):
        invocations(request_of, [], tmp_path, "local")


def test_an_output_without_a_table_gives_no_row():
    assert read_rows("$ ucx_perftest -t tag_lat\nnothing\n", "x")[0] == []
