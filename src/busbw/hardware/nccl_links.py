"""What NCCL takes the links of a node to carry: what its search counts with, and near what a healthy link measures.

The figures lie in `nccl_links.json` beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from busbw.hardware.catalogue import PCIE_GT_PER_S
from busbw.units import GB

__all__ = ["nccl_link_rates", "nccl_nvlink_bytes_per_s", "nccl_pcie_bytes_per_s"]


@cache
def nccl_link_rates() -> Mapping[str, Any]:
    """The tables of the file: `nvlink_by_capability`, newest first, and `pci_lane_100mbit`, the first match counts."""
    data = json.loads(resources.files(__package__).joinpath("nccl_links.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: data[name] for name in ("nvlink_by_capability", "pci_lane_100mbit")})


def nccl_pcie_bytes_per_s(generation: int, width: int) -> float:
    """A PCIe link, one direction: width * v / 80 GB/s, v by speed. Source: NVIDIA/nccl, src/graph/topo.cc.

    Raises ValueError for a generation that does not exist or a width below 1.

    >>> [nccl_pcie_bytes_per_s(generation, 16) / 1e9 for generation in (3, 4, 5, 6)]
    [12.0, 24.0, 48.0, 96.0]
    """
    if generation not in PCIE_GT_PER_S or width < 1:
        raise ValueError(f"PCIe generation {generation}, width {width}: no such link")
    printed = f"{PCIE_GT_PER_S[generation]:.1f} GT/s PCIe"
    lanes = nccl_link_rates()["pci_lane_100mbit"].items()
    return next(float(lane) for text, lane in lanes if printed.startswith(text)) * width / 80 * GB


def nccl_nvlink_bytes_per_s(compute_capability: int) -> float:
    """One NVLink of a GPU of that compute capability, if it has any, one direction. Source: NVIDIA/nccl, src/graph/topo.h.

    >>> nccl_nvlink_bytes_per_s(90) / 1e9
    20.6
    """
    rates = nccl_link_rates()["nvlink_by_capability"]
    return next(float(rate) for least, rate in rates if compute_capability >= least) * GB
