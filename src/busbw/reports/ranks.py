"""The ranks, and the hosts, side by side: one row each, one column a fact, cells that differ from what most have marked.

Many rows are shown in groups that have the same values, so that a job of thousands of ranks is a few lines.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from busbw.diagnosis.facts import Facts, LinkGroup, Process
from busbw.reports.timeline import Timeline

__all__ = ["GROUP_FROM", "MAX_ROWS", "Cell", "RankTable", "host_table", "number_ranges", "rank_table"]

MAX_ROWS = 256
"""Rows that are drawn; those with a cell that differs come first in the choice."""
GROUP_FROM = 65
"""From how many rows on those with equal values are one."""
MAX_SETTINGS = 24
"""Settings that are drawn as columns."""
MAX_PROGRESS = 4
"""Groups whose progress is drawn as columns, those in which ranks differ first."""
MAX_RAILS = 16
"""NICs that are drawn as columns."""
MAX_RUNS = 10
"""Runs of numbers that are written out in one cell."""

_Key = tuple[str | None, int | None]
_Row = tuple[str | None, int | str | None]
"""A process, or ("rank 3", host) where no process is known for a rank."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fact of one process; empty text: nobody said."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class RankTable:
    """`identity` of the columns name the process or host, the others are compared."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    identity: int
    left_out: int
    of: int = 0
    """Processes or hosts that all rows stand for."""
    grouped: bool = False
    """Whether a row stands for all that have its values."""


def rank_table(facts: Facts, most: int = MAX_ROWS) -> RankTable:
    """What each process said of itself, and how far its rank is. Columns that nobody filled are left out."""
    processes: dict[_Key, Process] = {
        k: p for k, p in facts.processes.items() if p.pid is not None or len(p.ranks) == 1
    }
    links: dict[_Key, list[LinkGroup]] = defaultdict(list)
    for group in facts.links:
        links[group.host, group.pid].append(group)
    settings = _settings(facts)
    names = _differing(settings, processes)
    ranks = {key: process.ranks or _ranks_of(links.get(key, [])) for key, process in processes.items()}
    progress = _progress(facts, ranks)
    header = ["rank", "host", "pid", "GPU", "NCCL", "network", "connections", "GPUDirect", *progress, *names]
    compared: list[list[str]] = []
    numbers: list[set[int]] = []
    for key, process in processes.items():
        told = settings.get(key, {})
        own = links.get(key, [])
        compared.append(
            [
                number_ranges(ranks[key]),
                process.host or "",
                "" if process.pid is None else str(process.pid),
                number_ranges(process.devices),
                _field(process, "nccl.version", "version"),
                _field(process, "nccl.network", "network") or ", ".join(sorted({g.network for g in own if g.network})),
                _transports(own),
                _gpudirect(own),
                *(by_row.get(key, "") for by_row in progress.values()),
                *(told.get(name, "not set" if told else "") for name in names),
            ]
        )
        numbers.append(ranks[key])
    for rank, host in sorted({k for by_row in progress.values() for k in by_row if k not in processes}, key=_by_rank):
        said = [by_row.get((rank, host), "") for by_row in progress.values()]
        number = rank.removeprefix("rank ") if isinstance(rank, str) else ""
        compared.append([number, host if isinstance(host, str) else "", *[""] * 6, *said, *[""] * len(names)])
        numbers.append({int(number)} if number.isdigit() else set())
    return _table(header, compared, 4, most, lambda rows: _many_ranks(compared, numbers, rows))


def host_table(facts: Facts, failures: Timeline, most: int = MAX_ROWS) -> RankTable:
    """What each host has: processes, transports, a column for each NIC by the number that NCCL gives it, its first failure.

    A host that uses no NIC of a number that others use differs, and so does one whose NIC does not reach GPU memory.
    """
    hosts = sorted(facts.hosts, key=_natural)
    links: dict[str, list[LinkGroup]] = defaultdict(list)
    for group in facts.links:
        if group.host:
            links[group.host].append(group)
    of_host: dict[str, list[Process]] = defaultdict(list)
    for process in facts.processes.values():
        if process.host:
            of_host[process.host].append(process)
    rails = sorted({rail for group in facts.links if (rail := _rail(group))}, key=_natural)[:MAX_RAILS]
    failed = {row.host: row for row in reversed(failures.rows) if row.host}
    header = ["host", "ranks", "processes", "NCCL", "connections", *rails, "first failure"]
    compared = []
    for host in hosts:
        own = links.get(host, [])
        ranks = {rank for process in of_host[host] for rank in process.ranks}
        versions = {_field(process, "nccl.version", "version") for process in of_host[host]} - {""}
        by_rail: dict[str, list[LinkGroup]] = defaultdict(list)
        for group in own:
            by_rail[_rail(group)].append(group)
        compared.append(
            [
                host, number_ranges(ranks), str(sum(p.pid is not None for p in of_host[host]) or ""),
                ", ".join(sorted(versions)), _transports(own),
                *(_rail_state(by_rail[rail]) if by_rail.get(rail) else "unused" if own else "" for rail in rails),
                "yes" if host in failed else "none" if failed else "",
            ]
        )  # fmt: skip
    return _table(header, compared, 3, most, lambda rows: _many_hosts(compared, rows))


def _rail(group: LinkGroup) -> str:
    """`IB/3` of NET/IB/3/GDRDMA; empty for what is no NIC. Source of the form: NVIDIA/nccl, src/transport/net.cc."""
    parts = group.via.split("/")
    return f"NIC {parts[1]}/{parts[2]}" if parts[0] == "NET" and len(parts) > 2 and parts[2].isdigit() else ""


def _rail_state(groups: Sequence[LinkGroup]) -> str:
    if all(group.network == "Socket" for group in groups):
        return "in use"
    return {"yes": "GDR", "no": "no GDR", "in part": "GDR in part"}.get(_gpudirect(groups), "in use")


def _table(
    header: Sequence[str],
    compared: Sequence[Sequence[str]],
    identity: int,
    most: int,
    many: Callable[[Sequence[int]], Sequence[str]],
) -> RankTable:
    """Marks, groups and cuts the rows. many: the first `identity` cells of rows that are shown as one."""
    order = sorted(range(len(compared)), key=lambda i: _order(compared[i]))
    filled = [i for i in range(len(header)) if any(row[i] for row in compared)]
    usual = {i: _usual(row[i] for row in compared) for i in filled if i >= identity}
    together: dict[tuple[str, ...], list[int]] = defaultdict(list)
    grouped = len(compared) >= GROUP_FROM
    for r in order:
        values = tuple(_kinds(compared[r][i]) for i in filled if i >= identity)
        together[values if grouped else (str(r),)].append(r)
    rows: list[tuple[Cell, ...]] = []
    stands_for: list[int] = []
    for members in together.values():
        row = compared[members[0]]
        names = [*row[:identity]] if len(members) == 1 else many(members)
        told = [*names, *row[identity:]]
        if len(members) > 1:
            told[identity:] = [_kinds(text) for text in told[identity:]]
        rows.append(
            tuple(Cell(told[i], i in usual and row[i] != "" and _kinds(row[i]) not in usual[i]) for i in filled)
        )
        stands_for.append(len(members))
    odd_first = sorted(range(len(rows)), key=lambda r: (not any(cell.differs for cell in rows[r]), r))
    chosen = odd_first[:most] if grouped else sorted(odd_first[:most])
    return RankTable(
        tuple(header[i] for i in filled), tuple(rows[r] for r in chosen), sum(i < identity for i in filled),
        len(compared) - sum(stands_for[r] for r in chosen), len(compared), grouped,
    )  # fmt: skip


def _many_ranks(compared: Sequence[Sequence[str]], numbers: Sequence[set[int]], rows: Sequence[int]) -> list[str]:
    hosts = list(dict.fromkeys(compared[r][1] for r in rows if compared[r][1]))
    named = ", ".join(hosts) if len(hosts) < 3 else f"{hosts[0]} and {len(hosts) - 1} more"
    devices = {compared[r][3] for r in rows}
    ranks = number_ranges({n for r in rows for n in numbers[r]})
    return [ranks, named, f"{len(rows)} processes", next(iter(devices)) if len(devices) == 1 else ""]


def _many_hosts(compared: Sequence[Sequence[str]], rows: Sequence[int]) -> list[str]:
    names = [compared[r][0] for r in rows]
    return [f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}", "", ""]


def _progress(facts: Facts, ranks: Mapping[_Key, set[int]]) -> dict[str, dict[_Row, str]]:
    """By column, `enqueued / completed` by process, or by ("rank n", host) where no process is known for a rank."""
    of_rank: dict[int, list[_Key]] = defaultdict(list)
    for key, own in ranks.items():
        for rank in own:
            of_rank[rank].append(key)

    def row(rank: int | None, host: str | None, pid: int | None) -> _Row:
        if (host, pid) in ranks:
            return host, pid
        known = of_rank.get(rank, []) if rank is not None else []
        return known[0] if len(known) == 1 else (f"rank {rank}", host)

    found: dict[str, dict[_Row, str]] = defaultdict(dict)
    for item in facts.progress:
        if item.rank is not None or (item.host, item.pid) in ranks:
            name = " ".join(word for word in ("progress of", item.group or "the job", item.op or "") if word)
            done, enqueued = item.last_completed, item.last_enqueued
            told = (
                " / ".join("?" if n is None else str(n) for n in (enqueued, done))
                if done is not None
                else str(enqueued)
            )
            found[name][row(item.rank, item.host, item.pid)] = told
    if not found:
        last: dict[tuple[str, int, str | None], list[int]] = {}
        for c in facts.collectives:
            if c.rank is not None and not c.is_p2p:
                reached = last.setdefault((c.group or "the job", c.rank, c.host), [0, 0])
                reached[0] = max(reached[0], c.seq)
                reached[1] = max(reached[1], c.seq if c.done else 0)
        for (group, rank, host), (enqueued, done) in last.items():
            found[f"progress of {group}"][row(rank, host, None)] = f"{enqueued} / {done}"
    order = sorted(found, key=lambda name: (len(set(found[name].values())) < 2, -len(found[name]), name))
    return {name: found[name] for name in order[:MAX_PROGRESS]}


def _by_rank(key: _Row) -> tuple[int, str]:
    number = str(key[0]).removeprefix("rank ")
    return (int(number) if number.isdigit() else 0, str(key))


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that puts host2 before host10."""
    return [(int(part), "") if part.isdigit() and len(part) < 19 else (0, part) for part in re.split(r"(\d+)", text)]


