"""Collectives and plans that run: ranks as processes or threads of one machine over memory that all of them map, or in a simulated weak memory.

Imports busbw.collectives and what is under it.
"""

from busbw.execution.communicator import Communicator, GaveUpError, SharedArray
from busbw.execution.run import PlanRun, Simulated, run, simulate

__all__ = ["Communicator", "GaveUpError", "PlanRun", "SharedArray", "Simulated", "run", "simulate"]
