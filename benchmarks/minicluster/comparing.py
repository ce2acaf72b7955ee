"""Measured beside predicted, algorithm by algorithm and size by size, and whether the better one is told from the worse."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.minicluster.namespaces import MiniCluster
from benchmarks.minicluster.predicting import (
    PAIR_SIZES,
    Line,
    Predicted,
    calibrated,
    cluster_of,
    fabric_of,
    predicted,
    schedules,
)
from benchmarks.minicluster.running import Case, Timed, run_cases
from busbw.collectives import plan_of

__all__ = ["SIZES", "Compared", "Comparison", "compare"]

SIZES = (256 << 10, 1 << 20, 4 << 20)
_APART = 0.05
"""Times that differ by less are no ranking: runs on a busy machine repeat to 2 to 4 % (shared facts, measuring, section 5)."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One algorithm at one size."""

    name: str
    timed: Timed
    predicted: Predicted

    @property
    def size_bytes(self) -> int:
        """As of nccl-tests."""
        return self.timed.case.size_bytes

    @property
    def error(self) -> float:
        """Of the simulated time, a share of the measured."""
        return self.predicted.simulated_s / self.timed.best_s - 1

    @property
    def closed_form_error(self) -> float:
        """Of the closed form."""
        return self.predicted.closed_form_s / self.timed.best_s - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of them, and the line that they were predicted from."""

    line: Line
    rows: tuple[Compared, ...]

    @property
    def worst_error(self) -> float:
        """The largest, whatever its sign."""
        return max(abs(row.error) for row in self.rows)

    @property
    def worst_closed_form_error(self) -> float:
        """The same of the closed form."""
        return max(abs(row.closed_form_error) for row in self.rows)

    @property
    def wrong(self) -> int:
        """Elements that were not as they must be."""
        return sum(row.timed.wrong for row in self.rows)

    def ranked(self) -> tuple[int, int]:
        """Pairs of algorithms of one collective at one size that measured times tell apart, and how many of them the simulation ranks the same."""
        told = right = 0
        for one, other in itertools.combinations(self.rows, 2):
            same = (
                one.timed.case.plan.collective == other.timed.case.plan.collective
                and one.size_bytes == other.size_bytes
            )
            fast, slow = sorted((one, other), key=lambda row: row.timed.best_s)
            if same and slow.timed.best_s > (1 + _APART) * fast.timed.best_s:
                told += 1
                right += fast.predicted.simulated_s < slow.predicted.simulated_s
        return told, right


def compare(
    cluster: MiniCluster,
    sizes: Sequence[int] = SIZES,
    *,
    repeats: int = 2,
    pair_sizes: Sequence[int] = PAIR_SIZES,
    say: Callable[[Compared], None] = lambda _: None,
) -> Comparison:
    """Calibrates on hosts 0 and 1, then runs and predicts every algorithm at every size."""
    line = calibrated(cluster, sizes=pair_sizes)
    model = cluster_of(cluster.hosts, line) if cluster.links.groups == 1 else fabric_of(cluster, line)
    rows = []
    for size in sizes:
        for name, bound in schedules(cluster.hosts, max(2, cluster.links.groups)):
            case = Case(name, plan_of(bound), size, tuple(range(cluster.hosts)), repeats)
            rows.append(Compared(name, run_cases(cluster, [case])[0], predicted(model, line, bound, size)))
            say(rows[-1])
    return Comparison(line, tuple(rows))
