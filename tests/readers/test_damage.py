"""Laws of every reader of a tool's output: what is cut, mixed with other lines or damaged is counted, and nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.base import FileReader
from busbw.readers.registry import all_readers

from .reading import FIXTURES, read_text

FILES = sorted(f for f in FIXTURES.glob("*/*") if f.is_file() and f.suffix in (".txt", ".csv", ".json"))
READERS = {reader.name: reader for reader in all_readers()}
OF_FOLDER = {
    "perftest": "perftest", "nvbandwidth": "nvbandwidth", "nvshmem_perftest": "nvshmem-perftest", "nvshmem_log": "nvshmem-log",
    "nixlbench": "nixlbench", "ucx_perftest": "ucx-perftest", "imb": "imb", "deepep": "deepep", "osu": "osu",
    "torch_all_reduce_bench": "torch-all-reduce-bench",
}  # fmt: skip
TABLES = ("measurements", "pairs", "devices")
OTHERS = (
    "host1:4242:4250 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.1<0>",
    "[1796022754.76] [host0:1:0] ucp_context.c:434  UCX  WARN  transport 'cma' is not available",
    "",
)


def reader_of(file: Path) -> Any:
    """The reader that this file is an example for."""
    if file.suffix == ".json":
        documents = [r for r in READERS.values() if isinstance(r, FileReader) and r.sniff(file.read_bytes()[:65536])]
        return documents[0]
    if file.parent.name == "rccl_tests":
        return READERS["rccl-tests-csv" if file.suffix == ".csv" else "nccl-tests"]
    return READERS.get(OF_FOLDER.get(file.parent.name, ""))


OURS = [file for file in FILES if file.parent.name in OF_FOLDER or file.parent.name == "rccl_tests"]
LINES = [file for file in OURS if file.suffix != ".json"]


def rows(found: Any, *without: str) -> list[tuple[str, tuple[tuple[str, Any], ...]]]:
    """All rows of all tables, comparable, without some columns."""
    listed = []
    for table in TABLES:
        for row in found.tables.get(table, []):
            listed.append((table, tuple(sorted((k, repr(v)) for k, v in row.items() if k not in without))))
    return listed


def name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


@pytest.mark.parametrize("file", LINES, ids=name)
def test_a_file_cut_at_a_line_has_the_rows_of_its_lines(file: Path):
    """Devices apart: a header may end after them. IMB, ucx_perftest and a batch may learn a unit or a size from lines after a row."""
    lines = file.read_text().splitlines(keepends=True)
    reader = reader_of(file)
    whole = read_text(reader, "".join(lines))
    for end in range(len(lines) + 1):
        part = read_text(reader, "".join(lines[:end]))
        for table in ("measurements", "pairs"):
            expected = [row for row in whole.tables.get(table, []) if row["line"] <= end]
            assert part.tables.get(table, []) == expected


@pytest.mark.parametrize("file", LINES, ids=name)
def test_a_row_cut_within_is_left_out_and_counted_or_has_all_that_is_kept(file: Path):
    lines = file.read_text().splitlines(keepends=True)
    reader = reader_of(file)
    whole = read_text(reader, "".join(lines))
    wanted = {row["line"] for table in ("measurements", "pairs") for row in whole.tables.get(table, [])}
    for number in sorted(wanted)[:3]:
        before, line = "".join(lines[: number - 1]), lines[number - 1].rstrip("\n")
        known = [row for row in rows(whole, "byte_offset") if dict(row[1])["line"] == str(number)]
        clean = read_text(reader, before).loss_counts
        for end in range(1, len(line)):
            part = read_text(reader, before + line[:end])
            got = [
                row for row in rows(part, "byte_offset") if dict(row[1])["line"] == str(number) and row[0] != "devices"
            ]
            assert all(row in known for row in got), line[:end]
            figures = line[:end].split()
            if len(got) < len(known) and len(figures) >= 4 and part.loss_counts == clean:
                assert file.parent.name in ("deepep", "rccl_tests"), line[:end]


@pytest.mark.parametrize("file", LINES, ids=name)
def test_line_ends_of_windows_change_nothing(file: Path):
    reader = reader_of(file)
    text = file.read_text()
    assert rows(read_text(reader, text.replace("\n", "\r\n")), "byte_offset") == rows(
        read_text(reader, text), "byte_offset"
    )


@pytest.mark.parametrize("file", LINES, ids=name)
def test_lines_of_other_programs_between_rows_change_nothing(file: Path):
    """nccl-tests tables hold NCCL's log lines, and so may any other."""
    reader = reader_of(file)
    lines = file.read_text().splitlines()
    mixed = "".join(f"{line}\n{OTHERS[i % len(OTHERS)]}\n" for i, line in enumerate(lines))
    without = ("line", "byte_offset", "host")  # nvbandwidth takes the line before its GPUs for the host
    assert rows(read_text(reader, mixed), *without) == rows(read_text(reader, file.read_text()), *without)


@pytest.mark.parametrize("file", LINES, ids=name)
def test_a_damaged_cell_costs_its_row_and_is_counted(file: Path):
    """The last figure but one of a row becomes garbage: no other row changes, and the row is left out and counted or keeps true values."""
    reader = reader_of(file)
    lines = file.read_text().splitlines(keepends=True)
    whole = read_text(reader, "".join(lines))
    wanted = sorted({row["line"] for table in ("measurements", "pairs") for row in whole.tables.get(table, [])})
    for number in wanted[:4]:
        figures = list(re.finditer(r"\d+\.\d+", lines[number - 1]))
        if len(figures) < 3:
            continue
        at = figures[-2]
        line = lines[number - 1][: at.start()] + "#@!" + lines[number - 1][at.end() :]
        damaged = read_text(reader, "".join([*lines[: number - 1], line, *lines[number:]]))
        others = [r for r in rows(whole, "byte_offset", "table_index") if dict(r[1])["line"] != str(number)]
        assert [r for r in rows(damaged, "byte_offset", "table_index") if dict(r[1])["line"] != str(number)] == others
        lost = len(rows(whole)) - len(rows(damaged))
        assert lost == 0 or file.parent.name in ("deepep",) or damaged.loss_counts != whole.loss_counts, line


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_nothing_that_happens_to_a_file_raises(data: st.DataObject):
    file = data.draw(st.sampled_from(OURS))
    reader = reader_of(file)
    text = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, max(0, len(text) - 1)))
        put = data.draw(
            st.binary(max_size=6)
            | st.sampled_from([b"\n", b"9" * 30, b"9" * 5000, b"nan", b"|", b"[" * 3000, b'"', b": "])
        )
        text[at : at + data.draw(st.integers(0, 4))] = put
    if not isinstance(reader, FileReader) or reader.sniff(bytes(text[:65536])):
        read_text(reader, bytes(text))
