"""Options that say where and how ranks are started, shared by the verbs that start some, and what they mean together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import given_path, json_text
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.launching import Job, Launch, LaunchError, Line, Mount

__all__ = [
    "DryRun",
    "Environment",
    "GpusPerRank",
    "Hosts",
    "Image",
    "LauncherName",
    "LauncherOptions",
    "Mounts",
    "Nodes",
    "RanksPerNode",
    "TimeLimit",
    "Write",
    "Written",
    "layout",
    "made_job",
    "seconds_of",
    "show",
    "stop_signals",
]

LauncherName = Annotated[
    str,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help="local, mpirun, torchrun, slurm, ssh, docker, apptainer, jobset, mpijob, trainjob, leaderworkerset, ansible.",
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", help="Number of nodes.")]
RanksPerNode = Annotated[int | None, typer.Option("--ranks-per-node", metavar="G", help="Ranks of each node.")]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", metavar="LIST|@FILE", help="Names, one a node: a,b,n[01-04]; or of a file, one a line."),
]
GpusPerRank = Annotated[int, typer.Option("--gpus-per-rank", metavar="N", help="GPUs that each rank uses.")]
TimeLimit = Annotated[
    str, typer.Option("--time-limit", metavar="TIME", help="When ranks are ended: seconds, or 90s, 10m, 2h.")
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[=VALUE]", help="A variable that ranks get; may be given again."),
]
Image = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Container image to run in.")]
Mounts = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="FROM:TO[:ro]", help="A folder that the container sees; may be given again."),
]
LauncherOptions = Annotated[
    list[str] | None,
    typer.Option("--launcher-option", metavar="KEY=VALUE", help="What only this launcher knows; may be given again."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print exactly what would run, and run nothing.")]
Write = Annotated[
    Path | None, typer.Option("--write", parser=given_path, metavar="DIR", help="Put scripts and manifests here.")
]

SCHEMA = 1
"""Number of the JSON shape of `launch.json` and of `busbw launch --dry-run --json`."""


def layout(ranks: int | None, nodes: int | None, ranks_per_node: int | None, hosts: Sequence[str]) -> tuple[int, int]:
    """Ranks in all and on each node, from what was given of ranks, nodes, ranks of a node and hosts. Raises InputError if they contradict.

    >>> layout(None, 2, 4, ()), layout(5, None, None, ("a", "b")), layout(None, None, None, ())
    ((8, 4), (5, 3), (1, 1))
    """
    for option, value in (("--ranks", ranks), ("--nodes", nodes), ("--ranks-per-node", ranks_per_node)):
        if value is not None and value < 1:
            raise InputError(f"{option} {value}: write 1 or more.")
    if nodes is not None and hosts and len(hosts) != nodes:
        raise InputError(f"--nodes {nodes}: --hosts names {len(hosts)}.")
    known = nodes if nodes is not None else len(hosts) or None
    if ranks is None:
        each = ranks_per_node or 1
        return (known or 1) * each, each
    each = ranks_per_node or -(-ranks // (known or 1))
    each = min(each, ranks)
    if known is not None and -(-ranks // each) != known:
        raise InputError(f"--ranks {ranks} with {each} on a node make {-(-ranks // each)} nodes, not {known}.")
    return ranks, each


def made_job(
    argv: Sequence[str],
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    hosts: str | None = None,
    gpus_per_rank: int = 0,
    time_limit: str = "10m",
    environment: Sequence[str] | None = None,
    image: str | None = None,
    mounts: Sequence[str] | None = None,
    name: str = "busbw",
    working_directory: str | None = None,
    passes_environment: bool = True,
) -> Job:
    """The job that the options describe. passes_environment: with what `busbw.launching.allowed` lets through of this process's environment."""
    from busbw.launching import Job, allowed, hosts_of  # noqa: PLC0415 - loads what help can do without

    names = hosts_of(hosts) if hosts is not None else ()
    every, each = layout(ranks, nodes, ranks_per_node, names)
    values = allowed(os.environ) if passes_environment else {}
    return Job(
        tuple(argv),
        every,
        each,
        names,
        gpus_per_rank,
        values | _variables(environment or ()),
        working_directory,
        seconds_of(time_limit),
        name,
        image,
        tuple(_mount(text) for text in mounts or ()),
    )


