"""Measured collectives are right for every kind, type and operation, whatever measures them; a wrong result is counted."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.execution import Communicator
from busbw.launching import Line
from busbw.measuring import measure as measuring
from busbw.measuring import running
from busbw.measuring.elements import decoded, encoded, item_bytes
from busbw.measuring.measure import Measured, MeasuredRow, head_from, head_json, row_from, row_json
from busbw.measuring.rank import MARK
from busbw.measuring.request import COLLECTIVES, IN_PLACE, POINT_TO_POINT, Request
from busbw.measuring.running import How, run_in_threads, run_processes, run_requests
from busbw.measuring.samples import Half
from busbw.measuring.truth import due, given, places, wrong_elements

TYPES = (
    ("float32", "sum"),
    ("float16", "avg"),
    ("int8", "prod"),
    ("int64", "avg"),
    ("uint8", "max"),
    ("bfloat16", "sum"),
    ("bfloat16", "avg"),
)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_result_is_checked_and_right(collective):
    """Sizes: less than an element a rank, which is nothing, and an odd one. nccl-tests' size is in whole elements for each rank."""
    for dtype, op in TYPES:
        request = Request(collective, 3, (5, 4003), dtype, op, root=2, iterations=1, warm_up=0)
        measured = run_in_threads(request)
        item = item_bytes(dtype)
        for asked, row in zip(request.sizes_bytes, measured.rows, strict=True):
            assert row.out_of_place is not None
            assert row.out_of_place.wrong == 0
            assert row.in_place is None or row.in_place.wrong == 0
            whole = asked // item * item
            if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
                whole = asked // (3 * item) * 3 * item
            if collective == "barrier":
                whole = 0
            if collective != "all_to_all_v":  # the largest of uneven ones
                assert row.size_bytes == whole
        assert (measured.rows[0].in_place is None) == (collective not in IN_PLACE)


@pytest.mark.parametrize("what", POINT_TO_POINT)
def test_messages_arrive_whatever_the_number_of_ranks(what):
    """An odd rank out takes no part."""
    for ranks in (2, 3):
        for row in run_in_threads(Request(what, ranks, (0, 1009), "uint8", iterations=2, warm_up=0)).rows:
            assert row.out_of_place is not None
            assert row.out_of_place.wrong == 0
            assert row.out_of_place.took_ns is not None
            assert row.out_of_place.took_ns.shape == (ranks, 2)


@pytest.mark.parametrize("backend", ["torch", "mpi"])
def test_other_libraries_are_checked_by_the_same_loop(backend):
    """gloo and the MPI that is installed: every collective that has a type and operation there."""
    if importlib.util.find_spec({"torch": "torch", "mpi": "mpi4py"}[backend]) is None:
        pytest.skip(f"{backend}: not installed")
    if backend == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    requests = [
        Request(name, 2, (0, 1004), "float32", "max", backend=backend, iterations=2, warm_up=0)
        for name in (*COLLECTIVES, *POINT_TO_POINT)
    ]
    found = run_requests(requests, How("mpirun" if backend == "mpi" else "local", 100), samples=True)
    assert [one.request.collective for one in found] == [*COLLECTIVES, *POINT_TO_POINT]
    assert [half.wrong for one in found for row in one.rows for half in row.halves()] == [0] * 2 * (15 + len(IN_PLACE))
    assert found[0].rows[1].out_of_place.took_ns.shape == (2, 2)


@pytest.mark.parametrize("ranks", [2, 128, 129, 1500])
def test_sums_of_bfloat16_are_exact_in_any_order(ranks):
    """Whole numbers to 256 are exact with 8 bits: no order of reduction rounds, whatever the number of ranks, so one bit off is wrong."""
    request = Request("all_reduce", ranks, (2 * 251,), "bfloat16")
    total = np.zeros(251, np.float32)
    for rank in reversed(range(ranks)):  # the other way round, rounded after each step
        total = decoded(encoded(total + decoded(given(request, rank, 251), "bfloat16"), "bfloat16"), "bfloat16")
    made, must = encoded(total, "bfloat16"), due(request, 0, places(request, 0, 2 * 251, True))
    assert wrong_elements(request, made, must) == 0
    made[7] += 1
    assert wrong_elements(request, made, must) == 1


