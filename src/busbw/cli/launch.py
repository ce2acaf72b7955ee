"""`busbw launch`: starts ranks of any command by any launcher, or shows exactly what would."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from busbw.cli.console import given_path, note, problem
from busbw.cli.launching import (
    DryRun,
    Environment,
    GpusPerRank,
    Hosts,
    Image,
    LauncherName,
    LauncherOptions,
    Mounts,
    Nodes,
    RanksPerNode,
    TimeLimit,
    Write,
    Written,
    made_job,
    show,
    stop_signals,
)

__all__ = ["launch"]

_FAILED = 1
_OF_THIS_MACHINE = ("local", "mpirun", "torchrun", "slurm", "ssh", "apptainer")
"""Launchers whose ranks get what is allowed of this process's environment; images and other machines have their own."""


def launch(  # noqa: PLR0917 - an option each
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="What each rank runs, with its arguments; best after --.")
    ],
    launcher: LauncherName = "local",
    ranks: Annotated[int | None, typer.Option("--ranks", metavar="N", help="Number of ranks in all.")] = None,
    nodes: Nodes = None,
    ranks_per_node: RanksPerNode = None,
    hosts: Hosts = None,
    gpus_per_rank: GpusPerRank = 0,
    time_limit: TimeLimit = "10m",
    environment: Environment = None,
    clean: Annotated[bool, typer.Option("--clean-env", help="Pass on no variable of here but those of --env.")] = False,
    image: Image = None,
    mounts: Mounts = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the job.")] = "busbw",
    chdir: Annotated[
        str | None, typer.Option("--chdir", metavar="DIR", help="Where ranks start, on their machine.")
    ] = None,
    options: LauncherOptions = None,
    dry_run: DryRun = False,
    write: Write = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", parser=given_path, metavar="DIR", help="Keep what ranks write, and how they ended, here."
        ),
    ] = None,
    label: Annotated[bool, typer.Option("--label", help="Put the rank before each line, where it is known.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print as JSON.")] = False,
) -> int:
    """Start ranks of a command, by the launcher that the machine has, and say which one failed if one does.

    Ranks learn who they are from their launcher's variables; `busbw.launching.place` reads those of all launchers. When a rank fails, hangs past
    the time limit or loses its node, the others are ended and the exit status is 1; what was written until then has been passed on, and is in
    --output with the reason.

    \b
    Examples:
      busbw launch --ranks 4 -- ./all_reduce_perf -b 8 -e 1G
      busbw launch --launcher slurm --nodes 2 --ranks-per-node 8 --gpus-per-rank 1 --dry-run -- ./train
      busbw launch --launcher jobset --nodes 4 --image nccl-tests --dry-run -- all_reduce_perf
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.launching import LaunchError, launcher_named, render, write_files  # noqa: PLC0415
    from busbw.launching import launch as started  # noqa: PLC0415

    if as_json and not dry_run:
        raise typer.BadParameter("--json: it shows a launch that is not run; add --dry-run.")
    launcher_named(launcher)
    job = made_job(
        command,
        ranks=ranks,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        hosts=hosts,
        gpus_per_rank=gpus_per_rank,
        time_limit=time_limit,
        environment=environment,
        image=image,
        mounts=mounts,
        name=name,
        working_directory=chdir,
        passes_environment=launcher in _OF_THIS_MACHINE and not clean,
    )
    if dry_run:
        rendered = render(job, launcher, options or ())
        if write is not None:
            write_files(rendered, write)
        print(show(rendered.at(write) if write else rendered, as_json=as_json), end="")
        return 0
    written = Written(output, label=label)
    try:
        with stop_signals() as stopped:
            done = started(job, launcher, options or (), folder=write, write=written, stopped=stopped)
    except LaunchError as error:
        written.record(job, launcher, error)
        problem(str(error))
        return _FAILED if error.failure is not None else 2
    except KeyboardInterrupt:
        written.record(job, launcher, None, ended=False)
        raise
    written.record(job, launcher, None)
    if not done.starts_here:
        note(f"handed to {launcher}; its ranks are not waited for.")
    return 0
