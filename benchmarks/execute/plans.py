"""Plans that are run: what a rank gives and what numpy says it must get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives.plan import Plan

__all__ = ["expected", "inputs", "library_plans"]

Array = npt.NDArray[Any]


def inputs(plan: Plan, per_rank: int, dtype: str) -> list[Array]:
    """An array of each rank: `per_rank` elements, as many for each rank where a rank's input has a part for each. Small whole numbers, so that sums are exact."""
    parts = plan.ranks if plan.collective in ("reduce_scatter", "scatter", "all_to_all") else 1
    count = 0 if plan.collective == "barrier" else per_rank * parts
    return [((np.arange(count) * (rank + 1) + rank) % 7).astype(dtype) for rank in range(plan.ranks)]


def expected(plan: Plan, arrays: list[Array]) -> list[Array | None]:
    """What each rank must get of sums; None: it is promised nothing."""
    ranks, kind, root = plan.ranks, plan.collective, plan.root
    whole = np.concatenate(arrays)

    def total() -> Array:
        out = arrays[0].copy()
        for other in arrays[1:]:
            out = out + other
        return out

    if kind == "all_reduce":
        return [total()] * ranks
    if kind == "reduce":
        return [total() if rank == root else None for rank in range(ranks)]
    if kind == "reduce_scatter":
        return list(np.split(total(), ranks))
    if kind == "all_gather":
        return [whole] * ranks
    if kind == "gather":
        return [whole if rank == root else None for rank in range(ranks)]
    if kind == "broadcast":
        return [arrays[root]] * ranks
    if kind == "scatter":
        return list(np.split(arrays[root], ranks))
    if kind == "all_to_all":
        return [np.concatenate([np.split(array, ranks)[rank] for array in arrays]) for rank in range(ranks)]
    if kind == "send_recv":
        return [arrays[(rank - 1) % ranks] for rank in range(ranks)]
    return [None] * ranks


def library_plans(most_ranks: int) -> Iterator[tuple[str, Plan]]:
    """Every schedule of the library, lowered for 1 to most_ranks ranks in every shape, in place where it can be."""
    from busbw.collectives import plan_of
    from busbw.collectives.algorithms import LIBRARY

    for name, make in LIBRARY.items():
        for ranks in range(1, most_ranks + 1):
            for bound in make().bindings(ranks):
                for in_place in (False, True):
                    try:
                        plan = plan_of(bound, in_place=in_place)
                    except ValueError:  # not in place
                        continue
                    yield f"{name} {bound.sizes_text}{' in place' if in_place else ''}", plan
