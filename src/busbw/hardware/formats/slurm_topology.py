"""Slurm's topology.conf, topology.yaml and `scontrol show topology`: which nodes hang on which switch or block.

They name switches and nodes, no rates. Each switch is taken as wide enough for what hangs below it, which the losses
say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from busbw.errors import InputError, Loss
from busbw.hardware.fabrics import GraphFabric
from busbw.hardware.formats.hostlist import expand_hostlist
from busbw.hardware.formats.read_nodes import latency_s
from busbw.hardware.links import NETWORK, LinkTable

__all__ = ["SlurmSwitch", "SlurmTopology", "fabric_from_slurm", "read_slurm_topology"]

MAX_BYTES = 16 * 1024 * 1024
"""Largest file read. A guess with room."""
_PAIR = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class SlurmSwitch:
    """A switch with what hangs on it, or a block with its nodes."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlurmTopology:
    """Switches of a tree, or blocks (NVLink domains) that one switch joins."""

    path: str
    switches: tuple[SlurmSwitch, ...]
    blocks: bool

    @property
    def hosts(self) -> tuple[str, ...]:
        """Nodes, in the order of the file, each once."""
        return tuple(dict.fromkeys(node for switch in self.switches for node in switch.nodes))


def read_slurm_topology(data: bytes | str, path: str) -> tuple[SlurmTopology, list[Loss]]:
    """The topology in a text, and what was lost: lines that are none (`topology-bad-line`).

    Raises InputError where no switch and no block is found, and for host lists that cannot be expanded.
    """
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes. This is no topology; pass the right file.")
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    losses: list[Loss] = []
    if re.search(r"(?mi)^\s*(SwitchName|BlockName)\s*=", text):
        found = list(_conf(text, path, losses))
        blocks = bool(re.search(r"(?mi)^\s*BlockName\s*=", text))
    else:
        found, blocks = _yaml(text, path)
    if not found:
        raise InputError(
            f"{path}: no switch and no block found. Pass topology.conf, topology.yaml or the output of "
            "scontrol show topology."
        )
    return SlurmTopology(path, tuple(found), blocks), losses


def _conf(text: str, path: str, losses: list[Loss]) -> Iterator[SlurmSwitch]:
    # A line ending in a backslash goes on; the numbers of the lines after it stay right.
    number, start, held = 0, 0, ""
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = raw.split("#", 1)[0].strip()
        start = start or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        line, first = held + line, start
        held, start = "", 0
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        name = pairs.get("switchname") or pairs.get("blockname")
        if name:
            nodes, children = (_expanded(pairs.get(key, ""), path, first) for key in ("nodes", "switches"))
            # scontrol lists all nodes below a switch; those of a switch that has children are theirs.
            for each in _expanded(name, path, first):
                yield SlurmSwitch(each, () if children else nodes, children)
        elif line and "blocksizes" not in pairs:
            losses.append(
                Loss("topology-bad-line", path, first, f"{line[:60]!r} names no switch and no block; left out")
            )


def _yaml(text: str, path: str) -> tuple[list[SlurmSwitch], bool]:
    try:
        if any(
            isinstance(token, (yaml.AliasToken, yaml.TagToken)) for token in yaml.scan(text, Loader=yaml.SafeLoader)
        ):
            raise InputError(f"{path}: aliases and tags are not read. Write the values out.")
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"{path}:{mark.line + 1 if mark else 1}: neither topology.conf nor YAML. Pass the right file."
        ) from error
    found: list[SlurmSwitch] = []
    blocks = False
    for topology in data if isinstance(data, list) else [data]:
        for kind, key, children in (("tree", "switch", "switches"), ("block", "block", "blocks")):
            body = topology.get(kind) if isinstance(topology, dict) else None
            for each in (body.get(children) or []) if isinstance(body, dict) else []:
                if isinstance(each, dict) and isinstance(each.get(key), str):
                    nodes, below = (_expanded(_text(each.get(part)), path, None) for part in ("nodes", "children"))
                    found.append(SlurmSwitch(each[key], nodes, below))
            blocks |= kind == "block" and isinstance(body, dict)
        if found:
            break  # several topologies may describe the same nodes; the first is taken
    return found, blocks


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _expanded(text: str, path: str, line: int | None) -> tuple[str, ...]:
    try:
        return tuple(expand_hostlist(text))
    except ValueError as error:
        where = path if line is None else f"{path}:{line}"
        raise InputError(f"{where}: {error}. Look at the brackets.") from error


def fabric_from_slurm(
    topology: SlurmTopology, nics: int, nic_bytes_per_s: float
) -> tuple[GraphFabric, tuple[str, ...], list[Loss]]:
    """The graph between NICs, all NICs of a node on its switch; hosts in order; and a loss that says what was guessed.

    Blocks, and switches without one above, are joined by one switch more. Raises InputError without hosts, or where a
    switch hangs on itself.
    """
    hosts = topology.hosts
    if not hosts:
        raise InputError(f"{topology.path}: switches without nodes. Pass the whole file.")
    at = {host: index for index, host in enumerate(hosts)}
    first = len(hosts) * nics
    named = {switch.name: first + index for index, switch in enumerate(topology.switches)}
    parent = {child: switch.name for switch in topology.switches for child in switch.switches if child in named}
    tops = [switch.name for switch in topology.switches if switch.name not in parent]
    names = [f"{host} nic{nic}" for host in hosts for nic in range(nics)] + list(named)
    below = {switch.name: len(switch.nodes) for switch in topology.switches}
    for switch in topology.switches:
        up, seen = parent.get(switch.name), {switch.name}
        while up is not None:
            if up in seen:
                raise InputError(f"{topology.path}: switch {up} hangs on itself. Mend the file.")
            seen.add(up)
            below[up] += len(switch.nodes)
            up = parent.get(up)
    rows: list[tuple[int, int, float, float, int]] = []
    hop = latency_s("cable") + latency_s("infiniband_switch")

    def cable(a: int, b: int, rate: float, latency: float) -> None:
        rows.extend([(a, b, rate, latency, NETWORK), (b, a, rate, latency, NETWORK)])

    for switch in topology.switches:
        for host in switch.nodes:
            for nic in range(nics):
                cable(at[host] * nics + nic, named[switch.name], nic_bytes_per_s, hop + latency_s("nic"))
    for child, above in parent.items():
        cable(named[child], named[above], max(below[child], 1) * nics * nic_bytes_per_s, hop)
    if len(tops) > 1:
        names.append("core")
        for top in tops:
            cable(named[top], len(names) - 1, max(below[top], 1) * nics * nic_bytes_per_s, hop)
    detail = "the file names no rates: each switch is taken as wide as the NICs below it together"
    return (
        GraphFabric(LinkTable.of(rows), first, tuple(names)),
        hosts,
        [Loss("fabric-rates-unknown", topology.path, None, detail)],
    )
