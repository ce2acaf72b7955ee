"""Changes of level in a series."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def change_points(values: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], price: float, shortest: int) -> list[int]:
    """
    First index of each stretch after the first. values: (n,) float64, finite.
    """

def places(values: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], changes: Sequence[int], noise: float, reach: int, share: float) -> list[tuple[int, int, int]]:
    """
    Of each change: most probable within reach, and the interval that holds share of the probability.
    """
