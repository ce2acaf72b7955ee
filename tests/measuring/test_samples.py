"""The interval of a median: order statistics, for any distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from busbw.measuring.samples import half_of, median_interval, relative_width


def test_the_interval_holds_the_median_as_often_as_it_says():
    """Of 600 samples of 40 exponential values, whose median is ln 2: 95 %, give or take 3 standard deviations of 0.9 %; an interval may hold it more often."""
    random = np.random.default_rng(5)
    held = [
        low <= math.log(2) <= high for low, high in (median_interval(random.exponential(1, 40)) for _ in range(600))
    ]
    assert np.mean(held) > 0.92


def test_a_machine_that_is_disturbed_for_long_is_known_less_well():
    """Two levels: mixed call by call the same samples tell more of the median than in two long stretches."""
    random = np.random.default_rng(6)
    values = np.concatenate([1 + 0.01 * random.standard_normal(200), 1.2 + 0.01 * random.standard_normal(200)])
    assert relative_width(values) > relative_width(random.permutation(values)[:400]) * 0.99
    assert relative_width(values) > 0.1


def test_fewer_than_six_samples_say_nothing_of_the_median():
    """1 - 2 / 2^5 = 0.94 is less than 0.95."""
    assert math.isnan(median_interval([1.0] * 5)[0])
    assert median_interval([1.0] * 6) == (1.0, 1.0)


def test_who_comes_last_and_how_late():
    """Rank 1 begins 5 us after rank 0, on a clock that is 1 us behind it; calls of two ranks last 10 and 5 us: 7.5 on average."""
    stamps = np.array([[[0, 10_000], [10_000, 20_000]], [[4_000, 9_000], [14_000, 19_000]]])
    half = half_of(stamps, np.array([0, 1000]), np.array([1, 1]), wrong=0, messages=1, ranks_timed=2)
    assert half.time_s == pytest.approx(7.5e-6)
    assert half.best_s == pytest.approx(10e-6)
    assert half.skew_s == pytest.approx(5e-6)
    assert (half.last_rank, half.last_share) == (1, 1.0)


def test_a_batch_is_as_many_calls():
    """Batches of 2 and 3 calls that take 2 and 6 us: 1 and 2 us a call; 8 us in 5 calls are 1.6 a call."""
    stamps = np.array([[[0, 2000], [2000, 8000]]])
    half = half_of(stamps, np.array([0]), np.array([2, 3]), wrong=0, messages=1, ranks_timed=1)
    assert half.time_s == pytest.approx(1.6e-6)
    assert half.calls == 5
