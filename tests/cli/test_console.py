"""Where words go, how wide and in which colour."""

from __future__ import annotations

import io
import sys

import pytest

from busbw.cli.console import BytesRead, Page, problem

LINE = "gpu0:22612:22693 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/1/GDRDMA"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[80, 200])
def columns(request, monkeypatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return request.param


def test_no_line_is_wider_than_the_terminal(columns, monkeypatch):
    """Prose, lines of files and tables; with NO_COLOR set the text has no colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    page = Page(stream)
    page.prose("word " * 100, "   ", first="   fix: ")
    page.quote(LINE * 3, "   > 3 | ", "       | ")
    page.table([("name", False), ("source", False)], [["x" * 50, "word " * 40]])
    text = stream.getvalue()
    plain = text.replace("\x1b[2m", "").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "\x1b" not in plain
    assert max(len(line) for line in plain.splitlines()) <= columns


def test_a_terminal_gets_colour(columns):
    stream = Terminal()
    Page(stream).line(("faulty", "bold red"))
    assert stream.getvalue() == "\x1b[1;31mfaulty\x1b[0m\n"


def test_elsewhere_lines_of_files_stay_whole_and_prose_keeps_its_words(columns):
    """Not a terminal: no styles; a word that is longer than the width is not cut."""
    stream = io.StringIO()
    page = Page(stream)
    page.quote(LINE * 3, "   > 3 | ", "       | ")
    page.prose("see " + "/very/long/path" * 20)
    assert stream.getvalue().splitlines() == [f"   > 3 | {LINE * 3}", "see", "/very/long/path" * 20]


def test_a_problem_is_one_line_with_what_follows_indented(capsys):
    problem("first\n\nsecond \x1b[2J")
    assert capsys.readouterr().err == "busbw: first\n  second \\x1b[2J\n"


@pytest.mark.parametrize(
    ("is_terminal", "seconds", "is_drawn"), [(True, 2, True), (True, 0.5, False), (False, 2, False)]
)
def test_progress_is_drawn_on_a_terminal_once_it_takes_a_second(monkeypatch, is_terminal, seconds, is_drawn):
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    clock = iter([0.0, seconds])
    monkeypatch.setattr("busbw.cli.console.time.monotonic", lambda: next(clock, seconds))
    with BytesRead(100) as progress:
        progress(50)
    assert progress.done_bytes == 50
    assert ("reading" in stream.getvalue()) == is_drawn
