"""`busbw compare` and `busbw history`: what changed between two runs, and over months of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.sax.saxutils import quoteattr

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.measuring import Cell, Comparison, Difference, Event, History, Results

__all__ = ["compare", "history"]

SCHEMA = 1
"""Number of the JSON shapes of both verbs."""
_SHOWN = 6
"""Settings that differ, and cells that one side lacks, listed before "and so many more"."""


def compare(  # noqa: PLR0917 - an option each
    a: Annotated[str, typer.Argument(metavar="A", help="What it was: a file, a folder, or a store.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is now.")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SHARE", min=0.0, max=0.99, help="Smaller changes of time are none.")
    ] = 0.02,
    everything: Annotated[bool, typer.Option("--all", help="Show every size, not only what changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", parser=given_path, metavar="FILE", help="Write JUnit XML, a test a size, for CI."),
    ] = None,
) -> None:
    """Compare two runs of benchmarks, size by size, with error control over all of them.

    Each side is whatever `busbw read` reads, or a store of several runs. A size is slower or faster if that is certain (Student's t
    of the logarithms of time, false discoveries of 5 % over all sizes) and more than --tolerance. Noise comes from repeated
    measurements where there are some, else from how rough the ratio is from size to size; then a shift of all sizes together may be
    what any two runs differ by, and repeating both sides tells.
    Also listed is what else differs: versions, settings, hosts. Exit status 1 if a size is slower, 2 if nothing can be compared.

    \b
    Examples:
      busbw compare before.log after.log
      busbw compare nccl-2.27/ nccl-2.28/ --junit result.xml
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.measuring import compare as compared  # noqa: PLC0415 - loads scipy
    from busbw.measuring import merged  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="busbw-") as spool:
        sides = [merged(_read(path, Path(spool)), path) for path in (a, b)]
    result = compared(*sides, tolerance=tolerance)
    if not result.differences:
        raise InputError(_nothing_shared(sides))
    if junit is not None:
        junit.write_text(_junit(result), encoding="utf-8")
        note(f"JUnit XML: {junit}")
    if as_json:
        print_json(_comparison_json(result, a, b))
    else:
        _print_comparison(result, everything)
    raise typer.Exit(1 if result.slower else 0)


def history(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="A store, or files and folders: one run each, in this order.")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", parser=given_path, metavar="FILE.svg", help="Draw times over the runs, with the changes."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find when a level of performance changed over many runs, and what else changed then.

    Change points of each size's time and of all sizes of a collective pooled, with false discoveries of 5 % over all tests; a level
    lasts at least three runs. Beside each change stand the versions, settings and hosts that are different from the run before.
    Runs of a store are ordered by when they were put there. Exit status 1 if the last change made something slower.

    \b
    Examples:
      busbw history lab
      busbw history nightly/2026-*.log --plot history.svg
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.measuring import history as found  # noqa: PLC0415 - loads scipy

    with tempfile.TemporaryDirectory(prefix="busbw-") as spool:
        runs = [run for path in paths for run in _read(path, Path(spool)) if run.times_s]
    if len(runs) < 2:
        raise InputError(
            f"{' '.join(paths)}: {len(runs)} run with a benchmark's table; a history needs several. Add each to a store (busbw read PATH --store DIR), or name them all."
        )
    result = found(runs)
    if plot is not None:
        from busbw.reports import history_svg, standalone  # noqa: PLC0415 - loads matplotlib

        plot.write_text(standalone(history_svg(result)), encoding="utf-8")
        note(f"plot: {plot}")
    if as_json:
        print_json(_history_json(result))
    else:
        _print_history(result)
    raise typer.Exit(1 if result.slower_now else 0)


def _read(path: str, spool: Path) -> list[Results]:
    from busbw.measuring import results_of  # noqa: PLC0415 - loads every reader

    runs, losses = results_of(path, spool)
    for loss in losses:
        note(str(loss))
    return runs


def _nothing_shared(sides: Sequence[Results]) -> str:
    told = []
    for side in sides:
        kinds = sorted({_kind(cell) for cell in side.times_s})
        what = f"{len(side.times_s)} sizes of {', '.join(kinds[:4])}" if kinds else "no table of a benchmark"
        told.append(f"{side.name}: {what}.")
    return " ".join(told) + " Nothing that both measured: same tool, collective, type, ranks and sizes are compared."


