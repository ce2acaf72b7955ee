"""What `predict` and `expected` share: words of their command lines, their rows as JSON, their plots."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import note

if TYPE_CHECKING:
    from busbw.prediction import Predictions
    from busbw.reports import MeasuredPoint

__all__ = [
    "CalibrationFile",
    "Changes",
    "Sizes",
    "Variables",
    "Version",
    "collective_of",
    "head_of",
    "pairs_of",
    "rate",
    "row_json",
    "sizes_of",
    "three",
    "time_us",
    "write_plot",
]

Sizes = Annotated[
    list[str] | None,
    typer.Option("--bytes", metavar="FROM:TO:FACTOR|SIZE", help="Sizes, as of nccl-tests; may be repeated."),
]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of NCCL; may be repeated.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."),
]
Version = Annotated[str | None, typer.Option("--nccl", metavar="VERSION", help="2.30.7 if not given.")]
CalibrationFile = Annotated[
    str | None,
    typer.Option("--calibration", metavar="FILE", help="Made by `busbw calibrate`; the shipped one if none."),
]

_MOST_SIZES = 10_000
_US, _GIGA = 1e6, 1e9


def pairs_of(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    """NAME=VALUE options as a mapping. Raises BadParameter for other words, and for a name given two values."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {pair}: write NAME=VALUE, such as {option} {example}.")
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(f"{option} {name} is given twice, as {found[name]} and {value}.")
    return found


def collective_of(text: str) -> str:
    """Our name of a collective that has a time model. Raises BadParameter with the nearest."""
    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.prediction import PREDICTED  # noqa: PLC0415

    named = collective_named(text)
    if named is None or named not in PREDICTED:
        known = [name.replace("_", "-") for name in PREDICTED]
        nearest = difflib.get_close_matches(text.lower().replace("_", "-"), known, 1, 0.0)[0]
        what = "has no time model" if named else "is no collective"
        raise typer.BadParameter(f"{text} {what}; nearest: {nearest}. Predicted are {', '.join(known)}.")
    return named


def sizes_of(texts: Iterable[str]) -> list[int]:
    """Sizes in bytes, as `--bytes` names them. Raises BadParameter."""
    from busbw.units import parse_size  # noqa: PLC0415

    found: list[int] = []
    for word in (word for text in texts for word in text.split(",")):
        bounds = word.split(":")
        try:
            if len(bounds) == 1:
                found.append(parse_size(word))
                continue
            first, last = parse_size(bounds[0]), parse_size(bounds[1])
            factor = float(bounds[2]) if len(bounds) > 2 else 2.0
        except ValueError as error:
            raise typer.BadParameter(f"--bytes {word}: {error}.") from None
        if last < first:
            raise typer.BadParameter(f"--bytes {word}: it begins above its end; write the smaller size first.")
        if len(bounds) > 3 or factor < 1.01 or first < 1:
            raise typer.BadParameter(f"--bytes {word}: write FROM:TO:FACTOR with a factor above 1, such as 8:16GiB:2.")
        size = float(first)
        while size <= last and len(found) <= _MOST_SIZES:
            found.append(round(size))
            size *= factor
    if len(found) > _MOST_SIZES:
        raise typer.BadParameter(f"--bytes: more than {_MOST_SIZES} sizes. Take a larger factor.")
    return found


def head_of(result: Predictions, cluster: str, nodes: int) -> tuple[tuple[str, str], str]:
    """The first line of a page: the collective in bold, and where it runs."""
    where = result.where
    domains = f", {where.domains} NVLink domain{'s' if where.domains > 1 else ''}" if where.shape == "switch" else ""
    return (result.collective.replace("_", "-"), "bold"), f"  {nodes} x {cluster} = {where.ranks} ranks{domains}"


def three(value: float) -> str:
    """A figure with three digits, all of those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def time_us(seconds: float) -> str:
    """Microseconds."""
    return three(seconds * _US)


def rate(bytes_per_s: float) -> str:
    """GB/s."""
    return three(bytes_per_s / _GIGA)


def row_json(result: Predictions, place: int) -> dict[str, Any]:
    """One size as JSON."""
    found = result.parts
    return {
        "size_bytes": int(result.size_bytes[place]),
        "time_s": float(result.time_s[place]),
        "low_s": float(result.low_s[place]),
        "high_s": float(result.high_s[place]),
        "algbw_bytes_per_s": float(result.algbw_bytes_per_s[place]),
        "busbw_bytes_per_s": float(result.busbw_bytes_per_s[place]),
        "algorithm": result.algorithm[place],
        "protocol": result.protocol[place],
        "channels": result.channels[place],
        "waits_for": result.limit(place),
        "parts": {
            "launch_s": float(found.launch_s[place]),
            "latency_s": float(found.latency_s[place]),
            "links_s": float(found.intra_s[place]),
            "nics_s": float(found.inter_s[place]),
            "fill_s": float(found.fill_s[place]),
        },
    }


def write_plot(path: Path, result: Predictions, measured: Sequence[MeasuredPoint], title: str) -> None:
    """Writes the curve as an SVG file and says so."""
    from busbw.reports import prediction_svg, standalone  # noqa: PLC0415 - takes a second

    path.write_text(standalone(prediction_svg(result, measured, title)), encoding="utf-8")
    note(f"plot: {path}")
