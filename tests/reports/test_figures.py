"""The drawings: what is drawn, what is left out."""

from __future__ import annotations

import pytest

from busbw.diagnosis import LineRef
from busbw.diagnosis.facts import Curve, Pair, Point
from busbw.hardware import ExpectedRange
from busbw.reports.figures import curve_svg, odd_ends, pair_matrices, pair_svg
from busbw.reports.svg import HEAT_STEPS

AT = LineRef("log", 1, 0, "a")


def curve(*sizes: int, busbw: float | None = 100e9) -> Curve:
    return Curve("t", "a", 0, "all_reduce", 8, 1, [Point(s, 1000 + s, busbw, busbw, None, None, AT) for s in sizes])


def pairs(values: dict[tuple[str, str], float], unit: str = "bytes/s") -> list[Pair]:
    return [Pair("t", "bandwidth", src, dst, value, unit, AT) for (src, dst), value in values.items()]


def test_one_size_is_no_curve():
    assert curve_svg(curve(8, 8)) is None


def test_a_table_without_bandwidth_is_drawn_as_time():
    svg = curve_svg(curve(8, 16, busbw=None))
    assert svg is not None
    assert "time, us" in svg


def test_a_band_is_drawn_only_where_the_sweep_reaches_it():
    """The plateau begins at 1 GiB; a sweep that ends at 1 MiB says nothing about it."""
    expected = ExpectedRange(300e9, 480e9, "NVLink", "a data sheet", 2**30)
    reached, short = curve_svg(curve(2**20, 2**31), expected), curve_svg(curve(2**10, 2**20), expected)
    assert reached is not None
    assert short is not None
    assert "expected, 300 GB/s or more" in reached
    assert "expected" not in short


def test_colours_are_the_page_s_own():
    svg = curve_svg(curve(8, 16, 32))
    assert svg is not None
    assert "var(--first)" in svg
    assert "#0102" not in svg


def test_rows_of_a_finding_are_ringed():
    svg = curve_svg(curve(8, 16), evidence={("log", 1)})
    assert svg is not None
    assert "named by a finding" in svg


def test_a_matrix_needs_two_ends_on_each_side_and_most_of_its_cells():
    """A line of three pairs among six hosts is a list."""
    assert pair_matrices(pairs({("a", "b"): 1e9})) == []
    assert pair_matrices(pairs({("a", "b"): 1e9, ("c", "d"): 1e9, ("e", "f"): 1e9, ("a", "f"): 1e9})) == []


def test_ends_are_in_the_order_of_their_numbers_and_rates_in_gb_per_s():
    (matrix,) = pair_matrices(pairs({(f"GPU{i}", f"GPU{j}"): 25e9 for i in (10, 2, 1) for j in (1, 10, 2)}))
    assert matrix.src == matrix.dst == ("GPU1", "GPU2", "GPU10")
    assert (matrix.values[0][1], matrix.unit) == (pytest.approx(25.0), "GB/s")


@pytest.mark.parametrize(("unit", "odd", "is_marked"), [("bytes/s", 5e9, True), ("bytes/s", 200e9, False)])
def test_a_slow_pair_is_dark_and_a_fast_one_is_not(unit, odd, is_marked):
    """25 GB/s is usual; a fifth of it is beyond the last shade, eight times as much is as good as usual."""
    values = {(f"{i}", f"{j}"): 25e9 for i in range(4) for j in range(4)} | {("1", "2"): odd}
    (matrix,) = pair_matrices(pairs(values, unit))
    assert (f"var(--heat-{HEAT_STEPS - 1})" in pair_svg(matrix)) == is_marked


def test_long_latency_is_bad():
    values = {(f"{i}", f"{j}"): 2000.0 for i in range(4) for j in range(4)} | {("1", "2"): 20_000.0}
    (matrix,) = pair_matrices(pairs(values, "ns"))
    assert (matrix.low_is_bad, matrix.unit) == (False, "us")
    assert f"var(--heat-{HEAT_STEPS - 1})" in pair_svg(matrix)


def test_names_of_ends_are_text_whatever_they_hold():
    """No formulas, no colours, no letters that the drawing font lacks."""
    names = ["$x^2$", "#010200", "<b>\u4e2d"]
    (matrix,) = pair_matrices(pairs({(a, b): 1e9 for a in names for b in names}))
    svg = pair_svg(matrix)
    assert "$x^2$" in svg
    assert "<b>" not in svg


def test_the_slow_end_is_marked_as_a_row_and_as_a_column():
    """Six ends at 25 GB/s, 10 to and from the third: its row and its column are odd, and its name says so without colour."""
    values = {(f"{i}", f"{j}"): 10e9 if 2 in (i, j) else 25e9 for i in range(6) for j in range(6)}
    (matrix,) = pair_matrices(pairs(values))
    assert odd_ends(matrix) == ({2}, {2})
    assert pair_svg(matrix).count("> 2<".replace(">", "&gt;", 1)) == 2


def test_a_slow_receiver_is_a_column_only():
    values = {(f"{i}", f"{j}"): 10e9 if j == 2 else 25e9 for i in range(6) for j in range(6)}
    (matrix,) = pair_matrices(pairs(values))
    assert odd_ends(matrix) == (frozenset(), {2})


def test_where_half_of_the_ends_are_slow_none_is_odd():
    """Two sockets: the first three ends among themselves at 25 GB/s, all else at 10."""
    values = {(f"{i}", f"{j}"): 25e9 if i < 3 and j < 3 else 10e9 for i in range(6) for j in range(6)}
    (matrix,) = pair_matrices(pairs(values))
    assert odd_ends(matrix) == (frozenset(), frozenset())


def test_a_drawing_says_in_words_what_it_shows():
    svg = curve_svg(curve(8, 16))
    assert svg is not None
    assert "<title id=" in svg
    assert "From 100 GB/s at 8 B to 100 GB/s at 16 B." in svg


def test_a_curve_of_very_many_points_is_thinned_and_keeps_what_a_finding_names():
    found = Curve("t", "a", 0, "all_reduce", 8, 1, [
        Point(8 + k, 1000, 1e9, 1e9 if k != 777 else 5e8, None, None, LineRef("log", k, 0, "a")) for k in range(50_000)
    ])  # fmt: skip
    svg = curve_svg(found, evidence={("log", 777)})
    assert svg is not None
    assert len(svg) < 60_000
    assert "named by a finding" in svg