def test_averages_of_bfloat16_may_be_a_rounding_off_and_no_more():
    """3 ranks: NCCL's 1/3 before the sum ends 2 roundings of 2^-8 away at most; a rank that is left out is a third away."""
    request = Request("all_reduce", 3, (2 * 251,), "bfloat16", "avg")
    inputs = [decoded(given(request, rank, 251), "bfloat16") for rank in range(3)]
    must = due(request, 0, places(request, 0, 2 * 251, True))
    total = np.zeros(251, np.float32)
    for one in inputs:
        total = decoded(encoded(total + decoded(encoded(one / 3, "bfloat16"), "bfloat16"), "bfloat16"), "bfloat16")
    assert wrong_elements(request, encoded(total, "bfloat16"), must) == 0
    left_out = (inputs[0] + inputs[1]) / 3
    assert wrong_elements(request, encoded(left_out, "bfloat16"), must) == np.count_nonzero(inputs[2])


@pytest.mark.parametrize("backend", ["torch", "mpi"])
def test_other_libraries_move_bfloat16_and_reduce_it_or_say_why_not(backend):
    """MPI has no such type: its reductions are refused, the bits of the others arrive."""
    if importlib.util.find_spec({"torch": "torch", "mpi": "mpi4py"}[backend]) is None:
        pytest.skip(f"{backend}: not installed")
    if backend == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    names = ("all_reduce", "all_gather", "latency")
    refused: list[str] = []
    found = run_requests(
        [Request(name, 2, (0, 1004), "bfloat16", backend=backend, iterations=2, warm_up=0) for name in names],
        How("mpirun" if backend == "mpi" else "local", 100),
        refused=refused,
    )
    assert refused == (
        ["back end mpi: MPI has no type bfloat16; take float32, or --backend builtin."] if backend == "mpi" else []
    )
    assert [one.request.collective for one in found] == list(names[len(refused) :])
    assert not any(half.wrong for one in found for row in one.rows for half in row.halves())


def test_a_wrong_element_is_counted(monkeypatch):
    right = Communicator.all_reduce

    def wrong(self, source, target=None, op="sum", **more):
        result = right(self, source, target, op, **more)
        if result.dtype == np.float32 and self.rank == 1:
            result[0] += 1
        return result

    monkeypatch.setattr(Communicator, "all_reduce", wrong)
    row = run_in_threads(Request("all_reduce", 2, (64,), iterations=1)).rows[0]
    assert [half.wrong for half in row.halves()] == [1, 1]


def test_bandwidths_follow_nccl_tests():
    """algbw = size / time; busbw of an all_reduce of 4 ranks is 2 * 3/4 of it. Nothing is faster than what bounds it."""
    half = Half(time_s=1e-3, best_s=1e-3, wrong=0, calls=1)
    row = MeasuredRow(1_000_000, 250_000, half, None, copy_s=2e-4)
    measured = Measured(Request("all_reduce", 4, (1_000_000,)), 1e-6, {}, (), (row,))
    assert measured.busbw_bytes_per_s(row.size_bytes, half) == pytest.approx((1e9, 1.5e9))
    assert measured.bound_s(row) == 2e-4


def test_without_data_nothing_bounds_the_time():
    """A call for 0 elements need not wait for anybody, so half a round trip is no bound of it."""
    half = Half(time_s=1e-8, best_s=1e-8, wrong=0, calls=1)
    row = MeasuredRow(0, 0, half, None, copy_s=0.0)
    assert Measured(Request("all_reduce", 2, (0,)), 1e-6, {}, (), (row,)).bound_s(row) == 0


@pytest.mark.parametrize("iterations", [1, 5, 7])
def test_as_many_calls_are_made_as_asked_for(iterations, monkeypatch):
    """One call besides is checked, three estimate the time, and so many warm up."""
    made = []
    right = Communicator.all_gather

    def counted(self, source, target=None, *, times=1):
        made.append(times)
        return right(self, source, target, times=times)

    monkeypatch.setattr(Communicator, "all_gather", counted)
    row = run_in_threads(Request("all_gather", 1, (64,), in_place=False, iterations=iterations, warm_up=0)).rows[0]
    assert row.out_of_place is not None
    assert row.out_of_place.calls == iterations
    assert sum(made) == 1 + 3 + iterations


