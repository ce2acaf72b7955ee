"""A node as a drawing: GPUs over their PCIe switch, NICs under it, NUMA nodes at the foot, NVLink above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from busbw.reports.nodes import Device, Mark, NodeMap
from busbw.reports.svg import ALARM, BAND, FIRST, GRID, INK, MUTED, PAPER, RAISED, SECOND, drawing, printable, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["node_svg"]

# Inches. A box holds `GPU10` or `mlx5_10` at 8 pt.
_BOX, _BOX_HEIGHT, _GAP, _GROUP_GAP, _DOMAIN_GAP, _EDGE = 0.66, 0.40, 0.08, 0.12, 0.26, 0.16
_FOOT, _BAR, _RISE = 0.28, 0.20, 0.22


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a device stands: middle, and lower edge of its box."""

    x: float
    y: float


def node_svg(node: NodeMap, prefix: str = "n") -> str:
    """The node. What findings mark has a thick frame and the number of the mark in the list below the drawing."""
    widths = [
        [
            max(1, sum(d.kind == "gpu" for d in g.devices), sum(d.kind == "nic" for d in g.devices))
            for g in domain.groups
        ]
        for domain in node.domains
    ]
    spans = [sum(n * (_BOX + _GAP) - _GAP for n in row) + _GROUP_GAP * (len(row) - 1) for row in widths]
    width = max(3.6, sum(spans) + _DOMAIN_GAP * (len(spans) - 1) + 2 * _EDGE)
    has_nics = any(d.kind == "nic" for d in node.devices)
    nic_y = _EDGE + _FOOT + _RISE
    switch_y = nic_y + (_BOX_HEIGHT + _RISE if has_nics else 0)
    gpu_y = switch_y + _BAR + _RISE
    over = _RISE + _BAR if node.switch else 0.9 if node.nvlinks else 0.0
    height = gpu_y + _BOX_HEIGHT + over + _EDGE
    numbers: dict[str, list[int]] = {}
    for number, mark in enumerate(node.marks, 1):
        numbers.setdefault(mark.target, []).append(number)
    with drawing(width, height, bare=True) as (figure, axes):
        x = _EDGE
        spots: dict[str, _Spot] = {}
        at_group = at_device = 0
        feet = []
        for domain, row, span in zip(node.domains, widths, spans, strict=True):
            feet.append((x, x + span))
            _bar(axes, (x, _EDGE), (span, _FOOT), domain.label, fill=RAISED, edge=MUTED)
            left = x
            for group, boxes in zip(domain.groups, row, strict=True):
                wide = boxes * (_BOX + _GAP) - _GAP
                middle = left + wide / 2
                marked = numbers.get(f"group {at_group}", [])
                if group.label or any(d.kind == "gpu" for d in group.devices):
                    _line(axes, (middle, _EDGE + _FOOT), (middle, switch_y), INK if group.label else MUTED)
                for kind, y in (("nic", nic_y), ("gpu", gpu_y)):
                    same = [d for d in group.devices if d.kind == kind]
                    start = middle - (len(same) * (_BOX + _GAP) - _GAP) / 2
                    for k, device in enumerate(same):
                        centre = start + k * (_BOX + _GAP) + _BOX / 2
                        spots.setdefault(device.label, _Spot(centre, y))
                        join = switch_y if group.label or kind == "gpu" else _EDGE + _FOOT
                        edge = y if kind == "gpu" or not group.label else y + _BOX_HEIGHT
                        _line(
                            axes, (centre, join + (_BAR if kind == "gpu" and group.label else 0)), (centre, edge), MUTED
                        )
                        _device(
                            axes,
                            device,
                            (centre, y),
                            numbers.get(f"device {at_device + group.devices.index(device)}", []),
                        )
                if group.label:
                    _bar(
                        axes,
                        (left, switch_y),
                        (wide, _BAR),
                        _switch_words(group.label, wide),
                        fill=RAISED,
                        edge=MUTED,
                        marks=marked,
                    )
                at_device += len(group.devices)
                at_group += 1
                left += wide + _GROUP_GAP
            x += span + _DOMAIN_GAP
        crossed = numbers.get("sockets", [])
        for (_, right), (left, _) in pairwise(feet):
            y = _EDGE + _FOOT / 2
            _line(axes, (right, y), (left, y), ALARM if crossed else MUTED, 3.2 if crossed else 2.0)
        if crossed and len(feet) > 1:
            _badge(axes, ((feet[0][1] + feet[1][0]) / 2, _EDGE + _FOOT + 0.02), crossed)
        gpus = [d for d in node.devices if d.kind == "gpu"]
        top = gpu_y + _BOX_HEIGHT
        if node.switch and gpus:
            xs = [spots[d.label].x for d in gpus]
            for one in xs:
                _line(axes, (one, top), (one, top + _RISE), FIRST, 1.6)
            low, high = min(xs) - _BOX / 2, max(xs) + _BOX / 2
            _bar(axes, (low, top + _RISE), (high - low, _BAR), node.switch, fill=BAND, edge=FIRST)
        elif node.nvlinks:
            _arcs(axes, node.nvlinks, spots, top)
        return to_svg(figure, prefix, _title(node), _description(node))


