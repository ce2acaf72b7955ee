"""Schedules made for a cluster rather than chosen from the library: greedy matching in time, exact search for few ranks.

Imports collectives, hardware and what lies under them.
"""

from busbw.synthesis.exact import ExactResult, exact_frontier, least_exact_steps, search_exactly
from busbw.synthesis.greedy import synthesise_greedily
from busbw.synthesis.rank_links import RankLinks
from busbw.synthesis.transfers import Transfers

__all__ = [
    "ExactResult",
    "RankLinks",
    "Transfers",
    "exact_frontier",
    "least_exact_steps",
    "search_exactly",
    "synthesise_greedily",
]
