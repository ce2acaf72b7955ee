"""Starts the ranks of a run and takes each row as it is measured: in processes of this host, in threads, or by a launcher."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from busbw.errors import InputError
from busbw.launching import Job, LaunchError, Line, launch, launch_local
from busbw.measuring.measure import Measured, MeasuredRow, head_from, measure, row_from, rows
from busbw.measuring.pairs import failing_part
from busbw.measuring.rank import MARK
from busbw.measuring.request import Request

__all__ = [
    "Heard",
    "How",
    "RoundOfPairs",
    "end_by_launcher",
    "failing_hosts",
    "rank_argv",
    "run_in_threads",
    "run_processes",
    "run_requests",
]

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


@dataclass(frozen=True, slots=True)
class How:
    """How ranks are started."""

    launcher: str = "local"
    """local, threads, or a launcher of `busbw.launching`."""
    deadline_s: float = 600.0
    options: tuple[str, ...] = ()
    """KEY=VALUE, of the launcher."""
    hosts: tuple[str, ...] = ()
    ranks: int = 1
    """Of the largest job: what hosts are filled with."""
    ranks_per_node: int = 0
    """0: all on one, or as many as there are hosts for."""
    image: str | None = None

    def job(self, argv: Sequence[str], ranks: int) -> Job:
        """The job that runs argv on so many ranks."""
        per_node = self.ranks_per_node or (-(-self.ranks // len(self.hosts)) if self.hosts else 0)
        per_node = min(per_node, ranks)
        hosts = self.hosts[: -(-ranks // per_node)] if self.hosts else ()
        return Job(tuple(argv), ranks, per_node, hosts, time_limit_s=max(self.deadline_s, 1e-3), image=self.image)


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
    return run_requests([request], How(launcher, deadline_s))[0]


def run_requests(
    requests: Sequence[Request],
    how: How,
    *,
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
        is_here = how.launcher == "local"
        argv = rank_argv(requests, folder, str(results) if is_here else None, done=done, samples=samples, rails=rails)
        if is_here:
            with _followed(results, collected.line) as look:
                launch_local(argv, first.ranks, deadline_s=how.deadline_s, look=look)
        else:
            end_by_launcher(how, argv, first.ranks, collected.written)
    if not collected.found and collected.refused:
        raise InputError(collected.refused[0])
    if not collected.found:
        raise LaunchError("rank 0 ended without a result")
    if refused is not None:
        refused += collected.refused
    return collected.measured()


def failing_hosts(request: Request, how: How) -> list[str]:
    """A smallest part found of the hosts on which a job fails, by halves; nothing if it does not fail on all of them now.

    The job: one small call of the back end, with as many ranks a host as before.
    """
    per_node = how.job(["-"], how.ranks).ranks_per_node

    def fails(part: Sequence[str]) -> bool:
        ranks = per_node * len(part)
        small = replace(
            request, collective="barrier", sizes_bytes=(0,), ranks=ranks, root=0, iterations=1, warm_up=0, window=False
        )
        try:
            run_requests([small], replace(how, hosts=tuple(part), ranks=ranks, ranks_per_node=per_node))
        except LaunchError:
            return True
        return False

    return failing_part(how.hosts, fails) if how.hosts and fails(how.hosts) else []


def rank_argv(
    requests: Sequence[Request], meet: str, results: str | None, *, done: Iterable[str] = (), samples: bool = False, rails: int = 0
) -> list[str]:  # fmt: skip
    """What every rank runs. results: a file that this process reads; its standard output if None."""
    job = {
        "backend": requests[0].backend,
        "ranks": requests[0].ranks,
        "meet": meet,
        "results": results,
        "parent": os.getpid() if results is not None else None,
        "requests": [request.to_json() for request in requests],
        "done": sorted(done),
        "samples": samples,
        "rails": rails,
    }
    return [sys.executable, "-m", "busbw.measuring.rank", json.dumps(job)]


def end_by_launcher(how: How, argv: Sequence[str], ranks: int, line: Callable[[bytes], None]) -> None:
    """Runs argv on so many ranks by a launcher to their end; line gets what they write to standard output. Raises LaunchError, InputError."""

    def write(one: Line) -> None:
        if not one.to_error:
            line(one.text)

    launch(how.job(argv, ranks), how.launcher, how.options, write=write)


class _Collected:
    """Rows by request, as rank 0 tells them."""

    def __init__(self, heard: Listener | None) -> None:
        self._heard = heard
        self.found: list[tuple[Measured, list[MeasuredRow]]] = []
        self.refused: list[str] = []
        self._pieces: list[str] = []
        self._failed = False

    def written(self, text: bytes) -> None:
        """A line of a rank's standard output, most of which are not ours. After an error none is taken: a launcher passes on what is left in its pipes."""
        place = text.find(MARK.encode())
        if place < 0 or self._failed:
            return
        number, _, rest = text[place + len(MARK) :].decode("utf-8", "replace").rstrip("\r\n").partition("/")
        pieces, _, piece = rest.partition(" ")
        if number == "1":
            self._pieces = []
        self._pieces.append(piece)
        if number == pieces:
            self._failed = True
            self.line("".join(self._pieces))
            self._failed = False

    def line(self, text: str) -> None:
        """One line of results."""
        told = json.loads(text)
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
def _followed(path: Path, line: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Calls for each whole line that is added to a file, until the block ends and the last has been read.

    Gives a function that raises what `line` has raised, after which it isn't called any more. A byte in the file of that name and `.kept` tells the writer of each line that was taken.
    """
    ended = threading.Event()
    failed: list[BaseException] = []

    def follow() -> None:
        rest = ""
        with path.open(encoding="utf-8") as stream, Path(f"{path}.kept").open("wb", buffering=0) as kept:
            while True:
                last = ended.is_set()
                *whole, rest = (rest + stream.read()).split("\n")
                try:
                    for text in whole:
                        line(text)
                        kept.write(b".")
                except BaseException as error:  # raised again below, by the caller's thread
                    failed.append(error)
                    return
                if last:
                    return
                ended.wait(_LOOK_S)

    def look() -> None:
        if failed:
            raise failed[0]

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield look
    finally:
        ended.set()
        thread.join()
    look()
