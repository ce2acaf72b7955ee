"""How packets are sent: transports, queues and thresholds, one record that the compiled simulator takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from busbw.errors import InputError

__all__ = ["TRANSPORTS", "PacketSettings", "packet_settings"]

TRANSPORTS = ("ndp", "eqds", "roce", "dcqcn", "hpcc", "swift", "infiniband")
"""ndp: receiver pulls, queues trim. eqds: receiver gives credit, queues trim; UEC's receiver-driven control is like it.
roce: line rate under PFC. dcqcn: the same with rates by ECN. hpcc: windows by what links report, under PFC. swift:
windows by delay, queues drop. infiniband: credit from buffer to buffer."""
SENDERS = {"ndp": 0, "eqds": 1, "line-rate": 2, "dcqcn": 3, "hpcc": 4, "swift": 5}
OVERFLOWS = ("drop", "trim", "pause", "credit")


@dataclass(frozen=True, slots=True)
class PacketSettings:
    """Everything but routes, links and flows. `packet_settings` gives those of a transport."""

    sender: str
    """ndp, eqds, line-rate, dcqcn, hpcc or swift."""
    overflow: str
    """What a full queue does: drop, trim, pause (PFC) or credit (InfiniBand)."""
    payload_bytes: int = 4096
    """Of a packet: InfiniBand's and RoCE's largest MTU."""
    header_bytes: int = 64
    """Of a data packet. 64: as csg-htsim 841d9e7b counts, ndppacket.h and eqdspacket.h."""
    control_bytes: int = 64
    """Acknowledgements, pulls, trimmed headers. Source: as above."""
    in_order: bool = False
    """A receiver that takes packets in order only; the source goes back to what is missing."""
    control_before_data: bool = True
    """Control has a queue of its own that is served first; else it waits among data."""
    queue_packets: float = 15
    """Room for data in an output queue. 15: csg-htsim, main_ndp.cpp."""
    control_queue_packets: float = 30
    """Room for control, in data packets. Twice that of data: csg-htsim, compositequeue.cpp."""
    mark_from_packets: float = 0
    """ECN: nothing is marked below, all above mark_all_packets, in between in proportion up to mark_probability."""
    mark_all_packets: float = 0
    """0: no marks."""
    mark_probability: float = 1.0
    pause_above_packets: float = 0
    """PFC: of what one link brought into a switch and is still there."""
    resume_below_packets: float = 0
    credit_packets: float = 0
    """InfiniBand: room of the buffer at a link's end, one virtual lane."""
    lanes: int = 1
    """Virtual lanes of data, 1 to 4."""
    window_packets: int = 0
    """ndp, eqds: what goes before the receiver is heard. hpcc, swift: the largest window; 0: of the base round trip, twice that for swift."""
    entropies: int = 0
    """Numbers a flow's packets carry in turn, which switches hash; 0: all paths in a shuffled order, without hashing."""
    avoid_congested: bool = False
    """A number whose packet was trimmed or marked is left out once."""
    pull_rate: float = 1.0
    """Of the receiver's link."""
    pull_overhead_bytes: int = 0
    pull_bytes: int = 0
    """eqds: credit of one pull."""
    acknowledge_bytes: int = 0
    """eqds: one acknowledgement for as many."""
    retransmit_after_s: float = 0.0
    """Without a sign of the receiver, doubled each time in a row; 0: never."""
    alpha_timer_s: float = 55e-6
    """dcqcn. Source: Zhu et al. 2015, section 5.2."""
    increase_timer_s: float = 55e-6
    """dcqcn. Source: as above."""
    notify_interval_s: float = 50e-6
    """dcqcn: least time between notifications of a flow. Source: as above, section 3."""
    increase_bytes: int = 10_000_000
    """dcqcn: byte counter. Source: as above, section 5.2."""
    g: float = 1 / 256
    """dcqcn. Source: as above."""
    fast_recovery_rounds: int = 5
    """dcqcn. Source: as above."""
    additive_bytes_per_s: float = 5e6
    """dcqcn: 40 Mb/s. Source: as above."""
    hyper_bytes_per_s: float = 50e6
    """dcqcn: 400 Mb/s, ten times the additive step. A guess: the paper names none."""
    least_bytes_per_s: float = 1.25e6
    """dcqcn: 10 Mb/s. A guess."""
    eta: float = 0.95
    """hpcc. Source: Li et al. 2019, section 5.1."""
    most_stages: int = 5
    """hpcc. Source: as above."""
    additive_bytes: float = 80.0
    """hpcc: W_AI of the paper's simulations (80 bytes); swift takes one packet."""
    beta: float = 0.8
    """swift. Source: Kumar et al. 2020, table of parameters as public code has it; unverified."""
    most_decrease: float = 0.5
    """swift. Source: as above."""
    target_delay_s: float = 5e-6
    """swift: above the base round trip. A guess, a queue of 15 packets of 4 KiB at 100 Gb/s."""

    def __post_init__(self) -> None:
        if self.sender not in SENDERS:
            raise InputError(f"sender {self.sender!r} is unknown; known: {', '.join(SENDERS)}")
        if self.overflow not in OVERFLOWS:
            raise InputError(f"overflow {self.overflow!r} is unknown; known: {', '.join(OVERFLOWS)}")
        if not 1 <= self.payload_bytes + self.header_bytes <= 65535 or self.payload_bytes < 1:
            raise InputError(f"packets of {self.payload_bytes} + {self.header_bytes} bytes: 1 to 65535 can be sent")
        if not (self.queue_packets >= 1 and self.control_queue_packets >= 1):
            raise InputError(
                f"queue_packets {self.queue_packets:g}, control_queue_packets {self.control_queue_packets:g}: a queue holds 1 at least"
            )
        if not 1 <= self.lanes <= 4:
            raise InputError(f"{self.lanes} virtual lanes: 1 to 4")
        if self.overflow == "trim" and self.sender not in ("ndp", "eqds", "swift"):
            raise InputError(f"{self.sender} does not understand trimmed packets: take overflow drop or pause")
        if self.overflow == "pause" and not self.pause_above_packets >= self.resume_below_packets > 0:
            raise InputError("PFC needs pause_above_packets >= resume_below_packets > 0")

    @property
    def packet_bytes(self) -> int:
        """A full data packet on the wire."""
        return self.payload_bytes + self.header_bytes


