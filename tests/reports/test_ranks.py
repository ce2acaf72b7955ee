"""The ranks side by side: what is compared, what is marked."""

from __future__ import annotations

from busbw.diagnosis import Facts, LineRef
from busbw.diagnosis.facts import LinkGroup, Process, Setting
from busbw.reports.ranks import rank_table

AT = LineRef("log", 1, 0, "a")


def facts_of(*vias: str) -> Facts:
    """One process a `via`, rank k on host k."""
    facts = Facts()
    for k, via in enumerate(vias):
        facts.processes[f"h{k}", 7] = Process(f"h{k}", 7, {k}, {0})
        facts.links.append(LinkGroup(f"h{k}", 7, 0, "send", via, AT, 2 + k, k, 0))
    return facts


def marked(facts: Facts) -> list[tuple[int, str]]:
    """(row, column) of every marked cell."""
    table = rank_table(facts)
    return [
        (r, c) for r, row in enumerate(table.rows) for c, cell in zip(table.columns, row, strict=True) if cell.differs
    ]


def test_the_rank_without_gpudirect_is_marked():
    """Three of four can; numbers of connections differ and are not compared."""
    assert marked(facts_of(*["NET/IB/0/GDRDMA"] * 3, "NET/IB/0")) == [(3, "GPUDirect")]


def test_without_a_majority_every_side_is_marked():
    assert marked(facts_of("NET/IB/0/GDRDMA", "NET/IB/0")) == [(0, "GPUDirect"), (1, "GPUDirect")]


def test_sockets_have_no_gpudirect_to_compare():
    table = rank_table(facts_of("NET/Socket/0", "NET/Socket/0"))
    assert "GPUDirect" not in table.columns


def test_only_settings_that_differ_are_columns():
    facts = facts_of("P2P/IPC", "P2P/IPC", "P2P/IPC")
    for k in range(3):
        facts.settings.append(Setting("NCCL_DEBUG", "INFO", "environment", AT, f"h{k}", 7))
    facts.settings.append(Setting("NCCL_P2P_DISABLE", "1", "environment", AT, "h1", 7))
    table = rank_table(facts)
    assert table.columns[-1] == "NCCL_P2P_DISABLE"
    assert "NCCL_DEBUG" not in table.columns
    assert [row[-1].text for row in table.rows] == ["not set", "1", "not set"]


def test_rows_beyond_the_limit_are_counted_and_those_that_differ_stay():
    """Of ten processes the last one differs; four rows are drawn, in the order of ranks."""
    table = rank_table(facts_of(*["NET/IB/0/GDRDMA"] * 9, "NET/IB/0"), most=4)
    assert [row[0].text for row in table.rows] == ["0", "1", "2", "9"]
    assert table.left_out == 6
