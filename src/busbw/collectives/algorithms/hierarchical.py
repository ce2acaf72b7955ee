"""Two levels: any algorithm inside the node with any between nodes.

all_reduce: reduce_scatter inside, all_reduce between equal local ranks (each its own rail), all_gather inside. With P nodes of L ranks, direct inside and rings between:
T = 2 n (L - 1)/L beta_in + 2 (n/L)(P - 1)/P beta_out + latencies of the three. all_gather: between, then inside; reduce_scatter: its reverse.
broadcast: between, on the root's rail, then inside; reduce: its reverse.
scatter: inside the root's node, each GPU getting the blocks of its rail, then between on all rails at once: T = n (L - 1)/L beta_in + (n/L)(P - 1)/P beta_out, where a
direct scatter sends all over one NIC. gather: its reverse.
Combinators nest: the inner or outer schedule may be hierarchical itself. `passes.pipelined` overlaps the stages.

Source: Cho et al., "BlueConnect", MLSys 2019, for the decomposition; the usual derivation for the time.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, apply, build, chunks, parallel, parameter, when
from busbw.collectives.expressions import Expr, eq, size, substitute, var
from busbw.collectives.passes import reverse
from busbw.collectives.schedule import Schedule

__all__ = [
    "hierarchical_all_gather", "hierarchical_all_reduce", "hierarchical_broadcast", "hierarchical_gather", "hierarchical_reduce", "hierarchical_reduce_scatter",
    "hierarchical_scatter",
]  # fmt: skip


def _axes(outer: Schedule, inner: Schedule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the outer and inner axes: node and gpu if there is one each, else their own, made different."""
    if len(outer.axes) == len(inner.axes) == 1:
        return ("node",), ("gpu",)
    outside = ("node",) if len(outer.axes) == 1 else outer.axes
    inside = ("gpu",) if len(inner.axes) == 1 else inner.axes
    return tuple(f"outer_{a}" if a in inside else a for a in outside), inside


def _sizes(schedule: Schedule, names: tuple[str, ...]) -> Expr:
    """The chunks of a schedule along our axes."""
    return substitute(schedule.chunks, {size(a): size(n) for a, n in zip(schedule.axes, names, strict=True)})


def _flat(names: tuple[str, ...]) -> tuple[Expr, Expr]:
    """(the rank's number among the ranks along these axes, how many they are)."""
    index, total = var(names[0]), size(names[0])
    for name in names[1:]:
        index, total = index * size(name) + var(name), total * size(name)
    return index, total


def _over(schedule: Schedule, axes: tuple[Axis, ...]) -> dict[str, Axis]:
    return dict(zip(schedule.axes, axes, strict=True))


def hierarchical_all_reduce(scatter: Schedule, between: Schedule, gather: Schedule) -> Schedule:
    """All-reduce: `scatter` (reduce_scatter) inside, `between` (all_reduce) over nodes, `gather` (all_gather) inside."""
    _kinds(("scatter", scatter, "reduce_scatter"), ("between", between, "all_reduce"), ("gather", gather, "all_gather"))
    if scatter.axes != gather.axes or scatter.chunks != gather.chunks:
        raise ValueError(f"{scatter.name} and {gather.name} cut the vector differently")
    outside, inside = _axes(between, scatter)

    def two_levels(*axes: Axis) -> None:
        nodes, local = axes[: len(outside)], axes[len(outside) :]
        shards, width = _sizes(scatter, inside), _sizes(between, outside)
        own, total = _flat(inside)
        each = shards // total
        data = chunks(shards * width)
        apply(scatter, _over(scatter, local), lambda c: data[c * width, width])
        for u in parallel(each, "u"):
            apply(between, _over(between, nodes), lambda c, u=u: data[(own * each + u) * width + c])  # type: ignore[misc]
        apply(gather, _over(gather, local), lambda c: data[c * width, width])

    name = f"hierarchical_all_reduce({scatter.name}, {between.name}, {gather.name})"
    return build("all_reduce", name, (*outside, *inside), two_levels)


