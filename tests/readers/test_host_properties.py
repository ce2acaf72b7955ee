"""Laws that hold for every reader of a host tool, on all its fixtures: cut, mixed, damaged, or with another system's line ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers import all_readers
from busbw.readers.base import FileReader, LineReader

from .host_fixtures import READERS, readers_of, text_of
from .reading import Found, read_text

PAIRS = [
    pytest.param(reader, name, id=f"{reader.name}-{name}")
    for module, names in READERS.items()
    for reader in readers_of(module)
    for name in names
]
_FOREIGN = (
    "host0:42:43 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "2026-01-02 03:04:05,678 INFO trainer: step 1 loss 0.5",
)


def _content(found: Found) -> dict[str, list[dict[str, Any]]]:
    """Rows without their places, in order of their lines; events of other readers are not there."""
    return {
        table: sorted(({k: v for k, v in row.items() if k not in ("line", "byte_offset")} for row in rows), key=repr)
        for table, rows in found.tables.items()
        if table != "links"
    }


def test_every_reader_is_registered():
    known = {id(reader) for reader in all_readers()}
    assert all(id(reader) in known for module in READERS for reader in readers_of(module))


@pytest.mark.parametrize(("reader", "name"), PAIRS)
def test_something_is_found(reader: LineReader | FileReader, name: str):
    """Except by the twin of a reader that takes whole files, which leaves unannounced samples without labels alone."""
    found = read_text(reader, text_of(name))
    assert found.tables


@pytest.mark.parametrize(("reader", "name"), PAIRS)
def test_line_ends_of_another_system_change_nothing(reader: LineReader | FileReader, name: str):
    text = text_of(name)
    unix, other = read_text(reader, text), read_text(reader, text.replace("\n", "\r\n"))
    assert _content(other) == _content(unix)
    assert other.loss_counts == unix.loss_counts


@pytest.mark.parametrize(("reader", "name"), PAIRS)
def test_a_file_cut_behind_any_line_gives_the_first_lines_rows(reader: LineReader | FileReader, name: str):
    """Every row of the part is a row of the whole by table and line; only attributes that came later may lack."""
    lines = text_of(name).splitlines(keepends=True)
    step = max(1, len(lines) // 60)
    whole = read_text(reader, "".join(lines))
    places = {(table, row["line"]) for table, rows in whole.tables.items() for row in rows}
    for end in range(0, len(lines) + 1, step):
        part = read_text(reader, "".join(lines[:end]))
        assert {(table, row["line"]) for table, rows in part.tables.items() for row in rows} <= places


@pytest.mark.parametrize(("reader", "name"), PAIRS)
def test_lines_of_other_programs_between_its_own_change_nothing(reader: LineReader | FileReader, name: str):
    """Line readers only: a whole file with such lines in it is no scrape any more, and goes to the reader of lines."""
    if not isinstance(reader, LineReader):
        pytest.skip("reads whole files")
    lines = text_of(name).splitlines()
    mixed = [part for i, line in enumerate(lines) for part in (line, _FOREIGN[i % 2])]
    alone, among = read_text(reader, "\n".join(lines) + "\n"), read_text(reader, "\n".join(mixed) + "\n")
    events = [
        row for row in among.events if row.get("text") not in _FOREIGN and not row.get("text", "").startswith("Channel")
    ]
    among.tables["events"] = events
    if not events:
        del among.tables["events"]
    assert _content(among) == _content(alone)


@pytest.mark.parametrize("module", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_raises_and_lines_stay_in_the_file(module: str, data: st.DataObject):
    reader = data.draw(st.sampled_from(readers_of(module)))
    text = bytearray(text_of(data.draw(st.sampled_from(READERS[module]))).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(
            st.binary(max_size=6)
            | st.sampled_from([b"\n", b"9" * 30, b" " * 300, b"{" * 40, b'"', b"\\", b"nan", b"\t|"])
        )
        text[at : at + data.draw(st.integers(0, 6))] = put
    found = read_text(reader, bytes(text))
    count = bytes(text).count(b"\n") + 1
    assert all(1 <= row["line"] <= count for rows in found.tables.values() for row in rows)
    assert all(loss.line is None or 1 <= loss.line <= count for loss in found.losses)
