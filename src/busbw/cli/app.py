"""The command `busbw`: its verbs, its page of help, and what becomes of errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from busbw import __version__
from busbw.cli.console import note, problem
from busbw.cli.demo import demo
from busbw.cli.explain import explain
from busbw.cli.hardware import hardware
from busbw.cli.query import QueryCommand, query
from busbw.cli.read import ReadCommand, read
from busbw.errors import InputError

__all__ = ["app", "main"]

WRONG_USE = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: whoever read the output had enough."""

_PAGE = """Says why GPU communication is slow or hangs.

Reads what NCCL, nccl-tests, UCX, OSU, NVIDIA's and the kernel's own tools print, compares ranks, settings, topology and
measured curves with what healthy hardware shows, and names the cause: with the lines that show it, what to change, and
the command that would tell it from its rivals. Files are read where they are; nothing is sent anywhere."""

_EPILOG = """\b
Examples:
  busbw demo                                      two real jobs, one sick and one healthy
  busbw explain job-4711/                         everything a job left behind
  busbw explain log --report report.html          the same, as one HTML file
  kubectl logs nccl-test | busbw explain -        from standard input
  busbw read job-*/ --store lab                   keep the rows
  busbw query 'SELECT * FROM runs' --store lab    and ask for them in SQL

\b
Results go to stdout, notes and progress to stderr. Exit status:
  0  done; nothing wrong was found, or nothing could be told
  1  done; something is wrong with the system under study
  2  wrong use, or nothing could be read at all"""

app = typer.Typer(
    name="busbw",
    help=_PAGE,
    epilog=_EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"busbw {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _busbw(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG_USE)


app.command()(explain)
app.command(cls=ReadCommand)(read)
app.command(cls=QueryCommand)(query)
app.command()(hardware)
app.command()(demo)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and ends the process with its exit status. arguments: those of the process if None."""
    # A file name that is no UTF-8, or a terminal that is not, must not end in a traceback.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except SystemExit as stop:  # typer turns a closed pipe into status 1, which has a meaning of its own here
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        status = PIPE_CLOSED
    except BrokenPipeError:
        status = PIPE_CLOSED
    if status == PIPE_CLOSED:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    # typer may carry its own copy of click, so click's exceptions are reached through typer's.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        status = app(arguments, prog_name="busbw", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except InputError as error:
        problem(str(error))
        return WRONG_USE
    except usage_error as error:
        message = error.format_message()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        problem(f"{message} See `{context.command_path if context else 'busbw'} --help`.")
        return WRONG_USE
    except BrokenPipeError:
        raise
    except OSError as error:
        problem(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return WRONG_USE
    if status == INTERRUPTED:
        note("interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0
