"""What this machine does: copies, a triad, cache lines between cores, memory of other NUMA nodes, GPUs. The numbers that a model of it needs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.measuring import _host

__all__ = ["Figure", "counter_rows", "figures", "numa_nodes"]

_ROUNDS = 5
_TRIPS, _BATCHES = 200, 50
_MOST_PAIRS = 64
"""Of cores that exchange a line, each a few milliseconds; of larger machines evenly chosen cores."""
_SHARE_OF_MEMORY = 0.25
"""Of what is free, that probes take at most."""
_ARRAYS = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of this machine."""

    name: str
    """With its unit at the end: copy_bytes_per_s, line_round_trip_s ..."""
    value: float
    labels: Mapping[str, str]


def figures(size_bytes: int, cores: Sequence[int] | None = None) -> Iterator[Figure]:
    """The figures, as they are measured. size_bytes: of each array of each thread; it should not fit a cache.

    Raises InputError if the arrays don't fit a quarter of the memory that is free, or a core can't be used.
    """
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [-1] * (os.cpu_count() or 1)
    used = list(cores) if cores is not None else mine
    if not used or not set(used) <= set(mine):
        raise InputError(f"cores {used}: this process may use {mine}.")
    if size_bytes < 4096:
        raise InputError(f"{size_bytes} bytes an array: write 4 KiB or more.")
    need, free = size_bytes * _ARRAYS * len(used), _free_bytes()
    if need > free * _SHARE_OF_MEMORY:
        raise InputError(f"{_ARRAYS} arrays of {size_bytes} bytes for each of {len(used)} threads are more than a quarter of the {free} bytes that are free; write a smaller --bytes.")  # fmt: skip
    size = str(size_bytes)
    for threads in _counts(len(used)):
        labels = {"threads": str(threads), "size_bytes": size}
        yield Figure("copy_bytes_per_s", _host.copy_rate(size_bytes, used[:threads], _ROUNDS), labels)
        yield Figure("triad_bytes_per_s", _host.triad_rate(size_bytes, used[:threads], _ROUNDS), labels)
    for first, second in _pairs(used):
        trip = _host.line_round_trip(first, second, _TRIPS, _BATCHES)
        yield Figure("line_round_trip_s", trip, {"from": str(first), "to": str(second)})
    of_node = {node: [core for core in listed if core in used] for node, listed in numa_nodes().items()}
    there = {node: listed[0] for node, listed in of_node.items() if listed} or {0: used[0]}
    for (node, core), (memory, toucher) in itertools.product(there.items(), there.items()):
        rate, latency = _host.reach(core, toucher, size_bytes, _ROUNDS)
        labels = {"node": str(node), "memory_node": str(memory), "size_bytes": size}
        yield Figure("read_bytes_per_s", rate, labels)
        yield Figure("read_latency_s", latency, labels)
    yield from _of_gpus(size_bytes)


def _counts(cores: int) -> list[int]:
    """1, 2, 4 ... and all."""
    found = [1]
    while found[-1] * 2 < cores:
        found.append(found[-1] * 2)
    return found if found[-1] == cores else [*found, cores]


def _pairs(cores: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs of cores, or of some that are evenly spread where there are many."""
    chosen = list(cores)
    while len(chosen) * (len(chosen) - 1) // 2 > _MOST_PAIRS:
        chosen = chosen[:: max(2, len(chosen) // 11)]
    return list(itertools.combinations(chosen, 2))


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> dict[int, list[int]]:
    """Cores of each NUMA node, as Linux lists them; nothing where it does not.

    A node without cores has memory only.
    """
    found: dict[int, list[int]] = {}
    with suppress(OSError):
        for entry in root.iterdir():
            if match := re.fullmatch(r"node(\d+)", entry.name):
                found[int(match[1])] = _listed((entry / "cpulist").read_text(encoding="ascii", errors="replace"))
    return dict(sorted(found.items()))


def _listed(text: str) -> list[int]:
    """Numbers of `0-3,8`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part):
            cores += range(int(match[1]), int(match[2] or match[1]) + 1)
    return cores


def _free_bytes() -> int:
    with suppress(OSError, ValueError, TypeError):
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
        if match := re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE):
            return int(match[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def gpu_reason() -> str | None:
    """Why no GPU is measured; None if one is."""
    try:
        import torch  # noqa: PLC0415 - seconds; only its presence tells whether there is a GPU to copy to
    except ImportError:
        return "no GPU was measured: copies to and between GPUs need PyTorch with CUDA"
    return None if torch.cuda.is_available() else "no GPU was measured: PyTorch sees none"


def _of_gpus(size_bytes: int) -> Iterator[Figure]:
    """Copies between this host and each GPU, and between GPUs: pinned memory, the fastest of some, timed by the GPU's own events."""
    if gpu_reason() is not None:
        return
    import torch  # noqa: PLC0415

    host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    on = [torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in range(torch.cuda.device_count())]
    ends: list[tuple[str, Any]] = [("host", host), *((f"gpu{gpu}", memory) for gpu, memory in enumerate(on))]
    for (source, given), (target, made) in itertools.permutations(ends, 2):
        device = given.device if given.is_cuda else made.device
        best = float("inf")
        with torch.cuda.device(device):
            for _ in range(_ROUNDS + 1):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                made.copy_(given, non_blocking=True)
                end.record()
                end.synchronize()
                best = min(best, begin.elapsed_time(end) / 1e3)
        labels = {"from": source, "to": target, "size_bytes": str(size_bytes)}
        yield Figure("device_copy_bytes_per_s", size_bytes / best, labels)


def counter_rows(found: Sequence[Figure], host: str, time_ns: int) -> Iterator[dict[str, Any]]:
    """Rows of `counters`: `host.copy_bytes_per_s` and so on."""
    for figure in found:
        yield {"host": host, "name": f"host.{figure.name}", "value": figure.value, "time_ns": time_ns, "labels": dict(figure.labels)}  # fmt: skip
