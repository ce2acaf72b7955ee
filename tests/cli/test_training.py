"""`busbw simulate training` and `busbw search training`: pages, JSON, timelines, and one clear error for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

JOB = ("--model", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--global-batch", "32", "--seq-len", "8192")


def test_the_page_shows_step_breakdown_and_memory(busbw):
    ran = busbw("simulate", "training", *JOB, "--layout", "tp8.dp2", "--sensitivity")
    assert ran.status == 0
    for words in (
        "training  llama3-8b",
        "tp8.pp1.dp2",
        "MFU",
        "tensor parallel, exposed",
        "memory of a GPU",
        "gpu.flops",
    ):
        assert words in ran.out


def test_json_holds_the_same_and_a_faster_network_a_shorter_step(busbw):
    args = ("simulate", "training", *JOB, "--layout", "tp8.pp2", "--json", "--closed-form", "--overlap", "none")
    told = json.loads(busbw(*args).out)
    assert (told["schema"], told["gpus"], told["micro_batches"], told["simulated_s"]) == (1, 16, 32, None)
    assert sum(told["breakdown_s"].values()) == pytest.approx(told["step_s"])
    faster = json.loads(busbw(*args, "--set", "nic.rate=800Gb/s").out)
    assert faster["step_s"] < told["step_s"]


def test_recompute_is_taken_where_memory_would_not_suffice(busbw):
    job = (
        "--model",
        "llama3-70b",
        "--cluster",
        "dgx-h100",
        "--nodes",
        "8",
        "--seq-len",
        "8192",
        "--micro-batch",
        "4",
        "--json",
    )
    told = json.loads(busbw("simulate", "training", *job, "--layout", "tp8.fsdp", "--global-batch", "64").out)
    assert (told["recompute"], told["memory"]) == ("full", "fits")


def test_perfetto_opens_the_pipeline(busbw, tmp_path):
    file = tmp_path / "step.json"
    assert busbw("simulate", "training", *JOB, "--layout", "tp8.pp2", "--perfetto", str(file)).status == 0
    events = json.loads(file.read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) > 100


def test_a_search_shows_the_best_and_why_others_lost(busbw):
    ran = busbw("search", "training", *JOB, "--layout", "tp8", "--json")
    told = json.loads(ran.out)
    assert told["legal"] >= told["fit"] > 0
    times = [one["simulated_s"] for one in told["layouts"]]
    assert times == sorted(times)
    assert all(one["layout"].startswith("tp8") for one in told["layouts"])
    page = busbw("search", "training", *JOB, "--layout", "tp8")
    assert "why the others lost" in page.out


@pytest.mark.parametrize(
    ("layout", "words"),
    [("tp8.dp2", ".dp2"), ("tp8.pp2.vpp2", ".vpp2"), ("tp8.pp2.interleaved", ".vpp"), ("tp1.cp1.pp1.hsdp4", ".hsdp4")],
)
def test_what_a_layout_says_stays_in_a_search(busbw, layout, words):
    told = json.loads(busbw("search", "training", *JOB, "--layout", layout, "--count", "2", "--json").out)
    assert told["layouts"]
    assert all(words in one["layout"] for one in told["layouts"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layout", "etp2"), "a search has etp1"),
        (("--layout", "tp4.zb"), "a search has etp1"),
        (("--framework", "llm-foundry", "--layout", "tp8"), "without them there are some"),
    ],
)
def test_what_a_search_cannot_vary_or_a_framework_lacks_is_said(busbw, options, said):
    """llm-foundry has no tensor parallelism: other nodes or batches would not mend that."""
    ran = busbw("search", "training", *JOB, *options)
    assert ran.status == 2 and not ran.out
    assert said in " ".join(ran.err.split())


def test_parts_of_graphs_are_words_between_commas_and_spaces(busbw):
    job = ("simulate", "training", *JOB, "--layout", "tp8", "--closed-form", "--json", "--graphs")
    steps = [json.loads(busbw(*job, words).out)["step_s"] for words in ("all", "all, attn", "attn,mlp", "attn, mlp")]
    assert steps[0] == steps[1] and steps[2] == steps[3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layout", "tp64"), "do not divide 16"),
        (("--layout", "tp4.ep8"), "Nearest legal layout: tp4.pp1.dp4"),
        (("--layout", "tp8", "--model", "lama3-8b"), "llama3-8b"),
        (("--layout", "tp8", "--recompute", "some"), "selective"),
        (("--layout", "tp8", "--software", "megatron"), "no release"),
        (("--layout", "tp8.pp2.zb", "--perfetto", "x.json"), "simulated schedule"),
    ],
)
def test_wrong_use_is_one_message(busbw, options, said):
    ran = busbw("simulate", "training", *JOB, *options)
    assert ran.status == 2
    assert not ran.out
    assert said in " ".join(ran.err.split())


def test_a_configuration_gives_what_is_not_given_and_what_was_not_taken_is_told(busbw):
    """NeMo's words; 4 x dgx-h100 are the 32 GPUs of tp 4 x pp 2 x dp 4."""
    file = Path(__file__).parents[1] / "workloads" / "importers" / "fixtures" / "nemo.yaml"
    command = ("simulate", "training", "--config", str(file), "--cluster", "dgx-h100", "--nodes", "4", "--json", "--closed-form")  # fmt: skip
    ran = busbw(*command)
    assert ran.status == 0
    told = json.loads(ran.out)
    assert (told["layout"], told["global_batch"], told["seq_len"]) == ("tp4.pp2.dp4", 128, 4096)
    assert "model.optim.lr" in ran.err
    assert json.loads(busbw(*command, "--global-batch", "64").out)["global_batch"] == 64


def test_without_model_and_configuration_one_error_says_what_to_give(busbw):
    ran = busbw("simulate", "training", "--cluster", "dgx-h100")
    assert ran.status == 2
    assert "give --model NAME, or --config FILE" in ran.err
