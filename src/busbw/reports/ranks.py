"""The ranks side by side: one row a process, one column a fact, cells that differ from what most have marked."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from busbw.diagnosis.facts import Facts, LinkGroup, Process

__all__ = ["MAX_ROWS", "Cell", "RankTable", "rank_table"]

MAX_ROWS = 256
"""Rows that are drawn; those with a cell that differs come first in the choice."""
MAX_SETTINGS = 24
"""Settings that are drawn as columns."""

_Key = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One fact of one process; empty text: nobody said."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class RankTable:
    """`identity` of the columns name the process, the others are compared."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    identity: int
    left_out: int


def rank_table(facts: Facts, most: int = MAX_ROWS) -> RankTable:
    """What each process said of itself. Columns that nobody filled are left out."""
    processes = {key: p for key, p in facts.processes.items() if p.pid is not None or len(p.ranks) == 1}
    links: dict[_Key, list[LinkGroup]] = defaultdict(list)
    for group in facts.links:
        links[group.host, group.pid].append(group)
    settings = _settings(facts)
    names = _differing(settings, processes)
    header = ["rank", "host", "pid", "GPU", "NCCL", "network", "connections", "GPUDirect", *names]
    compared: list[list[str]] = []
    for key, process in processes.items():
        told = settings.get(key, {})
        own = links.get(key, [])
        compared.append(
            [
                _number_ranges(process.ranks or _ranks_of(own)),
                process.host or "",
                "" if process.pid is None else str(process.pid),
                _number_ranges(process.devices),
                _field(process, "nccl.version", "version"),
                _field(process, "nccl.network", "network") or ", ".join(sorted({g.network for g in own if g.network})),
                _transports(own),
                _gpudirect(own),
                *(told.get(name, "not set" if told else "") for name in names),
            ]
        )
    order = sorted(range(len(compared)), key=lambda i: _order(compared[i]))
    filled = [i for i in range(len(header)) if any(row[i] for row in compared)]
    identity = sum(i < 4 for i in filled)
    usual = {i: _usual(row[i] for row in compared) for i in filled if i >= 4}
    rows = [
        tuple(Cell(row[i], i in usual and row[i] != "" and _kinds(row[i]) not in usual[i]) for i in filled)
        for row in (compared[r] for r in order)
    ]
    if len(rows) > most:
        odd_first = sorted(range(len(rows)), key=lambda r: (not any(cell.differs for cell in rows[r]), r))
        rows = [rows[r] for r in sorted(odd_first[:most])]
    return RankTable(tuple(header[i] for i in filled), tuple(rows), identity, len(compared) - len(rows))


def _order(row: Sequence[str]) -> tuple[bool, int, str, int]:
    """By first rank, then host and pid; processes without a rank come last."""
    rank, host, pid = row[:3]
    return (not rank, int(re.split("[-,]", rank)[0]) if rank else 0, host, int(pid or 0))


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


def _number_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 8` for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in runs)


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
