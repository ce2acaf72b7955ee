"""When each rank did what: spans of a rank's primitives or calls, as rows of the table `spans`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from busbw.observations import Rows

__all__ = ["MOST_SPANS", "Span", "Spans"]

MOST_SPANS = 65_536
"""Of a block, or of a rank's calls, that are kept unless said otherwise: 2 MiB of numbers. A guess."""
_CALLS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "exchange", "barrier")


@dataclass(frozen=True, slots=True)
class Span:
    """A primitive that a block of a rank ran, or a collective that a rank called, from begin_ns to end_ns of the machine's steady clock."""

    rank: int
    block: int
    primitive: str
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class Spans:
    """What was recorded, `most` of a block; `dropped` counts those for which there was no room."""

    most: int = MOST_SPANS
    recorded: list[Span] = field(default_factory=list)
    dropped: int = 0

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most={self.most}: at least one span is kept")

    def __len__(self) -> int:
        return len(self.recorded)

    def extend(self, rank: int, spans: Iterable[tuple[int, str, int, int]], dropped: int) -> None:
        """Adds a rank's (block, primitive, begin_ns, end_ns)."""
        self.recorded.extend(Span(rank, *one) for one in spans)
        self.dropped += dropped

    def join(self, other: Spans) -> None:
        """Adds what another rank recorded."""
        self.recorded.extend(other.recorded)
        self.dropped += other.dropped

    def observations(self, source: str = "busbw", lane: str | None = None) -> Rows:
        """Rows of the table `spans`, in order of their beginning; all of a rank in one lane, or in one a block if it is None."""
        from busbw.observations import rows_of  # noqa: PLC0415 - loads pyarrow

        ordered = sorted(self.recorded, key=lambda one: (one.begin_ns, one.rank, one.block))
        return rows_of(
            "spans",
            [
                {"source": source, "rank": one.rank, "category": "primitive", "lane": lane or f"block {one.block}", "name": one.primitive,
                 "begin_ns": one.begin_ns, "end_ns": one.end_ns}
                for one in ordered
            ],
        )  # fmt: skip


class TracedCalls:
    """A rank's core whose collectives are written down; everything else is the core's."""

    def __init__(self, core: Any, rank: int, spans: Spans) -> None:
        self._core, self._rank, self._spans, self._kept = core, rank, spans, 0
        for name in _CALLS:
            setattr(self, name, self._traced(name, getattr(core, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def untraced(self) -> Any:
        """The core itself."""
        return self._core

    def _traced(self, name: str, call: Any) -> Any:
        def timed(*given: Any) -> Any:
            begun = monotonic_ns()
            result = call(*given)
            ended = monotonic_ns()
            room = self._kept < self._spans.most
            self._kept += room
            self._spans.extend(self._rank, [(0, name, begun, ended)] if room else [], int(not room))
            return result

        return timed
