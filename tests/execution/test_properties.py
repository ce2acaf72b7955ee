"""Laws of collectives over sizes, places, ranks, types and operations, against numpy; and what runs leave behind.

Sizes end at 64 KiB; BUSBW_LARGEST_BYTES=67108864 and --hypothesis-profile=full go to 64 MiB. BUSBW_RUNS is how many jobs come and go.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.execution import Communicator, GaveUpError, run_threads

from .processes import run_ranks

LARGEST = int(os.environ.get("BUSBW_LARGEST_BYTES", "65536"))
RUNS = int(os.environ.get("BUSBW_RUNS", "4"))
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
SIZES = st.one_of(
    st.sampled_from([0, 1, 48, 64, 512, 6 << 10, 12 << 10, 1 << 14, LARGEST]), st.integers(0, LARGEST)
)  # where kernels change, and between


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    """Small whole numbers, of which every type holds sums and products of eight exactly (at most 2^8 = 256, wrapping in 8 bits as numpy's does)."""
    return ((np.arange(count) * 5 + rank * 3) % 3).astype(dtype)


def placed(array: np.ndarray, shift: int) -> np.ndarray:
    """A copy that begins `shift` elements behind its memory's begin."""
    memory = np.empty(array.size + shift, array.dtype)
    memory[shift:] = array
    return memory[shift:]


def reduced(ranks: int, count: int, dtype: str, op: str) -> np.ndarray:
    total = values(0, count, dtype)
    for rank in range(1, ranks):
        total = OPERATIONS[op](total, values(rank, count, dtype))
    return total


@given(
    ranks=st.integers(1, 5), size=SIZES, dtype=st.sampled_from(DTYPES), op=st.sampled_from(list(OPERATIONS)),
    shifts=st.tuples(st.integers(0, 17), st.integers(0, 17)), in_place=st.booleans(), window=st.booleans(),
)  # fmt: skip
def test_all_reduce_is_numpys_wherever_its_arrays_lie(*, ranks, size, dtype, op, shifts, in_place, window):
    count = size // np.dtype(dtype).itemsize

    def body(comm: Communicator) -> None:
        mine = values(comm.rank, count, dtype)
        if window:
            half = (count + 32) * mine.itemsize
            memory = comm.shared(2 * half).array
            source = memory[:half].view(dtype)[shifts[0] : shifts[0] + count]
            target = memory[half:].view(dtype)[shifts[1] : shifts[1] + count]
            source[:] = mine
        else:
            source, target = placed(mine, shifts[0]), placed(np.zeros_like(mine), shifts[1])
        out = comm.all_reduce(source, source if in_place else target, op)
        np.testing.assert_array_equal(out, reduced(ranks, count, dtype, op))

    run_threads(ranks, body)


@given(
    ranks=st.integers(1, 5), size=SIZES, dtype=st.sampled_from(DTYPES), shift=st.integers(0, 17), root=st.integers(0, 4)
)
def test_what_moves_and_is_not_reduced_arrives_as_it_was(ranks, size, dtype, shift, root):
    count, root = size // np.dtype(dtype).itemsize // ranks, root % ranks

    def body(comm: Communicator) -> None:
        every = [values(rank, count * ranks, dtype) for rank in range(ranks)]
        mine, own = placed(every[comm.rank], shift), slice(count * comm.rank, count * (comm.rank + 1))
        np.testing.assert_array_equal(comm.all_gather(mine[:count]), np.concatenate([one[:count] for one in every]))
        np.testing.assert_array_equal(comm.all_to_all(mine), np.concatenate([one[own] for one in every]))
        np.testing.assert_array_equal(comm.broadcast(mine, np.empty_like(mine), root), every[root])
        total = reduced(ranks, count * ranks, dtype, "sum")
        np.testing.assert_array_equal(comm.reduce_scatter(mine), total[own])

    run_threads(ranks, body)


def test_jobs_that_came_and_went_leave_nothing_in_shared_memory():
    """Processes over shared memory, with a window. What a killed rank leaves: test_communicator.py."""
    folder = Path("/dev/shm")
    before = {path.name for path in folder.glob("busbw-*")}

    def body(comm: Communicator) -> float:
        comm.shared(4096)
        total = float(comm.all_reduce(np.ones(5))[0])
        comm.barrier()
        return total

    for _ in range(RUNS):
        assert run_ranks(2, body) == [2.0, 2.0]
    made = {path.name for path in folder.glob(f"busbw-test-{os.getpid()}-*")}
    assert made - before == set()


@pytest.mark.parametrize("times", [0, -1])
def test_a_call_is_made_once_or_more(times):
    def body(comm: Communicator) -> None:
        for call in (comm.all_reduce, comm.all_gather, comm.all_to_all, comm.reduce_scatter, comm.broadcast):
            with pytest.raises(ValueError, match=f"times={times}: a call is made once or more"):
                call(np.ones(1), times=times)

    run_threads(1, body)


def test_what_is_no_array_is_named():
    def body(comm: Communicator) -> None:
        for call in (comm.all_reduce, comm.all_gather, comm.broadcast):
            with pytest.raises(ValueError, match=r"a list is no array: pass a numpy array, np\.asarray\(x\)"):
                call([1, 2])

    run_threads(1, body)


@pytest.mark.parametrize(
    ("first", "second"), [((0, "float32"), (64, "float32")), ((0, "float32"), (0, "int32")), ((64, "float32"), (0, "float32"))]
)  # fmt: skip
def test_another_place_or_type_in_shared_memory_is_noticed_at_once(first, second):
    """Each rank by itself could do either: what the other was called for is asked the first time."""

    def body(comm: Communicator) -> None:
        memory = comm.shared(1 << 16).array
        begin, dtype = (first, second)[comm.rank]
        for _ in range(2):
            comm.all_reduce(memory[4096:8192].view("float32"), memory[8192:12288].view("float32"))
        comm.all_reduce(memory[begin : begin + 1024].view(dtype), memory[begin : begin + 1024].view(dtype))

    with pytest.raises(GaveUpError, match="must be the same, and on shared memory places and operations"):
        run_threads(2, body, wait_s=5)


@pytest.mark.parametrize(("dtype", "one", "two"), [("float8_e4m3", 0x38, 0x40), ("float8_e5m2", 0x3C, 0x40)])
def test_float8_is_added_in_float_and_has_no_average(dtype, one, two):
    """1 + 1 = 2, as OFP8 writes them: e4m3 has bias 7 and 3 bits of mantissa, e5m2 bias 15 and 2."""

    def body(comm: Communicator) -> None:
        for count in (1, 1000, 30_000):
            ones = np.full(count, one, np.uint8)
            assert set(comm.all_reduce(ones, dtype=dtype).tolist()) == {two}
            assert set(comm.all_reduce(ones, op="max", dtype=dtype).tolist()) == {one}
        with pytest.raises(ValueError, match="there is no average of float8: divide the sum"):
            comm.all_reduce(ones, op="avg", dtype=dtype)

    run_threads(2, body)


def test_arrays_of_ml_dtypes_are_taken_as_they_are():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

    def body(comm: Communicator) -> None:
        for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            out = comm.all_reduce(np.full(7, comm.rank + 1).astype(kind))
            assert out.dtype == kind
            assert out.astype(np.float32).tolist() == [3.0] * 7

    run_threads(2, body)
