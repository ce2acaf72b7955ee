"""ssh: one connection a host; ranks end with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from busbw.errors import InputError
from busbw.launching.containers import contained
from busbw.launching.job import MARGIN_S, Command, Job, Launch
from busbw.launching.scripts import node_argv

__all__ = ["SshOptions", "hosts_of", "over_ssh", "render"]


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How hosts are reached."""

    program: str = "ssh"
    """Name or path."""
    connect_s: int = 10
    """Seconds after which a host that does not answer is given up."""
    alive_s: int = 5
    """A host that says nothing for three times as long is lost."""
    arguments: tuple[str, ...] = ()
    """Further words for ssh, such as '-p 2222'."""


def render(job: Job, options: SshOptions) -> Launch:
    """One ssh a host, which starts the host's ranks by a shell script and ends them when the connection ends or a rank fails."""
    if not job.hosts:
        raise InputError("ssh: name the hosts with --hosts.")
    inner = replace(job, argv=contained(job))
    commands = tuple(
        Command(
            over_ssh(host, node_argv(inner, str(node), watch=True), job, options),
            job.ranks_of(node),
            host=host,
        )
        for node, host in enumerate(job.hosts)
    )
    return Launch("ssh", commands, holds_input=True, slack_s=MARGIN_S + options.connect_s)


def over_ssh(host: str, argv: tuple[str, ...], job: Job, options: SshOptions) -> tuple[str, ...]:
    """The argv that runs another on a host: ssh hands one string to a shell there, so each word is quoted."""
    settings = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    remote = ["env", *settings, *argv] if settings else list(argv)
    before = f"cd {shlex.quote(job.working_directory)} && " if job.working_directory else ""
    return (
        *(options.program, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={options.connect_s}"),
        *("-o", f"ServerAliveInterval={options.alive_s}", "-o", "ServerAliveCountMax=3"),
        *options.arguments,
        *("--", host, f"{before}exec {shlex.join(remote)}"),
    )


def hosts_of(text: str) -> tuple[str, ...]:
    """Hosts of `a,b,n[01-04]`, or of a file (`@FILE`, one a line, # begins a comment; what follows a name, such as slots=8, is left out).

    >>> hosts_of("login,n[08-10,12]")
    ('login', 'n08', 'n09', 'n10', 'n12')
    """
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"hosts file {path}: {getattr(error, 'strerror', None) or 'it is no text'}.") from None
        names = [line.split("#")[0].split() for line in lines]
        found = tuple(host for words in names if words for host in _expanded(words[0]))
        if not found:
            raise InputError(f"hosts file {path} names no host.")
        return found
    return _expanded(text)


_MOST_HOSTS = 1 << 17


def _expanded(text: str) -> tuple[str, ...]:
    hosts: list[str] = []
    for part in _parts(text):
        before, bracket, rest = part.partition("[")
        # [fe80::1] is an address; n[1-4] is a list as Slurm writes it.
        if not bracket or not before:
            hosts.append(part)
            continue
        inside, closed, after = rest.partition("]")
        if not closed or "[" in after:
            raise InputError(f"hosts {part!r}: one pair of brackets a name, as in n[01-04].")
        for piece in inside.split(","):
            first, dash, last = piece.partition("-")
            last = last if dash else first
            if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()) or int(first) > int(
                last
            ):
                raise InputError(f"hosts {part!r}: {piece!r} is no range; write n[01-04] or n[1,3].")
            if int(last) - int(first) > _MOST_HOSTS:
                raise InputError(f"hosts {part!r}: more than {_MOST_HOSTS} hosts.")
            hosts += [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)]
    if any(not host for host in hosts) or not hosts:
        raise InputError(f"hosts {text!r}: a name is empty.")
    return tuple(hosts)


def _parts(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