class _Steady:
    """A back end of one rank whose calls take exactly as long as they are told, by a clock of its own."""

    rank, ranks = 0, 1

    def __init__(self, took_s, monkeypatch):
        self.now_ns, self.took_s, self.calls = 0, took_s, 0
        monkeypatch.setattr(measuring.time, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now_ns / 1e9)

    def barrier(self):
        pass

    def together(self, values, op):
        return values

    def call(self, calls):
        for _ in range(calls):
            self.now_ns += round(self.took_s(self.calls) * 1e9)
            self.calls += 1


def test_calls_that_take_equally_long_are_soon_known(monkeypatch):
    """The interval of equal values has no width: one block is enough."""
    steady = _Steady(lambda _: 1e-3, monkeypatch)
    stamps, calls = measuring.time_calls(steady, steady.call, Request("all_reduce", 1, (8,)).precision)
    assert len(stamps) == len(calls) == 16
    assert set(stamps[:, 1] - stamps[:, 0]) == {1_000_000}


def test_calls_that_differ_go_on_until_the_limit(monkeypatch):
    """Half take 1 ms, half 3 ms, at random: their median is not known to 2 %, so half a second of them is measured, at most a block more."""
    random = np.random.default_rng(3)
    steady = _Steady(lambda _: float(random.choice([1e-3, 3e-3])), monkeypatch)
    stamps, _ = measuring.time_calls(steady, steady.call, Request("all_reduce", 1, (8,)).precision)
    assert 0.4 < (stamps[-1, 1] - stamps[0, 0]) / 1e9 < 0.75


def test_calls_of_20_us_and_more_are_timed_one_by_one_and_shorter_ones_in_batches(monkeypatch):
    for took_s, batch in ((21e-6, 1), (2e-6, 100)):
        steady = _Steady(lambda _, took_s=took_s: took_s, monkeypatch)
        _, calls = measuring.time_calls(steady, steady.call, Request("all_reduce", 1, (8,)).precision)
        assert set(calls) == {batch}


def test_a_row_is_the_same_after_the_way_between_processes():
    half = Half(time_s=1e-3, best_s=1e-3, wrong=0, calls=1, last_rank=None)
    row = MeasuredRow(8, 2, half, None, 1e-6, None, "k")
    again = row_from(row_json(row))
    assert (again.size_bytes, again.key, again.in_place) == (8, "k", None)
    assert again.out_of_place is not None
    assert math.isnan(again.out_of_place.median_s)
    assert again.out_of_place.last_rank is None
    head = run_in_threads(Request("barrier", 2, (0,), iterations=1))
    assert head_from(head_json(head)).places == head.places


@pytest.mark.parametrize(
    ("request_of", "said"),
    [
        (lambda: Request("latency", 1, (8,)), "between two ranks"),
        (lambda: Request("broadcast", 2, (8,), root=2), "root 2: is none of the ranks 0 to 1"),
        (lambda: Request("all_reduce", 2, (8,), width=2.0), "confidence width 2: write a share"),
        (lambda: run_in_threads(Request("broadcast", 2, (8,), window=True)), "all-reduce alone runs on window memory"),
        (lambda: run_processes(Request("barrier", 1, (0,), backend="nonesuch"), deadline_s=20), "there are builtin"),
    ],
)
def test_what_cannot_be_measured_is_one_message(request_of, said):
    with pytest.raises((InputError, RuntimeError), match=said):
        request_of()


def test_what_a_launcher_still_has_after_an_error_does_not_hide_it(monkeypatch):
    """A store is full at the first row: the second, which was in the pipe, is not offered to it, and the first error is what is raised."""
    head = run_in_threads(Request("barrier", 2, (0,), iterations=1))
    told = [{"head": head_json(head)}, *({"row": row_json(head.rows[0]), "samples": {}} for _ in range(2))]
    lines = [Line(f"{MARK}1/1 {json.dumps(one)}".encode(), False, 0, 0) for one in told]
    offered = []

    def launched(job, name, options, *, write):
        try:
            write(lines[0])
            write(lines[1])
        finally:
            write(lines[2])

    def heard(one):
        if one.row is not None:
            offered.append(one)
            raise InputError("No space left on device")

    monkeypatch.setattr(running, "launch", launched)
    with pytest.raises(InputError, match="No space left"):
        run_requests([head.request], How("ssh", 10), heard=heard)
    assert len(offered) == 1


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
from busbw.measuring.request import Request
from busbw.measuring.running import run_processes
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
