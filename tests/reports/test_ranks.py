"""The ranks side by side: what is compared, what is marked."""

from __future__ import annotations

from busbw.diagnosis import Facts, LineRef
from busbw.diagnosis.facts import LinkGroup, Process, Progress, Setting
from busbw.reports.ranks import host_table, number_ranges, rank_table
from busbw.reports.timeline import Timeline

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


def test_thousands_of_ranks_are_a_few_rows_the_odd_ones_first():
    """2,000 ranks of which 7 and 1,900 lack GPUDirect: two rows."""
    facts = facts_of(*("NET/IB/0" if k in (7, 1900) else "NET/IB/0/GDRDMA" for k in range(2000)))
    table = rank_table(facts)
    assert (table.grouped, table.of, table.left_out) == (True, 2000, 0)
    assert [row[0].text for row in table.rows] == ["7, 1900", "0-6, 8-1899, 1901-1999"]
    assert [row[1].text for row in table.rows] == ["h7, h1900", "h0 and 1997 more"]
    assert [any(cell.differs for cell in row) for row in table.rows] == [True, False]


def test_the_rank_that_is_behind_is_marked():
    """Flight Recorder: three of four have enqueued collective 77, rank 2 has stopped at 76. No log names a process."""
    facts = Facts()
    for rank in range(4):
        behind = rank == 2
        facts.progress.append(
            Progress(
                "flight-recorder",
                "default_pg",
                None,
                4,
                rank,
                None,
                None,
                76 if behind else 77,
                75 if behind else 76,
                AT,
            )
        )
    table = rank_table(facts)
    assert table.columns == ("rank", "progress of default_pg")
    assert [(row[0].text, row[1].text, row[1].differs) for row in table.rows] == [
        ("0", "77 / 76", False), ("1", "77 / 76", False), ("2", "76 / 75", True), ("3", "77 / 76", False),
    ]  # fmt: skip


def test_progress_stands_in_the_row_of_the_process_that_has_the_rank():
    facts = facts_of("NET/IB/0", "NET/IB/0")
    facts.progress.append(Progress("ras", "0", None, 2, 1, None, None, 5, 5, AT))
    table = rank_table(facts)
    assert [row[-1].text for row in table.rows] == ["", "5 / 5"]


def test_a_host_that_leaves_a_nic_idle_is_marked():
    """Hosts 0 to 2 use NICs 0 and 1, host 3 only NIC 0."""
    facts = Facts()
    for h in range(4):
        for nic in range(1 if h == 3 else 2):
            facts.processes[f"h{h}", nic] = Process(f"h{h}", nic, {2 * h + nic}, {nic})
            facts.links.append(LinkGroup(f"h{h}", nic, nic, "send", f"NET/IB/{nic}/GDRDMA", AT, 4, 2 * h + nic, 0))
    table = host_table(facts, Timeline((), 0, ""))
    assert table.columns == ("host", "ranks", "processes", "connections", "NIC IB/0", "NIC IB/1")
    assert [cell.text for cell in table.rows[3]] == ["h3", "6", "1", "NET 4", "GDR", "unused"]
    assert table.rows[3][-1].differs


def test_many_runs_of_numbers_end_in_their_count():
    assert number_ranges(range(0, 100, 2)).endswith("... (50 in all)")
