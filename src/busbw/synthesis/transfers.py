"""What synthesis finds: which chunk goes from which rank to which, and when. Columns; T transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import Schedule, from_transfers

__all__ = ["Transfers"]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Every transfer of a schedule, column by column, in the order of their beginnings.

    Rows with the same link and begin are one message: the link is busy with it from begin to end, and its chunks are there at the end.
    """

    collective: str
    ranks: int
    chunks: int
    """Chunk c of all_gather and reduce_scatter belongs to rank c // (chunks / ranks)."""
    chunk_bytes: float
    root: int | None
    chunk: NDArray[np.int32]
    """(T,)."""
    src: NDArray[np.int32]
    """(T,) ranks."""
    dst: NDArray[np.int32]
    """(T,) ranks."""
    link: NDArray[np.int32]
    """(T,) index into the links that the schedule was made for."""
    begin_ps: NDArray[np.int64]
    """(T,)."""
    end_ps: NDArray[np.int64]
    """(T,)."""
    reduces: NDArray[np.bool_]
    """(T,) whether the destination adds what arrives to what it has."""

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def time_s(self) -> float:
        """From the first beginning, at 0, to the last end."""
        return int(self.end_ps.max(initial=0)) * 1e-12

    @property
    def messages(self) -> int:
        """Transfers that go together counted once."""
        return len(np.unique(np.stack([self.link.astype(np.int64), self.begin_ps]), axis=1).T)

    def schedule(self, name: str = "greedy") -> Schedule:
        """The Schedule with one step for each time at which messages begin; the times themselves are not part of it.

        >>> one = np.zeros(1, np.int32)
        >>> pair = Transfers("broadcast", 2, 1, 8.0, 0, one, one, one + 1, one, one.astype(np.int64), one + np.int64(5), one != 0)
        >>> pair.schedule().bind().ranks
        2
        """
        begin_ps, src, dst, chunk, reduces = self.begin_ps, self.src, self.dst, self.chunk, self.reduces
        if self.collective == "all_to_all":  # what a rank sends to itself goes from one buffer to the other
            rank, part = np.divmod(np.arange(self.chunks), self.chunks // self.ranks)
            own = rank * self.chunks + rank * (self.chunks // self.ranks) + part
            begin_ps = np.concatenate([np.zeros(self.chunks, np.int64), begin_ps])
            src, dst, chunk = (np.concatenate(pair) for pair in ((rank, src), (rank, dst), (own, chunk)))
            reduces = np.concatenate([np.zeros(self.chunks, bool), reduces])
        return from_transfers(
            self.collective,
            self.ranks,
            self.chunks,
            step=np.unique(begin_ps, return_inverse=True)[1],
            src=src,
            dst=dst,
            chunk=chunk,
            reduce=reduces.astype(np.int64),
            root=self.root or 0,
            name=name,
        )

    def time_reversed(self) -> Transfers:
        """The same backwards in time, each transfer the other way: reduce_scatter of an all_gather and reduce of a broadcast, which add, gather of a scatter."""
        end = int(self.end_ps.max(initial=0))
        order = np.argsort(end - self.end_ps, kind="stable")
        collective = {"all_gather": "reduce_scatter", "broadcast": "reduce", "scatter": "gather"}[self.collective]
        return Transfers(
            collective,
            self.ranks,
            self.chunks,
            self.chunk_bytes,
            self.root,
            self.chunk[order],
            self.dst[order],
            self.src[order],
            self.link[order],
            end - self.end_ps[order],
            end - self.begin_ps[order],
            np.full(len(self), collective != "gather"),
        )

    def then(self, gathers: Transfers) -> Transfers:
        """This reduce_scatter, and when all of it has ended the all_gather of the same chunks: an all_reduce."""
        if (self.ranks, self.chunks, self.chunk_bytes) != (gathers.ranks, gathers.chunks, gathers.chunk_bytes):
            raise ValueError("two schedules follow one another only with the same ranks and chunks")
        end = int(self.end_ps.max(initial=0))
        return Transfers(
            "all_reduce",
            self.ranks,
            self.chunks,
            self.chunk_bytes,
            self.root,
            np.concatenate([self.chunk, gathers.chunk]),
            np.concatenate([self.src, gathers.src]),
            np.concatenate([self.dst, gathers.dst]),
            np.concatenate([self.link, gathers.link]),
            np.concatenate([self.begin_ps, gathers.begin_ps + end]),
            np.concatenate([self.end_ps, gathers.end_ps + end]),
            np.concatenate([self.reduces, gathers.reduces]),
        )
