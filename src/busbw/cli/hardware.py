"""`busbw hardware`: the catalogue, where each of its figures comes from, and nodes and clusters drawn."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json

if TYPE_CHECKING:
    from busbw.hardware import Accelerator, Cluster, Nic, Node, NvSwitch, Switch
    from busbw.hardware.catalogue import AnyFigure

__all__ = ["hardware"]

SCHEMA = 1
"""Number of the JSON shape of `busbw hardware --json`."""


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A product, node or cluster: a name, or a file that describes one."),
    ] = None,
    *,
    nodes: Annotated[int | None, typer.Option(min=1, help="Show a cluster of that many nodes.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIGURE=VALUE", help="Set a figure anew; may be repeated.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(parser=given_path, metavar="FILE.svg", help="Draw the node or the fabric.")
    ] = None,
    nccl_topo: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE.xml", help="Write the node as NCCL topology XML."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List known hardware, or show one with its sources.

    Rates are one direction of one device. GB/s is 1e9 bytes per second, Gb/s 1e9 bits per second. A file may be a
    cluster in YAML, NCCL topology XML, hwloc XML or the output of nvidia-smi topo -m.

    \b
    Examples:
      busbw hardware
      busbw hardware "NVIDIA H100 80GB HBM3"
      busbw hardware dgx-h100
      busbw hardware gb300-nvl72 --nodes 1024 --set nic.rate=1600Gb/s
      busbw hardware dgx-a100 --draw a100.svg --nccl-topo a100.xml
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    chosen = _settings(settings or [])
    if name is None:
        if nodes or chosen or draw or nccl_topo:
            raise typer.BadParameter("name a node or a cluster to show, draw or write")
        _list(as_json)
    elif nodes or chosen or draw or nccl_topo or _is_file(name):
        _show_cluster(name, nodes, chosen, as_json=as_json, draw=draw, nccl_topo=nccl_topo)
    else:
        _show(name, as_json)


def _settings(given: list[str]) -> dict[str, str]:
    settings = {}
    for each in given:
        figure, equals, value = each.partition("=")
        if not equals or not figure.strip():
            raise typer.BadParameter(f"--set {each}: write FIGURE=VALUE, such as nic.rate=800Gb/s")
        settings[figure.strip()] = value.strip()
    return settings


def _is_file(name: str) -> bool:
    from busbw.hardware import find_node  # noqa: PLC0415 - reads the catalogue

    return find_node(name) is None and Path(name).is_file()


def _show_cluster(
    name: str, nodes: int | None, settings: dict[str, str], *, as_json: bool, draw: Path | None, nccl_topo: Path | None
) -> None:
    from busbw.errors import InputError  # noqa: PLC0415
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue

    cluster, losses = find_cluster(name, nodes, settings)
    for loss in losses:
        note(str(loss))
    try:
        if as_json:
            print_json({"schema": SCHEMA, **_cluster_json(cluster)})
        else:
            _cluster_page(cluster)
        _write_files(cluster, draw, nccl_topo)
    except ValueError as error:
        raise InputError(f"{cluster.name}: {error}. Choose another fabric, or set other figures.") from error


def _cluster_page(cluster: Cluster) -> None:
    from busbw.reports import fabric_lines, node_lines  # noqa: PLC0415 - takes a second

    node = cluster.node
    page = Page()
    page.line((cluster.name, "bold"), f"  {cluster.nodes} x {node.name}: {node.title}")
    told = [
        ("GPUs", f"{cluster.gpus}: {node.gpus} x {node.accelerator.name} a node"),
        ("NICs", _nics(node) + " a node"),
        ("network a GPU", f"{_giga(cluster.network_bytes_per_s_per_gpu)} GB/s"),
        ("NVLink domains", f"{cluster.nvlink_domains} of {cluster.gpus_per_domain} GPUs"),
        ("routing", cluster.routing),
    ]
    page.table([("part", False), ("what", False)], told)
    page.line()
    for line in node_lines(node):
        page.line(line)
    if cluster.nics:
        page.line()
        for line in fabric_lines(cluster):
            page.line(line)


def _write_files(cluster: Cluster, draw: Path | None, nccl_topo: Path | None) -> None:
    from busbw.errors import InputError  # noqa: PLC0415

    texts: list[tuple[Path, str]] = []
    if draw is not None:
        from busbw.reports import cluster_svg, node_svg  # noqa: PLC0415 - takes a second

        texts.append((draw, cluster_svg(cluster) if cluster.nodes > 1 else node_svg(cluster.node)))
    if nccl_topo is not None:
        from busbw.hardware.formats import node_to_nccl_topology, write_nccl_topology  # noqa: PLC0415

        topology, notes = node_to_nccl_topology(cluster.node)
        for assumption in notes:
            note(assumption)
        texts.append((nccl_topo, write_nccl_topology(topology)))
    for path, text in texts:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}.") from error
        note(f"wrote {path}")


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    fabric = cluster.fabric if cluster.nics else None
    rates = cluster.link_rates
    return {
        "kind": "cluster",
        "name": cluster.name,
        "nodes": cluster.nodes,
        "gpus": cluster.gpus,
        "nics": cluster.nics,
        "rails": cluster.rails,
        "nvlink_domains": cluster.nvlink_domains,
        "gpus_per_domain": cluster.gpus_per_domain,
        "network_bytes_per_s_per_gpu": cluster.network_bytes_per_s_per_gpu,
        "routing": cluster.routing,
        "fabric": None
        if fabric is None
        else {
            "kind": fabric.kind,
            "switch": cluster.switch.name if cluster.switch is not None else None,
            "switches": fabric.switches,
            "cables": fabric.links // 2,
            "nic_bytes_per_s": rates.nic_bytes_per_s,
            "switch_bytes_per_s": rates.switch_bytes_per_s,
            "bisection_bytes_per_s": fabric.bisection_bytes_per_s(),
        },
        "node": _node_json(cluster.node),
    }


def _list(as_json: bool) -> None:
    from busbw.hardware import load_catalogue, load_nodes  # noqa: PLC0415 - reads the catalogue

    catalogue, nodes = load_catalogue(), load_nodes()
    if as_json:
        listed = {
            "accelerators": [_accelerator_json(a) for a in catalogue.accelerators.values()],
            "nodes": [_node_json(n) for n in nodes.values()],
            "nics": [{"name": n.name, "rate_bytes_per_s": n.rate_bytes_per_s.value} for n in catalogue.nics.values()],
            "switches": list(catalogue.switches),
            "nvswitches": list(catalogue.nvswitches),
        }
        print_json({"schema": SCHEMA, **listed})
        return
    page = Page()
    page.line(("accelerators", "bold"))
    columns = [
        ("name", False),
        ("memory", True),
        ("memory GB/s", True),
        ("between GPUs", False),
        ("GB/s", True),
        ("PCIe", False),
    ]
    page.table(
        columns,
        (
            [
                a.name,
                _giga(a.memory_bytes.value, " GB"),
                _giga(a.memory_bytes_per_s.value),
                a.scale_up_link.value or "-",
                _giga(a.scale_up_bytes_per_s.value),
                a.pcie.value or "-",
            ]
            for a in catalogue.accelerators.values()
        ),
    )
    page.line()
    page.line(("nodes", "bold"))
    columns = [("name", False), ("what it is", False), ("GPUs", False), ("NICs", False), ("network Gb/s", True)]
    page.table(
        columns,
        (
            [
                n.name,
                n.title,
                f"{n.gpus} x {n.accelerator.name}",
                _nics(n),
                f"{n.network_bytes_per_s * 8 / 1e9:.0f}",
            ]
            for n in nodes.values()
        ),
    )
    page.line()
    page.prose(f"NICs: {', '.join(catalogue.nics)}")
    page.prose(f"switches: {', '.join([*catalogue.nvswitches, *catalogue.switches])}")


def _show(name: str, as_json: bool) -> None:
    from busbw.hardware.catalogue import all_figures  # noqa: PLC0415 - reads the catalogue

    kind, entry = _found(name)
    if kind == "node":
        _show_node(entry, as_json)
        return
    figures = [(path, figure) for path, figure in all_figures(entry) if figure.value is not None or figure.note]
    if as_json:
        listed = [
            {"figure": path, "value": figure.value, "source": figure.source, "note": figure.note}
            for path, figure in figures
        ]
        print_json({"schema": SCHEMA, "kind": kind, "name": entry.name, "figures": listed})
        return
    page = Page()
    page.line((entry.name, "bold"), f"  {_description(kind, entry)}")
    columns = [("figure", False), ("value", True), ("source", False)]
    page.table(columns, ([_label(p), _value(p, f), _source(f)] for p, f in figures))


def _show_node(node: Node, as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "kind": "node", **_node_json(node)})
        return
    page = Page()
    page.line((node.name, "bold"), f"  {node.title}")
    told = [
        ("GPUs", f"{node.gpus} x {node.accelerator.name}"),
        ("NICs", _nics(node)),
        ("network", f"{node.network_bytes_per_s * 8 / 1e9:.0f} Gb/s, {node.network_bytes_per_s / 1e9:.0f} GB/s a node"),
        ("NVSwitches", f"{node.nvswitches} x {node.nvswitch.name}" if node.nvswitch else "none"),
        ("nodes an NVLink domain", str(node.nvlink_domain_nodes)),
        ("CPU", node.cpu),
    ]
    page.table([("part", False), ("what", False)], told)
    page.line()
    roots = (
        [
            str(r.numa_node),
            _numbers(r.gpus),
            _numbers(r.nics),
            f"Gen{r.generation} x{r.width}",
            f"{r.bytes_per_s / 1e9:.1f}",
        ]
        for r in node.pcie
    )
    columns = [("NUMA node", True), ("GPUs", False), ("NICs", False), ("PCIe to the CPU", False), ("GB/s", True)]
    page.table(columns, roots)
    page.line()
    page.prose(f"`busbw hardware {node.name} --nodes 16` shows a cluster of it, --draw FILE.svg draws it.")
    page.line()
    page.table([("source of", False), ("", False)], node.sources.items())


def _found(name: str) -> tuple[str, Any]:
    """Kind and entry. Raises InputError with the nearest names."""
    from busbw.errors import InputError  # noqa: PLC0415
    from busbw.hardware import find_accelerator, find_node, load_catalogue, load_nodes  # noqa: PLC0415 - reads the catalogue

    catalogue, nodes = load_catalogue(), load_nodes()
    key = name.strip().lower()
    tables: list[tuple[str, Any]] = [
        ("accelerator", catalogue.accelerators),
        ("NIC", catalogue.nics),
        ("switch", catalogue.switches),
        ("NVSwitch", catalogue.nvswitches),
    ]
    for kind, table in tables:
        for known, entry in table.items():
            if known.lower() == key:
                return kind, entry
    if (node := find_node(name)) is not None:
        return "node", node
    if (accelerator := find_accelerator(name)) is not None:
        return "accelerator", accelerator
    every = [known for _, table in tables for known in table] + list(nodes)
    folded = {known.lower(): known for known in every}
    near = [folded[match] for match in difflib.get_close_matches(key, folded, 3, 0.5)]
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise InputError(f"{name}: not in the catalogue. {hint}`busbw hardware` lists what is.")


def _description(kind: str, entry: Accelerator | Nic | Switch | NvSwitch) -> str:
    from busbw.hardware import Accelerator, NvSwitch  # noqa: PLC0415

    if isinstance(entry, Accelerator):
        return f"{entry.vendor} {entry.architecture}"
    return f"{kind}, {entry.system}" if isinstance(entry, NvSwitch) else kind


def _accelerator_json(accelerator: Accelerator) -> dict[str, Any]:
    return {
        "name": accelerator.name,
        "vendor": accelerator.vendor,
        "architecture": accelerator.architecture,
        "memory_bytes": accelerator.memory_bytes.value,
        "memory_bytes_per_s": accelerator.memory_bytes_per_s.value,
        "scale_up_link": accelerator.scale_up_link.value,
        "scale_up_bytes_per_s": accelerator.scale_up_bytes_per_s.value,
        "pcie": accelerator.pcie.value,
    }


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "title": node.title,
        "accelerator": node.accelerator.name,
        "gpus": node.gpus,
        "nic": node.nic.name,
        "nics": node.nics,
        "nic_rate_bytes_per_s": node.nic_rate_bytes_per_s,
        "nvswitch": node.nvswitch.name if node.nvswitch else None,
        "nvswitches": node.nvswitches,
        "nvlink_domain_nodes": node.nvlink_domain_nodes,
        "cpu": node.cpu,
        "pcie": [
            {
                "numa_node": r.numa_node,
                "gpus": list(r.gpus),
                "nics": list(r.nics),
                "generation": r.generation,
                "width": r.width,
            }
            for r in node.pcie
        ],
        "sources": dict(node.sources),
    }


def _nics(node: Node) -> str:
    return f"{node.nics} x {node.nic.name} at {node.nic_rate_bytes_per_s * 8 / 1e9:.0f} Gb/s" if node.nics else "none"


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers) or "-"


def _giga(value: float | None, unit: str = "") -> str:
    """Thousands of millions, four digits; `-` for what is unknown or absent."""
    if not value:
        return "-"
    return f"{value / 1e9:.0f}{unit}" if value >= 1e12 else f"{value / 1e9:.4g}{unit}"


def _label(path: str) -> str:
    """The figure's name for people: what its unit would repeat is taken off."""
    return (
        path.replace("_bytes_per_s", " rate")
        .removesuffix("_bytes")
        .removesuffix("_s")
        .replace("_", " ")
        .replace(".", ", ")
    )


def _value(path: str, figure: AnyFigure) -> str:
    value = figure.value
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if path.endswith("rate_bytes_per_s") or path == "port_bytes_per_s":
        return f"{value * 8 / 1e9:.4g} Gb/s"
    if path.endswith("_bytes_per_s"):
        return f"{value / 1e9:.4g} GB/s"
    if path.endswith("_bytes"):
        return f"{value / 1e9:.4g} GB" if value >= 1e9 else f"{value / 1e6:.4g} MB"
    if path.endswith("_latency_s"):
        return f"{value * 1e9:.4g} ns"
    if path.startswith("dense_flops"):
        return f"{value / 1e12:.4g} Tflop/s"
    return f"{value:g}"


def _source(figure: AnyFigure) -> str:
    return f"{figure.source} ({figure.note})" if figure.note else figure.source