def seconds_of(text: str) -> float:
    """Seconds of a time limit.

    >>> seconds_of("90"), seconds_of("1.5m"), seconds_of("2h")
    (90.0, 90.0, 7200.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise InputError(f"--time-limit {text}: write seconds, or a number with s, m or h: 90s, 10m, 2h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _variables(given: Sequence[str]) -> dict[str, str]:
    values = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            raise InputError(f"--env {name}: it is not set here; write {name}=VALUE.")
        values[name] = value if equals else os.environ[name]
    return values


def _mount(text: str) -> Mount:
    from busbw.launching import Mount  # noqa: PLC0415

    parts = text.split(":")
    if len(parts) not in (1, 2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise InputError(f"--mount {text}: write FROM:TO, or FROM:TO:ro.")
    return Mount(parts[0], parts[1] if len(parts) > 1 else parts[0], parts[2:] == ["ro"])


def show(launch: Launch, *, as_json: bool = False) -> str:
    """What a dry run prints."""
    if not as_json:
        notes = "".join(f"# {note}\n" for note in launch.notes)
        return f"{launch}{notes}"
    shape = {
        "schema": SCHEMA,
        "launcher": launch.launcher,
        "files": [{"name": file.name, "text": file.text} for file in launch.files],
        "commands": [
            {
                "argv": list(command.argv),
                "environment": dict(command.environment),
                "host": command.host,
                "ranks": [command.ranks.start, command.ranks.stop],
                "working_directory": command.working_directory,
            }
            for command in launch.commands
        ],
        "notes": list(launch.notes),
    }
    return json_text(shape) + "\n"


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT, SIGTERM or SIGHUP has come within the block: they end the job, in good order, and not this process."""
    came: list[int] = []
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in handled}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Written:
    """Takes lines of ranks: passes them on, and keeps them in a folder, with a record of how the job ended.

    Files: `job.out` and `job.err` as they came, `rank-N.out` and `rank-N.err` where it is known whose line it is, and `launch.json`.
    """

    def __init__(self, folder: Path | None, *, label: bool = False) -> None:
        self.folder = folder
        self._label = label
        self._files: dict[str, IO[bytes]] = {}
        self._begun_ns = time.time_ns()

    def __call__(self, line: Line) -> None:
        """Takes one."""
        text = line.text
        own = "" if line.rank is None else str(line.rank)
        shown = f"{own}: ".encode() + text if self._label and own else text
        stream = sys.stderr if line.to_error else sys.stdout
        out = getattr(stream, "buffer", None)
        if out is None:
            stream.write(shown.decode("utf-8", "replace"))
        else:
            stream.flush()
            out.write(shown)
            out.flush()
        ending = "err" if line.to_error else "out"
        self._keep(f"job.{ending}", shown)
        if own and int(own) < _MOST_FILES:
            self._keep(f"rank-{own}.{ending}", text)

    def _keep(self, name: str, text: bytes) -> None:
        if self.folder is None:
            return
        if name not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.folder / name).open("wb")
        self._files[name].write(text)
        self._files[name].flush()

    def record(self, job: Job, launcher: str, error: LaunchError | None, *, ended: bool = True) -> None:
        """Writes `launch.json`, whole or not at all."""
        for file in self._files.values():
            file.close()
        if self.folder is None:
            return
        failure = error.failure if error is not None else None
        shape: dict[str, Any] = {
            "schema": SCHEMA,
            "launcher": launcher,
            "argv": list(job.argv),
            "ranks": job.ranks,
            "ranks_per_node": job.ranks_per_node,
            "hosts": list(job.hosts),
            "begun_ns": self._begun_ns,
            "took_s": round((time.time_ns() - self._begun_ns) / 1e9, 3),
            "complete": ended and error is None,
            "failure": None
            if error is None
            else {
                "message": str(error),
                "rank": failure.rank if failure else None,
                "host": failure.host if failure else None,
                "how": failure.how if failure else None,
                "last_words": list(failure.last_words) if failure else [],
            },
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f".launch.json.{os.getpid()}"
        new.write_text(json_text(shape) + "\n")
        new.replace(self.folder / "launch.json")


_MOST_FILES = 256
"""Ranks with files of their own: a process may open about a thousand."""
