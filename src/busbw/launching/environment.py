"""Who a process is among the ranks of its job, whatever started it: read in this one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from busbw.errors import InputError

__all__ = ["PLACING", "Place", "place"]

PLACING = (
    "BUSBW_RANK",
    "BUSBW_RANKS",
    "BUSBW_LOCAL_RANK",
    "BUSBW_LOCAL_RANKS",
    "BUSBW_NODE",
    "BUSBW_NODES",
    "BUSBW_RANKS_PER_NODE",
)
"""Variables that busbw's own launchers set; another launcher must not find those of the job that it is started in."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in its job. None: its launcher does not say."""

    rank: int
    ranks: int
    local_rank: int | None
    local_ranks: int | None
    node: int | None
    nodes: int | None
    launcher: str
    """Whose variables said so."""


def place(environment: Mapping[str, str]) -> Place | None:
    """The place that the environment tells; None if nothing in it is a launcher's.

    Where launchers are nested the inner one counts: busbw's own, torchrun, Open MPI, MPICH (Hydra, Intel MPI), MVAPICH, then Slurm,
    Cray's PALS, Flux, any other PMI, pods of Kubernetes, and plain RANK and WORLD_SIZE at the end. BUSBW_RANKS_PER_NODE, which our launchers set where they lay
    ranks out in blocks, tells nodes that mpirun does not. Raises InputError if what is set contradicts itself.

    >>> place({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}).node
    1
    """
    for launcher, recognises, read in _LAUNCHERS:
        if all(name in environment for name in recognises):
            return _checked(launcher, read(environment), environment)
    return None


_Found = tuple[int | None, int | None, int | None, int | None, int | None, int | None]
"""Rank, ranks, local rank, local ranks, node, nodes."""


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text:
            if not re.fullmatch(r"[0-9]{1,9}", text):
                raise InputError(f"{name}={text}: a number was expected; unset it, or start the ranks by a launcher.")
            return int(text)
    return None


def _named(*names: str) -> Callable[[Mapping[str, str]], _Found]:
    """Reads a variable for each part of a place; an empty name where there is none."""

    def read(environment: Mapping[str, str]) -> _Found:
        rank, ranks, local, locals_, node, nodes = (
            _number(environment, *name.split()) if name else None for name in names
        )
        return rank, ranks, local, locals_, node, nodes

    return read


def _slurm(environment: Mapping[str, str]) -> _Found:
    node = _number(environment, "SLURM_NODEID")
    counts = _tasks_per_node(
        environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    )
    return (
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        _number(environment, "SLURM_LOCALID"),
        counts[node] if node is not None and node < len(counts) else None,
        node,
        _number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    )


def _tasks_per_node(text: str) -> list[int]:
    """Counts of `2(x3),1`, as Slurm shortens lists; none if it is written otherwise."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _pod(index: str, size: str) -> Callable[[Mapping[str, str]], _Found]:
    """One rank a pod: more are started inside it and have places of their own."""

    def read(environment: Mapping[str, str]) -> _Found:
        node, nodes = _number(environment, index), _number(environment, size)
        return node, nodes, 0, 1, node, nodes

    return read


_LAUNCHERS: tuple[tuple[str, tuple[str, ...], Callable[[Mapping[str, str]], _Found]], ...] = (
    (
        "busbw",
        ("BUSBW_RANK", "BUSBW_RANKS"),
        _named("BUSBW_RANK", "BUSBW_RANKS", "BUSBW_LOCAL_RANK", "BUSBW_LOCAL_RANKS", "BUSBW_NODE", "BUSBW_NODES"),
    ),
    (  # torch/distributed/elastic/agent/server/local_elastic_agent.py; GROUP_RANK is the node's
        "torchrun",
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        _named("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    ),
    (  # docs.open-mpi.org, "Environment variables that are set by mpirun"; OMPI_COMM_WORLD_NODE_RANK is no node's number
        "openmpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        _named(
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "",
            "",
        ),
    ),
    (  # MPICH 4.0.2, seen under mpiexec.hydra; Intel MPI's is Hydra too. Slurm's PMI-2 sets no MPI_LOCALRANKID
        "mpich",
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        _named("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", ""),
    ),
    (  # MVAPICH2 user guide, "MV2_COMM_WORLD_..."; from memory, unverified
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        _named(
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
            "",
            "",
        ),
    ),
    ("slurm", ("SLURM_PROCID",), _slurm),  # srun(1), "OUTPUT ENVIRONMENT VARIABLES"
    (  # from memory, unverified
        "pals",
        ("PALS_RANKID",),
        _named("PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID", ""),
    ),
    (  # flux-run(1), "ENVIRONMENT"; from memory, unverified
        "flux",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        _named("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "", "FLUX_JOB_NNODES"),
    ),
    ("PMI", ("PMI_RANK", "PMI_SIZE"), _named("PMI_RANK", "PMI_SIZE", "", "", "", "")),
    ("leaderworkerset", ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"), _pod("LWS_WORKER_INDEX", "LWS_GROUP_SIZE")),
    ("kubernetes", ("JOB_COMPLETION_INDEX", "BUSBW_NODES"), _pod("JOB_COMPLETION_INDEX", "BUSBW_NODES")),
    ("RANK and WORLD_SIZE", ("RANK", "WORLD_SIZE"), _named("RANK", "WORLD_SIZE", "", "", "", "")),
)
"""Launcher, variables that it sets and no other does, what reads them."""


def _checked(launcher: str, found: _Found, environment: Mapping[str, str]) -> Place | None:
    rank, ranks, local_rank, local_ranks, node, nodes = found
    if rank is None or ranks is None:
        return None
    per_node = _number(environment, "BUSBW_RANKS_PER_NODE")
    if node is None and per_node:
        node, nodes = rank // per_node, -(-ranks // per_node)
    if node is None and local_ranks == ranks:
        node, nodes = 0, 1
    if not rank < ranks:
        raise InputError(
            f"{launcher}: rank {rank} of {ranks} ranks, which are numbered from 0; the job's environment is mixed up."
        )
    if local_rank is not None and local_ranks is not None and not local_rank < local_ranks:
        raise InputError(
            f"{launcher}: local rank {local_rank} of {local_ranks} on this node; the job's environment is mixed up."
        )
    if node is not None and nodes is not None and not node < nodes:
        raise InputError(f"{launcher}: node {node} of {nodes} nodes; the job's environment is mixed up.")
    return Place(rank, ranks, local_rank, local_ranks, node, nodes, launcher)
