"""The library: one algorithm a file, each with its cost, its number of steps and its source.

`LIBRARY` lists every schedule that needs no data from outside, by name; `moe` and `all_to_all_v` make theirs from run-time counts.
"""

from __future__ import annotations

from collections.abc import Callable

from busbw.collectives.algorithms.all_to_all_levels import three_level_all_to_all, two_level_all_to_all
from busbw.collectives.algorithms.all_to_all_v import (
    direct_all_to_all_v,
    fast_all_to_all_v,
    pairwise_all_to_all_v,
    two_level_all_to_all_v,
)
from busbw.collectives.algorithms.barrier import dissemination_barrier
from busbw.collectives.algorithms.bine import (
    bine_all_gather,
    bine_all_reduce,
    bine_broadcast,
    bine_reduce,
    bine_reduce_scatter,
)
from busbw.collectives.algorithms.bruck import (
    bruck_all_gather,
    bruck_all_to_all,
    bruck_reduce_scatter,
    radix_all_to_all,
)
from busbw.collectives.algorithms.census import census_all_reduce
from busbw.collectives.algorithms.chain import chain_broadcast, chain_reduce
from busbw.collectives.algorithms.circulant import circulant_all_reduce, circulant_broadcast, circulant_reduce
from busbw.collectives.algorithms.direct import (
    direct_all_gather,
    direct_all_to_all,
    direct_broadcast,
    direct_gather,
    direct_reduce,
    direct_reduce_scatter,
    direct_scatter,
    one_shot_all_reduce,
    two_shot_all_reduce,
)
from busbw.collectives.algorithms.hierarchical import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_broadcast,
    hierarchical_gather,
    hierarchical_reduce,
    hierarchical_reduce_scatter,
    hierarchical_scatter,
)
from busbw.collectives.algorithms.in_network import (
    multicast_broadcast,
    nvls_all_gather,
    nvls_all_reduce,
    nvls_reduce_scatter,
    sharp_all_reduce,
)
from busbw.collectives.algorithms.moe import (
    direct_moe_combine,
    direct_moe_dispatch,
    two_level_moe_combine,
    two_level_moe_dispatch,
)
from busbw.collectives.algorithms.multi_ring import (
    multi_ring_all_gather,
    multi_ring_all_reduce,
    multi_ring_reduce_scatter,
    torus_rings,
)
from busbw.collectives.algorithms.pairwise import pairwise_all_to_all, pairwise_exchange_all_to_all
from busbw.collectives.algorithms.pat import pat_all_gather, pat_reduce_scatter
from busbw.collectives.algorithms.rabenseifner import rabenseifner_all_reduce
from busbw.collectives.algorithms.recursive_doubling import (
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
)
from busbw.collectives.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from busbw.collectives.algorithms.scatter_gather import (
    binomial_gather,
    binomial_scatter,
    scatter_all_gather_broadcast,
    scatter_gather_reduce,
)
from busbw.collectives.algorithms.send_recv import ring_send_recv
from busbw.collectives.algorithms.swing import (
    swing_all_gather,
    swing_all_reduce,
    swing_all_reduce_latency,
    swing_reduce_scatter,
)
from busbw.collectives.algorithms.torus_bucket import torus_all_gather, torus_all_reduce, torus_reduce_scatter
from busbw.collectives.algorithms.trees import (
    binary_tree_all_reduce,
    binary_tree_broadcast,
    binary_tree_reduce,
    double_binary_tree_all_reduce,
    double_binary_tree_broadcast,
    double_binary_tree_reduce,
    knomial_all_reduce,
    knomial_broadcast,
    knomial_reduce,
)
from busbw.collectives.schedule import Schedule

