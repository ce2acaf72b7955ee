"""Nodes and clusters drawn: as lines of text for a terminal, as SVG for documents. Same machine in, same bytes out."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from busbw.hardware import LINK_KINDS, VERTEX_KINDS, Cluster, LinkTable, Node, NodeGraph
from busbw.hardware.fabrics import Fabric, FatTree
from busbw.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MAX_DRAWN", "cluster_svg", "fabric_lines", "node_lines", "node_svg"]

MAX_DRAWN = 400
"""Most vertices of a fabric drawn one by one; larger ones are drawn a box a level."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "busbw",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
}
_FILL = {
    **{"gpu": "#cfe3c4", "nic": "#f6dcb0", "cpu": "#e6e6e6", "pcie_switch": "#dfe7f2", "nvswitch": "#b9d7a8"},
    "switch": "#f0c98b",
}
_STROKE = {"nvlink": "#5a8f3c", "pcie": "#6b7f99", "c2c": "#8a5fa8", "cpu": "#999999", "network": "#c07a1c"}
_SHORT = {"gpu": "GPU", "nic": "NIC", "cpu": "NUMA", "pcie_switch": "PCIe switch", "nvswitch": "NVSwitch"}
_LEVELS = ("cpu", "pcie_switch", "nic", "gpu", "nvswitch")
"""From top to bottom."""


def node_lines(node: Node) -> list[str]:
    """The node as a tree, a device a line: what hangs on which NUMA node and switch, with the rate of each link.

    Rates are one direction. Devices say what else they have: NVLink, C2C, the line rate of a NIC.
    """
    graph = node.graph
    lines: list[str] = []
    cpus = np.flatnonzero(graph.kind == VERTEX_KINDS.index("cpu"))
    for cpu in cpus:
        lines.append(f"NUMA node {int(graph.number[cpu])}")
        lines += _branches(node, graph, int(cpu), -1, "")
    between = np.flatnonzero(graph.links.kind == LINK_KINDS.index("cpu"))
    if len(between):
        lines.append(f"between NUMA nodes {_rate(graph.links, int(between[0]))}")
    return lines


def _branches(node: Node, graph: NodeGraph, vertex: int, above: int, indent: str) -> Iterator[str]:
    links = graph.links
    pcie = LINK_KINDS.index("pcie")
    below = [
        (int(link), int(links.dst[link]))
        for link in np.flatnonzero((links.src == vertex) & (links.kind == pcie))
        if links.dst[link] != above
    ]
    for index, (link, child) in enumerate(below):
        last = index == len(below) - 1
        kind = VERTEX_KINDS[int(graph.kind[child])]
        name = f"{_SHORT[kind]} {int(graph.number[child])}"
        extra = _extras(node, graph, child, kind)
        yield f"{indent}{'`-' if last else '|-'} {name:<14}{_rate(links, link)}{extra}"
        yield from _branches(node, graph, child, vertex, indent + ("   " if last else "|  "))


def _extras(node: Node, graph: NodeGraph, vertex: int, kind: str) -> str:
    if kind == "nic":
        return f"  line rate {node.nic_rate_bytes_per_s * 8 / 1e9:g} Gb/s"
    links, said = graph.links, []
    for link in np.flatnonzero(links.src == vertex):
        word, to = LINK_KINDS[int(links.kind[link])], int(links.dst[link])
        if word == "nvlink":
            target = VERTEX_KINDS[int(graph.kind[to])]
            said.append(
                f"NVLink to {_SHORT[target]}{'' if target == 'nvswitch' else ' ' + str(int(graph.number[to]))} {_rate(links, int(link))}"
            )
        elif word == "c2c":
            said.append(f"C2C {_rate(links, int(link))}")
    return "".join(f"  {each}" for each in said)


def _rate(links: LinkTable, link: int) -> str:
    return format_rate(float(links.bandwidth_bytes_per_s[link]))


def fabric_lines(cluster: Cluster) -> list[str]:
    """The fabric in a few lines: switches of each level, over-subscription, bisection. Nothing grows with its size."""
    fabric, rates = cluster.fabric, cluster.link_rates
    switch = cluster.switch
    product = f" ({switch.name})" if switch is not None else ""
    lines = [f"{fabric.kind}: {fabric.endpoints} NICs, {fabric.switches} switches{product}, {fabric.links // 2} cables"]
    if isinstance(fabric, FatTree):
        for level in range(fabric.levels, 0, -1):
            below = fabric.slots // int(np.prod(fabric.down[:level]))
            count = below * int(np.prod(fabric.up[:level]))
            down = fabric.down[level - 1] * fabric.parallel[level - 1]
            up = fabric.up[level] * fabric.parallel[level] if level < fabric.levels else 0
            over = f", {fabric.oversubscription(level):.3g} to 1" if level < fabric.levels else ""
            lines.append(f"level {level}: {count} switches, {down} ports down, {up} up{over}")
    lines.append(
        f"links: NIC {rates.nic_bytes_per_s * 8 / 1e9:g} Gb/s, between switches {rates.switch_bytes_per_s * 8 / 1e9:g} Gb/s"
    )
    bisection = fabric.bisection_bytes_per_s()
    if bisection is not None:
        lines.append(f"bisection: {format_rate(bisection)}, all places filled")
    return lines


