"""Memory of a GPU: against the arithmetic of the papers that count it."""

from dataclasses import replace

import numpy as np
import pytest

from busbw.hardware import find_cluster
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import parse_layout, precision_of
from busbw.workloads.training.memory import layer_activation_bytes, memory, usable_bytes, verdicts
from busbw.workloads.training.models import Kind, find_model

CLUSTER = find_cluster("dgx-h100", 8)[0]
GPT = find_model("gpt3-175b")


def job(model=GPT, **changes):
    return Job(
        **{
            "model": model,
            "cluster": CLUSTER,
            "global_batch": 64,
            "seq_len": 2048,
            "precision": precision_of("fp16"),
            **changes,
        }
    )


def columns(text, micro_batch=1, recompute="none"):
    return Columns.of([parse_layout(text)], [micro_batch], [recompute])


def test_a_layer_keeps_34_sbh_and_the_scores_without_flash_attention():
    """arXiv:2205.05198, equation 1: s b h (34 + 5 a s / h) bytes. Log-sums of a head are small beside it."""
    s, b, h, a = 2048, 1, GPT.hidden, GPT.heads
    found = layer_activation_bytes(GPT, Kind("full", "dense"), job(flash=False), columns("tp1.dp1"))
    assert found[0] == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=0.01)


@pytest.mark.parametrize(("name", "saved"), [("gpt3-175b", 0.70), ("mt-nlg-530b", 0.65)])
def test_selective_recompute_saves_what_its_paper_says(name, saved):
    """arXiv:2205.05198, section 5: 70 % of the activations of the 175 B model, 65 % of those of the 530 B one."""
    model = find_model(name)
    with_scores, without = (
        layer_activation_bytes(model, Kind("full", "dense"), job(model, flash=flash), columns("tp8.dp1"))[0]
        for flash in (False, True)
    )
    dropout_masks = 2 * 2048 * model.hidden / 8  # kept either way, but flash attention is counted without dropout
    assert 1 - (without + dropout_masks) / with_scores == pytest.approx(saved, rel=0.03)


def test_sequence_parallel_splits_all_of_a_layer():
    whole, split = (
        layer_activation_bytes(GPT, Kind("full", "dense"), job(), columns(text))[0] for text in ("tp1.dp8", "tp8.dp1")
    )
    assert split == pytest.approx(whole / 8)


def test_state_is_18_bytes_a_parameter_and_less_with_zero():
    """bf16 weight 2, fp32 gradient 4, master and moments 12; ZeRO-1 divides the 12 by the group, FSDP all but what is gathered."""
    model = find_model("llama3-8b")
    p = model.parameters

    def state(text):
        parts = memory(job(model), columns(text)).parts
        return sum(float(parts[name][0]) for name in ("weights", "gradients", "optimizer"))

    assert state("dp8.zero0") == pytest.approx(18 * p, rel=1e-3)
    assert state("dp8.zero1") == pytest.approx((6 + 12 / 8) * p, rel=1e-3)
    assert state("dp64.fsdp") == pytest.approx(
        16 / 64 * p + 2 * (model.hidden * model.vocab * 2 + 2 * (p / 32)), rel=0.1
    )


def test_experts_are_divided_by_expert_parallel_and_not_by_tensor_parallel():
    """A real bug once: experts of Megatron-Core with etp 1 stay whole under tp."""
    model = find_model("qwen3-30b-a3b")
    one, two = (memory(job(model), columns(text)).parts["weights"][0] for text in ("tp1.dp8.ep8", "tp2.dp4.ep8"))
    dense = model.parameters - model.layers * model.experts * model.expert_parameters()
    assert one - two == pytest.approx(2 * dense / 2, rel=0.02)


def test_recompute_keeps_less_and_a_longer_pipeline_keeps_as_many_layers():
    none, full = (memory(job(), columns("tp8.pp2.dp4", 1, how)).parts["activations"][0] for how in ("none", "full"))
    assert full < none / 5
    two, four = (memory(job(), columns(text)).parts["activations"][0] for text in ("tp8.pp2.dp4", "tp8.pp4.dp2"))
    assert four == pytest.approx(two, rel=0.05)  # half the layers, twice the micro-batches under way


def test_what_does_not_fit_is_told_from_what_needs_recompute():
    model = find_model("llama3-70b")
    at = job(model, seq_len=8192)
    assert verdicts(at, columns("tp8.pp8.dp1")) == ["fits"]
    assert verdicts(at, columns("tp8.dp8.fsdp", 4)) == ["needs recompute"]
    assert verdicts(at, columns("tp1.dp64")) == ["does not fit"]


def test_memory_of_a_gpu_is_its_drivers_or_what_the_user_set():
    gpu = CLUSTER.node.accelerator
    assert usable_bytes(gpu) / 2**30 == pytest.approx(79.6, abs=0.1)
    mine, _ = find_cluster("dgx-h100", 1, {"gpu.memory": "100GB"})
    assert usable_bytes(mine.node.accelerator) == 100e9


def test_many_layouts_are_counted_as_one_by_one():
    texts = ["tp8.pp8.dp1", "tp8.pp4.dp2.vpp2", "tp4.dp16.fsdp", "tp2.cp2.pp2.dp8"]
    together = memory(job(), Columns.of([parse_layout(t) for t in texts], [1] * 4, ["none"] * 4)).total
    alone = [memory(job(), columns(text)).total[0] for text in texts]
    assert np.array_equal(together, alone)
    assert replace(job(), seq_len=4096).seq_len == 4096
