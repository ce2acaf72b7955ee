"""Levels of a series: planted steps are found, noise is not, outliers are no step, and units do not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.statistics.changes import SHORTEST, level_changes


def noisy(seed, runs, step=0.0, at=0):
    values = np.random.default_rng(seed).standard_normal(runs)
    values[at:] += step
    return values


@given(seed=st.integers(0, 2**32 - 1), at=st.integers(SHORTEST, 57), step=st.sampled_from([-12.0, 12.0]))
def test_a_step_of_twelve_deviations_is_found_where_it_was_planted(seed, at, step):
    """Of N(0, 1) noise two neighbouring places differ in likelihood by exp(12^2 / 2 - 12 |z|): a wrong place is out of reach of |z| < 5."""
    found = level_changes(noisy(seed, 60, step, at), false_alarms=0.01)
    assert [change.index for change in found if abs(change.after - change.before) > 6] == [at]


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-9, 1.0, 1e12]), shift=st.sampled_from([0.0, -7.0]))
def test_changes_do_not_depend_on_the_unit(seed, scale, shift):
    """A change of level is the same in seconds and in microseconds, and from whatever zero it is measured."""
    values = noisy(seed, 40, 6.0, 25)
    places = [change.index for change in level_changes(values)]
    assert [change.index for change in level_changes((values + shift) * scale)] == places


@given(seed=st.integers(0, 2**32 - 1))
def test_time_has_no_direction(seed):
    """Reversed, a series changes between the same neighbours, give or take the two places that a place is right within."""
    values = noisy(seed, 50, 8.0, 30)
    forward = [change.index for change in level_changes(values)]
    backward = sorted(50 - change.index for change in level_changes(values[::-1]))
    assert len(forward) == len(backward)
    assert all(abs(a - b) <= 2 for a, b in zip(forward, backward, strict=True))


@pytest.mark.parametrize("length", [1, 2])
def test_one_or_two_outliers_in_a_row_are_no_level(length):
    """A level lasts three runs: a machine that was busy twice has not changed."""
    values = noisy(1, 60)
    values[30 : 30 + length] += 50
    assert level_changes(values) == []


def test_both_changes_of_a_detour_are_found():
    """Up at 20, back at 40."""
    values = noisy(2, 60)
    values[20:40] += 10
    found = level_changes(values)
    assert [change.index for change in found] == [20, 40]
    assert [change.after > change.before for change in found] == [True, False]


def test_flat_series_seldom_have_a_change():
    """99 of 100 have none; of 300 more than 12 would come once in ten thousand times (Poisson, mean 3)."""
    assert sum(bool(level_changes(noisy(seed, 100))) for seed in range(300)) <= 12


def test_a_slow_wander_is_no_change():
    """Noise whose neighbours are alike (r = 0.5) has stretches above and below; a mean of it varies as if each value had six times the variance."""
    random = np.random.default_rng(3)
    alarms = 0
    for _ in range(60):
        values = np.zeros(200)
        for place in range(1, 200):
            values[place] = 0.5 * values[place - 1] + random.standard_normal()
        alarms += bool(level_changes(values))
    assert alarms <= 8


def test_a_constant_or_short_series_has_no_change():
    """Nothing to compare with, or no noise to measure by."""
    assert level_changes([3.0] * 50) == []
    assert level_changes([1, 1, 9, 9, 9]) == []
    assert level_changes([]) == []


def test_a_step_between_two_constant_levels_is_certain():
    """Printed figures have few digits: most differences are 0, the step is not."""
    values = [10.0] * 20 + [11.0] * 20
    values[5] = 10.1
    (change,) = level_changes(values)
    assert (change.index, change.before, change.after) == (20, 10.0, 11.0)
    assert change.p_value < 1e-6


@pytest.mark.parametrize(("values", "word"), [([1.0, float("nan")], "finite"), ([[1.0], [2.0]], "one row")])
def test_what_is_no_series_is_refused(values, word):
    with pytest.raises(ValueError, match=word):
        level_changes(values)


def test_the_price_is_known_for_two_chances_only():
    with pytest.raises(ValueError, match=r"0\.01 and 0\.05"):
        level_changes([1.0] * 10, false_alarms=0.2)
