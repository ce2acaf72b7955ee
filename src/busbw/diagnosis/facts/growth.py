"""Counters that were read more than once: which readings are of one series, and which came first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from busbw.diagnosis.facts.records import Counter, Growth

__all__ = ["Series", "growths", "series_key"]

_EARLIER = ("before", "pre", "start", "begin", "first", "t0")
_LATER = ("after", "post", "end", "finish", "second", "t1")
_MOMENT = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(_EARLIER + _LATER)})(?![a-z0-9])", re.IGNORECASE)
"""Words of a path by which people tell two snapshots apart."""

_Key = tuple[object, ...]


@dataclass(slots=True)
class Series:
    """First and last reading of one counter in one file."""

    first: Counter
    last: Counter

    def take(self, counter: Counter) -> None:
        """One more reading: later by its clock if both have one, else by its place in the file."""
        if counter.time_ns is not None and self.last.time_ns is not None and counter.time_ns < self.last.time_ns:
            if self.first.time_ns is not None and counter.time_ns < self.first.time_ns:
                self.first = counter
            return
        self.last = counter


def series_key(counter: Counter) -> _Key:
    """What tells one series of a file from the others."""
    return (counter.at.artefact, counter.host, counter.device, counter.port, counter.name, counter.labels)


def growths(series: Iterable[Series]) -> list[Growth]:
    """First and last reading of every counter that was read at two moments at least.

    Files belong together if their paths differ in a word such as before and after only, or if they are of one host and their readings have
    times. Files of one host without either are not compared: nobody knows which came first. A file without hosts and times in which some
    counter falls holds the counters of several hosts.
    """
    series = list(series)
    mixed = {
        one.last.at.artefact
        for one in series
        if one.last.time_ns is None and one.last.host is None and one.last.value < one.first.value
    }
    found = []
    apart: dict[_Key, list[Series]] = defaultdict(list)
    for one in series:
        if one.first is not one.last and one.last.at.artefact not in mixed:
            found.append(Growth(one.first, one.last))
        counter = one.last
        place = _MOMENT.sub("*", counter.at.path)
        if place != counter.at.path:
            apart[place, counter.host, counter.device, counter.port, counter.name, counter.labels].append(one)
        elif counter.host is not None and counter.time_ns is not None:
            apart[None, counter.host, counter.device, counter.port, counter.name, counter.labels].append(one)
    for same in apart.values():
        if len(same) < 2:
            continue
        same.sort(key=lambda one: (_moment(one.last), one.last.at.path))
        first, last = same[0], same[-1]
        if _moment(first.last) != _moment(last.last):
            found.append(Growth(first.last, last.last))
    return found


def _moment(counter: Counter) -> tuple[int, int]:
    """When it was read, to be compared within one series: by the word in its path, then by its clock."""
    word = _MOMENT.search(counter.at.path)
    return int(word is not None and word[0].lower() in _LATER), counter.time_ns or 0
