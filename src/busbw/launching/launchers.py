"""Every launcher by its name, their options, and `launch`, which shows or does it."""

from __future__ import annotations

import difflib
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.launching import containers, kubernetes, mpirun, slurm, ssh, torchrun
from busbw.launching.ansible import AnsibleOptions
from busbw.launching.ansible import render as render_ansible
from busbw.launching.job import Command, Job, Launch
from busbw.launching.processes import Line, run_commands
from busbw.launching.slurm import run_batch

__all__ = ["LAUNCHERS", "Launcher", "launch", "launcher_named", "options_of", "render", "write_files"]


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Nothing to be said."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A way to start ranks."""

    name: str
    options: type[Any]
    """A frozen dataclass of what it can be told; every field has a default."""
    render: Callable[[Job, Any], Launch]
    about: str
    detect: Callable[[Job, Any], Any] = lambda _, options: options
    """Completes options by asking this machine, where they leave that open."""


def render_local(job: Job, options: LocalOptions) -> Launch:
    """A process a rank on this machine."""
    if job.hosts and job.hosts != ("localhost",):
        raise InputError("local runs on this machine; for other hosts use --launcher ssh, mpirun, torchrun or slurm.")
    if job.nodes > 1:
        raise InputError(f"local is one node, not {job.nodes}; use --launcher ssh, mpirun, torchrun or slurm.")
    argv = containers.contained(job)
    commands = tuple(
        Command(
            argv,
            range(rank, rank + 1),
            dict(job.environment)
            | {
                "BUSBW_RANK": str(rank),
                "BUSBW_RANKS": str(job.ranks),
                "BUSBW_LOCAL_RANK": str(rank),
                "BUSBW_LOCAL_RANKS": str(job.ranks),
                "BUSBW_NODE": "0",
                "BUSBW_NODES": "1",
            },
            host="localhost",
            working_directory=job.working_directory,
        )
        for rank in range(job.ranks)
    )
    notes = ("each rank also gets BUSBW_JOB, a name that no other job has",)
    return Launch("local", commands, notes=notes)


_KUBERNETES = kubernetes.KubernetesOptions

LAUNCHERS: Mapping[str, Launcher] = {
    one.name: one
    for one in (
        Launcher("local", LocalOptions, render_local, "a process a rank on this machine"),
        Launcher(
            "mpirun", mpirun.MpirunOptions, mpirun.render, "mpirun of Open MPI, MPICH or Intel MPI", mpirun.detect
        ),
        Launcher("torchrun", torchrun.TorchrunOptions, torchrun.render, "torchrun, one a node"),
        Launcher("slurm", slurm.SlurmOptions, slurm.render, "srun, or a script for sbatch"),
        Launcher("ssh", ssh.SshOptions, ssh.render, "ssh, one a host"),
        Launcher("docker", containers.DockerOptions, containers.render_docker, "a container a node"),
        Launcher("apptainer", containers.ApptainerOptions, containers.render_apptainer, "an image on this machine"),
        Launcher("jobset", _KUBERNETES, kubernetes.render_as(kubernetes.jobset, "jobset"), "Kubernetes JobSet"),
        Launcher("mpijob", _KUBERNETES, kubernetes.render_as(kubernetes.mpijob, "mpijob"), "Kubeflow MPIJob v2beta1"),
        Launcher("trainjob", _KUBERNETES, kubernetes.render_as(kubernetes.trainjob, "trainjob"), "Kubeflow TrainJob"),
        Launcher(
            "leaderworkerset",
            _KUBERNETES,
            kubernetes.render_as(kubernetes.leaderworkerset, "leaderworkerset"),
            "Kubernetes LeaderWorkerSet",
        ),
        Launcher("ansible", AnsibleOptions, render_ansible, "checks of nodes, then the command once a node"),
    )
}
"""In the order in which help shows them."""


def launcher_named(name: str) -> Launcher:
    """The launcher of a name; InputError with the nearest names if there is none."""
    if name in LAUNCHERS:
        return LAUNCHERS[name]
    near = difflib.get_close_matches(name, LAUNCHERS, 1, 0.5)
    raise InputError(f"launcher {name!r}: {f'nearest: {near[0]}. ' if near else ''}There are {', '.join(LAUNCHERS)}.")


def options_of(launcher: Launcher, given: Sequence[str]) -> Any:
    """A launcher's options from words KEY=VALUE; a key that holds several words may be given again."""
    known = {field.name: field for field in fields(launcher.options)}
    values: dict[str, Any] = {}
    for word in given:
        key, equals, text = word.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise InputError(f"--launcher-option {word}: write KEY=VALUE.")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            raise InputError(
                f"--launcher-option {word}: {launcher.name} has no {key}{f'; nearest: {near[0]}' if near else ''}. "
                + (f"There are {', '.join(known)}." if known else "It has no options.")
            )
        kind = known[key].type
        if str(kind).startswith("tuple"):
            values[key] = values.get(key, ()) + _words(word, text)
        elif key in values:
            raise InputError(f"--launcher-option {key} is given twice.")
        else:
            values[key] = _value(word, text, str(kind))
    return launcher.options(**values)


def _words(word: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--launcher-option {word}: {error}; close the quotes.") from None


def _value(word: str, text: str, kind: str) -> str | int | bool:
    if kind == "bool":
        if text.lower() not in ("yes", "no", "true", "false", "1", "0"):
            raise InputError(f"--launcher-option {word}: write yes or no.")
        return text.lower() in ("yes", "true", "1")
    if kind == "int":
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InputError(f"--launcher-option {word}: write a whole number.")
        return int(text)
    if any(ord(letter) < 0x20 for letter in text):
        raise InputError(f"--launcher-option {word!r}: it holds a control character.")
    return text


def render(job: Job, launcher: str = "local", options: Sequence[str] = ()) -> Launch:
    """Exactly what would run: files and commands, found out without starting a rank."""
    chosen = launcher_named(launcher)
    return chosen.render(job, chosen.detect(job, options_of(chosen, options)))


def launch(
    job: Job,
    launcher: str = "local",
    options: Sequence[str] = (),
    *,
    dry_run: bool = False,
    folder: Path | None = None,
    write: Callable[[Line], None] | None = None,
    stopped: Callable[[], bool] | None = None,
) -> Launch:
    """Starts a job and returns when it has ended, with what was started; with dry_run only that.

    folder: where files go and stay; a temporary one if None. write gets each line that ranks write; stopped is asked
    whether to end the job before its time. Raises LaunchError if a rank fails,
    hangs past the limit or loses its node (the others are ended), InputError if the launcher can't do what is asked.
    """
    rendered = render(job, launcher, options)
    if dry_run:
        return rendered
    for command in rendered.commands:
        program = command.argv[0]
        if shutil.which(program) is None and not (len(command.ranks) == 1 and rendered.launcher == "local"):
            raise InputError(
                f"{program}: no such program here, and {launcher} is started by it. Install it, or see what would run with --dry-run."
            )
    deadline_s = job.time_limit_s + rendered.slack_s
    with tempfile.TemporaryDirectory(prefix="busbw-launch-") as temporary:
        placed = rendered.at(write_files(rendered, folder or Path(temporary)))
        if rendered.launcher == "sbatch":
            run_batch(placed, job, deadline_s, write, stopped)
        else:
            run_commands(placed, deadline_s=deadline_s, write=write, stopped=stopped)
    return rendered


def write_files(rendered: Launch, folder: Path) -> Path:
    """The folder, with the launch's files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in rendered.files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    return folder
