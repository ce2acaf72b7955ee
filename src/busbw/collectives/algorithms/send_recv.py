"""Send and receive: every rank sends its input to the next one.

1 step, T = alpha + n beta; m slices over k channels: the same bytes over k paths, T = alpha + n/k beta on k ports.

Source: nccl-tests, src/sendrecv.cu, for the pattern.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, blocks, build
from busbw.collectives.schedule import Schedule

__all__ = ["ring_send_recv"]


def ring_send_recv() -> Schedule:
    """Rank r sends to r + 1."""

    def shift(r: Axis) -> None:
        inputs, outputs = blocks(1)
        r.send(inputs[0], to=r + 1, into=outputs[0])

    return build("send_recv", "ring_send_recv", ("r",), shift)
