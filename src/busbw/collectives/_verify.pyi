"""Runs a plan once and says which rules it breaks."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class PlanCheck:
    """All ranks of a plan, and one run of it."""

    def __init__(self, blocks_in_order: bool, double_scratch: bool, chunks_per_message: int, parts: int, slices: int, scratch_slices: int, slots: Sequence[int], most_instructions: int, barrier: bool) -> None:
        """slots: messages in flight on a FIFO, by protocol."""

    def add_rank(self, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], connections: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], walks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], groups: Sequence[tuple[Sequence[int], int]], semaphores: Sequence[int], chunks: Sequence[int], alias: Sequence[int], memory_chunks: int, before: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], after: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        The next rank. Columns as bytes; alias: chunk of memory at which input, output begin; before, after: contents of input and output.
        """

    def run(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]:
        """
        (n, 17) int64: rule, rank, block, row, turn, the same of the other place, owner, buffer, chunk, got, wanted, got_set, wanted_set, times.
        """

    def explain(self, rank: int, buffer: int, chunk: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]:
        """(n, 4) int64: rank, block, row, turn of what led to a chunk."""

    def ranks_of(self, set: int) -> list[tuple[int, int]]:
        """Intervals of ranks, the end not included."""

    @property
    def executed(self) -> int:
        """Instructions run."""

    @property
    def bitwise_equal(self) -> bool:
        """Whether results are reduced in the same order on all ranks."""
