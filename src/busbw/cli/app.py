"""The command `busbw`: its verbs, its page of help, and what becomes of errors."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn, TextIO

import typer

from busbw import __version__
from busbw.cli.compare import compare, history
from busbw.cli.console import note, problem
from busbw.cli.demo import demo
from busbw.cli.design import design
from busbw.cli.expected import expected
from busbw.cli.explain import explain
from busbw.cli.hardware import hardware
from busbw.cli.launch import launch
from busbw.cli.nccl import nccl
from busbw.cli.plans import convert, show, verify
from busbw.cli.predict import predict
from busbw.cli.query import QueryCommand, query
from busbw.cli.read import ReadCommand, read
from busbw.cli.run import run
from busbw.cli.score import calibrate, score
from busbw.cli.simulate import simulate
from busbw.cli.simulate_packets import packets
from busbw.cli.store import store
from busbw.cli.training import search, training
from busbw.errors import InputError

__all__ = ["app", "main"]

WRONG_USE = 2
INTERNAL_ERROR = 70
"""EX_SOFTWARE of sysexits.h. Not 1, which Python would take and which says something about the system under study."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
LONGEST_ERROR = 300
"""Characters of an exception that are shown: some quote their whole input."""
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
  2  wrong use, or nothing could be read at all
  70 busbw itself failed; please report it"""

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
app.add_typer(store, name="store")
app.command()(hardware)
app.add_typer(nccl, name="nccl")
app.command()(predict)
app.command()(design)
app.command()(expected)
simulate.command()(packets)
simulate.command()(training)
app.add_typer(simulate, name="simulate")
app.add_typer(search, name="search")
app.command()(compare)
app.command()(history)
app.command()(score)
app.command()(calibrate)
app.command()(run)
app.command(context_settings={"allow_interspersed_args": False})(launch)
app.command()(verify)
app.command()(convert)
app.command()(show)
app.command()(demo)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and ends the process with its exit status, whatever happens. arguments: those of the process if None."""
    if sys.stderr is None:  # closed by the caller: notes have nowhere to go, and the next file must not take its place
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open as long as the process
    if sys.stdout is None:
        problem("standard output is closed. Send it somewhere: a file, a pipe, or /dev/null.")
        sys.exit(WRONG_USE)
    # A file name that is no UTF-8, or a terminal that is not, must not end in a traceback.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
    except SystemExit as stop:  # typer turns a closed pipe into status 1, which has a meaning of its own here
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        status = PIPE_CLOSED
    except BrokenPipeError:
        status = PIPE_CLOSED
    except OSError as error:
        status = _refused_by_the_system(error)
    except Exception as error:  # whatever it is, it must not look like a verdict
        status = _internal_error(error, given)
    for standard in (sys.__stdout__, sys.__stderr__):
        _give_up_if_broken(standard)
    sys.exit(status)


def _give_up_if_broken(stream: TextIO | None) -> None:
    """What cannot be written any more must not be tried again when the process ends, which would change the status."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def _internal_error(error: Exception, arguments: Sequence[str]) -> int:
    """Says what failed and how to report it, in one line; the traceback before it if BUSBW_DEBUG is 1."""
    wanted = os.environ.get("BUSBW_DEBUG") == "1"
    if wanted:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    how = "the traceback above" if wanted else "the traceback that BUSBW_DEBUG=1 shows"
    problem(
        f"internal error: {what[:LONGEST_ERROR]}. Please report it with {how}, the version ({__version__}) and the command: "
        f"{shlex.join(['busbw', *arguments])}"
    )
    return INTERNAL_ERROR


def _refused_by_the_system(error: OSError) -> int:
    problem(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    return WRONG_USE


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
        return _refused_by_the_system(error)
    if status == INTERRUPTED:
        note("interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0
