"""What healthy hardware shows: plateaus of bus bandwidth, bandwidth tiers, small-message times.

Diagnosis compares with these. The figures lie in `expected.json` beside this module, a source per row. Low bounds are
conservative: a table that its author presents as good must never fall below them, so what lies below is slow, and what
lies above proves nothing. With NVLS, SHARP, or a tree over two nodes, bus bandwidth may exceed the wire, so high bounds
are loose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from busbw.hardware.catalogue import Accelerator, find_accelerator
from busbw.hardware.nccl_links import nccl_nvlink_bytes_per_s, nccl_pcie_bytes_per_s

__all__ = [
    "ExpectedRange",
    "ExpectedTime",
    "Tier",
    "expected_busbw",
    "expected_small_message_time",
    "matching_tiers",
    "nic_tier",
    "tiers",
]

_GIGA = 1e9
_BITS_PER_BYTE = 8

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "p2p": "p2p",
}
"""Our word for a collective by its letters alone, so that all_to_all, alltoall and all-to-all are one."""


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """The plateau of bus bandwidth a healthy platform reaches, from `reached_at_bytes` (size_bytes) on."""

    low_bytes_per_s: float
    high_bytes_per_s: float
    limited_by: str
    source: str
    reached_at_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.low_bytes_per_s <= self.high_bytes_per_s:
            raise ValueError(f"expected range {self.low_bytes_per_s} to {self.high_bytes_per_s} bytes/s is empty")


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The time of a small collective (up to 4 KiB) on a healthy platform, seconds."""

    low_s: float
    high_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Tier:
    """A bandwidth at which transfers settle when one known thing carries them."""

    name: str
    kind: str
    """nic, socket, pcie, host_memory or nvlink."""
    low_bytes_per_s: float
    high_bytes_per_s: float
    source: str

    def holds(self, bytes_per_s: float) -> bool:
        """Whether a measured rate lies in the tier, ends included."""
        return self.low_bytes_per_s <= bytes_per_s <= self.high_bytes_per_s


def expected_busbw(  # noqa: PLR0917 -- the six that describe a benchmark run, in the order a table prints them
    gpu: str | None,
    nodes: int,
    ranks: int,
    collective: str,
    nic_gbps: float | None,
    nics_per_node: int | None,
    *,
    transport: str | None = None,
    one_nvlink_domain: bool = False,
) -> ExpectedRange | None:
    """The healthy plateau of bus bandwidth of a platform, or None where the description does not suffice to tell.

    Args:
        gpu: name as a tool prints it. Unknown products give None, except for point-to-point tests over the network.
        nodes: hosts taking part (trays of four GPUs on GB200 and GB300).
        ranks: GPUs taking part.
        collective: any spelling; `p2p` for RDMA tests, `send_recv` for NCCL's.
        nic_gbps: line rate of one NIC, 1e9 bits per second. Ignored on one node; needed on more.
        nics_per_node: NICs that carry the collective in each node. Ignored on one node; needed on more.
        transport: "socket" for TCP, IPoIB included, which ignores what the NICs could do; None or "rdma" otherwise.
        one_nvlink_domain: True where all nodes are known to share one NVLink domain (NVL72).

    The size of the sweep is the caller's to check: the plateau is reached from `reached_at_bytes` on. Raises ValueError
    for nodes or ranks below 1, fewer ranks than nodes, or an unknown transport.

    >>> expected = expected_busbw("NVIDIA H100 80GB HBM3", 1, 8, "all_reduce", None, None)
    >>> expected.low_bytes_per_s / 1e9, expected.limited_by
    (310.0, 'NVLink')
    """
    if nodes < 1 or ranks < nodes:
        raise ValueError(f"{ranks} ranks on {nodes} nodes: at least one node, and one rank on each, is needed")
    if transport not in {None, "rdma", "socket"}:
        raise ValueError(f"transport {transport!r} is unknown; use 'rdma', 'socket' or None")
    kind = _COLLECTIVES.get("".join(letter for letter in collective.lower() if letter.isalnum()))
    if kind is None or ranks == 1:
        return None
    if nodes == 1:
        return _one_node(find_accelerator(gpu), ranks, kind)
    if transport == "socket":
        return _sockets(ranks)
    return _more_nodes(
        find_accelerator(gpu),
        nodes=nodes,
        ranks=ranks,
        kind=kind,
        nic_gbps=nic_gbps,
        nics_per_node=nics_per_node,
        one_nvlink_domain=one_nvlink_domain,
    )


