"""`busbw run`: measures a collective on this machine, checks every result, and shows it as nccl-tests does."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import given_path, note, print_json, problem
from busbw.cli.predictions import Sizes, sizes_of

if TYPE_CHECKING:
    from busbw.measuring.builtin import Half, Measured

__all__ = ["run", "table_of"]

SCHEMA = 1
"""Number of the JSON shape of `busbw run --json`."""
_MOST_BYTES = 1 << 34
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_MOST_RANKS = 64
_WRONG = 1
_NCCL_TYPES = {"float16": "half", "float32": "float", "float64": "double"}
"""nccl-tests' words where they are not ours."""
_NCCL_PROGRAMS = {"all_to_all": "alltoall"}


def run(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce.",
        ),
    ],
    backend: Annotated[
        str,
        typer.Option("--backend", metavar="builtin", help="builtin: busbw's own kernels, on the CPUs of this machine."),
    ] = "builtin",
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Number of ranks.")] = 2,
    sizes: Sizes = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="float32, float16, int8 ...")] = "float32",
    op: Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max, avg.")] = "sum",
    in_place: Annotated[
        bool, typer.Option("--in-place/--no-in-place", help="Measure in-place calls besides, where there are some.")
    ] = True,
    window: Annotated[
        bool, typer.Option("--window", help="all-reduce on memory that all ranks map: nothing is copied.")
    ] = False,
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="local|threads", help="Ranks as processes, or as threads of one.")
    ] = "local",
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", metavar="N", help="Calls of each row; a tenth of a second of them if not given."),
    ] = None,
    deadline_s: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="When processes that have not ended are stopped.")
    ] = 600.0,
    store: Annotated[
        Path | None, typer.Option("--store", parser=given_path, metavar="DIR", help="Keep rows and table here.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", parser=given_path, metavar="FILE.json", help="Write when each rank called, for ui.perfetto.dev."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """Measure a collective on this machine, check every result, and print nccl-tests' table.

    Beside the times stands what bounds them: copying as many bytes as a rank stores, by all ranks at once, and half a round trip of a cache line,
    both measured in the same run. Exits with 1 if a result was wrong.

    \b
    Examples:
      busbw run all-reduce --ranks 2
      busbw run all-reduce --ranks 2 --window --bytes 8:64MiB:2
      busbw run all-to-all --ranks 4 --bytes 1MiB --dtype float16 --json
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.execution import GaveUpError  # noqa: PLC0415 - loads numpy
    from busbw.launching import LaunchError  # noqa: PLC0415
    from busbw.measuring.builtin import DTYPES, OPERATIONS, Request, run_in_threads, run_processes  # noqa: PLC0415

    if backend != "builtin":
        raise typer.BadParameter(f"--backend {backend}: there is builtin only.")
    if launcher not in ("local", "threads"):
        raise typer.BadParameter(f"--launcher {launcher}: there are local and threads.")
    name = _collective(collective)
    if not 1 <= ranks <= _MOST_RANKS:
        raise typer.BadParameter(f"--ranks {ranks}: write 1 to {_MOST_RANKS}.")
    if dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: there are {', '.join(DTYPES)}.")
    if op not in OPERATIONS:
        raise typer.BadParameter(f"--op {op}: there are {', '.join(OPERATIONS)}.")
    if op != "sum" and name not in _REDUCING:
        raise typer.BadParameter(f"--op {op}: {name.replace('_', '-')} reduces nothing; leave it out.")
    if window and name != "all_reduce":
        raise typer.BadParameter("--window: all-reduce alone runs on window memory.")
    if iterations is not None and iterations < 1:
        raise typer.BadParameter(f"--iterations {iterations}: write 1 or more.")
    if not deadline_s >= 0:
        raise typer.BadParameter(f"--deadline {deadline_s:g}: write seconds.")
    sizes_bytes = tuple(sizes_of(sizes or ["8:64MiB:2"]))
    if max(sizes_bytes) > _MOST_BYTES:
        raise typer.BadParameter(
            f"--bytes: {max(sizes_bytes)} bytes on each of {ranks} ranks are more than is tried here (16 GiB)."
        )
    request = Request(name, ranks, sizes_bytes, dtype, op, window, in_place, iterations, trace is not None)
    try:
        measured = run_processes(request, deadline_s=deadline_s) if launcher == "local" else run_in_threads(request)
    except (LaunchError, GaveUpError) as error:
        problem(f"{name.replace('_', '-')} was not measured: {error}")
        return 2
    table = table_of(measured, launcher)
    if as_json:
        print_json(_as_json(measured))
    else:
        print(table, end="")
    if store is not None:
        _keep(table, name, store)
    if trace is not None and not _write_trace(measured, trace):
        return 2
    wrong = sum(half.wrong for row in measured.rows for half in (row.out_of_place, row.in_place) if half is not None)
    return _WRONG if wrong else 0


def _write_trace(measured: Measured, path: Path) -> bool:
    """Whether it could be written."""
    from busbw.reports.perfetto import write_spans  # noqa: PLC0415

    try:
        written = write_spans(measured.spans.observations("busbw run"), path)
    except OSError as error:
        problem(f"--trace {path}: {error.strerror}. The measurement stands above; name a file that can be written.")
        return False
    dropped = f"; {measured.spans.dropped} more had no room" if measured.spans.dropped else ""
    note(f"{path}: {written} calls of {measured.request.ranks} ranks{dropped}; open it in ui.perfetto.dev")
    return True


def _collective(text: str) -> str:
    import difflib  # noqa: PLC0415

    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.measuring.builtin import COLLECTIVES  # noqa: PLC0415

    named = collective_named(text)
    if named in COLLECTIVES:
        return str(named)
    known = [name.replace("_", "-") for name in COLLECTIVES]
    nearest = difflib.get_close_matches(text.lower().replace("_", "-"), known, 1, 0.0)[0]
    raise typer.BadParameter(
        f"{text} {'is not measured here' if named else 'is no collective'}; nearest: {nearest}. There are {', '.join(known)}."
    )


def table_of(measured: Measured, launcher: str = "local") -> str:
    """The table in nccl-tests' layout, with what bounds each row in comment lines after it."""
    from busbw import __version__  # noqa: PLC0415

    request = measured.request
    program = f"{_NCCL_PROGRAMS.get(request.collective, request.collective)}_perf"
    calls = max((row.out_of_place.calls for row in measured.rows), default=0)
    sizes = request.sizes_bytes
    host = socket.gethostname().split(".")[0] or "localhost"
    lines = [
        f"# busbw {__version__}, backend builtin: busbw's kernels on the CPUs of this machine, not nccl-tests; ranks are "
        f"{'processes' if launcher == 'local' else 'threads'}"
        + ("; window memory, so nothing is copied" if request.window else ""),
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) warmup iters: 4 iters: {calls} agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {pid:6} on {host} device {rank:2} [0000:00:00] CPU"
            for rank, pid in enumerate(measured.pids)
        ),
        "#",
        f"#{'':53}{'out-of-place':^36}{'in-place':^36}".rstrip(),
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
    ]
    reduces = request.collective in _REDUCING
    root = 0 if request.collective in ("broadcast", "reduce") else -1
    for row in measured.rows:
        halves = (_half(measured, row.size_bytes, half) for half in (row.out_of_place, row.in_place))
        lines.append(
            f"{row.size_bytes:12} {row.count:13} {_NCCL_TYPES.get(request.dtype, request.dtype):>9} {request.op if reduces else 'none':>7} {root:7}"
            + "".join(halves)
        )
    wrong = sum(half.wrong for row in measured.rows for half in (row.out_of_place, row.in_place) if half is not None)
    rates = [
        measured.busbw_bytes_per_s(row.size_bytes, half)[1]
        for row in measured.rows
        for half in (row.out_of_place, row.in_place)
        if half is not None
    ]
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(rates) / len(rates) / 1e9 if rates else 0.0:.6g}",
        "#",
        f"# Collective test concluded: {program}",
        "#",
        *_bounds(measured),
    ]
    return "\n".join(lines) + "\n"