def _switch_words(label: str, wide: float) -> str:
    """The label of a switch if it fits, else its shorter parts. At 7.5 pt a letter takes some 0.065 inches."""
    for words in (label, label.removeprefix("PCIe switch, "), label.replace("PCIe switch", "switch"), "switch"):
        if len(words) * 0.065 <= wide:
            return words
    return ""


def _device(axes: Axes, device: Device, at: tuple[float, float], marks: Sequence[int]) -> None:
    x, y = at
    colour = ALARM if marks else FIRST if device.kind == "gpu" else SECOND
    _box(axes, (x - _BOX / 2, y), (_BOX, _BOX_HEIGHT), fill=PAPER, edge=colour, width=2.4 if marks else 1.2)
    note = printable(device.note, 10)
    shift = 0.085 if note else 0.0
    middle = y + _BOX_HEIGHT / 2
    axes.text(x, middle + shift, printable(device.label, 9), ha="center", va="center", fontsize=8, color=INK)
    if note:
        axes.text(x, middle - shift, note, ha="center", va="center", fontsize=6.5, color=MUTED)
    if marks:
        _badge(axes, (x + _BOX / 2 - 0.02, y + _BOX_HEIGHT), marks)


def _bar(
    axes: Axes, at: tuple[float, float], size: tuple[float, float], text: str, *, fill: str, edge: str, marks: Sequence[int] = ()
) -> None:  # fmt: skip
    _box(axes, at, size, fill=fill, edge=ALARM if marks else edge, width=2.4 if marks else 1.0)
    axes.text(
        at[0] + size[0] / 2, at[1] + size[1] / 2 - 0.01, printable(text, 60), ha="center", va="center", fontsize=7.5, color=INK
    )  # fmt: skip
    if marks:
        _badge(axes, (at[0] + size[0] - 0.02, at[1] + size[1]), marks)


def _box(axes: Axes, at: tuple[float, float], size: tuple[float, float], *, fill: str, edge: str, width: float) -> None:
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415 - loaded only where something is drawn

    style = "round,pad=0,rounding_size=0.04"
    axes.add_patch(FancyBboxPatch(at, *size, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=width, zorder=3))


def _line(axes: Axes, a: tuple[float, float], b: tuple[float, float], colour: str, width: float = 1.1) -> None:
    axes.plot([a[0], b[0]], [a[1], b[1]], color=colour, linewidth=width, zorder=1, solid_capstyle="butt")


def _badge(axes: Axes, at: tuple[float, float], marks: Sequence[int]) -> None:
    """The numbers of the marks, in a filled pill that colour alone need not tell."""
    text = ",".join(str(n) for n in marks[:3]) + ("…" if len(marks) > 3 else "")
    box: dict[str, Any] = {"boxstyle": "round,pad=0.25", "facecolor": ALARM, "edgecolor": PAPER, "linewidth": 1.0}
    axes.text(
        *at, text.replace("…", ".."), ha="center", va="center", fontsize=7, fontweight="bold", color=PAPER, bbox=box, zorder=6
    )  # fmt: skip


def _arcs(axes: Axes, nvlinks: Sequence[tuple[str, str, int]], spots: dict[str, _Spot], top: float) -> None:
    """Pairs joined by NVLink, thicker with more links; numbers stand beside few arcs only."""
    from matplotlib.patches import Arc  # noqa: PLC0415 - loaded only where something is drawn

    placed = [(spots[a].x, spots[b].x, n) for a, b, n in nvlinks if a in spots and b in spots]
    longest = max((abs(a - b) for a, b, _ in placed), default=1.0)
    for a, b, links in placed:
        reach = abs(a - b)
        rise = 0.22 + 0.55 * reach / longest
        width = 1.0 + 0.45 * min(links, 6)
        axes.add_patch(Arc(((a + b) / 2, top), reach, 2 * rise, theta1=0, theta2=180, color=FIRST, linewidth=width))
        if len(placed) <= 6:
            box: dict[str, Any] = {
                "boxstyle": "round,pad=0.12",
                "facecolor": PAPER,
                "edgecolor": GRID,
                "linewidth": 0.5,
            }
            axes.text((a + b) / 2, top + rise, f"NV{links}", ha="center", va="center", fontsize=7, color=INK, bbox=box)


def _title(node: NodeMap) -> str:
    gpus = sum(d.kind == "gpu" for d in node.devices)
    return f"a node with {gpus} GPUs and {len(node.devices) - gpus} NICs, as {node.paths[0]} describes it"


def _description(node: NodeMap) -> str:
    """The drawing in words, for those who do not see it."""
    told = [f"{node.switch}." if node.switch else ""]
    if node.nvlinks:
        told.append("NVLink: " + ", ".join(f"{a} to {b} {n} links" for a, b, n in node.nvlinks[:40]) + ".")
    for domain in node.domains:
        groups = (
            (f"{g.label} with " if g.label else "") + " and ".join(d.label for d in g.devices) for g in domain.groups
        )
        told.append(f"{domain.label}: {'; '.join(groups)}.")
    told += [f"Marked {number}: {_words(mark)}." for number, mark in enumerate(node.marks, 1)]
    return " ".join(part for part in told if part)


def _words(mark: Mark) -> str:
    return mark.text if mark.finding is None else f"{mark.text} (finding {mark.finding})"
