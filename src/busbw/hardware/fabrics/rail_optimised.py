"""Rail-optimised fat trees: NIC r of the nodes of a group hangs on one leaf, the leaf of rail r.

So GPUs of equal place reach one another through one leaf, and NCCL crosses rails inside nodes (PXN). Source: NVIDIA
enterprise reference architectures (rail-optimised leaf and spine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from busbw.hardware.fabrics.fat_tree import FatTree
from busbw.hardware.links import IntArray

__all__ = ["RailOptimised"]


@dataclass(frozen=True)
class RailOptimised(FatTree):
    """A fat tree of which leaf g * rails + r holds NIC r of group g: as many nodes as a leaf has NIC ports."""

    kind: ClassVar[str] = "rail-optimised"
    rails: int = 1
    """NICs of a node."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rails < 1 or self.endpoints % self.rails:
            raise ValueError(f"{self.endpoints} NIC ports are no whole number of nodes of {self.rails} NICs")
        if self.levels == 1:
            return
        groups = -(-(self.endpoints // self.rails) // self.down[0])
        if groups * self.rails * self.down[0] > self.slots:
            raise ValueError(
                f"{groups} groups of {self.rails} rails need {groups * self.rails} leaves; "
                f"the tree has {self.slots // self.down[0]}"
            )

    def _slot(self, endpoint: IntArray) -> IntArray:
        if self.levels == 1:  # one switch holds all rails
            return endpoint
        node, rail = endpoint // self.rails, endpoint % self.rails
        leaf = self.down[0]
        return (node // leaf * self.rails + rail) * leaf + node % leaf
