"""What a GPU needs for an operation: laws of the forms, measured kernels, refusals."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.hardware.catalogue import find_accelerator
from busbw.workloads.compute import gpus, operation_time, operation_times
from busbw.workloads.operations import Attention, Experts, Gemm, MemoryBound, Operation

H100 = "H100-SXM-80GB"
SIZES = st.sampled_from([1, 7, 64, 511, 512, 1024, 3000, 4096, 8192, 16384, 53248])
GPUS = st.sampled_from(["A100-SXM-80GB", H100, "B200-SXM", "GB300", "MI300X", "V100-SXM2-32GB", "L40S"])


def measured() -> list[tuple[str, Operation, float]]:
    """GPU, operation, seconds."""
    rows: list[tuple[str, Operation, float]] = []
    lines = Path(__file__).with_name("measured.csv").read_text().splitlines()
    for gpu, kernel, dtype, *numbers, us in csv.reader(line for line in lines if not line.startswith("#")):
        values = [int(number) for number in numbers if number]
        operation: Operation
        if kernel == "gemm":
            operation = Gemm(*values, dtype=dtype)
        else:
            batch, length, heads, kv_heads, head_dim, v_head_dim, window = values
            operation = Attention(batch, length, length, heads, kv_heads, head_dim, v_head_dim, window=window)
        rows.append((gpu, operation, float(us) * 1e-6))
    return rows


def test_measured_kernels_are_met():
    """Of shapes of training: the median error is below a tenth, and the interval, made for 8 of 10, holds at least 7 of 10.

    fp8_block tables hold the quantising of activations too, which is no part of an operation: their measured time is only a bound.
    """
    rows = [(operation_time(gpu, operation), time_s, operation) for gpu, operation, time_s in measured()]
    bounds = [(found, time_s) for found, time_s, operation in rows if getattr(operation, "dtype", "") == "fp8_block"]
    assert statistics.mean(found.low_s < time_s for found, time_s in bounds) > 0.8
    whole = [(found, time_s) for found, time_s, operation in rows if getattr(operation, "dtype", "") != "fp8_block"]
    assert statistics.median(abs(found.seconds / time_s - 1) for found, time_s in whole) < 0.1
    assert statistics.mean(found.low_s <= time_s <= found.high_s for found, time_s in whole) > 0.7


@given(gpu=GPUS, m=SIZES, n=SIZES, k=SIZES)
def test_no_product_is_faster_than_the_peak(gpu: str, m: int, n: int, k: int):
    gemm = Gemm(m, n, k)
    flops = find_accelerator(gpu).dense_flops["bf16"].value
    found = operation_time(gpu, gemm)
    assert 0 < found.low_s <= found.seconds <= found.high_s
    assert found.seconds >= gemm.flops / flops


@given(gpu=GPUS, m=SIZES, n=SIZES, k=SIZES)
def test_more_rows_take_longer_but_for_tile_effects(gpu: str, m: int, n: int, k: int):
    """Twice the rows may fit the tiles and waves better, or fall to a kernel the tables know as better: a fifth, no more."""
    assert operation_time(gpu, Gemm(2 * m, n, k)).seconds > 0.8 * operation_time(gpu, Gemm(m, n, k)).seconds


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", H100, "B200-SXM"])
def test_at_saturation_twice_the_batch_takes_twice_the_time(gpu: str):
    one, two = operation_time(gpu, Gemm(16384, 8192, 8192)), operation_time(gpu, Gemm(32768, 8192, 8192))
    assert two.seconds == pytest.approx(2 * one.seconds, rel=0.08)
    one, two = (operation_time(gpu, Attention(b, 4096, 4096, 32, 8, 128, 128)) for b in (4, 8))
    assert two.seconds == pytest.approx(2 * one.seconds, rel=0.08)
    one, two = operation_time(gpu, MemoryBound(1e9)), operation_time(gpu, MemoryBound(2e9))
    assert two.seconds == pytest.approx(2 * one.seconds, rel=0.02)


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", H100, "B200-SXM", "MI300X"])
def test_large_tensors_move_no_faster_than_memory(gpu: str):
    rate = find_accelerator(gpu).memory_bytes_per_s.value
    assert operation_time(gpu, MemoryBound(4e9)).seconds > 4e9 / rate


def test_a_product_of_few_rows_waits_for_its_weights():
    """One token: 2 x 8192 x 28672 bytes of weights at 3.35 TB/s are 140 us, and no arithmetic to speak of."""
    found = operation_time(H100, Gemm(1, 28672, 8192)).seconds
    assert 140e-6 < found < 200e-6


def test_attention_backward_takes_two_and_a_half_times_the_work():
    forward = operation_time(H100, Attention(1, 8192, 8192, 32, 8, 128, 128)).seconds
    backward = operation_time(H100, Attention(1, 8192, 8192, 32, 8, 128, 128, backward=True)).seconds
    assert 2.5 < backward / forward < 3.5


def test_a_window_saves_what_it_hides():
    whole = operation_time(H100, Attention(1, 16384, 16384, 32, 8, 128, 128)).seconds
    windowed = operation_time(H100, Attention(1, 16384, 16384, 32, 8, 128, 128, window=1024)).seconds
    assert windowed < whole / 3


def test_experts_take_at_least_what_one_product_of_their_work_takes():
    """8 experts of 4096 rows each: as much arithmetic as dense products of 32768 rows."""
    experts = operation_time(H100, Experts(32768, 7168, 2048, 8)).seconds
    dense = (
        operation_time(H100, Gemm(32768, 4096, 7168)).seconds + operation_time(H100, Gemm(32768, 7168, 2048)).seconds
    )
    assert dense <= experts < 2 * dense
    assert operation_time(H100, Experts(32768, 7168, 2048, 256)).seconds > experts


def test_what_others_take_of_a_gpu_slows_what_needs_it():
    """With a tenth of the SMs gone a large product takes a tenth longer; with half of the memory rate a copy takes twice as long."""
    gemm, moved = Gemm(8192, 8192, 8192), MemoryBound(1e9)
    whole = operation_time(H100, gemm).seconds
    assert operation_time(H100, gemm, sm_fraction=0.9).seconds == pytest.approx(whole / 0.9, rel=0.03)
    whole = operation_time(H100, moved).seconds
    assert operation_time(H100, moved, hbm_fraction=0.5).seconds == pytest.approx(2 * whole, rel=0.02)
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        operation_time(H100, gemm, sm_fraction=0.0)


def test_a_gpu_that_is_busy_all_the_time_is_no_faster():
    """The longest products are as slow as that by themselves."""
    for size in (512, 2048, 8192):
        cold, warm = (operation_time(H100, Gemm(size, size, size), sustained=s).seconds for s in (False, True))
        assert cold <= warm < 1.5 * cold
    long = Gemm(65536, 16384, 16384)
    assert operation_time(H100, long, sustained=True).seconds == pytest.approx(
        operation_time(H100, long).seconds, rel=0.02
    )


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), max_size=5))
def test_many_operations_take_what_each_takes(shapes: list[tuple[int, int, int]]):
    operations: list[Operation] = [Gemm(*shape) for shape in shapes]
    operations += [MemoryBound(float(m * n)) for m, n, _ in shapes]
    operations += [Attention(1, m, m, 8, 2, 128, 128, backward=m > 1000) for m, _, _ in shapes]
    operations += [Experts(m, n, k, 4, gated=m > 1000, backward=n > 1000) for m, n, k in shapes]
    found = operation_times(H100, operations)
    assert found == pytest.approx([operation_time(H100, operation).seconds for operation in operations], rel=1e-12)
    assert operation_times(H100, operations) == pytest.approx(found, rel=0)


def test_no_work_takes_no_time():
    for operation in (Gemm(0, 8, 8), Attention(1, 0, 0, 8, 8, 64, 64), Experts(0, 8, 8, 4), MemoryBound(0)):
        assert operation_time(H100, operation).seconds == 0


def test_an_interval_widens_with_the_distance_of_what_was_measured():
    def width(gpu: str) -> float:
        found = operation_time(gpu, Gemm(8192, 8192, 8192))
        return found.high_s / found.low_s

    assert operation_time(H100, Gemm(8192, 8192, 8192)).basis == "measured H100-SXM-80GB"
    assert operation_time("MI300X", Gemm(8192, 8192, 8192)).basis == "transferred from H100-SXM-80GB"
    assert width(H100) < width("H100-NVL-94GB") < width("MI300X")


def test_every_gpu_offered_can_be_asked():
    for gpu in gpus():
        for operation in (Gemm(4096, 4096, 4096), MemoryBound(1e8), Experts(4096, 4096, 1024, 4)):
            assert 0 < operation_time(gpu, operation).seconds < 1
        assert operation_time(gpu, Attention(1, 2048, 2048, 16, 16, 128, 128)).seconds > 0


@pytest.mark.parametrize(
    ("gpu", "dtype", "says"),
    [
        ("H1000", "bf16", r"no GPU 'H1000' in the catalogue.*Nearest: H100-SXM-80GB"),
        ("TPU v5p", "bf16", r"hardware-unknown: no GPU 'TPU v5p'"),
        ("A100-SXM-80GB", "fp8", r"A100-SXM-80GB has no known peak for fp8 \(its formats here: bf16\)"),
        (H100, "nvfp4", r"H100-SXM-80GB has no known peak for nvfp4"),
        (H100, "mxfp8", r"no known peak for mxfp8"),
        (H100, "int3", r"number format 'int3' is unknown; known: fp32"),
    ],
)
def test_what_cannot_be_timed_is_refused_with_the_way_on(gpu: str, dtype: str, says: str):
    with pytest.raises(InputError, match=says):
        operation_time(gpu, Gemm(1024, 1024, 1024, dtype))