def _order(row: Sequence[str]) -> tuple[bool, int, list[tuple[int, str]], int]:
    """By first rank, then host and pid; processes without a rank come last."""
    rank, host, pid = row[:3]
    if not re.match(r"\d", rank):  # a row of a host begins with its name
        return (True, 0, _natural(rank or host), int(pid) if pid.isdigit() else 0)
    return (False, int(re.split("[-,]", rank)[0]), _natural(host), int(pid) if pid.isdigit() else 0)


def _settings(facts: Facts) -> dict[_Key, dict[str, str]]:
    found: dict[_Key, dict[str, str]] = defaultdict(dict)
    for setting in facts.settings:
        if setting.host is not None or setting.pid is not None:
            found[setting.host, setting.pid][setting.name] = setting.value
    return found


def _differing(settings: dict[_Key, dict[str, str]], processes: Iterable[_Key]) -> list[str]:
    """Names of settings that not all processes which name any setting have alike."""
    told = [settings[key] for key in processes if key in settings]
    names = sorted({name for values in told for name in values})
    return [name for name in names if len({values.get(name) for values in told}) > 1][:MAX_SETTINGS]


def _field(process: Process, event: str, field: str) -> str:
    found = process.first(event)
    return found.fields.get(field, "") if found is not None else ""


