"""A list of what to measure: from a YAML file, or the built-in one of every collective and every kind of message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from busbw.collectives import collective_named
from busbw.errors import InputError
from busbw.measuring.request import COLLECTIVES, POINT_TO_POINT, Request

__all__ = ["built_in", "suite_from"]

_SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Latency, the step to bandwidth, and bandwidth."""
_MESSAGE_SIZES = (8, 4 << 10, 1 << 20)
_KEYS = frozenset({
    "collective", "bytes", "ranks", "backend", "dtype", "op", "root", "in_place", "iterations", "window", "warm_up",
})  # fmt: skip
_MOST_BYTES = 1 << 20
_MOST_CELLS = 10_000


def built_in(usual: Request) -> list[Request]:
    """Every collective and kind of message, with the ranks, back end, type and precision of a request."""
    names = [name for name in (*COLLECTIVES, *POINT_TO_POINT) if name not in POINT_TO_POINT or usual.ranks > 1]
    return [replace(usual, collective=name, sizes_bytes=_sizes(name)) for name in names]


def _sizes(name: str) -> tuple[int, ...]:
    return (0,) if name == "barrier" else _MESSAGE_SIZES if name in POINT_TO_POINT else _SIZES


def suite_from(path: Path, usual: Request, sizes_of: Callable[[Iterable[str]], Iterable[int]]) -> list[Request]:
    """The requests of a file: a list, or `cells:` a list, of mappings; what an entry leaves out is as in `usual`.

    Keys: collective, bytes (a size, a range, or a list of them), ranks, backend, dtype, op, root, in_place, iterations, warm_up, window.
    Raises InputError, with the number of the entry.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: is larger than a suite ever is ({_MOST_BYTES >> 20} MiB).")
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is no YAML: {' '.join(str(error).split())[:200]}") from None
    cells = told.get("cells") if isinstance(told, dict) else told
    if not isinstance(cells, list) or not cells or len(cells) > _MOST_CELLS:
        raise InputError(
            f"{path}: holds no list of cells. Write `- {{collective: all-reduce, bytes: 8:1MiB:2}}`, a line each."
        )
    return [_request(f"{path}: cell {number}", cell, usual, sizes_of) for number, cell in enumerate(cells, 1)]


def _request(where: str, cell: Any, usual: Request, sizes_of: Callable[[Iterable[str]], Iterable[int]]) -> Request:
    if not isinstance(cell, Mapping) or not all(isinstance(key, str) for key in cell):
        raise InputError(f"{where}: is no mapping; write {{collective: all-reduce, bytes: 8:1MiB:2}}.")
    if unknown := sorted(set(cell) - _KEYS):
        raise InputError(f"{where}: knows no {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}.")
    word = str(cell.get("collective", "")).lower().replace("-", "_")
    name = word if word in POINT_TO_POINT else collective_named(word)
    if name not in (*COLLECTIVES, *POINT_TO_POINT):
        raise InputError(f"{where}: collective {cell.get('collective')!r} is not measured; there are {', '.join((*COLLECTIVES, *POINT_TO_POINT)).replace('_', '-')}.")  # fmt: skip
    given = cell.get("bytes")
    sizes = tuple(sizes_of([str(one) for one in (given if isinstance(given, list) else [given])])) if given is not None else _sizes(name)  # fmt: skip
    more: dict[str, Any] = {}
    for key, kind in (("ranks", int), ("root", int), ("iterations", int), ("warm_up", int), ("backend", str), ("dtype", str), ("op", str), ("in_place", bool), ("window", bool)):  # fmt: skip
        if key in cell:
            if type(cell[key]) is not kind:
                raise InputError(f"{where}: {key} {cell[key]!r}: {kind.__name__} was expected.")
            more[key] = cell[key]
    try:
        return replace(usual, collective=name, sizes_bytes=(0,) if name == "barrier" else sizes, **more)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
