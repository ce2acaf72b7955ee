"""Time of a group's collective on a cluster: where its members lie, and what `busbw.prediction` says for that place.

A group has n members, one every `stride` ranks. Groups side by side use the other GPUs' NICs, so a group has the share of its members.
Times are predicted once on a grid of sizes for each (collective, n, members a domain), and interpolated.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.prediction import Calibration, Situation, predict_in, situation_of
from busbw.workloads.training.columns import groups

__all__ = ["GroupTimes", "members_inside"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SIZES = 2.0 ** np.arange(0, 41, 1.0)
"""1 B to 1 TiB. More are carried on at the rate of the last two."""


def members_inside(ranks: int, stride: int, domain: int) -> int:
    """Members of a group that lie in one NVLink domain of `domain` GPUs, the same number in each.

    >>> members_inside(16, 1, 8), members_inside(16, 8, 8), members_inside(4, 2, 8)
    (8, 1, 4)
    """
    room = max(1, domain // stride)
    return next(k for k in range(min(ranks, room), 0, -1) if ranks % k == 0)


class GroupTimes:
    """Times of collectives of groups on a cluster, kept."""

    def __init__(self, cluster: Cluster, calibration: Calibration | None = None) -> None:
        self.cluster = cluster
        self._calibration = calibration
        self._tables: dict[tuple[str, int, int], tuple[FloatArray, FloatArray]] = {}

    @cached_property
    def whole(self) -> Situation:
        """The situation of all GPUs; where nodes do not fill domains evenly, of as many as do."""
        try:
            return situation_of(self.cluster)
        except InputError:
            most = self.cluster.node.nvlink_domain_nodes
            nodes = max(n for n in range(1, most + 1) if n <= self.cluster.nodes)
            return situation_of(replace(self.cluster, nodes=nodes * max(1, self.cluster.nodes // nodes), hosts=()))

    @property
    def domain(self) -> int:
        """GPUs that share NVLink."""
        return self.whole.domain_ranks

    def situation(self, ranks: int, inside: int) -> Situation:
        """Of a group with `inside` members a domain."""
        whole, node = self.whole, self.cluster.node
        rate = self.cluster.network_bytes_per_s_per_gpu if node.nics else 0.0
        domains = ranks // inside
        return replace(
            whole,
            ranks=ranks,
            domains=domains,
            network_bytes_per_s=max(rate * inside, 1.0) if domains > 1 else whole.network_bytes_per_s,
            nics=max(1, round(node.nics / node.gpus * inside)),
            nvls=whole.nvls and inside > 2,
            sharp=False,
            node="",
        )

    def table(self, collective: str, ranks: int, inside: int) -> tuple[FloatArray, FloatArray]:
        """Sizes and times of a collective, both of them logarithms."""
        key = (collective, ranks, inside)
        if key not in self._tables:
            found = predict_in(
                self.situation(ranks, inside), collective, [int(size) for size in _SIZES], calibration=self._calibration
            )
            self._tables[key] = (np.log(_SIZES), np.log(np.maximum.accumulate(found.time_s)))
        return self._tables[key]

    def time(self, collective: str, ranks: int, stride: int, size_bytes: float) -> float:
        """Seconds of a collective of one group; 0 for one rank or nothing to move."""
        if ranks < 2 or size_bytes <= 0:
            return 0.0
        _, times = self.table(collective, ranks, members_inside(ranks, stride, self.domain))
        wanted = math.log2(max(size_bytes, 1.0))
        last = len(times) - 1
        if wanted >= last:
            return math.exp(times[last] + (wanted - last) * math.log(2))
        place = int(wanted)
        return math.exp(times[place] + (wanted - place) * (times[place + 1] - times[place]))

    def times(self, collective: str, ranks: IntArray, stride: IntArray, size_bytes: FloatArray) -> FloatArray:
        """Seconds, (N,) each; 0 where a group has one rank or nothing to move."""
        found = np.zeros(len(ranks))
        moves = np.flatnonzero((ranks > 1) & (size_bytes > 0))
        if not len(moves):
            return found
        first, kind = groups([ranks[moves], stride[moves]])
        order = np.argsort(kind, kind="stable")
        ends = np.searchsorted(kind[order], np.arange(len(first) + 1))
        wanted = np.log(np.maximum(size_bytes, 1.0))
        for place, begin in enumerate(first.tolist()):
            mine = moves[order[ends[place] : ends[place + 1]]]
            n, step = int(ranks[moves[begin]]), int(stride[moves[begin]])
            sizes, times = self.table(collective, n, members_inside(n, step, self.domain))
            took = np.interp(wanted[mine], sizes, times)
            found[mine] = np.exp(np.where(wanted[mine] > sizes[-1], times[-1] + wanted[mine] - sizes[-1], took))
        return found
