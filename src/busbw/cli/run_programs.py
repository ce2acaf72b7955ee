"""`busbw run` with a back end that is the user's own binary: nccl-tests, OSU, ucx_perftest, nixlbench."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from busbw.cli.console import Page, note, print_json
from busbw.cli.run_asked import WRONG, Asked, journal_of, kept_journal, title_of
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.measuring.keeping import Kept
    from busbw.measuring.programs import Invocation
    from busbw.measuring.request import Request

__all__ = ["by_programs", "show_rows"]

_COLUMNS = (
    "collective", "size_bytes", "dtype", "redop", "in_place", "time_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "min_ns", "max_ns", "p99_ns",
    "iterations", "wrong",
)  # fmt: skip
_WORDS = ("collective", "dtype", "redop", "in_place")


def by_programs(requests: Sequence[Request], asked: Asked, kept: Kept | None = None) -> int:
    """Runs binaries, keeps what they print, and shows the rows that their readers find; the exit status."""
    from busbw.measuring.programs import invocations, read_rows, run_program, wrong_rows  # noqa: PLC0415

    try:
        extra = shlex.split(asked.options)
    except ValueError as error:
        raise typer.BadParameter(f"--program-options {asked.options}: {error}.") from None
    listed: list[Invocation] = []
    refused: list[str] = []
    for request in requests:
        try:
            listed += invocations(request, extra, asked.programs, asked.how.launcher)
        except InputError as error:
            if len(requests) == 1:
                raise
            refused.append(str(error))
    if not listed:
        raise InputError(refused[0])
    for reason in refused:
        note(reason)
    done = set(kept.done()) if kept is not None else set()
    left = [one for one in listed if one.key not in done]
    if kept is not None:
        note(f"run {kept.name}: {len(listed) - len(left)} programs had ended before, {len(left)} are missing")
        if not left:
            return 0
    more = {"options": asked.options} | ({"programs": str(asked.programs)} if asked.programs is not None else {})
    journal = journal_of(requests, asked, kept, more)
    rows: list[dict[str, Any]] = []
    with kept_journal(journal) as outcome:
        for one in left:
            text = run_program(one, asked.how)
            found, lost = read_rows(text, one.key)
            rows += found
            for loss in lost:
                note(loss)
            if not found:
                note(f"{one.shown()}: printed no row that its reader knows")
            elif (sizes := len({row["size_bytes"] for row in found})) < one.sizes:
                note(f"{one.shown()}: printed rows of {sizes} sizes, {one.sizes} were asked for")
            if journal is not None:
                journal.output(one.key, text, found)
    title = title_of(requests)
    if (status := outcome.told(title, asked, len(rows))) is not None:
        return status
    show_rows(rows, requests[0].backend, asked.as_json)
    outcome.told_at_the_end(title, asked, len(rows))
    return WRONG if outcome.reason or wrong_rows(rows) else 0


def show_rows(rows: Sequence[dict[str, Any]], backend: str, as_json: bool) -> None:
    """Rows of `measurements` as a table, or as JSON."""
    if as_json:
        print_json(
            {"schema": 1, "backend": backend, "rows": [{name: row.get(name) for name in _COLUMNS} for row in rows]}
        )
        return
    there = [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]
    titles = [(_title(name), name not in _WORDS) for name in there]
    Page().table(titles, [[_shown(name, row.get(name)) for name in there] for row in rows])


def _title(name: str) -> str:
    for end, unit in (("_bytes_per_s", " (GB/s)"), ("_ns", " (us)"), ("_bytes", " (B)")):
        if name.endswith(end):
            return name.removesuffix(end) + unit
    return name.replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_ns"):
        return f"{value / 1e3:.3f}"
    if name.endswith("_per_s"):
        return f"{value / 1e9:.3f}"
    if isinstance(value, str):
        return value.replace("_", "-")
    return f"{value:g}" if isinstance(value, float) else str(value)
