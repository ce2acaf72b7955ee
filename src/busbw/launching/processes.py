"""Runs the commands of a launch side by side: passes on what they write, and ends all of them when one fails or the time is over."""

from __future__ import annotations

import ctypes
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from busbw.launching.environment import PLACING
from busbw.launching.failures import Words, signal_name, words_of
from busbw.launching.job import Command, Launch

__all__ = [
    "Failure",
    "LaunchError",
    "Line",
    "end_processes",
    "ended_with_this_process",
    "forget_job",
    "how_it_ended",
    "new_job_name",
    "run_commands",
    "said",
]

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
_GRACE_S = 10.0
"""Between asking a launcher to end and making it. mpirun and srun take some seconds to end ranks on other hosts; a guess."""
_TICK_S = 0.05
_LAST_OUTPUT_S = 0.5
"""How long a pipe is read after its process has ended: something it has left behind may hold it open for ever."""
_CHUNK = 1 << 16
_PIPE_BYTES = 1 << 20
"""The most that a pipe holds (/proc/sys/fs/pipe-max-size)."""
_LONGEST_LINE = 1 << 20
"""Bytes after which a line is passed on in parts."""
_KEPT_LINES = 200
_SHOWN_LINES = 3
_SHOWN_LETTERS = 300
"""Of a line of output: results may be as long as they like."""
_TORCH_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
"""What torch's hook puts before an exception (torch/distributed/distributed_c10d.py)."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as a rank wrote it."""

    text: bytes
    """With its line end, if it has one."""
    to_error: bool
    command: int
    """Number of the command that passed it on."""
    rank: int | None
    """None: several ranks share the command, and it does not say whose line it is."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job did not end well."""

    rank: int | None
    host: str | None
    how: str
    """Ended with status 3, was killed by SIGKILL, had not ended after 60 s ..."""
    last_words: tuple[str, ...] = ()
    """The last lines on standard error, of that rank where they can be told apart."""
    last_output: tuple[str, ...] = ()
    """The last lines on standard output: some programs say there what failed, nccl-tests for one."""

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.rank is not None else "the job"
        where = f" on {self.host}" if self.host else ""
        return f"{who}{where} {self.how}{said(self.last_words, self.last_output)}"


def said(last_words: Sequence[str], last_output: Sequence[str]) -> str:
    """How a message about a rank ends: with its errors, or with what else it wrote last.

    >>> said(["no memory"], []), said([], ["size time"]), said([], [])
    (': no memory', '; it wrote no error, and last: size time', '; it wrote no error')
    """
    if last_words:
        return ": " + " / ".join(last_words[-_SHOWN_LINES:])
    shown = " / ".join(line[:_SHOWN_LETTERS] for line in last_output[-_SHOWN_LINES:])
    return "; it wrote no error" + (f", and last: {shown}" if shown else "")


