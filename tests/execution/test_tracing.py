"""What a trace says: each primitive of a block once, after the one before it; each call of a rank once; nothing where none was asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from busbw.collectives import plan_of
from busbw.collectives.algorithms import ring_all_reduce
from busbw.execution import Spans, run, run_threads
from busbw.reports.perfetto import write_spans


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_a_plans_trace_has_each_row_of_each_block_in_order(backend):
    """A ring of two ranks, out of place: input to output, half of it sent, the other half added up, sent and received; one row ends before the next begins."""
    spans = Spans()
    run(plan_of(ring_all_reduce().bind(2)), [np.ones(8, np.float32)] * 2, backend=backend, spans=spans)
    for rank in range(2):
        of = [one for one in spans.recorded if one.rank == rank]
        assert [one.primitive for one in of] == ["copy", "send", "recv_reduce_copy", "send", "recv"]
        times = [time for one in of for time in (one.begin_ns, one.end_ns)]
        assert times == sorted(times)
    assert spans.dropped == 0


def test_what_has_no_room_is_counted():
    spans = Spans(most=2)
    run(plan_of(ring_all_reduce().bind(2)), [np.ones(8, np.float32)] * 2, spans=spans)
    assert (len(spans), spans.dropped) == (4, 6)
    with pytest.raises(ValueError, match="at least one span is kept"):
        Spans(most=0)
    with pytest.raises(ValueError, match="has no time"):
        run(plan_of(ring_all_reduce().bind(2)), [np.ones(8, np.float32)] * 2, backend="sim", spans=spans)


def test_a_communicators_trace_has_its_calls_from_trace_to_untrace(tmp_path):
    def body(comm):
        comm.barrier()
        spans = comm.trace()
        comm.all_reduce(np.ones(3))
        comm.all_gather(np.ones(3))
        comm.untrace()
        comm.barrier()
        return spans

    first, second = run_threads(2, body)
    assert [one.primitive for one in first.recorded] == ["all_reduce", "all_gather"]
    first.join(second)
    rows = first.observations()
    assert rows.table == "spans"
    assert rows.batch.column("rank").to_pylist().count(1) == 2
    assert write_spans(rows, tmp_path / "trace.json") == 4
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in calls) == 0
    assert {(event["pid"], event["name"]) for event in calls} == {
        (r, n) for r in (0, 1) for n in ("all_reduce", "all_gather")
    }
