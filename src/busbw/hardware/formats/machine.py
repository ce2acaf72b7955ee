"""A node or a fabric from whatever file a user has: told apart by what stands in it, never by its name."""

from __future__ import annotations

import re
from pathlib import Path

from busbw.errors import InputError, Loss
from busbw.hardware.blueprints import Node
from busbw.hardware.fabrics import GraphFabric
from busbw.hardware.formats.hwloc_xml import node_from_hwloc
from busbw.hardware.formats.ibnetdiscover import fabric_from_ibnetdiscover, read_ibnetdiscover
from busbw.hardware.formats.matrix_node import node_from_matrix
from busbw.hardware.formats.nccl_node import node_from_nccl_topology
from busbw.hardware.formats.nccl_topo_xml import read_nccl_topology
from busbw.hardware.formats.slurm_topology import fabric_from_slurm, read_slurm_topology
from busbw.hardware.formats.topo_matrix import read_topology_matrix

__all__ = ["MAX_BYTES", "file_bytes", "read_fabric", "read_node"]

MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of a file that are looked at; each format has its own, lower bound."""

_LOOKED_AT = 65536
_SLURM_SWITCH = re.compile(r"^\s*SwitchName=", re.MULTILINE | re.IGNORECASE)
"""A line of Slurm's topology.conf. Source: Slurm, man topology.conf."""


def read_node(data: bytes, path: str, name: str, accelerator: str | None = None) -> tuple[Node, list[Loss]]:
    """The node in a file of NCCL topology XML, hwloc XML or `nvidia-smi topo -m`, and what was lost.

    Raises InputError for anything else; for a listing of a fabric it says where that belongs.
    """
    head = data[:_LOOKED_AT].decode("utf-8", errors="replace")
    if "<topology" in head:
        return node_from_hwloc(data, path, name, accelerator)
    if head.lstrip("\ufeff \t\r\n").startswith("<"):
        topology, losses = read_nccl_topology(data, path)
        node, more = node_from_nccl_topology(topology, name, accelerator)
        return node, losses + more
    if _is_ibnetdiscover(head) or _SLURM_SWITCH.search(head) is not None:
        raise InputError(
            f"{path}: describes a fabric, not a node. Name it in a cluster's YAML: `fabric: {{file: {path}}}` beside `node:`; "
            "docs/hardware.md shows one."
        )
    matrix, losses = read_topology_matrix(data, path)
    node, more = node_from_matrix(matrix, name, accelerator)
    return node, losses + more


def _is_ibnetdiscover(head: str) -> bool:
    return "switchguid=" in head or "caguid=" in head


def read_fabric(path: Path, node: Node) -> tuple[GraphFabric, tuple[str, ...], list[Loss]]:
    """The fabric in a file of ibnetdiscover or Slurm, the names of its nodes, and what was lost.

    Raises InputError for anything else, and where no host has as many NICs as the node.
    """
    data = file_bytes(path)
    head = data[:_LOOKED_AT].decode("utf-8", errors="replace")
    if _is_ibnetdiscover(head):
        fabric, losses = read_ibnetdiscover(data, str(path))
        graph, hosts, more = fabric_from_ibnetdiscover(fabric, node.nics)
        return graph, hosts, losses + more
    topology, losses = read_slurm_topology(data, str(path))
    graph, hosts, more = fabric_from_slurm(topology, node.nics, node.nic_rate_bytes_per_s)
    return graph, hosts, losses + more


def file_bytes(path: Path) -> bytes:
    """What a file holds, up to MAX_BYTES. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
