"""Steps of training as programs log them: times, rates and memory, in base units. Origin of the texts: fixtures/formats.json."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers import training_steps

from .reading import FIXTURES, read_text

FOLDER = FIXTURES / "training_steps"


def steps(name: str):
    return read_text(training_steps.READER, (FOLDER / name).read_text())


def test_megatron_prints_milliseconds_and_a_cut_line_is_a_loss():
    found = steps("megatron_mixtral.txt")
    first, second = found.steps
    assert (first["tool"], first["step"], first["steps"], first["global_batch"]) == ("megatron-lm", 43, 100, 128)
    assert (first["time_ns"], first["flops_per_s_per_gpu"]) == (5_444_900_000, pytest.approx(239.8e12))
    assert first["loss"] == pytest.approx(1.825991)
    assert second["line"] == 2
    assert found.loss_counts == {"damaged-row": 1}


def test_deepspeed_prints_rates_and_the_current_one_counts():
    timer, neox, old, pipeline = steps("deepspeed_timer.txt").steps
    assert timer["samples_per_s"] == pytest.approx(8.00912418308922)
    assert timer["memory_bytes"] == round(63.31 * 2**30)
    assert (neox["tool"], neox["time_ns"], neox["flops_per_s_per_gpu"]) == (
        "megatron-lm",
        4_103_100_000,
        pytest.approx(112.9e12),
    )
    assert (old["step"], old["samples_per_s"]) == (40, pytest.approx(83.48609168106144))
    assert (pipeline["step"], pipeline["time_ns"], pipeline["samples_per_s"]) == (10, 512_000_000, 500.0)


def test_torchtitan_prints_tokens_of_one_gpu():
    first, second = steps("torchtitan.txt").steps
    assert (first["rank"], first["step"], first["tokens_per_s_per_gpu"]) == (0, 200, 5856.0)
    assert first["mfu"] == pytest.approx(0.3429)
    assert first["memory_bytes"] == round(49.66 * 2**30)
    assert second["tokens_per_s_per_gpu"] == 10050.0


@given(st.integers(1, 10**6), st.floats(1e-3, 1e7), st.integers(1, 10**6))
def test_what_megatron_would_print_comes_back(step: int, time_ms: float, batch: int):
    text = f" iteration {step:8d}/ 1000000 | elapsed time per iteration (ms): {time_ms:.1f} | global batch size: {batch:5d} |\n"
    (found,) = read_text(training_steps.READER, text).steps if round(time_ms, 1) else ({"step": step},)
    assert found["step"] == step
    if round(time_ms, 1):
        assert found["time_ns"] == pytest.approx(float(f"{time_ms:.1f}") * 1e6)


@pytest.mark.parametrize(
    "text",
    [
        "iteration over the data",
        "step: 3 of the recipe, loss: of weight",
        "SamplesPerSec is a name",
        "epoch 1 step: 4 loss: 2.0",
    ],
)
def test_other_lines_are_no_steps(text: str):
    found = read_text(training_steps.READER, text + "\n")
    assert found.steps == []
    assert found.losses == []
