"""NCCL's environment variables that matter: default, meaning, typical misuse, and those that do nothing any more."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["Variable", "find_variable", "load_variables"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. Source of the table: NVIDIA/nccl 2.30.7, src/misc/param.cc and the files that read each variable."""

    name: str
    default: str | None
    """None: nothing is set, NCCL decides."""
    meaning: str
    effective: bool
    """False: current NCCL does not read it any more."""


@functools.cache
def load_variables() -> dict[str, Variable]:
    """The table by name."""
    rows = json.loads(files("busbw.nccl").joinpath("variables.json").read_text("utf-8"))["variables"]
    return {r["name"]: Variable(r["name"], r["default"], r["meaning"], r.get("effective", True)) for r in rows}


def find_variable(name: str) -> Variable | None:
    """The variable of that name, or None if the table lacks it.

    >>> find_variable("NCCL_IB_TIMEOUT").default, find_variable("NCCL_TREE_THRESHOLD").effective, find_variable("NCCL_X")
    ('20', False, None)
    """
    return load_variables().get(name)
