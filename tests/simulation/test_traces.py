"""Chakra and PyTorch profiler traces as graphs. The files are written here after the formats' grammar; times are worked out by hand."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError, Losses
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import read_graph, simulate
from busbw.simulation.formats.chakra import is_chakra, read_chakra
from busbw.simulation.formats.protobuf import DamagedError, fields, split

B, L = 50e9, 1e-6
US = 1e-6


def star(ranks):
    return SingleSwitch(ranks, LinkRates(B, B, 0.0, L))


def time_of(graph):
    return simulate(graph, star(max(2, graph.ranks))).time_s


# --- Chakra ---------------------------------------------------------------------------------------------------------

COMP, SEND, RECV, COLL = 4, 5, 6, 7
ALL_REDUCE, ALL_TO_ALL = 0, 6


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(number, kind, *after, name="n", duration_us=0, **attributes):
    """Dependencies packed, as protobuf's writers do; numbers as int64 (9), texts as string (29)."""
    message = field(1, number) + field(2, name) + field(3, kind)
    if after:
        message += field(5, b"".join(map(varint, after)))
    if duration_us:
        message += field(7, duration_us)
    for key, value in attributes.items():
        message += field(10, field(1, key) + field(9 if isinstance(value, int) else 29, value))
    return message


def trace(*nodes):
    return b"".join(varint(len(each)) + each for each in (field(1, "0.0.4"), *nodes))


def folder(tmp_path, *traces, name="job.{}.et"):
    for rank, content in enumerate(traces):
        (tmp_path / name.format(rank)).write_bytes(content)
    return tmp_path


def test_nodes_come_after_their_data_dependencies(tmp_path):
    """5 us, then 3 us and 4 us at once."""
    one = trace(node(1, COMP, duration_us=5), node(2, COMP, 1, duration_us=3), node(3, COMP, 1, duration_us=4))
    assert time_of(read_graph(folder(tmp_path, one))) == pytest.approx(9 * US)


def test_a_collective_of_all_ranks_takes_what_its_ring_takes(tmp_path):
    """4 ranks, 1 MB: 6 steps of 250 kB at 50 GB/s and two links of 1 us, begun by the last rank at 10 us."""
    traces = [
        trace(
            node(1, COMP, duration_us=10 if rank == 2 else 1), node(2, COLL, 1, comm_type=ALL_REDUCE, comm_size=10**6)
        )
        for rank in range(4)
    ]
    assert time_of(read_graph(folder(tmp_path, *traces))) == pytest.approx(10 * US + 6 * (250e3 / B + 2 * L))


def test_groups_are_matched_by_name(tmp_path):
    """Ranks 0 and 1 exchange 1 MB halves in one group, 2 and 3 in another; no link is shared."""
    traces = [
        trace(node(1, COLL, comm_type=ALL_TO_ALL, comm_size=2 * 10**6, pg_name="01" if rank < 2 else "23"))
        for rank in range(4)
    ]
    assert time_of(read_graph(folder(tmp_path, *traces))) == pytest.approx(1e6 / B + 2 * L)


def test_sends_and_receives_meet_by_pair_and_tag(tmp_path):
    """Rank 1 waits for tag 7, which is sent second: two messages of 50 kB share nothing but the link, one after another posted at once."""
    sender = trace(
        node(1, SEND, comm_dst=1, comm_size=50_000, comm_tag=3),
        node(2, SEND, 1, comm_dst=1, comm_size=50_000, comm_tag=7),
    )
    receiver = trace(
        node(1, RECV, comm_src=0, comm_size=50_000, comm_tag=7), node(2, COMP, 1, duration_us=2),
        node(3, RECV, comm_src=0, comm_size=50_000, comm_tag=3),
    )  # fmt: skip
    assert time_of(read_graph(folder(tmp_path, sender, receiver))) == pytest.approx(2 * US + 2 * L + 2 * US)


