"""Sets of moments: their time together, and in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbw.statistics.intervals import common, length, union

INTERVALS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=12)


def moments(intervals: list[tuple[int, int]]) -> set[int]:
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_time_is_counted_once_however_many_intervals_hold_it(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    made = [union([b for b, _ in each], [e for _, e in each]) for each in (one, other)]
    assert length(made[0]) == len(moments(one))
    assert common(*made) == len(moments(one) & moments(other))
    assert all(begin > end for end, begin in zip(made[0][1][:-1], made[0][0][1:], strict=True))
