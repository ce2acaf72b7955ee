"""What NCCL runs for a function and a size: the cell with the least estimated time, its channels and warps.

Rules after NVIDIA/nccl 2.30.7, src/graph/tuning.cc and src/enqueue.cc. Sizes are `size_bytes`, the larger of a rank's
send and receive buffers, so the whole for all_gather and reduce_scatter. One collective at a time, without plugins.
NCCL multiplies channels, threads and bytes a thread in 32 bits, which overflows for Ring LL from some 8,000 ranks with
64 channels on; here it does not.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.nccl.constants import Constants
from busbw.nccl.costs import CostInputs, CostTable
from busbw.nccl.words import Algorithm, Function, Protocol

__all__ = ["DATATYPES", "OPERATIONS", "Call", "Choice", "Choices", "call_causes", "choose", "estimated_times_us"]

FloatTable = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


DATATYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2",
)  # fmt: skip
OPERATIONS = ("sum", "prod", "max", "min", "avg")
_MULTIMEM_SUM = frozenset({"int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"})
_MULTIMEM_EXTREMES = _MULTIMEM_SUM - {"float32", "float64"}
"""What the NVSwitch can reduce. Source: NVIDIA/nccl 2.30.7, src/include/device.h."""
_MOST_GATHERING_RANKS = 32
"""NVLS gathers over at most as many ranks of a node. Source: NVIDIA/nccl 2.30.7, src/include/device.h."""
_DEEP_RING_RANKS, _DEEP_RING_FACTOR = 8, 1024
"""A ring of more ranks loses precision with 8-bit floats, so its time is made long. Source: src/enqueue.cc."""


@dataclass(frozen=True, slots=True)
class Call:
    """What else than its size a call brings along. nccl-tests' defaults."""

    datatype: str = "float32"
    operation: str = "sum"

    def __post_init__(self) -> None:
        for word, known in ((self.datatype, DATATYPES), (self.operation, OPERATIONS)):
            if word not in known:
                nearest = difflib.get_close_matches(word, known, 1, 0.0)[0]
                raise InputError(f"{word}: none of {', '.join(known)}; nearest: {nearest}.")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one collective runs as."""

    function: Function
    size_bytes: int
    algorithm: Algorithm
    protocol: Protocol
    channels: int
    warps: int
    """Warps of each block of threads; a block is a channel."""
    time_us: float
    """NCCL's estimate. It ranks algorithms; it is no prediction."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices column by column; S sizes."""

    function: Function
    size_bytes: IntArray  # (S,)
    algorithm: IntArray  # (S,), place in `Algorithm`
    protocol: IntArray  # (S,), place in `Protocol`
    channels: IntArray  # (S,)
    warps: IntArray  # (S,)
    time_us: FloatTable  # (S,)

    def __len__(self) -> int:
        return len(self.size_bytes)

    def __getitem__(self, place: int) -> Choice:
        return Choice(
            self.function,
            int(self.size_bytes[place]),
            Algorithm(int(self.algorithm[place])),
            Protocol(int(self.protocol[place])),
            int(self.channels[place]),
            int(self.warps[place]),
            float(self.time_us[place]),
        )


def call_causes(function: Function, algorithm: Algorithm, inputs: CostInputs, call: Call) -> tuple[str, ...]:
    """What of a call switches an algorithm off that the table has."""
    causes = []
    if algorithm in (Algorithm.NVLS, Algorithm.NVLSTree):
        reducible = _MULTIMEM_SUM if call.operation == "sum" else _MULTIMEM_EXTREMES
        reduces = call.operation in ("sum", "max", "min") and call.datatype in reducible
        if function is not Function.AllGather and not reduces:
            causes.append(f"the NVSwitch cannot reduce {call.operation} of {call.datatype}")
        if function is not Function.AllReduce and inputs.ranks_per_node > _MOST_GATHERING_RANKS:
            causes.append(f"more than {_MOST_GATHERING_RANKS} ranks a node")
    if algorithm is Algorithm.PAT and function is Function.ReduceScatter and call.operation == "avg":
        causes.append("PAT does not scale, which avg needs")
    return tuple(causes)


def estimated_times_us(table: CostTable, function: Function, size_bytes: IntArray, call: Call) -> FloatTable:
    """NCCL's estimate of every cell, (S, A, P) float32; infinite where the cell is off."""
    inputs, rates, latencies = table.inputs, table.constants.bandwidth, table.constants.latency
    shape = (len(size_bytes), len(Algorithm), len(Protocol))
    rate = np.broadcast_to(table.gb_per_s[function], shape).copy()
    latency = np.broadcast_to(table.latency_us[function], shape).copy()
    if function is Function.AllReduce:
        octaves = np.where(size_bytes >> 6 > 0, np.log2(np.maximum(size_bytes >> 6, 1)).astype(np.int64), -1)
        correction = np.asarray(rates["tree_correction"], np.float32)
        _correct(rate, Algorithm.Tree, octaves, correction, rates["tree_correction_sizes"])
        on_x86 = inputs.cpu_model not in ("arm", "power")
        if inputs.least_capability >= 100 and on_x86:
            _correct(rate, Algorithm.NVLSTree, octaves, correction, rates["nvls_tree_correction_sizes"])
        plateau = latencies["ring_plateau"]
        long = size_bytes // (inputs.channels * inputs.ranks) >= plateau["from_bytes_a_channel_and_rank"]
        if inputs.nodes > 1:
            factor = plateau["before_ampere" if inputs.least_capability < 80 else "ampere_and_after"]
            alone = np.float64(table.latency_us[function, Algorithm.Ring, Protocol.Simple])
            latency[long, Algorithm.Ring, Protocol.Simple] = np.float32(alone * factor)
    with np.errstate(divide="ignore"):
        wire = size_bytes.astype(np.float32)[:, None, None] / (np.float32(1000) * rate)
    times = np.where(rate > 0, latency + wire, np.float32(np.inf)).astype(np.float32)
    if call.datatype.startswith("float8") and inputs.ranks > _DEEP_RING_RANKS:
        times[:, Algorithm.Ring] *= np.float32(_DEEP_RING_FACTOR)
    for algorithm in Algorithm:
        if call_causes(function, algorithm, inputs, call):
            times[:, algorithm] = np.inf
    return times


