"""What is to be started (`Job`), and what exactly starts it (`Launch`): commands and files, as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from busbw.errors import InputError

__all__ = ["MARGIN_S", "PASSED", "Command", "File", "Job", "Launch", "Mount", "allowed", "clock", "whole_seconds"]

PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR"),
    *("NCCL_*", "RCCL_*", "NVSHMEM_*", "UCX_*", "UCC_*", "FI_*", "OMP_*", "CUDA_*", "HSA_*", "GLOO_*"),
)
"""Names of variables that go to the ranks unless said otherwise; no others do, since environments hold secrets."""
MARGIN_S = 15.0
"""Slack of launchers that end a job at its limit themselves: they name who was late. A guess."""
_MOST_RANKS = 1 << 20
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?")
"""A DNS label of RFC 1123, with room for the suffixes that Kubernetes adds (63 characters in all)."""
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._:@\[\]%-]{0,254}")
"""Never begins with a dash: it would be an option of ssh."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host that a container sees."""

    source: str
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if not PurePosixPath(path).is_absolute() or _has_control(path) or set(path) & set(":,"):
                raise InputError(f"mount {path!r}: write an absolute path without a colon or comma.")


@dataclass(frozen=True, slots=True)
class Job:
    """A command, how many ranks run it and where. Node k has ranks k * ranks_per_node up to the next node's; the last may have fewer."""

    argv: tuple[str, ...]
    ranks: int = 1
    ranks_per_node: int = 0
    """0: all ranks on one node."""
    hosts: tuple[str, ...] = ()
    """Names in the order of nodes; empty: the launcher, or its scheduler, chooses."""
    gpus_per_rank: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the ranks get besides what their launcher gives them."""
    working_directory: str | None = None
    """None: where the launcher would start them."""
    time_limit_s: float = 600.0
    name: str = "busbw"
    image: str | None = None
    mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise InputError("no command: write what the ranks are to run after --.")
        if not 1 <= self.ranks <= _MOST_RANKS:
            raise InputError(f"{self.ranks} ranks: write 1 to {_MOST_RANKS}.")
        if not 0 <= self.ranks_per_node <= self.ranks:
            raise InputError(f"{self.ranks_per_node} ranks a node of {self.ranks} ranks: write 1 to {self.ranks}.")
        if self.ranks_per_node == 0:
            object.__setattr__(self, "ranks_per_node", self.ranks)
        if not 0 < self.time_limit_s < float("inf"):
            raise InputError(f"time limit {self.time_limit_s:g} s: write seconds, more than 0.")
        if self.gpus_per_rank < 0:
            raise InputError(f"{self.gpus_per_rank} GPUs a rank: write 0 or more.")
        if not _NAME.fullmatch(self.name):
            raise InputError(f"job name {self.name!r}: write 1 to 53 of a-z, 0-9 and dashes, no dash at an end.")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InputError(f"host {host!r} is no name of a host.")
        if len(set(self.hosts)) < len(self.hosts):
            twice = next(host for host in self.hosts if self.hosts.count(host) > 1)
            raise InputError(f"host {twice} is named twice; write it once and say how many ranks a node has.")
        if self.hosts and len(self.hosts) != self.nodes:
            raise InputError(
                f"{len(self.hosts)} hosts for {self.nodes} nodes ({self.ranks} ranks, {self.ranks_per_node} a node): name one a node."
            )
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name):
                raise InputError(f"variable {name!r}: a name has letters, digits and _, and begins with no digit.")
            if "\0" in value:
                raise InputError(f"variable {name}: its value holds a NUL character.")
        if any("\0" in word for word in self.argv):
            raise InputError("the command holds a NUL character.")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.ranks // self.ranks_per_node)

    def ranks_of(self, node: int) -> range:
        """Ranks of a node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.ranks))

    def layout(self) -> tuple[tuple[str, range], ...]:
        """Hosts and their ranks; empty if no hosts are named."""
        return tuple((host, self.ranks_of(node)) for node, host in enumerate(self.hosts))

    def equal_nodes(self, launcher: str) -> None:
        """Raises InputError if the last node has fewer ranks, where a launcher can't say that."""
        if self.ranks % self.ranks_per_node:
            raise InputError(
                f"{launcher} starts equally many ranks on every node; {self.ranks} ranks are no multiple of {self.ranks_per_node} a node."
            )

    def needs_image(self, launcher: str) -> str:
        """The image, for launchers that can't do without."""
        if not self.image:
            raise InputError(f"{launcher} runs images: say which with --image.")
        if self.image.startswith("-") or any(letter.isspace() for letter in self.image) or _has_control(self.image):
            raise InputError(f"image {self.image!r} is no name of an image.")
        return self.image