class LaunchError(RuntimeError):
    """Ranks could not be started, failed, or took too long; the message names the rank, where it ran, and ends with its last words."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


def run_commands(
    launch: Launch,
    *,
    deadline_s: float,
    write: Callable[[Line], None] | None = None,
    stopped: Callable[[], bool] | None = None,
    grace_s: float = _GRACE_S,
) -> None:
    """Runs all commands of a launch to their end.

    write gets each line as it comes. stopped is asked again and again whether to end the job (KeyboardInterrupt is raised then, in a place where that
    does no harm, as it may inside subprocess.Popen). Raises LaunchError with a Failure if a command ends with another status than 0 or is killed, or if all
    of them are not done within deadline_s; all processes are ended first, on whatever way this is left.
    """
    running: list[_Running] = []
    job = new_job_name()
    with selectors.DefaultSelector() as selector:
        try:
            for number, command in enumerate(launch.commands):
                running.append(_Running(number, command, launch, selector, write or _ignore, job))
            _watch(running, selector, launch, deadline_s, stopped or _never)
        finally:
            end_processes([one.process for one in running], grace_s, group=True, closing=launch.holds_input)
            for one in running:
                one.drain()
            forget_job(job)


def _watch(
    running: Sequence[_Running],
    selector: selectors.BaseSelector,
    launch: Launch,
    deadline_s: float,
    stopped: Callable[[], bool],
) -> None:
    until = time.monotonic() + deadline_s
    while True:
        if stopped():
            raise KeyboardInterrupt
        _read(selector, _TICK_S)
        failed = next((one for one in running if one.process.poll() or one.words.failed), None)
        if failed is not None:
            _read_the_rest(selector, [failed])
            # A rank that fails takes others with it; the first that says what it was knows best.
            failed = next((one for one in running if one.words.failed), failed)
            failure = failed.failure(launch)
            raise LaunchError(str(failure), failure)
        if all(one.process.returncode == 0 for one in running):
            _read_the_rest(selector, running)
            return
        if time.monotonic() > until:
            late = [one for one in running if one.process.returncode is None]
            failure = late[0].late(launch, late, deadline_s)
            raise LaunchError(str(failure), failure)


def _read(selector: selectors.BaseSelector, wait_s: float) -> bool:
    """Passes on what there is; False if there was nothing."""
    if not selector.get_map():
        time.sleep(wait_s)
        return False
    ready = selector.select(wait_s)
    for key, _ in ready:
        take: Callable[[], bool] = key.data
        if not take():
            selector.unregister(key.fileobj)
    return bool(ready)


def _read_the_rest(selector: selectors.BaseSelector, running: Sequence[_Running]) -> None:
    """What those have written until they ended."""
    until = time.monotonic() + _LAST_OUTPUT_S
    while any(one.has_open_pipes() for one in running) and time.monotonic() < until:
        _read(selector, _TICK_S)


def _ignore(_: Line) -> None:
    return None


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Pipe:
    """Bytes of a pipe, cut into lines and given to the ranks that wrote them."""

    fd: int
    take: Callable[[bytes, int | None], None]
    label: re.Pattern[bytes] | None
    rank: int | None
    kept: bytes = b""
    ended: bool = False
    of_rank: dict[int | None, bytes] = field(default_factory=dict)

    def __call__(self) -> bool:
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        if chunk:
            self._take(chunk)
        else:
            self.end()
        return bool(chunk)

    def _take(self, chunk: bytes) -> None:
        lines = (self.kept + chunk).split(b"\n")
        self.kept = lines.pop()
        for line in lines:
            self._line(line + b"\n")
        if len(self.kept) > _LONGEST_LINE:
            self._line(self.kept)
            self.kept = b""

    def take_what_is_left(self) -> None:
        """Takes what the pipe holds; no more than that, for something left behind may write for ever."""
        with suppress(BlockingIOError):
            for _ in range(_PIPE_BYTES // _CHUNK):
                if not (chunk := os.read(self.fd, _CHUNK)):
                    break
                self._take(chunk)
        self.end()

    def end(self) -> None:
        self.ended = True
        if self.kept:
            self._line(self.kept)
        self.kept = b""
        for rank, text in self.of_rank.items():
            if text:
                self.take(text, rank)
        self.of_rank.clear()

    def _line(self, line: bytes) -> None:
        if self.label is None or not (found := list(self.label.finditer(line))):
            self.take(line, self.rank)
            return
        # Launchers label each piece that a rank writes, so one line may hold several labels, and a rank's line may come in pieces.
        if found[0].start() > 0:
            self.take(line[: found[0].start()], self.rank)
        for match, after in zip(found, [*found[1:], None], strict=True):
            rank = int(match["rank"]) if match["rank"].isdigit() else None
            text = self.of_rank.pop(rank, b"") + line[match.end() : after.start() if after else len(line)]
            if text.endswith(b"\n") or len(text) > _LONGEST_LINE:
                self.take(text, rank)
            elif text:
                self.of_rank[rank] = text


class _Running:
    """A command that was started."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        number: int,
        command: Command,
        launch: Launch,
        selector: selectors.BaseSelector,
        write: Callable[[Line], None],
        job: str,
    ) -> None:
        self.number = number
        self.command = command
        self.words: Words = words_of(launch.launcher)
        self._write = write
        self._was_its_own = False
        self._errors: deque[tuple[int | None, str]] = deque(maxlen=_KEPT_LINES)
        self._output: deque[tuple[int | None, str]] = deque(maxlen=_KEPT_LINES)
        try:
            self.process = subprocess.Popen(
                list(command.argv),
                stdin=subprocess.PIPE if launch.holds_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name not in PLACING}
                | dict(command.environment)
                | {"BUSBW_JOB": job},
                cwd=command.working_directory,
                start_new_session=True,  # so that it can be ended with all that it has started
                preexec_fn=ended_with_this_process(signal.SIGTERM),  # noqa: PLW1509 - one call of the kernel, found beforehand
            )
        except OSError as error:
            where = f" in {command.working_directory}" if error.filename == command.working_directory else ""
            raise LaunchError(f"{command.argv[0]} can't be started{where}: {error.strerror}") from None
        rank = command.ranks[0] if len(command.ranks) == 1 else None
        label = re.compile(command.label.encode(), re.MULTILINE) if command.label else None
        self._pipes = []
        for stream, to_error in ((self.process.stdout, False), (self.process.stderr, True)):
            if stream is None:
                raise LaunchError("a pipe is missing")
            os.set_blocking(stream.fileno(), False)
            pipe = _Pipe(stream.fileno(), self._taker(to_error), label, rank)
            self._pipes.append((pipe, stream))
            selector.register(stream, selectors.EVENT_READ, pipe)

    def _taker(self, to_error: bool) -> Callable[[bytes, int | None], None]:
        def take(text: bytes, rank: int | None) -> None:
            line = text.decode("utf-8", "replace").strip()
            # An empty line after the launcher's is its own, too.
            its_own = self.words.take(line) if line else self._was_its_own
            self._was_its_own = its_own
            if line and not its_own:
                own = _TORCH_RANK.match(line) if to_error else None
                kept = self._errors if to_error else self._output
                kept.append((int(own[1]), line[own.end() :]) if own and rank is None else (rank, line))
            # Hydra writes its messages among the ranks' results.
            self._write(Line(text, to_error or its_own, self.number, rank))

        return take

    def has_open_pipes(self) -> bool:
        """Whether something may still come."""
        return any(not pipe.ended for pipe, _ in self._pipes)

    def drain(self) -> None:
        """Passes on what is still in the pipes, and closes them."""
        for pipe, stream in self._pipes:
            if not pipe.ended:
                pipe.take_what_is_left()
            stream.close()

    def failure(self, launch: Launch) -> Failure:
        status = self.process.returncode
        rank, how = self.words.rank, self.words.how
        if rank is None and len(self.command.ranks) == 1:
            rank = self.command.ranks[0]
        # As the user wrote it, if it is known, and not as the host calls itself.
        host = self.command.host or _host_of(rank, launch) or self.words.host
        last = _last_of(self._errors, rank), _last_of(self._output, rank)
        return Failure(rank, host, how or how_it_ended(status or 0), *last)

    def late(self, launch: Launch, late: Sequence[_Running], deadline_s: float) -> Failure:
        ranks = [rank for one in late for rank in one.command.ranks]
        rank = ranks[0] if len(ranks) == 1 else None
        who = f" (ranks {_listed(ranks)})" if len(ranks) > 1 else ""
        return Failure(
            rank,
            self.command.host or _host_of(rank, launch),
            f"had not ended after {deadline_s:g} s{who}",
            _last_of(self._errors, rank),
            _last_of(self._output, rank),
        )


