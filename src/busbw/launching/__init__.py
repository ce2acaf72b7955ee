"""Starts ranks: knows argv, ranks, hosts and environments, and nothing of what they do.

A `Job` becomes a `Launch`, files and commands exactly as they would run; `launch` runs it. One module a launcher.
Imports busbw.errors only.
"""

from busbw.launching.environment import Place, place
from busbw.launching.job import PASSED, Command, File, Job, Launch, Mount, allowed
from busbw.launching.launchers import LAUNCHERS, Launcher, launch, launcher_named, options_of, render, write_files
from busbw.launching.local import Ended, launch_local
from busbw.launching.processes import Failure, LaunchError, Line
from busbw.launching.ssh import hosts_of

__all__ = [
    "LAUNCHERS",
    "PASSED",
    "Command",
    "Ended",
    "Failure",
    "File",
    "Job",
    "Launch",
    "LaunchError",
    "Launcher",
    "Line",
    "Mount",
    "Place",
    "allowed",
    "hosts_of",
    "launch",
    "launch_local",
    "launcher_named",
    "options_of",
    "place",
    "render",
    "write_files",
]
