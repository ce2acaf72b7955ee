"""What must be true afterwards: kind, ranks, bytes, dtype, operation, root, in place or not; counts and routes known only at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from busbw.collectives.counts import checked_counts
from busbw.collectives.expressions import Table
from busbw.collectives.kinds import COLLECTIVES

__all__ = ["DTYPE_BYTES", "KINDS", "OPERATIONS", "REDUCING", "ROOTED", "Collective", "Routing"]

KINDS = (*COLLECTIVES, "moe_dispatch", "moe_combine")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "moe_combine")
OPERATIONS = ("sum", "prod", "min", "max", "avg")  # NCCL's, nccl.h ncclRedOp_t
DTYPE_BYTES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2,
    "float8_e4m3": 1, "float8_e5m2": 1,
}  # nccl.h ncclDataType_t, in our spelling  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tokens go in a mixture of experts: token i lives on rank `home[i]` and is wanted by the ranks `wanted[i]` (row of 0 and 1).

    home: (T,) and wanted: (T, ranks), int64; T tokens of the whole communicator. A rank that holds several of a token's experts counts once.
    """

    home: Table
    wanted: Table

    @staticmethod
    def of(home: Sequence[int], destinations: Iterable[Iterable[int]], ranks: int) -> Routing:
        """The routing of tokens with these homes to these ranks.

        >>> Routing.of([0, 1], [[1, 1], [0, 1]], ranks=2).wanted.array.tolist()
        [[0, 1], [1, 1]]
        """
        wanted = np.zeros((len(home), ranks), np.int64)
        for token, chosen in enumerate(destinations):
            for rank in chosen:
                if not 0 <= rank < ranks:
                    raise ValueError(f"token {token} goes to rank {rank}; ranks are 0..{ranks - 1}")
                wanted[token, rank] = 1
        return Routing(Table.of(home), Table.of(wanted))


@dataclass(frozen=True, slots=True)
class Collective:
    """A call of a collective: `kind` over `ranks`, `size_bytes` as nccl-tests counts them (the larger of a rank's two buffers).

    `root` counts for broadcast, reduce, gather and scatter only. `counts[s, d]`: elements that rank s sends to rank d
    (all_to_all_v). `routing`: of moe_dispatch and moe_combine. Raises ValueError for what is no collective.

    >>> Collective("all_reduce", ranks=8, size_bytes=1 << 20).elements
    262144
    """

    kind: str
    ranks: int
    size_bytes: int
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    in_place: bool = False
    counts: Table | None = None
    routing: Routing | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no collective; they are {', '.join(KINDS)}")
        if self.ranks < 1:
            raise ValueError(f"a communicator has at least one rank, not {self.ranks}")
        if self.size_bytes < 0:
            raise ValueError(f"size_bytes is {self.size_bytes}; it can't be negative")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"{self.dtype!r} is no dtype; they are {', '.join(DTYPE_BYTES)}")
        if self.op not in OPERATIONS:
            raise ValueError(f"{self.op!r} is no reduction; they are {', '.join(OPERATIONS)}")
        if not 0 <= self.root < self.ranks:
            raise ValueError(f"root {self.root} is none of the ranks 0..{self.ranks - 1}")
        if self.counts is not None and self.counts.array.shape != (self.ranks, self.ranks):
            raise ValueError(
                f"counts has shape {self.counts.array.shape}; {self.ranks} ranks need ({self.ranks}, {self.ranks})"
            )
        if self.routing is not None and self.routing.wanted.array.shape[1] != self.ranks:
            raise ValueError(
                f"routing is for {self.routing.wanted.array.shape[1]} ranks, the collective has {self.ranks}"
            )

    @property
    def elements(self) -> int:
        """Elements of dtype in size_bytes."""
        return self.size_bytes // DTYPE_BYTES[self.dtype]

    @staticmethod
    def all_to_all_v(counts: Any, dtype: str = "float32") -> Collective:
        """The all_to_all_v in which rank s sends counts[s, d] elements to rank d.

        >>> Collective.all_to_all_v([[0, 2], [3, 1]]).size_bytes  # rank 1 sends 4 elements
        16
        """
        table = Table.of(checked_counts(counts))
        most = int(max(table.array.sum(0).max(), table.array.sum(1).max()))
        return Collective("all_to_all_v", len(table.array), most * DTYPE_BYTES[dtype], dtype, counts=table)