def test_ranks_without_a_trace_do_as_the_first(tmp_path):
    losses = Losses("x")
    file = (
        folder(tmp_path, trace(node(1, COMP, duration_us=1), node(2, COLL, 1, comm_type=ALL_REDUCE, comm_size=10**6)))
        / "job.0.et"
    )
    graph = read_graph(file, losses, ranks=4)
    assert graph.ranks == 4
    assert time_of(graph) == pytest.approx(1 * US + 6 * (250e3 / B + 2 * L))


def test_operations_take_time_where_a_rate_is_given(tmp_path):
    file = folder(tmp_path, trace(node(1, COMP, num_ops=10**9))) / "job.0.et"
    assert time_of(read_graph(file, flops_per_s=1e15)) == pytest.approx(1 * US)
    losses = Losses("x")
    assert time_of(read_graph(file, losses)) == 0
    assert [loss.kind for loss in losses] == ["no-duration"]


def test_what_does_not_fit_is_counted_and_takes_no_time(tmp_path):
    """A collective on one of two ranks only, a send without a receive, a peer and a dependency that are not there, a node twice."""
    one = trace(
        node(1, COLL, comm_type=ALL_REDUCE, comm_size=8, pg_name="a"), node(2, COLL, 1, comm_type=ALL_REDUCE, comm_size=8, pg_name="a"),
        node(3, SEND, comm_dst=1, comm_size=8), node(4, SEND, comm_dst=9, comm_size=8), node(5, COMP, 77, duration_us=1), node(5, COMP),
    )  # fmt: skip
    other = trace(node(1, COLL, comm_type=ALL_REDUCE, comm_size=8, pg_name="a"))
    losses = Losses("x")
    read_graph(folder(tmp_path, one, other), losses)
    assert {loss.kind: loss.count for loss in losses} == {
        "mismatched-collective": 1, "unmatched-message": 1, "unknown-peer": 1, "unknown-dependency": 1, "duplicate-node": 1,
    }  # fmt: skip


def test_a_cut_trace_says_where(tmp_path):
    whole = trace(node(1, COMP, duration_us=1), node(2, COMP, 1, duration_us=1))
    (tmp_path / "a.0.et").write_bytes(whole[:-3])
    with pytest.raises(InputError, match=r"a\.0\.et: byte \d+: ends inside a message\. .* 1 nodes stand before"):
        read_graph(tmp_path)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_no_bytes_break_the_reader(noise, at):
    """Whatever stands in a file, it is a graph or an InputError."""
    good = trace(
        node(1, COMP, duration_us=1), node(2, COLL, 1, comm_type=0, comm_size=8, pg_name="g"), node(3, SEND, comm_dst=0)
    )
    for data in (noise, good[:at] + noise + good[at:]):
        is_chakra(data)
        with contextlib.suppress(InputError):
            read_chakra({0: ("x", data)}, Losses("x")).check()


def test_wire_types_of_protobuf():
    """Varint, eight bytes, length and bytes, four bytes; groups (3, 4) are damage."""
    data = (
        field(1, 300)
        + varint(2 << 3 | 1)
        + struct.pack("<q", -2)
        + field(3, b"x")
        + varint(4 << 3 | 5)
        + struct.pack("<i", 7)
    )
    assert [(n, v if isinstance(v, int) else len(v)) for n, v in fields(data)] == [(1, 300), (2, 8), (3, 1), (4, 4)]
    with pytest.raises(DamagedError):
        list(fields(varint(1 << 3 | 3)))
    with pytest.raises(DamagedError):
        list(split(b"\x05abc"))


# --- PyTorch profiler ------------------------------------------------------------------------------------------------


def kernel(begin, took, stream, correlation, name="gemm", **args):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": took, "pid": 0, "tid": stream,
            "args": {"stream": stream, "device": 0, "correlation": correlation, **args}}  # fmt: skip


def launch(begin, took, correlation, name="cudaLaunchKernel"):
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": begin, "dur": took, "pid": 9, "tid": 9,
            "args": {"correlation": correlation}}  # fmt: skip


