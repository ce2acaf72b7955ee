"""What NIC and kernel give out: verbs calls of NCCL (src/misc/ibvwrap.cc) and UCX, ulimit, mlx5 in the kernel log."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("locked_memory", "memlock-limit", """
        > cn71:640:677 [0] misc/ibvwrap.cc:154 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory
        $ ulimit -a
        > max locked memory       (kbytes, -l) 8192
    """, severity="fatal"),
    fires("locked_memory", "memlock-limit", """
        > [1700000001.110] [cn71:640:0]   ib_log.c:246  UCX  ERROR mlx5_1: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: 128 kbytes)
        # OSU MPI Allreduce Latency Test v7.4
        # Size       Avg Latency(us)
        > 8                       2.41
        16                      2.44
    """, severity="minor", why="the benchmark went through"),
    near_miss("locked_memory", "the limit is unlimited", """
        cn71:640:677 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory
        Max locked memory         unlimited            unlimited            bytes
    """),
    near_miss("locked_memory", "a call that failed for another reason", """
        cn71:640:677 [0] misc/ibvwrap.cc:230 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
    """),
    fires("objects_exhausted", "ib-resource-exhaustion", """
        > cn71:640:677 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory
        > Max locked memory         unlimited            unlimited            bytes
    """),
    fires("objects_exhausted", "ib-resource-exhaustion", """
        > [ 5511.201] mlx5_core 0000:9a:00.0: mlx5_cmd_check:810:(pid 640): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x1a3f21)
    """, why="kernel"),
    near_miss("objects_exhausted", "the limit of locked memory is low", """
        cn71:640:677 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory
        max locked memory       (kbytes, -l) 64
    """),
    near_miss("objects_exhausted", "an argument was wrong", """
        cn71:640:677 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_qp failed with error Invalid argument
    """),
    fires("locked_memory", "memlock-limit", """
        > Couldn't allocate MR with error=12
    """, why="perftest's host buffer"),
    near_miss("locked_memory", "perftest's buffer is GPU memory", """
        initializing CUDA
        Couldn't allocate MR with error=14
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
