"""Routing, one way a file: which links flows take through a fabric. All take the shortest paths only.

Imports only fabrics and links. `trace.py` holds the columns that come back.
"""

from busbw.hardware.routing.adaptive import candidates, least_loaded
from busbw.hardware.routing.d_mod_k import d_mod_k
from busbw.hardware.routing.ecmp import ecmp
from busbw.hardware.routing.spray import spray
from busbw.hardware.routing.trace import Routes, SprayedRoutes

__all__ = ["Routes", "SprayedRoutes", "candidates", "d_mod_k", "ecmp", "least_loaded", "spray"]
