"""Measured collectives are right for every kind, type and operation; a wrong result is counted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from busbw.execution import Communicator
from busbw.measuring import builtin
from busbw.measuring.builtin import COLLECTIVES, Request, run_in_threads


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_result_is_checked_and_right(collective):
    """Sizes: nothing, less than an element a rank, an odd one. nccl-tests' size is in whole elements for each rank."""
    for dtype, op in (("float32", "sum"), ("float16", "avg"), ("int8", "prod"), ("int64", "avg"), ("uint8", "max")):
        request = Request(collective, 3, (0, 5, 4003), dtype, op, iterations=1)
        measured = run_in_threads(request)
        item = np.dtype(dtype).itemsize
        for asked, row in zip(request.sizes_bytes, measured.rows, strict=True):
            assert row.out_of_place.wrong == 0
            assert row.in_place is None or row.in_place.wrong == 0
            grain = item if collective in ("all_reduce", "broadcast", "reduce") else 3 * item
            assert row.size_bytes == asked // grain * grain
        assert (measured.rows[0].in_place is None) == (collective == "all_to_all")


def test_a_wrong_element_is_counted(monkeypatch):
    right = Communicator.all_reduce

    def wrong(self, source, target=None, op="sum", **more):
        result = right(self, source, target, op, **more)
        if result.dtype == np.float32 and self.rank == 1:
            result[0] += 1
        return result

    monkeypatch.setattr(builtin.Communicator, "all_reduce", wrong)
    row = run_in_threads(Request("all_reduce", 2, (64,), iterations=1)).rows[0]
    assert row.out_of_place.wrong == 1
    assert row.in_place is not None and row.in_place.wrong == 1


def test_bandwidths_follow_nccl_tests():
    """algbw = size / time; busbw of an all_reduce of 4 ranks is 2 * 3/4 of it. Nothing is faster than what bounds it."""
    half = builtin.Half(time_s=1e-3, best_s=1e-3, wrong=0, calls=1)
    row = builtin.MeasuredRow(1_000_000, 250_000, half, None, copy_s=2e-4)
    measured = builtin.Measured(Request("all_reduce", 4, (1_000_000,)), 1e-6, True, (1, 2, 3, 4), (row,))
    assert measured.busbw_bytes_per_s(row.size_bytes, half) == pytest.approx((1e9, 1.5e9))
    assert measured.bound_s(row) == 2e-4


def test_without_data_nothing_bounds_the_time():
    """A call for 0 elements need not wait for anybody, so half a round trip is no bound of it."""
    half = builtin.Half(time_s=1e-8, best_s=1e-8, wrong=0, calls=1)
    row = builtin.MeasuredRow(0, 0, half, None, copy_s=0.0)
    assert builtin.Measured(Request("all_reduce", 2, (0,)), 1e-6, True, (1, 2), (row,)).bound_s(row) == 0


@pytest.mark.parametrize("iterations", [1, 5, 7])
def test_as_many_calls_are_made_as_asked_for(iterations, monkeypatch):
    """7 calls are no whole number of each of 5 batches. One call besides is checked, three estimate the time."""
    made = []
    right = Communicator.all_gather

    def counted(self, source, target=None, *, times=1):
        made.append(times)
        return right(self, source, target, times=times)

    monkeypatch.setattr(builtin.Communicator, "all_gather", counted)
    row = run_in_threads(Request("all_gather", 1, (64,), in_place=False, iterations=iterations)).rows[0]
    assert row.out_of_place.calls == iterations
    assert sum(made) == 1 + 1 + 3 + iterations  # the first gathers process numbers


def test_ranks_end_with_whoever_started_them():
    """Killed, it can't end them; they must not go on measuring for nobody."""
    started = subprocess.Popen(
        [sys.executable, "-c", _STARTS_RANKS], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert started.stdout is not None
    ranks = [Path(f"/proc/{started.stdout.readline().strip()}") for _ in range(2)]
    started.kill()
    started.wait()
    until = time.monotonic() + 20
    while any(_runs(rank) for rank in ranks) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(_runs(rank) for rank in ranks)
    started.stdout.close()


_STARTS_RANKS = """
import subprocess
from busbw.launching import local
from busbw.measuring.builtin import Request, run_processes
class Shown(subprocess.Popen):
    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        print(self.pid, flush=True)
local.subprocess.Popen = Shown
run_processes(Request("all_reduce", 2, (1 << 20,), iterations=10_000_000), deadline_s=60)
"""


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
