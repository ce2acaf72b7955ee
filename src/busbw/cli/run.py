"""`busbw run`: measures collectives and messages by any back end, checks every result, and keeps what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import given_path, note, print_json, problem
from busbw.cli.predictions import Sizes, sizes_of

if TYPE_CHECKING:
    from busbw.measuring.keeping import Journal
    from busbw.measuring.measure import Measured
    from busbw.measuring.request import Request
    from busbw.measuring.running import Heard

__all__ = ["run"]

_MOST_BYTES = 1 << 34
_MOST_RANKS = 64
"""That are started on this machine without a launcher."""
_WRONG = 1
_MESSAGES = ("latency", "bandwidth", "bidirectional", "message_rate")


def run(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str | None,
        typer.Argument(
            metavar="COLLECTIVE|p2p",
            help="all-reduce, all-gather, reduce-scatter, all-to-all(-v), broadcast, reduce, gather, scatter, send-recv, barrier; "
            "p2p, or one of latency, bandwidth, bidirectional, message-rate.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="builtin|torch|mpi",
            help="busbw's own kernels on this machine's CPUs; torch.distributed; MPI.",
        ),
    ] = "builtin",
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Number of ranks.")] = 2,
    sizes: Sizes = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="float32, float16, int8 ...")] = "float32",
    op: Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max, avg.")] = "sum",
    root: Annotated[int, typer.Option("--root", metavar="RANK", help="Of broadcast, reduce, gather and scatter.")] = 0,
    in_place: Annotated[
        bool, typer.Option("--in-place/--no-in-place", help="Measure in-place calls besides, where there are some.")
    ] = True,
    window: Annotated[
        bool, typer.Option("--window", help="all-reduce on memory that all ranks map: nothing is copied.")
    ] = False,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            metavar="local|threads|mpirun",
            help="What starts the ranks; mpirun for MPI if not given, else local processes.",
        ),
    ] = None,
    width: Annotated[
        str,
        typer.Option(
            "--confidence-width", metavar="SHARE", help="Calls go on until the median's 95 % interval is that wide."
        ),
    ] = "2%",
    limit_s: Annotated[
        float, typer.Option("--cell-limit", metavar="SECONDS", help="Longest for a size, out of place or in place.")
    ] = 0.5,
    iterations: Annotated[
        int | None, typer.Option("--iterations", metavar="N", help="Exactly so many calls, whatever the interval.")
    ] = None,
    warm_up: Annotated[int, typer.Option("--warm-up", metavar="N", help="Calls before those that count.")] = 5,
    deadline_s: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="When processes that have not ended are stopped.")
    ] = 600.0,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", parser=given_path, metavar="DIR", help="Keep every row here as soon as it is measured."
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Measure what a run in the store has not.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """Measure collectives or messages, check every result, and print nccl-tests' table.

    Beside the times stand how sure they are, and what bounds them: copying as many bytes as a rank stores, by all ranks at once, and half a
    round trip of a cache line, both measured in the same run. With --store each row is kept as it is measured; a run that dies is marked, and
    --resume goes on with what it lacks. Exits with 1 if a result was wrong or a rank died on the way.

    \b
    Examples:
      busbw run all-reduce --ranks 2
      busbw run all-reduce --ranks 2 --window --bytes 8:64MiB:2
      busbw run all-to-all --ranks 4 --bytes 1MiB --dtype float16 --json
      busbw run p2p --backend mpi --bytes 8:4MiB:8 --store lab
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    if not deadline_s >= 0:
        raise typer.BadParameter(f"--deadline {deadline_s:g}: write seconds.")
    requests: Sequence[Request]
    if resume is not None:
        return _resumed(resume, store, deadline_s, as_json)
    if collective is None:
        raise typer.BadParameter("what is to be measured? Write a collective, such as all-reduce, or p2p.")
    sizes_bytes = tuple(sizes_of(sizes or ["8:64MiB:2"]))
    if max(sizes_bytes) > _MOST_BYTES:
        raise typer.BadParameter(
            f"--bytes: {max(sizes_bytes)} bytes on each of {ranks} ranks are more than is tried here (16 GiB)."
        )
    told = {
        "ranks": ranks, "sizes_bytes": sizes_bytes, "dtype": dtype, "op": op, "window": window, "in_place": in_place, "iterations": iterations,
        "root": root, "backend": backend, "width": _share(width), "limit_s": limit_s, "warm_up": warm_up,
    }  # fmt: skip
    names = _named(collective)
    requests = [_request(name, told) for name in names]
    chosen = launcher or ("mpirun" if backend == "mpi" else "local")
    _check_launcher(chosen, backend, ranks)
    return _measured(requests, chosen, deadline_s, store, as_json)


