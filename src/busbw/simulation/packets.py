"""Packets through queues: for what flows cannot answer, such as incast, head-of-line blocking and collisions of hashes.

`simulate_packets` runs flows over the routes of a fabric or cluster and says when each ended and what each link saw.
Legend: F flows, L links in use, S samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from busbw.errors import InputError
from busbw.hardware import Cluster, Fabric
from busbw.hardware.links import FloatArray, IntArray
from busbw.simulation import _packets
from busbw.simulation.packet_routes import PacketRoutes, as_uint32, packet_routes
from busbw.simulation.packet_settings import OVERFLOWS, SENDERS, PacketSettings, packet_settings
from busbw.simulation.simulate import StallError

__all__ = ["PACKET_ROUTINGS", "PacketFlows", "PacketTimeline", "simulate_packets"]

PACKET_ROUTINGS = ("d-mod-k", "ecmp", "spray", "random", "adaptive")
"""d-mod-k, ecmp: one path a flow, as `busbw.hardware.routing` gives it. spray: packets of a flow in turn over all paths,
or over hashed numbers where the settings say how many. random: each packet at each switch anew. adaptive: the link with
the least queued."""
_CHOICES = {"spray": 0, "entropy": 1, "random": 2, "adaptive": 3}
_ENDED = ("running", "done", "stalled", "time limit", "event limit", "memory limit")
_PIECE_EVENTS = 1 << 18
"""Events between two looks at the clock and at Ctrl-C: a few hundredths of a second."""
_PS = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class PacketFlows:
    """What is sent, column by column. src and dst are endpoints of a fabric, or GPUs of a cluster."""

    src: IntArray
    """(F,) int64."""
    dst: IntArray
    """(F,) int64."""
    size_bytes: IntArray
    """(F,) int64: payload."""
    start_s: FloatArray
    """(F,) float64."""
    lane: IntArray
    """(F,) int64: virtual lane."""

    @classmethod
    def of(
        cls,
        src: object,
        dst: object,
        size_bytes: object,
        *,
        start_s: object = 0.0,
        lane: object = 0,
    ) -> PacketFlows:
        """Flows from anything that numpy broadcasts to columns of one length. Raises InputError where it does not.

        >>> len(PacketFlows.of(range(1, 128), 0, 2_000_000))
        127
        """
        try:
            columns = np.broadcast_arrays(
                *(np.atleast_1d(np.asarray(part)) for part in (src, dst, size_bytes, start_s, lane))
            )
        except ValueError:
            raise InputError("columns of flows differ in length") from None
        whole = [np.ascontiguousarray(columns[i], np.int64) for i in (0, 1, 2, 4)]
        begins = np.ascontiguousarray(columns[3], np.float64)
        if len(begins) and (whole[2].min() < 0 or not np.isfinite(begins).all() or begins.min() < 0):
            raise InputError("sizes and starts of flows must not be negative")
        return cls(whole[0], whole[1], whole[2], begins, whole[3])

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class PacketTimeline:
    """What happened. Times in seconds from 0; NaN where a flow had not got so far."""

    ended: str
    """done, stalled, interrupted, or the limit that was met: time limit, event limit, memory limit."""
    now_s: float
    """Time of the last event."""
    events: int
    flows: PacketFlows
    delivered_s: FloatArray
    """(F,): the last byte is at its destination."""
    completed_s: FloatArray
    """(F,): and its source knows."""
    flow_counts: dict[str, IntArray]
    """(F,) each: delivered_bytes, sent_packets, again_packets, trimmed_packets, marked_packets, out_of_order, timeouts."""
    link_ids: IntArray
    """(L,) int64: the network's numbers of links in use; all columns of links are in this order."""
    link_counts: dict[str, IntArray]
    """(L,) each: sent_bytes, packets, dropped, trimmed, marked, pauses, paused_ps, most_queued_bytes."""
    link_bandwidth_bytes_per_s: FloatArray
    """(L,)."""
    sample_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """(S,)."""
    queued_bytes: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    """(S, L): data in the queue before each link."""
    waiting_links: tuple[str, ...] = ()
    """Links that wait for one another, each for room behind the next; where the network stands still."""

    @property
    def durations_s(self) -> FloatArray:
        """(F,): from start to completed."""
        return np.asarray(self.completed_s - self.flows.start_s, np.float64)

    @property
    def last_s(self) -> float:
        """When the last flow was complete; NaN if one was not."""
        return float(self.completed_s.max()) if len(self.completed_s) else 0.0

    def utilisation(self) -> FloatArray:
        """(L,): share of the time to the last event that each link was sending."""
        return np.asarray(
            self.link_counts["sent_bytes"] / self.link_bandwidth_bytes_per_s / max(self.now_s, 1e-12), np.float64
        )