__all__ = [
    "LIBRARY", "binary_tree_all_reduce", "binary_tree_broadcast", "binary_tree_reduce", "bine_all_gather", "bine_all_reduce", "bine_broadcast",
    "bine_reduce", "bine_reduce_scatter", "binomial_gather", "binomial_scatter", "bruck_all_gather", "bruck_all_to_all", "bruck_reduce_scatter",
    "census_all_reduce", "chain_broadcast", "chain_reduce", "circulant_all_reduce", "circulant_broadcast", "circulant_reduce", "direct_all_gather", "direct_all_to_all", "direct_all_to_all_v", "direct_broadcast", "direct_gather",
    "direct_moe_combine", "direct_moe_dispatch", "direct_reduce", "direct_reduce_scatter", "direct_scatter", "dissemination_barrier",
    "double_binary_tree_all_reduce", "double_binary_tree_broadcast", "double_binary_tree_reduce", "fast_all_to_all_v", "hierarchical_all_gather", "hierarchical_all_reduce", "hierarchical_broadcast",
    "hierarchical_gather", "hierarchical_reduce", "hierarchical_reduce_scatter", "hierarchical_scatter", "knomial_all_reduce", "knomial_broadcast", "knomial_reduce", "multi_ring_all_gather",
    "multi_ring_all_reduce", "multi_ring_reduce_scatter", "multicast_broadcast", "nvls_all_gather", "nvls_all_reduce", "nvls_reduce_scatter",
    "one_shot_all_reduce", "pairwise_all_to_all", "pairwise_all_to_all_v", "pairwise_exchange_all_to_all", "pat_all_gather", "pat_reduce_scatter",
    "rabenseifner_all_reduce", "radix_all_to_all", "recursive_doubling_all_gather", "recursive_doubling_all_reduce", "recursive_halving_reduce_scatter",
    "ring_all_gather", "ring_all_reduce", "ring_reduce_scatter", "ring_send_recv", "scatter_all_gather_broadcast", "scatter_gather_reduce",
    "sharp_all_reduce", "swing_all_gather", "swing_all_reduce", "swing_all_reduce_latency", "swing_reduce_scatter", "three_level_all_to_all",
    "torus_all_gather", "torus_all_reduce", "torus_reduce_scatter", "torus_rings", "two_level_all_to_all", "two_level_all_to_all_v",
    "two_level_moe_combine", "two_level_moe_dispatch", "two_shot_all_reduce",
]  # fmt: skip

