"""Simulation: task programs on clusters, run by a discrete-event core at max-min fair rates; and packets through queues.

Knows no algorithm by name. May import collectives, observations, hardware, statistics, units and errors; never prediction.
"""

from busbw.simulation.analysis import CriticalPath, Exposure, critical_path, exposure, link_load, written_out
from busbw.simulation.causes import Cause, causes
from busbw.simulation.conditions import Background, Conditions, LinkFailure
from busbw.simulation.formats import read_graph
from busbw.simulation.graph import TaskGraph
from busbw.simulation.limits import Limits, Progress
from busbw.simulation.lowering import task_program
from busbw.simulation.observed import observations
from busbw.simulation.packet_settings import TRANSPORTS, PacketSettings, packet_settings
from busbw.simulation.packets import PACKET_ROUTINGS, PacketFlows, PacketTimeline, simulate_packets
from busbw.simulation.peers import Others, Peers, Shift, Table
from busbw.simulation.plans import plan_program
from busbw.simulation.program import (
    Carried,
    Channel,
    Compute,
    Delay,
    Drain,
    Free,
    Instruction,
    Loop,
    Put,
    Receive,
    Send,
    Stream,
    Take,
    TaskProgram,
)
from busbw.simulation.runtimes import NCCL, WHOLE, Fifo, Runtime
from busbw.simulation.simulate import StallError, simulate
from busbw.simulation.sweep import MOST_POINTS, Kept, Outcome, Point, outcome_of, sweep
from busbw.simulation.timeline import Repeat, Tasks, Timeline

__all__ = [
    "MOST_POINTS",
    "NCCL",
    "PACKET_ROUTINGS",
    "TRANSPORTS",
    "WHOLE",
    "Background",
    "Carried",
    "Cause",
    "Channel",
    "Compute",
    "Conditions",
    "CriticalPath",
    "Delay",
    "Drain",
    "Exposure",
    "Fifo",
    "Free",
    "Instruction",
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
    "Put",
    "Receive",
    "Repeat",
    "Runtime",
    "Send",
    "Shift",
    "StallError",
    "Stream",
    "Table",
    "Take",
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
    "plan_program",
    "read_graph",
    "simulate",
    "simulate_packets",
    "sweep",
    "task_program",
    "written_out",
]
