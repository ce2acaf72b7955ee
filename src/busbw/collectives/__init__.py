"""Collectives: what they promise, schedules that keep the promise, plans that run.

`Collective` says what must be true afterwards; a `Schedule` is an algorithm, symbolic in ranks and steps, written with `busbw.collectives.builder`,
taken from `busbw.collectives.algorithms`, or made of tables (`forest`, `from_transfers`). Imports nothing of busbw but units, errors, statistics and hardware.
"""

from busbw.collectives.collective import KINDS, Collective, Routing
from busbw.collectives.expansion import Moves, expand
from busbw.collectives.forests import Tree, forest, from_transfers, orbit_forest
from busbw.collectives.kinds import COLLECTIVES, bus_factor, collective_named
from busbw.collectives.lowering import lower, plan_of
from busbw.collectives.passes import compose, folded, pipelined, replicate, reverse
from busbw.collectives.proof import Proof, prove
from busbw.collectives.provenance import Fault, violations
from busbw.collectives.schedule import BoundSchedule, Mode, Region, Schedule, Transfer
from busbw.collectives.schedule_json import from_json, to_json

__all__ = [
    "COLLECTIVES",
    "KINDS",
    "BoundSchedule",
    "Collective",
    "Fault",
    "Mode",
    "Moves",
    "Proof",
    "Region",
    "Routing",
    "Schedule",
    "Transfer",
    "Tree",
    "bus_factor",
    "collective_named",
    "compose",
    "expand",
    "folded",
    "forest",
    "from_json",
    "from_transfers",
    "lower",
    "orbit_forest",
    "pipelined",
    "plan_of",
    "prove",
    "replicate",
    "reverse",
    "to_json",
    "violations",
]
