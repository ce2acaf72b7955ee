"""Traces of PyTorch's profiler: a real one of gloo (torch 2.13, two ranks, CPU), NCCL's kernels as kineto's source writes them, damage, any cut into chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers._trace import TraceScanner
from busbw.readers.kineto import READER

from .reading import DATA, columns, read_text

GLOO = (DATA / "kineto-gloo-0.json").read_bytes()
BASE_NS = 1_753_747_272_000_000_000
GROUP = {
    "Collective name": "_allgather_base", "In msg nelems": 512, "Out msg nelems": 4096, "Group size": 8, "dtype": "BFloat16", "Process Group Name": "3",
    "Process Group Description": "fsdp", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": 17,
}  # fmt: skip


def event(category: str, name: str, begin_us: float, took_us: float, **args: Any) -> dict[str, Any]:
    known = {key.replace("_", " ") if key == "External_id" else key: value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": begin_us, "dur": took_us, "args": known}


def trace(*events: dict[str, Any], **members: Any) -> bytes:
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8},
        "baseTimeNanoseconds": BASE_NS,
        "host_name": "node1",
    }
    return json.dumps({**head, **members, "traceEvents": list(events)}).encode()


def test_annotations_of_gloo_are_collectives_without_a_number():
    """Two steps of all_reduce, all_gather and broadcast of 64 x 64 float32."""
    found = read_text(READER, GLOO)
    rows = columns(found.collectives, "rank", "host", "op", "size_bytes", "dtype", "seq")
    wanted = [(0, "node0", op, 64 * 64 * 4, "float", None) for op in ("all_reduce", "all_gather", "broadcast") * 2]
    assert sorted(rows, key=str) == sorted(wanted, key=str)
    assert not found.losses


def test_a_kernel_belongs_to_the_step_that_launched_it():
    """The host is in step 4 when the kernel of step 3 begins."""
    found = read_text(READER, trace(
        event("user_annotation", "ProfilerStep#3", 0.0, 100.0), event("user_annotation", "ProfilerStep#4", 100.0, 100.0),
        event("cuda_runtime", "cudaLaunchKernel", 90.0, 5.0, correlation=7), event("kernel", "gemm", 150.0, 20.5, correlation=7, stream=7, device=1),
    ))  # fmt: skip
    kernel = next(row for row in found.spans if row["category"] == "kernel")
    assert kernel["step"] == 3
    assert (kernel["begin_ns"], kernel["end_ns"], kernel["launched_ns"]) == (
        BASE_NS + 150_000,
        BASE_NS + 170_500,
        BASE_NS + 90_000,
    )
    assert (kernel["lane"], kernel["device"], kernel["rank"], kernel["host"]) == ("7", 1, 5, "node1")


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)",
    ],
)
@pytest.mark.parametrize("on_kernel", [True, False])
def test_a_collective_is_found_by_old_and_new_names_and_arguments_by_external_id(name: str, on_kernel: bool):
    """Since PyTorch 2.2 the kernel has the arguments itself."""
    call = event("cpu_op", "record_param_comms", 1.0, 2.0, External_id=9)
    call["args"] |= GROUP
    kernel = event("kernel", name, 10.0, 30.0, External_id=9, stream=20, device=0)
    kernel["args"] |= GROUP if on_kernel else {}
    found = read_text(READER, trace(kernel, call))
    wanted = ("all_gather", "3", "fsdp", 17, 4096 * 2, "bfloat16", 8, list(range(8)), 30_000)
    assert columns(
        found.collectives,
        "op",
        "process_group",
        "group_desc",
        "seq",
        "size_bytes",
        "dtype",
        "ranks",
        "members",
        "duration_ns",
    ) == [wanted]


def test_a_bare_list_of_events_is_a_trace_without_its_head():
    """What `jq .traceEvents` leaves; "Trace Event Format" of Chromium calls it the array format. Rank, host and epoch are then not known."""
    events = [event("user_annotation", "ProfilerStep#3", 0.0, 100.0), event("kernel", "gemm", 50.0, 20.5, stream=7)]
    bare = json.dumps(events, indent=1).encode()
    assert READER.sniff(bare)
    whole, found = (read_text(READER, text) for text in (trace(*events), bare))
    told = ("category", "name", "lane", "step")
    assert columns(found.spans, *told) == columns(whole.spans, *told)
    assert columns(found.spans, "begin_ns", "rank", "host")[-1] == (50_000, None, None)
    assert not found.losses


def test_a_bare_list_may_have_its_members_in_any_order():
    """What `jq -S .traceEvents` leaves: sorted, so that args come first."""
    bare = json.dumps([event("kernel", "gemm", 50.0, 20.5, stream=7)], indent=1, sort_keys=True).encode()
    assert bare.index(b'"args"') < bare.index(b'"ph"')
    assert READER.sniff(bare)
    assert columns(read_text(READER, bare).spans, "name", "begin_ns", "lane") == [("gemm", 50_000, "7")]


@pytest.mark.parametrize("text", [b"[]", b"[1, 2]", b'[{"ph": "X", "name": "main"}]', b'[{"cat": "kernel"}]'])
def test_other_lists_are_no_trace_of_kineto(text: bytes):
    assert not READER.sniff(text)


def test_events_without_a_time_are_one_loss_that_counts_them():
    untimed = [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 2}] * 3
    (loss,) = read_text(READER, trace(*untimed, event("kernel", "gemm", 1.0, 1.0))).losses
    assert (loss.kind, loss.count) == ("damaged-event", 3)


def test_times_are_exact_where_a_float_is_not():
    """5,221,443,286,605.074 us of a machine that is up for 60 days: a float64 is off by half a nanosecond there, and by 128 ns with the base added."""
    text = trace(event("kernel", "k", 0.0, 1.0, stream=7)).replace(b'"ts": 0.0', b'"ts": 5221443286605.074')
    assert read_text(READER, text).spans[0]["begin_ns"] == BASE_NS + 5_221_443_286_605_074


def test_a_trace_that_ends_in_the_middle_keeps_what_stands_before():
    text = trace(*(event("kernel", f"k{i}", float(i), 0.5, stream=7) for i in range(9)))
    found = read_text(READER, text[: text.rindex(b"{")])
    assert len(found.spans) == 8
    assert list(found.loss_counts) == ["truncated-file"]


@pytest.mark.parametrize(("text", "kind"), [
    (trace(event("kernel", "k", 0.0, 1.0)).replace(b'"dur": 1.0', b'"dur": "long"'), "damaged-event"),
    (trace(event("kernel", "k", 0.0, 1.0)).replace(b'"cat":', b'"cat"'), "damaged-file"),
    (trace(event("kernel", "k", 0.0, 1.0), distributedInfo=0).replace(b'"distributedInfo": 0', b'"distributedInfo": nothing'), "damaged-member"),
])  # fmt: skip
def test_damage_is_counted(text: bytes, kind: str):
    assert kind in read_text(READER, text).loss_counts


@settings(max_examples=30)
@given(st.data())
def test_where_chunks_are_cut_changes_nothing(data: st.DataObject):
    text = trace(
        event("kernel", 'a "quoted\\" name, {[', 1.25, 2.5, stream=7, note={"deep": [[{}]], "brace": "}"}),
        event("cpu_op", "x", 1.0, 1.0),
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=12)))
    whole, cut = TraceScanner(10), TraceScanner(10)
    whole.feed(text)
    for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True):
        cut.feed(text[first:last])
    assert whole.ended and cut.ended
    assert {key: value.tolist() for key, value in cut.take().items()} == {
        key: value.tolist() for key, value in whole.take().items()
    }
    assert (cut.words(), cut.members(), cut.events) == (whole.words(), whole.members(), whole.events)


@settings(max_examples=60)
@given(st.data())
def test_no_damage_makes_the_reader_fail(data: st.DataObject):
    """Bytes of a real trace changed, taken out, doubled."""
    text = bytearray(GLOO)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            text[at] = data.draw(st.integers(0, 255))
        else:
            size = data.draw(st.integers(1, 400))
            text[at : at + size] = text[at : at + size] * 2 if kind == 2 else b""
    read_text(READER, bytes(text))
