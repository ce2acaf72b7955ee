"""Plans from files and to files: MSCCL XML (msccl, RCCL), MSCCL++ plans (both kinds), our own JSON; GOAL text out.

A format has one module; `targets.py` holds the runtimes and their limits. What a target can't say is a violation, never dropped. Imports
nothing of busbw but the plan, legality, kinds, errors and the XML reader of hardware.
"""

from busbw.collectives.exchange.files import FORMATS, PlanFile, read_plan, write_plan
from busbw.collectives.exchange.targets import TARGETS, Target, target_named

__all__ = ["FORMATS", "TARGETS", "PlanFile", "Target", "read_plan", "target_named", "write_plan"]
