"""The time of a step: laws of its closed form, and the simulated pipeline beside it."""

from dataclasses import replace

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.simulation import simulate
from busbw.workloads.training.calibration import figures_of, from_json, load_training_calibration, priors, to_json
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import SCOPES, Job
from busbw.workloads.training.layout import parse_layout, precision_of
from busbw.workloads.training.models import find_model
from busbw.workloads.training.network import GroupTimes, members_inside
from busbw.workloads.training.predict import predict_step, predict_steps, sensitivities
from busbw.workloads.training.program import step_program
from busbw.workloads.training.step import parts_of, times

CLUSTER = find_cluster("dgx-h100", 8)[0]


def job(name="llama3-70b", **changes):
    return Job(**{"model": find_model(name), "cluster": CLUSTER, "global_batch": 128, "seq_len": 4096, **changes})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3-70b", "tp8.pp4.dp2"), ("llama3-70b", "tp4.pp4.dp4.vpp5"), ("llama3-70b", "tp8.pp8.dp1.vpp2.nosp"), ("llama3-8b", "tp2.cp2.dp16"),
        ("llama3-70b", "tp8.pp2.dp4.gpipe"), ("qwen3-30b-a3b", "pp4.ep8"), ("nemotron3-nano-30b-a3b", "pp2.dp32.ep8"), ("llama3-8b", "dp64.fsdp"),
    ],
)  # fmt: skip
def test_the_simulated_pipeline_takes_what_the_closed_form_says(name, text):
    """Within 5 %: one counts warm-up, steady state and drain, the other lets every micro-batch wait for its messages."""
    step = predict_step(job(name), parse_layout(text, 64), 1)
    run = simulate(step_program(step), CLUSTER, record=False)
    assert run.time_s == pytest.approx(step.total_s, rel=0.05)


def test_a_pipeline_idles_p_minus_one_of_m_and_less_with_virtual_stages():
    """1F1B: (p - 1)(F + B); interleaved: over v; zero bubble: less by twice the gradient of the weights."""
    plain, virtual, zero = (
        predict_step(job(), parse_layout(text, 64), 1) for text in ("tp8.pp4", "tp8.pp4.vpp5", "tp8.pp4.zb")
    )
    for step, v in ((plain, 1), (virtual, 5)):
        assert step.breakdown_s["bubble"] == pytest.approx(3 * (step.forward_s + step.backward_s) / v)
    assert zero.breakdown_s["bubble"] < plain.breakdown_s["bubble"]


def test_parts_add_up_and_the_interval_holds_the_step():
    step = predict_step(job(), parse_layout("tp8.pp4", 64), 1)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.total_s)
    assert step.low_s < step.total_s < step.high_s
    told = step.to_json()
    assert told["tokens_per_s_per_gpu"] * 64 * told["step_s"] == pytest.approx(128 * 4096)
    assert told["mfu"] == pytest.approx(
        find_model("llama3-70b").flops_per_token(4096) * 128 * 4096 / told["step_s"] / 64 / 989e12
    )


def test_many_layouts_take_what_each_takes_alone():
    texts = ["tp8.pp4.dp2", "tp4.pp4.dp4.vpp5", "tp2.cp2.dp16", "dp64.fsdp", "tp8.pp8.dp1.nosp"]
    layouts = [parse_layout(text) for text in texts]
    together = predict_steps(job(), Columns.of(layouts, [1] * 5, ["none"] * 5)).total_s
    alone = [predict_steps(job(), Columns.of([one], [1], ["none"])).total_s[0] for one in layouts]
    assert together == pytest.approx(alone)


def test_twice_the_batch_is_less_than_twice_the_step_and_recompute_a_third_more_computing():
    one, two = (predict_step(job(global_batch=batch), parse_layout("tp8.pp4", 64), 1) for batch in (128, 256))
    assert one.total_s < two.total_s < 2 * one.total_s
    none, full = (
        predict_step(job(), parse_layout("tp8.pp4", 64), 1, how).breakdown_s["compute"] for how in ("none", "full")
    )
    assert full / none == pytest.approx(4 / 3, rel=0.08)


def test_overlap_hides_and_adapters_need_no_gradients_of_weights():
    waits, hides = (
        predict_step(job(overlap=frozenset(words)), parse_layout("tp8.pp4", 64), 1).breakdown_s["tp"]
        for words in ((), ("tp",))
    )
    assert hides < waits
    whole, adapters = (
        predict_step(job(task=task), parse_layout("tp8.pp4", 64), 1).total_s for task in ("pretrain", "lora")
    )
    assert adapters < 0.9 * whole, "a third of the products, none of the communication"


def test_members_of_a_group_lie_inside_domains_as_its_stride_says():
    """8 GPUs a node: 16 neighbours are two nodes of 8; 4 ranks 8 apart are 4 nodes."""
    assert [members_inside(*one) for one in ((16, 1, 8), (4, 8, 8), (4, 4, 8), (6, 2, 8), (1, 1, 8))] == [8, 1, 2, 3, 1]