def node_svg(node: Node) -> str:
    """The node as an SVG document: NUMA nodes on top, PCIe switches, NICs, GPUs, NVSwitch; wide lines are fast links."""
    graph = node.graph
    at: dict[int, tuple[float, float]] = {}
    order = _leaf_order(graph)
    place = {vertex: index for index, vertex in enumerate(order)}
    width = max(len(order), 4)
    for row, kind in enumerate(_LEVELS):
        for vertex in np.flatnonzero(graph.kind == VERTEX_KINDS.index(kind)):
            v = int(vertex)
            under = [place[leaf] for leaf in _below(graph, v) if leaf in place]
            x = place[v] if v in place else sum(under) / len(under) if under else width / 2
            at[v] = (x + 0.5 if kind != "nvswitch" else width / 2, -1.2 * row)
    figure, axes = _figure(0.95 * width + 0.6, 6.2)
    fastest = float(graph.links.bandwidth_bytes_per_s.max(initial=1.0))
    for link in range(0, len(graph.links), 2):
        a, b = at[int(graph.links.src[link])], at[int(graph.links.dst[link])]
        rate = float(graph.links.bandwidth_bytes_per_s[link])
        kind = LINK_KINDS[int(graph.links.kind[link])]
        bend = a[1] == b[1]
        _line(axes, a, b, _STROKE[kind], 0.6 + 3.4 * (rate / fastest) ** 0.5, bend=bend)
    for device, (x, y) in at.items():
        kind = VERTEX_KINDS[int(graph.kind[device])]
        number = "" if kind == "nvswitch" else f" {int(graph.number[device])}"
        wide = 2.0 if kind == "nvswitch" else 0.84
        _box(axes, (x, y), f"{_SHORT[kind].replace(' switch', chr(10) + 'switch')}{number}", _FILL[kind], wide)
    _legend(axes, graph.links)
    axes.set_title(f"{node.name}: {node.title}", loc="left", fontsize=10)
    return _written(figure)


def cluster_svg(cluster: Cluster) -> str:
    """The fabric of a cluster as an SVG document: every switch and node, or a box a level where there are too many.

    Raises ValueError for a cluster without a fabric.
    """
    fabric = cluster.fabric
    return _fabric_svg(cluster, fabric) if fabric.vertices <= MAX_DRAWN else _levels_svg(cluster, fabric)


def _fabric_svg(cluster: Cluster, fabric: Fabric) -> str:
    table = fabric.link_table()
    level = np.zeros(fabric.vertices, np.int64)
    # How far a vertex is from the nearest NIC is its level, whatever the kind of fabric.
    if fabric.switches:
        far = np.full(fabric.vertices, fabric.vertices)
        far[: fabric.slots] = 0
        for _ in range(16):
            reach = far.copy()
            np.minimum.at(reach, table.dst, far[table.src] + 1)
            if np.array_equal(reach, far):
                break
            far = reach
        level = far
    rows = {depth: np.flatnonzero(level == depth) for depth in np.unique(level)}
    width = max(len(row) for row in rows.values())
    figure, axes = _figure(min(24.0, 0.22 * width + 4), 1.5 * len(rows) + 1.2)
    at: dict[int, tuple[float, float]] = {}
    for depth, row in rows.items():
        for index, vertex in enumerate(row):
            at[int(vertex)] = ((index + 0.5) / len(row) * width, 1.4 * float(depth))
    for link in range(0, len(table), 2):
        a, b = at[int(table.src[link])], at[int(table.dst[link])]
        _line(axes, a, b, _STROKE["network"], 0.7, bend=a[1] == b[1])
    for place, (x, y) in at.items():
        name = fabric.vertex_name(place)
        if place < fabric.slots:
            axes.plot([x], [y], "s", color=_FILL["nic"], markeredgecolor="#555555", markersize=5, markeredgewidth=0.5)
        else:
            _box(axes, (x, y), name, _FILL["switch"], max(0.9 * width / len(rows[int(level[place])]) * 0.8, 0.4))
    axes.set_title(
        f"{cluster.name}: {cluster.nodes} x {cluster.node.name}, {fabric_lines(cluster)[0]}", loc="left", fontsize=10
    )
    return _written(figure)


