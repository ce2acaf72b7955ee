"""A node as the columns that the compiled search works on: links, paths as lists of links, nets, and who is local to whom."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from busbw.nccl._search import ChannelSearch
from busbw.nccl.paths import Path, Paths
from busbw.nccl.topology import Kind, Link, PathType, Vertex

__all__ = ["channel_search"]


def channel_search(paths: Paths) -> ChannelSearch:
    """The node as the columns that tries work on. Ends of paths: GPUs, then nets, then the NVSwitch."""
    graph = paths.graph
    switches = graph.vertices[Kind.NVS][:1]
    ends: list[Vertex] = [*graph.gpus, *graph.nets, *switches]
    links = [link for vertex in graph.every() for link in vertex.links]
    place = {link: i for i, link in enumerate(links)}
    types: list[int] = []
    rates: list[float] = []
    begin, steps = [0], list[int]()
    for start in ends:
        for kind, count in ((Kind.GPU, len(graph.gpus)), (Kind.NET, len(graph.nets)), (Kind.NVS, len(switches))):
            found = paths.of(start, kind)
            for index in range(count):
                path = found[index] if found else None
                types.append(int(path.type) if path else int(PathType.DIS))
                rates.append(path.gb_per_s if path else 0.0)
                if path:
                    steps += _steps(start, path, place)
                begin.append(len(steps) // 4)
    asics, ports, rails, planes = (_numbered(values) for values in _names(graph.nets))
    local = [paths.local(net, Kind.GPU) for net in graph.nets]
    net_numbers = [
        figure
        for i, net in enumerate(graph.nets)
        for figure in (
            asics[net.asic],
            ports[net.port],
            rails[net.rail],
            planes[net.plane],
            -1 if paths.gpu_of_net[i] is None else paths.gpu_of_net[i],
            int(local[i][1] != PathType.DIS),
        )
    ]
    return ChannelSearch(
        np.array([link.gb_per_s for link in links], np.float32),
        np.array(types, np.int32),
        np.array(rates, np.float32),
        np.array(begin, np.int32),
        np.array(steps, np.int32),
        np.array([net.net_gb_per_s for net in graph.nets], np.float32),
        np.array([net.latency_us for net in graph.nets], np.float32),
        np.array(net_numbers, np.int32),
        [gpus for gpus, _ in local],
        np.array([end for gpu in graph.gpus for end in _pci_link(gpu, place)], np.int32),
        bool(switches),
    )


def _names(nets: list[Vertex]) -> tuple[list[int], list[int], list[int], list[int]]:
    """What tells nets apart: adapter, port, rail, plane."""
    return (
        [net.asic for net in nets],
        [net.port for net in nets],
        [net.rail for net in nets],
        [net.plane for net in nets],
    )


def _numbered(names: list[int]) -> dict[int, int]:
    """Small numbers for names of any size; -1, unknown, stays -1."""
    return {name: -1 if name == -1 else place for place, name in enumerate(dict.fromkeys(names))}


_AMPERE = 80


def _steps(start: Vertex, path: Path, place: dict[Link, int]) -> Iterator[int]:
    """Four numbers a link: itself, the reverse link that is loaded too, the divisor of that share, the peer overhead."""
    through_intel = any(link.end.kind is Kind.CPU and link.end.cpu_model == "intel" for link in path.links)
    overhead = path.type == PathType.PHB and start.kind is Kind.GPU and through_intel
    for link in path.links:
        divisor = 0
        if link.end.kind is Kind.DEV and link.end.capability < _AMPERE and start.kind is not Kind.GPU:
            divisor = 8
        elif link.end.kind is Kind.CPU and link.end.cpu_model == "power" and link.type == PathType.NVL:
            divisor = 1
        reverse = -1
        if divisor:
            reverse = place[next(back for back in link.end.links if back.end is link.start and back.type == link.type)]
        yield from (place[link], reverse, divisor or 1, int(overhead and link.type == PathType.PIX))


def _pci_link(gpu: Vertex, place: dict[Link, int]) -> tuple[int, int]:
    """A GPU's PCIe link, up and down; -1 without one."""
    device = gpu.parent
    for link in device.links if device else ():
        if link.type == PathType.PIX:
            back = next((one for one in link.end.links if one.end is device), link)
            return place[link], place[back]
    return -1, -1
