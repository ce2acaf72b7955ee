"""Nothing that a file may hold makes `explain` raise, hang or eat the memory, whatever happened to it on the way."""

from __future__ import annotations

import os

import pytest
from benchmarks.explain.fuzzing import corpus, fuzz

from busbw.readers import all_readers

RUNS = int(os.environ.get("BUSBW_FUZZ_RUNS", "15"))
"""Mutated files a reader and seed; `python -m benchmarks explain --only R6` takes thousands."""


@pytest.fixture(scope="module")
def inputs():
    return corpus()


def test_every_reader_has_inputs_to_mutate(inputs):
    assert {reader.name for reader in all_readers()} <= set(inputs)


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_file_is_data_and_never_an_exception(seed: int, inputs) -> None:
    outcome = fuzz(inputs, RUNS, seed, workers=1)
    assert outcome.failures == []
    assert outcome.inputs == RUNS * len(inputs)
