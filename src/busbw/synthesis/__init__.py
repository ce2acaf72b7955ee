"""Schedules made for a cluster rather than chosen from the library.

Forests and exchanges at the throughput bound, greedy matching in time, exact search for few ranks.

Candidates are ranked by prediction and simulation. Imports those, nccl, collectives, hardware and what lies under them.
"""

from busbw.synthesis.design import DESIGNED, MOST_GPUS, OBJECTIVES, Candidate, Design, design, message_alpha_s
from busbw.synthesis.exact import ExactResult, exact_frontier, least_exact_steps, search_exactly
from busbw.synthesis.exchanges import Exchange, route_exchange
from busbw.synthesis.forests import FOREST_COLLECTIVES, Forest, evened, pack_forest, tree_depths
from busbw.synthesis.greedy import synthesise_greedily
from busbw.synthesis.rank_links import RankLinks
from busbw.synthesis.timing import SWITCHES, ranked_on, summing_switches
from busbw.synthesis.transfers import Transfers

__all__ = [
    "DESIGNED",
    "FOREST_COLLECTIVES",
    "MOST_GPUS",
    "OBJECTIVES",
    "SWITCHES",
    "Candidate",
    "Design",
    "ExactResult",
    "Exchange",
    "Forest",
    "RankLinks",
    "Transfers",
    "design",
    "evened",
    "exact_frontier",
    "least_exact_steps",
    "message_alpha_s",
    "pack_forest",
    "ranked_on",
    "route_exchange",
    "search_exactly",
    "summing_switches",
    "synthesise_greedily",
    "tree_depths",
]
