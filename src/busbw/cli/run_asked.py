"""What all kinds of `busbw run` share: how ranks are started, where rows are kept, what a run is called."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.cli.console import note, problem
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.measuring.keeping import Journal, Kept
    from busbw.measuring.request import Request
    from busbw.measuring.running import How

__all__ = ["WRONG", "Asked", "Outcome", "journal_of", "kept_journal", "title_of"]

WRONG = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that say how, not what."""

    how: How
    store: Path | str | None
    as_json: bool
    programs: Path | None = None
    """Where the user's binaries are; PATH if None."""
    options: str = ""
    """Further ones for such a binary."""
    bisect: bool = False
    """Whether the hosts that fail are looked for if the run dies."""
    perfetto: Path | None = None
    """Where the timeline of the calls is written."""


@dataclass(slots=True)
class Outcome:
    """How a run ended, and what it is called in its store."""

    reason: str = ""
    """Why the run died; empty if it did not."""
    journal: Journal | None = field(default=None)

    def told(self, title: str, asked: Asked, measured: int) -> int | None:
        """Says what became of the run; exit status 2 if nothing was measured, None if what was is to be shown."""
        if self.journal is not None:
            note(f"kept in {asked.store} as {self.journal.name}")
        if self.reason and not measured:
            problem(f"{title} was not measured: {self.reason}")
            return 2
        return None

    def bisect(self, request: Request, asked: Asked) -> None:
        """Says which hosts fail, if that was asked for and the run died."""
        if not self.reason or not asked.bisect or not asked.how.hosts:
            return
        from busbw.measuring.running import failing_hosts  # noqa: PLC0415

        found = failing_hosts(request, asked.how)
        if found:
            problem(f"a job fails on {', '.join(found)}" + (" together" if len(found) > 1 else ""))
        else:
            note("a barrier of all hosts does not fail now")

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
    """Where rows are kept; None without a store."""
    if asked.store is None:
        return None
    from busbw.measuring.keeping import Journal, new_name  # noqa: PLC0415 - loads the tables

    backend = requests[0].backend if requests else "builtin"
    name = kept.name if kept is not None else new_name(title or title_of(requests), backend)
    run_id = kept.run_id if kept is not None else None
    more = {"how": json.dumps(asdict(asked.how)), **(more or {})}
    return Journal(asked.store, name, requests, asked.how.launcher, run_id=run_id, more=more)


@contextmanager
def kept_journal(journal: Journal | None) -> Iterator[Outcome]:
    """How the block ends: a rank that fails, and an interrupt, and a store that takes no more rows, make it a run that died; what was measured is committed while it can be."""
    from busbw.execution import GaveUpError  # noqa: PLC0415 - loads numpy
    from busbw.launching import LaunchError  # noqa: PLC0415

    outcome = Outcome(journal=journal)
    try:
        with _ended_by_signals():
            yield outcome
    except (LaunchError, GaveUpError) as error:
        outcome.reason = str(error)
    except BaseException as error:
        if isinstance(error, InputError) and journal is not None and not journal.takes_rows:
            outcome.reason = str(error)  # what was measured is shown all the same
        else:
            if journal is not None:
                with suppress(InputError):  # the error that is on its way says more
                    journal.end(f"{type(error).__name__}: {error}"[:500])
            raise
    if journal is not None:
        try:
            journal.end(outcome.reason[:2000] or None)
        except InputError as error:
            outcome.reason = outcome.reason or str(error)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM, with which schedulers end a job, is as Ctrl-C: ranks are ended and what was measured is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
