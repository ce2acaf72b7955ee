"""The command line: one verb a file, each parses its arguments, calls one function and prints.

May import every other room, and does so inside the verbs: `busbw --help` has nothing to wait for.
"""

from busbw.cli.app import main

__all__ = ["main"]