def nccl(begin, took, correlation, elements, *, ranks="[0, 1]", **more):
    return kernel(
        begin, took, 20, correlation, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
        **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": ranks.count(",") + 1,
           "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": ranks, **more},
    )  # fmt: skip


def profile(*events, rank=0, world=2, **more):
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": world},
        "traceEvents": list(events),
        **more,
    }


def written(tmp_path, *documents):
    for rank, document in enumerate(documents):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    return tmp_path


def test_kernels_keep_the_order_of_their_stream_and_their_launches(tmp_path):
    """Launch 1 us; 10 us; a second, launched at 5 us, of 10 us on the same stream; a third on another stream launched at 30 us: 31 + 7."""
    events = (
        launch(0, 1, 1), kernel(2, 10, 7, 1), launch(4, 1, 2), kernel(12, 10, 7, 2), launch(30, 1, 3), kernel(32, 7, 8, 3),
    )  # fmt: skip
    assert time_of(read_graph(written(tmp_path, profile(*events, world=1)))) == pytest.approx(38 * US)


def test_a_collective_takes_what_the_network_makes_of_it_and_what_waited_waits(tmp_path):
    """gemm 10 us, all_reduce of 2 MB between two ranks, launched behind it, then a gemm of 5 us that began when the collective had ended.

    In the trace the collective took 1000 us; here 2 steps of 1 MB: 20 us each and two links of 1 us. The last launch is at 3 us."""
    events = (
        launch(0, 1, 1), kernel(1, 10, 7, 1), launch(1, 1, 2), nccl(11, 1000, 2, 500_000), launch(2, 1, 3), kernel(1012, 5, 7, 3),
    )  # fmt: skip
    whole = read_graph(written(tmp_path, *(profile(*events, rank=rank) for rank in range(2))))
    assert time_of(whole) == pytest.approx(1 * US + 10 * US + 2 * (1e6 / B + 2 * L) + 5 * US)


def test_what_could_have_begun_and_did_does_not_wait(tmp_path):
    """Computing on another stream goes on beside the collective: 11 + 100 us, not after it."""
    events = (
        launch(0, 1, 1), kernel(1, 10, 7, 1), launch(1, 1, 2), nccl(11, 200, 2, 500_000), launch(2, 1, 3), kernel(11, 100, 7, 3),
    )  # fmt: skip
    graph = read_graph(written(tmp_path, *(profile(*events, rank=rank) for rank in range(2))))
    assert time_of(graph) == pytest.approx(111 * US)


def test_a_thread_that_waits_goes_on_with_the_gpu(tmp_path):
    """Launched at 1, runs 50 us; the thread waits for it from 3 to 51 us, then needs 4 us to launch the next one of 5 us: 51 + 5 + 5."""
    events = (
        launch(0, 1, 1), kernel(1, 50, 7, 1), launch(3, 48, 99, "cudaDeviceSynchronize"), launch(55, 1, 2), kernel(56, 5, 7, 2),
    )  # fmt: skip
    assert time_of(read_graph(written(tmp_path, profile(*events, world=1)))) == pytest.approx(61 * US)


def test_absent_ranks_come_with_the_first_and_are_counted(tmp_path):
    """One trace of 4 ranks: 6 steps of 500 kB."""
    losses = Losses("x")
    trace_of_one = profile(launch(0, 1, 1), nccl(1, 10, 1, 500_000, ranks="[0, 1, 2, 3]"), world=4)
    graph = read_graph(written(tmp_path, trace_of_one), losses)
    assert time_of(graph) == pytest.approx(1 * US + 6 * (500e3 / B + 2 * L))
    assert {loss.kind: loss.count for loss in losses} == {"absent-ranks": 1}


