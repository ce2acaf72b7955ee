"""/dev/shm: NCCL src/misc/shmutils.cc."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("segment_refused", "shm-too-small", """
        > [2026-04-02 10:11:12] trainer-3:402:455 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 33030660 bytes, error: No space left on device (28)
        > [2026-04-02 10:11:12] trainer-3:402:455 [1] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 33030656), error: No space left on device (28)
        > [2026-04-02 10:11:13] trainer-3:403:460 [2] proxy.cc:1521 NCCL WARN Socket recv failed while polling for opId=0x7f10, connection=0x7f20
    """, severity="fatal"),
    near_miss("segment_refused", "room enough, and nothing failed", """
        shm              64G  1.2M   64G   1% /dev/shm
        trainer-3:402:455 [1] NCCL INFO Channel 00 : 1[1] -> 2[2] via SHM/direct/direct
    """),
    near_miss("segment_refused", "a full disk", """
        OSError: [Errno 28] No space left on device: '/checkpoints/step-4000'
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
