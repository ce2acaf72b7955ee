"""Circulant graphs: in round t rank r talks to r + s and r - s, for skips s that about double; any number of ranks, as few rounds as there can be.

p ranks, q = ceil(log2 p), skips s_k = ceil(p / 2^(q - k)).
broadcast: the vector in m blocks; each round a rank sends one block and gets one. m - 1 + q rounds, T = (m - 1 + q)(alpha + n/m beta), which no algorithm that
moves a block of n/m a round can beat; best m = sqrt((q - 1) n beta / alpha): T = (sqrt((q - 1) alpha) + sqrt(n beta))^2. reduce is the reverse: the same time.
all_reduce: Bruck's reduce_scatter, then his all_gather, which walk such a graph: 2 q rounds, T = 2 q alpha + 2 n (p - 1)/p beta for any p, where Rabenseifner's needs a power of two
or folds. Sums are formed in different orders on different ranks only in reduce_scatter's partial sums, each of which ends on one rank: all ranks get the same bits.

Source: Traeff, "Optimal broadcast schedules in logarithmic time ...", arXiv 2312.11236 (blocks: `busbw.collectives.circulant`); Traeff, "Optimal, non-pipelined
reduce-scatter and allreduce algorithms", arXiv 2410.14234, for all_reduce.
"""

from __future__ import annotations

from busbw.collectives.algorithms.bruck import bruck_all_gather, bruck_reduce_scatter
from busbw.collectives.builder import Axis, build, chunks, parameter, steps
from busbw.collectives.expressions import ceil_log, circulant_block, maximum, minimum, ne, power
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["circulant_all_reduce", "circulant_broadcast", "circulant_reduce"]


def circulant_broadcast(blocks: int = 4) -> Schedule:
    """Broadcast of `blocks` blocks (a default; bind(blocks=...)) in blocks - 1 + ceil(log2 p) rounds.

    >>> from busbw.collectives.cost import cost
    >>> cost(circulant_broadcast().bind(13, blocks=5)).steps  # 5 - 1 + 4
    8
    """

    def circulant(r: Axis) -> None:
        root = parameter("root", 0)
        count = parameter("blocks", blocks)
        data = chunks(count)
        turn = maximum(ceil_log(2, r.size), 1)
        idle = (1 - count) % turn  # rounds of the first turn that are left out, so that the last one ends with its turn
        for t in steps(count - 1 + turn):
            k = (t + idle) % turn
            far = (r.size + power(2, turn - k) - 1) // power(2, turn - k)
            to = (r - root + far) % r.size  # the receiver, counted from the root
            block = circulant_block(to, k, r.size) + (t + idle) // turn * turn - idle
            r.send(data[minimum(block, count - 1)], to=r + far, when=ne(to, 0) & (block >= 0))

    return build("broadcast", "circulant_broadcast", ("r",), circulant)


def circulant_reduce(blocks: int = 4) -> Schedule:
    """Reduce of `blocks` blocks in blocks - 1 + ceil(log2 p) rounds."""
    return reverse(circulant_broadcast(blocks))


def circulant_all_reduce() -> Schedule:
    """All-reduce in 2 ceil(log2 p) rounds and as few bytes as can be, for any number of ranks."""
    return compose(bruck_reduce_scatter(), bruck_all_gather(), "circulant_all_reduce")
