"""`busbw predict`: what a collective costs on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.predictions import (
    CalibrationFile,
    Changes,
    Sizes,
    Variables,
    Version,
    collective_of,
    head_of,
    pairs_of,
    rate,
    row_json,
    sizes_of,
    time_us,
    write_plot,
)

if TYPE_CHECKING:
    from busbw.prediction import Predictions

__all__ = ["predict"]

SCHEMA = 1
"""Number of the JSON shape of `busbw predict --json`."""


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
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", help="Number of nodes (hosts); what the file says, or 1, if not given."),
    ] = None,
    sizes: Sizes = None,
    variables: Variables = None,
    what_if: Changes = None,
    version: Version = None,
    calibration: CalibrationFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", parser=given_path, metavar="FILE.svg", help="Draw bus bandwidth over size, with its interval."
        ),
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

    settings = read_settings(pairs_of("--env", variables or [], "NCCL_ALGO=Ring"))
    name, sizes_bytes = collective_of(collective), sizes_of(sizes or ["8:16GiB:2"])
    if nodes is not None and nodes < 1:
        raise typer.BadParameter(f"--nodes {nodes}: a cluster has at least one node.")
    found, losses = find_cluster(cluster, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    given = read_calibration(given_path(calibration)) if calibration is not None else None
    result = predicted(
        found, name, sizes_bytes, settings=settings, version=version or DEFAULT_VERSION, calibration=given
    )
    for line in (*map(str, losses), *result.notes):
        note(line)
    if plot is not None:
        write_plot(
            plot, result, (), f"{name.replace('_', '-')}, {found.nodes} x {found.name}, {result.where.ranks} ranks"
        )
    if as_json:
        print_json(_as_json(result, found.name, found.nodes))
    else:
        _print(result, found.name, found.nodes)


def _print(result: Predictions, cluster: str, nodes: int) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    page.line(*head_of(result, cluster, nodes))
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
                *(time_us(float(column[place])) for column in (result.time_s, result.low_s, result.high_s)),
                *(rate(float(column[place])) for column in (result.algbw_bytes_per_s, result.busbw_bytes_per_s)),
                result.algorithm[place],
                result.protocol[place],
                str(result.channels[place] or "-"),
                result.limit(place),
            ]
            for place in range(len(result.size_bytes))
        ),
    )


def _as_json(result: Predictions, cluster: str, nodes: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "collective": result.collective,
        "cluster": cluster,
        "nodes": nodes,
        "ranks": result.where.ranks,
        "rows": [row_json(result, place) for place in range(len(result.size_bytes))],
        "notes": list(result.notes),
    }
