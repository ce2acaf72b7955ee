"""`busbw run`: measures collectives and messages by any back end, checks every result, and keeps what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import given_path, given_store, note, print_json
from busbw.cli.predictions import Sizes, sizes_of
from busbw.cli.run_asked import WRONG, Asked, journal_of, kept_journal, title_of
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.measuring.keeping import Kept
    from busbw.measuring.measure import Measured, MeasuredRow
    from busbw.measuring.request import Request
    from busbw.measuring.running import Heard, How

__all__ = ["run"]

_MOST_BYTES = 1 << 34
_MOST_RANKS = 64
"""That are started on this machine without a launcher."""


def run(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str | None,
        typer.Argument(
            metavar="COLLECTIVE|p2p|pairs|suite|host",
            help="all-reduce, all-gather, reduce-scatter, all-to-all(-v), broadcast, reduce, gather, scatter, send-recv, barrier; "
            "p2p, or one of latency, bandwidth, bidirectional, message-rate; pairs: every node with every other; "
            "suite: a list of them; host: this machine's memory and cores.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="builtin: busbw's own kernels on CPUs; torch, mpi, nccl; the user's binaries: nccl-tests, osu, ucx, nixl.",
        ),
    ] = "builtin",
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Number of ranks.")] = 2,
    sizes: Sizes = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="TYPE", help="float32, float16, bfloat16, int8 ...")
    ] = "float32",
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
            metavar="NAME",
            help="What starts the ranks: local (processes of this machine), threads, mpirun, torchrun, slurm, ssh ...; mpirun for mpi and osu if not given.",
        ),
    ] = None,
    launcher_options: Annotated[
        list[str] | None,
        typer.Option("--launcher-option", metavar="KEY=VALUE", help="Of the launcher; may be repeated."),
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", metavar="LIST", help="a,b,n[01-04], or @FILE; ranks fill them in blocks.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", help="Nodes that the ranks are spread over; 1, or one a host, if not given."
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="For launchers that run containers.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print exactly what would be started, and start nothing.")
    ] = False,
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
        str | None,
        typer.Option(
            "--store",
            parser=given_store,
            metavar="DIR",
            help="Keep every row here as soon as it is measured; a folder, or s3://BUCKET/PREFIX.",
        ),
    ] = None,
    rails: Annotated[
        int, typer.Option("--rails", metavar="N", help="Of pairs: ranks of a node, which send side by side.")
    ] = 1,
    suite: Annotated[
        Path | None,
        typer.Option(
            "--suite",
            parser=given_path,
            metavar="FILE",
            help="Of suite: a YAML list of cells; every collective if not given.",
        ),
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="If the run dies: look for the hosts that fail, by halves of --hosts.")
    ] = False,
    ladder: Annotated[bool, typer.Option("--ladder", help="Measure with 2, 4, 8 ... nodes, and with all.")] = False,
    programs: Annotated[
        Path | None,
        typer.Option(
            "--programs", parser=given_path, metavar="DIR", help="Where the user's binaries are, if not on PATH."
        ),
    ] = None,
    program_options: Annotated[
        str, typer.Option("--program-options", metavar="WORDS", help="Further options for a binary, such as '-G 10'.")
    ] = "",
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Measure what a run in the store has not.")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto",
            "--trace",
            parser=given_path,
            metavar="FILE.json",
            help="Write when each rank made its timed calls, for ui.perfetto.dev.",
        ),
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
    from busbw.measuring.running import How  # noqa: PLC0415

    if not deadline_s >= 0:
        raise typer.BadParameter(f"--deadline {deadline_s:g}: write seconds.")
    if perfetto is not None:
        _check_trace(perfetto, collective, backend, dry_run=dry_run)
    requests: Sequence[Request]
    if resume is not None:
        return _resumed(resume, Asked(How("local", deadline_s), store, as_json, perfetto=perfetto))
    if collective is None:
        raise typer.BadParameter("what is to be measured? Write a collective, such as all-reduce, or p2p.")
    usual = {"pairs": "4MiB", "host": "64MiB"}.get(collective, "8:64MiB:2")
    sizes_bytes = tuple(sizes_of(sizes or [usual]))
    if max(sizes_bytes) > _MOST_BYTES:
        raise typer.BadParameter(
            f"--bytes: {max(sizes_bytes)} bytes on each of {ranks} ranks are more than is tried here (16 GiB)."
        )
    if collective == "host":
        from busbw.cli.run_host import of_this_host  # noqa: PLC0415

        return of_this_host(sizes_bytes[0], Asked(How(), store, as_json))
    told = {
        "ranks": ranks, "sizes_bytes": sizes_bytes, "dtype": dtype, "op": op, "window": window, "in_place": in_place, "iterations": iterations,
        "root": root, "backend": backend, "width": _share(width), "limit_s": limit_s, "warm_up": warm_up,
    }  # fmt: skip
    if collective == "suite":
        requests = _suite(suite, _request("barrier", told))
    else:
        names = ("bandwidth",) if collective == "pairs" else _named(collective)
        requests = [_request(name, told) for name in names]
    chosen = launcher or ("mpirun" if backend in ("mpi", "osu") else "local")
    how = How(chosen, deadline_s, tuple(launcher_options or ()), image=image)
    how = _how(how, hosts=hosts, nodes=nodes, ranks=ranks)
    _check_launcher(how, backend, ranks)
    if ladder:
        if collective in ("pairs", "suite"):
            raise typer.BadParameter(f"--ladder: {collective} has none; name a collective.")
        requests = _rungs(requests, nodes=len(how.hosts) or nodes or ranks)
    if dry_run:
        print(_shown(requests, how), end="")
        return 0
    if bisect and not how.hosts:
        raise typer.BadParameter("--bisect: looks among --hosts; name them.")
    asked = Asked(how, store, as_json, programs, program_options, bisect, perfetto)
    if collective == "pairs":
        from busbw.cli.run_pairs import pairs_of_nodes  # noqa: PLC0415

        return pairs_of_nodes(requests[0], asked, rails=rails)
    return _started(requests, asked)


def _check_trace(path: Path, collective: str | None, backend: str, *, dry_run: bool) -> None:
    """Refuses what has no calls to show, and a file that cannot be: before an hour of measuring, not after it."""
    from busbw.measuring.backends import BACKENDS, kind_of  # noqa: PLC0415

    if collective in ("pairs", "host"):
        raise typer.BadParameter(
            f"--perfetto: {collective} keeps rates, not when each call was made; name a collective, p2p or suite."
        )
    if kind_of(backend).programs:
        loops = ", ".join(name for name, kind in BACKENDS.items() if not kind.programs)
        raise typer.BadParameter(
            f"--perfetto: {backend} prints times of many calls together, not when each was made; --backend {loops} can be traced."
        )
    if dry_run:
        raise typer.BadParameter("--perfetto: --dry-run makes no calls; leave one of them out.")
    if path.is_dir() or not path.parent.is_dir():
        raise typer.BadParameter(
            f"--perfetto {path}: {'is a folder' if path.is_dir() else f'there is no folder {path.parent}'}; name a file that can be written."
        )


def _started(requests: Sequence[Request], asked: Asked, kept: Kept | None = None) -> int:
    from busbw.cli.run_programs import by_programs  # noqa: PLC0415
    from busbw.measuring.backends import kind_of  # noqa: PLC0415

    if kind_of(requests[0].backend).programs:
        if asked.perfetto is not None:
            _check_trace(asked.perfetto, None, requests[0].backend, dry_run=False)
        return by_programs(requests, asked, kept)
    return _measured(requests, asked, kept)


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
    known = [name.replace("_", "-") for name in (*COLLECTIVES, "p2p", *POINT_TO_POINT, "pairs", "suite", "host")]
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


def _how(how: How, *, hosts: str | None, nodes: int | None, ranks: int) -> How:
    """With hosts, and ranks spread over nodes."""
    from busbw.launching import hosts_of  # noqa: PLC0415

    named = hosts_of(hosts) if hosts is not None else ()
    if nodes is not None and (nodes < 1 or ranks % nodes):
        raise typer.BadParameter(f"--nodes {nodes}: {ranks} ranks cannot be spread over them evenly.")
    if named and nodes is not None and nodes != len(named):
        raise typer.BadParameter(f"--nodes {nodes}: --hosts names {len(named)}; leave one of them out.")
    return replace(how, hosts=named, ranks=ranks, ranks_per_node=ranks // nodes if nodes else 0)


def _check_launcher(how: How, backend: str, ranks: int) -> None:
    from busbw.launching import launcher_named  # noqa: PLC0415

    if how.launcher == "threads":
        if backend != "builtin":
            raise typer.BadParameter(f"--launcher threads: ranks of {backend} are processes; leave it out.")
        return
    launcher_named(how.launcher)
    if how.launcher == "local" and backend == "mpi" and ranks > 1:
        raise typer.BadParameter("--launcher local: ranks of MPI are started by its mpirun; leave it out.")
    if how.launcher == "local" and (how.hosts or how.options):
        raise typer.BadParameter(
            "--launcher local: runs on this machine and has no options; name another launcher, such as ssh."
        )
    if how.launcher == "local" and ranks > _MOST_RANKS:
        raise typer.BadParameter(f"--ranks {ranks}: write 1 to {_MOST_RANKS}.")


def _shown(requests: Sequence[Request], how: How) -> str:
    """Exactly what would be started for the first group of requests."""
    from busbw.launching import launch  # noqa: PLC0415
    from busbw.measuring.running import rank_argv  # noqa: PLC0415

    if how.launcher == "threads":
        return "# ranks are threads of this process: nothing is started\n"
    first = requests[0]
    return str(
        launch(
            how.job(rank_argv(_alike(requests)[0], "MEETING", None), first.ranks),
            how.launcher,
            how.options,
            dry_run=True,
        )
    )


def _how_again(kept: Kept, deadline_s: float) -> How:
    """As the run was started first, but for the deadline."""
    import json  # noqa: PLC0415

    from busbw.measuring.running import How  # noqa: PLC0415

    told = json.loads(kept.more.get("how", "{}")) | {"launcher": kept.launcher, "deadline_s": deadline_s}
    words: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return How(**words)


def _resumed(name: str, asked: Asked) -> int:
    from busbw.measuring.keeping import kept_run  # noqa: PLC0415

    if asked.store is None:
        raise typer.BadParameter("--resume: say which store holds the run, --store DIR.")
    kept = kept_run(asked.store, name)
    programs = Path(kept.more["programs"]) if kept.more.get("programs") else None
    rails = int(kept.more.get("rails", "0"))
    again = replace(
        asked, how=_how_again(kept, asked.how.deadline_s), programs=programs, options=kept.more.get("options", "")
    )
    if rails:
        if asked.perfetto is not None:
            _check_trace(asked.perfetto, "pairs", "builtin", dry_run=False)
        from busbw.cli.run_pairs import pairs_of_nodes  # noqa: PLC0415

        return pairs_of_nodes(kept.requests[0], again, rails=rails, kept=kept)
    return _started(kept.requests, again, kept)


def _measured(requests: Sequence[Request], asked: Asked, kept: Kept | None = None) -> int:
    """Measures, keeps and prints; the exit status."""
    from busbw.measuring.running import run_in_threads, run_requests  # noqa: PLC0415 - loads numpy

    rows: list[tuple[Measured, Any]] = list(kept.rows) if kept is not None else []
    done = kept.done() if kept is not None else []
    if kept is not None:
        left = sum(request.key(size) not in set(done) for request in requests for size in request.sizes_bytes)
        note(f"run {kept.name}: {len(rows)} rows were measured before, {left} are missing")
        if not left:
            if asked.perfetto is not None:
                _write_trace(rows, asked.perfetto)
            return WRONG if _show(_merged(requests, rows), asked) else 0
    journal = journal_of(requests, asked, kept)
    keeps_samples = journal is not None or asked.perfetto is not None

    def heard(one: Heard) -> None:
        if one.row is not None:
            rows.append((one.head, one.row))
            if journal is not None:
                journal.row(one.head, one.row)
        elif journal is not None:
            journal.head(one.head)

    refused: list[str] = []

    with kept_journal(journal) as outcome:
        for group in _alike(requests):
            try:
                if asked.how.launcher == "threads":
                    for request in group:
                        run_in_threads(request, heard=heard, done=done)
                else:
                    run_requests(group, asked.how, heard=heard, done=done, samples=keeps_samples, refused=refused)
            except InputError as error:
                if len(group) == len(requests) or (journal is not None and not journal.takes_rows):
                    raise
                refused.append(str(error))
    outcome.bisect(requests[0], asked)
    for reason in refused:
        note(reason)
    title = title_of(requests)
    if (status := outcome.told(title, asked, len(rows))) is not None:
        return status
    wrong = _show(_merged(requests, rows), asked)
    outcome.told_at_the_end(title, asked, len(rows))
    if asked.perfetto is not None:
        _write_trace(rows, asked.perfetto)
    return WRONG if wrong or outcome.reason else 0


def _write_trace(rows: Sequence[tuple[Measured, MeasuredRow]], path: Path) -> None:
    from busbw.measuring.call_spans import call_spans  # noqa: PLC0415
    from busbw.reports.perfetto import write_spans  # noqa: PLC0415

    found = call_spans(rows)
    written = write_spans(found.spans.observations("busbw run", lane="calls"), path)
    dropped = f"; {found.spans.dropped} more had no room" if found.spans.dropped else ""
    before = f"; {found.untimed} rows were measured before, when no times of calls were kept" if found.untimed else ""
    note(f"{written} calls written to {path}{dropped}{before}")


def _suite(path: Path | None, usual: Request) -> list[Request]:
    from busbw.measuring.suite import built_in, suite_from  # noqa: PLC0415

    return built_in(usual) if path is None else suite_from(path, usual, sizes_of)


def _rungs(requests: Sequence[Request], *, nodes: int) -> list[Request]:
    """The same with fewer nodes: each rung is a job of its own, of the first hosts."""
    from busbw.measuring.pairs import scales  # noqa: PLC0415

    per_node = max(1, requests[0].ranks // nodes)
    return [replace(request, ranks=count * per_node) for count in scales(nodes) for request in requests]


def _alike(requests: Sequence[Request]) -> list[list[Request]]:
    """Those that the same ranks can measure one after the other, together, in the order in which the first of them stands."""
    groups: dict[tuple[str, int], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.backend, request.ranks), []).append(request)
    return list(groups.values())


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


def _show(results: Sequence[Measured], asked: Asked) -> int:
    """Prints; the number of wrong elements."""
    from busbw.cli.run_tables import as_json, table_of, wrong_of  # noqa: PLC0415

    if asked.as_json:
        listed = [as_json(one) for one in results]
        print_json(listed[0] if len(listed) == 1 else {"schema": 1, "results": listed})
    else:
        for one in results:
            print(table_of(one, asked.how.launcher), end="")
    return sum(wrong_of(one) for one in results)
