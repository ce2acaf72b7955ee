"""Texts of evidence lines, fetched from the files when they are to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from busbw.diagnosis.findings import UNKNOWN_OFFSET, Evidence, LineRef
from busbw.observations import Artefact, is_database, redact_text
from busbw.readers import database_row_text

__all__ = ["EvidenceTexts"]

LONGEST = 600
"""Characters of a line that are shown; longer ones end in an ellipsis."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class EvidenceTexts:
    """Reads lines of artefacts by byte offset, cleaned: no escape or control characters, no secrets, bounded length."""

    def __init__(self, artefacts: Sequence[Artefact]) -> None:
        self._files = {a.sha256: a.file for a in artefacts}
        self._databases: dict[str, bool] = {}

    def of(self, lines: Iterable[LineRef]) -> tuple[Evidence, ...]:
        """The evidence at these lines; a file that has vanished gives its place without text."""
        return tuple(Evidence(ref.path, ref.line, self._text(ref)) for ref in lines)

    def _is_database(self, artefact: str) -> bool:
        if artefact not in self._databases:
            self._databases[artefact] = is_database(self._files[artefact])
        return self._databases[artefact]

    def _text(self, ref: LineRef) -> str:
        try:
            if self._is_database(ref.artefact):
                return clean_text(database_row_text(self._files[ref.artefact], ref.line, ref.byte_offset))
            with self._files[ref.artefact].open("rb") as stream:
                if ref.byte_offset == UNKNOWN_OFFSET:
                    for _ in range(ref.line - 1):
                        stream.readline()
                else:
                    stream.seek(ref.byte_offset)
                raw = stream.readline(8 * LONGEST)
        except (KeyError, OSError):
            return ""
        return clean_text(raw.decode("utf-8", "replace"))


def clean_text(text: str) -> str:
    """One line as it may be shown: no byte order mark, line break, escape sequence, control or direction character, secret; at most LONGEST characters."""
    text = text.removeprefix("\ufeff").rstrip("\r\n")
    text = text.rsplit("\r", 1)[-1]
    text = _CONTROL.sub("", _ESCAPES.sub("", text))
    text = redact_text(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
