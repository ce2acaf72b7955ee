"""Which parts of advice can be typed: what stands in backticks, else what begins with a program or a variable we know.

Advice mixes both: `lspci -vv | grep LnkSta on the slow host` is a command and where to run it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Part", "parts"]

_PROGRAMS = frozenset(
    [
        "all_reduce_perf",
        "alltoall_perf",
        "busbw",
        "cat",
        "cma_roce_tos",
        "cudaMemtest",
        "curl",
        "dcgmi",
        "df",
        "dmesg",
        "docker",
        "echo",
        "ethtool",
        "fi_info",
        "find",
        "free",
        "getcap",
        "grep",
        "hwloc-ls",
        "ib_read_bw",
        "ib_send_bw",
        "ib_write_bw",
        "ibdev2netdev",
        "ibdiagnet",
        "iblinkinfo",
        "ibnetdiscover",
        "ibping",
        "ibstat",
        "ibstatus",
        "ibv_devices",
        "ibv_devinfo",
        "ibv_rc_pingpong",
        "ip",
        "iperf3",
        "journalctl",
        "kubectl",
        "ldconfig",
        "ldd",
        "ls",
        "lsmod",
        "lspci",
        "lstopo",
        "mlnx_qos",
        "mlxconfig",
        "mlxlink",
        "modinfo",
        "modprobe",
        "mount",
        "mpirun",
        "ncclras",
        "numactl",
        "nvidia-imex-ctl",
        "nvidia-modprobe",
        "nvidia-smi",
        "nvidia-topologyd",
        "ofed_info",
        "opensm",
        "p2pBandwidthLatencyTest",
        "perfquery",
        "ping",
        "pip",
        "ps",
        "py-spy",
        "python",
        "python3",
        "rdma",
        "rocm-smi",
        "saquery",
        "scontrol",
        "setpci",
        "sharp_hello",
        "show_gids",
        "sinfo",
        "smpquery",
        "srun",
        "ss",
        "strace",
        "sysctl",
        "systemctl",
        "systemd-detect-virt",
        "taskset",
        "torchrun",
        "tracepath",
        "ucx_info",
        "ucx_perftest",
        "udaddy",
        "ulimit",
        "uname",
        "update-grub",
    ]
)
"""Programs of this field that rules name."""
_PROSE = frozenset(
    [
        "a",
        "after",
        "against",
        "also",
        "and",
        "at",
        "because",
        "before",
        "beside",
        "between",
        "but",
        "by",
        "does",
        "during",
        "each",
        "every",
        "for",
        "from",
        "has",
        "in",
        "inside",
        "is",
        "it",
        "just",
        "likewise",
        "next",
        "not",
        "of",
        "on",
        "or",
        "outside",
        "per",
        "shows",
        "so",
        "than",
        "that",
        "the",
        "then",
        "to",
        "under",
        "until",
        "was",
        "were",
        "when",
        "where",
        "while",
        "which",
        "with",
        "without",
        "would",
        "you",
    ]
)
"""Words that end a command: no option or operand of these programs is one of them."""
_SETTING = re.compile(r"(?<![\w=.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+=(?:\"[^\"\s]*\"|[\w^=,.:/+-]*[\w/])")
_WORD = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an advice, in its order; all parts together are the advice, without backticks."""

    text: str
    is_command: bool


def parts(advice: str, *, whole: bool = False) -> list[Part]:
    """The advice in parts. With backticks exactly what stands between them is a command.

    Else a command begins with a program we know, at the start or, unless `whole`, after a bracket; it ends before a word
    of prose, a closing bracket, or a full stop. NAME=VALUE of variables in capitals can be typed wherever it stands.
    whole: the advice is one of Finding.distinguish, which is a command with remarks, or a remark.

    >>> [p.text for p in parts("lspci -vv | grep LnkSta on the slow host", whole=True) if p.is_command]
    ['lspci -vv | grep LnkSta']
    """
    if advice.count("`") >= 2:
        pieces = advice.split("`")
        if len(pieces) % 2 == 0:
            pieces[-2:] = [pieces[-2] + "`" + pieces[-1]]
        return [Part(text, k % 2 == 1) for k, text in enumerate(pieces) if text]
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(advice):
        start = _next_start(advice, at, whole)
        if start is None:
            break
        end = _end(advice, start)
        found.append((start, end))
        at = max(end, start + 1)
    for match in _SETTING.finditer(advice):
        if not any(start <= match.start() < end for start, end in found):
            found.append(match.span())
    joined: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if joined and advice[joined[-1][1] : start] == " ":
            joined[-1] = (joined[-1][0], end)  # variables side by side are one line to type
        else:
            joined.append((start, end))
    return _cut(advice, joined)


def _next_start(advice: str, at: int, whole: bool) -> int | None:
    """Where the next command begins: at the start of the advice, after a semicolon, or in brackets."""
    for match in re.finditer(r"(?:^|; |\()(?=([A-Za-z0-9_][\w.-]*))", advice):
        if match.end() < at or match[1] not in _PROGRAMS:
            continue
        opened = match[0]
        rest = advice[match.end() + len(match[1]) :]
        if opened == "(" and whole:
            continue
        if not opened and not whole and not re.match(r" (?:-|\w+ -|enable|nvidia)", rest):
            continue  # a sentence that begins like a program
        return match.end()
    return None


def _end(advice: str, start: int) -> int:
    """The end of a command that begins at start."""
    end = start
    depth = 0
    for match in _WORD.finditer(advice, start):
        word = match[0]
        if word.lower().strip(",.:;()") in _PROSE and not word.startswith("-"):
            break
        if word[0] == "(" or (word == "/" and end > start):
            break
        depth += word.count("(") - word.count(")")
        stop = re.search(r"[;,:)](?=$|[\s).,;])|[.)]+$", word) if not word.startswith(("'", '"')) else None
        if stop is not None or depth < 0:
            cut = stop.start() if stop is not None else len(word) - 1
            return match.start() + cut
        end = match.end()
    return end


def _cut(advice: str, spans: list[tuple[int, int]]) -> list[Part]:
    made: list[Part] = []
    at = 0
    for start, end in spans:
        if start > at:
            made.append(Part(advice[at:start], False))
        if end > start:
            made.append(Part(advice[start:end], True))
        at = max(at, end)
    if at < len(advice):
        made.append(Part(advice[at:], False))
    return made
