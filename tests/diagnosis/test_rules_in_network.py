"""Reductions in the switch: nccl-rdma-sharp-plugins, libsharp."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("sharp_not_in_use", "sharp-unavailable", """
        > cn21:880:931 [0] NCCL INFO NCCL_COLLNET_ENABLE set by environment to 1.
        > [cn21:0:880 - context.c:611] ERROR unable to connect to SHARPD daemon on cn21
        > [cn21:0:880 - comm.c:374] ERROR Failed to lock SAT tree(ID:0x200 ret:0x4)
    """, severity="minor"),
    near_miss("sharp_not_in_use", "SHARP works", """
        cn21:880:931 [0] NCCL INFO NCCL_COLLNET_ENABLE set by environment to 1.
        cn21:880:931 [0] NCCL INFO Sharp rank 0/4 initialized on mlx5_2:1
    """),
    near_miss("sharp_not_in_use", "nobody asked for it", """
        cn21:880:931 [0] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
    """),
    fires("manager_does_not_run", "sharp-unavailable", """
        > Mar 11 07:01:55 ufm2 sharp_am[5120]: Local Port validation failed. error: FabricProvider must bind to port with master SM (SM LID:1 local LID:9. Exiting.
    """, severity="major", why="sharp_am, 3.x"),
    near_miss("manager_does_not_run", "a manager that runs", """
        Mar 11 07:01:55 ufm1 systemd[1]: Started SHARP Aggregation Manager (sharp_am). Version: 3.7.0.
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
