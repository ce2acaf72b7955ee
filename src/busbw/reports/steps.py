"""Where the time of a training step goes: parts side by side in a bar, a bar for each layout, rank or step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from busbw.reports.svg import ALARM, BAND, FIRST, GOOD, MARK, MUTED, SECOND, drawing, printable, to_svg

if TYPE_CHECKING:
    from busbw.diagnosis.facts import Step

__all__ = ["parts_svg", "trace_parts"]

_COLOURS = (FIRST, ALARM, SECOND, MARK, GOOD, MUTED, BAND)
"""In the order of parts: what computes first, what is exposed in the colour of alarm."""
_MOST_BARS = 32


def parts_svg(bars: Sequence[tuple[str, Mapping[str, float]]], title: str, prefix: str = "q") -> str:
    """Bars of seconds by part, as an <svg> for a page; parts in the order in which they are first named. Beyond 32 bars those in the middle are left out."""
    if len(bars) > _MOST_BARS:
        half = _MOST_BARS // 2
        bars = [*bars[:half], *bars[len(bars) - half :]]
    names = list(dict.fromkeys(name for _, parts in bars for name in parts))
    longest = max((sum(parts.values()) for _, parts in bars), default=0.0)
    unit, scale = ("s", 1.0) if longest >= 1 else ("ms", 1e3) if longest >= 1e-3 else ("us", 1e6)
    with drawing(7.2, 1.3 + 0.28 * max(1, len(bars))) as (figure, axes):
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
        left = [0.0] * len(bars)
        for place, name in enumerate(names):
            widths = [parts.get(name, 0.0) * scale for _, parts in bars]
            axes.barh(
                range(len(bars)),
                widths,
                left=left,
                height=0.7,
                color=_COLOURS[min(place, len(_COLOURS) - 1)],
                label=printable(name, 40),
            )
            left = [begin + width for begin, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [printable(label, 28) for label, _ in bars])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.set_title(printable(title, 80), fontsize=9, loc="left")
        if names:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
        told = "; ".join(f"{label}: {sum(parts.values()) * scale:.4g} {unit}" for label, parts in bars[:8])
        return to_svg(figure, prefix, title, told)


def trace_parts(steps: Sequence[Step]) -> list[tuple[str, dict[str, float]]]:
    """A bar a rank: the mean of its steps in traces, the first left out where there are three or more."""
    by_rank: dict[tuple[int | None, str, int | None, int | None], list[Step]] = defaultdict(list)
    for step in steps:
        by_rank[step.rank, step.at.path, step.pid, step.device if step.pid is not None else None].append(step)
    bars = []
    for (rank, path, _, device), found in sorted(
        by_rank.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0, item[0][1], item[0][3] or 0)
    ):
        kept = found[1:] if len(found) > 2 else found
        label = (
            f"rank {rank}"
            if rank is not None
            else path.rsplit("/", 1)[-1] + (f" GPU {device}" if device is not None else "")
        )
        parts = {
            "computing": sum(step.compute_ns for step in kept), "communication, exposed": sum(step.exposed_ns for step in kept), "copies": sum(step.copy_ns for step in kept),
            "idle": sum(step.idle_ns for step in kept),
        }  # fmt: skip
        bars.append((label, {name: time / len(kept) / 1e9 for name, time in parts.items()}))
    return bars
