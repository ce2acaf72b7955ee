"""Slurm's host lists: n[1-3,7],r[1-2]n[01-04] and back to names."""

from __future__ import annotations

import re

__all__ = ["expand_hostlist", "natural_order"]

MAX_HOSTS = 1_048_576
"""Most names one list may hold. A guess: ten times the largest machines."""


def expand_hostlist(text: str) -> list[str]:
    """The names a host list holds, in its order. Zeros in front are kept.

    Raises ValueError for brackets that do not close, ranges that run backwards, or more than MAX_HOSTS names.

    >>> expand_hostlist("r[1-2]n[01-02],login")
    ['r1n01', 'r1n02', 'r2n01', 'r2n02', 'login']
    """
    names: list[str] = []
    for part in _parts(text):
        expanded = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            ends = [literal] if literal else _numbers(ranges, part)
            if len(expanded) * len(ends) > MAX_HOSTS:
                raise ValueError(f"{part[:60]!r} holds more than {MAX_HOSTS} names")
            expanded = [start + end for start in expanded for end in ends]
        names += expanded
        if len(names) > MAX_HOSTS:
            raise ValueError(f"a host list of more than {MAX_HOSTS} names")
    return names


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts n2 before n10.

    >>> sorted(["n10", "n2"], key=natural_order)
    ['n2', 'n10']
    """
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts]


def _parts(text: str) -> list[str]:
    """The list split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text[:60]!r}: brackets do not match")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f"{text[:60]!r}: a bracket is not closed")
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _numbers(ranges: str, part: str) -> list[str]:
    found: list[str] = []
    for each in ranges.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", each)
        if match is None:
            raise ValueError(f"{part[:60]!r}: {each!r} is no number and no range")
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise ValueError(f"{part[:60]!r}: the range {each} runs backwards")
        if high - low >= MAX_HOSTS:
            raise ValueError(f"{part[:60]!r} holds more than {MAX_HOSTS} names")
        width = len(match.group(1))
        found += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return found