def choose(table: CostTable, function: Function, size_bytes: IntArray, call: Call) -> Choices:
    """The choices for sizes, (S,) int64. Raises InputError where no cell is left, naming what switched them off."""
    count, inputs = len(size_bytes), table.inputs
    if inputs.ranks == 1:
        one, zero = np.ones(count, np.int64), np.zeros(count, np.int64)
        ring, simple = one * Algorithm.Ring, one * Protocol.Simple
        return Choices(function, size_bytes, ring, simple, one, one, zero.astype(np.float32))
    times = estimated_times_us(table, function, size_bytes, call)
    flat = times.reshape(count, len(Algorithm) * len(Protocol))
    best = flat.argmin(axis=1)  # the first of equals, as in NCCL's loop over algorithms
    time_us = flat[np.arange(count), best]
    if np.isinf(time_us).any():
        raise InputError(_nothing_left(table, function, call))
    algorithm, protocol = best // len(Protocol), best % len(Protocol)
    used, threads = _channels_and_threads(table, size_bytes, algorithm, protocol)
    nvls = (algorithm == Algorithm.NVLS) | (algorithm == Algorithm.NVLSTree)
    between = (algorithm == Algorithm.NVLS) & (inputs.nodes > 1)
    used = np.where(nvls, np.where(between, min(inputs.channels, inputs.nvls_channels), inputs.nvls_channels), used)
    threads = np.where(nvls, table.max_threads[algorithm, protocol], threads)
    threads = _with_extra_warps(algorithm, protocol, threads, table.constants)
    return Choices(function, size_bytes, algorithm, protocol, used, threads // table.constants.threads["warp"], time_us)


def _correct(rate: FloatTable, algorithm: Algorithm, octaves: IntArray, correction: FloatTable, sizes: int) -> None:
    """Slows trees at middle sizes, where they do not follow the model: one factor a doubling from 64 bytes."""
    within = (octaves >= 0) & (octaves < sizes)
    factors = correction[:, np.clip(octaves, 0, sizes - 1)].T
    rate[within, algorithm] = rate[within, algorithm] * factors[within]


def _channels_and_threads(
    table: CostTable, size_bytes: IntArray, algorithm: IntArray, protocol: IntArray
) -> tuple[IntArray, IntArray]:
    """Fewer channels, then fewer threads, until each thread has enough to do."""
    channels = table.inputs.channels
    threads = table.max_threads[algorithm, protocol].copy()
    each = table.thread_bytes[algorithm, protocol]
    a_channel = np.maximum(threads * each, 1)
    used = np.where(threads * each > 0, np.clip(size_bytes // a_channel, 1, channels), channels)
    for _ in range(8):  # from 1024 threads at most
        idle = (size_bytes < used * threads * each) & (threads % 128 == 0) & (threads > 0)
        threads = np.where(idle, threads // 2, threads)
    return used, threads


def _with_extra_warps(algorithm: IntArray, protocol: IntArray, threads: IntArray, constants: Constants) -> IntArray:
    limits = constants.threads
    warp, most = limits["warp"], limits["most"]
    ring = (algorithm == Algorithm.Ring) & (protocol == Protocol.Simple)
    threads = np.where(ring, threads + limits["extra_warps"]["ring"] * warp, threads)
    threads = np.maximum(threads, limits["fewest_warps"] * warp)
    return np.where((algorithm == Algorithm.Tree) | (algorithm == Algorithm.PAT), most, threads)


def _nothing_left(table: CostTable, function: Function, call: Call) -> str:
    lines = [f"No algorithm and protocol is left for {function.name}; NCCL stops there too. What switched them off:"]
    by_algorithm: dict[tuple[Algorithm, tuple[str, ...]], list[str]] = {}
    for algorithm in Algorithm:
        for protocol in Protocol:
            causes = table.off.get((function, algorithm, protocol), ()) + call_causes(
                function, algorithm, table.inputs, call
            )
            if causes and (function, algorithm, protocol) not in table.meaningless:
                by_algorithm.setdefault((algorithm, causes), []).append(protocol.name)
    lines += [
        f"{algorithm.name} {'/'.join(names)}: {'; '.join(why)}" for (algorithm, why), names in by_algorithm.items()
    ]
    return "\n".join(lines)
