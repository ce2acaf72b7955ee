"""D12: the library's best at each size against the larger of the latency and the bandwidth bound, by alpha-beta with one port a rank.

One port: a rank sends one message and receives one at a time, so a step with m messages of a rank costs m alpha. Latency bound:
ceil(log2 ranks) alpha, since with each message at most one more rank knows of a byte. Bandwidth bound: what a rank must at least send or
receive. Both can't be met at once: a schedule pays for its rounds and for its bytes. What is proved of the two together is
`busbw.collectives.bounds.round_bound_s`; the row says how many cells are within 10 % of either, and lists the largest gaps by size.
"""

from __future__ import annotations

import itertools
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
_CHOICES = {
    "parts": (1, 4, 16, 64, 256),
    "blocks": tuple(1 << place for place in range(10)),
    "radix": (3, 4, 8, 16, 32, 64),
}
"""Of parameters that a schedule may have: slices, blocks, base of the digits."""
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all")
_IN_NETWORK = ("nvls", "sharp", "multicast")
_NEAR = 1.1
_CLASSES = (("<= 16 KiB", 1 << 14), ("<= 1 MiB", 1 << 20), ("<= 64 MiB", 1 << 26), ("larger", 1 << 62))


def _bound_s(collective: str, ranks: int, size_bytes: int) -> float:
    sent = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "reduce": 1.0}.get(collective, (ranks - 1) / ranks)
    return max(math.ceil(math.log2(ranks)) * _ALPHA_S, sent * size_bytes * _BETA_S_PER_BYTE)


def _bindings(schedule: Schedule, ranks: int) -> Iterator[dict[str, int]]:
    """Sizes of axes and parameters to try: any first axis with small powers of two after it, and, of two axes, two nodes."""
    inner = len(schedule.axes) - 1
    extents = (2, 4, 8, 16, 32, ranks // 2) if inner == 1 else (2, 4, 8, 16, 32)
    for extent in dict.fromkeys(extents) if inner else (1,):
        if ranks % extent**inner or ranks // extent**inner < 2:
            continue
        sizes = dict(zip(schedule.axes, (ranks // extent**inner, *[extent] * inner), strict=True))
        named = [name for name, _ in schedule.params if name in _CHOICES]
        for choice in itertools.product(*(_CHOICES[name] for name in named)):
            yield sizes | dict(zip(named, choice, strict=True))


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
    from busbw.collectives.bounds import round_bound_s

    near = near_rounds = cells = missing = 0
    gaps: dict[str, dict[str, tuple[float, float, str]]] = {}
    found = _best(options)
    for collective in _COLLECTIVES:
        for ranks in _RANKS[:2] if options.smoke else _RANKS:
            for size in _SIZES:
                cells += 1
                time_s, name = found.get((collective, ranks), {}).get(size, (math.inf, ""))
                ratio = time_s / _bound_s(collective, ranks, size)
                rounds = time_s / round_bound_s(collective, ranks, size, _ALPHA_S, _BETA_S_PER_BYTE)
                missing += not math.isfinite(ratio)
                near += ratio <= _NEAR
                near_rounds += rounds <= _NEAR
                kept = gaps.setdefault(collective, {})
                where = next(word for word, most in _CLASSES if size <= most)
                kept[where] = max(kept.get(where, (0.0, 0.0, "")), (ratio, rounds, f"{name} at {ranks}"))
    listed = "; ".join(
        f"{collective}: "
        + ", ".join(
            f"{where} {r:.2f}x ({q:.2f}x of rounds, {name})" for where, (r, q, name) in kept.items() if r > _NEAR
        )
        for collective, kept in gaps.items()
    )
    return Measured([near / cells, near_rounds / cells, missing], note=f"{cells} cells; largest gaps by size: {listed}")


BENCHMARKS = (
    Benchmark("D12", "cells in which the library's best is within 10 % of max(latency bound, bandwidth bound), one port; of what is proved of rounds; cells without a schedule", "share; share; cells", (">=;>=;==", (0.6, 0.9, 0.0)), _against_bounds),
)  # fmt: skip
