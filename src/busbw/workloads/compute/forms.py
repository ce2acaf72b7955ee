"""Closed forms: the time of one kernel on one GPU from a few fitted figures. Arrays in, arrays out; seconds, bytes, operations.

Legend: (R,) float64, one entry an operation. A surface is one set of figures, fitted to one GPU, kernel class and type; it is
relative to the GPU's peak, memory rate and number of multiprocessors (SMs), so the same surface serves a GPU of other sizes.

The form of a product: a kernel cuts the result into tiles, SMs work on tiles in waves, each tile costs its k loop plus a start
worth `ramp_k` steps of it; several tile shapes are tried and the fastest is kept, as cuBLAS' heuristics do. Few tiles are split
along k. Traffic to memory runs beside the arithmetic; the two are joined by a p-norm, which is their maximum away from the ridge.
Source of the form: wave quantisation, NVIDIA "Matrix Multiplication Background User's Guide"; the figures are fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "AXES",
    "LIMITS",
    "Device",
    "attention_time",
    "corners",
    "correction",
    "element_bytes",
    "experts_time",
    "gemm_time",
    "memory_time",
    "moving_time",
    "quantising_time",
]

FloatArray = npt.NDArray[np.float64]
Figures = Mapping[str, float]
Shape = Mapping[str, FloatArray]

TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (64, 256), (128, 64), (64, 64), (64, 32), (64, 16))
"""Rows and columns of a tile (of a pair of SMs where the GPU pairs them). Source: tile names of cuBLAS and CUTLASS kernels."""
_ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128,  # a 4-byte scale per 128 values
    "mxfp8": 1.0 + 1 / 32,  # OCP Microscaling 1.0: a byte per 32 values
    "nvfp4": 0.5 + 1 / 16,  # a byte per 16 values
}
_RESULT_BYTES = {"fp32": 4.0, "tf32": 4.0}
_HALF = 2.0

_GEMM = {
    # name: (first guess, least, most); all above zero
    "peak": (0.9, 0.2, 5.0),  # of peak, before the penalties below
    "ramp_k": (150.0, 8.0, 4000.0),  # k steps that starting and ending a tile cost
    "tile": (0.5, 0.02, 12.0),  # loss of a 128 x 128 tile to loading operands; of others with 1/rows + 1/columns
    "whole": (0.5, 0.02, 1.0),  # 1: a wave that is not full costs a whole one; 0: it costs its share
    "norm": (3.0, 1.2, 9.0),  # of the p-norm
    "memory": (0.8, 0.3, 1.3),  # of the memory rate
    "floor_s": (3e-6, 5e-7, 4e-5),
    "cache": (0.5, 0.01, 4.0),  # gain where operands lie in L2 already
    "large": (0.1, 0.001, 0.6),  # loss of products that run for long: power and L2 misses
    "split_k": (1024.0, 128.0, 60000.0),  # the shortest k that a split leaves
    "quantise": (
        1.0,
        0.01,
        6.0,
    ),  # bytes of making narrow operands of bf16 ones, of the least possible; not part of the product's time
}
_EXPERTS = _GEMM | {
    "floor_s": (6e-6, 5e-7, 8e-5),  # of one of the two products
    "moving": (
        1.0,
        0.05,
        8.0,
    ),  # bytes of permuting and summing rows, of the least possible; not part of the products' time
}
_ATTENTION = {
    "peak": (0.9, 0.2, 3.0),
    "softmax": (40.0, 1.0, 600.0),  # cost of a pair beside its products, in operations
    "ramp": (128.0, 1.0, 4000.0),  # keys that starting a tile of queries costs
    "tail": (0.5, 0.02, 2.0),  # of the longest tile, which SMs that are done wait for
    "norm": (3.0, 1.2, 9.0),
    "memory": (0.6, 0.1, 1.3),
    "floor_s": (8e-6, 5e-7, 8e-5),
}
_MEMORY = {
    "memory": (0.85, 0.3, 1.1),  # of the memory rate
    "cached": (2.0, 0.5, 12.0),  # of the memory rate, out of L2
    "capacity": (1.0, 0.1, 3.0),  # bytes that L2 serves, of its size
    "floor_s": (2e-6, 3e-7, 2e-5),
}
LIMITS: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "gemm": _GEMM,
    "attention": _ATTENTION,
    "experts": _EXPERTS,
    "memory": _MEMORY,
}
"""Figures of each kernel class: first guess, least, most."""
_SHARP = 4.0
"""How sharply L2 stops to serve; a guess, fits of 2 to 8 differ by less than a per cent."""
_LARGE_FLOPS = 1e12
"""Where half of the loss of large products is reached; a guess: 1 to 1.5 ms on the GPUs measured, about a power controller's period."""
_QUERY_TILE, _KEY_TILE = 128, 128
"""Source: block sizes of FlashAttention-2 (128 x 64 to 128 x 128) and FlashAttention-3 (128 x 128 to 128 x 176)."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a GPU can do at best for one kernel class, as the caller leaves it (SMs and memory taken by others are off)."""

    flops_per_s: float
    bytes_per_s: float
    sms: float
    l2_bytes: float
    warm: bool = False
    """Whether it has been busy for long, so that products of any size run as slowly as the longest: a power controller does not wait for them."""


