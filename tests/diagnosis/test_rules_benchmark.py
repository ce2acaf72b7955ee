"""A benchmark's table on its own. The healthy figures are those of busbw.hardware.expected; here they are asked for, not repeated."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from busbw.hardware import expected_busbw, expected_small_message_time

from .told import Case, check, fires, near_miss

GPU = "NVIDIA H100 80GB HBM3"
ON_ONE_NODE = expected_busbw(GPU, 1, 8, "all_reduce", None, None)
SMALL = expected_small_message_time(1, 8)
assert ON_ONE_NODE is not None and SMALL is not None
HALF = "     time   algbw   busbw #wrong"


def table(rows: Mapping[int, float], *, gpu: str = GPU, nodes: int = 1, ranks: int = 8, mark: bool = True) -> str:
    """all_reduce_perf's output for rows of size_bytes and busbw in bytes/s; the rows are marked as what a finding shows."""
    devices = [
        f"#  Rank {rank:2} Group  0 Pid  9{rank:03} on     cn{rank * nodes // ranks + 301} device {rank % (ranks // nodes):2} [0x00] {gpu}"
        for rank in range(ranks)
    ]
    lines = [
        "# Collective test starting: all_reduce_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        *devices,
        "#",
    ]
    lines.append(f"#       size         count      type   redop    root{HALF}{HALF}")
    lines.append(
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    )
    for size, busbw in rows.items():
        algbw = busbw / (2 * (ranks - 1) / ranks)
        half = f" {size / algbw * 1e6:8.2f} {algbw / 1e9:7.2f} {busbw / 1e9:7.2f}      0"
        lines.append(f"{'> ' if mark else ''}{size:12} {size // 4:13}     float     sum      -1{half}{half}")
    return "\n".join(lines) + "\n"


LARGE = (2**28, 2**29, 2**30)
TINY = (512, 1024, 2048, 4096)


def small(time_s: float, **options: int) -> str:
    """A table of small sizes that all take time_s."""
    return table({size: size / time_s * 2 * 7 / 8 for size in TINY}, mark=options.pop("mark", True), **options)


CASES = (
    fires("below_expectation", "nvlink-down", table(dict.fromkeys(LARGE, ON_ONE_NODE.low_bytes_per_s / 2)), severity="major"),
    fires("below_expectation", "env-p2p-level-forced", {
        "table.txt": table(dict.fromkeys(LARGE, 10e9)), "env.sh": "export NCCL_P2P_LEVEL=LOC\n",
    }, why="peer to peer is forced"),
    near_miss("below_expectation", "just healthy", table(dict.fromkeys(LARGE, ON_ONE_NODE.low_bytes_per_s * 1.01), mark=False)),
    near_miss("below_expectation", "the GPU is not known", table(dict.fromkeys(LARGE, 10e9), gpu="NVIDIA Graphics Device", mark=False)),
    near_miss("below_expectation", "sizes too small for a plateau", table({2**16: 10e9, 2**20: 50e9}, mark=False)),
    fires("crawling_between_nodes", "socket-fallback", table(dict.fromkeys(LARGE, 3e9), nodes=2, ranks=16), severity="major"),
    near_miss("crawling_between_nodes", "as fast as one NIC", table(dict.fromkeys(LARGE, 11e9), nodes=2, ranks=16, mark=False)),
    near_miss("crawling_between_nodes", "cards without NVLink switch", table(dict.fromkeys(LARGE, 3e9), gpu="NVIDIA A10", nodes=2, ranks=16, mark=False)),
    near_miss("crawling_between_nodes", "one node", table(dict.fromkeys(LARGE, 3e9), mark=False)),
    fires("slow_start", "cpu-affinity-pinning", small(SMALL.high_s * 8), severity="minor"),
    near_miss("slow_start", "slow already, but not many times", small(SMALL.high_s * 2, mark=False)),
    fires("copies_arrive_wrong", "iommu-p2p", """
        nvbandwidth Version: v0.7
        Running device_to_device_memcpy_read_ce.
        >  Invalid value when checking the pattern at 0x7f20aa000000
    """, severity="fatal", why="nvbandwidth memcpy.cpp"),
    near_miss("copies_arrive_wrong", "every pattern was right", """
        nvbandwidth Version: v0.7
        Running device_to_device_memcpy_read_ce.
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
