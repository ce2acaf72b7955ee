"""
Device kernels on the CPU: collectives between processes over memory that all of them map.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Rank:
    """
    One rank. Calls return 0, or 1 at the deadline, 2 if somebody had given up before; `times` calls follow each other.
    """

    def __init__(self, rank: int, control: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], slot_bytes: int, wait_s: float) -> None:
        """
        control: each rank's control window, zeros at first, of control_bytes. wait_s: 0 waits for ever.
        """

    @staticmethod
    def control_bytes(ranks: int, slot_bytes: int) -> int:
        """Bytes of a control window."""

    def barrier(self, times: int = 1) -> int: ...

    def all_reduce(self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], count: int, dtype: str, op: str, times: int = 1) -> int:
        """Private memory, bytes."""

    def all_reduce_window(self, windows: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], source_offset: int, target_offset: int, count: int, dtype: str, op: str, times: int = 1) -> int:
        """Memory that all ranks map: nothing is copied besides."""

    def reduce_scatter(self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], count: int, dtype: str, op: str, times: int = 1) -> int:
        """count: elements of target; source has as many for each rank."""

    def all_gather(self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], times: int = 1) -> int: ...

    def all_to_all(self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], times: int = 1) -> int: ...

    def broadcast(self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], root: int, times: int = 1) -> int: ...

    def report(self) -> tuple[int, int, int, int, int, int]:
        """
        state, primitive, block, peer, expected, seen of whoever gave up first on this rank.
        """

    def abort(self, rank: int) -> None:
        """Makes the waits of a rank end."""