def expected_small_message_time(nodes: int, ranks: int) -> ExpectedTime | None:
    """How long a healthy all-reduce of a few KiB takes; None beyond the platforms that were measured.

    Below low_s the clock or the benchmark is wrong; above high_s something adds latency. Wide on purpose: launch
    overhead differs by a factor of three between benchmarks.
    """
    if ranks <= 1:
        return None
    for row in _rows("small_message_us"):
        if (nodes == 1) == (row["nodes"] == "1") and ranks <= _number(row["max_ranks"]):
            return ExpectedTime(_number(row["low_us"]) * 1e-6, _number(row["high_us"]) * 1e-6, str(row["source"]))
    return None


def tiers(gpu: str | None = None, nic_gbps: float | None = None, nics_per_node: int | None = None) -> tuple[Tier, ...]:
    """The bandwidths at which a slow path settles: one NIC of each rate, sockets, PCIe widths, host memory, NVLinks.

    With nic_gbps and nics_per_node also 2 .. n NICs of that rate; with a known gpu also 1 .. all of its NVLinks. Ranges
    overlap (PCIe Gen3 x16 is as fast as a 100 Gb/s NIC): which one it is, the rest of the evidence must say.
    """
    found = [nic_tier(rate) for rate in _numbers(_section("nic_efficiency")["rates_gbps"])]
    if nic_gbps is not None and nic_gbps > 0:
        if nic_gbps not in _numbers(_section("nic_efficiency")["rates_gbps"]):
            found.append(nic_tier(nic_gbps))
        found += [nic_tier(nic_gbps, count) for count in range(2, (nics_per_node or 1) + 1)]
    found += [_plain_tier(row, "socket") for row in _rows("sockets")]
    found += [_plain_tier(row, "host_memory") for row in _rows("host_memory")]
    found += _pcie_tiers()
    accelerator = find_accelerator(gpu)
    if accelerator is not None:
        found += _nvlink_tiers(accelerator)
    return tuple(found)


def matching_tiers(bytes_per_s: float, among: Iterable[Tier]) -> tuple[Tier, ...]:
    """The tiers a measured rate lies in, the narrowest range first: the sharper the match, the more it says."""
    held = [tier for tier in among if tier.holds(bytes_per_s)]
    return tuple(sorted(held, key=lambda tier: (tier.high_bytes_per_s / tier.low_bytes_per_s, tier.name)))


def nic_tier(nic_gbps: float, count: int = 1) -> Tier:
    """What RDMA over `count` NICs of one line rate carries: rate / 8 times the efficiency that was measured.

    >>> nic_tier(400).high_bytes_per_s / 1e9
    50.0
    """
    if nic_gbps <= 0 or count < 1:
        raise ValueError(f"{count} NICs of {nic_gbps} Gb/s carry nothing")
    row = _section("nic_efficiency")
    line_rate = nic_gbps * _GIGA / _BITS_PER_BYTE * count
    name = f"one {nic_gbps:g} Gb/s NIC" if count == 1 else f"{count} NICs of {nic_gbps:g} Gb/s"
    return Tier(name, "nic", line_rate * _number(row["low"]), line_rate * _number(row["high"]), str(row["source"]))


def _one_node(accelerator: Accelerator | None, ranks: int, kind: str) -> ExpectedRange | None:
    if accelerator is None or kind in {"send_recv", "p2p"}:
        return None
    bounds = _node_bounds(accelerator, ranks, kind)
    if bounds is None:
        return None
    low, high, limited_by, source = bounds
    return ExpectedRange(low, high, limited_by, source, int(_number(_section("reached_at")["bytes_one_node"])))


