"""NCCL's constants, one file a version in `constants/`: rates of links, speeds the search tries, latencies, caps.

A file that names a `base` holds only what differs from that version.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from busbw.errors import InputError

__all__ = ["DEFAULT_VERSION", "Constants", "known_versions", "load_constants"]

DEFAULT_VERSION = "2.30.7"
"""The version whose own output is recorded, so the one whose numbers are checked."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The numbers of one version, section by section as in its file; each section names its source."""

    version: str
    verified: bool
    """False: no output of this version's own code was compared; results say so."""
    how: str
    """What the numbers were compared with, or what they were taken from."""
    links: Mapping[str, Any]
    search: Mapping[str, Any]
    channels: Mapping[str, Any]
    latency: Mapping[str, Any]
    bandwidth: Mapping[str, Any]
    threads: Mapping[str, Any]

    def nvlink_gb_per_s(self, capability: int) -> float:
        """One NVLink of a GPU of that compute capability, one direction."""
        return next(float(rate) for least, rate in self.links["nvlink_by_capability"] if capability >= least)

    def speeds_gb_per_s(self, capability: int, several_nodes: bool) -> tuple[float, ...]:
        """The speeds of a channel that the search tries, highest first."""
        table = self.search["speeds"]["several_nodes" if several_nodes else "one_node"]
        generation = max(int(least) for least in table if capability >= int(least))
        return tuple(table[str(generation)])


def known_versions() -> tuple[str, ...]:
    """Versions that have a file, in order."""
    names = [entry.name for entry in files("busbw.nccl").joinpath("constants").iterdir()]
    found = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return tuple(sorted(found, key=lambda version: [int(part) for part in version.split(".")]))


@functools.cache
def load_constants(version: str = DEFAULT_VERSION) -> Constants:
    """The constants of a version. Raises InputError for one that has no file, naming the nearest that has.

    >>> load_constants().verified, load_constants().nvlink_gb_per_s(90)
    (True, 20.6)
    """
    known = known_versions()
    if version not in known:
        nearest = difflib.get_close_matches(version, known, 1, 0.0) or [DEFAULT_VERSION]
        raise InputError(f"NCCL {version}: no constants for it. There are {', '.join(known)}; nearest: {nearest[0]}.")
    data = _file(version)
    whole = _file(data["base"]) if "base" in data else data
    changes = data.get("changes", {})
    sections = ("links", "search", "channels", "latency", "bandwidth", "threads")
    values = {name: {**whole[name], **changes.get(name, {})} for name in sections}
    return Constants(data["version"], data["verified"], data["how"], **values)


def _file(version: str) -> Any:
    return json.loads(files("busbw.nccl").joinpath("constants", f"{version}.json").read_text("utf-8"))
