"""The table of docs/exchange.md says what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.design.exchange import TARGETS, row

from busbw.collectives.algorithms import LIBRARY

PAGE = Path(__file__).parents[2] / "docs" / "exchange.md"


def told() -> tuple[dict[str, list[str]], dict[str, str]]:
    """(cells of each schedule, reasons by letter) of the page."""
    text = PAGE.read_text(encoding="utf-8")
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| "))}  # fmt: skip
    return rows, dict(re.findall(r"^- \((.)\) (.*)$", text, re.MULTILINE))


def test_every_schedule_of_the_library_is_listed_with_every_target():
    rows, reasons = told()
    assert tuple(rows.pop("schedule")) == TARGETS and set(rows) == set(LIBRARY)
    for cells in rows.values():
        assert all(cell == "yes" or (re.fullmatch(r"no \(.\)", cell) and cell[4] in reasons) for cell in cells)


def test_a_schedule_that_no_foreign_format_holds_needs_sums_in_the_switch_that_are_not_stored_there():
    rows, _ = told()
    del rows["schedule"]
    nowhere = {name for name, cells in rows.items() if "yes" not in cells[:-1]}
    assert nowhere == {"nvls_reduce_scatter", "hierarchical_all_reduce_sharp"}


@pytest.mark.parametrize(
    "name", ["ring_reduce_scatter", "nvls_reduce_scatter", "dissemination_barrier", "binomial_gather"]
)
def test_rows_are_what_the_formats_say(name):
    rows, reasons = told()
    assert [cell if cell == "yes" else reasons[cell[4]] for cell in rows[name]] == row(name)