_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # csg-htsim 841d9e7b, main_ndp.cpp: packets of 9000 bytes, window and queue of 15, pulls at 0.99 of the link.
    # 1 ms of silence: a guess; htsim waits 50 ms, which matters where even headers are lost.
    "ndp": {
        "sender": "ndp",
        "overflow": "trim",
        "payload_bytes": 9000,
        "window_packets": 15,
        "pull_rate": 0.99,
        "retransmit_after_s": 1e-3,
    },
    # csg-htsim 841d9e7b, main_eqds.cpp and eqds.cpp: queue of 35 packets, window of 50, 64 numbers, credit of 4 KiB a pull.
    "eqds": {
        **{
            "sender": "eqds",
            "overflow": "trim",
            "payload_bytes": 4086,
            "queue_packets": 35,
            "control_queue_packets": 70,
        },
        **{"window_packets": 50, "pull_rate": 0.99, "pull_overhead_bytes": 38, "pull_bytes": 4096, "entropies": 64},
        **{"avoid_congested": True, "acknowledge_bytes": 16384, "retransmit_after_s": 250e-6},
    },
    # csg-htsim 841d9e7b, main_roce.cpp: PFC thresholds of 15 and 12 packets, acknowledgements among data.
    "roce": {
        **{
            "sender": "line-rate",
            "overflow": "pause",
            "in_order": True,
            "pause_above_packets": 15,
            "resume_below_packets": 12,
        },
        **{"control_before_data": False},
    },
    # Thresholds of ECN of 5 KB and 200 KB at 40 Gb/s with 1 KiB packets (Zhu et al. 2015, table 14), here in packets of a
    # link of 100 Gb/s and more: a guess.
    "dcqcn": {
        **{
            "sender": "dcqcn",
            "overflow": "pause",
            "in_order": True,
            "pause_above_packets": 120,
            "resume_below_packets": 100,
        },
        **{"mark_from_packets": 5, "mark_all_packets": 50, "mark_probability": 0.01},
    },
    "hpcc": {
        "sender": "hpcc",
        "overflow": "pause",
        "in_order": True,
        "pause_above_packets": 120,
        "resume_below_packets": 100,
    },
    "swift": {
        **{
            "sender": "swift",
            "overflow": "drop",
            "queue_packets": 100,
            "control_queue_packets": 200,
            "additive_bytes": 4160.0,
        },
        "retransmit_after_s": 1e-3,
    },
    # A buffer of 16 packets a lane: a guess; vendors do not publish theirs.
    "infiniband": {
        "sender": "line-rate",
        "overflow": "credit",
        "in_order": True,
        "credit_packets": 16,
        "header_bytes": 30,
    },
}


def packet_settings(transport: str, **changes: Any) -> PacketSettings:
    """Settings of a transport, some of them changed.

    Raises InputError for a transport or a setting that is not there.

    >>> packet_settings("ndp", payload_bytes=4096).packet_bytes
    4160
    """
    if transport not in _PRESETS:
        raise InputError(f"transport {transport!r} is unknown; known: {', '.join(TRANSPORTS)}")
    known = {field.name for field in fields(PacketSettings)}
    for name in changes:
        if name not in known:
            raise InputError(f"setting {name!r} is unknown; known: {', '.join(sorted(known))}")
    return replace(PacketSettings(**_PRESETS[transport]), **changes)