def simulate_packets(
    flows: PacketFlows,
    network: Cluster | Fabric,
    *,
    transport: str | PacketSettings = "ndp",
    routing: str = "spray",
    seed: int = 0,
    flow_label: IntArray | None = None,
    sample_every_s: float = 0.0,
    end_at_s: float | None = None,
    most_events: int | None = None,
    most_bytes: int | None = None,
    most_s: float | None = None,
    progress: Callable[[int, float], None] | None = None,
    partial: bool = False,
) -> PacketTimeline:
    """When flows end and what links see, packet by packet.

    transport: one of TRANSPORTS, or settings from `packet_settings`. routing: one of PACKET_ROUTINGS; ecmp hashes
    flow_label, (F,), by default each flow's place. Same arguments, same result, to the picosecond and byte. Order is
    kept by (time, sequence), time is integer picoseconds.

    Limits: end_at_s in simulated time, most_events, most_bytes of memory, most_s of wall time; what is known then is
    returned, as it is after Ctrl-C. progress is called with (events, simulated seconds) a few times a second.
    Raises InputError for flows between endpoints that are not there or not joined, and for a link without bandwidth;
    StallError where the network stands still, unless partial.
    """
    settings = packet_settings(transport) if isinstance(transport, str) else transport
    if routing not in PACKET_ROUTINGS:
        raise InputError(f"routing {routing!r} is unknown; known: {', '.join(PACKET_ROUTINGS)}")
    fixed = routing if routing in ("d-mod-k", "ecmp") else None
    label = np.arange(len(flows), dtype=np.int64) if flow_label is None else np.asarray(flow_label, np.int64)
    _check_ends(flows, network)
    routes = packet_routes(network, flows.src, flows.dst, fixed=fixed, flow=label, seed=seed)
    _check_bandwidth(routes, network)
    native = _native_settings(settings, routing, seed)
    native.sample_every_ps = round(sample_every_s * _PS)
    if end_at_s is not None:
        native.end_at_ps = round(end_at_s * _PS)
    if most_events is not None:
        native.most_events = most_events
    if most_bytes is not None:
        native.most_bytes = most_bytes
    simulation = _simulation(native, routes, flows)
    ended = _run(simulation, most_s, progress)
    waiting = (
        tuple(_link_name(network, int(routes.link_ids[link])) for link in simulation.waiting_chain())
        if ended == "stalled"
        else ()
    )
    if ended == "stalled" and not partial:
        raise StallError(_stall_message(simulation, waiting))
    return _timeline(simulation, ended, flows, routes, waiting)


def _check_ends(flows: PacketFlows, network: Cluster | Fabric) -> None:
    ends, what = (network.gpus, "GPUs") if isinstance(network, Cluster) else (network.endpoints, "endpoints")
    for side in (flows.src, flows.dst):
        if len(side) and (side.min() < 0 or side.max() >= ends):
            wrong = int(side[(side < 0) | (side >= ends)][0])
            raise InputError(f"flow from or to {wrong}: the network has {what} 0 to {ends - 1}")


def _check_bandwidth(routes: PacketRoutes, network: Cluster | Fabric) -> None:
    dead = np.flatnonzero(~(routes.bandwidth_bytes_per_s > 0))
    if len(dead):
        name = _link_name(network, int(routes.link_ids[dead[0]]))
        others = f", nor have {len(dead) - 1} others in use" if len(dead) > 1 else ""
        raise InputError(
            f"link {name} has no bandwidth{others}, and packets cross it. Give it some, or fail it so that routes go round it"
        )


def _link_name(network: Cluster | Fabric, link: int) -> str:
    if isinstance(network, Cluster):
        return network.link_name(link)
    src, dst = network.link_ends(np.array([link], np.int64))
    return f"{network.vertex_name(int(src[0]))} -> {network.vertex_name(int(dst[0]))}"


