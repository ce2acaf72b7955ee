"""`busbw expected`: the healthy table of a platform, alone or beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.predictions import (
    CalibrationFile,
    Changes,
    Sizes,
    Variables,
    Version,
    collective_of,
    head_of,
    pairs_of,
    rate,
    row_json,
    sizes_of,
    three,
    time_us,
    write_plot,
)
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.accuracy import BesideRow, Observed
    from busbw.hardware import Cluster
    from busbw.nccl import Settings
    from busbw.prediction import Calibration, Predictions

__all__ = ["expected"]

SCHEMA = 1
"""Number of the JSON shape of `busbw expected --json`."""
_WRONG_FROM = 0.5
"""Share of rows slower than the interval from which a table is called slow. The rows of one machine err together: of healthy
tables one in ten lies below the interval as a whole, of a table's rows beside it few."""


def expected(  # noqa: PLR0917 - an option each
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME|FILE",
            help="A node of `busbw hardware`, or a file that describes one; with --beside it may be found in the file.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=1,
            help="Number of nodes; if not given what the file of --beside or of --cluster has, or 1.",
        ),
    ] = None,
    collectives: Annotated[
        list[str] | None,
        typer.Option("--collective", metavar="NAME", help="all-reduce if not given; may be repeated."),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option("--beside", metavar="FILE", help="Lay this output of a benchmark beside; - is standard input."),
    ] = None,
    sizes: Sizes = None,
    variables: Variables = None,
    what_if: Changes = None,
    version: Version = None,
    calibration: CalibrationFile = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", parser=given_path, metavar="FILE.svg", help="Draw the first table."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show what a healthy platform reaches, or whether yours does.

    Columns are in the order of nccl-tests. low and high are of busbw: 80 % of healthy, quiet clusters measure between them.
    --beside FILE takes its sizes, collective, ranks and, where it names the GPU, the platform from the file; `reached` is
    measured over expected busbw, and a row outside its interval is marked. Exits with 1 if more than half of the rows of
    a table are slower than theirs.

    \b
    Examples:
      busbw expected --cluster dgx-h100 --nodes 2
      busbw expected --cluster dgx-a100 --collective all-gather --collective all-to-all
      busbw expected --beside nccl-tests.log
      busbw expected --beside nccl-tests.log --cluster dgx-h100 --nodes 4 --plot curve.svg
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.nccl import DEFAULT_VERSION, read_settings  # noqa: PLC0415 - loads numpy
    from busbw.prediction import read_calibration  # noqa: PLC0415

    if cluster is None and beside is None:
        raise typer.BadParameter("--cluster says which platform, such as --cluster dgx-h100; or give --beside FILE.")
    if beside is not None and sizes:
        raise typer.BadParameter("--beside takes its sizes from the file; drop --bytes.")
    asked = _Asked(
        settings=read_settings(pairs_of("--env", variables or [], "NCCL_ALGO=Ring")),
        version=version or DEFAULT_VERSION,
        calibration=read_calibration(given_path(calibration)) if calibration is not None else None,
        what_if=pairs_of("--set", what_if or [], "nic.rate=200Gb/s"),
    )
    found, losses = find_cluster(cluster, nodes) if cluster is not None else (None, [])
    for loss in losses:
        note(str(loss))
    names = [collective_of(name) for name in collectives or ()]
    if beside is not None:
        tables = _laid_beside(beside, found, nodes, names, asked)
    elif found is not None:
        wanted = sizes_of(sizes or ["8:16GiB:2"])
        tables = [asked.table(found, name, wanted) for name in names or ["all_reduce"]]
    for line in dict.fromkeys(line for table in tables for line in table.result.notes):
        note(line)
    if plot is not None:
        _draw(plot, tables)
    if as_json:
        print_json({"schema": SCHEMA, "tables": [_as_json(table) for table in tables]})
    else:
        page = Page()
        for place, table in enumerate(tables):
            if place:
                page.line()
            _print(page, table)
    raise typer.Exit(1 if any(table.is_slow for table in tables) else 0)


