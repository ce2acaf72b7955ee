"""`busbw hardware`: the catalogue, and where each of its figures comes from."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, print_json

if TYPE_CHECKING:
    from busbw.hardware import Accelerator, Nic, Node, NvSwitch, Switch
    from busbw.hardware.catalogue import AnyFigure

__all__ = ["hardware"]

SCHEMA = 1
"""Number of the JSON shape of `busbw hardware --json`."""


def hardware(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A product or node, as a tool or its maker writes it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List known hardware, or show one with its sources.

    Rates are one direction of one device. GB/s is 1e9 bytes per second, Gb/s 1e9 bits per second.

    \b
    Examples:
      busbw hardware
      busbw hardware "NVIDIA H100 80GB HBM3"
      busbw hardware dgx-h100
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    if name is None:
        _list(as_json)
    else:
        _show(name, as_json)


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
