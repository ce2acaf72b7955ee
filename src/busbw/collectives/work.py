"""How much a plan that came from a file may ask for: files are short where loops and expressions stand for much, and come from strangers."""

from __future__ import annotations

from collections.abc import Iterable

from busbw.collectives.plan import Plan, RankPlan
from busbw.errors import InputError

__all__ = ["check_written_out", "most_operations"]

_LEAST = 1 << 18
"""Operations that every plan may have. Measured: 25 us of lowering each, and 0.1 ms to be converted, so that half a minute is the most that a short file takes on few ranks."""
_A_PAIR = 8
"""Operations for each pair of ranks. The library's largest, an all_to_all by Bruck at 1,024 ranks, has 3 (measured)."""
_MOST = 1 << 24
"""Of all ranks: minutes of lowering. A guess at how long a user waits."""
_A_LISTED = 512
"""Operations for each that the file itself lists: four, in each of 128 slices. `busbw design` writes forests of up to 100 (measured, 32 slices, 64 to
128 ranks), and runs to more slices where that pays."""


def most_operations(ranks: int, listed: int = 0) -> int:
    """Operations, of all ranks together, that a plan of so many ranks may come to, loops written out, if its file lists so many itself.

    >>> most_operations(4), most_operations(1024)
    (262144, 8388608)
    """
    return min(max(_LEAST, _A_PAIR * ranks * ranks, _A_LISTED * listed), max(_MOST, listed))


def check_written_out(plan: Plan, ranks: Iterable[RankPlan] | None = None) -> None:
    """Returns if the loops of these ranks, or of all, may be written out, as formats without loops need it. Raises InputError if that is too much."""
    listed, written, most = 0, 0.0, most_operations(plan.ranks)
    for rank in plan if ranks is None else ranks:
        listed += len(rank.instructions)
        written += rank.written_out_rows
        if written > most and written > (most := most_operations(plan.ranks, listed)):
            raise InputError(
                f"plan {plan.name!r}: its loops come to {written:,.0f} operations by rank {rank.rank}, written out; {most:,} are taken of {plan.ranks} ranks. "
                "Run its loops fewer times, or write it for busbw-json, which keeps loops"
            )
