"""What nccl-tests writes with -J (layout: src/util.cu) and rccl-tests with -Z json, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.nccl_tests_json import READER

from .reading import columns, read_text

RESULT = """{"size":1048576,"count":262144,"type":"float","redop":"sum","root":"    -1",
"out_of_place":{"time":38.120000,"alg_bw":27.507240,"bus_bw":48.137670,"nwrong":0.000000},
"in_place":{"time":37.600000,"alg_bw":27.887660,"bus_bw":48.803404,"nwrong":null},"actual_iterations":20,"experiment_name":""}"""


def device(rank: int, host: str) -> str:
    return (
        f'{{"rank":{rank},"group":0,"pid":{4242 + rank},"hostname":"{host}","device":{rank % 2},'
        f'"device_hex":"0000:1b:00","device_info":"NVIDIA H100 80GB HBM3"}}'
    )


def report(results: str = RESULT, version: int = 3, **more: str) -> str:
    """A -J file as nccl-tests writes it; more members go behind the results."""
    tail = "".join(f',"{key}":{value}' for key, value in more.items())
    return (
        f'{{"version":{version},"start_time":"2026-01-02 03:04:05","args":["./build/all_reduce_perf","-J","a.json"],\n'
        '"env":["NCCL_DEBUG=INFO","HF_TOKEN=hf_secret","USER=someone","NCCL_IB_HCA=mlx5_0,mlx5_1"],'
        '"nccl_version":23007,\n'
        '"config":{"nthreads":1,"ngpus":2,"minimum_bytes":8,"maximum_bytes":128,"step_factor":2,"warmup_iters":1,'
        '"iterations":20,'
        '"aggregated_iterations":1,"validation":1,"graph":0,"blocking_collectives":"false","parallel_init":"false",'
        f'"devices":[{device(0, "host0")},{device(2, "host1")}]}},\n"results":[\n{results}]{tail}}}'
    )


FOOT = {
    "out_of_bounds": '{"count":0,"okay":"true"}',
    "average_bus_bandwidth": '{"bandwidth":48.470537,"okay":"unchecked"}',
    "errors": "[]",
    "end_time": '"2026-01-02 03:04:06"',
}


def test_a_report_gives_a_row_for_each_half_with_all_digits():
    """Two processes with 2 GPUs each make 4 ranks on 2 hosts; time is printed in us with 6 decimals."""
    text = report(**FOOT)
    found = read_text(READER, text)
    names = ("in_place", "size_bytes", "count", "time_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "wrong")
    assert columns(found.measurements, *names) == [
        (False, 1048576, 262144, 38120, 27.507240e9, 48.137670e9, 0.0),
        (True, 1048576, 262144, 37600, 27.887660e9, 48.803404e9, None),
    ]
    more = (
        "tool",
        "collective",
        "dtype",
        "redop",
        "root",
        "ranks",
        "nodes",
        "iterations",
        "time_is_cpu",
        "table_index",
    )
    assert set(columns(found.measurements, *more)) == {
        ("nccl-tests", "all_reduce", "float", "sum", None, 4, 2, 20, False, 0)
    }
    assert set(columns(found.measurements, "line", "byte_offset")) == {(5, text.index('{"size"'))}
    assert found.losses == []


def test_only_allowed_variables_pass_the_door():
    found = read_text(READER, report(**FOOT))
    assert columns(found.settings, "name", "value", "origin", "line") == [
        ("NCCL_DEBUG", "INFO", "benchmark report", 2),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", "benchmark report", 2),
    ]
    assert "hf_secret" not in repr(found)


def test_devices_are_listed_once_each():
    text = report(**FOOT).replace(device(2, "host1"), device(2, "host1") + "," + device(2, "host1"))
    found = read_text(READER, text)
    assert columns(found.devices, "host", "rank", "pid", "bus_id", "name") == [
        ("host0", 0, 4242, "0000:1b:00", "NVIDIA H100 80GB HBM3"),
        ("host1", 2, 4244, "0000:1b:00", "NVIDIA H100 80GB HBM3"),
    ]
    assert {row["ranks"] for row in found.measurements} == {4}


def test_the_verdict_becomes_the_events_of_the_text_output():
    foot = FOOT | {"out_of_bounds": '{"count":16,"okay":"false"}', "errors": '["unhandled system error"]'}
    found = read_text(READER, report(**foot))
    assert found.events_named("nccl_tests.out_of_bounds") == [{"count": "16", "status": "FAILED"}]
    assert found.events_named("nccl_tests.average") == [{"value": "48.4705"}]
    assert found.events_named("nccl_tests.failure") == [{"message": "unhandled system error"}]


def test_infinity_stands_bare_and_nan_as_a_string():
    """jsonDouble prints nan as "nan" and infinity as inf; both are unknown, and the rest of the file is read."""
    results = RESULT.replace("27.507240", "inf").replace("48.137670", '"nan"').replace("27.887660", "-inf")
    found = read_text(READER, report(results, **FOOT))
    assert columns(found.measurements, "algbw_bytes_per_s", "busbw_bytes_per_s") == [(None, None), (None, 48.803404e9)]
    assert found.loss_counts == {"not-finite": 3}
    assert len(found.events_named("nccl_tests.average")) == 1


def test_halves_may_be_null_and_times_may_be_cpu_times():
    results = RESULT.replace('{"time":38.120000,"alg_bw":27.507240,"bus_bw":48.137670,"nwrong":0.000000}', "null")
    found = read_text(READER, report(results.replace('"time"', '"cpu_time"'), version=1))
    assert columns(found.measurements, "in_place", "time_ns", "time_is_cpu") == [(True, 37600, True)]


def test_per_iteration_blocks():
    block = '{"min_us":30.0,"max_us":50.0,"avg_us":40.0,"p99_us":49.0,"cv_pct":5.25,"times_us":[30.0,50.0]}'
    found = read_text(READER, report(RESULT[:-1] + f',"out_of_place_per_iter":{block}}}', version=2))
    assert columns(found.measurements, "min_ns", "max_ns", "p99_ns", "cv_pct") == [
        (30000, 50000, 49000, 5.25),
        (None, None, None, None),
    ]


def test_a_result_that_stands_twice_counts_once():
    found = read_text(READER, report(f"{RESULT},\n{RESULT}", **FOOT))
    assert len(found.measurements) == 2
    assert found.loss_counts == {"duplicate-row": 1}


def test_results_before_a_cut_are_read():
    text = report(f"{RESULT},\n{RESULT.replace('1048576', '2097152')}", **FOOT)
    found = read_text(READER, text[: text.index("2097152") + 30])
    assert columns(found.measurements, "size_bytes") == [(1048576,), (1048576,)]
    assert found.loss_counts == {"truncated-file": 1}
    assert "killed" in found.losses[0].detail


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = report(f"{RESULT},\n{RESULT.replace('1048576', '2097152')}", **FOOT)
    whole = columns(read_text(READER, text).measurements, "line", "in_place", "size_bytes", "time_ns")
    for end in range(0, len(text), 3):
        if READER.sniff(text[:end].encode()):
            part = columns(read_text(READER, text[:end]).measurements, "line", "in_place", "size_bytes", "time_ns")
            assert part == whole[: len(part)]


def rccl(**more: Any) -> str:
    """Key order of rccl-tests with MPI."""
    base = {
        "numCycle": 0,
        "name": "AllReduce",
        "nodes": 1,
        "ranks": 8,
        "ranksPerNode": 8,
        "gpusPerRank": 1,
        "size": 1024,
    }
    rest = {"type": "float", "redop": "sum", "inPlace": 0, "time": 19.18, "algBw": 0.05, "busBw": 0.08, "wrong": "0"}
    return json.dumps(base | rest | more)


def test_rccl_tests_writes_one_object_a_line():
    lines = [rccl(), rccl(inPlace=1, time=18.0), rccl(name="AllToAll", redop="none", wrong="N/A")]
    found = read_text(READER, "\n".join(lines) + "\n")
    names = ("line", "collective", "in_place", "size_bytes", "time_ns", "ranks", "nodes", "wrong", "tool")
    assert columns(found.measurements, *names) == [
        (1, "all_reduce", False, 1024, 19180, 8, 1, 0.0, "rccl-tests"),
        (2, "all_reduce", True, 1024, 18000, 8, 1, 0.0, "rccl-tests"),
        (3, "all_to_all", False, 1024, 19180, 8, 1, None, "rccl-tests"),
    ]


def test_rccl_tests_without_mpi_names_gpus_only():
    text = (
        '{"#wrong":"0","algBw":0.05,"busBw":0.08,"gpus":4,"inPlace":0,"name":"AllReduce","redop":"sum","size":1024,'
        '"time":19.18,"type":"float"}'
    )
    found = read_text(READER, text)
    assert columns(found.measurements, "ranks", "nodes", "wrong", "algbw_bytes_per_s") == [(4, None, 0.0, 0.05e9)]


def test_sniffing_goes_by_content():
    assert READER.sniff(report().encode())
    assert READER.sniff(rccl().encode())
    assert not READER.sniff(b'{"version": "2.4", "entries": []}')
    assert not READER.sniff(b'{"nvbandwidth": {}}')


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_mutation_of_a_report_raises(data: st.DataObject):
    text = bytearray(data.draw(st.sampled_from([report(**FOOT), rccl() + "\n" + rccl(inPlace=1)])).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"[" * 5000, b"null", b'"', b"9" * 5000, b"inf", b"{}"])
        )
        text[at : at + data.draw(st.integers(0, 4))] = put
    if READER.sniff(bytes(text[: 64 * 1024])):
        read_text(READER, bytes(text))
