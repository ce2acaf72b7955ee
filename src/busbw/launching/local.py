"""Processes on this host: one a rank, all ended when one fails or the time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from busbw.launching.processes import (
    LaunchError,
    end_processes,
    ended_with_this_process,
    forget_job,
    how_it_ended,
    new_job_name,
    said,
)

__all__ = ["Ended", "LaunchError", "launch_local"]

_POLL_S = 0.002
_GRACE_S = 1.0
"""Between asking a process to end and making it."""
_MOST_OUTPUT = 64 << 20
"""Bytes that are kept of what a rank writes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a rank that ended well wrote."""

    rank: int
    out: str
    err: str


def launch_local(
    argv: Sequence[str],
    ranks: int,
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    bind: bool = True,
    look: Callable[[], None] | None = None,
) -> list[Ended]:
    """What each rank wrote, in the order of ranks, once all have ended with status 0.

    Every process runs argv, with BUSBW_RANK, BUSBW_RANKS and BUSBW_JOB (a name that no other job has) in its environment. bind: each gets
    a core of its own where there are enough. Raises LaunchError if one ends with another status or is killed, or if all of them are not done
    within deadline_s: the others are ended first. look is called all the while; what it raises ends the ranks, too.
    """
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks: at least one is needed")
    job = new_job_name()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        written = [[stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)] for _ in range(ranks)]
        stack.callback(forget_job, job)
        stack.callback(end_processes, processes, _GRACE_S)
        for rank in range(ranks):
            own = {"BUSBW_RANK": str(rank), "BUSBW_RANKS": str(ranks), "BUSBW_JOB": job}
            out, err = written[rank]
            try:
                process = subprocess.Popen(
                    list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment or os.environ) | own,
                    preexec_fn=ended_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - one call of the kernel, found beforehand
                )  # fmt: skip
            except OSError as error:
                raise LaunchError(f"rank {rank}: {argv[0]} can't be started: {error.strerror}") from None
            processes.append(process)
            if bind and ranks <= len(cores):
                with suppress(OSError):  # it may have ended
                    os.sched_setaffinity(process.pid, {cores[rank]})
        _wait(processes, written, deadline_s, look)
        return [Ended(rank, *(_text(stream) for stream in written[rank])) for rank in range(ranks)]


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    written: Sequence[Sequence[IO[bytes]]],
    deadline_s: float,
    look: Callable[[], None] | None,
) -> None:
    until = time.monotonic() + deadline_s
    while True:
        if look is not None:
            look()
        statuses = [process.poll() for process in processes]
        for rank, status in enumerate(statuses):
            if status:
                raise LaunchError(f"rank {rank} {how_it_ended(status)}{_last_words(written[rank])}")
        running = [rank for rank, status in enumerate(statuses) if status is None]
        if not running:
            return
        if time.monotonic() > until:
            names = ", ".join(map(str, running))
            raise LaunchError(
                f"rank{'s' * (len(running) > 1)} {names} had not ended after {deadline_s:g} s{_last_words(written[running[0]])}"
            )
        time.sleep(_POLL_S)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(_MOST_OUTPUT).decode("utf-8", "replace")


def _last_words(streams: Sequence[IO[bytes]]) -> str:
    out, err = ([line.strip() for line in _text(stream).splitlines() if line.strip()] for stream in streams)
    return said(err, out)
