"""Direct exchange: everyone writes to everyone at once. For ranks that all see each other, such as one NVSwitch domain.

all_gather, reduce_scatter, all_to_all, gather, scatter, broadcast, reduce: 1 step, T = alpha + n (p - 1)/p beta (broadcast and reduce: n (p - 1) beta at the root).
all_reduce one-shot (all-pairs): everyone sends its whole vector to all and adds what comes. 1 step, T = alpha + n (p - 1) beta.
all_reduce two-shot: direct reduce_scatter, then direct all_gather. 2 steps, T = 2 alpha + 2 n (p - 1)/p beta.
Partners are visited in rotated order, so that not all ranks write to the same one first.

Source: the usual derivations; one-shot and two-shot as in TensorRT-LLM's custom all-reduce and MSCCL's all-pairs programs.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, blocks, build, chunks, copy, parallel, parameter, together, transfer
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Schedule

__all__ = [
    "direct_all_gather", "direct_all_to_all", "direct_broadcast", "direct_gather", "direct_reduce", "direct_reduce_scatter", "direct_scatter",
    "one_shot_all_reduce", "two_shot_all_reduce",
]  # fmt: skip


def direct_all_gather() -> Schedule:
    """All-gather in one step."""

    def direct(r: Axis) -> None:
        data = chunks(r.size)
        for i in parallel(r.size - 1):
            r.send(data[r], to=r + i + 1)

    return build("all_gather", "direct_all_gather", ("r",), direct)


def direct_reduce_scatter() -> Schedule:
    """Reduce-scatter in one step: every rank gets p - 1 pieces and adds them."""
    return reverse(direct_all_gather())


def two_shot_all_reduce() -> Schedule:
    """All-reduce in two steps."""
    return compose(direct_reduce_scatter(), direct_all_gather(), "two_shot_all_reduce")


def one_shot_all_reduce() -> Schedule:
    """All-reduce in one step."""

    def direct(r: Axis) -> None:
        data = chunks(1)
        for i in parallel(r.size - 1):
            r.send(data[0], to=r + i + 1, reduce=True)

    return build("all_reduce", "one_shot_all_reduce", ("r",), direct)


def direct_all_to_all() -> Schedule:
    """All-to-all in one step."""

    def direct(r: Axis) -> None:
        inputs, outputs = blocks(r.size)
        with together():
            copy(inputs[r], outputs[r])
            for i in parallel(r.size - 1):
                r.send(inputs[r + i + 1], to=r + i + 1, into=outputs[r])

    return build("all_to_all", "direct_all_to_all", ("r",), direct)


def direct_broadcast() -> Schedule:
    """Broadcast in one step, all messages from the root."""

    def direct(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        for i in parallel(r.size - 1):
            transfer(data[0], frm={r: root}, to={r: root + i + 1})

    return build("broadcast", "direct_broadcast", ("r",), direct)


def direct_reduce() -> Schedule:
    """Reduce in one step."""
    return reverse(direct_broadcast())


def direct_scatter() -> Schedule:
    """Scatter in one step, all messages from the root."""

    def direct(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(r.size)
        for i in parallel(r.size - 1):
            transfer(data[root + i + 1], frm={r: root}, to={r: root + i + 1})

    return build("scatter", "direct_scatter", ("r",), direct)


def direct_gather() -> Schedule:
    """Gather in one step."""
    return reverse(direct_scatter())
