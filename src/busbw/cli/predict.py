"""`busbw predict`: what a collective costs on a cluster."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json

if TYPE_CHECKING:
    from busbw.prediction import Predictions

__all__ = ["predict"]

SCHEMA = 1
"""Number of the JSON shape of `busbw predict --json`."""
_MOST_SIZES = 10_000
_US, _GIGA = 1e6, 1e9


def predict(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str, typer.Argument(metavar="COLLECTIVE", help="all-reduce, all-gather, all-to-all, send-recv ...")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", metavar="NAME|FILE", help="A node of `busbw hardware`, or a file that describes one."
        ),
    ],
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Number of nodes (hosts).")] = 1,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--bytes", metavar="FROM:TO:FACTOR|SIZE", help="Sizes, as of nccl-tests; may be repeated."),
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of NCCL; may be repeated.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."
        ),
    ] = None,
    version: Annotated[str | None, typer.Option("--nccl", metavar="VERSION", help="2.30.7 if not given.")] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE", help="Made by `busbw calibrate`; the shipped one if none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Predict the time of a collective by size, with NCCL's choice and an interval.

    Times are those of nccl-tests on a healthy, quiet cluster; 80 % of measurements are expected between low and high.
    Times below 1 MiB vary most from site to site. The choice is NCCL's own where its topology is known.

    \b
    Examples:
      busbw predict all-reduce --cluster dgx-h100 --nodes 16
      busbw predict all-to-all --cluster gb200-nvl72 --nodes 36 --bytes 1MiB:8GiB:4
      busbw predict all-reduce --cluster dgx-h100 --nodes 4 --bytes 1GiB --set nic.rate=200Gb/s --env NCCL_ALGO=Ring
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.nccl import DEFAULT_VERSION, read_settings  # noqa: PLC0415 - loads numpy
    from busbw.prediction import predict as predicted  # noqa: PLC0415
    from busbw.prediction import read_calibration  # noqa: PLC0415

    settings = read_settings(_pairs("--env", variables or [], "NCCL_ALGO=Ring"))
    name, sizes_bytes = _collective(collective), _sizes(sizes or ["8:16GiB:2"])
    if nodes < 1:
        raise typer.BadParameter(f"--nodes {nodes}: a cluster has at least one node.")
    found, losses = find_cluster(cluster, nodes, _pairs("--set", what_if or [], "nic.rate=800Gb/s"))
    given = read_calibration(given_path(calibration)) if calibration is not None else None
    result = predicted(
        found, name, sizes_bytes, settings=settings, version=version or DEFAULT_VERSION, calibration=given
    )
    for line in (*map(str, losses), *result.notes):
        note(line)
    if as_json:
        print_json(_as_json(result, found.name, nodes))
    else:
        _print(result, found.name, nodes)


def _pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {pair}: write NAME=VALUE, such as {option} {example}.")
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(f"{option} {name} is given twice, as {found[name]} and {value}.")
    return found


def _collective(text: str) -> str:
    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.prediction import PREDICTED  # noqa: PLC0415

    named = collective_named(text)
    if named is None or named not in PREDICTED:
        known = [name.replace("_", "-") for name in PREDICTED]
        nearest = difflib.get_close_matches(text.lower().replace("_", "-"), known, 1, 0.0)[0]
        what = "has no time model" if named else "is no collective"
        raise typer.BadParameter(f"{text} {what}; nearest: {nearest}. Predicted are {', '.join(known)}.")
    return named


def _sizes(texts: Iterable[str]) -> list[int]:
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
        if len(bounds) > 3 or factor < 1.01 or first < 1 or last < first:
            raise typer.BadParameter(f"--bytes {word}: write FROM:TO:FACTOR with a factor above 1, such as 8:16GiB:2.")
        size = float(first)
        while size <= last and len(found) <= _MOST_SIZES:
            found.append(round(size))
            size *= factor
    if len(found) > _MOST_SIZES:
        raise typer.BadParameter(f"--bytes: more than {_MOST_SIZES} sizes. Take a larger factor.")
    return found


def _print(result: Predictions, cluster: str, nodes: int) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page, where = Page(), result.where
    page.line(
        (result.collective.replace("_", "-"), "bold"),
        f"  {nodes} x {cluster} = {where.ranks} ranks, {where.domains} NVLink domain{'s' if where.domains > 1 else ''}"
        if where.shape == "switch"
        else f"  {nodes} x {cluster} = {where.ranks} ranks",
    )
    page.line()
    columns = [
        ("size", True), ("time us", True), ("low", True), ("high", True), ("algbw GB/s", True), ("busbw GB/s", True),
        ("algorithm", False), ("protocol", False), ("channels", True), ("waits for", False),
    ]  # fmt: skip
    page.table(
        columns,
        (
            [
                format_bytes(int(result.size_bytes[place])),
                *(_three(float(column[place]) * _US) for column in (result.time_s, result.low_s, result.high_s)),
                *(
                    _three(float(column[place]) / _GIGA)
                    for column in (result.algbw_bytes_per_s, result.busbw_bytes_per_s)
                ),
                result.algorithm[place],
                result.protocol[place],
                str(result.channels[place] or "-"),
                result.limit(place),
            ]
            for place in range(len(result.size_bytes))
        ),
    )


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _as_json(result: Predictions, cluster: str, nodes: int) -> dict[str, Any]:
    found = result.parts
    rows = [
        {
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
        for place in range(len(result.size_bytes))
    ]
    return {
        "schema": SCHEMA,
        "collective": result.collective,
        "cluster": cluster,
        "nodes": nodes,
        "ranks": result.where.ranks,
        "rows": rows,
        "notes": list(result.notes),
    }
