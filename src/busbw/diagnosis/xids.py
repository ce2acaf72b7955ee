"""Xids: the numbers under which the NVIDIA driver reports errors of a GPU, what each means and whose fault it usually is."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, get_args

__all__ = ["Cause", "Xid", "xids"]

Cause = Literal["application", "consequence", "memory", "nvlink", "bus", "driver", "hardware", "information"]
"""Whose fault it usually is. consequence: of an error before it; driver: driver, its firmware or a controller inside the GPU stopped;
information: fails no job by itself."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of xids.json."""

    code: int
    name: str
    meaning: str
    cause: Cause
    action: str
    source: str

    def __post_init__(self) -> None:
        """Raises ValueError for a row that rules could not use: a slip of whoever edited the table."""
        if self.code <= 0 or self.cause not in get_args(Cause):
            raise ValueError(f"xids.json, Xid {self.code}: code must be positive, cause one of {get_args(Cause)}")
        if not all((self.name, self.meaning, self.action, self.source)):
            raise ValueError(f"xids.json, Xid {self.code}: name, meaning, action and source must all say something")


@functools.cache
def xids() -> Mapping[int, Xid]:
    """The table xids.json by code. Raises ValueError for a code that is there twice."""
    rows = [Xid(**row) for row in json.loads(files("busbw.diagnosis").joinpath("xids.json").read_text("utf-8"))["xids"]]
    table = {row.code: row for row in rows}
    if len(table) < len(rows):
        raise ValueError("xids.json: a code is there twice; merge its rows")
    return table