@dataclass(frozen=True, slots=True)
class Command:
    """One process that a launcher starts here."""

    argv: tuple[str, ...]
    ranks: range
    """Ranks that it starts or is; none if it starts them elsewhere or none at all."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What is set for it besides the environment of this process."""
    host: str | None = None
    """Where its ranks run, if that is one host that we chose."""
    working_directory: str | None = None
    layout: tuple[tuple[str, range], ...] = ()
    """Hosts and their ranks, if they are several that we chose."""
    label: str | None = None
    """Pattern of what the launcher writes before each line; its group `rank` says whose line it is. None: nothing."""

    def __str__(self) -> str:
        """For people and shells: quoted, so that it can be pasted."""
        before = ["env", *(["-C", self.working_directory] if self.working_directory else [])]
        settings = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        return shlex.join([*(before if self.working_directory or settings else []), *settings, *self.argv])


@dataclass(frozen=True, slots=True)
class File:
    """A file that a launcher reads."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Exactly what would run: files to be written first, then commands, all started at once."""

    launcher: str
    commands: tuple[Command, ...]
    files: tuple[File, ...] = ()
    holds_input: bool = False
    """Whether the far end takes the end of its input as the order to end its ranks (ssh)."""
    starts_here: bool = True
    """Whether a command ends when its ranks have; a manifest that was handed to a cluster does not."""
    slack_s: float = 0.0
    """What a launcher that bounds the time itself, or waits for nodes, is given beyond the job's limit before it is ended from outside."""
    notes: tuple[str, ...] = ()
    """What the user has to know or to do besides."""

    def at(self, folder: Path) -> Launch:
        """The same with the files in a folder: words of commands that name one get its path."""
        paths = {file.name: str(folder / file.name) for file in self.files}
        return replace(
            self,
            commands=tuple(
                replace(command, argv=tuple(paths.get(word, word) for word in command.argv))
                for command in self.commands
            ),
        )

    def __str__(self) -> str:
        """What `--dry-run` prints: every file with its name, every command quoted."""
        parts = [f"# {file.name}\n{file.text.rstrip()}\n" for file in self.files]
        if self.commands:
            parts.append("".join(f"{command}\n" for command in self.commands))
        return "\n".join(parts)


def allowed(environment: Mapping[str, str], patterns: Sequence[str] = PASSED) -> dict[str, str]:
    """Those variables whose names match one of the patterns.

    >>> allowed({"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x"})
    {'NCCL_DEBUG': 'INFO'}
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if _VARIABLE.fullmatch(name) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def whole_seconds(time_s: float) -> int:
    """Seconds, rounded up: a limit is never cut."""
    return int(-(-time_s // 1))


def clock(time_s: float) -> str:
    """A limit as Slurm writes it.

    >>> clock(90.2), clock(90_000)
    ('00:01:31', '1-01:00:00')
    """
    seconds = whole_seconds(time_s)
    days, hours = divmod(seconds // 3600, 24)
    text = f"{hours:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{text}" if days else text


def _has_control(text: str) -> bool:
    return any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in text)
