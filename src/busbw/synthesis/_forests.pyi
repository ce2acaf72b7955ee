"""Packing of spanning trees within limits of links."""

from typing import Annotated

import numpy
from numpy.typing import NDArray


def pack(is_gpu: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], trees_allowed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], roots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], depth: int, sweeps: int, depth_price: float, seed: int) -> tuple[int, NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.int32]]:
    """
    (excess, parents (T, N), ways (T, N), load (E,), way_begin, way_edges): trees from roots; excess 0 if no edge is in more than trees_allowed. depth 0: any.
    """

def route_pairs(is_gpu: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], pairs_allowed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sweeps: int, seed: int) -> tuple[int, NDArray[numpy.int64], NDArray[numpy.int32]]:
    """
    (excess, way_begin (N * N + 1,), way_edges): a way for every ordered pair, source * N + destination; excess 0 if no edge is in more than pairs_allowed.
    """