def _levels_svg(cluster: Cluster, fabric: Fabric) -> str:
    lines = fabric_lines(cluster)
    boxes = [line for line in lines if line.startswith("level")] or [f"{fabric.switches} switches"]
    boxes.append(
        f"{cluster.nodes} nodes {cluster.node.name}: {cluster.gpus} GPUs, {cluster.nics} NICs, {cluster.rails} rails"
    )
    if cluster.node.nvlink_domain_nodes > 1:
        boxes.append(f"{cluster.nvlink_domains} NVLink domains of {cluster.gpus_per_domain} GPUs")
    figure, axes = _figure(8.0, 1.0 * len(boxes) + 1.0)
    for index, text in enumerate(boxes):
        y = -1.2 * index
        if index:
            _line(axes, (4.0, y + 1.2), (4.0, y), _STROKE["network"], 3.0, bend=False)
        _box(axes, (4.0, y), text, _FILL["switch"] if text.startswith("level") else _FILL["gpu"], 7.6)
    axes.set_title(f"{cluster.name}: {lines[0]}", loc="left", fontsize=10)
    return _written(figure)


def _leaf_order(graph: NodeGraph) -> list[int]:
    """GPUs and NICs in the order of the PCIe tree, so that what shares a switch stands together."""
    order: list[int] = []
    for cpu in np.flatnonzero(graph.kind == VERTEX_KINDS.index("cpu")):
        order += [v for v in _below(graph, int(cpu)) if VERTEX_KINDS[int(graph.kind[v])] in ("gpu", "nic")]
    return order


def _below(graph: NodeGraph, vertex: int) -> list[int]:
    """Vertices under a NUMA node or PCIe switch in the order of the tree, itself left out."""
    pcie, found = LINK_KINDS.index("pcie"), []
    here = VERTEX_KINDS[int(graph.kind[vertex])]
    if here not in ("cpu", "pcie_switch"):
        return []
    for link in np.flatnonzero((graph.links.src == vertex) & (graph.links.kind == pcie)):
        to = int(graph.links.dst[link])
        kind = VERTEX_KINDS[int(graph.kind[to])]
        # What stands above a switch is a NUMA node, or a switch of a lower number.
        if kind != "cpu" and not (kind == here == "pcie_switch" and to < vertex):
            found += [to, *_below(graph, to)]
    return found


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    import matplotlib as mpl  # noqa: PLC0415 - takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0.02, 0.02, 0.96, 0.88))
        axes.set_axis_off()
    return figure, axes


def _line(axes: Axes, a: tuple[float, float], b: tuple[float, float], colour: str, width: float, *, bend: bool) -> None:
    if bend:
        x = np.linspace(a[0], b[0], 24)
        y = (
            a[1]
            + 0.16 * abs(b[0] - a[0]) ** 0.5 * np.sin(np.linspace(0, np.pi, 24))
            + 0.2 * np.sin(np.linspace(0, np.pi, 24))
        )
        axes.plot(x, y, color=colour, linewidth=width, zorder=1, solid_capstyle="round")
        return
    axes.plot([a[0], b[0]], [a[1], b[1]], color=colour, linewidth=width, zorder=1, solid_capstyle="round")


def _box(axes: Axes, at: tuple[float, float], text: str, colour: str, width: float) -> None:
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415 - takes a second

    x, y = at

    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.24),
            width,
            0.48,
            boxstyle="round,pad=0.0,rounding_size=0.06",
            facecolor=colour,
            edgecolor="#555555",
            linewidth=0.7,
            zorder=2,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, zorder=3)


def _legend(axes: Axes, links: LinkTable) -> None:
    said = []
    for kind in np.unique(links.kind):
        rates = sorted({float(rate) for rate in links.bandwidth_bytes_per_s[links.kind == kind]})
        word = {"nvlink": "NVLink", "pcie": "PCIe", "c2c": "C2C", "cpu": "between NUMA nodes"}[LINK_KINDS[int(kind)]]
        shown = ", ".join(format_rate(rate) for rate in rates)
        said.append((axes.plot([], [], color=_STROKE[LINK_KINDS[int(kind)]], linewidth=2.5)[0], f"{word} {shown}"))
    axes.legend(
        [line for line, _ in said],
        [text for _, text in said],
        loc="lower left",
        frameon=False,
        fontsize=7.5,
        ncols=2,
        bbox_to_anchor=(0.0, -0.03),
    )


def _written(figure: Figure) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - takes a second

    written = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(written, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return re.sub(r"<metadata>.*?</metadata>\s*", "", written.getvalue(), flags=re.DOTALL)
