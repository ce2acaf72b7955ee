"""Who failed first: rows by time, effects apart, and what the order rests on."""

from __future__ import annotations

from busbw.diagnosis import Facts, LineRef
from busbw.diagnosis.facts import Collective, Event, Process
from busbw.reports.timeline import clock, first_failures, timeline_svg

SECOND = 1_000_000_000


def facts_of(*events: tuple[str, float | None, str, int]) -> Facts:
    """(name, seconds or None, host, rank) of each; line numbers count."""
    facts = Facts()
    for line, (name, seconds, host, rank) in enumerate(events, 1):
        facts.processes[host, rank] = Process(host, rank, {rank})
        time_ns = None if seconds is None else round(seconds * SECOND)
        at = LineRef(f"{host}.log", line, 0, host)
        facts.events[name].append(Event(name, at, f"message {line}", "warning", time_ns, host, rank))
    return facts


def told(facts: Facts) -> list[tuple[str, str]]:
    return [(row.who, row.kind) for row in first_failures(facts).rows]


def test_ranks_come_in_the_order_of_their_first_failure():
    facts = facts_of(("x", 5, "a", 2), ("x", 3, "a", 1), ("x", 9, "a", 1))
    assert told(facts) == [("rank 1", "cause"), ("rank 2", "cause")]
    assert [row.more for row in first_failures(facts).rows] == [1, 0]


def test_a_connection_that_a_peer_closed_is_an_effect_unless_there_is_a_cause_of_its_own():
    facts = facts_of(("nccl.peer_closed", 1, "a", 0), ("nccl.peer_closed", 2, "a", 1), ("nccl.cuda_failure", 3, "a", 1))
    assert told(facts) == [("rank 0", "effect"), ("rank 1", "cause")]


def test_what_is_harmless_is_no_failure():
    assert told(facts_of(("nccl.net_plugin_absent", 1, "a", 0))) == []


def test_lines_without_time_come_last():
    assert told(facts_of(("x", None, "a", 0), ("x", 9, "a", 1))) == [("rank 1", "cause"), ("rank 0", "cause")]


def test_one_clock_needs_no_caution_and_two_that_are_close_do():
    assert first_failures(facts_of(("x", 1, "a", 0), ("x", 1.1, "a", 1))).caution == ""
    close = first_failures(facts_of(("x", 1, "a", 0), ("x", 1.1, "b", 1))).caution
    assert "rank 0 leads rank 1 by 100 ms only: too little to be sure" in close
    apart = first_failures(facts_of(("x", 1, "a", 0), ("x", 61, "b", 1))).caution
    assert "by 60.0 s" in apart
    assert "too little" not in apart


def test_an_effect_on_another_host_is_no_rival_of_the_first():
    """It follows from something, whatever its clock says."""
    caution = first_failures(facts_of(("x", 1, "a", 0), ("nccl.peer_closed", 1.1, "b", 1))).caution
    assert "may differ" in caution
    assert "leads" not in caution


def test_the_first_is_a_cause_even_where_a_consequence_has_an_earlier_time():
    """Rank 1's clock is a second behind: what it reports cannot have come before its reason, and the page says so."""
    found = first_failures(facts_of(("nccl.peer_closed", 1, "b", 1), ("x", 2, "a", 0)))
    assert [row.who for row in found.rows] == ["rank 1", "rank 0"]
    assert found.first is found.rows[1]
    assert "rank 1 reports a consequence before the first cause" in found.caution
    svg = timeline_svg(found)
    assert svg is not None
    assert ">-1.0 s<" in svg


def test_consequences_do_not_push_the_cause_out_of_the_rows():
    """A hundred ranks see the connection close before, by their clocks, rank 100 says why."""
    facts = facts_of(*(("nccl.peer_closed", k, "a", k) for k in range(100)), ("x", 500, "b", 100))
    found = first_failures(facts, most=10)
    assert found.first is not None
    assert (found.first.who, len(found.rows), found.left_out) == ("rank 100", 10, 91)


def test_a_collective_that_never_completed_counts_where_the_rank_says_nothing_else():
    facts = facts_of(("x", 1, "a", 0))
    for rank in (0, 1):
        facts.collectives.append(
            Collective(
                "flight-recorder", "0", "default_pg", (), 2, rank, None, 7, "all_reduce", "nccl:all_reduce", False, 8, 2, 2, "float",
                "started", False, 2 * SECOND, None, None, LineRef("fr.json", rank + 1, 0, "f"),
            )
        )  # fmt: skip
    assert told(facts) == [("rank 0", "cause"), ("rank 1", "stuck")]


def test_the_drawing_names_the_first_and_who_came_later():
    svg = timeline_svg(first_failures(facts_of(("x", 1, "a", 0), ("x", 700, "b", 1))))
    assert svg is not None
    assert ">first<" in svg
    assert ">+11 min 39 s<" in svg
    assert "10 min" in svg


def test_a_single_failure_and_failures_without_time_are_no_drawing():
    assert timeline_svg(first_failures(facts_of(("x", 1, "a", 0)))) is None
    assert timeline_svg(first_failures(facts_of(("x", None, "a", 0), ("x", None, "b", 0)))) is None


def test_rows_beyond_the_limit_are_counted():
    facts = facts_of(*(("x", k, "a", k) for k in range(50)))
    found = first_failures(facts, most=40)
    assert (len(found.rows), found.left_out) == (40, 10)


def test_a_time_no_clock_shows_is_empty():
    assert clock(2**62) == "2116-02-20 23:53:38.427387"
    assert clock(-(2**63)) == "1677-09-21 00:12:43.145224"
    assert clock(None) == ""
