"""mpirun and mpiexec: Open MPI, MPICH and Intel MPI (both Hydra)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace

from busbw.errors import InputError
from busbw.launching.containers import contained
from busbw.launching.job import MARGIN_S, Command, Job, Launch, whole_seconds
from busbw.launching.scripts import rank_argv

__all__ = ["MpirunOptions", "detect", "render"]

_ASKED_S = 20.0


@dataclass(frozen=True, slots=True)
class MpirunOptions:
    """What mpirun is told besides the job."""

    program: str = "mpirun"
    """Name or path of mpirun or mpiexec."""
    flavour: str = "auto"
    """openmpi, mpich, intel; auto asks `mpirun --version`."""
    version: int = 4
    """Major version of Open MPI; auto finds it."""
    bind: str = "none"
    """none, core, numa, socket: several nodes that share a host would bind all ranks to the same cores."""
    oversubscribe: str = "auto"
    """yes, no; auto: if all ranks run here and there are more than cores."""
    root: str = "auto"
    """yes, no: whether to allow running as root; auto: if this is root."""
    arguments: tuple[str, ...] = ()
    """Further words for mpirun, such as '--mca btl tcp,self'."""


def detect(job: Job, options: MpirunOptions) -> MpirunOptions:
    """The options with everything that is auto found out on this machine. Raises InputError if mpirun isn't there or is an unknown one."""
    flavour, version = options.flavour, options.version
    if flavour == "auto":
        path = shutil.which(options.program)
        if path is None:
            raise InputError(
                f"{options.program}: no such program. Install Open MPI or MPICH, give --launcher-option program=PATH, or to see "
                "what would run elsewhere --launcher-option flavour=openmpi (or mpich, intel)."
            )
        flavour, version = _flavour(path, _version_text(path))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return replace(
        options,
        flavour=flavour,
        version=version,
        root=_yes(os.geteuid() == 0) if options.root == "auto" else options.root,
        oversubscribe=_yes(not job.hosts and job.nodes == 1 and job.ranks > cores)
        if options.oversubscribe == "auto"
        else options.oversubscribe,
    )


def render(job: Job, options: MpirunOptions) -> Launch:
    """One mpirun. Hosts are given with their ranks as slots, so that ranks fill them in blocks; without hosts it is for the allocation it runs in."""
    if options.flavour not in _FLAVOURS:
        raise InputError(f"flavour={options.flavour}: there are {', '.join(_FLAVOURS)} (and auto).")
    if options.bind not in _BINDINGS:
        raise InputError(f"bind={options.bind}: there are {', '.join(_BINDINGS)}.")
    return _openmpi(job, options) if options.flavour == "openmpi" else _hydra(job, options)


_FLAVOURS = ("openmpi", "mpich", "intel")
_BINDINGS = {"none": "none", "core": "core", "numa": "numa", "socket": "socket"}


def _openmpi(job: Job, options: MpirunOptions) -> Launch:
    new = options.version >= 5
    environment = dict(job.environment) | {"BUSBW_RANKS_PER_NODE": str(job.ranks_per_node)}
    argv = [options.program, *(["--allow-run-as-root"] if options.root == "yes" else []), "-np", str(job.ranks)]
    over = options.oversubscribe == "yes"
    if job.hosts:
        argv += ["--host", _slots(job), "--map-by", "slot"]
    elif job.nodes > 1:
        argv += ["--map-by", f"ppr:{job.ranks_per_node}:node"]
    elif over and new:
        argv += ["--map-by", ":oversubscribe"]
    if over:  # a rank that waits must leave its core to others
        argv += [*([] if new else ["--oversubscribe"]), "--mca", "mpi_yield_when_idle", "1"]
    argv += ["--bind-to", options.bind, *(["--output", "tag"] if new else ["--tag-output"])]
    argv += ["--timeout", str(whole_seconds(job.time_limit_s))]
    if job.working_directory:
        argv += ["--wdir", job.working_directory]
    for name in sorted(environment):  # its value comes from mpirun's own environment, so nothing in it needs quoting
        argv += ["-x", name]
    # mpirun 4.1.4 says in about 9 of 10 runs which rank ended with a status; the shell around each always does.
    argv += [*options.arguments, *rank_argv(contained(job))]
    label = (
        r"\[[^\],]*,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: "
        if new
        else r"\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>:"
    )
    return Launch(
        "openmpi",
        (Command(tuple(argv), range(job.ranks), environment, layout=job.layout(), label=label),),
        slack_s=MARGIN_S,
    )


def _hydra(job: Job, options: MpirunOptions) -> Launch:
    names = dict(job.environment) | {"BUSBW_RANKS_PER_NODE": str(job.ranks_per_node)}
    argv = [options.program, "-n", str(job.ranks)]
    if job.hosts:
        argv += ["-hosts", _slots(job)]
    elif job.nodes > 1:
        argv += ["-ppn", str(job.ranks_per_node)]
    if options.bind != "none":
        argv += ["-bind-to", options.bind]
    if job.working_directory:
        argv += ["-wdir", job.working_directory]
    argv += ["-genvlist", ",".join(sorted(names)), *options.arguments]
    # Hydra ends a job if a rank is killed, not if it exits with a status, and says no rank; a shell around each says both.
    argv += rank_argv(contained(job))
    environment = names | {"MPIEXEC_TIMEOUT": str(whole_seconds(job.time_limit_s))}
    return Launch(
        "mpich", (Command(tuple(argv), range(job.ranks), environment, layout=job.layout()),), slack_s=MARGIN_S
    )


def _slots(job: Job) -> str:
    return ",".join(f"{host}:{len(job.ranks_of(node))}" for node, host in enumerate(job.hosts))


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _version_text(path: str) -> str:
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, timeout=_ASKED_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{path} --version failed ({error}). Give --launcher-option flavour=openmpi, mpich or intel."
        ) from None
    return (asked.stdout + asked.stderr).decode("utf-8", "replace")


def _flavour(path: str, text: str) -> tuple[str, int]:
    """Which mpirun it is, from what `--version` prints."""
    # "mpirun (Open MPI) 4.1.4", "mpirun.openmpi (OpenRTE) 4.1.4", "prterun (PRRTE) 3.0.5" and Open MPI 5's "mpirun (Open MPI) 5.0.11"
    if match := re.search(r"\((?:Open MPI|OpenRTE)\)\s+(\d+)\.", text):
        return "openmpi", int(match[1])
    if "PRRTE" in text:
        return "openmpi", 5
    if "Intel(R) MPI" in text:
        return "intel", 0
    if "HYDRA" in text:
        return "mpich", 0
    raise InputError(
        f"{path} is neither Open MPI nor MPICH: {text.strip().splitlines()[0] if text.strip() else 'it says nothing'!r}. "
        "Give --launcher-option flavour=openmpi, mpich or intel if it takes the words of one of them."
    )
