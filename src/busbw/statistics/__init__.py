"""Pure mathematics on arrays and lists: robust effects, calibration of probabilities. Imports nothing of busbw.

`changes` (levels of a series) is imported by its own name: it loads numpy and compiled code, which `busbw explain` can do without.
"""

from busbw.statistics.calibration import Bin, brier_score, reliability
from busbw.statistics.polish import end_effects

__all__ = ["Bin", "brier_score", "end_effects", "reliability"]
