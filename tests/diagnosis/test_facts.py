"""What is kept of inputs that say too much: enough for the rules, bounded, and the rest is counted in sight of the user."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from busbw.diagnosis import Facts
from busbw.diagnosis.facts import builder, room
from busbw.observations import Artefact, rows_of

from .told import Row, kinds_of, row, told

ENVIRONMENT = "cn31:{pid}:{pid} [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to {value}\n"
UNKNOWN = "cn31:{pid}:{pid} [0] nobody.cc:1 NCCL WARN Nobody knows this message {pid}\n"
OUT_OF_MEMORY = "cn31:2214:2290 [5] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 10485760 bytes\n"


def _losses(explanation):
    return [(loss.line, loss.count) for loss in explanation.diagnosis.losses if loss.kind == "summarised"]


def test_settings_that_a_host_repeats_are_counted_beyond_a_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "MAX_LIKE_SETTINGS", 3)
    explanation = told("".join(ENVIRONMENT.format(pid=pid, value=22) for pid in range(1, 11)))
    assert len(explanation.facts.settings) == 3
    assert _losses(explanation) == [(4, 7)]


def test_a_value_of_its_own_is_kept_after_many_that_are_alike(monkeypatch: pytest.MonkeyPatch):
    """Two hosts repeat their value; the one process that differs comes last on a third host and is still compared."""
    monkeypatch.setattr(builder, "MAX_LIKE_SETTINGS", 2)
    alike = "".join(ENVIRONMENT.format(pid=pid, value=22) for pid in range(1, 11))
    odd = ENVIRONMENT.format(pid=1, value=14).replace("cn31", "cn33")
    assert kinds_of(told(alike + alike.replace("cn31", "cn32") + odd)) == ["env-mismatch-between-ranks"]


def test_processes_beyond_a_number_are_not_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "MAX_PROCESSES", 4)
    explanation = told("".join(ENVIRONMENT.format(pid=pid, value=22) for pid in range(1, 11)))
    assert len(explanation.facts.processes) == 4
    assert _losses(explanation) == [(5, 6)]


def test_when_memory_is_full_a_cause_that_comes_late_is_still_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_FACTS_BYTES", 20_000)
    explanation = told("".join(UNKNOWN.format(pid=pid) for pid in range(1, 501)) + OUT_OF_MEMORY)
    assert len(explanation.facts.unknown_warnings) == room.ALWAYS_KEPT
    assert _losses(explanation) == [(room.ALWAYS_KEPT + 1, 500 - room.ALWAYS_KEPT)]
    assert kinds_of(explanation)[0] == "gpu-oom"


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("cn31:7:7 [0] NCCL INFO Channel 00/0 : {i}[0] -> 1[0] [send] via NET/IB/{i}/GDRDMA\n", "links"),
        ("cn31:7:7 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_{i}\n", "settings"),
        ("cn31:7:7 [0] nobody.cc:1 NCCL WARN Nobody knows {i}\n", "unknown_warnings"),
    ],
)
def test_no_kind_of_fact_outgrows_memory(monkeypatch: pytest.MonkeyPatch, line: str, of: str):
    """And nothing is left out in silence: what is kept and what was counted are all lines."""
    monkeypatch.setattr(room, "MAX_FACTS_BYTES", 0)
    explanation = told("".join(line.format(i=i) for i in range(300)))
    assert len(getattr(explanation.facts, of)) == room.ALWAYS_KEPT
    assert sum(count for _, count in _losses(explanation)) == 300 - room.ALWAYS_KEPT


def test_facts_hold_no_secret():
    """They end up in summaries of findings and in the table of ranks."""
    explanation = told("export NCCL_NET_PLUGIN=http://user:hunter2pass@host/x\n")
    (setting,) = explanation.facts.setting("NCCL_NET_PLUGIN")
    assert setting.value == "http://****************@host/x"


def test_tables_of_different_tools_in_one_file_are_different_curves():
    """Each reader counts the tables of its own format from 0."""
    fixtures = Path(__file__).parents[1] / "readers" / "fixtures"
    text = "".join(
        (fixtures / name).read_text() for name in ("perftest/write_bw_cpu_util.txt", "rccl_tests/mi300x.txt")
    )
    curves = told(text).facts.curves
    assert sorted((curve.tool, curve.collective, len(curve.points)) for curve in curves) == [
        ("perftest", None, 1),
        ("rccl-tests", "all_reduce", 2),
    ]


def _calls(ranks: int, calls: int) -> list[Row]:
    """Collectives of one group, rank after rank."""
    return [
        row("collectives", source="flight-recorder", process_group="0", rank=rank, seq=seq, op="all_reduce", members=list(range(ranks)))
        for rank in range(ranks)
        for seq in range(1, calls + 1)
    ]  # fmt: skip


def _kept_of(rows: list[Row]) -> tuple[dict[int | None, list[int]], list[int], Facts]:
    """Sequence numbers by rank, counts of losses, and the facts."""
    made = builder.FactsBuilder()
    made.announce(Artefact("a" * 64, "dump", Path("dump"), 0))
    place = {"artefact": "a" * 64, "line": 1, "byte_offset": 0}
    for one in rows:
        made.add(rows_of(one.table, [{**place, **one.columns}]))
    facts, seen = made.build(), defaultdict(list)
    for call in facts.collectives:
        seen[call.rank].append(call.seq)
    return dict(seen), [loss.count for loss in made.losses], facts


def test_of_very_many_collectives_every_rank_keeps_its_last(monkeypatch: pytest.MonkeyPatch):
    """Ten ranks with 100 calls and room for 200: each keeps equally many, none is left out, and 1,000 calls are kept or counted."""
    monkeypatch.setattr(builder, "MAX_COLLECTIVES", 200)
    seen, losses, _ = _kept_of(_calls(10, 100))
    assert {len(calls) for calls in seen.values()} == {len(seen[0])}
    assert all(calls[-1] == 100 for calls in seen.values()) and len(seen) == 10
    kept = sum(len(calls) for calls in seen.values())
    assert builder.FEWEST_COLLECTIVES_A_GROUP * 10 <= kept <= 200
    assert sum(losses) == 1000 - kept


def test_ranks_that_are_not_compared_are_said_to_be(monkeypatch: pytest.MonkeyPatch):
    """They are not missing; whoever says that members left no dump must know."""
    monkeypatch.setattr(builder, "MAX_RANKS_IN_GROUPS", 3)
    seen, losses, facts = _kept_of(_calls(5, 4))
    assert (sorted(seen), losses, facts.ranks_left_out) == ([0, 1, 2], [8], 2)


def test_progress_beyond_a_number_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "MAX_PROGRESS", 3)
    rows = [row("collective_progress", source="ncclras", process_group="0x1", rank=rank, op="all_reduce", last_enqueued=7) for rank in range(5)]  # fmt: skip
    _, losses, facts = _kept_of(rows)
    assert (len(facts.progress), losses) == (3, [2])


def test_lists_of_members_are_kept_once():
    """A dump of 1,000 ranks names all of them in every call."""
    _, _, facts = _kept_of(_calls(3, 4))
    assert len({id(call.members) for call in facts.collectives}) == 1


def test_of_a_series_the_first_and_the_last_reading_are_kept():
    """A monitor reads a counter every second for hours."""
    rows = [row("counters", host="cn31", device="mlx5_0", name="link_downed", value=float(i), time_ns=i) for i in range(500)]  # fmt: skip
    _, losses, facts = _kept_of(rows)
    ((growth,), (last,)) = facts.growths, facts.counters
    assert (growth.first.value, growth.last.value, last.value, losses) == (0.0, 499.0, 499.0, [])
