"""Everything that is known, indexed for rules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from busbw.diagnosis.facts.records import (
    Collective,
    Counter,
    Curve,
    Device,
    Event,
    Growth,
    LinkGroup,
    Pair,
    Point,
    Port,
    Process,
    Progress,
    Setting,
    UnnumberedCalls,
)
from busbw.diagnosis.facts.traces import Step
from busbw.diagnosis.findings import UNKNOWN_OFFSET, LineRef
from busbw.hardware.formats import NcclGraphs, NcclTopology, TopologyMatrix

if TYPE_CHECKING:
    from busbw.hardware import Cluster

__all__ = ["Facts", "lines_of"]


class Facts:
    """Everything known, indexed. Empty collections mean that nobody said anything."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.event_counts: dict[str, int] = defaultdict(int)
        self.unknown_warnings: list[Event] = []
        self.settings: list[Setting] = []
        self.links: list[LinkGroup] = []
        self.curves: list[Curve] = []
        self.pairs: list[Pair] = []
        self.counters: list[Counter] = []
        """Of every series the last reading."""
        self.growths: list[Growth] = []
        """Of every series that was read more than once: in one file, in files of before and after, or of one host at two times."""
        self.ports: list[Port] = []
        self.collectives: list[Collective] = []
        """By artefact, rank and group, there in the order of the file."""
        self.unnumbered: list[UnnumberedCalls] = []
        """Collectives with bytes and ranks, but without a number."""
        self.progress: list[Progress] = []
        self.cluster: Cluster | None = None
        """What the job ran on, where the user says it."""
        self.steps: list[Step] = []
        """Of profilers' traces, by artefact and number."""
        self.devices: list[tuple[str | None, str | None, LineRef]] = []
        """(host, name, line) of every GPU or other device a tool named; PCI devices and transports are in `hardware` only."""
        self.hardware: list[Device] = []
        """Every device with what the tool said of it."""
        self.ranks_left_out = 0
        """Ranks in process groups whose collectives were not kept: they are not missing, only not looked at."""
        self.topologies: list[tuple[str, TopologyMatrix | NcclTopology | NcclGraphs]] = []
        self.processes: dict[tuple[str | None, int | None], Process] = {}
        self.paths: dict[str, str] = {}
        """Path by artefact."""

    def all(self, *names: str) -> list[Event]:
        """Events of these names, in order of file and line."""
        found = [e for name in names for e in self.events.get(name, ())]
        return sorted(found, key=lambda e: e.at) if len(names) > 1 else found

    def any(self, *names: str) -> Event | None:
        """The first event of these names."""
        return next(iter(self.all(*names)), None)

    def setting(self, *names: str) -> list[Setting]:
        """Every occurrence of these variables."""
        wanted = set(names)
        return [s for s in self.settings if s.name in wanted]

    @property
    def hosts(self) -> set[str]:
        """Host names met in heads of lines and in connections."""
        return {host for host, _ in self.processes if host}

    def line_of(self, path: str, line: int | None) -> LineRef | None:
        """A line of a file that was read, known by its number only; None without a number."""
        artefact = next((sha256 for sha256, known in self.paths.items() if known == path), None)
        return LineRef(path, line, UNKNOWN_OFFSET, artefact) if line is not None and artefact is not None else None

    def nccl_versions(self) -> list[tuple[tuple[int, ...], Event]]:
        """NCCL versions printed, as tuples of integers, with their lines. RCCL's are by its own number."""
        found = []
        for event in self.all("nccl.version"):
            numbers = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", event.fields.get("version", ""))
            if numbers is not None:
                found.append((tuple(int(n) for n in numbers.groups() if n is not None), event))
        return found

    def cuda_errors(self) -> Iterator[tuple[str, Event]]:
        """(text in lower case, event) of everything that reports a CUDA or HIP error."""
        for event in self.all(
            "nccl.cuda_failure", "cuda.error", "nccl_tests.failure", "nccl.nvls_bind_failed", "nccl.ipc_open_failed"
        ):
            text = event.fields.get("error") or event.fields.get("message") or event.fields.get("what") or event.text
            yield text.lower(), event

    def failures(self) -> list[Event]:
        """Warnings and errors, in order of file and line."""
        found = [e for events in self.events.values() for e in events if e.level in ("warning", "error")]
        return sorted(found + self.unknown_warnings, key=lambda e: e.at)


def lines_of(
    items: Iterable[
        Event
        | Setting
        | LinkGroup
        | Point
        | Pair
        | Counter
        | Growth
        | Port
        | Device
        | Collective
        | Progress
        | Step
        | UnnumberedCalls
    ],
    most: int = 12,
) -> list[LineRef]:
    """The lines of these facts without repeats, at most `most`, in order of file and line."""
    seen: dict[tuple[str, int], LineRef] = {}
    for item in items:
        seen.setdefault((item.at.path, item.at.line), item.at)
        if len(seen) >= most:
            break
    return sorted(seen.values())
