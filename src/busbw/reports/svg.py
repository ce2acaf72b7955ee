"""Drawings by matplotlib as SVG fragments to stand inside an HTML page: its colours, its fonts, no outside names.

Colours are the page's own (CSS variables), so one drawing serves light and dark. Same data in, same bytes out.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from busbw.reports.excerpts import visible
from busbw.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ALARM", "BAND", "FIRST", "GOOD", "GRID", "HEAT_NONE", "HEAT_STEPS", "INK", "MARK", "MUTED", "PAPER", "RAISED", "SECOND", "drawing", "heat_colour", "label_decades", "label_sizes", "printable", "standalone", "to_svg"]  # fmt: skip

HEAT_STEPS = 8
"""Shades of a pair matrix, `--heat-0` (as it should be) to `--heat-7` (worst)."""

# Stand-ins for the page's colours: values no other part of a drawing uses, replaced once the SVG is written.
INK, MUTED, GRID, BAND, FIRST, SECOND, ALARM, PAPER, RAISED, MARK, GOOD = (f"#0102{n:02x}" for n in range(11))
HEAT_NONE = "#0103ff"
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    BAND: "--band",
    FIRST: "--first",
    SECOND: "--second",
    ALARM: "--alarm",
    PAPER: "--paper",
    RAISED: "--raised",
    MARK: "--mark",
    GOOD: "--good",
    **{f"#0103{n:02x}": f"--heat-{n}" for n in range(HEAT_STEPS)},
    HEAT_NONE: "--heat-none",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "busbw",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


def heat_colour(step: int | None) -> str:
    """The stand-in for a shade; None: not measured, or not to be judged."""
    return HEAT_NONE if step is None else f"#0103{step:02x}"


def printable(text: str, most: int = 14) -> str:
    """A name as a label: what the drawing font cannot show becomes `?`, long names lose their beginning."""
    shown = visible(text).encode("ascii", "replace").decode()
    return shown if len(shown) <= most else "..." + shown[3 - most :]


@contextlib.contextmanager
def drawing(width_inches: float, height_inches: float, *, bare: bool = False) -> Iterator[tuple[Figure, Axes]]:
    """A figure and its axes in this module's style, without a window and without state outside the block.

    bare: axes without frame, whose units are inches from the lower left corner.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its notes about font caches are not for the user
    import matplotlib as mpl  # noqa: PLC0415 - half a second, needed only where something is drawn
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width_inches, height_inches), layout=None if bare else "tight")
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1)) if bare else figure.add_subplot()
        axes.patch.set_visible(False)
        if bare:
            axes.set_axis_off()
            axes.set_xlim(0, width_inches)
            axes.set_ylim(0, height_inches)
        yield figure, axes


def to_svg(figure: Figure, prefix: str, title: str, description: str = "") -> str:
    """The figure as an <svg> element with a title and a description for those who do not see it.

    Own ids, no prologue, no metadata, no outside names. Its natural width stands in `style`, so that a page can scroll
    it where it would become too small to read.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style[^<]*</style>\s*</defs>\s*", "", svg)  # two properties, which the page's sheet sets
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^<>]*>", lambda tag: _own(tag[0], prefix), svg)
    width = re.search(r'width="([\d.]+)pt"', svg)
    svg = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", svg, count=2)
    pixels = float(width[1]) * 4 / 3 if width else 0.0
    shown = f"width:{pixels:.0f}px;min-width:{SMALLEST * pixels:.0f}px"
    described = f'<desc id="{prefix}-desc">{_attribute(description)}</desc>' if description else ""
    named = f"{prefix}-title {prefix}-desc" if description else f"{prefix}-title"
    head = f'<svg role="img" aria-labelledby="{named}" style="{shown}"'
    svg = re.sub(r"<svg\b", head, svg, count=1)
    end = svg.index(">") + 1
    return f'{svg[:end]}<title id="{prefix}-title">{_attribute(title)}</title>{described}{svg[end:]}'.strip()


SMALLEST = 0.8
"""How far a drawing shrinks on a narrow page before it scrolls: text of 9 pt is then as large as one of 7 pt."""


def standalone(fragment: str) -> str:
    """A drawing of `to_svg` as a file of its own: the page's light colours, on white.

    Viewers beside browsers know no CSS variables, so none is left.
    """
    sheet = files("busbw.reports").joinpath("report.css").read_text("utf-8").split("@media", 1)[0]
    colours = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", sheet))
    drawn = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], fragment)
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', drawn)
    if box is None:
        raise ValueError("a drawing without a view box")
    drawn = re.sub(r'\sstyle="width:[^"]*"', f' width="{box[1]}pt" height="{box[2]}pt"', drawn, count=1)
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    end = drawn.index("</desc>") + len("</desc>") if "</desc>" in drawn else drawn.index("</title>") + len("</title>")
    return f'{drawn[:end]}<rect width="100%" height="100%" fill="{colours["--paper"]}"/>{drawn[end:]}\n'


def label_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """About six ticks at powers of two, in KiB, MiB, GiB."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415 - loaded only where something is drawn

    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, math.ceil((last - first) / 6))
    ticks = [2**k for k in range(last, first - 1, -step)][::-1]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def label_decades(axes: Axes) -> None:
    """Plain numbers, about six to ten whatever the range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415 - loaded only where something is drawn

    low, high = axes.get_ylim()
    if high / low < 4:
        low, high = low / 1.5, high * 1.5
        axes.set_ylim(low, high)
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _own(tag: str, prefix: str) -> str:
    """A tag of the drawing, never its text: outside names gone, ids and colours those of the page."""
    tag = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", tag)
    tag = tag.replace("xlink:href=", "href=").replace("'DejaVu Sans'", "system-ui, sans-serif")
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", tag)
    return re.sub(r"#010[23][0-9a-f]{2}", lambda m: f"var({_VARIABLES[m[0]]})" if m[0] in _VARIABLES else m[0], tag)


def _attribute(text: str) -> str:
    shown = visible(text)
    return shown.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
