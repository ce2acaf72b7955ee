"""What counters of NICs, ports and GPUs count, whatever tool spells their names."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence

from busbw.diagnosis.facts import Counter, Event, Facts, Growth

__all__ = [
    "BIT_ERRORS",
    "LINK_DOWN",
    "LOSSES",
    "WAITING",
    "Siblings",
    "counted",
    "grown",
    "named_in",
    "on_infiniband",
    "who",
    "word",
]

_PREFIX = re.compile(r"^(?:dcgm_fi_dev_|dcgm_fi_prof_|node_infiniband_|node_network_)", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

LOSSES = re.compile(
    r"local_ack_timeout_err|packet_seq_err|out_of_sequence|implied_nak_seq_err|roce_adp_retrans|rx_discards_phy|rx_prio\d_discards"
)
"""Packets lost, or asked for again (Documentation/ABI/stable/sysfs-class-infiniband; NVIDIA, "Understanding mlx5 Ethtool Counters")."""
LINK_DOWN = re.compile(r"link_downed(?:_counter)?|link_down_events_phy|link_error_recovery(?:_counter)?")
"""The link was lost, or had to train again (InfiniBand Architecture Specification, PortCounters; mlx5 ethtool counters)."""
BIT_ERRORS = re.compile(
    r"symbol_errors?(?:_counter)?|port_rcv_errors|port_receive_errors|local_link_integrity_errors|rx_symbol_err_phy|rx_crc_errors_phy|rx_pcs_symbol_err_phy"
)
"""Bits that arrived wrong: cable, transceiver, port (the same sources)."""
WAITING = re.compile(r"port_(?:xmit|transmit)_(?:wait|discards)|[rt]x_prio\d_pause(?:_duration)?")
"""Data waits because the next hop takes none (PortXmitWait), is dropped after waiting too long (PortXmitDiscards), or pause frames say so."""


def word(name: str) -> str:
    """The name in lower case with underscores, without the prefix of its exporter.

    >>> word("PortRcvErrors"), word("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), word("node_infiniband_link_downed_total")
    ('port_rcv_errors', 'pcie_replay_counter', 'link_downed')
    """
    short = _PREFIX.sub("", name)
    if not short.isupper():
        short = _CAMEL.sub("_", short)
    return re.sub(r"[^a-z0-9]+", "_", short.lower()).strip("_").removesuffix("_total")


def who(counter: Counter) -> str:
    """For people: host, device, port, and the GPU or link that a label names."""
    parts = [counter.host or "", counter.device or ""]
    parts += [f"port {counter.port}"] if counter.port is not None else []
    parts += [f"{key} {value}" for key, value in counter.labels if key.lower() in ("gpu", "link", "nvlink")]
    return " ".join(part for part in parts if part) or counter.at.path


def named_in(counter: Counter, events: Sequence[Event]) -> list[Event]:
    """Messages that are about the counter's device: of its host and naming the device, else of its host, which must be known."""
    here = [e for e in events if counter.host is None or e.host is None or e.host == counter.host]
    named = [e for e in here if counter.device and re.search(rf"(?<![\w]){re.escape(counter.device)}(?![\w])", e.text)]
    return named or [e for e in here if counter.host is not None and e.host == counter.host]


def on_infiniband(facts: Facts, counter: Counter) -> bool:
    """Whether the port that a counter belongs to is known to speak InfiniBand, by its host and name, or by its name on every host if it has none."""
    layers = {
        (port.link_layer or "").lower()
        for port in facts.ports
        if port.device == counter.device
        and port.link_layer
        and (port.host is None or counter.host is None or port.host == counter.host)
    }
    return layers == {"infiniband"}


class Siblings:
    """Values of one counter, put in order once for all questions."""

    def __init__(self, values: Iterable[float]) -> None:
        self._ordered = sorted(values)

    def stands_out(self, value: float, times: float, least: float) -> bool:
        """Whether one of at least three values is `times` the median of the others, and at least `least`."""
        n = len(self._ordered) - 1
        if n < 2 or value < least:
            return False
        gone = bisect.bisect_left(self._ordered, value)
        low, high = (self._ordered[i + (i >= gone)] for i in ((n - 1) // 2, n // 2))
        return value >= times * max((low + high) / 2, least / times)


def grown(facts: Facts, pattern: re.Pattern[str]) -> list[Growth]:
    """Counters of these names that grew, the strongest first."""
    found = [g for g in facts.growths if g.by > 0 and pattern.fullmatch(word(g.last.name))]
    return sorted(found, key=lambda g: -g.by)


def counted(facts: Facts, pattern: re.Pattern[str]) -> list[Counter]:
    """Counters of these names, whatever their value; what they count began at the boot or the last reset."""
    return [c for c in facts.counters if pattern.fullmatch(word(c.name))]
