"""Whatever started a rank, its place is read in one way."""

from __future__ import annotations

import pytest

from busbw.errors import InputError
from busbw.launching import Place, place

# Seen under Open MPI 4.1.4, MPICH 4.0.2, Slurm 22.05 (srun, --mpi=pmi2) and torchrun 2.13; the others from their manuals.
OPENMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
           "OMPI_COMM_WORLD_NODE_RANK": "1", "PMIX_RANK": "3"}  # fmt: skip
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}  # fmt: skip
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}  # fmt: skip
OURS = {"BUSBW_RANK": "3", "BUSBW_RANKS": "4", "BUSBW_LOCAL_RANK": "1", "BUSBW_LOCAL_RANKS": "2", "BUSBW_NODE": "1", "BUSBW_NODES": "2"}  # fmt: skip
BLOCKS = {"BUSBW_RANKS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (OPENMPI | BLOCKS, "openmpi"),
        (MPICH | BLOCKS, "mpich"),
        (SLURM, "slurm"),
        (TORCHRUN, "torchrun"),
        (OURS, "busbw"),
    ],
)
def test_rank_3_of_4_on_two_nodes_is_the_second_of_node_1(environment, launcher):
    assert place(environment) == Place(3, 4, 1, 2, 1, 2, launcher)


def test_mpirun_does_not_say_which_node_unless_all_ranks_share_one():
    found = place(OPENMPI)
    assert found and (found.node, found.nodes) == (None, None)
    alone = OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert place(alone) == Place(3, 4, 3, 4, 0, 1, "openmpi")


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (OPENMPI, SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}),  # mpirun in a batch script
        (MPICH, SLURM | {"SLURM_PROCID": "0"}),  # Hydra starts its proxies with srun
        (TORCHRUN, SLURM | {"SLURM_PROCID": "0"}),
        (OURS, OPENMPI | {"OMPI_COMM_WORLD_RANK": "0"}),
    ],
)
def test_the_inner_launcher_counts(inner, outer):
    found = place(outer | inner)
    assert found and (found.rank, found.ranks) == (3, 4)


def test_slurms_pmi_is_slurms():
    """With --mpi=pmi2 Slurm sets PMI_RANK too, but only its own variables know the node."""
    found = place(SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"})
    assert found and (found.launcher, found.node) == ("slurm", 1)


def test_the_last_node_may_have_fewer_ranks():
    """Slurm writes 2 ranks on three nodes and 1 on the fourth as 2(x3),1."""
    last = {"SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "3", "SLURM_NNODES": "4"}
    assert place(last | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}) == Place(6, 7, 0, 1, 3, 4, "slurm")
    assert place({"BUSBW_RANKS_PER_NODE": "2", "PMI_RANK": "6", "PMI_SIZE": "7"}) == Place(
        6, 7, None, None, 3, 4, "PMI"
    )


def test_a_pod_is_a_node():
    assert place({"JOB_COMPLETION_INDEX": "2", "BUSBW_NODES": "4"}) == Place(2, 4, 0, 1, 2, 4, "kubernetes")
    assert place({"LWS_WORKER_INDEX": "2", "LWS_GROUP_SIZE": "4"}) == Place(2, 4, 0, 1, 2, 4, "leaderworkerset")


def test_no_launcher_is_no_place():
    assert place({"HOME": "/root", "PMIX_RANK": "0"}) is None
    assert place({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) is None  # a shell in an allocation is no rank


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "4"}, "rank 4 of 4 ranks"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "local rank 2 of 2"),
        (SLURM | {"SLURM_NODEID": "2"}, "node 2 of 2"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE=four: a number was expected"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1"),
    ],
)
def test_what_contradicts_itself_is_said(environment, said):
    with pytest.raises(InputError, match=said):
        place(environment)
