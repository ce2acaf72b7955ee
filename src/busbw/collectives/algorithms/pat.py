"""PAT (parallel aggregated trees): Bruck with the far ranks first, so that late, large messages stay near; bounded messages.

all_gather: block b is spread down a binomial tree over the ranks b, b + 1, ..; distances 2^(L-1), .., 2, 1 with L = ceil(log2 p). At distance d rank r passes on
the blocks r - 2 d j that it holds, `aggregation` of them a message. Steps: sum over d of max(1, ceil(p/(2 d) / A)), which is
log2 p where p/2 <= A and about p/A + log2 A beyond. T = steps alpha + n (p - 1)/p beta. reduce_scatter is the reverse.

Source: arXiv 2506.20252 (Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale").
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, parallel, steps
from busbw.collectives.expressions import ceil_log, minimum, power
from busbw.collectives.passes import reverse
from busbw.collectives.schedule import Schedule

__all__ = ["pat_all_gather", "pat_reduce_scatter"]


def pat_all_gather(aggregation: int = 1 << 20) -> Schedule:
    """All-gather by PAT with at most `aggregation` blocks a message."""

    def pat(r: Axis) -> None:
        data = chunks(r.size)
        levels = ceil_log(2, r.size)
        for level in steps(levels, "level"):
            d = power(2, levels - 1 - level)
            held = (r.size + d - 1) // (2 * d)  # blocks r - 2 d j whose tree goes on from r to r + d
            for part in steps((held + aggregation - 1) // aggregation, "part"):
                for j in parallel(minimum(held - part * aggregation, aggregation), "j"):
                    r.send(data[r - 2 * d * (part * aggregation + j)], to=r + d)

    return build("all_gather", "pat_all_gather", ("r",), pat)


def pat_reduce_scatter(aggregation: int = 1 << 20) -> Schedule:
    """Reduce-scatter by PAT: near, large messages first."""
    return reverse(pat_all_gather(aggregation))
