"""What to run and measure (`builtin`), and what runs measured laid beside one another: two runs, or months of them.

Imports execution, launching, statistics, readers, observations, collectives, units and errors. Names are loaded when asked for: a rank that measures
needs none of the tables and statistics.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from busbw.measuring.comparison import Comparison, Difference, compare, merged
    from busbw.measuring.history import Event, History, Series, history
    from busbw.measuring.prometheus import exposition
    from busbw.measuring.results import Cell, Results, results_of

__all__ = [
    "Cell", "Comparison", "Difference", "Event", "History", "Results", "Series", "compare", "exposition", "history", "merged", "results_of",
]  # fmt: skip

_MODULE_OF = {
    **dict.fromkeys(("Comparison", "Difference", "compare", "merged"), "comparison"),
    **dict.fromkeys(("Event", "History", "Series", "history"), "history"),
    "exposition": "prometheus",
    **dict.fromkeys(("Cell", "Results", "results_of"), "results"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_MODULE_OF[name]}")
    # All of them at once: the module `history` has just taken the name of the function.
    globals().update({other: getattr(home, other) for other, of in _MODULE_OF.items() if of == _MODULE_OF[name]})
    return globals()[name]
