"""From rows to facts: what each process did and saw, what was measured, what is set, each fact with the lines that say so.

Rules read facts only. Imports observations, readers, hardware and what lies under them.
"""

from busbw.diagnosis.facts.builder import FactsBuilder
from busbw.diagnosis.facts.known import Facts, lines_of
from busbw.diagnosis.facts.records import (
    Collective,
    Counter,
    Curve,
    Device,
    Event,
    Growth,
    LinkGroup,
    Pair,
    Point,
    Port,
    Process,
    Progress,
    Setting,
    UnnumberedCalls,
)
from busbw.diagnosis.facts.traces import Step

__all__ = [
    "Collective",
    "Counter",
    "Curve",
    "Device",
    "Event",
    "Facts",
    "FactsBuilder",
    "Growth",
    "LinkGroup",
    "Pair",
    "Point",
    "Port",
    "Process",
    "Progress",
    "Setting",
    "Step",
    "UnnumberedCalls",
    "lines_of",
]
