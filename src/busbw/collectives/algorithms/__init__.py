"""The library: one algorithm a file, each with its cost, its number of steps and its source."""

from busbw.collectives.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]