def _node_bounds(accelerator: Accelerator, ranks: int, kind: str) -> tuple[float, float, str, str] | None:
    """Low and high bytes/s of one node, what limits it, and the source; None where no row covers it."""
    for row in _rows("one_node"):
        if accelerator.name not in _texts(row["gpus"]):
            continue
        full_ranks = int(_number(row["full_ranks"]))
        bounds: object = None
        if ranks == full_ranks:
            bounds = _mapping(row["full"]).get(kind)
        elif ranks < full_ranks:
            bounds = row["partial"]
        if bounds is None:
            return None
        low, high = _numbers(bounds)
        return low * _GIGA, high * _GIGA, str(row["limited_by"]), str(row["source"])
    generation = accelerator.pcie_generation.value
    if accelerator.scale_up_shape.value not in {"none", "bridge"} or generation is None:
        return None
    row = _section("one_node_pcie")
    high = _number(_mapping(row["high_GB_s_by_generation"])[str(generation)]) * _GIGA
    return (
        _number(row["low_GB_s"]) * _GIGA,
        max(high, accelerator.scale_up_bytes_per_s.value or 0.0),
        "PCIe",
        str(row["source"]),
    )


def _more_nodes(
    accelerator: Accelerator | None,
    *,
    nodes: int,
    ranks: int,
    kind: str,
    nic_gbps: float | None,
    nics_per_node: int | None,
    one_nvlink_domain: bool,
) -> ExpectedRange | None:
    reached_at_bytes = _reached_at_bytes(ranks)
    domain = _nvlink_domain(accelerator, kind)
    if one_nvlink_domain and domain is not None:
        low, high, limited_by, source = domain
        return ExpectedRange(low, high, limited_by, source, reached_at_bytes)
    if not nic_gbps or not nics_per_node or nic_gbps < 0 or nics_per_node < 0:
        return None
    ranks_per_node = ranks // nodes
    nic_bytes_per_s = nic_gbps * _GIGA / _BITS_PER_BYTE
    nics = f"{nics_per_node} x {nic_gbps:g} Gb/s NICs"
    if kind in {"p2p", "send_recv"}:
        return _network_point_to_point(kind, ranks_per_node, nic_bytes_per_s, nics_per_node)
    if accelerator is None:
        return None
    full_ranks = _full_ranks(accelerator)
    # A node that is not full may leave NICs idle: NCCL gives each GPU the NICs next to it.
    nics_in_use = nics_per_node if ranks_per_node >= full_ranks else min(nics_per_node, ranks_per_node)
    all_nics = nic_bytes_per_s * nics_per_node
    if kind == "all_to_all":
        row = _section("nic_efficiency_all_to_all")
        # Of a rank's S bytes (n - r) / n leave the node, and busbw is S (n - 1) / (n t), so the NICs allow
        # busbw = (n - 1) / (n - r) * wire / r.
        per_wire = (ranks - 1) / (ranks - ranks_per_node) / ranks_per_node
        low = _number(row["low"]) * nic_bytes_per_s * nics_in_use * per_wire
        high = 1.05 * all_nics * per_wire
    else:
        row = _section("nic_efficiency_collective")
        low = _number(row["low"]) * nic_bytes_per_s * nics_in_use
        over = _section("all_reduce_over_wire")
        reduces_on_the_way = kind == "all_reduce"
        factor = _number(over["two_nodes" if nodes == 2 else "more_nodes"]) if reduces_on_the_way else 1.05
        high = factor * all_nics
    source, limited_by = str(row["source"]), nics
    node = _node_bounds(accelerator, min(ranks_per_node, full_ranks), kind) if ranks_per_node > 1 else None
    if node is None and ranks_per_node > 1:
        node = _slowest_known(accelerator)
    if node is not None and node[0] < low:
        low, limited_by, source = node[0], f"{node[2]} inside the node", node[3]
    if domain is not None:
        high = max(high, domain[1])
    return ExpectedRange(low, max(low, high), limited_by, source, reached_at_bytes)


def _slowest_known(accelerator: Accelerator) -> tuple[float, float, str, str]:
    """A floor for a node no row covers: a quarter of its scale-up links, or a PCIe box's low bound. A guess."""
    scale_up = accelerator.scale_up_bytes_per_s.value or 0.0
    row = _section("one_node_pcie")
    low = max(scale_up / 4, _number(row["low_GB_s"]) * _GIGA)
    source = f"a quarter of the links' rate (a guess); rate: {accelerator.scale_up_bytes_per_s.source}"
    return low, max(low, scale_up), "links between GPUs", source


