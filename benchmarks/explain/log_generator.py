"""A NCCL_DEBUG=INFO log of many ranks in one file, as large as asked for: the input of the scan benchmark.

Wording: NCCL 2.30 (`src/init.cc`, `src/enqueue.cc`, `src/transport/`, `src/graph/tuning.cc`). Values are invented, the
mix of lines is a guess: one start-up, then a COLL and a TUNING line a call and rank, and one line of the application
a call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

__all__ = ["RankLog", "write_log"]

_T = TypeVar("_T")

_BLOCKS = 8
"""Different interleavings of the ranks; the steady part of the log cycles through them."""
_CALLS = (
    # function, datatype, bytes an element, op, algorithm, protocol, last channel
    ("AllReduce", 9, 2, 0, "TREE", "LL128", 15),
    ("AllReduce", 7, 4, 0, "RING", "SIMPLE", 15),
    ("AllGather", 0, 1, 0, "RING", "SIMPLE", 15),
    ("ReduceScatter", 9, 2, 0, "RING", "LL128", 7),
    ("Broadcast", 0, 1, 0, "RING", "LL", 1),
)
_CHANNELS = 16
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def write_log(path: Path, size_bytes: int, seed: int, ranks: int = 64, nodes: int = 8) -> None:
    """Writes a log of about size_bytes to path: whole lines, at least size_bytes, at most one block of lines more.

    The same arguments give the same bytes. Raises ValueError unless ranks is a multiple of nodes.
    """
    if nodes < 1 or ranks % nodes:
        raise ValueError(f"{ranks} ranks do not spread evenly over {nodes} nodes; make ranks a multiple of nodes.")
    chance = random.Random(seed)
    job = _Job(chance, ranks, nodes)
    with path.open("wb") as out:
        written = out.write("".join(_interleaved(chance, job.start_up())).encode())
        blocks = [job.calls(chance) for _ in range(_BLOCKS)]
        op_count = 0
        while written < size_bytes:
            template, slots = blocks[op_count % _BLOCKS]
            size = 2 ** chance.randrange(10, 28)
            loss = f"{chance.uniform(1.5, 4.0):.4f}"
            numbers = {"op": f"{op_count:x}", "bytes": size, "step": op_count, "loss": loss}
            numbers |= {f"count{width}": size // width for width in (1, 2, 4)}
            written += out.write((template % tuple([numbers[slot] for slot in slots])).encode())
            op_count += 1


class RankLog:
    """The log of a job written to a file a rank (NCCL_DEBUG_FILE)."""

    def __init__(self, chance: random.Random, ranks: int, nodes: int) -> None:
        self._job = _Job(chance, ranks, nodes)
        alone = _Job(chance, 1, 1)
        blocks = [alone.calls(chance) for _ in range(_BLOCKS)]
        numbers = {
            "op": "2f",
            "bytes": 1 << 20,
            "step": 47,
            "loss": "2.71",
            "count1": 1 << 20,
            "count2": 1 << 19,
            "count4": 1 << 18,
        }
        calls = "".join(template % tuple(numbers[slot] for slot in slots) for template, slots in blocks)
        self._calls = calls.replace("[nranks=1]", f"[nranks={ranks}]")
        self._head = alone.heads[0]

    def text(self, rank: int, size_bytes: int) -> bytes:
        """What that rank printed: its start-up, then calls until the size is reached."""
        start = "".join(self._job.start_up_of(rank)).encode()
        calls = self._calls.replace(self._head, self._job.heads[rank]).encode()
        return start + calls * max(1, (size_bytes - len(start)) // len(calls))


class _Job:
    """Heads of all ranks and the lines that each prints."""

    def __init__(self, chance: random.Random, ranks: int, nodes: int) -> None:
        self.ranks = ranks
        self.local_ranks = ranks // nodes
        pids = [chance.randrange(2000, 4_000_000) for _ in range(ranks)]
        self.heads = [
            f"gpu-node-{r // self.local_ranks:03d}:{pid}:{pid + 700} [{r % self.local_ranks}] NCCL "
            for r, pid in enumerate(pids)
        ]
        self.comms = [f"0x{chance.randrange(0x55D0_0000_0000, 0x55DF_FFFF_FFFF):x}" for _ in range(ranks)]
        self.streams = [f"0x{chance.randrange(0x55D0_0000_0000, 0x55DF_FFFF_FFFF):x}" for _ in range(ranks)]
        self.buffers = [f"0x{chance.randrange(0x7F00_0000_0000, 0x7FFF_FFFF_FFFF) & ~0xFFF:x}" for _ in range(ranks)]

    def calls(self, chance: random.Random) -> tuple[str, list[str]]:
        """One call on every rank in some order, as a %-format, and the names of the numbers in it."""
        function, dtype, width, op, algorithm, protocol, channel = chance.choice(_CALLS)
        per_rank = []
        for r in range(self.ranks):
            info = self.heads[r] + "INFO "
            call = (
                f"{info}{function}: opCount %s sendbuff {self.buffers[r]} recvbuff {self.buffers[r]} count %s "
                f"datatype {dtype} op {op} root 0 comm {self.comms[r]} [nranks={self.ranks}] stream {self.streams[r]}\n"
            )
            channels = f"channel{{Lo..Hi}}={{0..{channel}}}"
            choice = f"{info}{function}: %s Bytes -> Algo {algorithm} proto {protocol} {channels}\n"
            per_rank.append([(call, ("op", f"count{width}")), (choice, ("bytes",))])
        application = ("step %s loss %s tokens per second 183204 learning rate 3.0e-04\n", ("step", "loss"))
        lines = [*_interleaved(chance, per_rank), application]
        return "".join(text for text, _ in lines), [slot for _, slots in lines for slot in slots]

    def start_up(self) -> list[list[str]]:
        """What each rank prints until its communicator is ready."""
        return [list(self.start_up_of(r)) for r in range(self.ranks)]

    def start_up_of(self, r: int) -> Iterator[str]:
        """The same of one rank."""
        info = self.heads[r] + "INFO "
        node, local = divmod(r, self.local_ranks)
        comm, commid = self.comms[r], "0xd3a1f06c4b7e9921"
        identity = (
            f"comm {comm} rank {r} nranks {self.ranks} cudaDev {local} nvmlDev {local} "
            f"busId {0x1B000 + 0x20000 * local:x} commId {commid}"
        )
        if r == 0:
            yield "NCCL version 2.30.7+cuda13.0\n"
        yield f"{info}NCCL_IB_HCA set by environment to mlx5.\n"
        yield f"{info}Bootstrap: Using eth0:10.0.{node}.1<0>\n"
        yield f"{info}NET/Plugin: Could not find: libnccl-net.so.\n"
        ports = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(self.local_ranks))
        yield f"{info}NET/IB : Using {ports} [RO]; OOB eth0:10.0.{node}.1<0>\n"
        yield f"{info}Initialized NET plugin IB\n"
        yield f"{info}Assigned NET plugin IB to comm\n"
        yield f"{info}Using network IB\n"
        yield f"{info}[Rank {r}] ncclCommInitRank {identity} - Init START\n"
        yield f"{info}Bootstrap timings total 0.60 (create 0.01, send 0.02, recv 0.31, ring 0.22, delay 0.00)\n"
        yield f"{info}ncclTopoGetCpuAffinity: Affinity for GPU {local} is {local * 12}-{local * 12 + 11}.\n"
        yield f"{info}NVLS multicast support is available on dev {local} (NVLS_NCHANNELS 16)\n"
        yield (
            f"{info}comm {comm} rank {r} nRanks {self.ranks} nNodes {self.ranks // self.local_ranks} "
            f"localRanks {self.local_ranks} localRank {local} MNNVL 0\n"
        )
        order = " ".join(f"{i:2d}" for i in range(min(self.ranks, 40)))
        if r == 0:
            for channel in range(_CHANNELS):
                yield f"{info}Channel {channel:02d}/{_CHANNELS} : {order}...\n"
        after, before = (r + 1) % self.ranks, (r - 1) % self.ranks
        tree = f"{after}/-1/-1->{r}->{before if r else -1}"
        yield f"{info}Trees " + " ".join(f"[{channel}] {tree}" for channel in range(_CHANNELS)) + "\n"
        yield f"{info}P2P Chunksize set to 131072\n"
        for channel in range(_CHANNELS):
            yield self._link(info, channel, r, after, "send")
            if before // self.local_ranks != node:
                yield self._link(info, channel, before, r, "receive")
        yield f"{info}Connected all rings, use ring PXN 0 GDR 1\n"
        yield f"{info}Connected all trees\n"
        if r == 0:
            yield from self._tuning_table(info)
        yield f"{info}threadThresholds 8/8/64 | {8 * self.ranks}/8/64 | 512 | 512\n"
        counts = ", ".join(f"{_CHANNELS} {kind} channels" for kind in ("coll", "collnet", "nvls", "p2p"))
        yield f"{info}{counts}, 2 p2p channels per peer\n"
        yield f"{info}TUNER/Plugin: Could not find: libnccl-tuner.so.\n"
        yield f"{info}ncclCommInitRank {identity} - Init COMPLETE\n"
        yield (
            f"{info}Init timings - ncclCommInitRank: rank {r} nranks {self.ranks} total 1.42 (kernels 0.20, alloc 0.05, "
            "bootstrap 0.60, allgathers 0.02, "
            "topo 0.21, graphs 0.04, connections 0.28, rest 0.02)\n"
        )

    def _link(self, info: str, channel: int, src: int, dst: int, direction: str) -> str:
        a, b = src % self.local_ranks, dst % self.local_ranks
        pair = f"{info}Channel {channel:02d}/0 : {src}[{a}] -> {dst}[{b}]"
        if src // self.local_ranks == dst // self.local_ranks:
            return f"{pair} via P2P/CUMEM\n"
        return f"{pair} [{direction}] via NET/IB/{channel % self.local_ranks}/GDRDMA/Shared\n"

    @staticmethod
    def _tuning_table(info: str) -> Iterator[str]:
        for algorithms in (("Tree", "Ring", "CollNetDirect"), ("CollNetChain", "NVLS", "NVLSTree"), ("PAT",)):
            yield f"{info}  Algorithm   | " + " | ".join(f"{name:^44s}" for name in algorithms) + " |\n"
            protocols = [f"{name:^14s}" for _ in range(3) for name in ("LL", "LL128", "Simple")]
            yield f"{info}  Protocol    | " + " | ".join(protocols) + " |\n"
            threads = [f"{number:14d}" for _ in algorithms for number in (512, 640, 512)]
            yield f"{info} Max NThreads | " + " | ".join(threads) + " |\n"
            for function in _FUNCTIONS:
                cells = " | ".join(f"{6.8 * (i + 1):8.1f}/{12.0 * (i + 1):6.1f}" for i in range(3 * len(algorithms)))
                yield f"{info}{function:>13s} | {cells} |\n"


def _interleaved(chance: random.Random, queues: list[list[_T]]) -> list[_T]:
    """All items in a random order that keeps the order within each queue."""
    turns = [i for i, queue in enumerate(queues) for _ in queue]
    chance.shuffle(turns)
    iterators = [iter(queue) for queue in queues]
    return [next(iterators[i]) for i in turns]
