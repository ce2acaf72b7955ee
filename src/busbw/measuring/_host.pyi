"""Probes of this machine: copies, additions, reads, cache lines."""

from collections.abc import Sequence


def copy_rate(size_bytes: int, cores: Sequence[int], rounds: int) -> float:
    """
    Bytes per second that threads on these cores copy together, each between arrays of size_bytes of its own.
    """

def triad_rate(size_bytes: int, cores: Sequence[int], rounds: int) -> float:
    """
    Bytes per second of a = b + 3 c on arrays of size_bytes, three of which count.
    """

def line_round_trip(first: int, second: int, trips: int, batches: int) -> float:
    """Seconds that a cache line takes from one core to another and back."""

def reach(core: int, memory_core: int, size_bytes: int, rounds: int) -> tuple[float, float]:
    """
    Bytes per second of reading, and seconds of a dependent read of, memory that another core has touched first.
    """
