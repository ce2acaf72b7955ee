"""Collectives and plans that run: ranks as processes or threads of one machine over memory that all of them map, or in a simulated weak memory.

Imports busbw.collectives, busbw.observations and what is under them.
"""

from busbw.execution.communicator import Communicator, GaveUpError, SharedArray, run_threads
from busbw.execution.run import PlanRun, Simulated, run, simulate
from busbw.execution.tracing import Span, Spans

__all__ = [
    "Communicator",
    "GaveUpError",
    "PlanRun",
    "SharedArray",
    "Simulated",
    "Span",
    "Spans",
    "run",
    "run_threads",
    "simulate",
]
