"""Timeline: when everything happened, in columns, and what held it up.

Legend: T recorded rows, S streams, C channels, N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from busbw.hardware.links import FloatArray, IntArray
from busbw.simulation.expansion import Expansion
from busbw.simulation.network import Network
from busbw.simulation.program import TaskProgram

__all__ = ["Repeat", "Tasks", "Timeline"]

_PS = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """What was done, in the order in which it began: messages, delays and computing."""

    channel: IntArray
    """(T,) -1: a delay."""
    stream: IntArray
    """(T,) who did or posted it."""
    posted_ps: IntArray
    """(T,) when the stream asked for it."""
    begin_ps: IntArray
    """(T,) when its first byte left; -1 not yet."""
    end_ps: IntArray
    """(T,) when its last byte left; -1 not yet."""
    size_bytes: IntArray
    """(T,)"""
    bottleneck: IntArray
    """(T,) the link (of the expansion) that set its rate at the end; -1 none."""
    cause: IntArray
    """(T,) the row that had to end for this one to begin; -1 none."""

    def __len__(self) -> int:
        return len(self.channel)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Rows first to last - 1 happened `times` more times, each period_ps later; rows after them are in their own time."""

    first: int
    last: int
    times: int
    period_ps: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """A run's result. Streams and channels are those of one rank an orbit where the run was folded."""

    end_ps: int
    """When the last stream that is waited for ended; when the run stopped, if it did before."""
    stopped: str | None
    """Why the run ended early; None if it did not."""
    tasks: Tasks
    repeats: tuple[Repeat, ...]
    ends_ps: IntArray
    """(S,) when each stream ended, -1 if it has not."""
    causes: IntArray
    """(S,) the row that let each stream end, -1 none."""
    channel_bytes: IntArray
    """(C,) bytes that left."""
    messages: int
    """Of the columns simulated, those of counted periods included."""
    messages_run: int
    """Of them, those that were run one by one."""
    events: int
    solves: int
    """How often rates were solved for more than one flow."""
    complete: bool
    """Whether every task has a row."""
    expansion: Expansion = field(repr=False)
    program: TaskProgram = field(repr=False)
    network: Network = field(repr=False)

    @classmethod
    def of(
        cls, run: Any, expansion: Expansion, program: TaskProgram, network: Network, stopped: str | None
    ) -> Timeline:
        """What a run of the core knows."""
        ends = run.ends_ps()
        waited = np.array([not s.background for s in program.streams], bool)[expansion.stream_name]
        end = int(ends[waited].max(initial=0)) if stopped is None else run.now_ps
        return cls(
            end, stopped, Tasks(*run.tasks()), tuple(Repeat(*row) for row in run.repeats()), ends, run.causes(),
            run.channel_bytes(), run.messages + run.messages_skipped, run.messages, run.events, run.solves,
            not run.rows_left_out, expansion, program, network,
        )  # fmt: skip

    @property
    def time_s(self) -> float:
        """From the start to the end of the last stream, seconds."""
        return self.end_ps * _PS

    @property
    def folded(self) -> int:
        """Ranks that each simulated rank stands for where symmetry moves all of them; 1 where some stand for themselves."""
        return self.expansion.orbits.order

    def rank_ends_ps(self) -> IntArray:
        """(N,) when the last stream of each rank ended; -1 for ranks with a stream that has not, or without streams."""
        ranks = np.arange(self.program.ranks)
        stands = self.expansion.orbits.canonical(ranks)
        last = np.full(self.program.ranks, -1, np.int64)
        own = self.expansion.stream_rank
        np.maximum.at(last, own, self.ends_ps)
        unfinished = own[self.ends_ps < 0]
        last[unfinished] = -1
        return last[stands]

    def link_bytes(self) -> tuple[IntArray, IntArray]:
        """Links used, by the cluster's numbers (one of each class where folded), and the bytes each carried."""
        expansion = self.expansion
        row = np.repeat(np.arange(len(self.channel_bytes)), np.diff(expansion.ways.begin))
        load = np.bincount(
            expansion.ways.link, weights=self.channel_bytes[row] * self._shares, minlength=len(expansion.link)
        )
        real = np.flatnonzero((expansion.link >= 0) & (load > 0))
        return expansion.link[real], np.rint(load[real]).astype(np.int64)

    def utilisation(self) -> tuple[IntArray, FloatArray]:
        """Links used and what part of what they could carry from start to end they did."""
        links, load = self.link_bytes()
        rate, _ = self.network.rates_of(links)
        return links, load / np.maximum(rate * self.time_s, 1e-300)

    @cached_property
    def _shares(self) -> FloatArray:
        return np.asarray(self.expansion.ways.share, np.float64) / self.expansion.share_unit
