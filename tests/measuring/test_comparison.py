"""Two runs: what became slower is told, what did not is not, whether measurements were repeated or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.measuring import Cell, Results, compare, history, merged

SIZES = [1 << place for place in range(10, 31)]


def cell(size, collective="all_reduce"):
    return Cell("nccl-tests", collective, size, "float", "sum", 8, 1, False)


def run(seed, *, noise=0.01, slower=lambda size: 1.0, repeats=1, sizes=SIZES, said=None, collective="all_reduce"):
    """10 us and 300 GB/s, each measurement off by `noise` of itself."""
    random = np.random.default_rng(seed)
    times = {
        cell(size, collective): tuple(
            (1e-5 + size / 3e11) * slower(size) * np.exp(noise * random.standard_normal(repeats))
        )
        for size in sizes
    }
    return Results(f"run {seed}", None, None, times, {name: frozenset([value]) for name, value in (said or {}).items()})


@given(seed=st.integers(0, 2**20), repeats=st.sampled_from([1, 5]))
def test_a_slowdown_from_one_size_on_is_told_for_those_sizes_only(seed, repeats):
    """15 % at sizes from 64 MiB on is ten deviations of a ratio: they are slower, and those below are not."""
    before, after = (
        run(seed, repeats=repeats),
        run(seed + 1, slower=lambda size: 1.15 if size >= 1 << 26 else 1.0, repeats=repeats),
    )
    told = {d.cell.size_bytes for d in compare(before, after).slower}
    large = {size for size in SIZES if size >= 1 << 26}
    assert len(large - told) <= 1  # noise is estimated from a dozen neighbours
    assert len(told - large) <= 2  # 5 % of discoveries may be false


@given(seed=st.integers(0, 2**20))
def test_swapping_the_sides_turns_ratios_over(seed):
    """log(B / A) = -log(A / B): slower becomes faster, with the mirrored interval."""
    a, b = run(seed, repeats=3), run(seed + 1, slower=lambda size: 1.1, repeats=3)
    there, back = compare(a, b), compare(b, a)
    for one, other in zip(there.differences, back.differences, strict=True):
        assert one.ratio * other.ratio == pytest.approx(1)
        assert one.low * other.high == pytest.approx(1)
    assert len(there.slower) == sum(d.verdict == "faster" for d in back.differences)


def test_two_runs_of_the_same_machine_have_no_regression():
    """80 pairs of 21 sizes: an alarm in more than one pair of ten would not be control to 5 %."""
    alarms = sum(bool(compare(run(seed), run(seed + 10_000)).slower) for seed in range(80))
    assert alarms <= 8


def test_a_change_below_the_tolerance_is_none():
    """1 % is certain with a noise of 0.01 % and still no change at a tolerance of 2 %."""
    a, b = run(1, noise=1e-4, repeats=4), run(2, noise=1e-4, slower=lambda size: 1.01, repeats=4)
    assert not compare(a, b).slower
    assert len(compare(a, b, tolerance=0.005).slower) == len(SIZES)


def test_what_only_one_side_measured_is_listed_and_not_compared():
    a, b = run(1, sizes=SIZES[:10]), run(2, sizes=SIZES[5:15])
    result = compare(a, b)
    assert [d.cell.size_bytes for d in result.differences] == SIZES[5:10]
    assert [c.size_bytes for c in result.only_a] == SIZES[:5]
    assert [c.size_bytes for c in result.only_b] == SIZES[10:15]


def test_versions_and_settings_that_differ_are_told():
    """A setting that one side does not have differs too; equal ones are no news."""
    a = run(1, said={"NCCL": "2.27.3", "NCCL_ALGO": "Ring", "hosts": "n1"})
    b = run(2, said={"NCCL": "2.28.1", "hosts": "n1"})
    assert compare(a, b).said == {
        "NCCL": (frozenset(["2.27.3"]), frozenset(["2.28.1"])),
        "NCCL_ALGO": (frozenset(["Ring"]), frozenset()),
    }


def test_runs_merged_are_repeats():
    runs = merged([run(1), run(2), run(3)], "all")
    assert {len(times) for times in runs.times_s.values()} == {3}
    assert compare(runs, merged([run(4), run(5)], "now")).repeated


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_an_impossible_tolerance_is_refused(tolerance):
    with pytest.raises(ValueError, match="tolerance"):
        compare(run(1), run(2), tolerance=tolerance)


def test_history_names_when_what_and_by_how_much():
    """From run 30 on sizes from 4 MiB take 6 % more, and NCCL is another one; broadcast has not changed."""
    runs = []
    for place in range(45):
        late = place >= 30
        reduce = run(place, slower=lambda size, late=late: 1.06 if late and size >= 1 << 22 else 1.0)
        other = run(1000 + place, collective="broadcast")
        version = {"NCCL": "2.28.1" if late else "2.27.3"}
        runs.append(
            merged(
                [reduce, other, Results("", None, None, {}, {k: frozenset([v]) for k, v in version.items()})],
                f"run {place}",
            )
        )
    result = history(runs)
    (event,) = result.events
    assert event.family.collective == "all_reduce"
    assert abs(event.run - 30) <= 1
    assert {c.size_bytes for c, _ in event.cells} >= {size for size in SIZES if size >= 1 << 22}
    assert event.ratio == pytest.approx(1.06, abs=0.01)
    assert event.run != 30 or event.coincides == ("NCCL 2.27.3 -> 2.28.1",)
    assert result.slower_now == (event,)


def test_a_small_change_that_all_sizes_share_is_found_together():
    """2 % at a noise of 3 %: seldom certain at one size, certain for 21 sizes at once (0.67 sigma times sqrt(21) is 3 sigma)."""
    runs = [run(place, noise=0.03, slower=lambda size, late=place >= 40: 1.02 if late else 1.0) for place in range(80)]
    result = history(runs)
    assert [abs(event.run - 40) <= 3 for event in result.events] == [True]


def test_what_recovered_is_not_slower_now():
    """Slow from run 15 to 30: two changes, and the last one made it faster."""
    runs = [run(place, slower=lambda size, slow=15 <= place < 30: 1.2 if slow else 1.0) for place in range(45)]
    result = history(runs)
    assert [(event.run, event.ratio > 1) for event in result.events] == [(15, True), (30, False)]
    assert result.slower_now == ()


def test_histories_of_one_level_seldom_have_an_event():
    """12 histories of 21 sizes and 40 runs."""
    assert sum(bool(history([run(100 * h + place) for place in range(40)]).events) for h in range(12)) <= 2
