"""Lower bounds on the time of a collective on a graph of links, as exact fractions with a certificate.

Imports hardware and the compiled `_bounds`. Begin reading at `graph.py`.
"""

from busbw.collectives.bounds.all_to_all import AllToAllBound, all_to_all_bound
from busbw.collectives.bounds.graph import Capacity, CapacityGraph
from busbw.collectives.bounds.rounds import fewest_moves, round_bound_s
from busbw.collectives.bounds.symmetry import Symmetry, symmetry
from busbw.collectives.bounds.throughput import ThroughputBound, throughput_bound
from busbw.collectives.bounds.times import TimeBound, least_flow_from, least_steps, time_bound

__all__ = [
    "AllToAllBound",
    "Capacity",
    "CapacityGraph",
    "Symmetry",
    "ThroughputBound",
    "TimeBound",
    "all_to_all_bound",
    "fewest_moves",
    "least_flow_from",
    "least_steps",
    "round_bound_s",
    "symmetry",
    "throughput_bound",
    "time_bound",
]
