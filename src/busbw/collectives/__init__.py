"""Collectives: what they promise, schedules that keep the promise, plans that run.

`Collective` says what must be true afterwards; a `Schedule` is an algorithm, symbolic in ranks and steps, written with `busbw.collectives.builder`,
taken from `busbw.collectives.algorithms`, or made of tables (`forest`, `from_transfers`). Imports nothing of busbw but units, errors, statistics and hardware.

Schedules and plans are loaded when they are first asked for: a reader needs the names of collectives alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from busbw.collectives.kinds import COLLECTIVES, bus_factor, collective_named

if TYPE_CHECKING:
    from busbw.collectives.collective import KINDS, Collective, Routing
    from busbw.collectives.expansion import Moves, expand
    from busbw.collectives.forests import Tree, forest, from_transfers, orbit_forest
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

_MODULES = {
    "BoundSchedule": "schedule",
    "Collective": "collective",
    "Fault": "provenance",
    "KINDS": "collective",
    "Mode": "schedule",
    "Moves": "expansion",
    "Proof": "proof",
    "Region": "schedule",
    "Routing": "collective",
    "Schedule": "schedule",
    "Transfer": "schedule",
    "Tree": "forests",
    "compose": "passes",
    "expand": "expansion",
    "folded": "passes",
    "forest": "forests",
    "from_json": "schedule_json",
    "from_transfers": "forests",
    "lower": "lowering",
    "orbit_forest": "forests",
    "pipelined": "passes",
    "plan_of": "lowering",
    "prove": "proof",
    "replicate": "passes",
    "reverse": "passes",
    "to_json": "schedule_json",
    "violations": "provenance",
}
"""Where what is loaded later stands."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