def _share(text: str) -> float:
    """A share such as 2% or 0.02."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise typer.BadParameter(f"--confidence-width {text}: write a share, such as 2% or 0.02.") from None


def _named(text: str) -> tuple[str, ...]:
    import difflib  # noqa: PLC0415

    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.measuring.request import COLLECTIVES, POINT_TO_POINT  # noqa: PLC0415

    word = text.lower().replace("-", "_")
    if word == "p2p":
        return POINT_TO_POINT
    if word in POINT_TO_POINT:
        return (word,)
    named = collective_named(text)
    if named in COLLECTIVES:
        return (str(named),)
    known = [name.replace("_", "-") for name in (*COLLECTIVES, "p2p", *POINT_TO_POINT)]
    nearest = difflib.get_close_matches(text.lower().replace("_", "-"), known, 1, 0.0)[0]
    raise typer.BadParameter(
        f"{text} {'is not measured here' if named else 'is no collective'}; nearest: {nearest}. There are {', '.join(known)}."
    )


def _request(name: str, told: dict[str, Any]) -> Request:
    from busbw.measuring.backends import kind_of  # noqa: PLC0415
    from busbw.measuring.request import DTYPES, OPERATIONS, REDUCING, Request  # noqa: PLC0415

    if not 1 <= told["ranks"] <= _MOST_RANKS and told["backend"] == "builtin":
        raise typer.BadParameter(f"--ranks {told['ranks']}: write 1 to {_MOST_RANKS}.")
    kind_of(told["backend"])
    if told["dtype"] not in DTYPES:
        raise typer.BadParameter(f"--dtype {told['dtype']}: there are {', '.join(DTYPES)}.")
    if told["op"] not in OPERATIONS:
        raise typer.BadParameter(f"--op {told['op']}: there are {', '.join(OPERATIONS)}.")
    if told["op"] != "sum" and name not in REDUCING:
        raise typer.BadParameter(f"--op {told['op']}: {name.replace('_', '-')} reduces nothing; leave it out.")
    if told["window"] and name != "all_reduce":
        raise typer.BadParameter("--window: all-reduce alone runs on window memory.")
    if told["iterations"] is not None and told["iterations"] < 1:
        raise typer.BadParameter(f"--iterations {told['iterations']}: write 1 or more.")
    if name == "barrier":
        told = told | {"sizes_bytes": (0,)}
    return Request(name, **told)


def _check_launcher(launcher: str, backend: str, ranks: int) -> None:
    from busbw.measuring.running import LAUNCHERS  # noqa: PLC0415

    if launcher not in LAUNCHERS:
        raise typer.BadParameter(f"--launcher {launcher}: there are {', '.join(LAUNCHERS[:-1])} and {LAUNCHERS[-1]}.")
    if launcher == "threads" and backend != "builtin":
        raise typer.BadParameter(f"--launcher threads: ranks of {backend} are processes; leave it out.")
    if launcher == "local" and backend == "mpi" and ranks > 1:
        raise typer.BadParameter("--launcher local: ranks of MPI are started by its mpirun; leave it out.")
    if launcher != "threads" and ranks > _MOST_RANKS and launcher == "local":
        raise typer.BadParameter(f"--ranks {ranks}: write 1 to {_MOST_RANKS}.")


def _resumed(name: str, store: Path | None, deadline_s: float, as_json: bool) -> int:
    from busbw.measuring.keeping import kept_run  # noqa: PLC0415

    if store is None:
        raise typer.BadParameter("--resume: say which store holds the run, --store DIR.")
    kept = kept_run(store, name)
    left = sum(request.key(size) not in set(kept.done()) for request in kept.requests for size in request.sizes_bytes)
    note(f"run {kept.name}: {len(kept.rows)} rows were measured before, {left} are missing")
    if not left:
        for measured in _merged(kept.requests, kept.rows):
            _show([measured], kept.launcher, as_json)
        return 0
    return _measured(kept.requests, kept.launcher, deadline_s, store, as_json, kept=kept)


def _measured(
    requests: Sequence[Request],
    launcher: str,
    deadline_s: float,
    store: Path | None,
    as_json: bool,
    *,
    kept: Any = None,
) -> int:
    """Measures, keeps and prints; the exit status."""
    from busbw.execution import GaveUpError  # noqa: PLC0415 - loads numpy
    from busbw.launching import LaunchError  # noqa: PLC0415
    from busbw.measuring.running import run_in_threads, run_requests  # noqa: PLC0415

    rows: list[tuple[Measured, Any]] = list(kept.rows) if kept is not None else []
    journal = _journal(requests, launcher, store, kept)

    def heard(one: Heard) -> None:
        if one.row is None:
            if journal is not None:
                journal.head(one.head)
            return
        rows.append((one.head, one.row))
        if journal is not None:
            journal.row(one.head, one.row)

    done = kept.done() if kept is not None else []
    state, reason, what = "complete", "", _title(requests)
    try:
        if launcher == "threads":
            for request in requests:
                run_in_threads(request, heard=heard, done=done)
        else:
            run_requests(
                requests, deadline_s=deadline_s, launcher=launcher, heard=heard, done=done, samples=journal is not None
            )
    except (LaunchError, GaveUpError) as error:
        state, reason = "died", str(error)
    except BaseException as error:
        if journal is not None:
            journal.end(
                "interrupted" if isinstance(error, KeyboardInterrupt) else "died",
                f"{type(error).__name__}: {error}"[:500],
            )
        raise
    if journal is not None:
        journal.end(state, reason[:2000])
        note(f"kept in {store} as {journal.name}")
    if reason and not rows:
        problem(f"{what} was not measured: {reason}")
        return 2
    results = _merged(requests, rows)
    wrong = _show(results, launcher, as_json)
    if reason:
        problem(f"{what} was measured in part, {len(rows)} rows: {reason}")
        if journal is not None:
            note(f"go on with what is missing: busbw run --resume {journal.name} --store {store}")
    return _WRONG if wrong or reason else 0


def _title(requests: Sequence[Request]) -> str:
    names = {request.collective for request in requests}
    return "p2p" if len(names) > 1 else requests[0].collective.replace("_", "-")


def _journal(requests: Sequence[Request], launcher: str, store: Path | None, kept: Any) -> Journal | None:
    if store is None:
        return None
    from busbw.measuring.keeping import Journal, new_name, recover  # noqa: PLC0415 - loads the tables

    for name in recover(store):
        note(f"run {name} had died; what it measured is in {store} now, marked so")
    name = kept.name if kept is not None else new_name(_title(requests), requests[0].backend)
    return Journal(store, name, requests, launcher, part=kept.parts if kept is not None else 0)


def _merged(requests: Sequence[Request], rows: Sequence[tuple[Measured, Any]]) -> list[Measured]:
    """Rows by request, in the order that was asked for."""
    found = []
    for request in requests:
        keys = [request.key(size) for size in request.sizes_bytes]
        mine = {row.key: (head, row) for head, row in rows if row.key in set(keys)}
        if mine:
            head = next(iter(mine.values()))[0]
            found.append(replace(head, request=request, rows=tuple(mine[key][1] for key in keys if key in mine)))
    return found


def _show(results: Sequence[Measured], launcher: str, as_json_wanted: bool) -> int:
    """Prints; the number of wrong elements."""
    from busbw.cli.run_tables import as_json, table_of, wrong_of  # noqa: PLC0415

    if as_json_wanted:
        print_json(
            as_json(results[0]) if len(results) == 1 else {"schema": 1, "results": [as_json(one) for one in results]}
        )
    else:
        for one in results:
            print(table_of(one, launcher), end="")
    return sum(wrong_of(one) for one in results)
