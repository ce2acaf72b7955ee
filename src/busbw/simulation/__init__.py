"""Simulation: task programs on clusters, run by a discrete-event core at max-min fair rates; and packets through queues.

Knows no algorithm by name. May import collectives, observations, hardware, statistics, units and errors; never prediction.
"""

from busbw.simulation.analysis import CriticalPath, Exposure, critical_path, exposure, link_load, written_out
from busbw.simulation.causes import Cause, causes
from busbw.simulation.conditions import Background, Conditions, LinkFailure
from busbw.simulation.formats import read_graph
from busbw.simulation.graph import TaskGraph
from busbw.simulation.lowering import task_program
from busbw.simulation.observed import observations
from busbw.simulation.packet_settings import TRANSPORTS, PacketSettings, packet_settings
from busbw.simulation.packets import PACKET_ROUTINGS, PacketFlows, PacketTimeline, simulate_packets
from busbw.simulation.program import (
    Channel,
    Compute,
    Delay,
    Drain,
    Loop,
    Others,
    Peers,
    Receive,
    Send,
    Shift,
    Stream,
    Table,
    TaskProgram,
)
from busbw.simulation.simulate import Limits, Progress, StallError, simulate
from busbw.simulation.sweep import MOST_POINTS, Kept, Outcome, Point, outcome_of, sweep
from busbw.simulation.timeline import Repeat, Tasks, Timeline

__all__ = [
    "MOST_POINTS",
    "PACKET_ROUTINGS",
    "TRANSPORTS",
    "Background",
    "Cause",
    "Channel",
    "Compute",
    "Conditions",
    "CriticalPath",
    "Delay",
    "Drain",
    "Exposure",
    "Kept",
    "Limits",
    "LinkFailure",
    "Loop",
    "Others",
    "Outcome",
    "PacketFlows",
    "PacketSettings",
    "PacketTimeline",
    "Peers",
    "Point",
    "Progress",
    "Receive",
    "Repeat",
    "Send",
    "Shift",
    "StallError",
    "Stream",
    "Table",
    "TaskGraph",
    "TaskProgram",
    "Tasks",
    "Timeline",
    "causes",
    "critical_path",
    "exposure",
    "link_load",
    "observations",
    "outcome_of",
    "packet_settings",
    "read_graph",
    "simulate",
    "simulate_packets",
    "sweep",
    "task_program",
    "written_out",
]
