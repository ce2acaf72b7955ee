"""The plan interpreter on the CPU: one object a rank."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class PlanRank:
    """
    One rank's linked plan. Columns are bytes, as `busbw.execution.linking` lays them out.
    """

    def __init__(self, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], walks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ways: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], groups: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], block_runs: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], spaces: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], wires: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], threads: int) -> None: ...

    def run(self, bases: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, op: str, wait_s: float, times: int = 1) -> int:
        """
        0, or 1 at the deadline, 2 if somebody had given up before. bases: addresses of each rank's input, output, scratch, packets.
        """

    def trace(self, most: int) -> None:
        """
        From now on keeps when each row began and ended, at most so many a block; 0: none.
        """

    def spans(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """
        (block, row, begin, end) in ns of the steady clock, and how many there was no room for.
        """

    def report(self) -> tuple[int, int, int, int, int, int]:
        """
        state, primitive, block, peer, expected, seen of whoever gave up first on this rank.
        """
