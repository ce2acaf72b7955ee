"""What each end of a pair contributes. Planted effects are the expectation."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.statistics import end_effects

TYPICAL = 92e9
ENDS = st.integers(4, 12)


def pairs(effects: dict[str, float]) -> list[tuple[str, str, float]]:
    """Every pair of these ends, with the value that the model gives it."""
    return [(a, b, TYPICAL * effects[a] * effects[b]) for a, b in itertools.combinations(effects, 2)]


@given(st.data(), ENDS, st.floats(0.05, 0.8))
def test_a_planted_slow_end_is_found_whatever_the_numbering(data: st.DataObject, ends: int, slowness: float):
    """Names, their order and the order within a pair are shuffled."""
    names = data.draw(st.permutations([f"cn{i}" for i in range(ends)]))
    planted = dict.fromkeys(names, 1.0) | {names[0]: slowness}
    table = [
        (b, a, value) if data.draw(st.booleans()) else (a, b, value)
        for a, b, value in data.draw(st.permutations(pairs(planted)))
    ]
    assert end_effects(table) == pytest.approx(planted)


@given(st.data(), st.integers(8, 12), st.floats(0.2, 0.8), st.floats(0.2, 0.8))
def test_two_planted_slow_ends_are_both_found(data: st.DataObject, ends: int, first: float, second: float):
    """Their common pair is slower than either of them: effects multiply."""
    names = data.draw(st.permutations([f"cn{i}" for i in range(ends)]))
    planted = dict.fromkeys(names, 1.0) | {names[0]: first, names[1]: second}
    assert end_effects(pairs(planted)) == pytest.approx(planted)


@given(ENDS, st.floats(1.0, 1e12))
def test_equal_values_give_ones(ends: int, value: float):
    table = [(a, b, value) for a, b in itertools.combinations(range(ends), 2)]
    assert end_effects(table) == dict.fromkeys(range(ends), pytest.approx(1.0))


@given(ENDS, st.floats(0.1, 0.8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(ends: int, slowness: float, unit: float):
    table = pairs({f"cn{i}": slowness if i == 0 else 1.0 for i in range(ends)})
    assert end_effects([(a, b, value * unit) for a, b, value in table]) == pytest.approx(end_effects(table))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19), st.floats(1e-3, 1e12)), max_size=40))
def test_an_end_holds_back_and_never_speeds_up(table: list[tuple[int, int, float]]):
    effects = end_effects(table)
    assert effects.keys() == {end for a, b, _ in table for end in (a, b)}
    assert all(0 < effect <= 1 for effect in effects.values())


def test_one_slow_measurement_of_a_fast_end_is_an_outlier():
    """cn0 has four fast pairs and one slow one; the median ignores it."""
    table = [(a, b, TYPICAL) for a, b in itertools.combinations([f"cn{i}" for i in range(6)], 2)]
    table[0] = ("cn0", "cn1", TYPICAL / 10)
    assert end_effects(table) == dict.fromkeys([f"cn{i}" for i in range(6)], pytest.approx(1.0))


def test_no_pairs_have_no_ends():
    assert end_effects([]) == {}


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_rate_is_positive(value: float):
    with pytest.raises(ValueError, match="rates of pairs must be positive"):
        end_effects([("cn0", "cn1", 92e9), ("cn0", "cn2", value)])
