"""The bucket algorithm on a torus: rings along one dimension after the other; rotated copies use all links at once.

all_reduce on sides k1 x k2 (x k3): reduce_scatter along x, then along y (then z), all_gather back. d dimensions and both directions make 2 d copies of n/(2 d), each beginning with another dimension and
running in its direction. 2 sum(k_i - 1) steps. With equal sides T = 2 d (k - 1) alpha + 2 n (p - 1)/(2 d p) beta on 2 d ports; on one port 2 n (p - 1)/p beta.

Source: Barnett, Littlefield, Payne, van de Geijn, "Global combine on mesh architectures with wormhole routing", IPPS 1993; Jouppi et al., "TPU v4", ISCA 2023, for rotated copies.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, Chunks, build, chunks, one_after_the_other, parallel, steps, together
from busbw.collectives.expressions import Expr, as_expr
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["torus_all_gather", "torus_all_reduce", "torus_reduce_scatter"]


def torus_all_gather(dimensions: int = 2, *, backwards: bool = False) -> Schedule:
    """All-gather on a torus, copies rotated over its dimensions and directions; axes x, y (, z)."""
    names = ("x", "y", "z")[:dimensions]
    if len(names) != dimensions or not names:
        raise ValueError(f"tori of 1 to 3 dimensions, not {dimensions}")

    def bucket(*axes: Axis) -> None:
        total = as_expr(2 * dimensions)
        for axis in axes:
            total = total * axis.size
        data = chunks(total)
        with together():
            for first in range(dimensions):
                order = axes[first:] + axes[:first]
                for copy, forward in ((2 * first, not backwards), (2 * first + 1, backwards)):
                    _dimensions_in_turn(data, axes, order, copy, 2 * dimensions, forward=forward)

    return build("all_gather", f"torus_all_gather_{dimensions}d", names, bucket)


def _dimensions_in_turn(
    data: Chunks, axes: tuple[Axis, ...], order: tuple[Axis, ...], copy: int, copies: int, *, forward: bool
) -> None:  # fmt: skip
    """One copy: a ring along each dimension of `order`; blocks of the dimensions already done travel together."""
    with one_after_the_other():
        for turn, axis in enumerate(order):
            for t in steps(axis.size - 1):
                # the owner's coordinate: t behind along this axis, anything along those already gathered, ours along the rest
                def say(done: tuple[Axis, ...], owner: dict[str, Expr], axis: Axis = axis) -> None:
                    if done:
                        for along in parallel(done[0].size, f"all_{done[0]}"):
                            say(done[1:], {**owner, str(done[0]): along})
                        return
                    index = as_expr(0)
                    for a in axes:
                        index = index * a.size + owner.get(str(a), a)
                    axis.send(data[index * copies + copy], to=axis + (1 if forward else -1), channel=copy)

                say(order[:turn], {str(axis): (axis - t if forward else axis + t) % axis.size})


def torus_reduce_scatter(dimensions: int = 2) -> Schedule:
    """Reduce-scatter on a torus."""
    return reverse(torus_all_gather(dimensions, backwards=True))


def torus_all_reduce(dimensions: int = 2) -> Schedule:
    """All-reduce on a torus: reduce_scatter, then all_gather."""
    return compose(torus_reduce_scatter(dimensions), torus_all_gather(dimensions), f"torus_all_reduce_{dimensions}d")