def element_bytes(dtype: str) -> float:
    """Bytes an operand's element takes, scales included."""
    return _ELEMENT_BYTES[dtype]


def result_bytes(dtype: str) -> float:
    """Bytes an element of a product's result takes: bf16 unless the operands are wider."""
    return _RESULT_BYTES.get(dtype, _HALF)


def gemm_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of products (m x k) (k x n), (R,); of `groups` such products in one kernel where the shape names them; result_bytes: see Gemm."""
    groups, m, n, k = shape.get("groups", np.ones(1)), shape["m"], shape["n"], shape["k"]
    element = element_bytes(dtype)
    result = np.maximum(shape.get("result_bytes", np.zeros(1)), result_bytes(dtype))
    compute = np.full(m.shape, np.inf)
    per_sm = device.flops_per_s * figures["peak"] / device.sms
    for rows, columns in TILES:
        waves = groups * np.ceil(m / rows) * np.ceil(n / columns) / device.sms
        whole = figures["whole"] * np.ceil(waves) + (1 - figures["whole"]) * waves
        whole = np.where(waves < 1, 1.0, whole)
        split = np.clip(np.floor(1 / waves), 1.0, np.maximum(k / figures["split_k"], 1.0))
        loss = 1 + figures["tile"] * (1 / rows + 1 / columns) * 64
        compute = np.minimum(compute, whole * (2.0 * rows * columns) * (k / split + figures["ramp_k"]) * loss / per_sm)
    flops = 2.0 * groups * m * n * k
    compute *= 1 + figures["large"] * flops / (flops + (0.0 if device.warm else _LARGE_FLOPS))
    traffic = groups * ((m * k + k * n) * element + m * n * result)
    memory = traffic / (device.bytes_per_s * figures["memory"])
    memory /= 1 + figures["cache"] * np.exp(-traffic / device.l2_bytes)
    return figures["floor_s"] + _join(compute, memory, figures["norm"])


def quantising_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of turning bf16 activations (m x k) into the product's type, (R,); the tables of fp8 and nvfp4 hold it. 0 for wide types."""
    element = element_bytes(dtype)
    if element >= _HALF:
        return np.zeros(shape["m"].shape)
    moved = shape["m"] * shape["k"] * (_HALF + element)
    return figures["quantise"] * moved / (device.bytes_per_s * figures["memory"])


def experts_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of the experts' products and the activation between them, (R,).

    Shape: experts, rows (of all experts, spread evenly), hidden, inter, gated (1 or 0).
    """
    groups, hidden, inter, gated = (shape[name] for name in ("experts", "hidden", "inter", "gated"))
    each = shape["rows"] / groups
    up = gemm_time(figures, device, dtype, {"groups": groups, "m": each, "n": inter * (1 + gated), "k": hidden})
    down = gemm_time(figures, device, dtype, {"groups": groups, "m": each, "n": hidden, "k": inter})
    activation = shape["rows"] * inter * (2 + gated) * _HALF / (device.bytes_per_s * figures["memory"])
    return up + down + activation


def moving_time(figures: Figures, device: Device, shape: Shape) -> FloatArray:
    """Seconds of bringing tokens into the experts' order and of summing what comes back, (R,). Shape: rows, tokens, hidden."""
    moved = 2 * (shape["rows"] + shape["tokens"]) * shape["hidden"] * _HALF
    return figures["moving"] * moved / (device.bytes_per_s * figures["memory"])


