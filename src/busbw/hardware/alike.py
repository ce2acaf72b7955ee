"""The catalogued cluster that a benchmark's own words describe: a GPU's name, numbers of ranks and nodes, NICs."""

from __future__ import annotations

from dataclasses import replace

from busbw.errors import InputError
from busbw.hardware.blueprints import Node, load_nodes
from busbw.hardware.catalogue import Accelerator, find_accelerator
from busbw.hardware.cluster import Cluster

__all__ = ["cluster_alike"]

_GBIT = 1e9 / 8


def cluster_alike(
    gpu: str | None, ranks: int, nodes: int | None = None, nic_gbps: float | None = None, nics: int | None = None
) -> Cluster:
    """A blueprint's cluster with this GPU in which `ranks` fill whole nodes, or are some GPUs of one.

    nic_gbps and nics (a node) are needed as soon as several NVLink domains take part: what a blueprint has says
    nothing about the machine that was measured. A GPU of another memory size than a blueprint's is taken as alike.

    Raises InputError, which says what is missing.
    """
    accelerator = find_accelerator(gpu)
    if accelerator is None:
        raise InputError(f"{gpu or 'no GPU is named'}{': not in the catalogue' if gpu else ''}. Pass --cluster.")
    alike = [node for node in load_nodes().values() if _are_alike(node.accelerator, accelerator)]
    if not alike:
        raise InputError(f"no blueprint of a node with {accelerator.name}. Pass --cluster.")
    fitting = [node for node in alike if _nodes_of(node, ranks, nodes) is not None]
    if not fitting:
        told = f" on {nodes} nodes" if nodes else ""
        raise InputError(
            f"{ranks} ranks{told} do not fill nodes of {alike[0].gpus} {accelerator.name}. Pass --cluster."
        )
    node = next((node for node in fitting if node.nics == nics), fitting[0])
    hosts = _nodes_of(node, ranks, nodes) or 1
    if hosts > node.nvlink_domain_nodes:
        if not nic_gbps or not nics:
            raise InputError(f"{hosts} nodes, and nothing says how many NICs of which rate they have. Pass --cluster.")
        # The model asks for what all NICs of a node carry together.
        node = replace(node, nic_rate_bytes_per_s=nic_gbps * _GBIT * nics / max(1, node.nics))
    return Cluster(node.name, replace(node, accelerator=accelerator), hosts)


def _are_alike(one: Accelerator, other: Accelerator) -> bool:
    """Whether two products talk to each other alike: the same architecture, links and form."""
    return (
        one.architecture == other.architecture
        and one.scale_up_bytes_per_s.value == other.scale_up_bytes_per_s.value
        and one.scale_up_shape.value == other.scale_up_shape.value
        and one.compute_capability == other.compute_capability
    )


def _nodes_of(node: Node, ranks: int, nodes: int | None) -> int | None:
    """Nodes that `ranks` take, or None where they would be part of several."""
    if ranks < node.gpus:
        return 1 if nodes in (None, 1) else None
    hosts, rest = divmod(ranks, node.gpus)
    return None if rest or (nodes is not None and nodes != hosts) else hosts
