"""What NCCL itself would do: channel search, cost table, choice, for a topology, a number of nodes, and variables.

`communicator` makes the whole; `topology`, `paths`, `search`, `connect`, `costs`, `choice` are its parts in that order.
Constants are data, one file a version. Imports hardware, collectives, observations and what lies under them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from busbw.nccl.choice import Call, Choice, Choices
from busbw.nccl.communicator import Communicator, communicator, named_topology
from busbw.nccl.constants import DEFAULT_VERSION, known_versions, load_constants
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.settings import Settings, read_settings
from busbw.nccl.variables import Variable, find_variable, load_variables
from busbw.nccl.words import Algorithm, Function, Protocol, function_of

if TYPE_CHECKING:
    from busbw.nccl.schedules import schedule

__all__ = [
    "DEFAULT_VERSION",
    "Algorithm",
    "Call",
    "ChannelGraph",
    "Choice",
    "Choices",
    "Communicator",
    "Function",
    "Pattern",
    "Protocol",
    "Settings",
    "Variable",
    "communicator",
    "find_variable",
    "function_of",
    "known_versions",
    "load_constants",
    "load_variables",
    "named_topology",
    "read_settings",
    "schedule",
]


def __getattr__(name: str) -> Any:
    """`schedule` is loaded when it is first asked for: schedules are of no use to who wants the choice."""
    if name == "schedule":
        return import_module("busbw.nccl.schedules").schedule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
