"""`busbw score` and `busbw calibrate`: the time model against measured tables, and fitted to them."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbw.cli.console import Page, given_path, json_text, note, print_json
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.accuracy import MeasuredTable, Score
    from busbw.prediction import Calibration

__all__ = ["calibrate", "score"]

_SIZES = ("small", "middle", "large")


def score(  # noqa: PLR0917 - an option each
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="measured/1 tables, output of benchmarks, workload files, or folders."),
    ],
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME|FILE", help="Where the benchmarks ran, if their files do not say."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", min=1, help="Nodes that took part, if the files do not say.")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE", help="Made by `busbw calibrate`; the shipped one if none."),
    ] = None,
    leave_out: Annotated[
        bool,
        typer.Option("--leave-out", help="Predict each campaign by a calibration fitted to the others among PATH."),
    ] = False,
    with_rows: Annotated[bool, typer.Option("--rows", help="Show every row.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also tables that are not healthy, or of other libraries than NCCL and RCCL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Compare predicted with measured times, table by table.

    An error is abs(predicted / measured - 1) of time; a table's is the median over its rows out of place. small is below
    64 KiB, large from 64 MiB. The shipped calibration was fitted to published tables: those it knows are no test of it,
    so use --leave-out for them.

    Training steps of workload files are scored by a calibration of their own, fitted to published steps.

    Also scored is what a log, CSV or JSON of nccl-tests, rccl-tests or OSU holds, where the file or --cluster says on which
    hardware. What cannot be is refused and counted: layout-unknown, hardware-unknown, not-measured, unsupported.

    \b
    Examples:
      busbw score tables/
      busbw score nccl-tests.log --cluster dgx-h100 --nodes 4
      busbw score tables/ --leave-out --json
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.accuracy import curves_of_table, read_scorable, score_left_out  # noqa: PLC0415 - loads numpy
    from busbw.accuracy import score as scored  # noqa: PLC0415
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.prediction import load_calibration, read_calibration  # noqa: PLC0415

    if leave_out and calibration is not None:
        raise typer.BadParameter("--leave-out fits its own calibrations; drop --calibration.")
    where = None
    if cluster is not None:
        where, losses = find_cluster(cluster, nodes)
        for loss in losses:
            note(str(loss))
    with tempfile.TemporaryDirectory(prefix="busbw-") as spool:
        read = read_scorable(paths, where, nodes, Path(spool))
    for line in read.unread:
        note(line)
    kept = [*(table for table in read.tables if everything or table.is_scored), *read.observed, *read.workloads]
    if not kept:
        raise InputError(_nothing_to_score(read.tables, read.unread))
    if leave_out:
        rest = [curve for table in read.tables if table not in kept for curve in curves_of_table(table)]
        found = score_left_out(kept, [*read.curves, *rest])
    else:
        used = read_calibration(given_path(calibration)) if calibration is not None else load_calibration()
        _warn_of_known(kept, used)
        found = scored(kept, used)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, with_rows)


def calibrate(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="measured/1 tables, collectives.parquet, or folders of them."),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write; standard output if none.")
    ] = None,
) -> None:
    """Fit the time model's parameters to measured tables; writes a calibration for `--calibration`.

    Tables about something slow are left out. Intervals come from leaving each campaign out once.

    \b
    Example:
      busbw calibrate tables/ -o mine.json
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.accuracy import calibrate as calibrated  # noqa: PLC0415 - loads numpy
    from busbw.accuracy import read_all  # noqa: PLC0415
    from busbw.prediction.calibration import to_json  # noqa: PLC0415

    tables, others, unread = read_all([given_path(path) for path in paths])
    for line in unread:
        note(line)
    found = calibrated(tables, others)
    note(f"fitted to {len(found.fitted_to)} curves of {len({table.campaign for table in tables})} campaigns.")
    if output is None:
        print_json(to_json(found))
    else:
        Path(given_path(output)).write_text(json_text(to_json(found)) + "\n", encoding="utf-8")


def _nothing_to_score(tables: list[MeasuredTable], unread: list[str]) -> str:
    if not tables:
        return unread[0] if unread else "nothing to score there: no measured/1 table, no table of a benchmark."
    return f"{len(tables)} tables, and none is a healthy one of NCCL or RCCL. Pass --all to score them too."


def _warn_of_known(tables: list[MeasuredTable], used: Calibration) -> None:
    from busbw.workloads.training.calibration import load_training_calibration  # noqa: PLC0415

    fitted = {*used.fitted_to, *load_training_calibration().fitted_to}
    known = sum(table.id in fitted for table in tables if table.rows or table.training)
    if known:
        note(
            f"{known} of {len(tables)} tables are among those the calibration was fitted to; --leave-out judges fairly."
        )


def _print(found: Score, with_rows: bool) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    columns = [("table", False), ("rows", True), ("error %", True), *((f"{size} %", True) for size in _SIZES), ("refused", False)]  # fmt: skip
    page.table(
        columns,
        (
            [
                table.table.id,
                str(len(table.rows)),
                _percent(table.median_error),
                *(_percent(table.median_error_of(size)) for size in _SIZES),
                ", ".join(sorted({refusal.kind for refusal in table.refused})) or "-",
            ]
            for table in found.tables
        ),
    )
    if with_rows:
        page.line()
        rows = [
            ("table", False),
            ("size or row", True),
            ("measured us", True),
            ("predicted us", True),
            ("low", True),
            ("high", True),
        ]
        page.table(
            rows,
            (
                [
                    table.table.id,
                    format_bytes(row.size_bytes) if row.size_bytes else str(row.row),
                    *(f"{value * 1e6:.4g}" for value in (row.measured_s, row.predicted_s, row.low_s, row.high_s)),
                ]
                for table in found.tables
                for row in table.rows
            ),
        )
    errors = [row.error for row in found.rows]
    kinds = Counter(refusal.kind for table in found.tables for refusal in table.refused)
    refused = f": {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}" if kinds else ""
    page.line()
    page.line(
        f"median over tables {_percent(found.median_of_tables())} %, over {len(errors)} rows {_percent(_quantile(errors, 0.5))} %, "
        f"p90 {_percent(_quantile(errors, 0.9))} %, refused {found.refused}{refused}"
    )


def _quantile(errors: list[float], share: float) -> float | None:
    import numpy as np  # noqa: PLC0415 - help pages do without

    return float(np.quantile(errors, share)) if errors else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"