def _kind(cell: Cell) -> str:
    """What was measured, but for its size."""
    words = [cell.collective or cell.tool or "?"]
    words += [word for word in (cell.dtype, cell.redop, cell.algorithm, cell.variant) if word and word != "none"]
    if cell.ranks is not None:
        words.append(f"{cell.ranks} ranks")
    if cell.nodes is not None and cell.nodes > 1:
        words.append(f"{cell.nodes} nodes")
    if cell.in_place:
        words.append("in place")
    return " ".join(words)


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _print_comparison(result: Comparison, everything: bool) -> None:
    from busbw.units import format_bytes, format_time_ns  # noqa: PLC0415

    page = Page()
    counts = {word: sum(d.verdict == word for d in result.differences) for word in ("slower", "faster", "same")}
    page.line(
        (f"{counts['slower']} slower", "bold red" if counts["slower"] else "bold"),
        f", {counts['faster']} faster, {counts['same']} the same, of {len(result.differences)} sizes that both measured",
    )
    shown = [d for d in result.differences if everything or d.verdict != "same"]
    if shown:
        page.line()
        columns = [
            ("what", False), ("size", True), ("A", True), ("B", True), ("time", True), ("95 % interval", True), ("runs", True), ("", False),
        ]  # fmt: skip
        page.table(
            columns,
            [
                [
                    _kind(d.cell), format_bytes(d.cell.size_bytes), format_time_ns(d.a_s * 1e9), format_time_ns(d.b_s * 1e9),
                    _percent(d.ratio), f"{_percent(d.low)} .. {_percent(d.high)}", f"{d.samples[0]}, {d.samples[1]}", d.verdict,
                ]
                for d in shown
            ],
        )  # fmt: skip
    if result.said:
        page.line()
        page.line(("also different", "bold"))
        for name, (before, now) in list(result.said.items())[:_SHOWN]:
            page.prose(f"{name}: {_values(before)} -> {_values(now)}", "    ", first="  - ")
        if len(result.said) > _SHOWN:
            page.line(f"  and {len(result.said) - _SHOWN} more (--json has all)")
    page.line()
    source = (
        "repeated measurements"
        if result.repeated
        else "the roughness of the ratio over sizes; repeat both sides to be sure of small shifts"
    )
    page.prose(f"noise of one measurement: {result.noise * 100:.1f} %, from {source}.")
    for name, cells in (("A", result.only_a), ("B", result.only_b)):
        if cells:
            note(f"only in {name}: {len(cells)} sizes of {', '.join(sorted({_kind(cell) for cell in cells})[:_SHOWN])}")


def _values(values: frozenset[str]) -> str:
    return ", ".join(sorted(values)) or "not said"


def _cell_json(cell: Cell) -> dict[str, Any]:
    return dict(cell._asdict())


def _difference_json(d: Difference) -> dict[str, Any]:
    return {
        **_cell_json(d.cell), "a_s": d.a_s, "b_s": d.b_s, "samples": list(d.samples), "ratio": d.ratio, "low": d.low, "high": d.high,
        "q_value": d.q_value, "verdict": d.verdict,
    }  # fmt: skip


def _comparison_json(result: Comparison, a: str, b: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "a": a,
        "b": b,
        "slower": len(result.slower),
        "noise": result.noise,
        "repeated": result.repeated,
        "rows": [_difference_json(d) for d in result.differences],
        "only_a": [_cell_json(cell) for cell in result.only_a],
        "only_b": [_cell_json(cell) for cell in result.only_b],
        "said": {name: {"a": sorted(before), "b": sorted(now)} for name, (before, now) in result.said.items()},
    }


def _junit(result: Comparison) -> str:
    """A test a size; a slower one failed. The shape is what Jenkins, GitLab and GitHub's actions read: testsuite, testcase, failure."""
    from busbw.units import format_bytes  # noqa: PLC0415

    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="busbw compare" tests="{len(result.differences)}" failures="{len(result.slower)}" errors="0" skipped="0">',
    ]
    for d in result.differences:
        head = f"<testcase classname={quoteattr(_kind(d.cell))} name={quoteattr(format_bytes(d.cell.size_bytes))}"
        head += f' time="{d.b_s:.9f}"'
        if d.verdict == "slower":
            told = f"time {_percent(d.ratio)} (95 % interval {_percent(d.low)} .. {_percent(d.high)})"
            lines.append(f"  {head}><failure message={quoteattr(told)}/></testcase>")
        else:
            lines.append(f"  {head}/>")
    return "\n".join([*lines, "</testsuite>", ""])


def _print_history(result: History) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    page.line(
        (f"{len(result.events)} change{'s' if len(result.events) != 1 else ''}", "bold"),
        f" over {len(result.runs)} runs, {len(result.series)} sizes followed",
    )
    for event in result.events:
        run = result.runs[event.run]
        sizes = sorted(cell.size_bytes for cell, _ in event.cells)
        span = format_bytes(sizes[0]) + (f" to {format_bytes(sizes[-1])}" if len(sizes) > 1 else "")
        page.line()
        page.line(
            (f"{_percent(event.ratio)} time", "bold red" if event.ratio > 1 else "bold green"),
            f"  {_kind(event.family)}, {span} ({len(sizes)} of {event.measured} sizes)",
        )
        page.prose(f"from run {event.run + 1}{_when(run)}: {run.name}", "    ", first="  ")
        if event.low != event.high:
            page.prose(
                f"between runs {event.low + 1} and {event.high + 1} with a probability of 0.9", "    ", first="  "
            )
        for what in event.coincides[:_SHOWN]:
            page.prose(f"with it changed: {what}", "    ", first="  ")
        if len(event.coincides) > _SHOWN:
            page.line(f"  and {len(event.coincides) - _SHOWN} more changes (--json has all)")


def _when(run: Results) -> str:
    if run.created_ns is None:
        return ""
    return f", kept {datetime.fromtimestamp(run.created_ns / 1e9, UTC).strftime('%Y-%m-%d %H:%M')} UTC"


def _history_json(result: History) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "runs": [{"name": run.name, "run": run.run, "created_ns": run.created_ns} for run in result.runs],
        "series": len(result.series),
        "changes": [_event_json(event) for event in result.events],
        "slower_now": len(result.slower_now),
    }


def _event_json(event: Event) -> dict[str, Any]:
    return {
        **{name: value for name, value in _cell_json(event.family).items() if name != "size_bytes"},
        "run": event.run,
        "low": event.low,
        "high": event.high,
        "ratio": event.ratio,
        "measured": event.measured,
        "sizes": [{"size_bytes": cell.size_bytes, "ratio": ratio} for cell, ratio in event.cells],
        "coincides": list(event.coincides),
    }
