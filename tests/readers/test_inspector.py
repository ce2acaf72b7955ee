"""NCCL Inspector: lines as inspector_json.cc of NVIDIA/nccl writes them, formats v4.0 and v4.2."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers.inspector import READER

from .reading import columns, read_text


def line(*, sn: int = 17, coll: str = "AllReduce", **perf: Any) -> str:
    record = {
        "header": {"id": "0x1f2e", "comm_name": "dp", "rank": 3, "n_ranks": 16, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "abc", "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": 1760000000000000,
            "hostname": "host0", "pid": 4242,
        },
        "coll_perf": {
            "coll": coll, "coll_sn": sn, "coll_msg_size_bytes": 1048576, "coll_exec_time_us": 71, "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 14.768, "coll_busbw_gbs": 27.69,
        } | perf,
    }  # fmt: skip
    return json.dumps(record, separators=(",", ":")) + "\n"


P2P = (
    line()
    .replace('"coll_perf":{', '"p2p_perf":{"p2p_peer":5,')
    .replace('"coll":"AllReduce"', '"p2p":"Send"')
    .replace('"coll_', '"p2p_')
)


def test_a_collective_is_a_measurement():
    """1 MiB in 71 us is 14.768 GB/s; times 2 * 15 / 16."""
    rows = read_text(READER, line()).measurements
    wanted = columns(
        rows,
        "tool",
        "collective",
        "size_bytes",
        "time_ns",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
        "ranks",
        "nodes",
        "time_is_cpu",
    )
    assert wanted == [("nccl-inspector", "all_reduce", 1048576, 71_000, 14.768e9, 27.69e9, 16, 2, False)]


def test_it_is_a_collective_of_a_rank_too():
    rows = read_text(READER, line()).collectives
    wanted = columns(
        rows, "host", "pid", "rank", "process_group", "group_desc", "seq", "op", "duration_ns", "state", "is_p2p"
    )
    assert wanted == [("host0", 4242, 3, "0x1f2e", "dp", 17, "all_reduce", 71_000, "completed", False)]


@pytest.mark.parametrize(("coll", "op", "size"), [
    ("AllGather", "all_gather", 16 * 1048576), ("ReduceScatter", "reduce_scatter", 16 * 1048576), ("Broadcast", "broadcast", 1048576), ("All2All", "all_to_all", 1048576),
])  # fmt: skip
def test_the_size_is_the_larger_buffer(coll, op, size):
    """As the plugin's inspectorComputeOpBw counts: msg_size times the ranks."""
    assert columns(read_text(READER, line(coll=coll)).measurements, "collective", "size_bytes") == [(op, size)]


def test_messages_between_two_ranks():
    rows = read_text(READER, P2P).collectives
    assert columns(rows, "op", "seq", "peer", "is_p2p", "duration_ns") == [("send", 17, 5, True, 71_000)]


def test_verbose_lines_know_when():
    trace = {"coll_start_ts": 1760000000000001, "coll_stop_ts": 1760000000000072, "kernel_events": []}
    rows = read_text(READER, line(event_trace_ts=trace)).collectives
    assert columns(rows, "started_ns", "completed_ns") == [(1760000000000001000, 1760000000000072000)]


def test_a_time_or_rate_of_0_is_unknown():
    rows = read_text(READER, line(coll_exec_time_us=0, coll_algobw_gbs=0.0, coll_busbw_gbs="nan")).measurements
    assert columns(rows, "time_ns", "algbw_bytes_per_s", "busbw_bytes_per_s") == [(None, None, None)]


def test_lines_and_offsets():
    rows = read_text(READER, line() + "\n" + line(sn=18)).measurements
    assert columns(rows, "line", "byte_offset") == [(1, 0), (3, len(line()) + 1)]


def test_damaged_lines_are_counted_and_the_rest_is_read():
    text = line() + "{broken\n" + line(sn=18) + "[]\n{}\n" + '{"header":{},"dump_stats":{}}\n' + line(sn=19)[:200]
    found = read_text(READER, text)
    assert [row["seq"] for row in found.collectives] == [17, 18]
    assert found.loss_counts == {"damaged-row": 3, "truncated-file": 1}


def test_it_is_told_by_its_keys():
    assert READER.sniff(line().encode())
    assert READER.sniff(b"cut-line\n" + line().encode())
    assert not READER.sniff(b'{"header":{"id":"0x1"}}')
    assert not READER.sniff(b"NCCL INFO inspector_output_format_version")
    assert not READER.sniff(b"")


@pytest.mark.parametrize("value", [None, [], {}, "", -1, 2**70, 1e300, True, "\ud800"])
@pytest.mark.parametrize(
    "name",
    [
        "coll",
        "coll_sn",
        "coll_msg_size_bytes",
        "coll_exec_time_us",
        "coll_timing_source",
        "coll_algobw_gbs",
        "event_trace_ts",
    ],
)
def test_any_value_in_any_field_is_read(name, value):
    assert len(read_text(READER, line(**{name: value}) if name not in ("coll",) else line(coll=value)).collectives) == 1


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    read_text(READER, data)
    read_text(READER, line().encode() + data)


@given(st.data())
def test_changed_bytes_never_raise(data):
    whole = bytearray((line() + P2P + line(sn=18)).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    read_text(READER, bytes(whole))
