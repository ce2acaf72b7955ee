"""Our JSON of a task graph.

{"schema": 1, "ranks": 2, "tasks": [{"id": "a", "rank": 0, "kind": "compute", "time_s": 1e-6},
{"id": "b", "rank": 0, "kind": "transfer", "to": 1, "bytes": 1024, "after": ["a"]}]}; kinds: compute, delay and barrier (of no time), transfer;
multicast and reduce, whose "to" is a list of the other ranks.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from busbw.errors import InputError
from busbw.simulation.graph import COMPUTE, DELAY, MULTICAST, REDUCE, TRANSFER, TaskGraph
from busbw.simulation.network import picoseconds

__all__ = ["read_graph_json"]

_MOST_TIME_S = 9.2e6
"""106 days: where the core's clock of picoseconds ends."""
_KINDS = {
    "compute": COMPUTE, "transfer": TRANSFER, "delay": DELAY, "barrier": DELAY, "multicast": MULTICAST, "reduce": REDUCE,
}  # fmt: skip
_NEEDED = {
    "transfer": {"to", "bytes"}, "multicast": {"to", "bytes"}, "reduce": {"to", "bytes"}, "barrier": set[str](),
}  # fmt: skip


def read_graph_json(text: str, path: str) -> TaskGraph:
    """The graph, not yet checked for cycles. Raises InputError with the task that is wrong."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}:{getattr(error, 'lineno', 1)}: no JSON: {error}.") from error
    if not isinstance(data, dict) or data.get("schema") != 1 or not isinstance(data.get("tasks"), list):
        raise InputError(f'{path}: no task graph: it starts with {{"schema": 1, "ranks": N, "tasks": [...]}}.')
    tasks = data["tasks"]
    ids: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if not isinstance(task, dict) or "id" not in task:
            raise InputError(f"{path}: task {number} is no object with an id.")
        if ids.setdefault(str(task["id"]), number) != number:
            raise InputError(f"{path}: two tasks are called {task['id']}. Rename one.")
    kind, rank, peer, size, time = (
        [_number(path, task, what) for task in tasks] for what in ("kind", "rank", "to", "bytes", "time_s")
    )
    before, after = [], []
    for number, task in enumerate(tasks):
        earlier = task.get("after", [])
        if not isinstance(earlier, list):
            raise InputError(f"{path}: task {task['id']}: after is {earlier!r}; write a list of ids.")
        for name in earlier:
            if str(name) not in ids:
                raise InputError(
                    f"{path}: task {task['id']} comes after {name}, which is not there. Add it or leave it out."
                )
            before.append(ids[str(name)])
            after.append(number)
    lists = [task["to"] if isinstance(task.get("to"), list) else [] for task in tasks]
    members = np.array([one for each in lists for one in each], np.int64)
    ranks = data.get("ranks") or int(max([*rank, *peer, *members.tolist(), 0])) + 1
    if not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"{path}: ranks is {ranks!r}; write how many there are.")
    kinds, whose, peers, sizes = (np.array(column, np.int64) for column in (kind, rank, peer, size))
    return TaskGraph(
        ranks, kinds, whose, peers, sizes, picoseconds(np.array(time, np.float64)), np.full(len(tasks), -1, np.int64),
        np.array(before, np.int64), np.array(after, np.int64), tuple(ids),
        np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64), members,
    )  # fmt: skip


def _number(path: str, task: dict[str, Any], what: str) -> float:
    if what == "kind":
        if not isinstance(task.get("kind"), str) or task["kind"] not in _KINDS:
            raise InputError(
                f"{path}: task {task['id']}: kind {task.get('kind')!r} is unknown; there is {', '.join(_KINDS)}."
            )
        return _KINDS[task["kind"]]
    needed = {"rank"} | _NEEDED.get(task["kind"], {"time_s"})
    value = task.get(what, -1 if what == "to" else 0)
    if what == "to" and task["kind"] in ("multicast", "reduce"):
        if not isinstance(value, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**62 for one in value
        ):
            raise InputError(f"{path}: task {task['id']}: to is {value!r}; write a list of ranks.")
        return -1
    if (what in needed and what not in task) or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{path}: task {task['id']}: {what} is {task.get(what)!r}; write a number.")
    most = _MOST_TIME_S if what == "time_s" else 2**62
    if not (-1 if what == "to" else 0) <= value <= most:
        raise InputError(f"{path}: task {task['id']}: {what} is {value}; write a number from 0 to {most:.4g}.")
    if what != "time_s" and value != int(value):
        raise InputError(f"{path}: task {task['id']}: {what} is {value}; write a whole number.")
    return value
