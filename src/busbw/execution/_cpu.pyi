"""
Device kernels on the CPU: collectives between processes or threads over memory that all of them map.
"""

from collections.abc import Sequence


def looks_before_yield(looks: int) -> None:
    """How often this process looks at a word before it gives its core away."""

def copy(source: object, target: object, times: int = 1) -> None:
    """Copies so often: what a collective that stores as much is measured by."""

class Rank:
    """
    One rank. Calls return 0, or 1 at the deadline, 2 if somebody had given up before; `times` calls follow each other.
    """

    def __init__(self, rank: int, control: Sequence[object], cell_bytes: int, wait_s: float) -> None:
        """
        control: each rank's control window, zeros at first, of control_bytes. wait_s: 0 waits for ever.
        """

    @staticmethod
    def control_bytes(ranks: int, cell_bytes: int) -> int:
        """Bytes of a control window."""

    def attach(self) -> int:
        """
        All ranks call: tries whether each can read the others' private memory, and uses it then.
        """

    @property
    def is_attached(self) -> bool: ...

    def set_cores(self, cores: int) -> None:
        """
        How many cores all ranks have together, the same on all: kernels are chosen by it.
        """

    def add_window(self, memory: Sequence[object], size_bytes: int) -> None:
        """Memory that all ranks map: all_reduce on it copies nothing besides."""

    def barrier(self, times: int = 1) -> int: ...

    def round_trip(self, times: int = 1) -> int:
        """A cache line goes from rank 0 to rank 1 and back."""

    def all_reduce(self, source: object, target: object, op: str, dtype: str = '', times: int = 1) -> int:
        """
        dtype: of elements for which Python has no type; that of source if empty.
        """

    def reduce_scatter(self, source: object, target: object, op: str, dtype: str = '', times: int = 1) -> int: ...

    def all_gather(self, source: object, target: object, times: int = 1) -> int: ...

    def all_to_all(self, source: object, target: object, times: int = 1) -> int: ...

    def broadcast(self, source: object, target: object, root: int, times: int = 1) -> int: ...

    def reduce(self, source: object, target: object, op: str, dtype: str, root: int) -> int:
        """target: written on the root alone."""

    def exchange(self, source: object, sent_bytes: Sequence[int], target: object, got_bytes: Sequence[int]) -> int:
        """
        For each rank bytes that go to it, one after the other in source, and bytes that come from it, in target.
        """

    def report(self) -> tuple[int, int, int, int, int, int]:
        """
        state, primitive, block, peer, expected, seen of whoever gave up first on this rank.
        """

    def abort(self, rank: int) -> None:
        """Makes the waits of a rank end."""