def test_long_lists_of_ranks_are_found_in_the_head(tmp_path):
    """Kineto writes [0, 2, ..., 6] of long groups; the head has them all, or start and stride do."""
    head = {"distributedInfo": {"rank": 0, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0, 2, 4, 6]}]}}
    call = nccl(1, 10, 1, 1000, **{"Process Group Ranks": "[0, 2, ..., 6]", "Group size": 4})
    by_head = read_graph(written(tmp_path, profile(launch(0, 1, 1), call) | head))
    assert set(by_head.peer[by_head.peer >= 0].tolist()) == {0, 2, 4, 6}
    call["args"] |= {"Global rank start": 0, "Global rank stride": 2}
    by_stride = read_graph(written(tmp_path, profile(launch(0, 1, 1), call, world=8)))
    assert set(by_stride.peer[by_stride.peer >= 0].tolist()) == {0, 2, 4, 6}


def test_a_collective_that_says_no_size_takes_its_time(tmp_path):
    """As torch before 2.2 writes it."""
    losses = Losses("x")
    old = kernel(1, 30, 20, 1, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)")
    graph = read_graph(written(tmp_path, profile(launch(0, 1, 1), old)), losses)
    assert time_of(graph) == pytest.approx(31 * US)
    assert [loss.kind for loss in losses] == ["collective-without-size"]


def test_gloo_is_read_from_traces_without_a_gpu(tmp_path):
    """An operation of 5 us, 2 us of Python, gloo's all_reduce of 250,000 floats on another thread, an operation that waited for it, 3 us."""

    def op(begin, took, name, thread, **args):
        category = "user_annotation" if name.startswith("gloo") else "cpu_op"
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "ts": begin,
            "dur": took,
            "pid": 1,
            "tid": thread,
            "args": args,
        }

    events = (
        op(0, 5, "aten::mm", 1), op(1, 2, "aten::inner", 1),
        op(7, 500, "gloo:all_reduce", 2, **{"Input Dims": [[250_000]], "Input type": ["float"]}), op(508, 3, "aten::add", 1),
    )  # fmt: skip
    graph = read_graph(written(tmp_path, *(profile(*events, rank=rank) for rank in range(2))))
    assert time_of(graph) == pytest.approx(5 * US + 2 * (500e3 / B + 2 * L) + 1 * US + 3 * US, rel=0.05)


def test_traces_may_be_gzipped_and_are_bounded(tmp_path):
    (tmp_path / "r0.json.gz").write_bytes(
        gzip.compress(json.dumps(profile(launch(0, 1, 1), kernel(1, 5, 7, 1), world=1)).encode())
    )
    assert time_of(read_graph(tmp_path)) == pytest.approx(6 * US)
    (tmp_path / "r0.json.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(InputError, match="damaged gzip"):
        read_graph(tmp_path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.json": profile(world=1)}, "no kernel and no operation"),
        ({"a.json": {"schema": "1.1.1-chakra.0.0.4", "nodes": []}}, "no trace in this folder"),
        (
            {"a.json": profile(launch(0, 1, 1), rank=1), "b.json": profile(launch(0, 1, 1), rank=1)},
            "rank 1 has another trace",
        ),
        ({}, "no trace in this folder"),
    ],
)
def test_folders_that_are_no_job(tmp_path, files, said):
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(InputError, match=said):
        read_graph(tmp_path)


def test_an_execution_trace_alone_is_told_how_to_become_one(tmp_path):
    file = tmp_path / "et.json"
    file.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": []}))
    with pytest.raises(InputError, match="chakra_converter"):
        read_graph(file)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ts", "dur", "args", "stream"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["ts", "dur", "args", "cat", "name", "pid", "tid", "ph"]), _values
        ),
        max_size=4,
    )
)
def test_no_json_breaks_the_reader(changes):
    """Whatever an event says, it is a graph or an InputError."""
    events = [launch(0, 1, 1), kernel(1, 10, 7, 1), launch(2, 1, 2), nccl(11, 10, 2, 100)]
    for at, key, value in changes:
        events[at] = {**events[at], key: value}
    from busbw.simulation.formats.kineto import read_kineto

    with contextlib.suppress(InputError):
        read_kineto({0: ("x", profile(*events))}, Losses("x")).check()
