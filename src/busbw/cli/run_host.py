"""`busbw run host`: what this machine copies, adds and reads, and how soon its cores see each other's stores."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbw.cli.console import Page, note, print_json
from busbw.cli.run_asked import Asked, journal_of, kept_journal

if TYPE_CHECKING:
    from busbw.measuring.host import Figure

__all__ = ["of_this_host"]


def of_this_host(size_bytes: int, asked: Asked) -> int:
    """Measures, prints and keeps; the exit status."""
    from busbw.measuring.host import counter_rows, figures, gpu_reason  # noqa: PLC0415

    journal = journal_of((), asked, title="host")
    found: list[Figure] = []
    with kept_journal(journal):
        for figure in figures(size_bytes):
            found.append(figure)
            if journal is not None:
                journal.counters(counter_rows([figure], socket.gethostname(), time.time_ns()))
    if journal is not None:
        note(f"kept in {asked.store} as {journal.name}")
    reason = gpu_reason()
    if asked.as_json:
        listed = [{"name": one.name, "value": one.value, "labels": dict(one.labels)} for one in found]
        print_json({"schema": 1, "host": socket.gethostname(), "figures": listed, "notes": [reason] if reason else []})
    else:
        _print(found)
        if reason:
            note(reason)
    return 0


def _print(found: Sequence[Figure]) -> None:
    page = Page()
    rows = []
    for figure in found:
        is_rate = figure.name.endswith("_bytes_per_s")
        title = figure.name.removesuffix("_bytes_per_s").removesuffix("_s").replace("_", " ")
        value = f"{figure.value / 1e9:.2f} GB/s" if is_rate else f"{figure.value * 1e9:.1f} ns"
        rows.append([title, ", ".join(f"{name.replace('_', ' ')} {of}" for name, of in figure.labels.items()), value])
    page.table([("what", False), ("where", False), ("", True)], rows)
