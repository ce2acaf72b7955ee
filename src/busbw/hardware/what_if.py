"""What-if: any figure of a cluster set anew, by the names that `--set` and files use.

`nic.rate=800Gb/s`: rates with a unit (Gb/s, GB/s), times (ns, us), sizes (MB, GiB). What is set says so as its source.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from busbw.errors import InputError
from busbw.hardware.blueprints import Node, PcieRoot
from busbw.hardware.catalogue import CpuLink, Figure, find_accelerator, find_switch, load_catalogue
from busbw.hardware.cluster import Cluster

__all__ = ["SETTINGS", "nearest", "parse_quantity", "set_figures"]

_UNITS = {
    "rate": {
        **{"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8, "Tb/s": 1e12 / 8},
        **{"Gbps": 1e9 / 8, "Gbit/s": 1e9 / 8},
    },
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    "size": {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2.0**20, "GiB": 2.0**30, "B": 1.0},
}
_EXAMPLE = {"rate": "800Gb/s or 100GB/s", "time": "130ns or 1.2us", "size": "80GB or 50MB"}


def parse_quantity(text: str, what: str) -> float:
    """A quantity in bytes per second (rate), seconds (time) or bytes (size). Gb is bits, GB bytes.

    Raises ValueError for a number without a unit, or a unit of another kind.

    >>> parse_quantity("800Gb/s", "rate"), parse_quantity("130ns", "time")
    (100000000000.0, 1.3e-07)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z/]+)\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is no {what}; write it with its unit, {_EXAMPLE[what]}")
    number, unit = float(found.group(1)), found.group(2)
    scale = _UNITS[what].get(unit)  # case tells bits from bytes: GB/s and Gb/s differ eightfold
    if scale is None or not 0 < number * scale < math.inf:
        raise ValueError(f"{text!r} is no {what}; write {_EXAMPLE[what]}")
    return number * scale


_FEW = 12
"""Names that are all shown."""


def nearest(word: str, known: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str:
    """A hint for a word that is not known: the names nearest to it, all of a few, or what is least far; ends in a blank."""
    names = list(known)
    folded = {name.lower(): name for name in names}
    near = [folded[match] for match in difflib.get_close_matches(word.lower(), list(folded), 3, 0.5)]
    if near:
        return f"Did you mean {', '.join(near)}? "
    if len(names) > _FEW:
        near = [folded[match] for match in difflib.get_close_matches(word.lower(), list(folded), 3, 0.0)]
        return f"Nearest: {', '.join(near)}. "
    return f"Known: {', '.join(names)}. "


Setter = Callable[[Cluster, str, str], Cluster]


def _node(cluster: Cluster, **changes: Any) -> Cluster:
    return replace(cluster, node=replace(cluster.node, **changes))


def _plan(cluster: Cluster, **changes: Any) -> Cluster:
    return replace(cluster, plan=replace(cluster.plan, **changes))


def _figure(value: Any, said: str) -> Figure[Any]:
    return Figure(value, f"set by the user: {said}")


def _gpu_figure(name: str, what: str | None) -> Setter:
    def change(cluster: Cluster, text: str, said: str) -> Cluster:
        value = parse_quantity(text, what) if what else _count(text)
        if name == "scale_up_bytes_per_s":
            _refuse_read_graph(cluster.node, said)
        changes: dict[str, Any] = {name: _figure(value, said)}
        return _node(cluster, accelerator=replace(cluster.node.accelerator, **changes))

    return change


def _plan_quantity(name: str, what: str) -> Setter:
    return lambda cluster, text, said: _plan(cluster, **{name: parse_quantity(text, what)})


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,9}", text.strip()):
        raise ValueError(f"{text!r} is no number of things; write a whole number from 1")
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()) or float(text) <= 0:
        raise ValueError(f"{text!r} is no positive number")
    return float(text)


def _gpu(cluster: Cluster, text: str, said: str) -> Cluster:
    found = find_accelerator(text)
    if found is None:
        raise ValueError(f"GPU {text!r} is not in the catalogue. {nearest(text, load_catalogue().accelerators)}")
    _refuse_read_graph(cluster.node, said)
    return _node(cluster, accelerator=found)


def _nic(cluster: Cluster, text: str, said: str) -> Cluster:
    nics = load_catalogue().nics
    folded = {name.lower(): nic for name, nic in nics.items()}
    if text.lower() not in folded:
        raise ValueError(f"NIC {text!r} is not in the catalogue. {nearest(text, nics)}")
    nic = folded[text.lower()]
    return _node(cluster, nic=nic, nic_rate_bytes_per_s=nic.rate_bytes_per_s.value or cluster.node.nic_rate_bytes_per_s)


def _switch(cluster: Cluster, text: str, said: str) -> Cluster:
    found = find_switch(text)
    if found is None:
        known = [alias for switch in load_catalogue().switches.values() for alias in (switch.name, *switch.aliases)]
        raise ValueError(f"switch {text!r} is not in the catalogue. {nearest(text, known)}")
    return _plan(cluster, switch=found)


