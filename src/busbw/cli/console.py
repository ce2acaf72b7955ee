"""Where words go: results to stdout, notes, problems and progress to stderr; how wide, and in colour or not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

__all__ = ["BytesRead", "Page", "PointsDone", "given_path", "given_store", "json_text", "note", "print_json", "problem"]

PIPED_WIDTH = 100
"""Columns for prose where there is no terminal to ask. Lines of files and tables are never broken there."""
MIN_WIDTH, MAX_WIDTH = 40, 160
"""Prose wider than that is hard to read; narrower terminals get lines that their emulator breaks."""
SHOW_PROGRESS_AFTER_S = 1.0


def given_path(text: str) -> Path:
    """An option's path. An empty one, as a variable that is not set leaves it, is refused: it would mean the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty; the current folder is written as a dot.")
    return Path(text)


def given_store(text: str) -> str:
    """An option's store: a folder, or s3://BUCKET/PREFIX. An empty one is refused."""
    given_path(text)
    return text


def problem(message: str) -> None:
    """`busbw: <message>` on stderr; further lines of the message are indented. Lost where stderr cannot be written."""
    text = "busbw: " + "\n  ".join(_shown(line) for line in message.strip().splitlines() if line.strip())
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def note(message: str) -> None:
    """Something to know that is no result, on stderr."""
    problem(message)


def json_text(value: Any) -> str:
    """JSON for people and programs: two spaces, ASCII only, so that any locale can print it."""
    return json.dumps(value, indent=2, allow_nan=False)


def print_json(value: Any) -> None:
    """A result as JSON on stdout."""
    print(json_text(value))


def _shown(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    from busbw.reports.excerpts import visible  # noqa: PLC0415 - loads the tables, which help pages can do without

    return visible(text)


class Page:
    """Result text on stdout: prose wrapped to the width, lines of files whole, styles only on a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.is_terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        columns = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if self.is_terminal else PIPED_WIDTH
        self.columns = max(columns, MIN_WIDTH)
        self.width = min(self.columns, MAX_WIDTH)
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The rich console; without a terminal it has no styles and room for any table."""
        if self._console is None:
            from rich.console import Console  # noqa: PLC0415 - help pages do without

            self._console = Console(
                file=self.stream,
                width=self.columns if self.is_terminal else 100_000,
                force_terminal=self.is_terminal,
                color_system="auto" if self.is_terminal else None,
                no_color=bool(os.environ.get("NO_COLOR")) or not self.is_terminal,
                highlight=False,
                markup=False,
                emoji=False,
            )
        return self._console

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, not broken here. A part is text, or (text, style)."""
        from rich.text import Text  # noqa: PLC0415 - help pages do without

        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def table(self, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> None:
        """A table of text; a column is (title, whether it holds figures). Cells fold, nothing is cut off."""
        with self.console.capture() as captured:
            self.console.print(_table(columns, rows))
        for line in captured.get().splitlines():
            self.stream.write(line.rstrip() + "\n")

    def prose(self, text: str, indent: str = "", first: str | None = None, style: str = "") -> None:
        """A paragraph between words; words stay whole. first: what stands before the first line, instead of indent."""
        lead = indent if first is None else first
        wrapped = textwrap.wrap(
            text,
            self.width,
            initial_indent=lead,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(wrapped or [lead.rstrip()]):
            start = len(lead if number == 0 else indent)
            self.line((line[:start], "dim" if number == 0 and first else ""), (line[start:], style))

    def quote(self, text: str, first: str, indent: str, style: str = "") -> None:
        """A line of a file. On a terminal it continues under itself; elsewhere it stays one line, as in the file."""
        if not self.is_terminal or len(first) + len(text) <= self.columns:
            self.line((first, "dim"), (text, style))
            return
        pieces = textwrap.wrap(text, self.columns - len(indent), break_long_words=True, break_on_hyphens=False)
        for number, piece in enumerate(pieces):
            self.line((indent if number else first, "dim"), (piece, style))


def _table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box  # noqa: PLC0415 - help pages do without
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title, is_number in columns:
        table.add_column(Text(title), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    return table


class BytesRead:
    """Counts bytes as they are read; draws a bar on stderr once that has taken a second, and only on a terminal.

    Use in a `with` block; call with the number of bytes just read.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._started_s = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> BytesRead:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, read_bytes: int) -> None:
        """Counts, and draws when it is time."""
        self.done_bytes += read_bytes
        if self._bar is None:
            if time.monotonic() - self._started_s < SHOW_PROGRESS_AFTER_S or not sys.stderr.isatty():
                return
            self._bar = self._draw()
        self._bar.update(self._bar.task_ids[0], completed=self.done_bytes)

    def _draw(self) -> Progress:
        from rich.console import Console  # noqa: PLC0415 - help pages do without
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

        columns = (TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
        bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        bar.add_task("reading", total=self.total_bytes)
        bar.start()
        return bar


class PointsDone(BytesRead):
    """The same for points of a sweep: call with how many more have ended."""

    def _draw(self) -> Progress:
        from rich.console import Console  # noqa: PLC0415 - help pages do without
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        bar.add_task("points", total=self.total_bytes)
        bar.start()
        return bar
