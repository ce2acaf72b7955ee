"""Layouts: how they are written, where ranks of a group lie, and what cannot run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.workloads.training.layout import (
    Batch,
    Layout,
    check,
    is_legal,
    parse_layout,
    precision_of,
    strides,
)
from busbw.workloads.training.models import find_model

LLAMA, DEEPSEEK, HYBRID = (find_model(n) for n in ("llama3.1-405b", "deepseek-v3", "nemotron3-nano-30b-a3b"))


@given(
    st.builds(
        Layout,
        tp=st.sampled_from([1, 2, 8]), pp=st.sampled_from([1, 4]), cp=st.sampled_from([1, 2]), dp=st.integers(1, 5),
        sharding=st.sampled_from(["zero0", "zero1", "zero2", "fsdp"]),
    )
)  # fmt: skip
def test_a_layout_is_read_as_it_is_written(layout):
    assert parse_layout(str(layout)) == layout


def test_what_is_left_of_the_cluster_is_data_parallel():
    assert parse_layout("tp8.cp2.pp4", gpus=512).dp == 8
    assert parse_layout("tp8,pp4 vpp2", gpus=64).schedule == "interleaved"
    assert parse_layout("dp16.hsdp8").shards == 8
    with pytest.raises(InputError, match="do not divide 100"):
        parse_layout("tp8", gpus=100)


def test_ranks_of_a_tensor_parallel_group_are_neighbours_and_stages_are_far():
    """Megatron's order tp-cp-ep-dp-pp: tp = r mod t, cp = r / t mod c, dp = r / (t c) mod D, pp = r / (t c D)."""
    found = strides(Layout(tp=4, cp=2, dp=3, pp=5))
    assert (found["tp"], found["cp"], found["dp"], found["pp"]) == (1, 4, 4, 24)
    assert strides(Layout(tp=4, cp=2, dp=3, pp=5, order="tp-cp-ep-pp-dp"))["pp"] == 8


WRONG = [
    # layout, model, batch, what the message must say
    ("tp3.dp1", LLAMA, Batch(8), "tp 3 does not divide 128 heads"),
    ("tp7.dp2", LLAMA, Batch(8), "tp 7"),
    ("tp256.dp1", LLAMA, Batch(8), "tp 256 does not divide"),
    ("tp1.cp3.dp1", LLAMA, Batch(8, 1, 8192), "2 x 3 pieces"),
    ("tp8.dp1", LLAMA, Batch(8, 1, 8191), "sequence parallel splits 8191"),
    ("tp1.cp16.dp1.ulysses", LLAMA, Batch(8, 1, 8192), "Ulysses"),
    ("tp1.dp8.ep8", LLAMA, Batch(8), "has no experts"),
    ("tp1.dp8.etp2", LLAMA, Batch(8), "has no experts"),
    ("tp1.dp3.ep3", DEEPSEEK, Batch(6), "ep 3 does not divide 256 experts"),
    ("tp1.dp4.ep8", DEEPSEEK, Batch(8), "does not divide the 4 GPUs of a stage"),
    ("tp1.dp8.ep4.etp3", DEEPSEEK, Batch(8), "etp 3"),
    ("tp1.pp200.dp1", LLAMA, Batch(200), "200 stages for 126 layers"),
    ("tp1.pp1.dp1.vpp2", LLAMA, Batch(8), "without a pipeline"),
    ("tp1.pp4.dp1.interleaved", LLAMA, Batch(8), "needs virtual stages"),
    ("tp1.pp4.dp1.vpp2.zb", LLAMA, Batch(8), "zb has no virtual stages"),
    ("tp1.pp3.dp1.dualpipe", LLAMA, Batch(9), "DualPipe pairs stages"),
    ("tp1.pp4.dp1.zero2", LLAMA, Batch(8), "zero2"),
    ("tp1.pp4.dp1.vpp3", LLAMA, Batch(6), "multiples of pp 4"),
    ("tp1.dp3", LLAMA, Batch(8), "no multiple of micro-batch 1 x dp 3"),
    ("tp1.dp4.hsdp3", LLAMA, Batch(8), "shards of 3"),
    ("tp1.dp4", LLAMA, Batch(2), "no multiple"),
    ("tp64.dp1", HYBRID, Batch(8, 1, 8192), "tp 64 does not divide 32 heads"),
    ("tp5.dp1", HYBRID, Batch(8, 1, 8200), "Mamba heads"),
]


@pytest.mark.parametrize(("text", "model", "batch", "said"), WRONG)
def test_a_layout_that_cannot_run_says_what_where_and_the_nearest_that_can(text, model, batch, said):
    layout = parse_layout(text)
    assert not is_legal(model, layout, batch)
    with pytest.raises(InputError) as caught:
        check(model, layout, batch)
    message = str(caught.value)
    assert said in message
    assert model.name in message
    near = message.rpartition("Nearest legal layout: ")[2].rstrip(".")
    if "Nearest legal" in message:
        assert is_legal(model, parse_layout(near), batch), near
        assert parse_layout(near).gpus == layout.gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp8.qp2", "'qp2' is no part"), ("tp8.tp4", "tp is given twice"), ("tp0", "1 to"), ("", "names no group"),
        ("tp8.fsd", "Did you mean"), ("tp99999999999", "1 to"), ("tp-1", "no part"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_layout_names_the_word(text, said):
    with pytest.raises(InputError, match=said):
        parse_layout(text)


def test_a_layout_for_another_number_of_gpus_names_one_for_these():
    with pytest.raises(InputError, match=r"the cluster has 32.*Nearest legal layout: tp8\.pp2\.dp2"):
        check(find_model("llama3-8b"), parse_layout("tp8.pp2.dp4"), Batch(32), gpus=32)


def test_good_layouts_are_legal():
    check(LLAMA, parse_layout("tp8.pp16.dp128"), Batch(2048, 1, 8192), gpus=16384)
    check(DEEPSEEK, parse_layout("tp2.pp8.dp64.ep64.vpp4"), Batch(8192))


def test_precisions_have_the_names_of_their_recipes():
    assert precision_of("FP8-MX").gemm == "mxfp8"
    assert precision_of("float8+bf16").gather_bytes == 1.0
    with pytest.raises(InputError, match="bf16"):
        precision_of("bf17")
    with pytest.raises(InputError, match="global batch is 0"):
        Batch(0)