def attention_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of fused attention forward, (R,).

    Shape: batch, q_len, kv_len, heads, kv_heads, head_dim, v_head_dim; pairs: visible pairs of query and key of one head and
    sequence; edges: of the mask, 0, 1 (causal) or 2 (window): a tile of queries meets whole tiles of keys, so each edge costs half a
    tile of keys more a query.
    """
    batch, q_len, kv_len, heads = (shape[name] for name in ("batch", "q_len", "kv_len", "heads"))
    keys = np.minimum(shape["pairs"] / q_len + shape["edges"] * (_KEY_TILE / 2), kv_len)
    tiles = batch * heads * np.ceil(q_len / _QUERY_TILE)
    cost = 2.0 * (shape["head_dim"] + shape["v_head_dim"]) + figures["softmax"]
    longest = np.where(shape["edges"] > 1, keys, kv_len) + figures["ramp"]
    each = tiles / device.sms * (keys + figures["ramp"])
    queue = np.maximum(longest, each + figures["tail"] * longest)
    compute = queue * _QUERY_TILE * cost / (device.flops_per_s * figures["peak"] / device.sms)
    element, dims = element_bytes(dtype), shape["head_dim"] + shape["v_head_dim"]
    queries = heads * q_len * (shape["head_dim"] * element + shape["v_head_dim"] * _HALF)
    traffic = batch * (queries + shape["kv_heads"] * kv_len * dims * element)
    return figures["floor_s"] + _join(compute, traffic / (device.bytes_per_s * figures["memory"]), figures["norm"])


def memory_time(figures: Figures, device: Device, shape: Shape) -> FloatArray:
    """Seconds of one kernel that reads and writes `bytes` in all, (R,)."""
    size_bytes = shape["bytes"]
    beyond = (size_bytes / (device.l2_bytes * figures["capacity"])) ** _SHARP
    missing = beyond / (1 + beyond)
    fast, slow = device.bytes_per_s * figures["cached"], device.bytes_per_s * figures["memory"]
    return figures["floor_s"] + size_bytes * ((1 - missing) / fast + missing / slow)


AXES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "gemm": {
        "m": (0, 4, 7, 9, 10, 11, 12, 13, 15),
        "n": (5, 7, 9, 10, 11, 12, 14, 16),
        "k": (5, 8, 10, 11, 12, 13, 14, 16),
    },
    "attention": {
        "q_len": (4, 8, 10, 11, 12, 14),
        "head": (6, 7, 7.33, 8, 9),
        "tiles": (0, 3, 6, 8, 10, 13),
        "edges": (1, 2),
    },
    "experts": {"rows": (0, 4, 6, 7, 8, 9, 11, 13), "experts": (0, 2, 4, 6, 8), "inter": (7, 9, 10, 11, 13)},
    "memory": {},
}
"""Nodes of the correction, base-2 logarithms of the shape (`head`: of the mean of both head sizes; `rows`: of one expert; `edges`: as it is)."""


def features(kernel: str, shape: Shape) -> Mapping[str, FloatArray]:
    """Where a shape lies on the axes of its kernel's correction, (R,) each."""
    if kernel == "gemm":
        return {name: np.log2(shape[name]) for name in "mnk"}
    if kernel == "attention":
        tiles = shape["batch"] * shape["heads"] * np.ceil(shape["q_len"] / _QUERY_TILE)
        return {
            "q_len": np.log2(shape["q_len"]),
            "head": np.log2((shape["head_dim"] + shape["v_head_dim"]) / 2),
            "tiles": np.log2(tiles),
            "edges": shape["edges"],
        }
    if kernel == "experts":
        each = np.maximum(shape["rows"] / shape["experts"], 1.0)
        return {"rows": np.log2(each), "experts": np.log2(shape["experts"]), "inter": np.log2(shape["inter"])}
    return {}


def corners(kernel: str, shape: Shape) -> Iterator[tuple[npt.NDArray[np.int64], FloatArray]]:
    """Nodes around each shape and their weights, corner by corner: multilinear, held at the ends of the axes."""
    place: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
    found: list[tuple[npt.NDArray[np.int64], FloatArray]] = [(place, np.ones(1))]
    where = features(kernel, shape)
    for name, nodes in AXES[kernel].items():
        axis = np.asarray(nodes, dtype=np.float64)
        left = np.clip(np.searchsorted(axis, where[name], side="right") - 1, 0, len(axis) - 2)
        share = np.clip((where[name] - axis[left]) / (axis[left + 1] - axis[left]), 0.0, 1.0)
        found = [
            (at * len(axis) + left + side, weight * (share if side else 1 - share))
            for at, weight in found
            for side in (0, 1)
        ]
    yield from found


def correction(kernel: str, logs: FloatArray, shape: Shape) -> FloatArray:
    """Factors on the closed form's time, (R,): what the tables know beyond it. logs: natural logarithms at the nodes of AXES, flat."""
    if not len(logs):
        return np.ones(1)
    total = sum((logs[at] * weight for at, weight in corners(kernel, shape)), start=np.zeros(1))
    return np.asarray(np.exp(total))


def _join(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    most = np.maximum(first, second)
    least = np.minimum(first, second)
    return most * (1 + (least / most) ** norm) ** (1 / norm)
