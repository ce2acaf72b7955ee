"""A host that does not get on: a file system that does not answer, tasks and processors that are stuck."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.desync import is_job_program

__all__ = ["RULES"]

_WAITING = (
    "torch.watchdog_timeout", "torch.missing_ranks", "torch.barrier_missed", "nccl.ib_completion", "nccl.remote_result", "nccl.peer_closed",
)  # fmt: skip
"""What ranks say that wait for another one, or lost it."""


def _restored(facts: Facts, event: Event, name: str, field: str) -> bool:
    """Whether a later line of the same file says that this server answers again."""
    return any(
        e.at.path == event.at.path and e.at.line > event.at.line and e.fields.get(field) == event.fields.get(field)
        for e in facts.all(name)
    )


def file_system_stalled(facts: Facts) -> Iterator[Finding]:
    """A network file system does not answer: a rank that reads data or writes a checkpoint stands still, and the others wait for it.

    Fires on the kernel's "nfs: server ... not responding" (net/sunrpc/clnt.c) and on Lustre's lost connections and evictions (ptlrpc/import.c) that no later
    line of the same log takes back. A remark where the server answered again and nobody waits. Silent on a connection that is only restored, and on single operations that failed.
    """
    stalled = facts.all("kernel.nfs_stalled", "kernel.lustre_lost", "kernel.lustre_evicted")
    if not stalled:
        return
    lasting = [
        e for e in stalled
        if e.name == "kernel.lustre_evicted"
        or not _restored(facts, e, *(("kernel.nfs_restored", "server") if e.name == "kernel.nfs_stalled" else ("kernel.lustre_restored", "target")))
    ]  # fmt: skip
    waiting = facts.all(*_WAITING)
    first = (lasting or stalled)[0]
    server = first.fields.get("server") or first.fields.get("service") or first.fields.get("target", "")
    sure = 0.65 if waiting and lasting else 0.5 if lasting else 0.4 if waiting else 0.2
    hosts = sorted({e.host for e in stalled if e.host})
    yield Finding(
        "rank-late-or-stuck", sure, "fatal" if waiting and lasting else "major" if lasting or waiting else "minor",
        f"file server {server} {'does' if lasting else 'did'} not answer{' ' + ', '.join(hosts[:4]) if hosts else ''}",
        lines_of([*(lasting or stalled), *facts.all("kernel.hung_task")[:3], *waiting[:4]]),
        "Mend the path to the file server or the server; the ranks go on once it answers. Keep checkpoints and data off a server that many nodes wait for.",
        ["cat /proc/PID/stack of the rank that waits: nfs_, rpc_, ll_ or ptlrpc_", "nfsstat -c; lfs check servers"],
    )  # fmt: skip


def task_stuck(facts: Facts) -> Iterator[Finding]:
    """A program of the job, or a processor, stands still in the kernel; the ranks of that host reach no collective.

    Fires on tasks blocked for long (kernel/hung_task.c) that belong to a GPU program, on soft and hard lock-ups of a processor and on RCU stalls. What it waits for
    stands in the stack below the line. Silent on blocked tasks of other programs, and where a file system that does not answer explains them.
    """
    if facts.all("kernel.nfs_stalled", "kernel.lustre_lost", "kernel.lustre_evicted"):
        return
    blocked = [e for e in facts.all("kernel.hung_task") if is_job_program(facts, e)]
    locked = facts.all("kernel.soft_lockup", "kernel.hard_lockup", "kernel.rcu_stall")
    if not blocked and not locked:
        return
    waiting = facts.all(*_WAITING)
    what = (
        f"{blocked[0].fields.get('name', 'a program')} is blocked in the kernel"
        if blocked
        else "a processor does not get out of the kernel"
    )
    yield Finding(
        "rank-late-or-stuck", 0.55 if waiting else 0.45, "fatal" if waiting else "major", what, lines_of([*blocked, *locked, *waiting[:4]]),
        "Read the stack below the line: a file system, the GPU driver or a NIC driver names what it waits for; if the driver does, drain and reboot the node.",
        ["dmesg -T around the line", "cat /proc/PID/stack"],
    )  # fmt: skip


RULES = (file_system_stalled, task_stuck)
