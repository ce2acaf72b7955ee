"""The least rounds for given steps, by integer programming: a certificate for few ranks.

k-synchronous schedules as in Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL, PPoPP 2021): S steps that all ranks take together,
step s lasts r_s rounds, in a round a link of capacity b carries b chunks; what arrives in a step can be sent on in the next. Time is
S alpha + R / C x n beta, with R the sum of r_s and C the chunks of a rank. HiGHS (through scipy) minimises R for given S and C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf, lcm

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from busbw.synthesis.rank_links import RankLinks, hops_between
from busbw.synthesis.transfers import Transfers

__all__ = ["EXACT_COLLECTIVES", "MOST_RANKS", "ExactResult", "exact_frontier", "least_exact_steps", "search_exactly"]

EXACT_COLLECTIVES = (
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all",
)  # fmt: skip
MOST_RANKS = 16
"""Beyond, no proof is found in hours (collective-theory: SCCL needs more than a day for an all_gather of 16 GPUs)."""
_DENOMINATOR = 1000
"""Ratios of bandwidths are taken as fractions with denominators up to this."""
_INFEASIBLE = 2
"""scipy.optimize.milp's status."""


@dataclass(frozen=True, slots=True)
class ExactResult:
    """What the search found for a number of steps and of chunks, and what it proved."""

    collective: str
    steps: int
    parts: int
    """Chunks of a rank's part."""
    rounds: int | None
    """Of the schedule found; None if none was."""
    least_rounds: float
    """No schedule of these steps and chunks has fewer; inf if there is none at all."""
    transfers: Transfers | None

    @property
    def is_proved(self) -> bool:
        """Whether the schedule is optimal, or that there is none is certain."""
        return self.least_rounds == (inf if self.rounds is None else self.rounds)

    def __str__(self) -> str:
        shape = f"{self.collective}: {self.steps} steps, {self.parts} chunks a rank: "
        if self.rounds is None:
            return shape + ("no schedule, proved" if self.is_proved else "none found, not proved that there is none")
        proof = "proved optimal" if self.is_proved else f"not proved: at least {self.least_rounds:g}"
        return f"{shape}{self.rounds} rounds, {proof}"


