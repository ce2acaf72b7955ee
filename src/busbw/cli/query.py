"""`busbw query`: asks a store in SQL."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
import typer.core

from busbw.cli.console import Page, given_path, given_store, note

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QueryCommand", "query"]

SCHEMA = 1
"""Number of the JSON shape of `busbw query --json`."""
MAX_PRINTED = 1000
"""Rows of the table for people; --json and --csv have no limit."""
BATCH_ROWS = 10_000
_FORMATS = ("table", "json", "csv", "arrow", "parquet")
_BINARY = ("arrow", "parquet")


class QueryCommand(typer.core.TyperCommand):
    """The verb, whose help ends with the tables and their columns."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Tables of a store."""
        from busbw.observations import SCHEMAS  # noqa: PLC0415 - loads pyarrow, wanted for this page only

        listed = [(table, ", ".join(schema.names)) for table, schema in sorted(SCHEMAS.items())]
        with formatter.section("Tables"):
            formatter.write_dl([*listed, ("runs", "run_id, artefact, path, created_ns, status, ended_ns")])


def query(  # noqa: PLR0917 - an option each
    store: Annotated[
        str,
        typer.Option(
            "--store",
            parser=given_store,
            metavar="DIR",
            help="The folder that `busbw read --store` or `busbw run --store` filled, or s3://BUCKET/PREFIX.",
        ),
    ],
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="One SELECT, in DuckDB's SQL.")] = None,
    standard: Annotated[
        str | None,
        typer.Option(
            "--standard",
            metavar="NAME",
            help="Instead of SQL, about samples: latest, percentiles, rank-medians, stragglers, compare, history.",
        ),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="ID", help="Of --standard: the run; twice for compare. All runs if not given."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="table, json, csv, arrow (IPC file) or parquet.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", parser=given_path, metavar="FILE", help="Write there, not to standard output."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Short for --format csv.")] = False,
) -> None:
    """Ask a store in SQL.

    Every row names the artefact, line and byte offset it came from, or the run that recorded it. An empty cell is NULL: unknown, never 0.

    \b
    Examples:
      busbw query "SELECT collective, size_bytes, max(busbw_bytes_per_s) / 1e9 AS busbw
                   FROM measurements GROUP BY ALL ORDER BY ALL" --store lab
      busbw query "SELECT path, line, text FROM events JOIN artefacts USING (artefact)
                   WHERE level = 'warning'" --store lab --csv
      busbw query --standard percentiles --store lab
      busbw query "FROM samples" --store s3://bench/lab --format parquet -o samples.parquet
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow

    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other.")
    if as_json or as_csv:
        if form != "table":
            raise typer.BadParameter(f"--format {form} and --{'json' if as_json else 'csv'} exclude each other.")
        form = "json" if as_json else "csv"
    if form not in _FORMATS:
        raise typer.BadParameter(f"--format {form}: there are {', '.join(_FORMATS)}.")
    if form in _BINARY and output is None and sys.stdout.isatty():
        raise typer.BadParameter(f"--format {form} is no text for a terminal; give -o FILE, or a pipe.")
    answer = Store(store).query(_sql(sql, standard, runs or [])).arrow()
    names = _distinct(answer.schema.names)
    if form in _BINARY:
        _write_binary(answer.rename_columns(names), form, output)
        return
    with output.open("w", encoding="utf-8") if output else contextlib.nullcontext(sys.stdout) as out:
        if form == "json":
            _print_json(answer, names, out)
        elif form == "csv":
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(names)
            for row in _rows(answer):
                writer.writerow([_as_text(value, exact=True) for value in row])
        else:
            _print_table(answer, names, out)


def _sql(sql: str | None, standard: str | None, runs: list[str]) -> str:
    from busbw.observations.store.standard import RUNS_TAKEN, STANDARD  # noqa: PLC0415 - loads pyarrow

    if (sql is None) == (standard is None):
        raise typer.BadParameter("give one SELECT, or --standard NAME.")
    if standard is None:
        if runs:
            raise typer.BadParameter("--run belongs to --standard; in SQL write WHERE run_id = '...'.")
        return str(sql)
    if standard not in STANDARD:
        raise typer.BadParameter(f"--standard {standard}: there are {', '.join(STANDARD)}.")
    least, most = RUNS_TAKEN[standard]
    if not least <= len(runs) <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}"
        raise typer.BadParameter(f"--standard {standard} takes {wanted} of --run, not {len(runs)}.")
    return STANDARD[standard](*runs)


def _write_binary(answer: pa.Table, form: str, output: Path | None) -> None:
    import pyarrow as pa  # noqa: PLC0415 - wanted once there are rows

    with output.open("wb") if output else contextlib.nullcontext(sys.stdout.buffer) as out:
        if form == "parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415

            pq.write_table(answer, out, compression="zstd")
        else:
            with pa.ipc.new_file(out, answer.schema) as writer:
                writer.write_table(answer)


def _print_table(answer: pa.Table, names: list[str], out: TextIO) -> None:
    import pyarrow as pa  # noqa: PLC0415 - 0.2 s, wanted once there are rows

    columns = [
        (name, pa.types.is_integer(kind) or pa.types.is_floating(kind))
        for name, kind in zip(names, answer.schema.types, strict=True)
    ]
    shown = answer.slice(0, MAX_PRINTED)
    page = Page(out)
    page.table(columns, ([_as_text(value) for value in row] for row in _rows(shown)))
    if answer.num_rows > MAX_PRINTED:
        note(f"{MAX_PRINTED} of {answer.num_rows} rows are shown; --csv and --json print all")


def _print_json(answer: pa.Table, names: list[str], out: TextIO) -> None:
    """One row a line, so that large answers stream and differences are readable."""
    print(f'{{"schema": {SCHEMA}, "rows": [', end="", file=out)
    separator = "\n"
    for row in _rows(answer):
        item = {name: _as_json(value) for name, value in zip(names, row, strict=True)}
        print(separator + "  " + json.dumps(item, allow_nan=False, default=str), end="", file=out)
        separator = ",\n"
    print("\n]}", file=out)


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows, a batch in memory at a time; maps are dictionaries."""
    import pyarrow as pa  # noqa: PLC0415

    maps = [pa.types.is_map(kind) for kind in table.schema.types]
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield tuple(dict(v) if is_map and v is not None else v for v, is_map in zip(row, maps, strict=True))


def _distinct(names: list[str]) -> list[str]:
    """Column names made different from one another: x, x_2, x_3."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _as_json(value: Any) -> Any:
    """Infinities and not-a-numbers have no JSON; they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(value: Any, exact: bool = False) -> str:
    """A cell; floats with six digits unless exact."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if exact else f"{value:.6g}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
