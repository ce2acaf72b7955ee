"""A measured table laid beside what the model expects of a healthy platform: row by row, slower, faster or within the interval."""

from __future__ import annotations

from dataclasses import dataclass

from busbw.accuracy.observed import Observed, ObservedRow
from busbw.prediction import Predictions

__all__ = ["BesideRow", "beside"]


@dataclass(frozen=True, slots=True)
class BesideRow:
    """A measured row and the place of its size in the predictions."""

    row: ObservedRow
    place: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def reached(self) -> float:
        """Measured over expected bandwidth, which is expected over measured time: 1 is as expected, less is slower."""
        return self.predicted_s / self.measured_s

    @property
    def verdict(self) -> str:
        """slower, faster or within, by the 80 % interval."""
        if self.measured_s > self.high_s:
            return "slower"
        return "faster" if self.measured_s < self.low_s else "within"


def beside(table: Observed, result: Predictions) -> list[BesideRow]:
    """The shown rows that have a size and a time, each beside its prediction; `result` holds these sizes among others."""
    places = {int(size): place for place, size in enumerate(result.size_bytes.tolist())}
    return [
        BesideRow(
            row,
            places[row.size_bytes],
            row.time_s,
            float(result.time_s[places[row.size_bytes]]),
            float(result.low_s[places[row.size_bytes]]),
            float(result.high_s[places[row.size_bytes]]),
        )
        for row in table.shown_rows
        if row.size_bytes and row.time_s and row.size_bytes in places
    ]
