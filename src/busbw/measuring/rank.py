"""What every rank of a run executes: `python -m busbw.measuring.rank JOB`. Rank 0 writes a line of JSON for each row as soon as it is measured."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from busbw.errors import InputError
from busbw.measuring.backends import Backend, backend_named
from busbw.measuring.measure import Measured, MeasuredRow, head_json, row_json, rows
from busbw.measuring.pairs import ends_of, matching_rounds, measure_round, pair_rows, rail_devices
from busbw.measuring.request import Request, request_from

__all__ = ["MARK", "main"]

MARK = "busbw-row "
"""How a line of results begins where rank 0 writes them among what else is printed."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
_RANK_OF = ("BUSBW_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
"""Variables in which launchers say the rank: busbw's own, Open MPI, PMIx, MPICH, Slurm, torchrun."""


def rank_here() -> int:
    """This process's rank, as its launcher says it. Raises InputError if none does."""
    for name in _RANK_OF:
        if (told := os.environ.get(name, "")).isdecimal():
            return int(told)
    raise InputError(f"no launcher says this process's rank: none of {', '.join(_RANK_OF)} is set")


def _end_with_parent() -> None:
    """Has this process end when the one that started it does, however that ends: nobody would read what it measures."""
    with suppress(OSError, AttributeError):  # Linux has prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    started_by = os.environ.get("BUSBW_JOB", "").partition("-")[0]
    if started_by and started_by != str(os.getppid()) and "BUSBW_UNDER" not in os.environ:
        sys.exit("the process that started this rank has ended")


class _Results:
    """Where rank 0 writes: a file that whoever started the run reads as it grows, or its standard output."""

    def __init__(self, path: str | None) -> None:
        self._out: IO[str] = Path(path).open("a", encoding="utf-8") if path else sys.stdout  # noqa: SIM115 - open as long as the process
        self._mark = "" if path else MARK

    def write(self, value: Any) -> None:
        """A line, which is out when this returns."""
        self._out.write(f"{self._mark}{json.dumps(value)}\n")
        self._out.flush()


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
    """Measures the requests of a job, one after the other: {"backend", "ranks", "meet", "results", "requests", "done", "samples", "rails"}."""
    _end_with_parent()
    job = json.loads(arguments[0])
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
