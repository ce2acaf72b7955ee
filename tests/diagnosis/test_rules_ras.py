"""Ranks compared by the counts of NCCL's RAS. Formats: ncclras (text and JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from .told import Case, check, fires, near_miss


def status(counts: Sequence[Mapping[str, int]], missing: str = "", marked: Sequence[int] = ()) -> str:
    """A status of ncclras with one rank a line."""
    ranks = [
        ("> " if i in marked else "")
        + json.dumps({"rank": i, "host": f"10.0.0.{i}", "pid": 100 + i, "cuda_dev": 0, "collective_counts": count})
        for i, count in enumerate(counts)
    ]
    head = '{"nccl_version": "2.28.7", "cuda_runtime_version": 12090,\n"communicators": [\n{"hash": "0x7c41", "size": 4, "ranks": [\n'
    return (
        head + ",\n".join(ranks) + '\n],\n"missing_ranks": [\n' + missing + '\n]}\n],\n"ras": {"timeouts_count": 0}}\n'
    )


LOST = '{"rank": 3, "host": "10.0.0.3", "pid": 103, "status": {"unresponsive": true, "considered_dead": DEAD}}'
COUNTS = [{"AllReduce": 40, "AllGather": 7}] * 4

CASES = (
    fires("launches_differ", "rank-late-or-stuck", {
        "ras.json": status([*COUNTS[:3], {"AllReduce": 39, "AllGather": 7}], marked=(0, 1, 2, 3)),
    }, severity="fatal"),
    fires("launches_differ", "collective-mismatch", {
        "ras.json": status([*COUNTS[:3], {"AllReduce": 39, "AllGather": 8}], marked=(0, 1, 2, 3)),
    }, why="fewer of one, more of another"),
    near_miss("launches_differ", "equal counts", {"ras.json": status(COUNTS)}),
    near_miss("launches_differ", "a dead member explains what the others launched", {
        "ras.json": status([*COUNTS[:2], {"AllReduce": 39, "AllGather": 7}], missing=LOST.replace("DEAD", "true")),
    }),
    fires("members_lost", "peer-process-died", {"ras.json": status(COUNTS[:3], missing="> " + LOST.replace("DEAD", "true"))}, severity="fatal"),
    fires("members_lost", "peer-process-died", {"ras.json": status(COUNTS[:3], missing="> " + LOST.replace("DEAD", "false"))}, why="no answer"),
    fires("members_lost", "peer-process-died", """
        Errors
        ======

        DEAD
        >   1 job process is considered dead (unreachable via the RAS network)
        >   Process 4242 on node 10.0.0.3 managing GPU 0
    """, why="the section DEAD"),
    fires("members_lost", "peer-process-died", """
        [2026-01-02 03:04:05] PEER_RETRY: process 77 on node 10.0.0.1 managing GPU 0
        > [2026-01-02 03:04:25] PEER_DEAD: process 77 on node 10.0.0.1 managing GPU 0
    """, why="the monitor"),
    fires("members_lost", "peer-process-died", """
        [2026-01-02 03:04:09] PEER_RECOVERED: process 77 on node 10.0.0.1 managing GPU 0 peer responding again
        > [2026-01-02 03:06:25] PEER_TIMEOUT_DEAD: process 77 on node 10.0.0.1 managing GPU 0
    """, why="after it was heard"),
    near_miss("members_lost", "the peer was heard again", """
        [2026-01-02 03:04:05] PEER_UNRESPONSIVE: process 77 on node 10.0.0.1 managing GPU 0 no answer for 20s
        [2026-01-02 03:04:09] PEER_RECOVERED: process 77 on node 10.0.0.1 managing GPU 0 peer responding again
    """),
    near_miss("members_lost", "a connection that is made anew", """
        [2026-01-02 03:04:05] PEER_DISCONNECTED: process 77 on node 10.0.0.1 managing GPU 0 peer closed connection
        [2026-01-02 03:04:06] PEER_RETRY: process 77 on node 10.0.0.1 managing GPU 0
        [2026-01-02 03:04:06] PEER_CONNECTED: process 77 on node 10.0.0.1 managing GPU 0 connection established successfully
    """),
    near_miss("members_lost", "all members are there", {"ras.json": status(COUNTS)}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
