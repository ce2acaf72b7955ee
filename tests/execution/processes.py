"""Runs a function as each rank of a communicator, in processes of their own, and brings back what each returned or raised."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from busbw.execution import Communicator

_CONTEXT = multiprocessing.get_context("fork")  # test modules can't be imported by name


def _as_rank(body: Callable[..., Any], rank: int, answers: Any, **of: Any) -> None:
    try:
        answers.put((rank, body(Communicator(rank=rank, **of)), None))
    except BaseException as error:  # the test reads it
        answers.put((rank, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def run_ranks(ranks: int, body: Callable[[Communicator], Any], *, wait_s: float = 60.0) -> list[Any]:
    """What body returned on each rank; raises AssertionError with the text of what a rank raised."""
    outcomes = outcomes_of(ranks, body, wait_s=wait_s)
    for rank, outcome in enumerate(outcomes):
        assert outcome is not None, f"rank {rank} died"
        assert outcome[1] is None, f"rank {rank}: {outcome[1]}"
    return [outcome[0] for outcome in outcomes if outcome is not None]


def outcomes_of(
    ranks: int, body: Callable[[Communicator], Any], *, wait_s: float
) -> list[tuple[Any, str | None] | None]:
    """What body returned or raised on each rank; None of a process that died."""
    name = f"test-{os.getpid()}-{body.__name__}-{ranks}"
    answers = _CONTEXT.Queue()
    processes = [
        _CONTEXT.Process(
            target=_as_rank, args=(body, rank, answers), kwargs={"ranks": ranks, "name": name, "wait_s": wait_s}
        )
        for rank in range(ranks)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the children touch none of them
        for process in processes:
            process.start()
    found: dict[int, tuple[Any, str | None]] = {}
    while any(process.is_alive() for process in processes) or not answers.empty():
        try:
            rank, returned, raised = answers.get(timeout=0.2)
            found[rank] = (returned, raised)
        except queue.Empty:
            continue
    for process in processes:
        process.join()
    return [found.get(rank) for rank in range(ranks)]
