"""What the OSU micro-benchmarks print. MB/s is 1e6 bytes/s; latencies are us."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.osu import READER

from .reading import DATA, columns, read_text

ALL_REDUCE = """
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       0.86              0.85              0.87          50
8                       0.90              0.88              0.92          50
"""


def test_recorded_latency_7_4():
    """Source: osu_latency 7.4 with Open MPI, two ranks of one host."""
    found = read_text(READER, (DATA / "osu-latency-7.4.txt").read_bytes())
    names = ("tool", "tool_version", "collective", "size_bytes", "time_ns", "dtype", "line")
    assert columns(found.measurements, *names)[0] == ("osu_latency", "7.4", "send_recv", 1, 490, "char", 5)
    assert columns(found.measurements, "size_bytes", "time_ns")[-1] == (64, 420)
    assert len(found.measurements) == 7
    assert found.losses == []
    assert found.events_named("osu.title") == [{"name": "MPI Latency", "version": "7.4"}]


def test_recorded_bandwidth_5_6_with_its_command():
    """Source: openucx/ucx#3984. 0.70 MB/s are 700000 bytes/s; the command starts 2 ranks."""
    found = read_text(READER, (DATA / "osu-bw-5.6.1.txt").read_bytes())
    names = ("tool", "tool_version", "collective", "size_bytes", "algbw_bytes_per_s", "time_ns", "ranks")
    assert columns(found.measurements, *names)[0] == ("osu_bw", "5.6.1", "send_recv", 1, pytest.approx(0.70e6), None, 2)
    assert columns(found.measurements, *names)[-1][3:5] == (262144, pytest.approx(325.06e6))


def test_recorded_broadcast_among_log_lines():
    """Source: openucx/ucx#8746."""
    found = read_text(READER, (DATA / "osu-bcast-5.8.txt").read_bytes())
    assert columns(found.measurements, "tool", "collective", "size_bytes", "time_ns") == [
        ("osu_bcast", "broadcast", 1, 230)
    ]


def test_full_statistics():
    """Option -f."""
    found = read_text(READER, ALL_REDUCE)
    assert columns(found.measurements, "collective", "size_bytes", "time_ns", "min_ns", "max_ns", "iterations") == [
        ("all_reduce", 4, 860, 850, 870, 50),
        ("all_reduce", 8, 900, 880, 920, 50),
    ]


@pytest.mark.parametrize(("command", "size"), [("", None), ("mpirun -np 4 ./osu_allgather -f", 4 * 4)])
def test_the_size_of_a_gathered_buffer_needs_the_number_of_ranks(command: str, size: int | None):
    """osu_allgather prints what one rank contributes; our size is the larger buffer, n times that."""
    text = f"{command}\n{ALL_REDUCE.replace('Allreduce', 'Allgather')}"
    assert columns(read_text(READER, text).measurements, "collective", "size_bytes", "count")[0] == (
        "all_gather",
        size,
        4,
    )


def test_a_barrier_has_no_size_column_and_moves_nothing():
    text = "# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             1.23\n"
    found = read_text(READER, text)
    assert columns(found.measurements, "collective", "size_bytes", "time_ns") == [("barrier", 0, 1230)]


def test_validation_and_overlap_columns():
    """Options -c and a non-blocking collective: the time is that of the communication alone."""
    text = """\
# OSU MPI Non-blocking Allreduce Latency Test v7.4
# Size  Overall(us)  Compute(us)  Coll. Init(us)  Pure Comm.(us)  Min Comm.(us)  Max Comm.(us)  Overlap(%)  Validation
4              2.00         1.00            0.10            0.90           0.80           1.00       10.00        Pass
8              2.00         1.00            0.10            0.95           0.80           1.00       10.00        Fail
"""
    found = read_text(READER, text)
    assert columns(found.measurements, "time_ns", "min_ns", "max_ns", "wrong") == [
        (900, 800, 1000, 0.0),
        (950, 800, 1000, 1.0),
    ]


@pytest.mark.parametrize(
    ("title", "tool", "collective"),
    [
        ("# OSU MPI All-to-All Personalized Exchange Latency Test v5.8", "osu_alltoall", "all_to_all"),
        ("# OSU MPI Multiple Bandwidth / Message Rate Test v7.4", "osu_mbw_mr", "send_recv"),
        ("# OSU MPI Non-blocking Broadcast Latency Test v7.4", "osu_ibcast", "broadcast"),
        ("# OSU MPI Bi-Directional Bandwidth Test v7.4", "osu_bibw", "send_recv"),
        ("# OSU MPI Reduce_scatter Latency Test v7.4", "osu_reduce_scatter", "reduce_scatter"),
        ("# OSU NCCL-CUDA Latency Test v7.4", "osu_latency", "send_recv"),
        ("# OSU MPI_Put Latency Test v7.4", "osu_put_latency", None),
    ],
)
def test_titles(title: str, tool: str, collective: str | None):
    found = read_text(READER, f"{title}\n# Size          Latency (us)\n1                       0.49\n")
    assert columns(found.measurements, "tool", "collective") == [(tool, collective)]


def test_damage_is_counted_and_the_rest_is_read():
    text = ALL_REDUCE + "16                       0.90   UCX  WARN\nhost0: some line\n32                     0.9"
    found = read_text(READER, text)
    assert columns(found.measurements, "size_bytes") == [(4,), (8,)]
    assert found.loss_counts == {"damaged-row": 1, "truncated-row": 1}


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = (DATA / "osu-latency-7.4.txt").read_text()
    whole = columns(read_text(READER, text).measurements, "line", "size_bytes", "time_ns")
    for end in range(len(text)):
        part = columns(read_text(READER, text[:end]).measurements, "line", "size_bytes", "time_ns")
        assert part == whole[: len(part)]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray(ALL_REDUCE.encode() + (DATA / "osu-bw-5.6.1.txt").read_bytes())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b"9" * 30]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
