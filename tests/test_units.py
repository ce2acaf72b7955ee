"""Sizes, rates and times at the edge: what tools print and what people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.units import GB, GBIT, format_bytes, format_rate, format_time_ns, parse_size

POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@given(st.integers(0, 4096), st.sampled_from(sorted(POWERS)), st.sampled_from(["", "B", "iB"]), st.booleans())
def test_a_suffix_is_a_power_of_two(number: int, suffix: str, unit: str, lower: bool):
    """As nccl-tests' -b takes it (src/common.cu, parsesize): K, KB and KiB are 1024, whatever the case."""
    text = f"{number}{suffix}{unit if suffix else unit.removeprefix('i')}"
    assert parse_size(text.lower() if lower else text) == number * 2 ** POWERS[suffix]


def test_a_size_may_have_a_fraction_and_blanks():
    assert parse_size(" 1.5 KiB ") == 1536


@pytest.mark.parametrize("text", ["", "M", "1X", "-8", "1e6", "8 8", "0x10", "1.5.2K", "nan", "8MiBs"])
def test_what_is_no_size_is_refused_with_an_example(text: str):
    with pytest.raises(ValueError, match="is no size; write bytes, or a number with K, M, G or T, such as 64M"):
        parse_size(text)


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_a_printed_size_reads_back(number: int, unit: str):
    size_bytes = number * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert parse_size(format_bytes(size_bytes)) == size_bytes


@given(st.integers(1, 2**50))
def test_a_printed_size_is_right_to_four_digits(size_bytes: int):
    assert parse_size(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=5e-4, abs=1)


@given(st.integers(0, 2**50))
def test_a_printed_size_has_at_most_four_digits_before_its_unit(size_bytes: int):
    number, unit = format_bytes(size_bytes).split(" ")
    assert unit == "TiB" or float(number) <= 1024


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (0.0, "0 GB/s"),
        (48.36e9, "48.4 GB/s"),
        (479.6e9, "480 GB/s"),
        (99.96e9, "100 GB/s"),
        (0.0512e9, "0.0512 GB/s"),
        (2e12, "2000 GB/s"),
    ],
)
def test_a_rate_is_in_gigabytes_of_a_billion_bytes(bytes_per_s: float, text: str):
    assert format_rate(bytes_per_s) == text


@given(st.floats(1e3, 1e15))
def test_a_printed_rate_is_right_to_three_digits(bytes_per_s: float):
    assert float(format_rate(bytes_per_s).removesuffix(" GB/s")) * GB == pytest.approx(bytes_per_s, rel=5.1e-3)


@given(st.floats(1, 1e15))
def test_a_printed_time_is_right_to_three_digits(time_ns: float):
    number, unit = format_time_ns(time_ns).split(" ")
    assert float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit] == pytest.approx(time_ns, rel=5.1e-3)


@pytest.mark.parametrize(
    ("time_ns", "text"), [(850, "850 ns"), (12_340, "12.3 us"), (5_620_000, "5.62 ms"), (4_295_000_000, "4.29 s")]
)
def test_a_time_has_the_unit_that_fits(time_ns: float, text: str):
    assert format_time_ns(time_ns) == text


@pytest.mark.parametrize("time_ns", [999.7, 999_700, 999_700_000])
def test_a_time_that_rounds_up_takes_the_next_unit(time_ns: float):
    """Never 1e+03: people do not read exponents."""
    number, unit = format_time_ns(time_ns).split(" ")
    assert (number, unit) == ("1", {999.7: "us", 999_700: "ms", 999_700_000: "s"}[time_ns])


def test_a_size_that_rounds_up_takes_the_next_unit():
    assert format_bytes(1024**2 - 1) == "1 MiB"
    assert format_bytes(1024**3 - 1) == "1 GiB"


def test_a_link_of_400_gigabits_carries_50_gigabytes():
    assert 400 * GBIT == 50 * GB
