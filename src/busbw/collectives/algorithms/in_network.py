"""Switches that add and multiply copies: NVLS inside an NVSwitch domain, SHARP in an InfiniBand fabric, multicast.

NVLS all_reduce: each rank has the switch sum its 1/p of the vector (multimem load-reduce), then has it stored by all (multimem store). 2 steps, T = 2 alpha + 2 n beta; in slices, so that
both directions of a port are busy, n (1 + 1/p) beta. reduce_scatter and all_gather: one of the two steps, T = alpha + n beta on the busier direction.
SHARP (CollNet) all_reduce: the vector goes up the switch tree, the sum comes down. 2 h hops for height h, T = 2 h alpha + n beta.
broadcast by multicast: 1 step, T = alpha + n beta.

Source: NVIDIA, "Doubling all2all/all-reduce bandwidth with NVLink SHARP" (NCCL 2.17 release notes, NVLS); Graham et al., "Scalable hierarchical aggregation protocol (SHArP)", COM-HPC 2016.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, parameter, transfer
from busbw.collectives.expressions import eq
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Mode, Schedule

__all__ = [
    "multicast_broadcast", "nvls_all_gather", "nvls_all_reduce", "nvls_reduce_scatter", "sharp_all_reduce",
]  # fmt: skip


def nvls_all_gather() -> Schedule:
    """All-gather by multicast stores: everyone's block goes to the switch once."""

    def nvls(r: Axis) -> None:
        data = chunks(r.size)
        r.multicast(data[r])

    return build("all_gather", "nvls_all_gather", ("r",), nvls)


def nvls_reduce_scatter() -> Schedule:
    """Reduce-scatter by load-reduces."""
    return reverse(nvls_all_gather())


def nvls_all_reduce() -> Schedule:
    """All-reduce: load-reduce, then multicast store."""
    return compose(nvls_reduce_scatter(), nvls_all_gather(), "nvls_all_reduce")


def sharp_all_reduce(height: int = 2) -> Schedule:
    """All-reduce in the switches of a tree of this height (a default; bind(height=...)); 2: leaf and spine."""

    def sharp(r: Axis) -> None:
        tall = parameter("height", height)
        data = chunks(1)
        transfer(data[0], frm={r: 0}, to={r: 0}, mode=Mode.NETWORK_ALL_REDUCE, over=(r,), hops=2 * tall)

    return build("all_reduce", "sharp_all_reduce", ("r",), sharp)


def multicast_broadcast() -> Schedule:
    """Broadcast by one multicast store of the root."""

    def multicast(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        r.multicast(data[0], when=eq(r, root))

    return build("broadcast", "multicast_broadcast", ("r",), multicast)
