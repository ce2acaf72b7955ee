"""`busbw simulate packets`: incasts, permutations and all-to-alls through queues."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, note, print_json
from busbw.cli.predictions import pairs_of, sizes_of, time_us

if TYPE_CHECKING:
    from busbw.hardware import Cluster
    from busbw.simulation import PacketFlows, PacketTimeline

__all__ = ["packets"]

SCHEMA = 1
"""Number of the JSON shape of `busbw simulate packets --json`."""
PATTERNS = ("incast", "permutation", "shift", "all-to-all")
_LINKS_SHOWN = 5
_MOST_FLOWS = 10_000_000
"""Of all-to-all: a guess at what memory holds; a flow's columns and routes take some hundred bytes."""
_QUANTILES = {"first_s": 0.0, "median_s": 0.5, "p99_s": 0.99, "last_s": 1.0}


def packets(  # noqa: PLR0917 - an option each
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Who sends to whom: incast, permutation, shift or all-to-all.")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", metavar="NAME|FILE", help="A node of `busbw hardware`, or a file that describes one."
        ),
    ],
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", min=1, help="Number of nodes (hosts); what the file says, or 1, if not given."
        ),
    ] = None,
    per_node: Annotated[
        int, typer.Option("--per-node", metavar="N", min=1, help="GPUs of each node that take part.")
    ] = 1,
    sizes: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="What each flow sends.")] = "2MiB",
    transport: Annotated[
        str,
        typer.Option("--transport", metavar="HOW", help="ndp, eqds, roce, dcqcn, hpcc, swift or infiniband."),
    ] = "roce",
    routing: Annotated[
        str, typer.Option("--routing", metavar="HOW", help="d-mod-k, ecmp, spray, random or adaptive.")
    ] = "ecmp",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Runs with seeds 0 to N - 1.")] = 1,
    setting: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="NAME=VALUE", help="A figure of the transport, such as queue_packets=50."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="S", help="Seconds after which what is known is shown.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Show what is known of a network that stands still.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """Simulate packets through queues: when flows end, and which links drop, trim, mark, pause or queue most.

    For what flows cannot answer: incast, a victim behind a paused link, hashes that collide, credit that runs out.

    \b
    Examples:
      busbw simulate packets incast --cluster dgx-h100 --nodes 32 --transport dcqcn
      busbw simulate packets permutation --cluster dgx-h100 --nodes 64 --per-node 8 --routing ecmp --seeds 5
      busbw simulate packets permutation --cluster dgx-h100 --nodes 64 --transport ndp --routing spray
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.simulation import simulate_packets  # noqa: PLC0415 - loads the compiled simulator

    found, losses = find_cluster(cluster, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for line in map(str, losses):
        note(line)
    if time_limit is not None and not time_limit > 0:
        raise typer.BadParameter(f"--time-limit {time_limit:g}: write seconds above 0.")
    settings = _settings(transport, setting or [])
    size_bytes = _one_size(sizes)
    runs = [
        simulate_packets(
            _flows(pattern, found, per_node, size_bytes, seed),
            found,
            transport=settings,
            routing=routing,
            seed=seed,
            most_s=time_limit,
            partial=partial,
        )
        for seed in range(seeds)
    ]
    for run in runs:
        if run.ended != "done":
            note(f"{run.ended} at {run.now_s * 1e6:.1f} us; what follows is what is known")
    rows = [_row(seed, run) for seed, run in enumerate(runs)]
    links = _links(found, runs[0])
    if as_json:
        head = {
            "schema": SCHEMA,
            "pattern": pattern,
            "cluster": found.name,
            "nodes": found.nodes,
            "transport": transport,
        }
        print_json({**head, "routing": routing, "size_bytes": size_bytes, "rows": rows, "links": links})
    else:
        _print(
            f"  {len(runs[0].flows)} flows, {transport}, {routing}, {found.nodes} x {found.name}", pattern, rows, links
        )
    return 0 if all(run.ended == "done" for run in runs) else 2


def _one_size(text: str) -> int:
    found = sizes_of([text])
    if len(found) != 1:
        raise typer.BadParameter(f"--bytes {text}: one size, such as 2MiB.")
    return found[0]


def _settings(transport: str, given: list[str]) -> Any:
    from busbw.simulation import packet_settings  # noqa: PLC0415

    defaults = packet_settings(transport)
    changes: dict[str, Any] = {}
    for name, text in pairs_of("--setting", given, "queue_packets=50").items():
        kind: Any = type(getattr(defaults, name, ""))
        try:
            changes[name] = text.lower() in ("1", "true", "yes") if kind is bool else kind(text)
        except ValueError:
            raise typer.BadParameter(f"--setting {name}={text}: {text} is no {kind.__name__}.") from None
    return packet_settings(transport, **changes)


def _flows(pattern: str, cluster: Cluster, per_node: int, size_bytes: int, seed: int) -> PacketFlows:
    import numpy as np  # noqa: PLC0415

    from busbw.simulation import PacketFlows  # noqa: PLC0415

    if pattern not in PATTERNS:
        nearest = difflib.get_close_matches(pattern, PATTERNS, 1, 0.0)[0]
        raise typer.BadParameter(f"{pattern} is no pattern; nearest: {nearest}. There is {', '.join(PATTERNS)}.")
    if per_node > cluster.node.gpus:
        raise typer.BadParameter(f"--per-node {per_node}: {cluster.name} has {cluster.node.gpus} GPUs a node.")
    gpus = (np.arange(cluster.nodes)[:, None] * cluster.node.gpus + np.arange(per_node)).reshape(-1)
    if len(gpus) < 2:
        raise typer.BadParameter("one GPU has nobody to send to: take more --nodes, or --per-node 2.")
    if pattern == "incast":
        return PacketFlows.of(gpus[1:], gpus[0], size_bytes)
    if pattern == "shift":
        return PacketFlows.of(gpus, np.roll(gpus, -per_node if cluster.nodes > 1 else -1), size_bytes)
    if pattern == "permutation":
        order = np.random.default_rng(seed).permutation(gpus)
        return PacketFlows.of(order, np.roll(order, 1), size_bytes)
    if len(gpus) * (len(gpus) - 1) > _MOST_FLOWS:
        raise typer.BadParameter(
            f"all-to-all between {len(gpus):,} GPUs is {len(gpus) * (len(gpus) - 1):,} flows; {_MOST_FLOWS:,} are taken. Take "
            "fewer --nodes or --per-node; `busbw simulate collective all-to-all` does without packets."
        )
    src, dst = (part.reshape(-1) for part in np.meshgrid(gpus, gpus, indexing="ij"))
    return PacketFlows.of(src[src != dst], dst[src != dst], size_bytes)


def _row(seed: int, run: PacketTimeline) -> dict[str, Any]:
    import numpy as np  # noqa: PLC0415

    ended = run.durations_s[np.isfinite(run.durations_s)]
    times = {name: float(np.quantile(ended, part)) if len(ended) else None for name, part in _QUANTILES.items()}
    counts = {name: int(run.link_counts[name].sum()) for name in ("dropped", "trimmed", "marked", "pauses")}
    resent = int(run.flow_counts["again_packets"].sum())
    return {"seed": seed, "ended": run.ended, "complete": len(ended), **times, **counts, "again_packets": resent}


def _links(cluster: Cluster, run: PacketTimeline) -> list[dict[str, Any]]:
    """The links that queued most, of the first run."""
    import numpy as np  # noqa: PLC0415

    counts = run.link_counts
    order = np.argsort(-counts["most_queued_bytes"], kind="stable")[:_LINKS_SHOWN]
    used = run.utilisation()
    return [
        {
            "link": cluster.link_name(int(run.link_ids[at])),
            "most_queued_bytes": int(counts["most_queued_bytes"][at]),
            "utilisation": float(used[at]),
            **{name: int(counts[name][at]) for name in ("dropped", "trimmed", "marked", "pauses")},
        }
        for at in order
    ]


def _print(where: str, pattern: str, rows: list[dict[str, Any]], links: list[dict[str, Any]]) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    page.line((pattern, "bold"), where)
    page.line()
    counts = ("dropped", "trimmed", "marked", "pauses")
    page.table(
        [(name, True) for name in ("seed", "first us", "median us", "p99 us", "last us", *counts, "sent again")],
        (
            [
                str(row["seed"]),
                *(time_us(row[name]) if row[name] is not None else "-" for name in _QUANTILES),
                *(str(row[name]) for name in (*counts, "again_packets")),
            ]
            for row in rows
        ),
    )
    page.line()
    page.line(("links that queued most", "bold"), "  of the first seed")
    page.table(
        [("queued", True), ("busy", True), *((name, True) for name in counts), ("link", False)],
        (
            [
                format_bytes(link["most_queued_bytes"]),
                f"{link['utilisation']:.0%}",
                *(str(link[name]) for name in counts),
                link["link"],
            ]
            for link in links
        ),
    )
