"""What nccl-tests prints, every layout since 2017, and what reaches the table `measurements`.

Layouts are those of NVIDIA/nccl-tests src/common.cu and src/util.cu at the version named.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.nccl_tests import READER

from .reading import DATA, columns, read_text

HEADER = """\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on      host0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4242 on      host0 device  1 [0000:2b:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = """\
     1048576        262144     float     sum      -1    38.12   27.51   27.51       0    37.60   27.89   27.89       0
     2097152        524288     float     sum      -1    51.20   40.96   40.96       0    51.30   40.88   40.88       0
"""
FOOTER = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 34.31
#
# Collective test concluded: all_reduce_perf
#
"""
HALF = "     time   algbw   busbw #wrong"
COLUMNS = f"       size         count      type   redop    root{HALF}{HALF}"


@dataclass
class Case:
    """A text, where its layout comes from, and for each half (size_bytes, in_place, time_ns, busbw GB/s)."""

    source: str
    text: str
    rows: list[tuple[int, bool, int, float]]
    losses: dict[str, int] = field(default_factory=dict)


CASES = [
    Case(
        source="2.19.6: the whole output",
        text=HEADER + ROWS + FOOTER,
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
    ),
    Case(
        source="2.10 and before: `error` is a deviation, no root",
        text="""\
#                                                       out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    33554432       8388608   float     sum    607.1   55.27   96.72  1e-06    610.0   55.01   96.26  1e-06
""",
        rows=[(33554432, False, 607100, 96.72), (33554432, True, 610000, 96.26)],
    ),
    Case(
        source="2.10 and before, all_gather: neither reduction nor root",
        text="""\
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608   float    607.1   55.27   48.36  0e+00    610.0   55.01   48.13  0e+00
""",
        rows=[(33554432, False, 607100, 48.36), (33554432, True, 610000, 48.13)],
    ),
    Case(
        source="2017, all_reduce: bytes, N, op, res, and milliseconds",
        text="""\
#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    33554432       8388608   float     sum    0.607  55.27  96.72    1e-06    0.610  55.01  96.26    1e-06
""",
        rows=[(33554432, False, 607000, 96.72), (33554432, True, 610000, 96.26)],
    ),
    Case(
        source="2017, broadcast: out of place only",
        text="""\
#                                         out-of-place
#      bytes             N    type    root     time  algbw  busbw    delta
    33554432       8388608   float       0    0.607  55.27  55.27    0e+00
""",
        rows=[(33554432, False, 607000, 55.27)],
    ),
    Case(
        source="rccl-tests: a table with an in-place part only",
        text="""\
#                                                        in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    38.12   27.51   51.58      0
""",
        rows=[(1048576, True, 38120, 51.58)],
    ),
    Case(
        source="2.19.2 with -I 1 -S: four more columns a half, and a time stamp",
        text="""\
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp
     1048576        262144     float     sum      -1    38.12   27.51   51.58       0    30.00    50.00    49.00     5.25    37.60   27.89   52.29       0    31.00    51.00    48.00     6.25  2026-01-02 03:04:05
""",
        rows=[(1048576, False, 38120, 51.58), (1048576, True, 37600, 52.29)],
    ),
    Case(
        source="2.18 with -S: a time stamp behind the row",
        text=f"#{COLUMNS}           timestamp\n{ROWS.splitlines()[0]}  2026-01-02 03:04:05\n",
        rows=[(1048576, False, 38120, 27.51), (1048576, True, 37600, 27.89)],
    ),
    Case(
        source="2.17.3 and later: figures that do not fit are printed with an exponent; -c 0 prints N/A",
        text=f"""\
#{COLUMNS}
 17179869184    4294967296     float     sum      -1  1.2e+07    1.43    2.69    N/A  1.2e+07    1.43    2.68    N/A
""",
        rows=[(17179869184, False, 12_000_000_000, 2.69), (17179869184, True, 12_000_000_000, 2.68)],
    ),
    Case(
        source="2.17.3, trace replay: the out-of-place part is 32 blanks",
        text=f"#{COLUMNS}\n"
        f"     1048576        262144     float     sum      -1{' ' * 32}    37.60   27.89   52.29      0\n",
        rows=[(1048576, True, 37600, 52.29)],
    ),
    Case(
        source="hypercube and old scatter: an empty reduction, so a column less",
        text=f"#{COLUMNS}\n" + ROWS.splitlines()[0].replace("sum", "   "),
        rows=[(1048576, False, 38120, 27.51), (1048576, True, 37600, 27.89)],
    ),
    Case(
        source="a shell that ate the leading # of every line (NVIDIA/nccl-tests issues)",
        text=HEADER.replace("#", "") + ROWS,
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
    ),
    Case(
        source="pasted rows without a header: 13 fields, and 12 of an old version",
        text=ROWS.splitlines()[0] + "\n\n"
        "    33554432       8388608   float     sum    607.1   55.27   96.72  1e-06    610.0   55.01   96.26  1e-06\n",
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (33554432, False, 607100, 96.72),
            (33554432, True, 610000, 96.26),
        ],
    ),
    Case(
        source="lines of NCCL and of others between rows (NVIDIA/nccl-tests issue 42), a note behind a row",
        text=HEADER
        + ROWS.splitlines()[0]
        + "\nhost0:4242:4310 [0] NCCL INFO Channel 00/02 :    0   1\n"
        + "[1796022754.76] [host0:4242:0] ib.c:24 UCX  WARN  x\n"
        + "12 tests left\n    ...\n"
        + ROWS.splitlines()[1]
        + "   <- slow\n",
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
    ),
    Case(
        source="pdsh and mpirun --tag-output prefixes",
        text="".join(f"host0: {line}\n" for line in (HEADER + ROWS).splitlines()[:-1])
        + f"[1,0]<stdout>:#{COLUMNS}\n[1,0]<stdout>:{ROWS.splitlines()[1]}\n",
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
    ),
    Case(
        source="two ranks print the same table, line by line",
        text="".join(f"{line}\n{line}\n" for line in (f"#{COLUMNS}\n" + ROWS).splitlines()),
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
        losses={"duplicate-row": 2},
    ),
    Case(
        source="two ranks print the same table, one after the other, told apart by srun --label",
        text="".join(f"{rank}: {line}\n" for rank in (0, 1) for line in (HEADER + ROWS + FOOTER).splitlines()),
        rows=[
            (1048576, False, 38120, 27.51),
            (1048576, True, 37600, 27.89),
            (2097152, False, 51200, 40.96),
            (2097152, True, 51300, 40.88),
        ],
        losses={"duplicate-row": 2},
    ),
    Case(
        source="a test that was killed: the row is cut in the in-place part; its other half is whole",
        text=HEADER + ROWS.splitlines()[0][:-30],
        rows=[(1048576, False, 38120, 27.51)],
        losses={"truncated-row": 1},
    ),
    Case(
        source="a failure printed into the row that was under way (the row has no line break yet)",
        text=HEADER
        + "     1048576        262144     float     sum      -1host0: Test NCCL failure all_reduce.cu:44 'x / '\n",
        rows=[],
        losses={"truncated-row": 1},
    ),
    Case(
        source="edited: 2 MiB in 51.20 us are 40.96 GB/s, not 80.96; time 0.00 makes algbw inf",
        text=f"""\
#{COLUMNS}
     2097152        524288     float     sum      -1    51.20   80.96   80.96      0    51.30   40.88   40.88      0
           8             2     float     sum      -1     0.00     inf     inf      0     4.00    0.00    0.00      0
""",
        rows=[(2097152, False, 51200, 80.96), (2097152, True, 51300, 40.88), (8, True, 4000, 0.0)],
        losses={"inconsistent-row": 1, "not-finite": 1},
    ),
    Case(
        source="two rows run together by a lost line break",
        text=HEADER + ROWS.replace("\n", "", 1),
        rows=[],
        losses={"damaged-row": 1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.source)
def test_rows_and_losses_of_a_layout(case: Case):
    found = read_text(READER, case.text)
    rows = [row for row in found.measurements if "busbw_bytes_per_s" in row]
    assert [
        (row["size_bytes"], row["in_place"], row["time_ns"], pytest.approx(row["busbw_bytes_per_s"] / 1e9))
        for row in rows
    ] == case.rows
    losses = dict(found.loss_counts)
    if "damaged-row" in losses and "truncated-row" in case.losses:  # which of the two is said depends on what follows
        losses["truncated-row"] = losses.pop("damaged-row")
    assert losses == case.losses


def test_a_whole_output_says_what_was_run_where():
    found = read_text(READER, HEADER + ROWS + FOOTER)
    names = (
        "tool",
        "tool_version",
        "table_index",
        "collective",
        "dtype",
        "redop",
        "root",
        "ranks",
        "nodes",
        "iterations",
    )
    assert set(columns(found.measurements, *names)) == {
        ("nccl-tests", "2.19.6", 0, "all_reduce", "float", "sum", None, 2, 1, 20)
    }
    assert set(columns(found.measurements, "count", "wrong", "time_is_cpu")) == {
        (262144, 0.0, False),
        (524288, 0.0, False),
    }
    assert columns(found.measurements, "line")[0] == (12,)
    assert found.measurements[0]["byte_offset"] == len(HEADER)
    assert columns(found.devices, "host", "pid", "device", "rank", "kind", "bus_id", "name") == [
        ("host0", 4242, 0, 0, "gpu", "0000:1b:00", "NVIDIA H100 80GB HBM3"),
        ("host0", 4242, 1, 1, "gpu", "0000:2b:00", "NVIDIA H100 80GB HBM3"),
    ]
    assert found.events_named("nccl_tests.start") == [{"collective": "all_reduce_perf"}]
    assert found.events_named("nccl_tests.out_of_bounds") == [{"count": "0", "status": "OK"}]
    assert found.events_named("nccl_tests.average") == [{"value": "34.31"}]
    assert found.events_named("nccl_tests.concluded") == [{"collective": "all_reduce_perf"}]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "#   Rank  0 Pid  12345 on  host0 device  0 [0x07] Tesla V100-SXM2-16GB",
            {
                "rank": "0",
                "pid": "12345",
                "host": "host0",
                "device": "0",
                "bus_id": "0x07",
                "name": "Tesla V100-SXM2-16GB",
            },
        ),
        (
            "#   Rank  3 on      host0 device  3 [0x06] Tesla P100-SXM2-16GB",
            {"rank": "3", "host": "host0", "device": "3", "bus_id": "0x06", "name": "Tesla P100-SXM2-16GB"},
        ),
        (
            "#   Rank  1 Pid   4242 on      host0 device  1 [0000:c1:00.0] AMD Instinct MI300X",
            {
                "rank": "1",
                "pid": "4242",
                "host": "host0",
                "device": "1",
                "bus_id": "0000:c1:00.0",
                "name": "AMD Instinct MI300X",
            },
        ),
    ],
)
def test_device_lines_of_every_age(line: str, fields: dict[str, str]):
    found = read_text(READER, line)
    assert found.events_named("nccl_tests.device") == [fields]
    assert columns(found.devices, "rank", "name") == [(int(fields["rank"]), fields["name"])]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "Test CUDA failure common.cu:941 'system not yet initialized'",
            {"what": "CUDA", "file": "common.cu", "source_line": "941", "message": "system not yet initialized"},
        ),
        (
            "host0: Test NCCL failure common.cu:958 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '",
            {
                "host": "host0",
                "what": "NCCL",
                "file": "common.cu",
                "source_line": "958",
                "message": "unhandled cuda error (run with NCCL_DEBUG=INFO for details) / ",
            },
        ),
        (
            " .. host0 pid 4242: Test failure common.cu:401",
            {"host": "host0", "pid": "4242", "file": "common.cu", "source_line": "401"},
        ),
        ("host0: Test timeout (60s) common.cu:523", {"timeout_s": "60", "file": "common.cu", "source_line": "523"}),
    ],
)
def test_failures_are_events_with_their_place(line: str, fields: dict[str, str]):
    found = read_text(READER, line)
    assert found.events_named("nccl_tests.failure") == [fields]
    assert [row["level"] for row in found.events] == ["error"]


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        ("all_gather_perf", "all_gather"),
        ("alltoall_perf", "all_to_all"),
        ("alltoallv_perf", "all_to_all_v"),
        ("sendrecv_perf", "send_recv"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("broadcast_perf", "broadcast"),
        ("hypercube_perf", None),
    ],
)
def test_the_collective_is_named_by_the_start_line_or_else_by_the_command(program: str, collective: str | None):
    table = f"#{COLUMNS}\n{ROWS.replace(' sum', 'none')}"
    for text in (f"# Collective test starting: {program}\n{table}", f"$ ./build/{program} -b 1M -e 1M -g 2\n{table}"):
        assert {row.get("collective") for row in read_text(READER, text).measurements} == {collective}


def test_a_command_counts_for_the_table_after_it_only():
    """The second table follows no command, and its figures leave broadcast, gather and others open."""
    unknown = f"#{COLUMNS}\n{ROWS.replace(' sum', 'none').replace('-1', ' 0')}"
    found = read_text(READER, f"+ mpirun -np 2 ./all_reduce_perf -g 1\n#{COLUMNS}\n{ROWS}{FOOTER}{unknown}")
    assert columns(found.measurements, "table_index", "collective", "ranks")[::4] == [
        (0, "all_reduce", 2),
        (1, None, None),
    ]


def test_ranks_of_a_command_are_processes_times_gpus():
    """16 processes with one GPU each; 2(16-1)/16 = 1.875 = 51.58 / 27.51."""
    row = ROWS.splitlines()[0].replace("27.51       0", "51.58       0").replace("27.89       0", "52.29       0")
    text = f"mpirun -np 16 -H host0:8,host1:8 \\\n  ./build/all_reduce_perf -b 1M -e 1M -g 1\n#{COLUMNS}\n{row}"
    assert set(columns(read_text(READER, text).measurements, "ranks", "nodes")) == {(16, None)}


def test_a_list_of_devices_that_the_figures_contradict_is_not_believed():
    """Two of 16 ranks are listed; busbw / algbw = 93.75 / 50.00 = 1.875 holds for 2(n-1)/n with n = 16 alone."""
    rows = (
        "   134217728      33554432     float     sum      -1   2684.4   50.00   93.75       0"
        "   2684.4   50.00   93.75       0\n"
    )
    found = read_text(READER, HEADER + rows)
    assert set(columns(found.measurements, "ranks", "nodes")) == {(16, None)}
    assert found.loss_counts == {"incomplete-device-list": 1}


@pytest.mark.parametrize(("busbw", "ranks"), [("48.13", 8), ("55.01", None), ("99.99", None)])
def test_ranks_follow_from_the_factor_where_one_number_fits(busbw: str, ranks: int | None):
    """48.13 / 27.51 = 1.75 = 2(8-1)/8. The factor of an all-reduce stays below 2, so 55.01 and 99.99 fit no number."""
    row = f"     1048576        262144     float     sum      -1    38.12   27.51   {busbw}       0"
    text = f"# Collective test starting: all_reduce_perf\n#{COLUMNS}\n{row}{row[52:]}\n"
    assert set(columns(read_text(READER, text).measurements, "ranks", "nodes")) == {(ranks, None)}


def test_groups_of_nccl_tests_split_are_communicators_of_their_own():
    """Four ranks on two hosts, split in two groups of one rank a host: each communicator has 2 ranks on 2 nodes."""
    devices = "".join(
        f"#  Rank  {rank} Group  {rank % 2} Pid   {42 + rank} on  host{rank // 2} device  {rank % 2} [0000:1b:00] GPU\n"
        for rank in range(4)
    )
    found = read_text(READER, f"{devices}#{COLUMNS}\n{ROWS}")
    assert set(columns(found.measurements, "ranks", "nodes")) == {(2, 2)}


def test_rccl_tests_is_told_by_its_version_line():
    text = f"rccl-tests: Version develop:ae3e635\n# Using devices\n#{COLUMNS}\n{ROWS}"
    assert set(columns(read_text(READER, text).measurements, "tool", "tool_version")) == {
        ("rccl-tests", "develop:ae3e635")
    }


def test_cpu_time_is_marked():
    found = read_text(READER, f"#{COLUMNS.replace('time ', 'cputime ')}\n{ROWS}")
    assert {row["time_is_cpu"] for row in found.measurements} == {True}


def test_an_old_error_column_is_no_number_of_wrong_elements():
    """`1e-06` is the largest relative deviation; wrong is unknown, not a millionth of an element."""
    found = read_text(READER, CASES[1].text)
    assert [row.get("wrong") for row in found.measurements] == [None, None]


def test_per_iteration_columns():
    found = read_text(READER, next(case.text for case in CASES if "-I 1" in case.source))
    assert columns(found.measurements, "min_ns", "max_ns", "p99_ns", "cv_pct") == [
        (30000, 50000, 49000, 5.25),
        (31000, 51000, 48000, 6.25),
    ]


def test_a_loss_says_what_is_wrong_and_how_to_mend_it():
    found = read_text(READER, HEADER + ROWS.splitlines()[0][:-30])
    assert str(found.losses[0]) == (
        "input.txt:12: truncated-row: row has 9 columns, its header has 13; the output looks cut. "
        "Run the test again with unbuffered stdout (stdbuf -oL), or copy all of its output"
    )


def test_recorded_gb200_nvl72():
    """Source: coreweave/nccl-tests#43, cut to the last of 72 devices; the factor 2*71/72 is all-reduce's alone."""
    found = read_text(READER, (DATA / "nccl-tests-healthy-gb200-nvl72.txt").read_bytes())
    assert set(columns(found.measurements, "collective", "ranks", "nodes")) == {("all_reduce", 72, None)}
    assert columns(found.measurements, "size_bytes", "time_ns", "busbw_bytes_per_s", "in_place")[-1] == (
        8589934592,
        20006000,
        846.82e9,
        True,
    )
    assert len(found.measurements) == 10
    assert found.losses == []


def test_recorded_a100_pair():
    """Source: NVIDIA/nccl-tests#152: 16 GPUs by the factor 93.25 / 49.73 = 1.875; the row of dots is no row."""
    found = read_text(READER, (DATA / "nccl-tests-healthy-a100-after-fix.txt").read_bytes())
    assert set(columns(found.measurements, "collective", "ranks")) == {("all_reduce", 16)}
    assert len(found.measurements) == 12
    assert found.losses == []


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02 03:04:05 1048576 bytes in 38.12 us\n" * 5,
        "1048576 262144 38.12 27.51 27.51 0 37.60 27.89 27.89 0\n",
        "# size count\n1 2\n3 4\n",
        "loss 10 20 float 3\n10 20 float 3\n",
        "algbw is size / time, busbw is algbw times a factor\n",
    ],
)
def test_other_texts_give_no_rows(text: str):
    assert read_text(READER, text).measurements == []


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = HEADER + ROWS + FOOTER
    names = ("line", "in_place", "size_bytes", "time_ns", "busbw_bytes_per_s")
    whole = columns(read_text(READER, text).measurements, *names)
    for end in range(len(text)):
        part = columns(read_text(READER, text[:end]).measurements, *names)
        assert part == whole[: len(part)]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_mutation_of_a_table_raises(data: st.DataObject):
    text = bytearray((HEADER + ROWS + FOOTER + CASES[6].text + CASES[9].text).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b" ", b"9" * 30]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    found = read_text(READER, bytes(text))
    assert all(row["size_bytes"] >= 0 for row in found.measurements)
