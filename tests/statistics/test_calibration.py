"""Whether stated probabilities are honest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.statistics import brier_score, reliability

statements = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def test_always_saying_one_half_scores_a_quarter():
    assert brier_score([0.5] * 4, [True, False, False, True]) == 0.25


def test_certainty_that_is_wrong_scores_one():
    assert brier_score([1.0, 0.0], [False, True]) == 1.0


def test_no_statements_have_no_score():
    with pytest.raises(ValueError, match="at least one"):
        brier_score([], [])


@given(statements, st.integers(1, 8))
def test_every_statement_is_in_one_bin_and_shares_lie_within_their_intervals(said, bins):
    made = reliability(*zip(*said, strict=True), bins=bins)
    assert sum(b.count for b in made) == len(said)
    assert sum(b.came_true * b.count for b in made) == pytest.approx(sum(true for _, true in said))
    assert all(0 <= b.low <= b.came_true <= b.high <= 1 for b in made)
    assert [b.stated for b in made] == sorted(b.stated for b in made)


def test_the_interval_is_that_of_wilson():
    """8 of 10: (0.8 + z2/20 -+ z sqrt(0.016 + z2/400)) / (1 + z2/10) with z = 1.96 gives 0.490 to 0.943."""
    (alone,) = reliability([0.9] * 10, [True] * 8 + [False] * 2, bins=5)
    assert (alone.low, alone.high) == (pytest.approx(0.490, abs=5e-4), pytest.approx(0.943, abs=5e-4))
