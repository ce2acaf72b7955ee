"""NCCL's graph XML, written with NCCL_GRAPH_DUMP_FILE and read with NCCL_GRAPH_FILE: the rings and trees NCCL chose.

One graph an algorithm, one channel a ring or tree, a channel a list of nets and GPUs in order. Elements and attributes
after NCCL 2.30.7, src/graph/search.cc; others are kept. A fragment quoted in a report is read too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from busbw.errors import InputError, Loss
from busbw.hardware.formats.xml import XmlElement, read_elements, write_elements

__all__ = ["Channel", "ChannelStop", "Graph", "NcclGraphs", "read_nccl_graphs", "write_nccl_graphs"]

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNetDirect"}
"""What the pattern number means. Source: NCCL 2.30.7, src/include/graph.h."""
_GIGA = 1e9
_INTEGERS = ("id", "pattern", "crossnic", "nchannels", "samechannels")
_NUMBERS = ("speedintra", "speedinter", "latencyinter")


@dataclass(frozen=True, slots=True)
class ChannelStop:
    """A net or a GPU a channel passes."""

    element: XmlElement

    @property
    def kind(self) -> str:
        """The word in the file: net or gpu."""
        return self.element.name

    @property
    def device(self) -> int | None:
        """The net's number or the GPU's rank or device; hexadecimal in the file. None where it is no number."""
        text = self.element.get("dev")
        return int(text, 16) if text and re.fullmatch(r"(?:0[xX])?[0-9a-fA-F]{1,16}", text) else None


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring or tree."""

    attributes: tuple[tuple[str, str], ...]
    stops: tuple[ChannelStop, ...]
    line: int = field(default=0, compare=False)

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs in order."""
        return tuple(stop.device for stop in self.stops if stop.kind == "gpu" and stop.device is not None)

    @property
    def nets(self) -> tuple[int, ...]:
        """Numbers of the nets in order; empty on one node."""
        return tuple(stop.device for stop in self.stops if stop.kind == "net" and stop.device is not None)


@dataclass(frozen=True, slots=True)
class Graph:
    """The channels of one algorithm, with the speed NCCL found for each of them."""

    attributes: tuple[tuple[str, str], ...]
    channels: tuple[Channel, ...]
    extra: tuple[XmlElement, ...] = ()
    """Children that are no channels."""
    line: int = field(default=0, compare=False)

    def get(self, name: str) -> str | None:
        """An attribute as printed; None where it is absent."""
        return next((value for key, value in self.attributes if key == name), None)

    @property
    def id(self) -> int | None:
        """0 ring, 1 tree, 2 CollNetChain, 3 NVLS, 4 CollNetDirect."""
        return _integer(self.get("id"))

    @property
    def pattern(self) -> int | None:
        """See PATTERNS."""
        return _integer(self.get("pattern"))

    @property
    def pattern_name(self) -> str | None:
        """The pattern in words; None for a number this reader does not know."""
        return PATTERNS.get(self.pattern or 0)

    @property
    def intra_bytes_per_s(self) -> float | None:
        """Rate of one channel inside a node."""
        return _rate(self.get("speedintra"))

    @property
    def inter_bytes_per_s(self) -> float | None:
        """Rate of one channel between nodes."""
        return _rate(self.get("speedinter"))

    @property
    def intra_type(self) -> str | None:
        """The worst path type used inside a node: NVL, PIX, SYS ..."""
        return self.get("typeintra")

    @property
    def inter_type(self) -> str | None:
        """The worst path type between a GPU and its net."""
        return self.get("typeinter")


@dataclass(frozen=True, slots=True)
class NcclGraphs:
    """A graph file. `attributes` are those of its root; a fragment without the root has none."""

    graphs: tuple[Graph, ...]
    attributes: tuple[tuple[str, str], ...] = (("version", "1"),)
    extra: tuple[XmlElement, ...] = ()
    """Elements that are no graphs."""
    path: str = field(default="", compare=False)


def read_nccl_graphs(data: bytes | str, path: str) -> tuple[NcclGraphs, list[Loss]]:
    """The graphs in a document or a fragment of one, and what was lost.

    Losses: those of `xml.read_elements`, `graph-bad-attribute` (a number that is none), `graph-channel-count` (fewer or
    more channels than the graph says, so the file is cut). Raises InputError where no graph or channel is found.
    """
    elements, losses = read_elements(data, path)
    root = next((element for element in elements if element.name == "graphs"), None)
    top = root.children if root is not None else elements
    beside = tuple(element for element in elements if root is not None and element is not root)
    graphs = [_graph(element) for element in top if element.name == "graph"]
    loose = tuple(_channel(element) for element in top if element.name == "channel")
    if loose:
        graphs.append(Graph((), loose, (), loose[0].line))
    if not graphs and root is None:
        raise InputError(
            f"{path}:{elements[0].line}: <{elements[0].name}> is no NCCL graph. "
            "Pass the file that NCCL_GRAPH_DUMP_FILE names."
        )
    extra = (*(element for element in top if element.name not in {"graph", "channel"}), *beside)
    attributes = root.attributes if root is not None else ()
    found = NcclGraphs(tuple(graphs), attributes, extra, path)
    return found, losses + _graph_losses(found)


def write_nccl_graphs(graphs: NcclGraphs) -> str:
    """The graphs as XML that NCCL_GRAPH_FILE takes; reading it gives the same graphs."""
    children = (*(_plain_graph(graph) for graph in graphs.graphs), *graphs.extra)
    return write_elements([XmlElement("graphs", graphs.attributes, children)])


def _graph(element: XmlElement) -> Graph:
    channels = tuple(_channel(child) for child in element.children if child.name == "channel")
    extra = tuple(child for child in element.children if child.name != "channel")
    return Graph(element.attributes, channels, extra, element.line)


def _channel(element: XmlElement) -> Channel:
    return Channel(element.attributes, tuple(ChannelStop(child) for child in element.children), element.line)


def _plain_graph(graph: Graph) -> XmlElement:
    channels = tuple(
        XmlElement("channel", channel.attributes, tuple(stop.element for stop in channel.stops))
        for channel in graph.channels
    )
    return XmlElement("graph", graph.attributes, (*channels, *graph.extra))


def _graph_losses(graphs: NcclGraphs) -> list[Loss]:
    losses = []
    for graph in graphs.graphs:
        bad = [name for name in _INTEGERS if graph.get(name) and _integer(graph.get(name)) is None]
        bad += [name for name in _NUMBERS if graph.get(name) and _rate(graph.get(name)) is None]
        if bad:
            detail = f"{bad[0]}={(graph.get(bad[0]) or '')[:40]!r} of a graph is no number; taken as unknown"
            losses.append(Loss("graph-bad-attribute", graphs.path, graph.line, detail, len(bad)))
        channels = _integer(graph.get("nchannels"))
        if channels is not None and channels != len(graph.channels):
            detail = f"the graph says {channels} channels and holds {len(graph.channels)}; pass the whole file"
            losses.append(Loss("graph-channel-count", graphs.path, graph.line, detail))
    return losses


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None


def _rate(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"[+-]?[0-9]{1,12}(?:\.[0-9]{0,12})?", text):
        return None
    return float(text) * _GIGA
