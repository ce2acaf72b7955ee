"""Simulation: what a network would do, event by event.

`packets` sends packets through queues. Imports hardware, statistics, units and errors.
"""

from busbw.simulation.packet_settings import TRANSPORTS, PacketSettings, packet_settings
from busbw.simulation.packets import PACKET_ROUTINGS, PacketFlows, PacketTimeline, StalledError, simulate_packets

__all__ = [
    "PACKET_ROUTINGS",
    "TRANSPORTS",
    "PacketFlows",
    "PacketSettings",
    "PacketTimeline",
    "StalledError",
    "packet_settings",
    "simulate_packets",
]
