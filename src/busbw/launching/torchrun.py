"""torchrun: one a node, with fixed numbers of nodes and ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from busbw.errors import InputError
from busbw.launching.containers import contained
from busbw.launching.environment import PLACING
from busbw.launching.job import Command, Job, Launch
from busbw.launching.scripts import node_argv
from busbw.launching.ssh import SshOptions, over_ssh

__all__ = ["TorchrunOptions", "render", "torchrun_argv"]


@dataclass(frozen=True, slots=True)
class TorchrunOptions:
    """What torchrun is told besides the job."""

    program: tuple[str, ...] = ("torchrun",)
    """Words that start it, such as 'python -m torch.distributed.run'."""
    port: int = 29500
    """Of the first host, where ranks meet; torch's own default."""
    arguments: tuple[str, ...] = ()
    """Further words for torchrun."""


def render(job: Job, options: TorchrunOptions) -> Launch:
    """One torchrun a node; those of other hosts over ssh. --no-python: argv is run as it stands, a script after its interpreter."""
    job.equal_nodes("torchrun")
    if job.nodes > 1 and not job.hosts:
        raise InputError(f"torchrun on {job.nodes} nodes: name them with --hosts.")
    command = contained(job)
    if not job.hosts:
        argv = torchrun_argv(job, options, "0", None, command)
        ours = Command(argv, range(job.ranks), dict(job.environment), working_directory=job.working_directory)
        return Launch("torchrun", (ours,))
    return Launch("torchrun", tuple(_on(job, options, node, command) for node in range(job.nodes)), holds_input=True)


def _on(job: Job, options: TorchrunOptions, node: int, command: tuple[str, ...]) -> Command:
    """The torchrun of a node, as the one process of the node's script, which bounds its time and ends it with the connection."""
    # The script's own numbers are those of nodes; ranks must not find them.
    inner = torchrun_argv(job, options, str(node), job.hosts[0] if job.nodes > 1 else None, command)
    unset = [word for name in PLACING for word in ("-u", name)]
    one = replace(job, ranks=job.nodes, ranks_per_node=1, argv=("env", *unset, *inner))
    host = job.hosts[node]
    return Command(
        over_ssh(host, node_argv(one, str(node), watch=True), job, SshOptions()), job.ranks_of(node), host=host
    )


def torchrun_argv(
    job: Job, options: TorchrunOptions, node: str, head: str | None, command: tuple[str, ...]
) -> tuple[str, ...]:
    """Torchrun's argv on a node; head: host of node 0, None if there is one node only, which then takes a free port."""
    meet = (
        ("--standalone",)
        if head is None
        else (f"--node-rank={node}", f"--master-addr={head}", f"--master-port={options.port}")
    )
    return (
        *options.program,
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.ranks_per_node}",
        *meet,
        "--max-restarts=0",  # a measurement that failed is not repeated unseen
        *options.arguments,
        "--no-python",
        *command,
    )
