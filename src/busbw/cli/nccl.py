"""`busbw nccl`: what NCCL itself would do on a cluster, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, note, print_json

if TYPE_CHECKING:
    from busbw.nccl import Call, ChannelGraph, Choice, Communicator, Function

__all__ = ["nccl"]

SCHEMA = 1
"""Number of the JSON shape of `busbw nccl explain-choice --json`."""
MICROSECOND = 1e-6
GIGA = 1e9
WRONG_USE = 2

nccl = typer.Typer(help="What NCCL itself would do on a cluster, and why.", no_args_is_help=True, rich_markup_mode=None)


@nccl.callback()
def _nccl() -> None:
    """What NCCL itself would do on a cluster, and why."""


@nccl.command("explain-choice")
def explain_choice(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str, typer.Argument(metavar="COLLECTIVE", help="all-reduce, all-gather, reduce-scatter, broadcast, reduce.")
    ],
    cluster: Annotated[
        str,
        typer.Option("--cluster", metavar="FILE|NAME", help="Topology file of NCCL, or a node of `busbw hardware`."),
    ],
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Number of nodes.")] = 1,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Size as nccl-tests prints it, such as 8M; may be repeated. 1K 1M 1G if none.",
        ),
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of NCCL; may be repeated.")
    ] = None,
    datatype: Annotated[str, typer.Option("--datatype", metavar="TYPE", help="Such as bfloat16.")] = "float32",
    operation: Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, max, min, avg.")] = "sum",
    version: Annotated[
        str | None, typer.Option("--nccl-version", metavar="VERSION", help="2.30.7 if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show NCCL's cost table for a collective, what switched cells off, and what it chooses.

    The choice is NCCL's own: channel search, model and rules were compared with what its code prints. The times are its
    estimates, which rank algorithms; they are no prediction. Everything else than --env is taken as NCCL's default.

    \b
    Examples:
      busbw nccl explain-choice all-reduce --cluster dgx-h100 --nodes 4 --bytes 8M
      busbw nccl explain-choice all-gather --cluster topo.xml --nodes 2 --env NCCL_PROTO=^LL128
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.nccl import DEFAULT_VERSION, Call, communicator, named_topology, read_settings  # noqa: PLC0415 - loads numpy

    settings = read_settings(_variables(variables or []))
    function, call = _function(collective), Call(datatype, operation)
    sizes_bytes = _sizes(sizes or ["1K", "1M", "1G"])
    topology, nodes_seen, notes = named_topology(cluster, nodes, settings)
    model = communicator(topology, nodes_seen, settings, version or DEFAULT_VERSION)
    for line in (*notes, *settings.notes, *_unverified(model)):
        note(line)
    chosen = model.choices(function, sizes_bytes, call)
    choices = [chosen[place] for place in range(len(chosen))]
    if as_json:
        print_json(_as_json(model, function, call, choices, [*notes, *settings.notes]))
    else:
        _print(model, function, call, choices)


def _variables(given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--env {pair}: write NAME=VALUE, such as --env NCCL_ALGO=Ring.")
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(f"--env {name} is given twice, as {found[name]} and {value}.")
    return found


def _function(collective: str) -> Function:
    import difflib  # noqa: PLC0415

    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.nccl import function_of  # noqa: PLC0415

    known = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"]
    named = collective_named(collective)
    function = function_of(named) if named else None
    if function is None:
        nearest = difflib.get_close_matches(collective.lower(), known, 1, 0.0)[0]
        why = (
            "is made of sends, for which NCCL chooses no algorithm."
            if named
            else f"is no collective; nearest: {nearest}."
        )
        raise typer.BadParameter(f"{collective} {why} NCCL chooses for {', '.join(known)}.")
    return function


def _sizes(texts: Iterable[str]) -> list[int]:
    from busbw.units import parse_size  # noqa: PLC0415

    try:
        return [parse_size(word) for text in texts for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--bytes: {error}.") from None


def _unverified(model: Communicator) -> list[str]:
    constants = model.constants
    return [] if constants.verified else [f"NCCL {constants.version} is unverified: {constants.how}."]


def _print(model: Communicator, function: Function, call: Call, choices: list[Choice]) -> None:
    from busbw.nccl import Algorithm, Protocol  # noqa: PLC0415
    from busbw.units import format_bytes  # noqa: PLC0415

    page, inputs = Page(), model.inputs
    page.line(
        (function.name, "bold"),
        f"  {inputs.nodes} x {model.gpus_per_node} GPUs = {inputs.ranks} ranks, NCCL {model.constants.version}",
    )
    page.line()
    page.table(
        [
            ("search", False),
            ("channels", True),
            ("GB/s inside", True),
            ("between", True),
            ("GPU-GPU", False),
            ("GPU-NIC", False),
            ("pattern", False),
        ],
        [_graph_row(name, graph) for name, graph in _graphs(model)],
    )
    page.line(f"channels of the communicator: {inputs.channels}, of NVLS: {inputs.nvls_channels or '-'}")
    page.line()
    off = model.why_off(function, call)
    times = model.times_us(function, [choice.size_bytes for choice in choices], call)
    table = model.table
    rows = []
    for algorithm in Algorithm:
        for protocol in Protocol:
            if (function, algorithm, protocol) in table.meaningless:
                continue
            causes = off.get((algorithm, protocol), ())
            cells = ["-"] * (2 + len(choices))
            if not causes:
                cells[0] = f"{table.latency_us[function, algorithm, protocol]:.1f}"
                cells[1] = f"{table.gb_per_s[function, algorithm, protocol]:.1f}"
                for place, choice in enumerate(choices):
                    mark = "* " if (choice.algorithm, choice.protocol) == (algorithm, protocol) else ""
                    cells[2 + place] = f"{mark}{times[place, algorithm, protocol]:.1f}"
            rows.append([algorithm.name, protocol.name, *cells, "; ".join(causes)])
    columns = [("algorithm", False), ("protocol", False), ("latency us", True), ("GB/s", True)]
    columns += [(f"{format_bytes(choice.size_bytes)} us", True) for choice in choices]
    page.table([*columns, ("off because", False)], rows)
    page.line()
    for choice in choices:
        page.line(
            (f"{format_bytes(choice.size_bytes)}: {choice.algorithm.name} {choice.protocol.name}", "bold"),
            f", {choice.channels} channels, {choice.warps} warps, NCCL's estimate {choice.time_us:.1f} us",
        )


def _graphs(model: Communicator) -> list[tuple[str, ChannelGraph]]:
    inputs = model.inputs
    return [("ring", inputs.ring), ("tree", inputs.tree), ("NVLS", inputs.nvls_graph)]


def _graph_row(name: str, graph: ChannelGraph) -> list[str]:
    if not graph.channels:
        return [name, "-", "-", "-", "-", "-", "-"]
    pattern = graph.pattern.name.lower().replace("_", " ")
    rates = [f"{graph.intra_gb_per_s:.4g}", f"{graph.inter_gb_per_s:.4g}"]
    return [name, str(graph.channels), *rates, graph.type_intra.name, graph.type_inter.name, pattern]


def _as_json(
    model: Communicator, function: Function, call: Call, choices: list[Choice], notes: list[str]
) -> dict[str, Any]:
    from busbw.nccl import Algorithm, Protocol  # noqa: PLC0415

    inputs, table = model.inputs, model.table
    off = model.why_off(function, call)
    times = model.times_us(function, [choice.size_bytes for choice in choices], call)
    cells = []
    for algorithm in Algorithm:
        for protocol in Protocol:
            if (function, algorithm, protocol) in table.meaningless:
                continue
            causes = list(off.get((algorithm, protocol), ()))
            cells.append(
                {
                    "algorithm": algorithm.name,
                    "protocol": protocol.name,
                    "latency_s": None
                    if causes
                    else float(table.latency_us[function, algorithm, protocol]) * MICROSECOND,
                    "algbw_bytes_per_s": None
                    if causes
                    else float(table.gb_per_s[function, algorithm, protocol]) * GIGA,
                    "max_threads": int(table.max_threads[algorithm, protocol]),
                    "estimate_s": None if causes else [float(row[algorithm, protocol]) * MICROSECOND for row in times],
                    "off_because": causes,
                }
            )
    return {
        "schema": SCHEMA,
        "nccl_version": model.constants.version,
        "verified": model.constants.verified,
        "function": function.name,
        "datatype": call.datatype,
        "operation": call.operation,
        "nodes": inputs.nodes,
        "ranks": inputs.ranks,
        "channels": inputs.channels,
        "nvls_channels": inputs.nvls_channels,
        "graphs": {name.lower(): _graph_json(graph) for name, graph in _graphs(model)},
        "size_bytes": [choice.size_bytes for choice in choices],
        "cells": cells,
        "choices": [
            {
                "size_bytes": choice.size_bytes,
                "algorithm": choice.algorithm.name,
                "protocol": choice.protocol.name,
                "channels": choice.channels,
                "warps": choice.warps,
                "estimate_s": choice.time_us * MICROSECOND,
            }
            for choice in choices
        ],
        "notes": notes,
    }


def _graph_json(graph: ChannelGraph) -> dict[str, Any]:
    return {
        "pattern": int(graph.pattern),
        "cross_nic": graph.cross_nic,
        "channels": graph.channels,
        "intra_bytes_per_s": graph.intra_gb_per_s * GIGA,
        "inter_bytes_per_s": graph.inter_gb_per_s * GIGA,
        "type_intra": graph.type_intra.name,
        "type_inter": graph.type_inter.name,
        "same_channels": bool(graph.same_channels),
        "latency_inter_s": graph.latency_inter_us * MICROSECOND,
        "gpus": [list(channel) for channel in graph.gpus],
        "nets": [list(pair) for pair in graph.nets],
    }
