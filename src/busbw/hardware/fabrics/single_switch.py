"""One switch that all NIC ports hang on."""

from __future__ import annotations

from typing import ClassVar

from busbw.hardware.fabrics.fabric import LinkRates
from busbw.hardware.fabrics.fat_tree import FatTree

__all__ = ["SingleSwitch"]


class SingleSwitch(FatTree):
    """A fat tree of one level. How many ports the product has is for the caller to check."""

    kind: ClassVar[str] = "single-switch"

    def __init__(self, endpoints: int, rates: LinkRates) -> None:
        super().__init__(endpoints, (endpoints,), (1,), (1,), rates)
