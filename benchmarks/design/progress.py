"""Progress of a long figure: told on stderr, and kept in a file, so that a run that was stopped goes on where it was.

The file lies in the temporary directory and is named by the figure and the contents of the sources that decide it; a change of one of them begins anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmarks.design
import busbw.collectives

__all__ = ["Progress"]

_SECONDS_BETWEEN = 20.0


class Progress:
    """What is known of the parts of a figure."""

    def __init__(self, figure: str) -> None:
        self._path = Path(tempfile.gettempdir()) / f"busbw-{figure}-{_sources()}.jsonl"
        self._known: dict[str, Any] = {}
        self._said = self._begun = time.monotonic()
        self._figure = figure
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                try:
                    key, value = json.loads(line)
                except ValueError:  # the last line of a run that was killed
                    continue
                self._known[key] = value
            self.say(f"{len(self._known)} parts are known from {self._path}")

    def known(self, key: str) -> Any:
        """What was learnt of a part; None if nothing was."""
        return self._known.get(key)

    def learn(self, key: str, value: Any) -> None:
        """Keeps the result of a part."""
        self._known[key] = value
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, value]) + "\n")
        if time.monotonic() - self._said > _SECONDS_BETWEEN:
            self.say(f"{len(self._known)} parts, at {key}")

    def say(self, text: str) -> None:
        """A line for people."""
        self._said = time.monotonic()
        print(f"{self._figure}, {self._said - self._begun:.0f} s: {text}", file=sys.stderr, flush=True)


def _sources() -> str:
    """A hash of everything that decides a figure: the benchmark's sources, the room of schedules and plans, and its compiled modules."""
    digest = hashlib.sha256()
    folders = [Path(place) for package in (benchmarks.design, busbw.collectives) for place in package.__path__]
    for path in sorted({path for folder in folders for pattern in ("*.py", "*.so") for path in folder.rglob(pattern)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