def _ranks_of(links: Sequence[LinkGroup]) -> set[int]:
    """The process's own rank: NCCL names the direction of a network connection as seen from the one who prints it."""
    sending = [group.src_rank for group in links if group.direction == "send"]
    receiving = [group.dst_rank for group in links if group.direction == "receive"]
    return {rank for rank in [*sending, *receiving] if rank is not None}


def _transports(links: Sequence[LinkGroup]) -> str:
    """`P2P 12, NET 4`: kinds of connections; counts are shown, kinds are what matters."""
    counts: Counter[str] = Counter()
    for group in links:
        counts[group.transport] += group.count
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _gpudirect(links: Sequence[LinkGroup]) -> str:
    """Whether connections over InfiniBand or a plugin let the NIC reach GPU memory; empty without such connections."""
    able = {group.gpudirect for group in links if group.transport == "NET" and group.network != "Socket"}
    if not able:
        return ""
    return "yes" if able == {True} else "no" if able == {False} else "in part"


def number_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 8` for 0, 1, 2, 3, 8; after MAX_RUNS runs how many numbers there are in all."""
    runs: list[list[int]] = []
    every = sorted(numbers)
    for number in every:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in runs[:MAX_RUNS])
    return told if len(runs) <= MAX_RUNS else f"{told} ... ({len(every):,} in all)"


def _usual(values: Iterable[str]) -> frozenset[str]:
    """What is not marked: the commonest value, all where everyone agrees, none where the commonest are tied."""
    counts = Counter(_kinds(value) for value in values if value).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return frozenset()
    return frozenset(value for value, _ in counts[:1])


def _kinds(value: str) -> str:
    """A cell of connections compared by its kinds: `P2P 12, NET 4` and `P2P 8, NET 2` are alike."""
    words = [part.rsplit(" ", 1) for part in value.split(", ")]
    return ", ".join(w[0] for w in words) if all(len(w) == 2 and w[1].isdigit() for w in words) else value
