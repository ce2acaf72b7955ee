"""Which schedule of the library which format holds: `python -m benchmarks.design.exchange [NAME...]` prints the table of docs/exchange.md.

Each is bound to 8 ranks (two axes: 2 x 4, three: 2 x 2 x 2), lowered out of place, written, read back and verified as the target reads it. GOAL can't be
verified; its graph must take the time of the schedule.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

__all__ = ["TARGETS", "page", "row"]

TARGETS = ("msccl", "rccl", "mscclpp-0.7", "mscclpp-0.10", "goal", "busbw")
_SHAPES = {1: (8,), 2: (2, 4), 3: (2, 2, 2)}
_SIZE_BYTES = 1_000_003  # a prime, so that nothing divides it


def row(name: str) -> list[str]:
    """What becomes of a library schedule in each of TARGETS: "yes", or why not."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.exchange import plan_file_of, target_named, write_file
    from busbw.errors import InputError

    schedule = LIBRARY[name]()
    bound = schedule.bind(*_SHAPES[len(schedule.axes)])
    found = []
    for target in TARGETS:
        try:
            if target == "goal":
                found.append(_goal(bound))
            else:
                write_file(plan_file_of(bound, name), target_named(target))
                found.append("yes")
        except InputError as error:
            found.append(_reason(str(error)))
    return found


def _goal(bound) -> str:  # type: ignore[no-untyped-def]
    from busbw.hardware.fabrics import LinkRates, SingleSwitch
    from busbw.simulation import simulate, task_program
    from busbw.simulation.formats.goal import read_goal, write_goal

    star = SingleSwitch(8, LinkRates(50e9, 50e9, 0.0, 1e-6))
    try:
        graph = read_goal("\n".join(write_goal(task_program(bound, _SIZE_BYTES))), "goal")
    except ValueError as error:
        return _reason(str(error))
    return (
        "yes" if simulate(graph, star).time_s == simulate(bound, star, size_bytes=_SIZE_BYTES).time_s else "other time"
    )


def _reason(error: str) -> str:
    """The first reason of an error, without where."""
    line = error.splitlines()[1] if "\n" in error else error.split(": ", 1)[-1]
    line = re.sub(r"^\s*target-(cannot-say|limit): ", "", line)
    line = re.sub(r"^\S+ can't say ", "can't say ", re.sub(r" \(rank \d+[^)]*\)", "", line))
    line = re.sub(
        r"fifo-depth: .*",
        "fifo-depth: its messages of one step don't fit into the slots that a FIFO has for certain",
        line,
    )
    return re.sub(r"^.* (forms sums or copies in the network)", r"\1", line).split(". ")[0].strip()


def page(names: Sequence[str]) -> Iterator[str]:
    """Lines of the table, and its reasons."""
    reasons: dict[str, str] = {}
    yield f"| schedule | {' | '.join(TARGETS)} |"
    yield f"|---|{'---|' * len(TARGETS)}"
    for name in names:
        cells = []
        for cell in row(name):
            if cell != "yes":
                letter = reasons.setdefault(cell, chr(ord("a") + len(reasons)))
            cells.append("yes" if cell == "yes" else f"no ({letter})")
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    for reason, letter in reasons.items():
        yield f"- ({letter}) {reason}"


if __name__ == "__main__":
    from busbw.collectives.algorithms import LIBRARY

    for line in page(sys.argv[1:] or list(LIBRARY)):
        print(line, flush=True)