def hierarchical_all_gather(between: Schedule, inside_node: Schedule) -> Schedule:
    """All-gather: `between` over the nodes on every rail, then `inside_node`."""
    _kinds(("between", between, "all_gather"), ("inside_node", inside_node, "all_gather"))
    outside, inside = _axes(between, inside_node)

    def two_levels(*axes: Axis) -> None:
        nodes, local = axes[: len(outside)], axes[len(outside) :]
        (own, gpus), (_, many) = _flat(inside), _flat(outside)
        outer_each, inner_each = _sizes(between, outside) // many, _sizes(inside_node, inside) // gpus
        each = outer_each * inner_each
        data = chunks(many * gpus * each)  # chunk of (node n, gpu g): (n gpus + g) each + u inner_each + v

        apply(
            between,
            _over(between, nodes),
            lambda c: data[((c // outer_each) * gpus + own) * each + (c % outer_each) * inner_each, inner_each],
        )
        for n in parallel(many, "n"):
            for u in parallel(outer_each, "u"):
                apply(
                    inside_node,
                    _over(inside_node, local),
                    lambda c, n=n, u=u: data[(n * gpus + c // inner_each) * each + u * inner_each + c % inner_each],  # type: ignore[misc]
                )

    return build(
        "all_gather", f"hierarchical_all_gather({between.name}, {inside_node.name})", (*outside, *inside), two_levels
    )


def hierarchical_reduce_scatter(between: Schedule, inside_node: Schedule) -> Schedule:
    """Reduce-scatter: the reverse of the all-gather made of these two all_gathers: inside first, then between nodes."""
    return reverse(hierarchical_all_gather(between, inside_node))


def hierarchical_broadcast(between: Schedule, inside_node: Schedule) -> Schedule:
    """Broadcast: `between` over the nodes on the root's rail, then `inside_node` in every node."""
    _kinds(("between", between, "broadcast"), ("inside_node", inside_node, "broadcast"))
    outside, inside = _axes(between, inside_node)

    def two_levels(*axes: Axis) -> None:
        nodes, local = axes[: len(outside)], axes[len(outside) :]
        own, gpus = _flat(inside)
        root = parameter("root", 0)
        outer, inner = _sizes(between, outside), _sizes(inside_node, inside)
        data = chunks(outer * inner)
        with when(eq(own, root % gpus)):
            apply(between, _over(between, nodes), lambda c: data[c * inner, inner], params={"root": root // gpus})
        for u in parallel(outer, "u"):
            apply(
                inside_node,
                _over(inside_node, local),
                lambda c, u=u: data[u * inner + c],  # type: ignore[misc]
                params={"root": root % gpus},
            )

    return build(
        "broadcast", f"hierarchical_broadcast({between.name}, {inside_node.name})", (*outside, *inside), two_levels
    )


def hierarchical_reduce(between: Schedule, inside_node: Schedule) -> Schedule:
    """Reduce: the reverse of the broadcast made of these two broadcasts."""
    return reverse(hierarchical_broadcast(between, inside_node))


def hierarchical_scatter(between: Schedule, inside_node: Schedule) -> Schedule:
    """Scatter: `inside_node` in the root's node, then `between` over the nodes on every rail."""
    _kinds(("between", between, "scatter"), ("inside_node", inside_node, "scatter"))
    outside, inside = _axes(between, inside_node)
    if len(outside) != 1:
        raise ValueError(f"{between.name} runs over {', '.join(between.axes)}; nodes are one axis here")

    def two_levels(*axes: Axis) -> None:
        node, local = axes[0], axes[1:]
        own, gpus = _flat(inside)
        root = parameter("root", 0)
        data = chunks(node.size * gpus)  # chunk of (node n, gpu g): n gpus + g
        with when(eq(node, root // gpus)):
            apply(
                inside_node,
                _over(inside_node, local),
                lambda c: data[c, node.size, gpus],
                params={"root": root % gpus},
            )
        apply(between, node, lambda c: data[c * gpus + own], params={"root": root // gpus})

    return build(
        "scatter", f"hierarchical_scatter({between.name}, {inside_node.name})", (*outside, *inside), two_levels
    )


def hierarchical_gather(between: Schedule, inside_node: Schedule) -> Schedule:
    """Gather: the reverse of the scatter made of these two scatters."""
    return reverse(hierarchical_scatter(between, inside_node))


def _kinds(*wanted: tuple[str, Schedule, str]) -> None:
    for role, schedule, kind in wanted:
        if schedule.kind != kind:
            raise ValueError(f"{role} must be an {kind}; {schedule.name} is for {schedule.kind}")
