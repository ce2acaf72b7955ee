"""D12: the library's best at each size against the larger of the latency and the bandwidth bound, by alpha-beta with one port a rank.

One port: a rank sends one message and receives one at a time, so a step with m messages of a rank costs m alpha. Latency bound:
ceil(log2 ranks) alpha, since with each message at most one more rank knows of a byte. Bandwidth bound: what a rank must at least send or
receive. Both can't be met at once at every size, and for broadcast, reduce and all_to_all no algorithm is known that comes near between them:
those gaps are listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.rows import Benchmark, Measured, Options

if TYPE_CHECKING:
    from busbw.collectives import Schedule
    from busbw.collectives.cost import Cost

__all__ = ["BENCHMARKS"]

_ALPHA_S = 2e-6
_BETA_S_PER_BYTE = 1 / 50e9
"""One NIC of 400 Gb/s and NCCL's order of a network step. Only alpha / beta matters, and sizes go far to both sides of it."""
_SIZES = [1 << power for power in range(6, 35, 2)]
_RANKS = (8, 12, 32, 128, 1000, 1024)
_PARTS = (1, 4, 16, 64, 256)
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all")
_IN_NETWORK = ("nvls", "sharp", "multicast")
_NEAR = 1.1


def _bound_s(collective: str, ranks: int, size_bytes: int) -> float:
    sent = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "reduce": 1.0}.get(collective, (ranks - 1) / ranks)
    return max(math.ceil(math.log2(ranks)) * _ALPHA_S, sent * size_bytes * _BETA_S_PER_BYTE)


def _bindings(schedule: Schedule, ranks: int) -> Iterator[dict[str, int]]:
    """Sizes of axes and parameters to try: any first axis with small powers of two after it."""
    inner = len(schedule.axes) - 1
    for extent in (1,) if not inner else (2, 4, 8, 16, 32):
        if ranks % extent**inner or ranks // extent**inner < 2:
            continue
        sizes = dict(zip(schedule.axes, (ranks // extent**inner, *[extent] * inner), strict=True))
        for parts in _PARTS if any(name == "parts" for name, _ in schedule.params) else (0,):
            yield sizes | ({"parts": parts} if parts else {})


def _time_s(cost: Cost, size_bytes: int) -> float:
    chunk_s = size_bytes / cost.chunks * _BETA_S_PER_BYTE
    total = 0.0
    for round_ in cost.rounds:
        messages = chunks = 0.0
        for axis, load in round_.step.items():
            if axis:
                busiest = max(float(load.sent.max()), float(load.received.max()))
                messages += math.ceil(busiest / load.message - 1e-9)
                chunks += busiest
        total += round_.times * (messages * _ALPHA_S + chunks * chunk_s)
    return total


def _best(options: Options) -> dict[tuple[str, int], dict[int, tuple[float, str]]]:
    """The least time and its schedule for each size, by collective and ranks."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.cost import cost

    found: dict[tuple[str, int], dict[int, tuple[float, str]]] = {}
    for name, make in LIBRARY.items():
        schedule = make()
        if schedule.kind not in _COLLECTIVES or any(word in name for word in _IN_NETWORK):
            continue
        for ranks in _RANKS[:2] if options.smoke else _RANKS:
            cells = found.setdefault((schedule.kind, ranks), {})
            for sizes in _bindings(schedule, ranks):
                try:
                    counted = cost(schedule.bind(**sizes))
                except ValueError:
                    continue  # not for this number of ranks
                for size in _SIZES:
                    cells[size] = min(cells.get(size, (math.inf, "")), (_time_s(counted, size), name))
    return found


def _against_bounds(options: Options) -> Measured:
    """D12: a cell is a collective, a number of ranks and a size."""
    near = cells = missing = 0
    worst: dict[str, tuple[float, int, int, str]] = {}
    found = _best(options)
    for collective in _COLLECTIVES:
        for ranks in _RANKS[:2] if options.smoke else _RANKS:
            for size in _SIZES:
                cells += 1
                time_s, name = found.get((collective, ranks), {}).get(size, (math.inf, ""))
                ratio = time_s / _bound_s(collective, ranks, size)
                missing += not math.isfinite(ratio)
                near += ratio <= _NEAR
                worst[collective] = max(worst.get(collective, (0.0, 0, 0, "")), (ratio, ranks, size, name))
    gaps = ", ".join(
        f"{collective} {ratio:.2f}x at {ranks} ranks, {size} B ({name})"
        for collective, (ratio, ranks, size, name) in worst.items()
    )
    return Measured([near / cells, missing], note=f"{cells} cells; largest gaps: {gaps}")


BENCHMARKS = (
    Benchmark("D12", "cells in which the library's best is within 10 % of max(latency bound, bandwidth bound), one port; cells without a schedule", "share; cells", (">=;==", (0.6, 0.0)), _against_bounds),
)  # fmt: skip
