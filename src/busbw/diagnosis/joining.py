"""What several files say of one thing: the rank behind a GPU's bus id, the job behind a host. Findings are made surer or less sure by it."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from busbw.diagnosis.facts import Event, Facts
from busbw.diagnosis.findings import Finding, LineRef
from busbw.diagnosis.rules.shared import Job, bus_number, jobs

__all__ = ["of_ranks", "with_jobs"]

_OF_A_GPU = ("kernel.xid", "kernel.gpu_lost", "kernel.gpu_init_failed", "kernel.gpu_probe_failed", "kernel.gpu_named")
"""Messages of the kernel about one GPU."""


def of_ranks(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """The findings; those that rest on the kernel's word about a GPU also name the rank that runs on it.

    NCCL prints the bus id of every rank. A fault of a GPU on which a rank runs is surer to be the cause; where all ranks of that host are known
    and none runs on it, less sure.
    """
    about: dict[tuple[str, int], tuple[Event, int]] = {}
    for event in facts.all(*_OF_A_GPU):
        number = bus_number(event.fields.get("bus_id", ""))
        if number is not None:
            about[event.at.path, event.at.line] = (event, number)
    if not about:
        return list(findings)
    by_gpu: dict[tuple[str | None, int], Event] = {}
    hosts: set[str | None] = set()
    for event in facts.all("nccl.comm"):
        number = bus_number(event.fields.get("bus_id", ""))
        if number is not None:
            by_gpu.setdefault((event.host, number), event)
            hosts.add(event.host)
    if not by_gpu:
        return list(findings)
    return [_with_rank(finding, about, by_gpu, hosts) for finding in findings]


def _with_rank(
    finding: Finding, about: dict[tuple[str, int], tuple[Event, int]], by_gpu: dict[tuple[str | None, int], Event],
    hosts: set[str | None],
) -> Finding:  # fmt: skip
    named = [about[line.path, line.line] for line in finding.lines if (line.path, line.line) in about]
    if not named:
        return finding
    ranks: dict[tuple[str, int], Event] = {}
    strangers = True
    for event, number in named:
        host = event.host if event.host is not None else _host_of(event, hosts)
        if host is None or host not in hosts:
            strangers = False  # nobody knows which ranks run on that host
        rank = by_gpu.get((host, number))
        if rank is not None:
            ranks[rank.at.path, rank.at.line] = rank
    if ranks:
        first = next(iter(ranks.values()))
        who = f"rank {first.fields.get('rank', '?')}" + (f" ({first.host})" if first.host else "")
        more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        told = f"(rank {first.fields.get('rank', '?')})" in finding.summary  # the rule has named it already
        return dataclasses.replace(
            finding,
            summary=finding.summary if told else f"{finding.summary}; {who}{more} of the job runs on it",
            lines=sorted({*finding.lines, *(rank.at for rank in list(ranks.values())[:4])}),
            confidence=1 - (1 - finding.confidence) * 0.7,
        )
    if strangers:
        return dataclasses.replace(
            finding,
            summary=f"{finding.summary}; no rank of the job runs on that GPU",
            confidence=finding.confidence * 0.5,
        )
    return finding


def _host_of(event: Event, hosts: set[str | None]) -> str | None:
    """The host of a kernel log without host names: the job's only one, or the one that the file's path names."""
    if len(hosts) == 1:
        return next(iter(hosts))
    words = set(re.split(r"[^\w-]+", event.at.path)) | {
        word for part in PurePath(event.at.path).parts for word in re.split(r"[._]", part)
    }
    named = [host for host in hosts if host is not None and (host in words or host.split(".")[0] in words)]
    return named[0] if len(named) == 1 else None


def with_jobs(findings: Iterable[Finding], facts: Facts) -> list[Finding]:
    """The findings; where files of several jobs were read, each that rests on one job's lines says which."""
    known = jobs(facts)
    if len(known) < 2:
        return list(findings)
    by_file: dict[str, set[int]] = defaultdict(set)
    by_line: dict[tuple[str, int], int] = {}
    for number, job in enumerate(known):
        for process in job.processes:
            for event in facts.processes[process].events if process in facts.processes else ():
                by_file[event.at.path].add(number)
                by_line[event.at.path, event.at.line] = number
    named = []
    for finding in findings:
        said = finding.summary
        about = {_job_of(line, by_line, by_file) for line in finding.lines} - {None}
        if len(about) == 1 and (mine := about.pop()) is not None:
            said = f"{said} [{_label(known[mine])}]"
        named.append(dataclasses.replace(finding, summary=said))
    return named


def _job_of(line: LineRef, by_line: dict[tuple[str, int], int], by_file: dict[str, set[int]]) -> int | None:
    exact = by_line.get((line.path, line.line))
    if exact is not None:
        return exact
    of_file = by_file.get(line.path, set())
    return next(iter(of_file)) if len(of_file) == 1 else None


def _label(job: Job) -> str:
    hosts = sorted({host for host, _ in job.processes if host})
    where = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return (
        f"job of {len(job.processes)} processes"
        + (f" on {where}" if where else "")
        + (f", communicator {job.comm_id}" if job.comm_id else "")
    )
