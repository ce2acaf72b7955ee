"""Packets through queues: a simulation that runs in pieces."""

from typing import Annotated

import numpy
from numpy.typing import NDArray


class Settings:
    """
    What a simulation is told. Names and meanings as in busbw/sim/packet/settings.hpp; choices by number.
    """

    def __init__(self) -> None: ...

    @property
    def transport(self) -> int: ...

    @transport.setter
    def transport(self, arg: int, /) -> None: ...

    @property
    def overflow(self) -> int: ...

    @overflow.setter
    def overflow(self, arg: int, /) -> None: ...

    @property
    def choice(self) -> int: ...

    @choice.setter
    def choice(self, arg: int, /) -> None: ...

    @property
    def payload_bytes(self) -> int: ...

    @payload_bytes.setter
    def payload_bytes(self, arg: int, /) -> None: ...

    @property
    def header_bytes(self) -> int: ...

    @header_bytes.setter
    def header_bytes(self, arg: int, /) -> None: ...

    @property
    def control_bytes(self) -> int: ...

    @control_bytes.setter
    def control_bytes(self, arg: int, /) -> None: ...

    @property
    def in_order(self) -> bool: ...

    @in_order.setter
    def in_order(self, arg: bool, /) -> None: ...

    @property
    def control_before_data(self) -> bool: ...

    @control_before_data.setter
    def control_before_data(self, arg: bool, /) -> None: ...

    @property
    def queue_bytes(self) -> int: ...

    @queue_bytes.setter
    def queue_bytes(self, arg: int, /) -> None: ...

    @property
    def control_queue_bytes(self) -> int: ...

    @control_queue_bytes.setter
    def control_queue_bytes(self, arg: int, /) -> None: ...

    @property
    def mark_from_bytes(self) -> int: ...

    @mark_from_bytes.setter
    def mark_from_bytes(self, arg: int, /) -> None: ...

    @property
    def mark_all_bytes(self) -> int: ...

    @mark_all_bytes.setter
    def mark_all_bytes(self, arg: int, /) -> None: ...

    @property
    def mark_probability(self) -> float: ...

    @mark_probability.setter
    def mark_probability(self, arg: float, /) -> None: ...

    @property
    def pause_above_bytes(self) -> int: ...

    @pause_above_bytes.setter
    def pause_above_bytes(self, arg: int, /) -> None: ...

    @property
    def resume_below_bytes(self) -> int: ...

    @resume_below_bytes.setter
    def resume_below_bytes(self, arg: int, /) -> None: ...

    @property
    def credit_bytes(self) -> int: ...

    @credit_bytes.setter
    def credit_bytes(self, arg: int, /) -> None: ...

    @property
    def lanes(self) -> int: ...

    @lanes.setter
    def lanes(self, arg: int, /) -> None: ...

    @property
    def window_packets(self) -> int: ...

    @window_packets.setter
    def window_packets(self, arg: int, /) -> None: ...

    @property
    def entropies(self) -> int: ...

    @entropies.setter
    def entropies(self, arg: int, /) -> None: ...

    @property
    def avoid_congested(self) -> bool: ...

    @avoid_congested.setter
    def avoid_congested(self, arg: bool, /) -> None: ...

    @property
    def pull_rate(self) -> float: ...

    @pull_rate.setter
    def pull_rate(self, arg: float, /) -> None: ...

    @property
    def pull_overhead_bytes(self) -> int: ...

    @pull_overhead_bytes.setter
    def pull_overhead_bytes(self, arg: int, /) -> None: ...

    @property
    def pull_bytes(self) -> int: ...

    @pull_bytes.setter
    def pull_bytes(self, arg: int, /) -> None: ...

    @property
    def acknowledge_bytes(self) -> int: ...

    @acknowledge_bytes.setter
    def acknowledge_bytes(self, arg: int, /) -> None: ...

    @property
    def retransmit_after_ps(self) -> int: ...

    @retransmit_after_ps.setter
    def retransmit_after_ps(self, arg: int, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def sample_every_ps(self) -> int: ...

    @sample_every_ps.setter
    def sample_every_ps(self, arg: int, /) -> None: ...

    @property
    def end_at_ps(self) -> int: ...

    @end_at_ps.setter
    def end_at_ps(self, arg: int, /) -> None: ...

    @property
    def most_events(self) -> int: ...

    @most_events.setter
    def most_events(self, arg: int, /) -> None: ...

    @property
    def most_bytes(self) -> int: ...

    @most_bytes.setter
    def most_bytes(self, arg: int, /) -> None: ...

    def set_dcqcn(self, alpha_timer_ps: int, increase_timer_ps: int, notify_interval_ps: int, increase_bytes: int, g: float, fast_recovery_rounds: int, additive_bytes_per_s: float, hyper_bytes_per_s: float, least_bytes_per_s: float) -> None: ...

    def set_window(self, eta: float, most_stages: int, additive_bytes: float, beta: float, most_decrease: float, target_delay_ps: int) -> None: ...

class PacketSimulation:
    """A network with flows; time begins at 0."""

    def __init__(self, settings: Settings, route_first: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], route_link: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], route_node: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], link_bytes_per_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], link_latency_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], flow_forward: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], flow_backward: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], flow_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], flow_start_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], flow_lane: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Routes as a graph of choices, links and flows as columns; see busbw/sim/packet/network.hpp.
        """

    def run(self, events: int) -> int:
        """
        Runs for about that many more events. 0 not ended, 1 done, 2 stalled, 3 time, 4 events, 5 memory limit reached.
        """

    @property
    def now_ps(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def unfinished(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def rate(self, flow: int) -> float:
        """Rate of a flow's sender, bytes/s; 0 where the transport has none."""

    def waiting_chain(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """Links that wait for one another when nothing moves."""

    def flow_columns(self) -> dict:
        """Results of flows, (F,) int64 each; -1 where a time is not known."""

    def link_columns(self) -> dict:
        """Counts of links, (L,) int64 each."""

    def sample_columns(self) -> tuple:
        """Times in ps, (S,) int64, and bytes queued, (S * L,) int64."""
