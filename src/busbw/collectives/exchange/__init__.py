"""Plans from files and to files: MSCCL XML (msccl, RCCL), MSCCL++ plans (both kinds), our own JSON; GOAL text out.

A format has one module; `targets.py` holds the runtimes and their limits. What a target can't say is a violation, never dropped. A schedule
in our JSON is bound and lowered on reading. Imports nothing of busbw but collectives, errors and the XML reader of hardware.
"""

from busbw.collectives.exchange.files import FORMATS, PlanFile, plan_file_of, read_plan, read_schedule
from busbw.collectives.exchange.targets import TARGETS, Target, target_named
from busbw.collectives.exchange.writing import write_file, write_plan

__all__ = [
    "FORMATS",
    "TARGETS",
    "PlanFile",
    "Target",
    "plan_file_of",
    "read_plan",
    "read_schedule",
    "target_named",
    "write_file",
    "write_plan",
]
