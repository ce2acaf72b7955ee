"""A figure: what it is, how it is measured, the bar it must hold; and how rows are run and shown."""

from __future__ import annotations

import json
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["NO_TOOLCHAIN", "Benchmark", "NotMeasurableError", "Options", "Row", "Value", "measure", "print_table"]

Value: TypeAlias = float | int | bool | list[float] | list[int] | None
"""A list has the parts of a figure, in the order of its bar."""

_HOLDS: Mapping[str, Callable[[float, Any], bool]] = {
    "in": lambda value, ends: bool(ends[0] <= value <= ends[1]),
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}


Bar: TypeAlias = tuple[str, Sequence[float | tuple[float, float]]]


NO_TOOLCHAIN = "no toolchain"
"""How the reason begins where a bar says that this is an answer: nothing is wrong with a machine that has no compiler for GPUs."""


class NotMeasurableError(Exception):
    """This machine or this installation cannot show the figure; the message says why and how to mend it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    smoke: bool = False
    """Small inputs and few trials: whether it runs, not how fast it is."""
    cases: Path | None = None
    """Folder of triage cases; those of the tests if None."""
    data: Path | None = None
    """Folder of measured/1 tables; ../shared/data/measured beside the checkout if None."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement gives back."""

    value: Value
    peers: Mapping[str, float | None] = field(default_factory=dict)
    note: str = ""
    """What the figure rests on, such as the number of cases; follows `what`."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A figure that can be measured."""

    id: str
    what: str
    unit: str
    bar: Bar
    """How the value compares (>=, <=, <, ==, in; with a semicolon between where its parts compare differently) and with what; one figure a part, of `in` the two ends."""
    measure: Callable[[Options], Measured]
    sized: bool = False
    """Whether the value means nothing with --smoke, so that its bar is not judged then."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `python -m benchmarks --json`."""

    id: str
    what: str
    value: Value
    unit: str
    command: str
    peers: Mapping[str, float | None]
    reason: str | None
    """Why there is no value; None if there is one."""
    bar: str
    holds: bool | None
    """Whether the bar is met; None if that is not to be judged."""
    took_s: float

    def to_json(self) -> str:
        """The row in the shape that README documents, one line."""
        return json.dumps(
            {
                "id": self.id,
                "what": self.what,
                "value": self.value,
                "unit": self.unit,
                "command": self.command,
                "peers": dict(self.peers),
                "reason": self.reason,
            }
        )


def measure(group: str, benchmarks: Sequence[Benchmark], options: Options) -> Iterator[Row]:
    """The rows of a group, each as soon as it is measured. What fails is a row without value; nothing is raised."""
    for benchmark in benchmarks:
        begun = time.monotonic()
        try:
            measured, reason = benchmark.measure(options), None
        except NotMeasurableError as error:
            measured, reason = Measured(None), str(error)
        except Exception as error:  # a row that breaks must not hide the others
            measured, reason = Measured(None), f"{type(error).__name__}: {error}"
        yield Row(
            benchmark.id,
            f"{benchmark.what} ({measured.note})" if measured.note else benchmark.what,
            measured.value,
            benchmark.unit,
            f"python -m benchmarks {group} --only {benchmark.id}",
            measured.peers,
            reason,
            _shown_bar(benchmark.bar),
            None if options.smoke and benchmark.sized else _holds(measured.value, benchmark.bar),
            time.monotonic() - begun,
        )


def _holds(value: Value, bar: Bar) -> bool | None:
    if value is None:
        return None
    parts = value if isinstance(value, list) else [value]
    return len(parts) == len(bar[1]) and all(
        math.isfinite(part) and _HOLDS[sign](part, limit)
        for part, limit, sign in zip(parts, bar[1], _signs(bar), strict=True)
    )


def _signs(bar: Bar) -> list[str]:
    signs = bar[0].split(";")
    return signs if len(signs) > 1 else signs * len(bar[1])


def _shown_bar(bar: Bar) -> str:
    if ";" not in bar[0]:
        return f"{bar[0]} {'; '.join(map(_shown_limit, bar[1]))}"
    return "; ".join(f"{sign} {_shown_limit(limit)}" for sign, limit in zip(_signs(bar), bar[1], strict=True))


def _shown_limit(limit: float | tuple[float, float]) -> str:
    return f"{limit[0]:g} to {limit[1]:g}" if isinstance(limit, tuple) else f"{limit:g}"


def print_table(rows: Iterator[Row]) -> list[Row]:
    """Shows rows to people, one by one as they come, and returns them all."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    kept = []
    with console.status("measuring") if console.is_terminal else _Nothing():
        for row in rows:
            kept.append(row)
            if console.is_terminal:
                console.print(f"{row.id}  {_shown(row.value)} {row.unit}  ({row.took_s:.0f} s)", highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("id", "what", "value", "unit", "bar", "", "peers"):
        table.add_column(name, justify="right" if name == "value" else "left", overflow="fold")
    for row in kept:
        verdict = {True: "holds", False: "MISSED", None: ""}[row.holds]
        peers = ", ".join(f"{name} {_shown(value)}" for name, value in row.peers.items())
        table.add_row(row.id, row.what, _shown(row.value), row.unit, row.bar, verdict, peers)
    console.print(table)
    for row in kept:
        if row.reason is not None:
            console.print(f"{row.id}: {row.reason}", highlight=False, markup=False)
    return kept


class _Nothing:
    """A context that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "; ".join(_shown(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) and value < 1000 else f"{value:.0f}"
