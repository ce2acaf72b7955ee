"""NVLink domains (NVL72, NVL36) in a fat tree: rail-optimised, with no domain split between leaves."""

from __future__ import annotations

from typing import ClassVar

from busbw.hardware.fabrics.fabric import LinkRates
from busbw.hardware.fabrics.fat_tree import fat_tree_shape
from busbw.hardware.fabrics.rail_optimised import RailOptimised

__all__ = ["NvlinkDomains"]


class NvlinkDomains(RailOptimised):
    """Rail-optimised; the nodes of a leaf are whole domains, where a leaf has room for one.

    A domain is contiguous in the numbering of nodes: node n is in domain n // domain_nodes.
    """

    kind: ClassVar[str] = "nvlink-domains"

    def __init__(
        self,
        nodes: int,
        rails: int,
        domain_nodes: int,
        ports: int,
        rates: LinkRates,
        *,
        levels: int | None = None,
        oversubscription: float = 1.0,
    ) -> None:
        whole = domain_nodes if int(ports * oversubscription / (1 + oversubscription)) >= domain_nodes else 1
        shape = rail_shape(nodes, rails, ports, levels=levels, oversubscription=oversubscription, leaf_multiple=whole)
        super().__init__(nodes * rails, *shape, rates, rails)


def rail_shape(
    nodes: int, rails: int, ports: int, *, levels: int | None, oversubscription: float, leaf_multiple: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape of a tree that holds every rail of every group, partly filled groups as whole ones.

    Raises ValueError where nothing fits.
    """
    endpoints = nodes * rails
    for _ in range(3):
        shape = fat_tree_shape(
            endpoints, ports, levels=levels, oversubscription=oversubscription, leaf_multiple=leaf_multiple
        )
        leaf = shape[0][0]
        needed = -(-nodes // leaf) * rails * leaf if len(shape[0]) > 1 else nodes * rails
        if needed <= endpoints:
            return shape
        endpoints = needed
    return shape
