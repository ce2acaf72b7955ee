"""GOAL text, the schedule format of LogGOPSim and ATLAHS.

`num_ranks N`, then per rank a block of labelled operations and dependencies: `rank 0 {`, `l1: calc 100`, `l2: send 8b to 1 tag 5`,
`l3: recv 8b from 1 tag 6`, `l2 requires l1`, `}`. Times are nanoseconds. `cpu N` and `nic N` behind an operation are
read and not used; `irequires` (begins after the other has begun) is taken as `requires`. Source: spcl/LogGOPSim, README and goal grammar.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque

import numpy as np

from busbw.errors import InputError
from busbw.simulation.graph import COMPUTE, RECEIVE, SEND, TaskGraph

__all__ = ["read_goal"]

_RANKS = re.compile(r"num_ranks\s+(\d{1,9})")
_RANK = re.compile(r"rank\s+(\d{1,9})\s*\{")
_CALC = re.compile(r"(\w+)\s*:\s*calc\s+(\d{1,18})(?:\s+cpu\s+\d+)?")
_MESSAGE = re.compile(
    r"(\w+)\s*:\s*(send|recv)\s+(\d{1,18})b\s+(?:to|from)\s+(\d{1,9})((?:\s+(?:tag|cpu|nic)\s+\d{1,18})*)"
)
_REQUIRES = re.compile(r"(\w+)\s+i?requires\s+(\w+)")
_TAG = re.compile(r"tag\s+(\d+)")
_PS_PER_NS = 1000


def read_goal(text: str, path: str) -> TaskGraph:
    """The graph, not yet checked for cycles. Raises InputError with the line that is wrong, or with a message that has no other end."""
    rows: list[tuple[int, int, int, int, int]] = []
    names: list[str] = []
    labels: dict[str, int] = {}
    edges: list[tuple[str, str, int]] = []
    before: list[int] = []
    after: list[int] = []
    sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    awaited: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    ranks, rank = 0, -1

    def close() -> None:
        for later, earlier, line in edges:
            for label in (later, earlier):
                if label not in labels:
                    raise InputError(f"{path}:{line}: no operation {label} in rank {rank}.")
            before.append(labels[earlier])
            after.append(labels[later])
        labels.clear()
        edges.clear()

    for number, line in enumerate(text.splitlines(), 1):
        said = line.split("//")[0].split("#")[0].strip().rstrip(";")
        if not said:
            continue
        if (found := _RANKS.fullmatch(said)) is not None:
            ranks = int(found[1])
        elif (found := _RANK.fullmatch(said)) is not None:
            rank = int(found[1])
        elif said == "}":
            close()
            rank = -1
        elif rank < 0:
            raise InputError(
                f"{path}:{number}: {said[:60]!r} stands outside of a rank. This is no GOAL text, or a block is missing."
            )
        elif (found := _REQUIRES.fullmatch(said)) is not None:
            edges.append((found[1], found[2], number))
        else:
            calc, message = _CALC.fullmatch(said), _MESSAGE.fullmatch(said)
            label = calc[1] if calc else message[1] if message else ""
            if not label or labels.setdefault(label, len(rows)) != len(rows):
                what = f"{label} is given twice" if label else f"{said[:60]!r} is no operation"
                raise InputError(
                    f"{path}:{number}: {what}; operations are calc, send and recv, each with a label of its own."
                )
            if calc:
                rows.append((COMPUTE, rank, -1, 0, int(calc[2]) * _PS_PER_NS))
            elif message:
                tag = _TAG.search(message[5])
                other, mark = int(message[4]), int(tag[1]) if tag else 0
                sends = message[2] == "send"
                (sent[rank, other, mark] if sends else awaited[other, rank, mark]).append(len(rows))
                rows.append((SEND if sends else RECEIVE, rank, other if sends else -1, int(message[3]), 0))
            names.append(f"rank {rank} {label}")
    if rank >= 0:
        raise InputError(f"{path}: rank {rank} has no end. The file looks cut.")
    if not ranks:
        raise InputError(f"{path}:1: no `num_ranks N`. This is no GOAL text.")
    match = np.full(len(rows), -1, np.int64)
    for ends, receives in awaited.items():
        for task in receives:
            if not sent[ends]:
                raise InputError(
                    f"{path}: {names[task]} waits for a message from rank {ends[0]} with tag {ends[2]} that is never sent."
                )
            match[task] = sent[ends].popleft()
    for left in sent.values():
        if left:
            raise InputError(f"{path}: {names[left[0]]} sends a message that nobody receives.")
    kind, who, peer, size, time = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((),) * 5)
    )
    return TaskGraph(
        ranks, kind, who, peer, size, time, match, np.array(before, np.int64), np.array(after, np.int64), tuple(names)
    )
