"""Collectives: what they promise, schedules that keep the promise, plans that run.

`Collective` says what must be true afterwards; a `Schedule` is an algorithm, symbolic in ranks and steps, written with `busbw.collectives.builder`,
taken from `busbw.collectives.algorithms`, or made of tables (`forest`, `from_transfers`). Imports nothing of busbw but units, errors, statistics and hardware.
"""

from busbw.collectives.collective import KINDS, Collective, Routing
from busbw.collectives.expansion import Moves, expand
from busbw.collectives.forests import Tree, forest, from_transfers, orbit_forest
from busbw.collectives.kinds import COLLECTIVES, bus_factor, collective_named
from busbw.collectives.provenance import Fault, violations
from busbw.collectives.schedule import BoundSchedule, Mode, Region, Schedule, Transfer

__all__ = [
    "COLLECTIVES",
    "KINDS",
    "BoundSchedule",
    "Collective",
    "Fault",
    "Mode",
    "Moves",
    "Region",
    "Routing",
    "Schedule",
    "Transfer",
    "Tree",
    "bus_factor",
    "collective_named",
    "expand",
    "forest",
    "from_transfers",
    "orbit_forest",
    "violations",
]  # fmt: skip
