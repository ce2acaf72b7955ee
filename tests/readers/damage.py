"""What happens to an output on its way here, for the tests of readers: cut, Windows line ends, other lines in between, one line garbled."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from .reading import Found

FIXTURES = Path(__file__).parent / "fixtures"
FOREIGN = "step 12 loss 0.4"
"""A line of a training script, which no reader knows."""


def fixture(name: str) -> str:
    """A recorded output; fixtures/README.md says where it comes from."""
    file = FIXTURES / name
    return gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()


def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that say where their line stands."""
    return [{name: value for name, value in row.items() if name not in ("line", "byte_offset")} for row in rows]


def contents(found: Found) -> dict[str, list[dict[str, Any]]]:
    """All tables but events, without places."""
    return {table: without_places(rows) for table, rows in found.tables.items() if table != "events"}


def interleaved(text: str) -> str:
    """The same with two foreign lines behind each."""
    return "".join(f"{line}\n{FOREIGN}\n{FOREIGN}\n" for line in text.splitlines())


def cuts(text: str) -> Iterator[str]:
    """The text after each of its lines."""
    lines = text.splitlines(keepends=True)
    return ("".join(lines[:n]) for n in range(len(lines)))


@st.composite
def mutations(draw: st.DrawFn, texts: list[str]) -> bytes:
    """One of the texts after up to twelve accidents."""
    text = bytearray(draw(st.sampled_from(texts)).encode())
    for _ in range(draw(st.integers(1, 12))):
        at = draw(st.integers(0, max(len(text) - 1, 0)))
        put = draw(
            st.binary(max_size=6) | st.sampled_from([b"\n", b"9" * 30, b"1e999", b" " * 300, b"-", b"0x", b"[", b": "])
        )
        text[at : at + draw(st.integers(0, 4))] = put
    return bytes(text)
