"""The answer to a query, in the form that the caller's tools take."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa

from busbw.errors import InputError

__all__ = ["Answer"]


class Answer:
    """Rows and columns: Arrow, pandas or polars, imported when asked for. All else is as pyarrow's Table has it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._table, name)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Arrow's PyCapsule interface, by which any library may take the rows without copying them."""
        return self._table.__arrow_c_stream__(requested_schema)

    def arrow(self) -> pa.Table:
        """As a table of pyarrow."""
        return self._table

    def pandas(self) -> Any:
        """As a frame of pandas whose columns stay Arrow's: integers with NULLs would else become floats, which round nanoseconds.

        Raises InputError where pandas is not installed.
        """
        pandas = _imported("pandas")
        return self._table.to_pandas(types_mapper=pandas.ArrowDtype)

    def polars(self) -> Any:
        """As a frame of polars. Raises InputError where it is not installed."""
        return _imported("polars").from_arrow(self._table)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{name} is not installed: pip install {name}. Arrow's tables need nothing more: arrow()."
        ) from error
