"""Searches: legal means what `check` says, the best comes first, and losers have a reason."""

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import Batch, is_legal
from busbw.workloads.training.models import find_model
from busbw.workloads.training.predict import predict_step
from busbw.workloads.training.search import ALIKE, Space, candidates, levels, search

CLUSTER = find_cluster("dgx-h100", 2)[0]


def job(name="llama3-8b", batch=32, **changes):
    return Job(find_model(name), CLUSTER, batch, 4096, **changes)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_candidates_are_the_layouts_that_check_lets_pass(name):
    at = job(name)
    columns = candidates(at)
    assert len(columns)
    for place in range(0, len(columns), max(1, len(columns) // 60)):
        layout = columns.layout(place)
        assert is_legal(at.model, layout, Batch(32, int(columns.micro_batch[place]), 4096), 16), str(layout)


def test_the_best_fit_in_memory_and_are_ordered():
    found = search(job())
    assert 0 < found.fit <= found.legal
    assert (np.diff(found.steps.total_s) >= 0).all()
    best = found.best(5)
    assert len({str(layout) for layout, _, _, _ in best}) >= 3
    layout, micro, recompute, total = best[0]
    step = predict_step(job(), layout, micro, recompute)
    assert step.verdict == "fits"
    assert step.total_s == pytest.approx(total)
    assert sum(found.losses.values()) >= found.legal - found.fit


def test_what_is_fixed_stays():
    found = search(job(), Space(tp=(8,), micro_batch=(2,)))
    assert {layout.tp for layout, _, _, _ in found.best(9)} == {8}


def test_steps_that_differ_by_less_than_half_a_per_cent_count_once():
    times = np.array([1.0, 1.0 + ALIKE / 2, 1.0 + 1.1 * ALIKE, 2.0])
    assert levels(times) == [0, 2, 3]
    assert levels(np.array([])) == []


def test_no_legal_layout_and_none_that_fits_say_what_to_change():
    with pytest.raises(InputError, match="no legal layout"):
        search(job(batch=1), Space(tp=(1,), pp=(1,), cp=(1,)))
    with pytest.raises(InputError, match=r"need at least \d+ GiB"):
        search(job("llama3.1-405b"))