def _pcie(name: str) -> Setter:
    def change(cluster: Cluster, text: str, said: str) -> Cluster:
        _refuse_read_graph(cluster.node, said)
        value = _count(text)
        index = 0 if name == "generation" else 1

        def link(old: tuple[int, int] | None) -> tuple[int, int] | None:
            return None if old is None else (value, old[1]) if index == 0 else (old[0], value)

        def changed(root: PcieRoot) -> PcieRoot:
            # The x1 link of a GPU beside C2C stays as wide as it is.
            gpu = link(root.gpu_link) if index == 0 else root.gpu_link
            changes: dict[str, Any] = {name: value, "gpu_link": gpu, "nic_link": link(root.nic_link)}
            return replace(root, **changes)

        roots = tuple(changed(root) for root in cluster.node.pcie)
        for root in roots:
            _ = (root.bytes_per_s, root.gpu_bytes_per_s, root.nic_bytes_per_s)  # raises where no such link is
        return _node(cluster, pcie=roots)

    return change


def _cpu_rate(cluster: Cluster, text: str, said: str) -> Cluster:
    _refuse_read_graph(cluster.node, said)
    return _node(cluster, cpu_link=CpuLink("set", _figure(parse_quantity(text, "rate"), said), "between sockets"))


def _c2c_rate(cluster: Cluster, text: str, said: str) -> Cluster:
    _refuse_read_graph(cluster.node, said)
    return _node(cluster, c2c_bytes_per_s=parse_quantity(text, "rate"))


def _refuse_read_graph(node: Node, said: str) -> None:
    if node.read_graph is not None:
        raise ValueError(f"{said}: links of a node that was read from a file cannot be set; change the file")


SETTINGS: Mapping[str, tuple[str, Setter]] = {
    "nodes": ("number of nodes", lambda c, text, said: replace(c, nodes=_count(text), hosts=())),
    "routing": ("d-mod-k, ecmp, spray, adaptive", lambda c, text, said: replace(c, routing=text)),
    "gpu": ("GPU product, its figures with it", _gpu),
    "gpu.memory": ("size of GPU memory", _gpu_figure("memory_bytes", "size")),
    "gpu.memory.rate": ("rate of GPU memory", _gpu_figure("memory_bytes_per_s", "rate")),
    "gpu.l2": ("size of L2", _gpu_figure("l2_bytes", "size")),
    "gpu.sms": ("multiprocessors", _gpu_figure("multiprocessors", None)),
    "nvlink.rate": ("all NVLinks of a GPU, one direction", _gpu_figure("scale_up_bytes_per_s", "rate")),
    "nvlink.domain": ("nodes of an NVLink domain", lambda c, text, said: _node(c, nvlink_domain_nodes=_count(text))),
    "nic": ("NIC product, its rate with it", _nic),
    "nic.rate": (
        "line rate of one NIC",
        lambda c, text, said: _node(c, nic_rate_bytes_per_s=parse_quantity(text, "rate")),
    ),
    "nic.latency": ("through one NIC", _plan_quantity("nic_latency_s", "time")),
    "pcie.generation": ("of all PCIe links", _pcie("generation")),
    "pcie.width": ("lanes of all PCIe links", _pcie("width")),
    "cpu.rate": ("between sockets", _cpu_rate),
    "c2c.rate": ("GPU to Grace", _c2c_rate),
    "switch": ("switch product, its figures with it", _switch),
    "switch.ports": ("ports of a switch", lambda c, text, said: _plan(c, switch_ports=_count(text))),
    "switch.rate": ("between switches", _plan_quantity("switch_rate_bytes_per_s", "rate")),
    "switch.latency": ("a cable and a switch", _plan_quantity("switch_latency_s", "time")),
    "fabric": ("kind of fabric", lambda c, text, said: _plan(c, kind=text)),
    "fabric.levels": ("levels of the tree", lambda c, text, said: _plan(c, levels=_count(text))),
    "fabric.oversubscription": (
        "downlinks to uplinks of a leaf",
        lambda c, text, said: _plan(c, oversubscription=_number(text)),
    ),
    "fabric.groups": ("groups of a dragonfly+", lambda c, text, said: _plan(c, groups=_count(text))),
}
"""Every name that can be set, with what it is."""

_FLOPS = re.compile(r"gpu\.flops\.(\w+)")


def set_figures(cluster: Cluster, settings: Mapping[str, str], where: str = "--set") -> Cluster:
    """The cluster with figures set anew, in the order given. gpu.flops.bf16=1e15 sets peak operations a second.

    Raises InputError for an unknown name, with the nearest, and for a value that cannot be.
    """
    for name, text in settings.items():
        said = f"{name}={text}"
        try:
            flops = _FLOPS.fullmatch(name)
            if flops:
                rates = dict(cluster.node.accelerator.dense_flops)
                rates[flops.group(1)] = _figure(float(text), said)
                cluster = _node(cluster, accelerator=replace(cluster.node.accelerator, dense_flops=rates))
                continue
            if name not in SETTINGS:
                raise InputError(f"{where}: {name!r} is no figure that can be set. {nearest(name, SETTINGS)}".rstrip())
            cluster = SETTINGS[name][1](cluster, text, said)
        except ValueError as error:
            raise InputError(f"{where}: {name}: {error}".rstrip()) from error
    return cluster
