"""What every rank of a run executes: `python -m busbw.measuring.rank JOB`. Rank 0 writes a line of JSON for each row as soon as it is measured."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from busbw.errors import InputError
from busbw.launching import place
from busbw.measuring.backends import Backend, backend_named
from busbw.measuring.measure import Measured, MeasuredRow, head_json, row_json, rows
from busbw.measuring.pairs import ends_of, matching_rounds, measure_round, pair_rows, rail_devices
from busbw.measuring.request import Request, request_from

__all__ = ["MARK", "main"]

MARK = "busbw-row "
"""How a line of results begins where rank 0 writes them among what else is printed."""
_PIECE = 900
"""Letters of a line: launchers cut longer ones and put their labels between (Open MPI 4.1.4 after 4 KiB, seen here)."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
_ACKNOWLEDGED_S = 10.0
"""The longest that ranks wait for a row to be kept, which must not take a core from the next."""
_LOOK_S = 0.001


def rank_here() -> int:
    """This process's rank, as its launcher says it. Raises InputError if none does."""
    here = place(os.environ)
    if here is None:
        raise InputError("no launcher says this process's rank: start it by mpirun, torchrun, srun or `busbw run`.")
    return here.rank


def _end_with_parent(parent: int | None) -> None:
    """Has this process end when the one that started it does, however that ends: nobody would read what it measures."""
    if parent is None:
        return
    with suppress(OSError, AttributeError):  # Linux has prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent != os.getppid():
        sys.exit("the process that started this rank has ended")


class _Results:
    """Where rank 0 writes: a file that whoever started the run reads as it grows, or its standard output."""

    def __init__(self, path: str | None) -> None:
        self._out: IO[str] = Path(path).open("a", encoding="utf-8") if path else sys.stdout  # noqa: SIM115 - open as long as the process
        self._mark = "" if path else MARK
        self._kept = Path(f"{path}.kept") if path else None
        self._lines = 0

    def write(self, value: Any) -> None:
        """A line, which is out, and into a file also taken by whoever reads it, when this returns."""
        text = json.dumps(value)
        if self._mark:
            pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
            for number, piece in enumerate(pieces, 1):
                self._out.write(f"{self._mark}{number}/{len(pieces)} {piece}\n")
        else:
            self._out.write(text + "\n")
        self._out.flush()
        self._lines += 1
        until = time.monotonic() + _ACKNOWLEDGED_S
        while self._kept is not None and time.monotonic() < until:
            with suppress(OSError):
                if self._kept.stat().st_size >= self._lines:
                    return
            time.sleep(_LOOK_S)


def _samples(row: MeasuredRow) -> dict[str, Any]:
    found = {}
    for name, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        if half is not None and half.started_ns is not None and half.took_ns is not None:
            found[name] = {"started_ns": half.started_ns.tolist(), "took_ns": half.took_ns.tolist()}
    return found


def _pairs(backend: Backend, request: Request, head: Measured, job: dict[str, Any], results: _Results | None) -> None:
    """A line for each round of pairs, of each size."""
    rails = job["rails"]
    ends = ends_of(head.places, rails, rail_devices()) if results is not None else []
    for size in request.sizes_bytes:
        for number, pairs in enumerate(matching_rounds(backend.ranks // rails)):
            key = f"pairs/{size}/{number}"
            if key in job["done"]:
                continue
            found = measure_round(backend, request, size, pairs, rails=rails)
            if results is not None:
                rows = list(pair_rows(request.backend, ends, found))
                results.write({"pairs": rows, "wrong": sum(one[3] for one in found), "size_bytes": size, "key": key})


def main(arguments: Sequence[str]) -> int:
    """Measures the requests of a job, one after the other: {"backend", "ranks", "meet", "results", "parent", "requests", "done", "samples", "rails"}."""
    job = json.loads(arguments[0])
    _end_with_parent(job["parent"])
    rank = rank_here()
    backend = backend_named(job["backend"], rank, job["ranks"], job["meet"])
    results = _Results(job["results"]) if rank == 0 else None
    for told in job["requests"]:
        request = request_from(told)
        try:
            head, made = rows(backend, request, job["done"])
        except InputError as error:
            if results is not None:
                results.write({"refused": str(error), "request": told})
            continue
        if results is not None:
            results.write({"head": head_json(head)})
        if job.get("rails"):
            _pairs(backend, request, head, job, results)
            continue
        for row in made:
            if results is not None:
                results.write({"row": row_json(row), "samples": _samples(row) if job["samples"] else {}})
    backend.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