def _half(measured: Measured, size_bytes: int, half: Half | None) -> str:
    if half is None:
        return f" {'N/A':>8} {'N/A':>7} {'N/A':>7} {'N/A':>7}"
    algbw, busbw = measured.busbw_bytes_per_s(size_bytes, half)
    time_us = half.time_s * 1e6
    return f" {time_us:8.{_decimals(time_us)}f} {algbw / 1e9:7.{_decimals(algbw / 1e9)}f} {busbw / 1e9:7.{_decimals(busbw / 1e9)}f} {half.wrong:7}"


def _decimals(value: float) -> int:
    """nccl-tests' digits, and a third decimal where a time or rate is below 10: a call may take a tenth of a microsecond."""
    return 3 if value < 10 else 2 if value < 1000 else 1


def _bounds(measured: Measured) -> list[str]:
    trip = f"{measured.round_trip_s * 1e9:.0f} ns" if measured.round_trip_s is not None else "none, with one rank"
    lines = [
        f"# bound: half a round trip of a cache line between ranks 0 and 1 ({trip}), or copying what a rank stores, all ranks at once; both of this run.",
        "# predicted: no calibration for this machine (busbw has time models of NCCL on GPUs, none of a CPU).",
        "#     size (B)   bound (us)    best (us)    best/bound",
    ]
    for row in measured.rows:
        bound = measured.bound_s(row)
        best = min(half.best_s for half in (row.out_of_place, row.in_place) if half is not None)
        ratio = f"{best / bound:13.2f}" if bound > 0 else f"{'-':>13}"
        lines.append(f"# {row.size_bytes:12} {bound * 1e6:12.3f} {best * 1e6:12.3f} {ratio}")
    return lines


def _as_json(measured: Measured) -> dict[str, Any]:
    request = measured.request

    def half(of: Half | None, size_bytes: int) -> dict[str, Any] | None:
        if of is None:
            return None
        algbw, busbw = measured.busbw_bytes_per_s(size_bytes, of)
        return {
            "time_s": of.time_s,
            "best_s": of.best_s,
            "algbw_bytes_per_s": algbw,
            "busbw_bytes_per_s": busbw,
            "wrong": of.wrong,
            "calls": of.calls,
        }

    return {
        "schema": SCHEMA,
        "backend": "builtin",
        "collective": request.collective,
        "ranks": request.ranks,
        "dtype": request.dtype,
        "op": request.op,
        "window": request.window,
        "round_trip_s": measured.round_trip_s,
        "reads_peers_memory": measured.reads_peers_memory,
        "rows": [
            {
                "size_bytes": row.size_bytes,
                "count": row.count,
                "out_of_place": half(row.out_of_place, row.size_bytes),
                "in_place": half(row.in_place, row.size_bytes),
                "bound_s": measured.bound_s(row),
                "predicted_s": None,
            }
            for row in measured.rows
        ],
        "notes": ["predicted_s: no calibration for this machine"],
    }


def _keep(table: str, name: str, folder: Path) -> None:
    """Reads the table as any other output and puts it into the store."""
    from busbw.cli.read import keep_file  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="busbw-run-") as temporary:
        file = Path(temporary) / f"{name}-builtin-{os.getpid()}.txt"
        file.write_text(table)
        keep_file(file, folder)
    note(f"kept in {folder}")
