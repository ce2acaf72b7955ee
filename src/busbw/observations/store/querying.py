"""The answer to one SELECT: a view a table over the segments of the runs, in a database that reads nothing else."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from busbw.errors import InputError
from busbw.observations.store.layout import ROW_TABLES
from busbw.observations.store.manifest import Entry, Run
from busbw.observations.store.objects import ObjectPlace
from busbw.observations.store.places import LocalPlace
from busbw.observations.store.records import Recorded, cell_rows
from busbw.observations.tables import SCHEMA_VERSION, SCHEMAS

__all__ = ["GoneError", "answer"]

_RUNS_SCHEMA = pa.schema([
    ("run_id", pa.string()), ("artefact", pa.string()), ("path", pa.string()), ("created_ns", pa.int64()), ("status", pa.string()),
    ("ended_ns", pa.int64()),
])  # fmt: skip

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What a query that only reads is made of (DuckDB's QueryNodeType); COPY and INSERT inside WITH are other nodes."""


class GoneError(InputError):
    """A file could not be opened: it is damaged, or was compacted a moment ago."""


def answer(
    place: LocalPlace | ObjectPlace,
    sql: str,
    runs: Sequence[Run],
    chosen: Mapping[str, tuple[Run, Entry]],
    recorded: Sequence[Recorded],
) -> pa.Table:
    """Runs the query in a database that has the views, can read the store's folder, and can be changed no more."""
    import duckdb  # noqa: PLC0415 - 0.15 s to load, and writers have no use for it

    folder = place.shown
    root = place.root.resolve() if isinstance(place, LocalPlace) else Path()
    with contextlib.closing(duckdb.connect(":memory:")) as database:
        created = [_create(f"empty.{table}", SCHEMAS[table]) for table in ROW_TABLES]
        database.execute(f"CREATE SCHEMA empty; {'; '.join(created)}")
        for table in ROW_TABLES:
            parts = [f'FROM empty."{table}"']
            if table == "settings":
                _create_table(database, "empty.circumstances", _circumstances(recorded))
                parts.append("FROM empty.circumstances")
            of_files = [(run.run_id, name) for run, entry in chosen.values() for name in entry.segments.get(table, ())]
            # Files whose columns are known to be the same need not be laid side by side, for which DuckDB opens every file before it begins.
            alike: dict[tuple[str, ...] | None, list[tuple[str, str]]] = {None: of_files}
            for of in recorded:
                for batch, segment in of.segments(table):
                    columns = segment.missing if batch.schema == SCHEMA_VERSION else None
                    alike.setdefault(columns, []).append((of.run_id, segment.name))
            for columns, segments in alike.items():
                if segments and isinstance(place, ObjectPlace):
                    parts.append(
                        f"FROM {_registered(database, place, f'objects {table} {len(parts)}', table, segments)}"
                    )
                elif segments:
                    listed = ", ".join(_literal(_without_globs(str(root / of / name))) for of, name in segments)
                    parts.append(
                        f"FROM read_parquet([{listed}], union_by_name={columns is None}, hive_partitioning=false)"
                    )
            try:
                database.execute(f'CREATE VIEW "{table}" AS {" UNION ALL BY NAME ".join(parts)}')
            except duckdb.IOException as error:
                raise GoneError(_refusal(folder, str(error))) from error
            except duckdb.Error as error:
                raise InputError(
                    f"{folder}: a segment of {table} cannot be read: {error}. Remove its run and read the files again."
                ) from error
        for name, content in _manifest_tables(runs, chosen, recorded).items():
            _create_table(database, f"main.{name}", content)
        readable = (
            ", ".join({_literal(str(root)), _literal(_without_globs(str(root)))})
            if isinstance(place, LocalPlace)
            else ""
        )
        for setting in (
            "temp_directory = ''",
            "python_enable_replacements = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"allowed_directories = [{readable}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            database.execute(f"SET {setting}")
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or not _only_reads(database, sql):
                raise InputError(
                    _refusal(
                        folder, "one SELECT is wanted (a PIVOT lists its values with IN), nothing that writes or sets"
                    )
                )
            answer: pa.Table = database.sql(statements[0].query).to_arrow_table()
        except duckdb.IOException as error:
            raise GoneError(_refusal(folder, str(error))) from error
        except duckdb.Error as error:
            raise InputError(_refusal(folder, str(error))) from error
        return answer


def _only_reads(database: Any, sql: str) -> bool:
    """Whether a query is SELECT all through: DuckDB lets COPY and INSERT stand inside WITH."""
    ((text,),) = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        answer = json.loads(text)
    except RecursionError:
        return False
    if answer["error"]:
        return False
    pending: list[Any] = [answer["statements"]]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
                return False
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return True


def _refusal(folder: str, reason: str) -> str:
    return f"{folder}: the query was refused: {reason}\nTables: {', '.join(sorted([*SCHEMAS, 'runs']))}."


def _circumstances(recorded: Sequence[Recorded]) -> pa.Table:
    return pa.Table.from_pylist([row for run in recorded for row in run.settings()], schema=SCHEMAS["settings"])


def _manifest_tables(
    runs: Sequence[Run], chosen: Mapping[str, tuple[Run, Entry]], recorded: Sequence[Recorded]
) -> dict[str, pa.Table]:
    """The tables that the manifests hold."""
    entries = [entry for _, entry in chosen.values()]
    losses = [(of, loss) for run in runs for of, loss in run.losses if of in chosen and chosen[of][0] is run]
    rows: dict[str, list[dict[str, Any]]] = {
        "artefacts": [
            {
                "artefact": entry.sha256,
                "path": entry.path,
                "size_bytes": entry.size_bytes,
                "formats": list(entry.formats),
            }
            for entry in entries
        ]
        + [{"artefact": run.artefact, "path": run.name, "formats": ["recorded"]} for run in recorded],
        "cells": list(cell_rows(recorded)),
        "losses": [
            {
                "artefact": of,
                "path": loss.path,
                "line": loss.line,
                "kind": loss.kind,
                "detail": loss.detail,
                "count": loss.count,
            }
            for of, loss in losses
        ],
        "runs": [
            {
                "run_id": run.run_id,
                "artefact": entry.sha256,
                "path": path,
                "created_ns": run.created_ns,
                "status": "done",
                "ended_ns": run.created_ns,
            }
            for run in runs
            for entry in run.artefacts
            for path in (entry.path, *entry.copies)
        ]
        + [
            {
                "run_id": run.run_id,
                "artefact": run.artefact,
                "path": run.name,
                "created_ns": run.created_ns,
                "status": run.status(),
                "ended_ns": run.ended_ns(),
            }
            for run in recorded
        ],
    }
    return {name: pa.Table.from_pylist(listed, schema=SCHEMAS.get(name, _RUNS_SCHEMA)) for name, listed in rows.items()}


def _registered(database: Any, place: ObjectPlace, name: str, table: str, segments: Sequence[tuple[str, str]]) -> str:
    """Segments of a table as pyarrow reads them: only the columns and row groups that a query wants travel."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - for object stores only

    paths = [place.path(of, name) for of, name in segments]
    database.register(name, ds.dataset(paths, schema=SCHEMAS[table], format="parquet", filesystem=place.file_system))
    return f'"{name}"'


_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "int32": "INTEGER", "double": "DOUBLE", "bool": "BOOLEAN"}
"""DuckDB's names of Arrow's types."""


def _create(name: str, schema: pa.Schema) -> str:
    """The statement that makes an empty table: a tenth of the time that DuckDB takes to look at an Arrow table without rows."""
    schema_name, table = name.split(".")
    columns = ", ".join(f'"{field.name}" {_type(field.type)}' for field in schema)
    return f'CREATE TABLE "{schema_name}"."{table}" ({columns})'


def _type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"MAP({_type(kind.key_type)}, {_type(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    return _TYPES[str(kind)]


def _create_table(database: Any, name: str, content: pa.Table) -> None:
    database.execute(_create(name, content.schema))
    if content.num_rows:
        schema, table = name.split(".")
        database.register("incoming", content)
        database.execute(f'INSERT INTO "{schema}"."{table}" FROM incoming')
        database.unregister("incoming")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _without_globs(path: str) -> str:
    """The path as a pattern that matches itself: DuckDB expands *, ? and [ in the names of files."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)
