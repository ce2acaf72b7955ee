"""Hosts that do not get on: the kernel's words for file servers that do not answer, blocked tasks, stuck processors."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("file_system_stalled", "rank-late-or-stuck", """
        > [ 7200.1] nfs: server nas3 not responding, still trying
    """, severity="major", why="net/sunrpc/clnt.c"),
    fires("file_system_stalled", "rank-late-or-stuck", """
        > [ 7200.1] nfs: server nas3 not responding, still trying
        [ 7260.4] nfs: server nas3 OK
    """, severity="minor", why="it answered again: a remark"),
    fires("file_system_stalled", "rank-late-or-stuck", """
        > [ 7200.1] Lustre: scratch-OST0007-osc-ffff9: Connection to scratch-OST0007 (at 10.9.0.7@o2ib) was lost; in progress operations using this service will wait for recovery to complete
    """, severity="major", why="ptlrpc/import.c"),
    near_miss("file_system_stalled", "only the end of a stall", """
        [ 7260.4] nfs: server nas3 OK
    """),
    fires("task_stuck", "rank-late-or-stuck", """
        > [ 7200.1] INFO: task python3:4182 blocked for more than 120 seconds.
    """, severity="major", why="kernel/hung_task.c"),
    fires("task_stuck", "rank-late-or-stuck", """
        > [ 7200.1] watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [kworker/12:1:310]
    """, why="kernel/watchdog.c"),
    near_miss("task_stuck", "a task that is none of the job", """
        [ 7200.1] INFO: task jbd2/sda1-8:412 blocked for more than 120 seconds.
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
