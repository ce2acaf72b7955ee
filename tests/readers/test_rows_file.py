"""Rows that busbw wrote: what is written is read, with the line it stands in; damage costs its own line only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbw.observations import rows_lines, rows_of
from busbw.readers.rows_file import READER

from .reading import read_text

ROW = {"collective": "all_reduce", "size_bytes": 8, "time_ns": 1000, "busbw_bytes_per_s": 1.5}
LABELLED = {"device": "leaf0 -> spine1", "name": "simulated.link_bytes", "value": 2.0, "labels": [("ranks_alike", "8")]}
GOOD = "".join(
    rows_lines({"by": "a test"}, [rows_of("measurements", [ROW, ROW]), rows_of("counters", [LABELLED, {"name": "x"}])])
)


def test_what_is_written_is_read():
    found = read_text(READER, GOOD)
    assert READER.sniff(GOOD.encode())
    assert [row["line"] for row in found.measurements] == [2, 3]
    assert found.measurements[0].items() >= ROW.items()
    assert found.counters[0]["labels"] == [("ranks_alike", "8")]
    assert found.measurements[1]["byte_offset"] == sum(len(line) + 1 for line in GOOD.splitlines()[:2])
    assert found.losses == []


def test_the_same_rows_are_the_same_bytes_and_no_place_is_written():
    rows = rows_of("measurements", [{**ROW, "artefact": "0" * 64, "line": 3}])
    assert list(rows_lines({}, [rows])) == list(rows_lines({}, [rows_of("measurements", [ROW])]))


def test_damage_costs_its_line_and_is_counted():
    """A cut line, no object, a text where a number belongs, a table and a column of a later version."""
    bad = [
        '{"table": "measurements", "size_b', "[1]", '{"table": "measurements", "size_bytes": "many"}',
        '{"table": "weather"}', '{"table": "measurements", "size_bytes": 9, "mood": 1}', '{"table": "losses"}',
    ]  # fmt: skip
    found = read_text(READER, GOOD + "\n".join(bad))
    assert found.loss_counts == {"damaged-row": 3, "unknown-table": 2, "unknown-column": 1}
    assert [row["size_bytes"] for row in found.measurements] == [8, 8, 9]


def test_a_line_without_end_is_not_held():
    found = read_text(READER, GOOD + '{"table": "' + "x" * (3 << 20) + "\n" + GOOD.splitlines()[1])
    assert found.loss_counts == {"damaged-row": 1}
    assert len(found.measurements) == 3


@given(st.binary(max_size=200), st.integers(0, len(GOOD)))
def test_no_bytes_break_it(noise, at):
    read_text(READER, GOOD.encode()[:at] + noise + GOOD.encode()[at:])
