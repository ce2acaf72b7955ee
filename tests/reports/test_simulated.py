"""The page and the trace of a simulation: all that they say stands in them, nothing comes from elsewhere, the same run gives the same bytes."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from busbw.collectives.algorithms import ring_all_reduce
from busbw.errors import InputError
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.reports.perfetto import write_perfetto
from busbw.reports.simulated import render_simulation, write_simulation
from busbw.simulation import Conditions, read_graph, simulate

B, L = 50e9, 1e-6
STAR = SingleSwitch(4, LinkRates(B, B, 0.0, L))


def ring(**more):
    return simulate(ring_all_reduce().bind(4), STAR, size_bytes=4_000_000, **more)


def graph_of(tmp_path):
    """Rank 0 computes 40 us and sends 1 MB (20 us and two links) to rank 1, which computes 10 us meanwhile."""
    tasks = [
        {"id": "gemm <1>", "rank": 0, "kind": "compute", "time_s": 40e-6},
        {"id": "send", "rank": 0, "kind": "transfer", "to": 1, "bytes": 1_000_000, "after": ["gemm <1>"]},
        {"id": "side", "rank": 1, "kind": "compute", "time_s": 10e-6},
    ]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"schema": 1, "ranks": 2, "tasks": tasks}))
    return read_graph(file)


def test_the_page_says_time_path_links_and_ranks():
    """132 us: 6 steps of 20 us on a link and 2 us of latency; every link is full for 120 of 132 us."""
    page = render_simulation(ring(), "ring <4>", [{"size_bytes": 4_000_000, "causes": []}])
    assert "<strong>132 us</strong>: ring &lt;4&gt;" in page
    assert "9.1%" in page and "latency" in page
    assert "carried 90.91% of what it could on average" in page
    assert re.findall(r'<h2 id="(\w+)">', page) == ["path", "links", "ranks", "steps"]


def test_the_page_asks_nobody_for_anything():
    page = render_simulation(ring(), "ring", [])
    assert "default-src 'none'" in page and 'content="busbw report"' in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert render_simulation(ring(), "ring", []) == page


def test_a_graph_shows_its_tasks_and_what_computing_hides(tmp_path):
    graph = graph_of(tmp_path)
    timeline = simulate(graph, STAR)
    page = render_simulation(timeline, "graph", [], graph.names)
    assert "gemm &lt;1&gt;" in page
    hidden = re.search(r'id="hidden".*?</table>', page, re.DOTALL)
    assert hidden is not None and "<td>rank 0</td>" in hidden[0] and "40 us" in hidden[0]


def test_faults_and_sweeps_have_their_tables():
    rows = [
        {"size_bytes": size, "nodes": 1, "time_s": 1e-6, "p99_s": 1e-6, "causes": [{"name": "rank 3", "saves_s": 5e-6}]}
        for size in (8, 16)
    ]
    page = render_simulation(ring(conditions=Conditions(slow_ranks={3: 0.5})), "ring", rows)
    assert {"faults", "points"} <= set(re.findall(r'<h2 id="(\w+)">', page))


def test_a_run_without_tasks_makes_no_page(tmp_path):
    with pytest.raises(InputError, match="record=True"):
        write_simulation(tmp_path / "x.html", ring(record=False), "ring", [])
    assert not list(tmp_path.iterdir())


def test_perfetto_gets_whole_lanes_the_critical_path_and_links(tmp_path):
    """On one thread nothing overlaps; the path's spans end at the end of the run less the last latency; counters stay in 0 to 100 %."""
    file = tmp_path / "trace.json"
    assert write_perfetto(ring(fold=False), file) == 24
    events = json.loads(file.read_text())["traceEvents"]
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(later[0] >= earlier[1] - 1e-6 for earlier, later in pairwise(spans))
    named = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    path = [event for event in events if event["ph"] == "X" and event["pid"] == named["critical path"]]
    assert len(path) == 6 and max(event["ts"] + event["dur"] for event in path) == pytest.approx(130)
    levels = [event["args"]["%"] for event in events if event["ph"] == "C"]
    assert levels and min(levels) >= 0 and max(levels) <= 100


def test_names_of_tasks_are_in_the_trace(tmp_path):
    graph = graph_of(tmp_path)
    write_perfetto(simulate(graph, STAR), tmp_path / "t.json", graph.names)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"gemm <1>", "send", "side"} <= {event["name"] for event in events if event["ph"] == "X"}
