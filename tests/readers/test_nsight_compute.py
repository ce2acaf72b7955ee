"""CSV of Nsight Compute. details.csv: the output in microsoft/superbenchmark's test of cublaslt-gemm (B200, release 2025), cut; raw.csv: by the manual's grammar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from busbw.readers.nsight_compute import READER

from .damage import fixture, mutations
from .reading import columns, read_text

DETAILS, RAW = fixture("nsight_compute/details.csv"), fixture("nsight_compute/raw.csv")


def test_the_page_of_details_is_a_kernel_of_many_rows():
    """Rows of metrics end behind the value, those of rules are longer; the table stands below lines of the program."""
    found = read_text(READER, DETAILS)
    (kernel,) = found.kernels
    assert (kernel["kernel"], kernel["time_ns"], kernel["sm_share"], kernel["memory_share"], kernel["dram_share"]) == (
        0,
        406_240,
        0.2359,
        0.2168,
        0.0074,
    )
    assert (kernel["grid"], kernel["block"], kernel["compute_capability"], kernel["pid"], kernel["lane"]) == (
        "9x32x1",
        "384x1x1",
        "10.0",
        371693,
        "7",
    )
    assert kernel["sm_hz"] == 1239496049.13
    assert not found.losses


def test_the_raw_page_has_units_in_its_second_line():
    """2 GB in 666.67 us are 3.0 TB/s; 5e9 fused multiply-adds are 1e10 operations."""
    found = read_text(READER, RAW)
    assert columns(found.kernels, "name", "time_ns", "dram_bytes", "flops", "dram_share") == [
        ("copy(float *, const float *, int)", 666_670, 2_000_000_000, 0.0, 0.895), ("sgemm(int)", 2_000_000, 12_000_000, 1e10, 0.031)
    ]  # fmt: skip
    assert found.kernels[0]["dram_bytes_per_s"] == pytest.approx(2e9 / 666.67e-6)
    assert not found.losses


@pytest.mark.parametrize(
    ("unit", "value", "time_ns"),
    [("nsecond", "1,234", 1234), ("us", "1.5", 1500), ("msecond", "2", 2_000_000), ("s", "0.25", 250_000_000)],
)
def test_times_in_any_unit(unit: str, value: str, time_ns: int):
    text = DETAILS.replace('"Duration","ns","406240"', f'"Duration","{unit}","{value}"')
    assert read_text(READER, text).kernels[0]["time_ns"] == time_ns


def test_a_time_in_a_unit_that_nobody_knows_is_left_out_and_said():
    found = read_text(READER, DETAILS.replace('"Duration","ns"', '"Duration","fortnight"'))
    assert "time_ns" not in found.kernels[0]
    assert {"unknown-unit", "no-times"} == set(found.loss_counts)


def test_metrics_asked_for_one_by_one_are_known_by_their_own_names():
    """ncu --csv --metrics: the section is called Command line profiler metrics."""
    line = DETAILS.splitlines()[4].replace(
        '"GPU Speed Of Light Throughput","SM Frequency","hz","1239496049.13"',
        '"Command line profiler metrics","gpu__time_duration.sum","us","7.5"',
    )
    found = read_text(READER, "\n".join([*DETAILS.splitlines()[:4], line]))
    assert columns(found.kernels, "time_ns") == [(7500,)]


def test_a_rate_named_like_a_share_is_no_share():
    text = DETAILS.replace('"Memory Throughput","%","21.68"', '"Memory Throughput","Gbyte/s","1,200.00"')
    assert "memory_share" not in read_text(READER, text).kernels[0]


def test_two_tables_of_one_file_have_kernels_of_the_same_number():
    assert len(read_text(READER, DETAILS + RAW).kernels) == 3


def test_a_row_cut_in_its_middle_costs_itself():
    found = read_text(READER, RAW[: RAW.rindex("95.00") - 30])
    assert len(found.kernels) == 1
    assert found.loss_counts == {"damaged-row": 1}


@settings(max_examples=100)
@given(mutations([DETAILS, RAW]))
def test_no_damage_makes_the_reader_fail(text: bytes):
    read_text(READER, text)


@pytest.mark.parametrize("value", ["89,50", "1.000,00", "12,5", "1,00,000", "1,0000"])
def test_a_decimal_comma_is_no_number_and_is_told(value: str):
    """Commas stand between thousands. 89,50 % of a locale that writes decimals so is not 8950 %."""
    found = read_text(READER, RAW.replace("89.50", value))
    assert found.kernels[0].get("dram_share") is None
    (loss,) = found.losses
    assert loss.kind == "damaged-row" and value in loss.detail and "LC_ALL=C" in loss.detail