@dataclass(frozen=True, slots=True)
class _Table:
    """A healthy table, and the measured one laid beside it."""

    cluster: str
    nodes: int
    result: Predictions
    measured: Observed | None = None
    rows: tuple[BesideRow, ...] = ()

    def count(self, verdict: str) -> int:
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def is_slow(self) -> bool:
        return self.count("slower") > _WRONG_FROM * len(self.rows)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How to predict."""

    settings: Settings
    version: str
    calibration: Calibration | None
    what_if: dict[str, str]

    def table(self, cluster: Cluster, collective: str, sizes: list[int], ranks: int | None = None) -> _Table:
        from busbw.hardware import set_figures  # noqa: PLC0415 - reads the catalogue
        from busbw.prediction import predict  # noqa: PLC0415 - loads numpy

        changed = set_figures(cluster, self.what_if)
        result = predict(
            changed, collective, sizes,
            ranks=ranks, settings=self.settings, version=self.version, calibration=self.calibration,
        )  # fmt: skip
        return _Table(cluster.name, cluster.nodes, result)


def _laid_beside(
    path: str, cluster: Cluster | None, nodes: int | None, names: list[str], asked: _Asked
) -> list[_Table]:
    from busbw.accuracy import beside, observed_tables, situation_said  # noqa: PLC0415 - loads numpy
    from busbw.cli.inputs import found as found_inputs  # noqa: PLC0415 - loads the tables
    from busbw.prediction import PREDICTED  # noqa: PLC0415

    with found_inputs([path]) as inputs:
        for loss in inputs.losses:
            note(str(loss))
        read = [observed_tables(artefact) for artefact in inputs.artefacts]
    for loss in (loss for _, losses in read for loss in losses):
        note(str(loss))
    tables = [table for found, _ in read for table in found]
    if not tables:
        raise InputError(f"{path}: no table of a benchmark in it. `busbw read {path}` shows what there is.")
    if len(names) == 1:  # a file often does not say it
        tables = [replace(table, collective=table.collective or names[0]) for table in tables]
    wanted = [table for table in tables if table.collective in (names or PREDICTED)]
    if not wanted:
        there = ", ".join(sorted({(table.collective or table.tool).replace("_", "-") for table in tables}))
        raise InputError(
            f"{path}: no table of a collective that is predicted; there is {there}. --collective names it if the file does not."
        )
    laid = []
    for table in wanted:
        measured = sorted({row.size_bytes for row in table.shown_rows if row.size_bytes and row.time_s})
        if not measured:
            raise InputError(f"{table.id}: no row has a size and a time.")
        try:
            where, situation = situation_said(table, cluster, nodes)
        except InputError as error:
            raise InputError(f"{table.id}: {error}") from None
        if table.sockets and situation.domains > 1:
            note(f"{table.id}: NCCL ran over TCP sockets; expected is what the NICs give.")
        made = asked.table(where, table.collective or "", measured, situation.ranks)
        laid.append(replace(made, measured=table, rows=tuple(beside(table, made.result))))
    return laid


def _print(page: Page, table: _Table) -> None:
    result = table.result
    page.line(*head_of(result, table.cluster, table.nodes))
    if table.measured is not None:
        page.line((f"beside {table.measured.id}", "dim"))
    page.line()
    if table.measured is None:
        columns = [
            ("size B", True), ("time us", True), ("algbw GB/s", True), ("busbw GB/s", True), ("low", True), ("high", True),
            ("algorithm", False), ("protocol", False), ("channels", True), ("waits for", False),
        ]  # fmt: skip
        page.table(
            columns,
            (
                [
                    str(int(result.size_bytes[place])),
                    time_us(float(result.time_s[place])),
                    rate(float(result.algbw_bytes_per_s[place])),
                    *(rate(busbw) for busbw in _busbw(result, place)),
                    result.algorithm[place],
                    result.protocol[place],
                    str(result.channels[place] or "-"),
                    result.limit(place),
                ]
                for place in range(len(result.size_bytes))
            ),
        )
        return
    columns = [
        ("size B", True), ("time us", True), ("expected", True), ("busbw GB/s", True), ("expected", True), ("low", True),
        ("high", True), ("reached", True), ("", False), ("algorithm", False), ("protocol", False), ("waits for", False),
    ]  # fmt: skip
    page.table(columns, (_beside_row(result, row) for row in table.rows))
    page.line()
    page.line(_summary(table))


def _busbw(result: Predictions, place: int) -> tuple[float, float, float]:
    """Predicted bus bandwidth, and its bounds: the longest time is the lowest."""
    middle, took = float(result.busbw_bytes_per_s[place]), float(result.time_s[place])
    return middle, middle * took / float(result.high_s[place]), middle * took / float(result.low_s[place])


def _beside_row(result: Predictions, row: BesideRow) -> list[str]:
    middle, low, high = _busbw(result, row.place)
    return [
        str(row.row.size_bytes),
        time_us(row.measured_s),
        time_us(row.predicted_s),
        rate(middle * row.reached),
        *(rate(busbw) for busbw in (middle, low, high)),
        f"{three(row.reached * 100)} %",
        "" if row.verdict == "within" else row.verdict,
        result.algorithm[row.place],
        result.protocol[row.place],
        result.limit(row.place),
    ]


def _summary(table: _Table) -> str:
    slow, fast, rows = table.count("slower"), table.count("faster"), len(table.rows)
    told = f"{rows - slow - fast} of {rows} rows lie within their interval, {slow} are slower, {fast} faster"
    if table.is_slow:
        return f"{told}: slower than a healthy platform. `busbw explain {table.measured.path if table.measured else ''}` looks for the cause."
    if fast > _WRONG_FROM * rows:
        return f"{told}: faster than this platform should be. Is it the right --cluster?"
    return f"{told}: as a healthy platform."


def _as_json(table: _Table) -> dict[str, Any]:
    result = table.result
    made: dict[str, Any] = {
        "collective": result.collective,
        "cluster": table.cluster,
        "nodes": table.nodes,
        "ranks": result.where.ranks,
        "rows": [],
        "notes": list(result.notes),
    }
    places = range(len(result.size_bytes)) if table.measured is None else [row.place for row in table.rows]
    for place in places:
        _, low, high = _busbw(result, place)
        made["rows"].append(row_json(result, place) | {"busbw_low_bytes_per_s": low, "busbw_high_bytes_per_s": high})
    if table.measured is not None:
        made["source"] = table.measured.id
        for told, row in zip(made["rows"], table.rows, strict=True):
            told |= {"line": row.row.line, "measured_s": row.measured_s, "reached": row.reached, "verdict": row.verdict}
        made |= {name: table.count(name) for name in ("within", "slower", "faster")}
        made["is_slow"] = table.is_slow
    return made


def _draw(path: Path, tables: list[_Table]) -> None:
    from busbw.reports import MeasuredPoint  # noqa: PLC0415 - takes a second

    table = tables[0]
    if len(tables) > 1:
        note(f"--plot draws the first of {len(tables)} tables; name one with --collective.")
    result = table.result
    points = [
        MeasuredPoint(row.row.size_bytes or 0, _busbw(result, row.place)[0] * row.reached, row.verdict == "slower")
        for row in table.rows
    ]
    title = f"{result.collective.replace('_', '-')}, {table.nodes} x {table.cluster}, {result.where.ranks} ranks"
    write_plot(path, result, points, title)
