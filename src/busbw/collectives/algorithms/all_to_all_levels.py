"""All-to-all in two and three levels: transpose inside, so that each local rank holds all data for its rail; then exchange along rails.

Two levels, P nodes of L ranks: rank (n, g) gives (n, j) all blocks for ranks (m, j); then (n, j) sends (m, j) its L blocks in one message. 2 steps (direct inside and between),
T = alpha_in + n (L - 1)/L beta_in + alpha_out + n (P - 1)/P beta_out; messages between nodes are L times larger than in direct exchange, and P - 1 instead of (P - 1) L.
Three levels (pod, node, gpu): the same again between pods.

Source: Tutel's 2DH (Hwang et al., MLSys 2023), NCCL's PXN, DeepEP's normal kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from busbw.collectives.builder import Axis, blocks, build, copy, parallel, scratch, together, transfer
from busbw.collectives.expressions import Expr, ExprLike
from busbw.collectives.schedule import Location, Schedule

__all__ = ["three_level_all_to_all", "two_level_all_to_all"]


def two_level_all_to_all() -> Schedule:
    """All-to-all over (node, gpu)."""

    def levels(node: Axis, gpu: Axis) -> None:
        size = gpu.size
        inputs, outputs = blocks(node.size * size)
        held = scratch(node.size * size)  # m L + g: from our node's gpu g, for (m, ours)
        for m in parallel(node.size, "m"):
            _to_everyone(gpu, lambda j, m=m: inputs[m * size + j], held[m * size + gpu])  # type: ignore[misc]
        _to_everyone(node, lambda m: held[m * size, size], outputs[node * size, size])

    return build("all_to_all", "two_level_all_to_all", ("node", "gpu"), levels)


def three_level_all_to_all() -> Schedule:
    """All-to-all over (pod, node, gpu): inside the node, between nodes of the pod, between pods."""

    def levels(pod: Axis, node: Axis, gpu: Axis) -> None:
        nodes, gpus = node.size, gpu.size
        inputs, outputs = blocks(pod.size * nodes * gpus)
        everyone = pod.size * nodes * gpus
        held = scratch(2 * everyone)

        def near(index: Expr, count: ExprLike = 1) -> Location:
            return held[index, count]

        def far(index: Expr, count: ExprLike) -> Location:
            return held[everyone + index, count]

        for q in parallel(pod.size, "q"):
            for m in parallel(nodes, "m"):  # near[(q, m), g]: from our node's gpu g, for (q, m, ours)
                block = (q * nodes + m) * gpus
                _to_everyone(gpu, lambda j, block=block: inputs[block + j], near(block + gpu))  # type: ignore[misc]
        for q in parallel(pod.size, "q"):  # far[q, m, g]: from our pod's (m, g), for (q, ours, ours)
            _to_everyone(
                node,
                lambda m, q=q: near((q * nodes + m) * gpus, gpus),  # type: ignore[misc]
                far((q * nodes + node) * gpus, gpus),
            )
        _to_everyone(pod, lambda q: far(q * nodes * gpus, nodes * gpus), outputs[pod * nodes * gpus, nodes * gpus])

    return build("all_to_all", "three_level_all_to_all", ("pod", "node", "gpu"), levels)


def _to_everyone(axis: Axis, source: Callable[[Expr], Location], into: Location) -> None:
    """Every rank gives each rank along the axis `source(its coordinate)`, itself included, in one step."""
    with together():
        copy(source(axis), into)
        for i in parallel(axis.size - 1):
            there = (axis + i + 1) % axis.size
            transfer(source(there), to={axis: there}, into=into)
