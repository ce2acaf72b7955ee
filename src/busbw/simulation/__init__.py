"""Simulation: task programs on clusters, run by a discrete-event core at max-min fair rates.

Knows no algorithm by name. May import collectives, hardware, statistics, units and errors; never prediction.
"""

from busbw.simulation.analysis import CriticalPath, Exposure, critical_path, exposure, link_load, written_out
from busbw.simulation.causes import Cause, causes
from busbw.simulation.conditions import Background, Conditions, LinkFailure
from busbw.simulation.formats import read_graph
from busbw.simulation.graph import TaskGraph
from busbw.simulation.lowering import task_program
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
from busbw.simulation.timeline import Repeat, Tasks, Timeline

__all__ = [
    "Background",
    "Cause",
    "Channel",
    "Compute",
    "Conditions",
    "CriticalPath",
    "Delay",
    "Drain",
    "Exposure",
    "Limits",
    "LinkFailure",
    "Loop",
    "Others",
    "Peers",
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
    "read_graph",
    "simulate",
    "task_program",
    "written_out",
]