def _native_settings(settings: PacketSettings, routing: str, seed: int) -> _packets.Settings:
    native = _packets.Settings()
    packet = settings.packet_bytes
    native.transport = SENDERS[settings.sender]
    native.overflow = OVERFLOWS.index(settings.overflow)
    native.choice = (
        _CHOICES["entropy" if routing == "spray" and settings.entropies else routing] if routing in _CHOICES else 0
    )
    for name in (
        *(
            "payload_bytes",
            "header_bytes",
            "control_bytes",
            "in_order",
            "control_before_data",
            "mark_probability",
            "lanes",
        ),
        *(
            "window_packets",
            "entropies",
            "avoid_congested",
            "pull_rate",
            "pull_overhead_bytes",
            "pull_bytes",
            "acknowledge_bytes",
        ),
    ):
        setattr(native, name, getattr(settings, name))
    for name in ("queue", "control_queue", "mark_from", "mark_all", "pause_above", "resume_below", "credit"):
        setattr(native, f"{name}_bytes", round(getattr(settings, f"{name}_packets") * packet))
    native.retransmit_after_ps = round(settings.retransmit_after_s * _PS)
    native.seed = seed & 0xFFFFFFFFFFFFFFFF
    native.set_dcqcn(
        alpha_timer_ps=round(settings.alpha_timer_s * _PS),
        increase_timer_ps=round(settings.increase_timer_s * _PS),
        notify_interval_ps=round(settings.notify_interval_s * _PS),
        increase_bytes=settings.increase_bytes,
        g=settings.g,
        fast_recovery_rounds=settings.fast_recovery_rounds,
        additive_bytes_per_s=settings.additive_bytes_per_s,
        hyper_bytes_per_s=settings.hyper_bytes_per_s,
        least_bytes_per_s=settings.least_bytes_per_s,
    )
    native.set_window(
        eta=settings.eta,
        most_stages=settings.most_stages,
        additive_bytes=settings.additive_bytes,
        beta=settings.beta,
        most_decrease=settings.most_decrease,
        target_delay_ps=round(settings.target_delay_s * _PS),
    )
    return native


def _simulation(native: _packets.Settings, routes: PacketRoutes, flows: PacketFlows) -> _packets.PacketSimulation:
    latency: NDArray[np.int64] = np.round(routes.latency_s * _PS).astype(np.int64)
    try:
        return _packets.PacketSimulation(
            native,
            as_uint32(routes.first),
            as_uint32(routes.link),
            as_uint32(routes.node),
            np.ascontiguousarray(routes.bandwidth_bytes_per_s, np.float64),
            latency,
            as_uint32(routes.forward),
            as_uint32(routes.backward),
            np.ascontiguousarray(flows.size_bytes, np.int64),
            np.round(flows.start_s * _PS).astype(np.int64),
            flows.lane.astype(np.int32),
        )
    except ValueError as error:
        raise InputError(str(error)) from None


def _run(
    simulation: _packets.PacketSimulation,
    most_s: float | None,
    progress: Callable[[int, float], None] | None,
) -> str:
    begun = told = time.monotonic()
    try:
        while not (ended := simulation.run(_PIECE_EVENTS)):
            now = time.monotonic()
            if progress is not None and now - told >= 0.25:
                progress(simulation.events, simulation.now_ps / _PS)
                told = now
            if most_s is not None and now - begun >= most_s:
                return "time limit"
    except KeyboardInterrupt:
        return "interrupted"
    return _ENDED[ended]


def _stall_message(simulation: _packets.PacketSimulation, waiting: tuple[str, ...]) -> str:
    shown = "; ".join(waiting[:8]) + (f"; and {len(waiting) - 8} more" if len(waiting) > 8 else "")
    where = f"These links wait, each for room behind the next: {shown}" if waiting else "No link waits for another"
    return (
        f"the network stands still at {simulation.now_ps / 1e6:.3f} us with {simulation.unfinished} flows not complete. {where}. "
        "Take routes without cycles, more virtual lanes, or larger buffers; --partial keeps what is known"
    )


def _timeline(
    simulation: _packets.PacketSimulation,
    ended: str,
    flows: PacketFlows,
    routes: PacketRoutes,
    waiting: tuple[str, ...],
) -> PacketTimeline:
    columns = dict(simulation.flow_columns())
    times, queued = simulation.sample_columns()
    links = len(routes.link_ids)
    return PacketTimeline(
        ended=ended,
        now_s=simulation.now_ps / _PS,
        events=simulation.events,
        flows=flows,
        delivered_s=_seconds(columns.pop("delivered_ps")),
        completed_s=_seconds(columns.pop("completed_ps")),
        flow_counts=columns,
        link_ids=routes.link_ids,
        link_counts=dict(simulation.link_columns()),
        link_bandwidth_bytes_per_s=routes.bandwidth_bytes_per_s,
        sample_s=_seconds(times),
        queued_bytes=np.asarray(queued, np.int64).reshape(len(times), links),
        waiting_links=waiting,
    )


def _seconds(ps: IntArray) -> FloatArray:
    return np.where(ps >= 0, ps / _PS, np.nan)
