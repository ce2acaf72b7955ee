"""Bytes, seconds and rates: parsing what tools print and printing what people read. Conversion happens here, once."""

from __future__ import annotations

import re

__all__ = ["GB", "GBIT", "format_bytes", "format_rate", "format_time_ns", "parse_size"]

GB = 1e9
"""Bytes in a gigabyte as the field prints rates, GB/s."""
GBIT = 1e9 / 8
"""Bytes in a gigabit: link rates are printed in Gb/s."""

_SUFFIX = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size as benchmarks take it; K, M, G, T are powers of two, as in nccl-tests' -b.

    Raises ValueError for anything else.

    >>> parse_size("64M"), parse_size("1GiB"), parse_size("512")
    (67108864, 1073741824, 512)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write bytes, or a number with K, M, G or T, such as 64M")
    return int(float(match[1]) * _SUFFIX[match[2].lower()])


def format_bytes(size_bytes: int) -> str:
    """A size with the largest power of two that divides it well.

    >>> format_bytes(8), format_bytes(8 * 2**20), format_bytes(1536)
    ('8 B', '8 MiB', '1.5 KiB')
    """
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5:  # what rounds up to 1024 takes the next unit
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def format_rate(bytes_per_s: float) -> str:
    """A rate in the field's GB/s (1e9 bytes/s), three significant digits.

    >>> format_rate(48.36e9), format_rate(480.2e9), format_rate(0.05e9)
    ('48.4 GB/s', '480 GB/s', '0.05 GB/s')
    """
    value = bytes_per_s / GB
    return f"{value:.0f} GB/s" if value >= 100 else f"{value:.3g} GB/s"


def format_time_ns(time_ns: float) -> str:
    """A duration with three significant digits and the unit that fits.

    >>> format_time_ns(12_340), format_time_ns(5_620_000), format_time_ns(850)
    ('12.3 us', '5.62 ms', '850 ns')
    """
    for scale, unit in ((1.0, "ns"), (1e3, "us"), (1e6, "ms")):
        if time_ns < 999.5 * scale:  # what rounds up to 1000 takes the next unit
            return f"{time_ns / scale:.3g} {unit}"
    return f"{time_ns / 1e9:.3g} s"
