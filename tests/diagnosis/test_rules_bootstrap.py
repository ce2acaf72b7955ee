"""Start-up: NCCL src/bootstrap.cc and src/misc/socket.cc."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("foreign_connection", "bootstrap-foreign-connection", """
        > cn61:12:40 [0] bootstrap.cc:168 NCCL WARN Message truncated : received 542393671 bytes instead of 4096
    """, why="GET read as a length"),
    fires("foreign_connection", "bootstrap-foreign-connection", """
        > cn61:12:40 [0] misc/socket.cc:601 NCCL WARN socketFinalizeAccept: wrong magic 20544547 != 4b1dfacade
    """),
    near_miss("foreign_connection", "two small lengths: versions that differ", """
        cn61:12:40 [0] bootstrap.cc:168 NCCL WARN Message truncated : received 2048 bytes instead of 1024
    """),
    fires("ranks_disagree_on_the_job", "env-mismatch-between-ranks", """
        > cn61:12:40 [0] bootstrap.cc:262 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 32
    """, severity="fatal"),
    fires("ranks_disagree_on_the_job", "env-mismatch-between-ranks", """
        > cn61:12:40 [0] bootstrap.cc:270 NCCL WARN Bootstrap Root : rank 5 of 16 ranks has already checked in
    """, why="a rank started twice"),
    near_miss("ranks_disagree_on_the_job", "every rank checked in once", """
        cn61:12:40 [0] NCCL INFO COLLECTED ALL 16 HANDLES
        cn61:12:40 [0] NCCL INFO Bootstrap timings total 0.604102 (create 0.000041, send 0.000310, recv 0.590112, ring 0.013201, delay 0.000001)
    """),
    # types of a connection: src/include/socket.h
    fires("transports_differ", "net-plugin-mismatch", """
        > cn51:77:91 [0] NCCL INFO NET/IB : No device found.
        > cn51:77:91 [0] NCCL INFO Using network Socket
        > cn52:91:97 [0] NCCL INFO Using network IB
        > cn51:77:99 [0] misc/socket.cc:520 NCCL WARN socketFinalizeAccept from 10.20.4.52<41002>: wrong type 4 != 3
    """, severity="fatal"),
    near_miss("transports_differ", "no type of NCCL's transports", """
        cn51:77:99 [0] misc/socket.cc:520 NCCL WARN socketFinalizeAccept from 10.20.4.52<41002>: wrong type 1195725856 != 1
    """),
    near_miss("foreign_connection", "the types of two transports", """
        cn51:77:99 [0] misc/socket.cc:520 NCCL WARN socketFinalizeAccept from 10.20.4.52<41002>: wrong type 3 != 4
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
