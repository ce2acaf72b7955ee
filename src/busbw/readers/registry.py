"""Which readers there are: those of this package and of any other that registers under `busbw.readers`."""

from __future__ import annotations

import functools
import re
from importlib.metadata import entry_points

from busbw.errors import InputError
from busbw.readers.base import FallbackReader, FileReader, LineReader

__all__ = ["all_readers", "file_readers", "line_readers"]


@functools.cache
def all_readers() -> tuple[FileReader | LineReader, ...]:
    """Every registered reader, by name. Raises InputError naming an entry point that is no reader."""
    found: list[FileReader | LineReader] = []
    for entry in sorted(entry_points(group="busbw.readers"), key=lambda e: e.name):
        try:
            reader = entry.load()
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"reader {entry.name} of {entry.value} cannot be loaded: {error}. Reinstall or remove its package."
            ) from error
        if not isinstance(reader, FileReader | LineReader):
            raise InputError(
                f"reader {entry.name} of {entry.value} is neither a FileReader nor a LineReader. Remove its package."
            )
        if isinstance(reader, LineReader) and reader.signature and _tells_digits_apart(reader.signature):
            raise InputError(
                f"reader {entry.name} of {entry.value} has a signature that tells digits apart: {reader.signature.pattern}. "
                "It sees lines in which every digit is 0; write \\d for each."
            )
        found.append(reader)
    return tuple(found)


_NO_DIGITS = re.compile(r"\{\d*,?\d*\}|\\[dD]|0-\d|\\\d")
"""Digits of a regular expression that stand for no digit of a text: counts and references; and ranges that begin with 0."""


def _tells_digits_apart(signature: re.Pattern[str]) -> bool:
    return re.search("[1-9]", _NO_DIGITS.sub("", signature.pattern)) is not None


def file_readers() -> tuple[FileReader, ...]:
    """Readers of whole documents."""
    return tuple(r for r in all_readers() if isinstance(r, FileReader))


def line_readers() -> tuple[LineReader, ...]:
    """Readers of lines; those that know single messages of any program come last, so that a line goes to what knows it best."""
    readers = [r for r in all_readers() if isinstance(r, LineReader)]
    return tuple(sorted(readers, key=lambda r: isinstance(r, FallbackReader)))