def _network_point_to_point(
    kind: str, ranks_per_node: int, nic_bytes_per_s: float, nics_per_node: int
) -> ExpectedRange:
    row = _section("nic_efficiency_point_to_point")
    # One rank a node drives one NIC; eight ranks on 16 NICs drive two each.
    nics = max(1, nics_per_node // ranks_per_node) if ranks_per_node > 1 else 1
    share = min(nics_per_node / ranks_per_node, 1.0)
    low = _number(row[kind]) * nic_bytes_per_s * nics * (share if kind == "p2p" else 1.0)
    reached_at_bytes = int(_number(_section("reached_at")["bytes_one_node"]))
    return ExpectedRange(low, nic_bytes_per_s * nics_per_node, "one GPU's NICs", str(row["source"]), reached_at_bytes)


def _nvlink_domain(accelerator: Accelerator | None, kind: str) -> tuple[float, float, str, str] | None:
    if accelerator is None:
        return None
    for row in _rows("nvlink_domain"):
        bounds = _mapping(row["collectives"]).get(kind)
        if accelerator.name in _texts(row["gpus"]) and bounds is not None:
            low, high = _numbers(bounds)
            return low * _GIGA, high * _GIGA, str(row["limited_by"]), str(row["source"])
    return None


def _sockets(ranks: int) -> ExpectedRange:
    rows = [_plain_tier(row, "socket") for row in _rows("sockets")]
    return ExpectedRange(
        min(tier.low_bytes_per_s for tier in rows),
        max(tier.high_bytes_per_s for tier in rows),
        "TCP sockets",
        "; ".join(tier.source for tier in rows),
        _reached_at_bytes(ranks),
    )


def _full_ranks(accelerator: Accelerator) -> int:
    """GPUs of a full node: the row's, or 8 where no row covers the product."""
    rows = [row for row in _rows("one_node") if accelerator.name in _texts(row["gpus"])]
    if rows:
        return int(_number(rows[0]["full_ranks"]))
    return 4 if accelerator.model.startswith("GH") else 8


def _reached_at_bytes(ranks: int) -> int:
    row = _section("reached_at")
    return int(min(_number(row["bytes_per_rank_more_nodes"]) * ranks, _number(row["bytes_most"])))


def _plain_tier(row: Mapping[str, object], kind: str) -> Tier:
    low, high = _number(row["low_GB_s"]) * _GIGA, _number(row["high_GB_s"]) * _GIGA
    return Tier(str(row["name"]), kind, low, high, str(row["source"]))


def _pcie_tiers() -> list[Tier]:
    row = _section("pcie")
    found = []
    for generation in (3, 4, 5, 6):
        for width in _numbers(row["widths"]):
            nominal = nccl_pcie_bytes_per_s(generation, int(width))
            low, high = nominal * _number(row["practical_low"]), nominal * _number(row["practical_high"])
            found.append(Tier(f"PCIe Gen{generation} x{width:g}", "pcie", low, high, str(row["source"])))
    return found


def _nvlink_tiers(accelerator: Accelerator) -> list[Tier]:
    row = _section("nvlink")
    if accelerator.compute_capability is None or not accelerator.nvlinks.value:
        return []
    link = nccl_nvlink_bytes_per_s(accelerator.compute_capability)
    low, high = _number(row["practical_low"]) * link, _number(row["practical_high"]) * link
    return [
        Tier(f"{count} NVLink" + ("s" if count > 1 else ""), "nvlink", low * count, high * count, str(row["source"]))
        for count in range(1, accelerator.nvlinks.value + 1)
    ]


@lru_cache(maxsize=1)
def _table() -> Mapping[str, object]:
    return _mapping(json.loads(resources.files(__package__).joinpath("expected.json").read_text(encoding="utf-8")))


def _section(name: str) -> Mapping[str, object]:
    return _mapping(_table()[name])


def _rows(name: str) -> list[Mapping[str, object]]:
    return [_mapping(row) for row in _sequence(_table()[name])]


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected.json: expected an object, found {value!r}")
    return value


def _sequence(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected.json: expected a list, found {value!r}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected.json: expected a number, found {value!r}")
    return float(value)


def _numbers(value: object) -> list[float]:
    return [_number(item) for item in _sequence(value)]


def _texts(value: object) -> list[str]:
    return [str(item) for item in _sequence(value)]
