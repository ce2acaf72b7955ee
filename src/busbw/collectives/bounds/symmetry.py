"""Symmetries of a capacity graph: automorphisms, and the orbits of vertices and edges under them. Computed, never assumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from busbw.collectives import _bounds
from busbw.collectives.bounds.graph import CapacityGraph, Int32Array

__all__ = ["Symmetry", "classes_seen_from", "symmetry"]

_PATIENCE = 12
"""Random tries in a row that may merge no orbits. A guess: a miss costs time, never truth."""


@dataclass(frozen=True, slots=True, eq=False)
class Symmetry:
    """A group of automorphisms, given by generators, and its orbits.

    Averaging a solution over the group keeps it feasible, so there is an optimal one that is the same all over an orbit.
    That needs automorphisms: vertices that colour refinement cannot tell apart may still differ (a regular graph with a
    bridge), so every generator was tried edge by edge. A smaller group than the graph has is right too, with more orbits.
    """

    maps: Int32Array
    """(A, V) int32: generator a takes vertex v to maps[a, v]. None: only the identity."""
    vertex_orbit: Int32Array
    """(V,) int32, numbered from 0."""
    edge_orbit: Int32Array
    """(E,) int32, numbered from 0."""

    def representatives(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first vertex of each orbit that holds a vertex below `count`, and how many such vertices it holds."""
        _, first, size = np.unique(self.vertex_orbit[:count], return_index=True, return_counts=True)
        return first.astype(np.int64), size.astype(np.int64)


def symmetry(graph: CapacityGraph, seed: int = 1, *, fixed: int | None = None) -> Symmetry:
    """Automorphisms that keep GPUs GPUs and capacities equal, found by random tries from `seed`, with their orbits.

    fixed: a vertex that all of them leave where it is.
    """
    colour = graph.is_gpu.astype(np.int32)
    if fixed is not None:
        colour[fixed] = 2
    _, capacity = np.unique(graph.capacity, return_inverse=True)
    maps = _bounds.automorphisms(colour, graph.src, graph.dst, capacity.astype(np.int32), seed, _PATIENCE)
    keys = graph.src.astype(np.int64) * graph.vertices + graph.dst
    edges = [
        np.searchsorted(keys, image[graph.src].astype(np.int64) * graph.vertices + image[graph.dst]) for image in maps
    ]
    return Symmetry(maps, _orbits(list(maps), graph.vertices), _orbits(edges, len(graph)))


def _orbits(maps: list[NDArray[np.int64]], count: int) -> Int32Array:
    if not maps:
        return np.arange(count, dtype=np.int32)
    to = np.concatenate(maps)
    joined = coo_matrix((np.ones(len(to), bool), (np.tile(np.arange(count), len(maps)), to)), (count, count))
    return np.asarray(connected_components(joined, directed=False)[1], np.int32)


def classes_seen_from(graph: CapacityGraph, found: Symmetry, vertex: int) -> tuple[Int32Array, Int32Array]:
    """Classes of vertices (V,) and edges (E,) that look alike from one vertex, numbered from 0.

    The coarsest equitable partition in which that vertex stands alone, with orbits of edges as colours: members of a class
    have as many edges of each class. For a linear program that is enough (M. Grohe et al., "Dimension reduction via colour
    refinement", 2014): its solutions may be averaged over classes, although members need not be images of one another.
    """
    colour = graph.is_gpu.astype(np.int32)
    colour[vertex] = 2
    seen = _bounds.refined_classes(colour, graph.src, graph.dst, found.edge_orbit)
    _, vertex_class = np.unique(seen, return_inverse=True)
    key = (vertex_class[graph.src] * graph.vertices + vertex_class[graph.dst]) * len(graph) + found.edge_orbit
    _, edge_class = np.unique(key, return_inverse=True)
    return vertex_class.astype(np.int32), edge_class.astype(np.int32)
