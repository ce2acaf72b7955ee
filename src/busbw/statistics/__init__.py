"""Pure mathematics on arrays and lists: robust effects, intervals, change points. Imports nothing of busbw."""

from busbw.statistics.polish import end_effects

__all__ = ["end_effects"]