LIBRARY: dict[str, Callable[[], Schedule]] = {
    "ring_all_gather": ring_all_gather,
    "ring_reduce_scatter": ring_reduce_scatter,
    "ring_all_reduce": ring_all_reduce,
    "recursive_doubling_all_gather": recursive_doubling_all_gather,
    "recursive_halving_reduce_scatter": recursive_halving_reduce_scatter,
    "recursive_doubling_all_reduce": recursive_doubling_all_reduce,
    "rabenseifner_all_reduce": rabenseifner_all_reduce,
    "bruck_all_gather": bruck_all_gather,
    "bruck_all_gather_2_ports": lambda: bruck_all_gather(2),
    "bruck_reduce_scatter": bruck_reduce_scatter,
    "bruck_all_to_all": bruck_all_to_all,
    "bruck_all_to_all_2_ports": lambda: bruck_all_to_all(2),
    "radix_all_to_all": radix_all_to_all,
    "pat_all_gather": pat_all_gather,
    "pat_all_gather_by_4": lambda: pat_all_gather(4),
    "pat_reduce_scatter": pat_reduce_scatter,
    "pat_reduce_scatter_by_4": lambda: pat_reduce_scatter(4),
    "swing_all_gather": swing_all_gather,
    "swing_reduce_scatter": swing_reduce_scatter,
    "swing_all_reduce": swing_all_reduce,
    "swing_all_reduce_latency": swing_all_reduce_latency,
    "bine_broadcast": bine_broadcast,
    "bine_reduce": bine_reduce,
    "bine_all_gather": bine_all_gather,
    "bine_reduce_scatter": bine_reduce_scatter,
    "bine_all_reduce": bine_all_reduce,
    "binomial_broadcast": knomial_broadcast,
    "4-nomial_broadcast": lambda: knomial_broadcast(4),
    "binomial_reduce": knomial_reduce,
    "binomial_all_reduce": knomial_all_reduce,
    "binary_tree_broadcast": binary_tree_broadcast,
    "binary_tree_reduce": binary_tree_reduce,
    "binary_tree_all_reduce": binary_tree_all_reduce,
    "double_binary_tree_all_reduce": double_binary_tree_all_reduce,
    "double_binary_tree_broadcast": double_binary_tree_broadcast,
    "double_binary_tree_reduce": double_binary_tree_reduce,
    "circulant_broadcast": circulant_broadcast,
    "circulant_reduce": circulant_reduce,
    "circulant_all_reduce": circulant_all_reduce,
    "census_all_reduce": census_all_reduce,
    "chain_broadcast": chain_broadcast,
    "chain_reduce": chain_reduce,
    "direct_all_gather": direct_all_gather,
    "direct_reduce_scatter": direct_reduce_scatter,
    "direct_all_to_all": direct_all_to_all,
    "direct_broadcast": direct_broadcast,
    "direct_reduce": direct_reduce,
    "direct_scatter": direct_scatter,
    "direct_gather": direct_gather,
    "one_shot_all_reduce": one_shot_all_reduce,
    "two_shot_all_reduce": two_shot_all_reduce,
    "pairwise_all_to_all": pairwise_all_to_all,
    "pairwise_exchange_all_to_all": pairwise_exchange_all_to_all,
    "two_level_all_to_all": two_level_all_to_all,
    "three_level_all_to_all": three_level_all_to_all,
    "binomial_scatter": binomial_scatter,
    "binomial_gather": binomial_gather,
    "scatter_all_gather_broadcast": scatter_all_gather_broadcast,
    "scatter_gather_reduce": scatter_gather_reduce,
    "torus_all_gather": torus_all_gather,
    "torus_reduce_scatter": torus_reduce_scatter,
    "torus_all_reduce": torus_all_reduce,
    "torus_all_reduce_3d": lambda: torus_all_reduce(3),
    "nvls_all_gather": nvls_all_gather,
    "nvls_reduce_scatter": nvls_reduce_scatter,
    "nvls_all_reduce": nvls_all_reduce,
    "sharp_all_reduce": sharp_all_reduce,
    "multicast_broadcast": multicast_broadcast,
    "hierarchical_all_reduce": lambda: hierarchical_all_reduce(
        direct_reduce_scatter(), ring_all_reduce(), direct_all_gather()
    ),
    "hierarchical_all_reduce_sharp": lambda: hierarchical_all_reduce(
        nvls_reduce_scatter(), sharp_all_reduce(), nvls_all_gather()
    ),
    "hierarchical_all_reduce_trees": lambda: hierarchical_all_reduce(
        direct_reduce_scatter(), double_binary_tree_all_reduce(), direct_all_gather()
    ),
    "hierarchical_all_reduce_doubling": lambda: hierarchical_all_reduce(
        bruck_reduce_scatter(), recursive_doubling_all_reduce(), bruck_all_gather()
    ),
    "hierarchical_all_gather": lambda: hierarchical_all_gather(ring_all_gather(), direct_all_gather()),
    "hierarchical_reduce_scatter": lambda: hierarchical_reduce_scatter(pat_all_gather(), direct_all_gather()),
    "hierarchical_broadcast": lambda: hierarchical_broadcast(knomial_broadcast(), direct_broadcast()),
    "hierarchical_reduce": lambda: hierarchical_reduce(knomial_broadcast(), direct_broadcast()),
    "hierarchical_scatter": lambda: hierarchical_scatter(direct_scatter(), direct_scatter()),
    "hierarchical_gather": lambda: hierarchical_gather(direct_scatter(), direct_scatter()),
    "dissemination_barrier": dissemination_barrier,
    "ring_send_recv": ring_send_recv,
}
"""Name to constructor, with usual choices where an algorithm has some."""
