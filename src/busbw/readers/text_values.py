"""Numbers of printed tables, of which what is no finite number becomes unknown."""

from __future__ import annotations

import math
import re

__all__ = ["FIGURE", "finite", "nanoseconds"]

FIGURE = re.compile(r"[-+]?(?:\d{1,18}(?:\.\d{1,12})?(?:e[-+]?\d{1,2})?|inf|nan)", re.ASCII | re.IGNORECASE)
"""A number as C and C++ print it."""

_LONGEST_NS = 2**62


def finite(token: str | None) -> float | None:
    """A finite number; None for nan, inf and what is no number.

    >>> finite("12.5"), finite("-nan"), finite(None)
    (12.5, None, None)
    """
    if token is None or FIGURE.fullmatch(token) is None:
        return None
    value = float(token)
    return value if math.isfinite(value) else None


def nanoseconds(token: str | None, ns_per_unit: float = 1e3) -> int | None:
    """A printed duration in nanoseconds, by default from microseconds; None if it is unknown, negative or absurd.

    >>> nanoseconds("2.289"), nanoseconds("-3.00"), nanoseconds("1.5", 1e6)
    (2289, None, 1500000)
    """
    value = finite(token)
    return round(value * ns_per_unit) if value is not None and 0 <= value * ns_per_unit < _LONGEST_NS else None
