"""Starts processes: knows argv, ranks and hosts, and nothing of what they do.

Imports busbw.errors only.
"""

from busbw.launching.local import Ended, LaunchError, launch_local

__all__ = ["Ended", "LaunchError", "launch_local"]