def test_a_group_across_nodes_takes_longer_than_one_inside():
    links = GroupTimes(CLUSTER)
    inside, across = (links.time("all_gather", 8, stride, 1e9) for stride in (1, 8))
    assert 2 * inside < across
    assert links.time("all_gather", 1, 1, 1e9) == links.time("all_gather", 8, 1, 0) == 0.0
    many = links.times("all_gather", np.array([8, 8, 1]), np.array([1, 8, 1]), np.full(3, 1e9))
    assert many == pytest.approx([inside, across, 0.0])


def test_faster_hardware_is_worth_most_where_the_step_waits():
    """Many micro-batches of a dense model wait for products; the figures' worths are at most one together."""
    found = sensitivities(job(), parse_layout("tp8.pp4", 64), 1)
    assert found[0].figure == "gpu.flops"
    assert -1 <= sum(one.elasticity for one in found) < -0.7
    assert all(one.elasticity <= 1e-9 for one in found)


def test_schedules_without_a_program_and_layouts_of_other_clusters_are_refused():
    with pytest.raises(InputError, match="zb has no program"):
        step_program(predict_step(job(), parse_layout("tp8.pp4.zb", 64), 1))
    with pytest.raises(InputError, match="the cluster has 64"):
        predict_step(job(), parse_layout("tp8.pp4.dp4"), 1)


def test_figures_of_the_calibration_are_common_values_times_factors():
    calibration = load_training_calibration()
    assert from_json(to_json(calibration)).values == pytest.approx(dict(calibration.values))
    plain, known = job(), job(software="torchtitan", kernel="fa2")
    one, other = (float(figures_of([at], calibration).attention[0]) for at in (plain, known))
    assert other > one, "FlashAttention-2 leaves more of Hopper idle than cuDNN"
    low, high = calibration.interval(plain)
    assert 0.5 < low < 1 < high < 2


def test_experts_over_more_nodes_send_a_token_once_a_node():
    """8 choices of 64 GPUs hit 7.5 GPUs and, on 8 nodes, 5.3 nodes: fewer bytes cross than copies would."""
    at = job("qwen3-30b-a3b", precision=precision_of("fp8"))
    columns = Columns.of([parse_layout("dp64.ep64")], [1], ["none"])
    once, copies = (
        float(times(parts_of(replace(at, dispatcher=dispatcher), columns), figures_of([at], priors())).parts_s["ep"][0])
        for dispatcher in ("deepep", "alltoall")
    )
    assert once < copies


def _step_s(at: Job, layout: str, micro_batch: int = 1, recompute: str = "none") -> float:
    columns = Columns.of([parse_layout(layout)], [micro_batch], [recompute])
    return float(times(parts_of(at, columns), figures_of([at], priors())).total_s[0])


def test_the_host_holds_up_experts_that_it_launches_one_by_one():
    """128 experts on each GPU and 512 tokens: thousands of launches a layer take longer than the GPU needs; a graph replays them, fewer experts need less."""
    at = job("qwen3-30b-a3b", cluster=find_cluster("dgx-h100", 1)[0], seq_len=512, precision=precision_of("fp8"))
    graphed = replace(at, graphs=frozenset(SCOPES))
    assert _step_s(at, "dp8") > 3 * _step_s(graphed, "dp8")
    assert _step_s(at, "dp8.ep8", 16) < 1.5 * _step_s(graphed, "dp8.ep8", 16)


def test_selective_recompute_costs_what_its_modules_cost():
    """Nothing < activations of experts < all of an MoE layer < whole layers, and each only what it repeats."""
    at = job("qwen3-30b-a3b", graphs=frozenset(SCOPES))
    few, most = (replace(at, again=frozenset({module})) for module in ("moe_act", "moe"))
    took = [
        _step_s(at, "dp64.ep8"),
        _step_s(few, "dp64.ep8", 1, "selective"),
        _step_s(most, "dp64.ep8", 1, "selective"),
        _step_s(at, "dp64.ep8", 1, "full"),
    ]
    assert took == sorted(took) and took[0] < took[1]


def test_gradients_that_are_added_up_in_fp32_cost_more_than_in_bf16():
    """A micro-batch of 1024 tokens: 8 bytes read and written a weight beside 2 x 1024 operations; 4 bytes in bf16."""
    wide = job("llama3-8b", seq_len=1024)
    narrow = replace(wide, precision=replace(wide.precision, gradient_bytes=2.0))
    assert _step_s(wide, "dp64") > 1.01 * _step_s(narrow, "dp64")


def test_what_a_job_may_say_of_its_software_is_checked():
    with pytest.raises(InputError, match="dispatcher 'nccl' is not known; of alltoall, deepep, hybridep"):
        job("qwen3-30b-a3b", dispatcher="nccl")
    with pytest.raises(InputError, match="graphs 'all' is not known"):
        job("qwen3-30b-a3b", graphs=frozenset({"all"}))