def _last_of(kept: Sequence[tuple[int | None, str]], rank: int | None) -> tuple[str, ...]:
    """The last lines of a rank, where they can be told apart."""
    own = [line for whose, line in kept if rank is None or whose == rank]
    return tuple((own or [line for whose, line in kept if whose is None])[-_SHOWN_LINES:])


def _host_of(rank: int | None, launch: Launch) -> str | None:
    if rank is None:
        return None
    return next((host for command in launch.commands for host, ranks in command.layout if rank in ranks), None)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


def ended_with_this_process(number: signal.Signals) -> Callable[[], None] | None:
    """What a child calls before it becomes another program, so that Linux sends it a signal when this process is killed; None elsewhere.

    mpirun and srun take SIGTERM as the order to end their ranks. The signal comes, too, when the thread that has started the child ends: it must wait for it.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    parent, ended = os.getpid(), int(number)

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, ended)
        if os.getppid() != parent:  # it was killed before this was asked for
            os._exit(128 + ended)

    return ask


def new_job_name() -> str:
    """A name that no other job on this machine has; begins with this process's number."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def forget_job(job: str) -> None:
    """Removes what ranks that were killed before all had come have left in shared memory (`execution.shared_memory`)."""
    for left in Path("/dev/shm").glob(f"busbw-{job}-*"):
        left.unlink(missing_ok=True)


def end_processes(
    processes: Sequence[subprocess.Popen[bytes]], grace_s: float, *, group: bool = False, closing: bool = False
) -> None:
    """Ends those that run: asked first, made to after grace_s. group: with everything that is in their process group.

    closing: their inputs are closed first, and what ends by that within a second is not signalled.
    """

    def tell(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.pid, number)
            elif process.poll() is None:
                process.send_signal(number)

    running = [process for process in processes if process.poll() is None]
    for process in processes:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
    if closing:
        _wait(running, 1.0)
    for process in running:
        if process.poll() is None:
            tell(process, signal.SIGTERM)
    _wait(running, grace_s)
    for process in running:
        if process.poll() is None or group:  # a group may outlive its leader
            tell(process, signal.SIGKILL)
        process.wait()


def _wait(processes: Sequence[subprocess.Popen[bytes]], most_s: float) -> None:
    until = time.monotonic() + most_s
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))


def how_it_ended(status: int) -> str:
    """A status of a process in words; a signal is named.

    >>> how_it_ended(3), how_it_ended(-9), how_it_ended(137)
    ('ended with status 3', 'was killed by SIGKILL', 'ended with status 137 (SIGKILL, if a shell or launcher says so)')
    """
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    if 128 < status <= 128 + 64 and (name := signal_name(status - 128)).startswith("SIG"):
        return f"ended with status {status} ({name}, if a shell or launcher says so)"
    return f"ended with status {status}"
