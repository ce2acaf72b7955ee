"""Dumps of PyTorch's Flight Recorder as tests write them: ranks, each with its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SECOND = 10**9


def call(
    seq: int,
    *,
    marked: bool = False,
    op: str = "all_reduce",
    size: int = 1024,
    state: str = "completed",
    dtype: str = "Float",
    group: str = "0",
    **more: Any,
) -> str:
    """A line of a dump: one entry."""
    entry = {
        "record_id": seq, "process_group": [group, "default_pg" if group == "0" else "tp"], "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": f"nccl:{op}", "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype], "state": state,
    } | more  # fmt: skip
    return ("> " if marked else "") + json.dumps(entry)


def p2p(seq: int, what: str, *, done: bool, marked: bool = False) -> str:
    """A line of a dump: a send or receive between ranks of the group."""
    state = "completed" if done else "started"
    return call(seq, op=what, state=state, marked=marked, is_p2p=True, p2p_seq_id=seq)


def dump(*lines: str, members: str = "[0, 1, 2, 3]") -> str:
    """A dump with one entry a line. Marked lines keep their mark at the start."""
    head = (
        '{"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "'
        + members
        + '"}, "1": {"name": "1", "desc": "tp", "ranks": "'
        + members
        + '"}},\n"entries": [\n'
    )
    return head + ",\n".join(lines) + "\n]}\n"


def dumps(ranks: int, lines_of: Callable[[int], Sequence[str]], members: str = "[0, 1, 2, 3]") -> Mapping[str, str]:
    return {f"trace_{rank}": dump(*lines_of(rank), members=members) for rank in range(ranks)}


def created(late_by_ns: Callable[[int, int], int]) -> Mapping[str, str]:
    """Four ranks, twelve calls a second apart; the lateness by rank and call."""
    return dumps(
        4, lambda rank: [call(seq, time_created_ns=seq * SECOND + late_by_ns(rank, seq)) for seq in range(1, 13)]
    )
