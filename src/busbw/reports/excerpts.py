"""Evidence lines with their neighbours, as a person would see them in the file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from busbw.diagnosis.findings import Evidence, LineRef
from busbw.observations import is_database, redact

__all__ = ["Excerpt", "Line", "excerpts", "visible"]

WINDOW_BYTES = 8 * 1024
"""How much of a file is read on each side of a line to find its neighbours; a longer neighbour is left out."""
MAX_CONTEXT_CHARS = 400
"""Where a neighbour is cut: it is shown for orientation only."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_HIDDEN = frozenset("\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Characters that move or hide text: zero width, line separators, bidirectional overrides."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file; `is_evidence` tells what shows the cause from what only stands beside it."""

    number: int
    text: str
    is_evidence: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of one file."""

    path: str
    lines: tuple[Line, ...]

    @property
    def first_evidence(self) -> int:
        """Number of the first line that is evidence."""
        return next(line.number for line in self.lines if line.is_evidence)


def visible(text: str) -> str:
    r"""The text with everything that a terminal would act on, or hide, written out; tabs become spaces.

    >>> visible("a\tb\x1b[31m\u202ec")
    'a       b\\x1b[31m\\u202ec'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if not _acts(c) else c.encode("unicode_escape").decode() for c in text.expandtabs(8))


def _acts(character: str) -> bool:
    return character in _HIDDEN or unicodedata.category(character) in ("Cc", "Cs")


def excerpts(
    evidence: Sequence[Evidence], lines: Sequence[LineRef], files: Mapping[str, Path], *, context: bool = True
) -> list[Excerpt]:
    """The evidence grouped by file, each line between its neighbours; lines that follow one another are one excerpt.

    files: where the bytes of an artefact are, by its hash. A neighbour that cannot be read cheaply is left out.
    """
    places = {(ref.path, ref.line): ref for ref in lines}
    by_path: dict[str, dict[int, Line]] = {}
    for item in evidence:
        found = by_path.setdefault(item.path, {})
        ref = places.get((item.path, item.line))
        file = files.get(ref.artefact) if ref is not None else None
        if context and ref is not None and file is not None:
            for number, text in _neighbours(file, ref):
                found.setdefault(number, Line(number, visible(text), False))
        found[item.line] = Line(item.line, visible(item.text), True)
    return [excerpt for path, found in by_path.items() for excerpt in _runs(path, found)]


def _runs(path: str, found: Mapping[int, Line]) -> list[Excerpt]:
    runs: list[list[Line]] = []
    for number in sorted(found):
        if runs and runs[-1][-1].number == number - 1:
            runs[-1].append(found[number])
        else:
            runs.append([found[number]])
    return [Excerpt(path, tuple(run)) for run in runs]


def _neighbours(file: Path, ref: LineRef) -> list[tuple[int, str]]:
    """Number and text of the lines before and after; secrets blanked, blank lines left out."""
    start = max(0, ref.byte_offset - WINDOW_BYTES)
    try:
        if is_database(file):
            return []
        with file.open("rb") as stream:
            stream.seek(start)
            window = redact(stream.read(ref.byte_offset - start + 2 * WINDOW_BYTES))
    except OSError:
        return []
    before, after = window[: ref.byte_offset - start], window[ref.byte_offset - start :]
    found = []
    if before.endswith(b"\n"):
        head, newline, previous = before[:-1].rpartition(b"\n")
        if newline or start == 0:
            found.append((ref.line - 1, _text(previous if newline else head + previous)))
    following = after.partition(b"\n")[2].partition(b"\n")
    if following[1] or len(after) < 2 * WINDOW_BYTES:
        found.append((ref.line + 1, _text(following[0])))
    return [(number, text) for number, text in found if text.strip()]


def _text(line: bytes) -> str:
    text = _ESCAPES.sub("", line.rstrip(b"\r").decode("utf-8", "replace")).removeprefix("\ufeff")
    return text if len(text) <= MAX_CONTEXT_CHARS else text[:MAX_CONTEXT_CHARS] + " ..."
