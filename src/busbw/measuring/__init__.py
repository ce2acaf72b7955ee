"""What runs measured, laid beside one another: two runs, or months of them.

Imports statistics, readers, observations, collectives, units and errors.
"""

from busbw.measuring.comparison import Comparison, Difference, compare, merged
from busbw.measuring.history import Event, History, Series, history
from busbw.measuring.results import Cell, Results, results_of

__all__ = [
    "Cell", "Comparison", "Difference", "Event", "History", "Results", "Series", "compare", "history", "merged", "results_of",
]  # fmt: skip
