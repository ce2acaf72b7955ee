"""Collectives that run: ranks as processes of one machine, over memory that all of them map.

Imports busbw.collectives and what is under it.
"""

from busbw.execution.communicator import Communicator, GaveUpError, SharedArray

__all__ = ["Communicator", "GaveUpError", "SharedArray"]
