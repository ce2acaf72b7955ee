"""What RDMA tools print of the speed of a link, in one form: data bytes per second of all lanes, one direction.

Tools print three different figures for the same link, so all become one here, the rate of data behind the line code:

- iblinkinfo and `ibv_devinfo -v` print one lane: the signalling rate (2.5, 5.0, 10.0, 14.0625, 25.78125, 53.125, 106.25 Gbps) or, from EDR
  on, the data rate (25.0, 50.0, 100.0);
- ibnetdiscover and ibstatus print the name of the speed (SDR ... XDR);
- ibstat and sysfs print the sum of all lanes: signalling for SDR, DDR and QDR (4X QDR: 40), 14 a lane for FDR, data from EDR on.

SDR, DDR and QDR are coded 8b/10b: data is 8/10 of what is printed (4X QDR, "40", carries 32 Gb/s). FDR10 and FDR are coded 64b/66b: FDR10's
10.3125 Gb/s carry 10, FDR's 14.0625 carry 13.64. From EDR on the names stand for data: 25, 50, 100, 200 Gb/s a lane.
Sources: InfiniBand Architecture Specification, volume 1, PortInfo LinkSpeedActive and LinkSpeedExtActive, and volume 2, link encodings;
linux drivers/infiniband/core/sysfs.c (rate_show); rdma-core libibmad/dump.c (mad_dump_linkspeed, mad_dump_linkspeedext) and
libibverbs/examples/devinfo.c (speed_str).

On Ethernet every figure is data already: a port of 40 Gb/s that a driver reports as 4X QDR carries 40.
"""

from __future__ import annotations

from busbw.units import GBIT

__all__ = ["lane_bytes_per_s", "port_bytes_per_s", "speed_name"]

_LANE_GBIT_PER_S = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data of one lane, by the name of the speed."""

_NAME_OF_PRINTED = {
    2.5: "SDR",
    5.0: "DDR",
    10.0: "QDR",
    10.3125: "FDR10",
    14.0: "FDR",
    14.0625: "FDR",
    25.0: "EDR",
    25.78125: "EDR",
    50.0: "HDR",
    53.125: "HDR",
    100.0: "NDR",
    106.25: "NDR",
    200.0: "XDR",
    212.5: "XDR",
}
"""By the figure of one lane, in Gb/s."""

_LANES = (1, 2, 4, 8, 12)
_SUMS_8B10B = frozenset(lanes * lane for lanes in _LANES for lane in (2.5, 5.0, 10.0))
_SUMS_FDR = frozenset(lanes * 14.0 for lanes in _LANES)
"""Sums that sysfs prints; no product of EDR, HDR, NDR or XDR is among them."""


def speed_name(lane_gbit_per_s: float, *, fdr10: bool = False) -> str | None:
    """The name of a lane's speed from the figure that a tool prints for it; None if no speed has it.

    10.0 is QDR unless the tool adds that it is FDR10.

    >>> speed_name(25.78125), speed_name(10.0), speed_name(10.0, fdr10=True), speed_name(3.0)
    ('EDR', 'QDR', 'FDR10', None)
    """
    return "FDR10" if fdr10 and lane_gbit_per_s == 10.0 else _NAME_OF_PRINTED.get(lane_gbit_per_s)


def lane_bytes_per_s(name: str | None) -> float | None:
    """Data of one lane of this speed; None for a name that no speed has.

    >>> lane_bytes_per_s("NDR"), lane_bytes_per_s("QDR")
    (12500000000.0, 1000000000.0)
    """
    lane = _LANE_GBIT_PER_S.get(name.upper()) if name is not None else None
    return lane * GBIT if lane is not None else None


def port_bytes_per_s(printed_gbit_per_s: float, *, ethernet: bool = False, fdr10: bool = False) -> float:
    """Data of a port from the sum that ibstat and sysfs print.

    >>> port_bytes_per_s(400) / GBIT, port_bytes_per_s(40) / GBIT, port_bytes_per_s(40, fdr10=True) / GBIT, port_bytes_per_s(40, ethernet=True) / GBIT
    (400.0, 32.0, 40.0, 40.0)
    """
    data = printed_gbit_per_s
    if not ethernet and not fdr10:
        if printed_gbit_per_s in _SUMS_8B10B:
            data *= 0.8
        elif printed_gbit_per_s in _SUMS_FDR:
            data *= 14.0625 / 14.0 * 64 / 66
    return data * GBIT
