"""Slurm: srun, or a script for sbatch."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from busbw.errors import InputError
from busbw.launching.containers import contained
from busbw.launching.failures import words_of
from busbw.launching.job import MARGIN_S, Command, File, Job, Launch, clock, whole_seconds
from busbw.launching.processes import Failure, LaunchError, Line, run_commands
from busbw.launching.scripts import bounded, exported

__all__ = ["SlurmOptions", "render", "run_batch"]


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What Slurm is told besides the job."""

    mode: str = "srun"
    """srun: runs it and waits; sbatch: hands a script in, and waits for its end unless wait=no."""
    mpi: str = "none"
    """pmix, pmi2, cray_shasta ... for ranks that call MPI_Init (`srun --mpi=list` says which there are)."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: str = ""
    """Nodes not to use, as Slurm writes lists."""
    switches: str = ""
    """At most so many leaf switches, and how long to wait for that: 1 or 1@00:10:00."""
    array: str = ""
    """sbatch: run it so many times, such as 0-9 or 0-9%2 (two at a time)."""
    exclusive: bool = False
    """Whether nodes are shared with nobody."""
    cpus_per_task: int = 0
    cpu_bind: str = ""
    """none, cores, verbose,cores ...; the cluster's own if not given."""
    memory: str = ""
    """A node's, such as 0 (all of it) or 64G."""
    queue_s: int = 3600
    """Seconds until the job must have begun, or it is given up: Slurm itself waits for ever for nodes that are down."""
    wait: bool = True
    """sbatch: whether to wait for its end."""
    pyxis: bool = False
    """Whether images are run by NVIDIA's pyxis plug-in; by Apptainer if not."""
    arguments: tuple[str, ...] = ()
    """Further words for srun, or lines for #SBATCH."""