def search_exactly(
    collective: str,
    links: RankLinks,
    size_bytes: float,
    *,
    steps: int,
    parts: int = 1,
    root: int = 0,
    time_limit_s: float = 10.0,
) -> ExactResult:
    """The schedule with the fewest rounds for a number of steps and of chunks a rank, or the proof that there is none.

    A unit of capacity is the largest bandwidth of which all links have whole multiples. reduce_scatter and reduce are all_gather and broadcast on
    reversed links, backwards; all_reduce is the two halves with half the steps each, proved as such a pair only.
    Raises ValueError for more than 16 ranks and for collectives without a model here.

    >>> ring = RankLinks.of(4, [(r, (r + way) % 4, 50e9, 1e-6) for r in range(4) for way in (1, 3)])
    >>> print(search_exactly("all_gather", ring, 4e9, steps=2))
    all_gather: 2 steps, 1 chunks a rank: 2 rounds, proved optimal
    >>> print(search_exactly("all_gather", ring, 4e9, steps=1))
    all_gather: 1 steps, 1 chunks a rank: no schedule, proved
    """
    if links.ranks > MOST_RANKS:
        raise ValueError(f"exact search is for {MOST_RANKS} ranks at most, not {links.ranks}; use greedy synthesis")
    if collective not in EXACT_COLLECTIVES:
        raise ValueError(f"{collective}: exact search knows {', '.join(EXACT_COLLECTIVES)}")
    if steps < 1 or parts < 1:
        raise ValueError(f"there is at least one step and one chunk, not {steps} and {parts}")
    if not 0 <= root < links.ranks:
        raise ValueError(f"root {root} is no rank; they are 0 to {links.ranks - 1}")
    if collective == "all_reduce":
        if steps % 2:
            raise ValueError(f"all_reduce has two halves of as many steps; {steps} is odd")
        scattered, gathered = (
            search_exactly(half, links, size_bytes, steps=steps // 2, parts=parts, time_limit_s=time_limit_s / 2)
            for half in ("reduce_scatter", "all_gather")
        )
        both = scattered.transfers and gathered.transfers and scattered.transfers.then(gathered.transfers)
        rounds = scattered.rounds + gathered.rounds if scattered.rounds and gathered.rounds else None
        return ExactResult(
            collective, steps, parts, rounds, scattered.least_rounds + gathered.least_rounds, both or None
        )
    forward = {"reduce_scatter": "all_gather", "reduce": "broadcast"}.get(collective)
    if forward is None:
        return _Program(collective, links, size_bytes, steps=steps, parts=parts, root=root).solve(time_limit_s)
    found = _Program(forward, links.reversed(), size_bytes, steps=steps, parts=parts, root=root).solve(time_limit_s)
    turned = found.transfers.time_reversed() if found.transfers else None
    return ExactResult(collective, steps, parts, found.rounds, found.least_rounds, turned)


def exact_frontier(
    collective: str,
    links: RankLinks,
    size_bytes: float,
    *,
    most_steps: int,
    most_parts: int,
    root: int = 0,
    time_limit_s: float = 10.0,
) -> Iterator[ExactResult]:
    """Schedules with fewer rounds a chunk than all with as many steps or fewer, from the fewest steps on: SCCL's Pareto frontier.

    time_limit_s is for one pair of steps and chunks. Within most_parts: finer chunks may do better still.
    """
    best = Fraction(1 << 62)
    for steps in range(least_exact_steps(collective, links, root=root), most_steps + 1):
        results = [
            search_exactly(
                collective, links, size_bytes, steps=steps, parts=parts, root=root, time_limit_s=time_limit_s
            )
            for parts in range(1, most_parts + 1)
        ]
        found = [(Fraction(result.rounds, result.parts), result) for result in results if result.rounds is not None]
        if found:
            ratio, result = min(found, key=lambda pair: (pair[0], pair[1].parts))
            if ratio < best:
                best = ratio
                yield result


def least_exact_steps(collective: str, links: RankLinks, *, root: int = 0) -> int:
    """The hops that some chunk has to go: no schedule has fewer steps (both halves of all_reduce counted).

    Raises ValueError if a chunk can't get where it is wanted.
    """
    turned = links.reversed() if collective in ("reduce_scatter", "reduce") else links
    source, wanted = _demand(
        {"reduce_scatter": "all_gather", "reduce": "broadcast", "all_reduce": "all_gather"}.get(collective, collective),
        links.ranks, 1, root,
    )  # fmt: skip
    hops = float(np.where(wanted, hops_between(turned)[source], 0).max(initial=0))
    if hops == inf:
        raise ValueError("some rank can't be reached over the links")
    return max(1, int(hops)) * (2 if collective == "all_reduce" else 1)


def _demand(collective: str, ranks: int, parts: int, root: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Each chunk's rank at the beginning (chunks,), and who wants it (chunks, ranks). Chunks are numbered as Transfers and Schedule number them."""
    every = np.arange(ranks)
    match collective:
        case "all_gather":
            source = np.repeat(every, parts)
            return source, np.ones((len(source), ranks), bool)
        case "broadcast":
            return np.full(parts, root), np.ones((parts, ranks), bool)
        case "scatter":
            return np.full(ranks * parts, root), np.repeat(every, parts)[:, None] == every
        case "gather":
            return np.repeat(every, parts), np.broadcast_to(every == root, (ranks * parts, ranks)).copy()
        case _:  # all_to_all: chunk s * ranks * parts + d * parts + i goes from s to d
            source, place = np.divmod(np.arange(ranks * ranks * parts), ranks * parts)
            return source, (place // parts)[:, None] == every


class _Program:
    """Minimise the rounds: x[c, e, s] = 1 if chunk c goes over link e in step s, h[c, v, s] = 1 if rank v has it when step s begins."""

    def __init__(
        self, collective: str, links: RankLinks, size_bytes: float, *, steps: int, parts: int, root: int
    ) -> None:
        self.collective, self.links, self.steps, self.parts, self.root = collective, links, steps, parts, root
        self.source, self.wanted = _demand(collective, links.ranks, parts, root)
        self.chunk_bytes = size_bytes / (parts if collective == "broadcast" else parts * links.ranks)
        rate = links.bandwidth_bytes_per_s
        ratios = [Fraction(float(r / rate.min())).limit_denominator(_DENOMINATOR) for r in rate]
        scale = lcm(*(r.denominator for r in ratios)) if ratios else 1
        whole = [int(r * scale) for r in ratios]
        common = gcd(*whole) or 1
        self.capacity = np.array(whole, np.int64) // common
        hops = hops_between(links)
        chunk, link, step = np.meshgrid(
            np.arange(len(self.source)), np.arange(len(links)), np.arange(steps), indexing="ij"
        )
        before = hops[self.source[:, None], links.src[None, :]]
        after = np.min(np.where(self.wanted[:, None, :], hops[links.dst][None, :, :], inf), axis=2, initial=inf)
        useful = (before[:, :, None] <= step) & (step + 1 + after[:, :, None] <= steps)
        useful &= links.dst[link] != self.source[chunk]
        self.chunk, self.link, self.step = chunk[useful], link[useful], step[useful]
        self.reachable = bool((np.where(self.wanted, hops[self.source], 0) <= steps).all())

    def solve(self, time_limit_s: float) -> ExactResult:
        """The fewest rounds found in the time, and how few they can be."""
        empty = ExactResult(self.collective, self.steps, self.parts, None, inf, None)
        if not self.reachable:
            return empty
        sends, chunks, ranks = len(self.chunk), len(self.source), self.links.ranks
        has = sends + np.arange(chunks * ranks * (self.steps + 1)).reshape(chunks, ranks, self.steps + 1)
        last = sends + has.size + np.arange(self.steps)  # rounds of each step
        variables = sends + has.size + self.steps
        lower, upper = np.zeros(variables), np.ones(variables)
        everywhere = has[np.arange(chunks), :, 0].copy()
        upper[everywhere] = 0
        upper[has[np.arange(chunks), self.source, 0]] = lower[has[np.arange(chunks), self.source, 0]] = 1
        lower[has[:, :, self.steps][self.wanted]] = 1
        lower[last], upper[last] = 1, max(1, chunks)
        src, dst = self.links.src[self.link], self.links.dst[self.link]
        index = np.arange(sends)
        # Nobody sends what it does not have.
        sending = LinearConstraint(
            _sparse([(index, index, 1.0), (index, has[self.chunk, src, self.step], -1.0)], sends, variables), -inf, 0
        )
        # What a rank has after a step it had before or received.
        flow = np.arange(chunks * ranks * self.steps).reshape(chunks, ranks, self.steps)
        keeping = LinearConstraint(
            _sparse(
                [
                    (flow.ravel(), has[:, :, 1:].ravel(), 1.0),
                    (flow.ravel(), has[:, :, :-1].ravel(), -1.0),
                    (flow[self.chunk, dst, self.step], index, -1.0),
                ],
                flow.size,
                variables,
            ),
            0,
            0,
        )
        # A link carries in a step its capacity times the rounds of the step.
        room = self.link * self.steps + self.step
        every = np.arange(len(self.links) * self.steps)
        carrying = LinearConstraint(
            _sparse(
                [
                    (room, index, 1.0),
                    (every, last[every % self.steps], -self.capacity[every // self.steps].astype(float)),
                ],
                len(every),
                variables,
            ),
            -inf,
            0,
        )
        cost = np.zeros(variables)
        cost[last] = 1
        whole = np.zeros(variables)
        whole[:sends] = whole[last] = 1
        solved = milp(
            cost,
            integrality=whole,
            bounds=Bounds(lower, upper),
            constraints=[sending, keeping, carrying],
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
        if solved.status == _INFEASIBLE:
            return empty
        bound = solved.mip_dual_bound
        least = max(self.steps, int(np.ceil(bound - 1e-6))) if bound is not None and np.isfinite(bound) else self.steps
        if solved.x is None:
            return ExactResult(self.collective, self.steps, self.parts, None, least, None)
        rounds = np.rint(solved.x[last]).astype(np.int64)
        used = solved.x[:sends] > 0.5
        return ExactResult(
            self.collective, self.steps, self.parts, int(rounds.sum()), least, self._transfers(used, rounds)
        )

    def _transfers(self, used: NDArray[np.bool_], rounds: NDArray[np.int64]) -> Transfers:
        """Steps in time: each begins when the slowest link of the one before could have ended."""
        order = np.lexsort((self.chunk[used], self.link[used], self.step[used]))
        chunk, link, step = (column[used][order] for column in (self.chunk, self.link, self.step))
        unit = float((self.links.bandwidth_bytes_per_s / self.capacity).min(initial=inf))
        alpha_s = float(self.links.alpha_s.max(initial=0.0))
        begin_s = np.concatenate([[0.0], np.cumsum(alpha_s + rounds * self.chunk_bytes / unit)])
        together = np.bincount(link * self.steps + step, minlength=len(self.links) * self.steps)[
            link * self.steps + step
        ]
        lasts_s = self.links.alpha_s[link] + together * self.chunk_bytes / self.links.bandwidth_bytes_per_s[link]
        begin_ps = np.ceil(begin_s[step] * 1e12 - 1e-3).astype(np.int64)
        return Transfers(
            self.collective,
            self.links.ranks,
            len(self.source) // (self.links.ranks if self.collective == "all_to_all" else 1),
            self.chunk_bytes,
            self.root if self.collective in ("broadcast", "scatter", "gather") else None,
            chunk.astype(np.int32),
            self.links.src[link],
            self.links.dst[link],
            link.astype(np.int32),
            begin_ps,
            begin_ps + np.rint(lasts_s * 1e12).astype(np.int64),
            np.zeros(len(chunk), bool),
        )


def _sparse(
    entries: list[tuple[NDArray[np.int64], NDArray[np.int64], float | NDArray[np.float64]]], rows: int, columns: int
) -> coo_array:
    row, column, number = (
        np.concatenate(part) for part in zip(*((r, c, np.broadcast_to(n, r.shape)) for r, c, n in entries), strict=True)
    )
    return coo_array((number, (row, column)), shape=(rows, columns)).tocsr()
