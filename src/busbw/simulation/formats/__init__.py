"""Files that hold task graphs, one format a module. A file that cannot be a graph raises InputError with its line."""

from __future__ import annotations

from pathlib import Path

from busbw.errors import InputError
from busbw.simulation.formats.goal import read_goal
from busbw.simulation.formats.graph_json import read_graph_json
from busbw.simulation.graph import TaskGraph

__all__ = ["MAX_BYTES", "read_graph"]

MAX_BYTES = 1 << 30
"""Largest file read: a graph of some 10 million tasks. A guess at what memory allows."""


def read_graph(path: Path) -> TaskGraph:
    """The graph in a file: our JSON, or GOAL text, told by its first character. Checked. Raises InputError."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: no file. Give one that holds a graph.")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES >> 30} GiB. Cut the trace, or take fewer ranks.")
    text = path.read_text(encoding="utf-8", errors="replace")
    graph = read_graph_json(text, str(path)) if text.lstrip()[:1] == "{" else read_goal(text, str(path))
    try:
        graph.check()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return graph