def render(job: Job, options: SlurmOptions) -> Launch:
    """An srun, or a script and its sbatch. The job ends when one rank fails, and at its time limit."""
    if options.mode not in ("srun", "sbatch"):
        raise InputError(f"mode={options.mode}: there are srun and sbatch.")
    if options.array and options.mode != "sbatch":
        raise InputError("array: only sbatch runs arrays; add --launcher-option mode=sbatch.")
    if options.array and not re.fullmatch(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?", options.array):
        raise InputError(f"array={options.array}: write numbers and ranges, such as 0-9 or 0-9%2.")
    if options.switches and not re.fullmatch(r"\d+(@[-\d:]+)?", options.switches):
        raise InputError(f"switches={options.switches}: write a number, and how long to wait for it: 1@00:10:00.")
    if options.queue_s < 1:
        raise InputError(f"queue_s={options.queue_s}: write seconds, 1 or more.")
    for option, value in (
        *_texts(options),
        ("mpi", options.mpi),
        ("cpu_bind", options.cpu_bind),
        ("hosts", ",".join(job.hosts)),
    ):
        if value and not re.fullmatch(r"[A-Za-z0-9_.,:%@&|*()\[\]\-+=/]+", value):
            raise InputError(f"{option}={value}: it holds letters that Slurm's options do not.")
    return _srun(job, options) if options.mode == "srun" else _sbatch(job, options)


def _texts(options: SlurmOptions) -> tuple[tuple[str, str], ...]:
    return (
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("reservation", options.reservation),
        ("constraint", options.constraint),
        ("exclude", options.exclude),
        ("switches", options.switches),
        ("mem", options.memory),
    )


def _resources(job: Job, options: SlurmOptions) -> list[str]:
    """What is asked of the scheduler, as srun and sbatch both write it."""
    words = [f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks={job.ranks}"]
    words.append(f"--ntasks-per-node={job.ranks_per_node}")
    if job.hosts:
        words.append(f"--nodelist={','.join(job.hosts)}")
    if job.gpus_per_rank:
        # Of the node, not of each task: ranks must see each other's GPUs for copies between them (CUDA IPC).
        words.append(f"--gpus-per-node={job.gpus_per_rank * job.ranks_per_node}")
    if options.cpus_per_task:
        words.append(f"--cpus-per-task={options.cpus_per_task}")
    words += [f"--{name}={value}" for name, value in _texts(options) if value]
    words += ["--exclusive"] if options.exclusive else []
    return [*words, f"--time={clock(job.time_limit_s)}"]


def _srun(job: Job, options: SlurmOptions) -> Launch:
    image, command = _inside(job, options)
    argv = [
        *("srun", *_resources(job, options), f"--immediate={options.queue_s}", *_step(options)),
        *([f"--chdir={job.working_directory}"] if job.working_directory else []),
        *_exports(job),
        *image,
        *options.arguments,
        *bounded(command, job),
    ]
    ours = Command(tuple(argv), range(job.ranks), dict(job.environment), label=_LABEL)
    return Launch("slurm", (ours,), slack_s=MARGIN_S + options.queue_s)


def _inside(job: Job, options: SlurmOptions) -> tuple[list[str], tuple[str, ...]]:
    """Words for srun that name the image, and what is run in it."""
    if not (options.pyxis and job.image):
        return [], contained(job)
    words = [f"--container-image={job.needs_image('pyxis')}"]
    binds = [f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in job.mounts]
    return [*words, *([f"--container-mounts={','.join(binds)}"] if binds else [])], job.argv


def _step(options: SlurmOptions) -> list[str]:
    bind = [f"--cpu-bind={options.cpu_bind}"] if options.cpu_bind else []
    return [f"--mpi={options.mpi}", *bind, "--kill-on-bad-exit=1", "--label"]


def _exports(job: Job) -> list[str]:
    """By name: srun takes the values from its own environment, so commas in them do no harm."""
    return [f"--export={','.join(sorted(job.environment)) or 'NONE'}"]


def _sbatch(job: Job, options: SlurmOptions) -> Launch:
    number = "%A_%a" if options.array else "%j"
    folder = f"{job.working_directory}/" if job.working_directory else ""
    lines = [
        *_resources(job, options),
        *([f"--array={options.array}"] if options.array else []),
        f"--output={folder}{job.name}-{number}.out",
        f"--error={folder}{job.name}-{number}.err",
        *([f"--chdir={job.working_directory}"] if job.working_directory else []),
        "--export=NONE",
        "--open-mode=append",
        "--no-requeue",
    ]
    for line in (*lines, *options.arguments):
        if any(letter.isspace() or letter in "\"'\\" for letter in line):
            raise InputError(f"#SBATCH {line}: Slurm takes no spaces or quotes here; use another folder or name.")
    image, command = _inside(job, options)
    text = (
        "#!/bin/sh\n"
        + "".join(f"#SBATCH {line}\n" for line in (*lines, *options.arguments))
        + "\n"
        + exported(job)
        + f"exec {shlex.join(['srun', *_step(options), '--export=ALL', *image, *bounded(command, job)])}\n"
    )
    name = f"{job.name}.sbatch"
    begin = f"--deadline=now+{whole_seconds(job.time_limit_s) + options.queue_s}"
    argv = ("sbatch", "--parsable", begin, *(["--wait"] if options.wait else []), name)
    ours = Command(argv, range(job.ranks))
    return Launch("sbatch", (ours,), (File(name, text),), starts_here=options.wait, slack_s=MARGIN_S + options.queue_s)


def run_batch(
    launch: Launch,
    job: Job,
    deadline_s: float,
    write: Callable[[Line], None] | None,
    stopped: Callable[[], bool] | None,
) -> str:
    """Hands a script in, waits for its end unless wait=no, and passes on what the job wrote into its files; the job's number.

    Raises LaunchError as `run_commands` does. A job that is not done by then, or whose wait is broken off, is cancelled.
    """
    number = ""

    def take(line: Line) -> None:
        nonlocal number
        if not line.to_error and not number:
            number = line.text.decode("utf-8", "replace").strip().partition(";")[0]
        elif write:
            write(line)

    ended = False
    try:
        run_commands(launch, deadline_s=deadline_s, write=take, stopped=stopped)
        ended = True
    except LaunchError as error:
        ended = error.failure is not None and error.failure.how.startswith("ended with status")
        if not number or error.failure is None:
            raise
        failure = _failure(job, number, error.failure)
        raise LaunchError(f"job {number}: {failure}", failure) from None
    finally:
        if number and not ended:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["scancel", number], capture_output=True, timeout=_CANCEL_S, check=False)
        if number and launch.starts_here and write:
            for line in _written(job, number):
                write(line)
    return number


def _failure(job: Job, number: str, seen: Failure) -> Failure:
    """What srun said in the job's files, where it says more than sbatch, which knows the status only."""
    words = words_of("slurm")
    last: deque[tuple[int | None, str]] = deque(maxlen=200)
    for line in _written(job, number):
        text = line.text.decode("utf-8", "replace").strip()
        if not words.take(text) and line.to_error and text:
            last.append((line.rank, text))
    own = [text for rank, text in last if words.rank in (None, rank)]
    return Failure(words.rank, words.host, words.how or seen.how, tuple(own[-_SHOWN_LINES:]))


def _written(job: Job, number: str) -> Iterator[Line]:
    """Lines of the job's output files, and of those of each task of an array."""
    folder = Path(job.working_directory or ".")
    for ending in ("out", "err"):
        for path in sorted(
            [*folder.glob(f"{job.name}-{number}.{ending}"), *folder.glob(f"{job.name}-{number}_*.{ending}")]
        ):
            with path.open("rb") as file:
                for text in iter(lambda: file.readline(_LONGEST_LINE), b""):
                    match = _LABELLED.match(text)
                    rank = int(match[1]) if match else None
                    yield Line(text[match.end() :] if match else text, ending == "err", 0, rank)


_LABEL = r"^ *(?P<rank>\d+): "
_LABELLED = re.compile(_LABEL.encode())
_CANCEL_S = 20.0
_LONGEST_LINE = 1 << 20
_SHOWN_LINES = 3
