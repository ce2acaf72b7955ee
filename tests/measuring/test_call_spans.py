"""Spans of timed calls, from stamps that the test makes."""

from __future__ import annotations

import numpy as np

from busbw.measuring.call_spans import call_spans
from busbw.measuring.measure import Measured, MeasuredRow
from busbw.measuring.request import Request
from busbw.measuring.samples import half_of


def _row(collective: str, ranks: int, samples: int, calls: int = 1, size: int = 1024) -> tuple[Measured, MeasuredRow]:
    """Sample i of rank r begins at 100 i + r on its own clock, which is 1000 r behind rank 0's, and takes 7 ns."""
    begins = 100 * np.arange(samples)[None, :] + np.arange(ranks)[:, None]
    stamps = np.stack([begins, begins + 7], axis=2)
    half = half_of(stamps, 1000 * np.arange(ranks), np.full(samples, calls), wrong=0, messages=1, ranks_timed=ranks)
    return Measured(Request(collective, ranks, (size,)), None), MeasuredRow(size, 1, half, None, 0.0)


def test_a_sample_of_each_rank_is_a_span_on_the_clock_of_rank_0():
    found = call_spans([_row("all_reduce", 2, 2)])
    spans = [(one.rank, one.primitive, one.begin_ns, one.end_ns) for one in found.spans.recorded]
    assert spans == [
        (0, "all_reduce 1 KiB", 0, 7), (0, "all_reduce 1 KiB", 100, 107),
        (1, "all_reduce 1 KiB", 1001, 1008), (1, "all_reduce 1 KiB", 1101, 1108),
    ]  # fmt: skip


def test_a_batch_says_how_many_calls_it_is_and_a_barrier_has_no_size():
    found = call_spans([_row("all_reduce", 1, 1, calls=20), _row("barrier", 1, 1, size=0)])
    assert [one.primitive for one in found.spans.recorded] == ["all_reduce 1 KiB x 20", "barrier"]


def test_ranks_that_only_look_on_have_no_spans():
    """latency is between ranks 0 and 1; of three ranks of message_rate one has no partner."""
    assert {one.rank for one in call_spans([_row("latency", 4, 1)]).spans.recorded} == {0, 1}
    assert {one.rank for one in call_spans([_row("message_rate", 3, 1)]).spans.recorded} == {0, 1}


def test_what_has_no_room_is_counted():
    """4 samples of each of 2 ranks, then 4 more, where 5 of a rank are kept: 16 - 10 are not."""
    found = call_spans([_row("all_gather", 2, 4), _row("all_gather", 2, 4)], most=5)
    assert len(found.spans) == 10
    assert found.spans.dropped == 6


def test_a_row_that_was_kept_without_its_samples_is_counted():
    head, row = _row("all_reduce", 2, 2)
    bare = MeasuredRow(1024, 1, type(row.out_of_place)(1e-6, 1e-6, 0, 1), None, 0.0)
    refused = MeasuredRow(1024, 1, None, None, 0.0, refused="no avg")
    assert call_spans([(head, bare), (head, refused)]).untimed == 1
