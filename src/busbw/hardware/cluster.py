"""Cluster: nodes of one kind and the fabric between them."""

from __future__ import annotations

from dataclasses import dataclass

from busbw.hardware.blueprints import Node

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` nodes of one kind. The fabric between them is taken as non-blocking."""

    name: str
    node: Node
    nodes: int

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"cluster {self.name!r} has {self.nodes} nodes; at least 1 is needed")

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.node.gpus

    @property
    def nvlink_domains(self) -> int:
        """NVLink domains the nodes form when placed densely, racks filled one after another."""
        return -(-self.nodes // self.node.nvlink_domain_nodes)
