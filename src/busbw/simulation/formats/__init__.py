"""Files that hold task graphs, one format a module: our JSON, GOAL text, Chakra traces, PyTorch profiler traces, XLA's HLO text.

Told by their first bytes. A file that cannot be a graph raises InputError with its place; what is left out of one is counted.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from busbw.errors import InputError, Losses
from busbw.simulation.formats.chakra import is_chakra, read_chakra
from busbw.simulation.formats.goal import read_goal
from busbw.simulation.formats.graph_json import read_graph_json
from busbw.simulation.formats.kineto import is_kineto, rank_of, read_kineto
from busbw.simulation.formats.xla_hlo import is_hlo, read_hlo
from busbw.simulation.graph import TaskGraph

__all__ = ["MAX_BYTES", "read_graph"]

MAX_BYTES = 1 << 30
"""Largest file read, unpacked: a graph of some 10 million tasks. A guess at what memory allows."""
MAX_FILES = 4096
"""Of a folder of traces, a file a rank."""
_GZIP = b"\x1f\x8b"
_RANK = re.compile(r"(\d{1,7})(?=\.(?:et|json|pt|gz)\b|\.pt\.trace)|rank[-_]?(\d{1,7})", re.IGNORECASE)


def read_graph(
    path: Path, losses: Losses | None = None, *, ranks: int | None = None, flops_per_s: float | None = None
) -> TaskGraph:
    """The graph in a file, or in a folder of traces, one a rank. Checked. Raises InputError.

    ranks: of the job, where traces of some are missing: they do as the first of their group. flops_per_s: for Chakra nodes that say only how many
    operations they take. losses: counts what was left out.
    """
    found = losses if losses is not None else Losses(str(path))
    if ranks is not None and not 1 <= ranks < 1 << 24:
        raise InputError(f"{ranks} ranks: write a number from 1 on.")
    if flops_per_s is not None and not 0 < flops_per_s < float("inf"):
        raise InputError(f"{flops_per_s:g} operations per second: write a number above 0.")
    files = sorted(_files(path))
    data = {str(file): _content(file) for file in files}
    traces: dict[int, tuple[str, bytes]] = {}
    documents: dict[int, tuple[str, Any]] = {}
    for name, content in data.items():
        if is_chakra(content):
            traces[_rank(name, None, traces)] = name, content
        elif content.lstrip()[:1] in (b"{", b"["):
            document = _json(name, content)
            if is_kineto(document):
                documents[_rank(name, rank_of(document), documents)] = name, document
            elif path.is_dir():
                found.add("no-trace", None, f"{name}: JSON, but no trace of the PyTorch profiler; left out")
            else:
                return _checked(path, _other_json(name, content, document))
        elif is_hlo(content) and not path.is_dir():
            return _checked(path, read_hlo(content, name, found, ranks=ranks))
        elif path.is_dir():
            found.add("no-trace", None, f"{name}: no trace of Chakra or of the PyTorch profiler; left out")
        else:
            return _checked(path, read_goal(content.decode("utf-8", "replace"), name))
    if traces and documents:
        raise InputError(
            f"{path}: holds traces of Chakra and of the PyTorch profiler. Take one kind: they say the same twice."
        )
    if documents:
        return _checked(path, read_kineto(documents, found, ranks=ranks))
    if traces:
        return _checked(path, read_chakra(traces, found, ranks=ranks, flops_per_s=flops_per_s))
    raise InputError(f"{path}: no trace in this folder. Give one with a .et or a profiler's .json of each rank.")


def _checked(path: Path, graph: TaskGraph) -> TaskGraph:
    try:
        graph.check()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return graph


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        inside = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        if len(inside) > MAX_FILES:
            raise InputError(f"{path}: {len(inside)} files; {MAX_FILES} are read at most.")
        yield from inside
    elif path.exists() and not path.is_file():
        raise InputError(f"{path}: no file. Give one that holds a graph, or a folder of traces.")
    else:
        yield path


def _content(file: Path) -> bytes:
    """The bytes, unpacked where they are gzipped."""
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES >> 30} GiB. Cut the trace, or take fewer ranks.")
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == _GZIP
            stream.seek(0)
            content = gzip.GzipFile(fileobj=stream).read(MAX_BYTES + 1) if packed else stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: damaged gzip ({error}). Copy it again.") from None
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{file}: larger than {MAX_BYTES >> 30} GiB once unpacked. Cut the trace, or take fewer ranks."
        )
    return content


def _json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:{getattr(error, 'lineno', 1)}: no JSON: {str(error)[:200]}.") from error


def _other_json(name: str, content: bytes, document: Any) -> TaskGraph:
    if (
        isinstance(document, dict)
        and "chakra" in str(document.get("schema"))
        and isinstance(document.get("nodes"), list)
    ):
        raise InputError(
            f"{name}: an execution trace of PyTorch: it has no times. Make a .et of it with chakra_trace_link and chakra_converter, or give the "
            "profiler's trace."
        )
    return read_graph_json(content.decode("utf-8", "replace"), name)


def _rank(name: str, said: int | None, known: dict[int, Any]) -> int:
    """The rank that a trace says, or its file's name does, or the next one. Raises InputError for a rank that is there twice."""
    numbers = [first or second for first, second in _RANK.findall(Path(name).name)]
    rank = said if said is not None else int(numbers[-1]) if numbers else len(known)
    if rank in known:
        raise InputError(f"{name}: rank {rank} has another trace, {known[rank][0]}. Leave one of them out.")
    return rank
