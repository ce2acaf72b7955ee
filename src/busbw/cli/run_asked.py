"""What all kinds of `busbw run` share: how ranks are started, where rows are kept, what a run is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbw.cli.console import note, problem

if TYPE_CHECKING:
    from busbw.measuring.keeping import Journal, Kept
    from busbw.measuring.request import Request

__all__ = ["WRONG", "Asked", "Outcome", "journal_of", "kept_journal", "title_of"]

WRONG = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that say how, not what."""

    launcher: str
    deadline_s: float
    store: Path | None
    as_json: bool
    programs: Path | None = None
    """Where the user's binaries are; PATH if None."""
    options: str = ""
    """Further ones for such a binary."""
    hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """How a run ended, and what it is called in its store."""

    state: str = "complete"
    reason: str = ""
    journal: Journal | None = field(default=None)

    def told(self, title: str, asked: Asked, measured: int) -> int | None:
        """Says what became of the run; exit status 2 if nothing was measured, None if what was is to be shown."""
        if self.journal is not None:
            note(f"kept in {asked.store} as {self.journal.name}")
        if self.reason and not measured:
            problem(f"{title} was not measured: {self.reason}")
            return 2
        return None

    def told_at_the_end(self, title: str, asked: Asked, measured: int) -> None:
        """Says what is missing, and how to go on."""
        if self.reason:
            problem(f"{title} was measured in part, {measured} rows: {self.reason}")
            if self.journal is not None:
                note(f"go on with what is missing: busbw run --resume {self.journal.name} --store {asked.store}")


def title_of(requests: Sequence[Request]) -> str:
    """What is measured, in a word."""
    from busbw.measuring.request import POINT_TO_POINT  # noqa: PLC0415

    names = {request.collective for request in requests}
    if len(names) == 1:
        return requests[0].collective.replace("_", "-")
    return "p2p" if names <= set(POINT_TO_POINT) else "suite"


def journal_of(
    requests: Sequence[Request], asked: Asked, kept: Kept | None = None, more: Mapping[str, str] | None = None, title: str = ""
) -> Journal | None:  # fmt: skip
    """Where rows are kept; None without a store. What died there before is marked so first."""
    if asked.store is None:
        return None
    from busbw.measuring.keeping import Journal, new_name, recover  # noqa: PLC0415 - loads the tables

    for name in recover(asked.store):
        note(f"run {name} had died; what it measured is in {asked.store} now, marked so")
    backend = requests[0].backend if requests else "builtin"
    name = kept.name if kept is not None else new_name(title or title_of(requests), backend)
    return Journal(asked.store, name, requests, asked.launcher, part=kept.parts if kept is not None else 0, more=more)


@contextmanager
def kept_journal(journal: Journal | None) -> Iterator[Outcome]:
    """How the block ends: a rank that fails makes it died, an interrupt interrupted; what was measured is committed in every case."""
    from busbw.execution import GaveUpError  # noqa: PLC0415 - loads numpy
    from busbw.launching import LaunchError  # noqa: PLC0415

    outcome = Outcome(journal=journal)
    try:
        yield outcome
    except (LaunchError, GaveUpError) as error:
        outcome.state, outcome.reason = "died", str(error)
    except BaseException as error:
        if journal is not None:
            state: Any = "interrupted" if isinstance(error, KeyboardInterrupt) else "died"
            journal.end(state, f"{type(error).__name__}: {error}"[:500])
        raise
    if journal is not None:
        journal.end(outcome.state, outcome.reason[:2000])
