"""Numbers of JSON and pickles: whatever a file may hold instead of one becomes unknown."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["integer", "small_integer"]

_LARGEST = 2**62
_SMALL = 2**31


def integer(value: Any) -> int | None:
    """An integer, also one written as a string."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,19}\s*", value, re.ASCII):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_LARGEST < value < _LARGEST else None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST else None


def small_integer(value: Any) -> int | None:
    """An integer that fits into 32 bits."""
    number = integer(value)
    return number if number is not None and -_SMALL < number < _SMALL else None
