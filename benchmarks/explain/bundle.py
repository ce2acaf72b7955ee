"""A support bundle: what a large job and its nodes left behind, a folder a node, one node sick.

Wording of NCCL's logs as in log_generator.py; what else there is are short outputs of system tools with invented values. The mix is a
guess: a log a rank, and eight small files a node.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.explain.log_generator import RankLog

__all__ = ["SICK_NODE", "write_bundle"]

SICK_NODE = 5
"""The node whose NICs do not reach its GPUs' memory, and whose kernel log says that nvidia_peermem is missing."""
_RANKS_A_NODE = 8
_SMALL_FILES = 8


def write_bundle(folder: Path, files: int, size_bytes: int, seed: int) -> int:
    """Writes about that many files of about that size together; the number of files. The same arguments give the same bytes."""
    nodes = max(2 * SICK_NODE, files // (_RANKS_A_NODE + _SMALL_FILES))
    ranks = nodes * _RANKS_A_NODE
    logs = RankLog(random.Random(seed), ranks, nodes)
    small = _small_files()
    log_bytes = (size_bytes - nodes * sum(map(len, small.values()))) // ranks
    written = 0
    for node in range(nodes):
        place = folder / f"gpu-node-{node:03d}"
        place.mkdir(parents=True)
        for name, text in small.items():
            (place / name).write_text(text.replace("HOST", f"gpu-node-{node:03d}"), encoding="utf-8")
            written += 1
        for local in range(_RANKS_A_NODE):
            rank = node * _RANKS_A_NODE + local
            text = logs.text(rank, log_bytes)
            if node == SICK_NODE:
                text = text.replace(b"/GDRDMA", b"")
            (place / f"nccl.rank{rank}.log").write_bytes(text)
            written += 1
    return written


def _small_files() -> dict[str, str]:
    kernel = "".join(
        f"[{second:5d}.{second % 997:06d}] audit: type=1400 apparmor=ALLOWED operation=open name=/proc/{second}\n"
        for second in range(1_000)
    )
    ports = "".join(
        f"CA 'mlx5_{i}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n"
        f"\t\tBase lid: {10 + i}\n\t\tSM lid: 1\n\t\tPort GUID: 0xa088c2030000{i:04x}\n\t\tLink layer: InfiniBand\n"
        for i in range(_RANKS_A_NODE)
    )
    counters = "".join(
        f"/sys/class/infiniband/mlx5_{i}/ports/1/hw_counters/{name}:0\n"
        for i in range(_RANKS_A_NODE)
        for name in (
            "out_of_sequence",
            "packet_seq_err",
            "local_ack_timeout_err",
            "rnr_nak_retry_err",
            "np_cnp_sent",
            "rp_cnp_handled",
        )
    )
    gpus = "".join(
        f"{0x1B + 0x20 * i:02x}:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n"
        for i in range(4)
    )
    return {
        "dmesg.txt": kernel,
        "ibstat.txt": ports,
        "hw_counters.before.txt": counters,
        "hw_counters.after.txt": counters,
        "lspci.txt": gpus,
        "env.txt": "NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\nNCCL_SOCKET_IFNAME=eth0\n",
        "hostname.txt": "HOST\n",
        "ulimit.txt": "max locked memory       (kbytes, -l) unlimited\nopen files                      (-n) 1048576\n",
    }
