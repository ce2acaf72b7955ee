"""Columns of layouts: many layouts of one job as arrays, so that a search asks once for all of them. N layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.workloads.training.layout import CONTEXT, ORDERS, RECOMPUTE, SCHEDULES, SHARDING, Layout

__all__ = ["Columns", "groups"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Layouts, micro-batch and recompute, column by column; words as places in their tuples of `layout`."""

    tp: IntArray
    cp: IntArray
    pp: IntArray
    dp: IntArray
    ep: IntArray
    etp: IntArray
    vpp: IntArray
    sharding: IntArray
    shard: IntArray
    sp: IntArray
    schedule: IntArray
    context: IntArray
    order: IntArray
    micro_batch: IntArray
    recompute: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: Sequence[Layout], micro_batch: Sequence[int], recompute: Sequence[str]) -> Columns:
        """The columns of layouts."""

        def column(values: Sequence[int]) -> IntArray:
            return np.array(values, np.int64)

        sizes: dict[str, Any] = {
            name: column([getattr(one, name) for one in layouts])
            for name in ("tp", "cp", "pp", "dp", "ep", "etp", "vpp")
        }
        return cls(
            **sizes,
            sharding=column([SHARDING.index(one.sharding) for one in layouts]),
            shard=column([one.shard for one in layouts]),
            sp=column([int(one.sp) for one in layouts]),
            schedule=column([SCHEDULES.index(one.schedule) for one in layouts]),
            context=column([CONTEXT.index(one.context) for one in layouts]),
            order=column([ORDERS.index(one.order) for one in layouts]),
            micro_batch=column(micro_batch),
            recompute=column([RECOMPUTE.index(one) for one in recompute]),
        )

    def layout(self, place: int) -> Layout:
        """One of the layouts."""
        sizes: dict[str, Any] = {
            name: int(getattr(self, name)[place]) for name in ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "shard")
        }
        return Layout(
            **sizes,
            sharding=SHARDING[int(self.sharding[place])],
            sp=bool(self.sp[place]),
            schedule=SCHEDULES[int(self.schedule[place])],
            context=CONTEXT[int(self.context[place])],
            order=ORDERS[int(self.order[place])],
        )

    def at(self, places: IntArray) -> Columns:
        """Some of the layouts."""
        return Columns(*(getattr(self, name)[places] for name in self.__slots__))

    # --- what follows from the sizes, (N,) each ---
    @property
    def shards(self) -> IntArray:
        """GPUs that share one copy of dense weights' state."""
        whole = self.dp * self.cp
        hsdp = (self.sharding == SHARDING.index("hsdp")) & (self.shard > 0)
        return np.where(hsdp, self.shard, whole)

    @property
    def edp(self) -> IntArray:
        """Copies of an expert."""
        return np.maximum(1, self.tp * self.cp * self.dp // (self.etp * self.ep))

    @property
    def pp_stride(self) -> IntArray:
        """Ranks between neighbours of a pipeline."""
        inner = self.tp * self.cp
        return np.where(self.order == 0, inner * self.dp, inner)

    @property
    def dp_stride(self) -> IntArray:
        """Ranks between neighbours of a group that sums gradients."""
        return np.where(self.order == 0, self.tp, self.tp * self.cp * self.pp)


def groups(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Rows of some columns that are alike: the place of the first of each kind, and the kind of every row.

    >>> groups([np.array([1, 1, 2]), np.array([5, 5, 5])])[1].tolist()
    [0, 0, 1]
    """
    kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            # Numbered anew each time, so that products stay small.
            _, kind = np.unique(kind * len(values) + place.reshape(-1), return_inverse=True)
            kind = kind.reshape(-1)
    _, first = np.unique(kind, return_index=True)
    return first.astype(np.int64), kind.astype(np.int64)
