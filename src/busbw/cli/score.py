"""`busbw score` and `busbw calibrate`: the time model against measured tables, and fitted to them."""

from __future__ import annotations

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
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="measured/1 tables, or folders of them.")],
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

    \b
    Examples:
      busbw score tables/
      busbw score tables/ --leave-out --json
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.accuracy import curves_of_table, read_all, score_left_out  # noqa: PLC0415 - loads numpy
    from busbw.accuracy import score as scored  # noqa: PLC0415
    from busbw.prediction import load_calibration, read_calibration  # noqa: PLC0415

    if leave_out and calibration is not None:
        raise typer.BadParameter("--leave-out fits its own calibrations; drop --calibration.")
    tables, others, unread = read_all([given_path(path) for path in paths])
    for line in unread:
        note(line)
    kept = [table for table in tables if everything or table.is_scored]
    if not kept:
        raise InputError(_nothing_to_score(tables, unread))
    if leave_out:
        rest = [curve for table in tables if table not in kept for curve in curves_of_table(table)]
        found = score_left_out(kept, [*others, *rest])
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
        return unread[0] if unread else "nothing to score there: no measured/1 table."
    return f"{len(tables)} tables, and none is a healthy one of NCCL or RCCL. Pass --all to score them too."


def _warn_of_known(tables: list[MeasuredTable], used: Calibration) -> None:
    known = sum(table.id in used.fitted_to for table in tables)
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
            ("size", True),
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
                    format_bytes(row.size_bytes),
                    *(f"{value * 1e6:.4g}" for value in (row.measured_s, row.predicted_s, row.low_s, row.high_s)),
                ]
                for table in found.tables
                for row in table.rows
            ),
        )
    overall = found.to_json()["overall"]
    page.line()
    page.line(
        f"median over tables {_percent(found.median_of_tables())} %, over {overall['rows']} rows {overall['median_abs_pct']} %, "
        f"p90 {overall['p90_abs_pct']} %, refused {overall['refused']}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"
