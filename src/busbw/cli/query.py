"""`busbw query`: asks a store in SQL."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from busbw.cli.console import Page, given_path, note

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QueryCommand", "query"]

SCHEMA = 1
"""Number of the JSON shape of `busbw query --json`."""
MAX_PRINTED = 1000
"""Rows of the table for people; --json and --csv have no limit."""
BATCH_ROWS = 10_000


class QueryCommand(typer.core.TyperCommand):
    """The verb, whose help ends with the tables and their columns."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Tables of a store."""
        from busbw.observations import SCHEMAS  # noqa: PLC0415 - loads pyarrow, wanted for this page only

        listed = [(table, ", ".join(schema.names)) for table, schema in sorted(SCHEMAS.items())]
        with formatter.section("Tables"):
            formatter.write_dl([*listed, ("runs", "run_id, artefact, path, created_ns")])


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, in DuckDB's SQL.")],
    store: Annotated[
        Path,
        typer.Option("--store", parser=given_path, metavar="DIR", help="The folder that `busbw read --store` filled."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
) -> None:
    """Ask a store in SQL.

    Every row names the artefact, line and byte offset it came from. An empty cell is NULL: unknown, never 0.

    \b
    Examples:
      busbw query "SELECT collective, size_bytes, max(busbw_bytes_per_s) / 1e9 AS busbw
                   FROM measurements GROUP BY ALL ORDER BY ALL" --store lab
      busbw query "SELECT path, line, text FROM events JOIN artefacts USING (artefact)
                   WHERE level = 'warning'" --store lab --csv
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow

    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other.")
    answer = Store(store).query(sql)
    names = _distinct(answer.schema.names)
    if as_json:
        _print_json(answer, names)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in _rows(answer):
            writer.writerow([_as_text(value, exact=True) for value in row])
    else:
        _print_table(answer, names)


def _print_table(answer: pa.Table, names: list[str]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - 0.2 s, wanted once there are rows

    columns = [
        (name, pa.types.is_integer(kind) or pa.types.is_floating(kind))
        for name, kind in zip(names, answer.schema.types, strict=True)
    ]
    shown = answer.slice(0, MAX_PRINTED)
    page = Page()
    page.table(columns, ([_as_text(value) for value in row] for row in _rows(shown)))
    if answer.num_rows > MAX_PRINTED:
        note(f"{MAX_PRINTED} of {answer.num_rows} rows are shown; --csv and --json print all")


def _print_json(answer: pa.Table, names: list[str]) -> None:
    """One row a line, so that large answers stream and differences are readable."""
    print(f'{{"schema": {SCHEMA}, "rows": [', end="")
    separator = "\n"
    for row in _rows(answer):
        item = {name: _as_json(value) for name, value in zip(names, row, strict=True)}
        print(separator + "  " + json.dumps(item, allow_nan=False, default=str), end="")
        separator = ",\n"
    print("\n]}")


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
