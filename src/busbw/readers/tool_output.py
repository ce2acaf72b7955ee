"""What outputs of system tools have in common when they are pasted into one file: who wrote a line, at whose prompt, and which file it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from busbw.readers.base import PlainLine

__all__ = ["SYSFS_PORT", "ToolLine", "guid", "host_of_path", "tool_lines"]

_PROMPT = re.compile(
    r"\[?[\w.-]{1,64}@(?P<host>[A-Za-z0-9][\w.-]{0,252})[ :][^#$>]{0,200}[#$>] ?(?P<command>.*)", re.ASCII
)
"""A shell's prompt, `[root@node7 ~]# ibstat` or `root@node7:~# ibstat`."""
_PDSH = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}): ?(?P<text>.*)", re.ASCII)
"""pdsh, clush and ansible put the host in front."""
SYSFS_PORT = re.compile(r"infiniband/(?P<device>[^/\s:]{1,64})/ports/(?P<port>\d{1,4})/(?P<file>[\w/]{1,96})", re.ASCII)
"""Below /sys/class/infiniband, or below a PCI device's own folder; in what grep and head print, and in paths of copied trees."""
_HOST_FOLDER = re.compile(r"(?:^|[/!])(?P<host>[A-Za-z][\w.-]{0,252})/sys/(?:class|devices)/")
_NO_HOST = re.compile(
    r"(?:before|after|start|begin|end|pre|post|old|new|first|second|run|snap|step|sample|t|time)[\W_]*\d*|.*(?:before|after)",
    re.I,
)
"""Folders that people name after a moment (a guess): snapshots of one host must not become two hosts."""
_GUID = re.compile(r"(?:0x)?(?P<digits>[0-9a-f]{1,16})|(?P<groups>[0-9a-f]{4}(?::[0-9a-f]{4}){3})", re.I)


@dataclass(frozen=True, slots=True)
class ToolLine:
    """A line of a tool's output, without what stands in front of it."""

    line: PlainLine
    host: str | None
    text: str
    is_command: bool = False
    """It was typed at a prompt."""

    @property
    def writer(self) -> tuple[str | None, int | None]:
        """Whose output it belongs to; lines of several hosts may be mixed."""
        return self.host, self.line.rank


def tool_lines(lines: Sequence[PlainLine], is_known: Callable[[str], object]) -> Iterator[ToolLine]:
    """Every line with its host: the launcher's, pdsh's (where only that makes the line one that `is_known`), or that of the last prompt."""
    at_prompt: str | None = None
    for line in lines:
        prompt = _PROMPT.fullmatch(line.text) if "@" in line.text else None
        if prompt is not None:
            at_prompt = prompt["host"]
            yield ToolLine(line, line.host or at_prompt, prompt["command"], is_command=True)
            continue
        prefixed = _PDSH.fullmatch(line.text)
        if prefixed is not None and not is_known(line.text) and is_known(prefixed["text"]):
            yield ToolLine(line, prefixed["host"], prefixed["text"])
            continue
        yield ToolLine(line, line.host or at_prompt, line.text)


def guid(text: str) -> str | None:
    """A GUID as 0x and 16 digits, however a tool writes it; None if it is none.

    >>> guid("200001"), guid("0c42:a103:0000:ab12")
    ('0x0000000000200001', '0x0c42a1030000ab12')
    """
    found = _GUID.fullmatch(text.strip())
    if found is None:
        return None
    digits = found["digits"] or found["groups"].replace(":", "")
    return f"0x{digits.lower():0>16}"


def host_of_path(path: str) -> str | None:
    """The folder above a copied /sys, where it can be a host's name: `bundle.tar.gz!node0/sys/class/...`.

    >>> host_of_path("bundle.tar!node0/sys/class/infiniband/mlx5_0"), host_of_path("before/sys/class/infiniband/mlx5_0")
    ('node0', None)
    """
    found = _HOST_FOLDER.search(path)
    return found["host"] if found is not None and _NO_HOST.fullmatch(found["host"]) is None else None
