"""SQLite files from strangers: opened so that they can only be read, in bounded time and memory; what is wrong with them is data."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from busbw.errors import Losses

__all__ = ["WRONG", "Database", "Table"]

WRONG = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What a damaged database raises: messages of SQLite quote the file, and may be no UTF-8."""

_ROWS_AT_A_TIME = 8192
_STEPS_BETWEEN_LOOKS = 1 << 17
_STEPS_A_BYTE = 40
"""Steps of SQLite's machine that reading a byte may take: a row takes 20 bytes or more of a file and some 30 steps. A guess, generous by ten; it ends the
reading of files whose pages lead in circles."""
_LEAST_STEPS = 1 << 21
_MOST_BYTES_A_VALUE = 1 << 26
"""Of one row. Exports keep the text of whole files in one string."""
_MOST_TABLES = 4096
_MOST_COLUMNS = 256
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_FUNCTIONS = frozenset({"substr", "length", "typeof", "like", "abs"})


class Table:
    """A table that rows can be read from: its name and its columns."""

    __slots__ = ("columns", "name")

    def __init__(self, name: str, columns: frozenset[str]) -> None:
        self.name = name
        self.columns = columns


class Database:
    """A database as it lies on disk. Views, virtual tables and computed columns are not read: they would run what the file says."""

    def __init__(self, file: Path, size_bytes: int, losses: Losses) -> None:
        self._losses = losses
        self._steps_left = _LEAST_STEPS + _STEPS_A_BYTE * size_bytes
        self._tables: dict[str, Table] = {}
        # immutable: no lock, no journal of the same name is played back.
        self._connection = sqlite3.connect(
            f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
        try:
            self._harden()
            self._learn()
        except WRONG as error:
            self._damaged("its list of tables", error)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _harden(self) -> None:
        connection = self._connection
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        for limit, most in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_A_VALUE), (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1 << 16), (sqlite3.SQLITE_LIMIT_COLUMN, 2000),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 64), (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 2), (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1), (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0), (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 64),
        ):  # fmt: skip
            connection.setlimit(limit, most)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0", "cache_size=-8192"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_progress_handler(self._look, _STEPS_BETWEEN_LOOKS)

    def _look(self) -> int:
        self._steps_left -= _STEPS_BETWEEN_LOOKS
        return int(self._steps_left < 0)

    def _learn(self) -> None:
        """Plain tables and their plain columns; from here on nothing but SELECT is allowed."""
        listed = self._connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 0 LIMIT ?", (_MOST_TABLES,)
        ).fetchall()
        for name, sql in listed:
            if not (isinstance(name, str) and isinstance(sql, str) and _PLAIN_NAME.fullmatch(name)):
                continue
            described = self._connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
            plain = {column[1] for column in described if column[6] == 0 and _PLAIN_NAME.fullmatch(str(column[1]))}
            self._tables[name] = Table(name, frozenset(sorted(plain)[:_MOST_COLUMNS]))
        self._connection.set_authorizer(_only_reads)

    def tables(self) -> list[str]:
        """Names of all tables, as the file has them."""
        return list(self._tables)

    def table(self, name: str) -> Table | None:
        """The table of this name, or, where a version of the exporter numbers it (name_V3), the latest of them."""
        if name in self._tables:
            return self._tables[name]
        numbered = [
            (int(found[1]), other)
            for other in self._tables
            if (found := re.fullmatch(rf"{re.escape(name)}_V(\d{{1,4}})", other))
        ]
        return self._tables[max(numbered)[1]] if numbered else None

    def rows(
        self, table: Table, columns: Sequence[str], *, where: str = "", values: Sequence[Any] = (), most: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Rows in pieces, in the order of the file; a column that the table has not is NULL. Damage ends them, and is counted.

        columns: names, or expressions that name no column the table lacks. most: rows beyond are counted as `too-large`.
        """
        chosen = ", ".join(
            "NULL"
            if _PLAIN_NAME.fullmatch(column) and column != "rowid" and column not in table.columns
            else _quoted(column)
            for column in columns
        )
        condition = f" WHERE {where}" if where else ""
        left = most
        try:
            cursor = self._connection.execute(f'SELECT {chosen} FROM "{table.name}"{condition}', tuple(values))
            while piece := cursor.fetchmany(_ROWS_AT_A_TIME):
                if len(piece) > left:
                    self._losses.add(
                        "too-large",
                        None,
                        f"rows of {table.name} beyond the first {most:,} were left out; export a shorter time",
                    )
                    piece = piece[:left]
                left -= len(piece)
                if piece:
                    yield piece
                if not left:
                    cursor.close()
                    return
        except WRONG as error:
            self._damaged(f"table {table.name}", error)

    def _damaged(self, where: str, error: Exception) -> None:
        reason = "its pages lead in circles" if self._steps_left < 0 else str(error)[:120]
        self._losses.add(
            "damaged-file",
            None,
            f"{where} cannot be read ({reason}); what was read before it is kept; export again, or copy the file again",
        )


def _quoted(column: str) -> str:
    return f'"{column}"' if _PLAIN_NAME.fullmatch(column) and column != "rowid" else column


def _only_reads(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _READING and trigger is None:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
