"""The time of an operation on a GPU: surfaces fitted to measured kernels, and their transfer to GPUs that nobody measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.hardware.catalogue import load_catalogue
from busbw.workloads.compute.forms import (
    LIMITS,
    Device,
    attention_time,
    correction,
    experts_time,
    gemm_time,
    memory_time,
)
from busbw.workloads.compute.peaks import accelerator, peak_device
from busbw.workloads.operations import Attention, Experts, Gemm, MemoryBound, Operation

__all__ = ["LAUNCH_GAP_S", "Estimate", "gpus", "operation_time", "operation_times"]

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LAUNCH_GAP_S = 1.0e-6
"""Idle time between two kernels of one stream when the host runs ahead, seconds; not part of an operation's time. A guess: 0.8 to 1.5 us
are usual in traces of CUDA streams, less in CUDA graphs. A kernel's own floor (1.8 to 3 us, data/kernels) is part of its time."""

_BACKWARD_WORK = 2.5
"""Operations of attention backward over forward: five products of which forward has two. Source: FlashAttention-2, arXiv:2307.08691, 4.1."""
_BACKWARD_EFFICIENCY = {
    # Rate backward over rate forward.
    "Ampere": 0.86,  # 63 % of peak backward, 73 % forward: FlashAttention-2, arXiv:2307.08691, 1
    "Hopper": 0.85,  # FlashAttention-3, arXiv:2407.08608, figures of head size 128 at 16k: 561 TFLOP/s backward, about 650 forward
    "Blackwell": 0.75,  # a guess
}
_BACKWARD_OTHER = 0.75  # a guess
_BACKWARD_SPREAD = 1.15  # a guess

_ACHIEVED = {
    # TFLOP/s of the best bf16 product found by search. Source: stas00/ml-engineering compute/accelerator/README.md (744d01e).
    "A100-SXM-80GB": 271.2,
    "GH200-96GB": 828.6,
    "H100-SXM-80GB": 794.5,
    "B300-SXM": 1769.0,
    "B200-SXM": 1745.0,
    "GB200": 1822.0,
    "MI355X": 1565.0,
    "MI325X": 784.9,
    "MI300X": 668.4,
}
_POWER = {"H100-SXM-96GB-HBM2e-500W": 0.87}
"""Rate that a lower power limit leaves; a guess: (500 W / 700 W) to the power 0.4, between the cube and the square root."""

_REFERENCES = {
    # Whose surfaces a GPU takes, by the first words of its architecture; the first that has the kernel class and type is taken.
    "Volta": ("A100-SXM-80GB", "H100-SXM-80GB"),
    "Ampere": ("A100-SXM-80GB", "H100-SXM-80GB"),
    "Hopper": ("H100-SXM-80GB", "H200-SXM-141GB"),
    "Ada": ("L40S",),
    "Blackwell sm_100": ("B200-SXM", "GB200"),
    "Blackwell Ultra": ("B300-SXM", "GB300", "B200-SXM"),
    "Blackwell sm_120": ("RTX-PRO-6000",),
    "Rubin": ("B200-SXM",),
    "Turing": ("A100-SXM-80GB", "H100-SXM-80GB"),
    "Pascal": ("A100-SXM-80GB", "H100-SXM-80GB"),
    "CDNA2": ("A100-SXM-80GB", "H100-SXM-80GB"),
    "CDNA3": ("H100-SXM-80GB",),
    "CDNA4": ("B200-SXM", "H100-SXM-80GB"),
}
_LIKE = {
    # Formats that were not measured: whose surface they take.
    "fp16": ("bf16",),
    "tf32": ("bf16",),
    "fp32": ("bf16",),
    "mxfp8": ("fp8_block", "fp8"),
    "fp8_block": ("fp8",),
    "nvfp4": ("fp8",),
    "fp8": ("bf16",),
    "bf16": (),
}
_WIDER = {"measured": 1.0, "sibling": 1.10, "format": 1.10, "family": 1.15, "vendor": 1.35, "roofline": 1.5}
"""Factors by which an interval widens, both ways, with the distance of what the figures come from. `sibling` (same family) and `family` were tried
on GPUs that are measured (docs/operations.md, `fitting --transfer`); the others are guesses."""
_ROOFLINE = {"peak": 0.6, "memory": 0.8, "floor_s": 4e-6}
"""Where nothing was measured: shares of peak and memory rate. Source: medians of data/hardware.json measured_gemm_efficiency."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of an operation and the interval that holds eight of ten measured kernels of its class."""

    seconds: float
    low_s: float
    high_s: float
    basis: str
    """measured GPU, transferred from another, or roofline."""


@dataclass(frozen=True, slots=True)
class _Surface:
    figures: Mapping[str, float]
    correction: FloatArray
    device: Device
    low: Mapping[bool, float]
    """Factor of the interval's lower end; True for shapes of training."""
    high: Mapping[bool, float]
    basis: str


@lru_cache(maxsize=1)
def surfaces() -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    """What was fitted, by GPU, kernel class and type: figures, libraries, shapes, error held out. Source: surfaces.json."""
    data = json.loads(resources.files(__package__).joinpath("surfaces.json").read_text(encoding="utf-8"))
    return {(entry["gpu"], entry["kernel"], entry["dtype"]): entry for entry in data["surfaces"]}


def gpus() -> tuple[str, ...]:
    """Names of the catalogue's GPUs that an operation can be timed on; measured ones first."""
    measured = sorted({gpu for gpu, _, _ in surfaces()})
    others = [
        name
        for name, entry in load_catalogue().accelerators.items()
        if name not in measured and _references(name) and entry.memory_bytes_per_s.value
    ]
    return (*measured, *(name for name in others if _has_peak(name)))


def _has_peak(gpu: str) -> bool:
    try:
        peak_device(gpu, "bf16")
    except InputError:
        return False
    return True


def _references(gpu: str) -> tuple[str, ...]:
    architecture = accelerator(gpu).architecture
    return next((names for start, names in _REFERENCES.items() if architecture.startswith(start)), ())


def _family(gpu: str) -> str:
    return accelerator(gpu).architecture.split(" ")[0]


@lru_cache(maxsize=4096)
def _surface(gpu: str, kernel: str, dtype: str) -> _Surface:
    """The surface of a GPU of the catalogue; raises InputError where the GPU does not compute in that format."""
    device = peak_device(gpu, dtype)
    shipped = surfaces()
    for near in (dtype, *_LIKE[dtype]):
        for reference in (gpu, *_references(gpu)):
            entry = shipped.get((reference, kernel, near))
            if entry is None:
                continue
            figures = dict(_numbers(entry["figures"]))
            wider, origin = 1.0, f"measured {reference}"
            if reference != gpu:
                same = _family(reference) == _family(gpu)
                wider *= _WIDER["sibling" if same else "vendor" if accelerator(gpu).vendor != "NVIDIA" else "family"]
                origin = f"transferred from {reference}"
                if gpu in _ACHIEVED and reference in _ACHIEVED and not same:
                    share = _ACHIEVED[gpu] / peak_device(gpu, "bf16").flops_per_s
                    figures["peak"] = (
                        figures.get("peak", 1.0)
                        * share
                        * peak_device(reference, "bf16").flops_per_s
                        / _ACHIEVED[reference]
                    )
                figures["peak"] = figures.get("peak", 1.0) * _POWER.get(gpu, 1.0)
            if near != dtype:
                origin += f", {near} for {dtype}"
                wider *= _WIDER["format"]
            ends = {training: entry.get("training" if training else "other", {}) for training in (True, False)}
            low = {training: _numbers(end).get("low", 0.8) / wider for training, end in ends.items()}
            high = {training: _numbers(end).get("high", 1.3) * wider for training, end in ends.items()}
            return _Surface(figures, _correction(entry), device, low, high, origin)
    return _roofline(device, kernel)


def _correction(entry: Mapping[str, Any]) -> FloatArray:
    return np.asarray(entry["correction_per_mille"], dtype=np.float64) / 1000


def _roofline(device: Device, kernel: str) -> _Surface:
    figures = {name: limits[0] for name, limits in LIMITS[kernel].items()} | _ROOFLINE
    width = _WIDER["roofline"]
    return _Surface(
        figures, np.zeros(0), device, {True: 1 / width, False: 1 / width}, {True: width, False: 2 * width}, "roofline"
    )


def _numbers(entry: object) -> Mapping[str, float]:
    if not isinstance(entry, Mapping):
        raise TypeError(f"surfaces.json: expected an object, found {entry!r}")
    return entry


def operation_time(
    gpu: str, operation: Operation, *, sm_fraction: float = 1.0, hbm_fraction: float = 1.0, sustained: bool = False
) -> Estimate:
    """Time of one operation on one GPU, alone on it but for the shares given.

    sm_fraction: SMs left by communication kernels; hbm_fraction: memory rate left by others; sustained: of a GPU that is busy all the time, on which
    short products run at the clock that long ones reach in the tables (up to a quarter slower on H100 and B200; not on A100). Not in it: launch gaps (LAUNCH_GAP_S);
    turning operands into fp8 or fp4, which reads 2 bytes and writes 1 or less an element and is a MemoryBound of its own; bringing
    tokens into the order of their experts, likewise.
    Raises InputError for a GPU that is unknown or does not compute in the operation's format, ValueError for shares not in (0, 1].

    >>> from busbw.workloads.operations import Gemm
    >>> found = operation_time("H100-SXM-80GB", Gemm(m=16384, n=8192, k=8192))
    >>> found.basis, 2.5e-3 < found.seconds < 3.2e-3
    ('measured H100-SXM-80GB', True)
    """
    return _estimate(gpu, operation, _Conditions(sm_fraction, hbm_fraction, sustained))


def operation_times(
    gpu: str,
    operations: Sequence[Operation],
    *,
    sm_fraction: float = 1.0,
    hbm_fraction: float = 1.0,
    sustained: bool = False,
) -> FloatArray:
    """Seconds of each operation, (len(operations),) float64; new shapes are computed together, and remembered."""
    conditions = _Conditions(sm_fraction, hbm_fraction, sustained)
    known = _remembered(gpu, conditions)
    new = [operation for operation in dict.fromkeys(operations) if operation not in known]
    if new:
        if len(known) > _MOST_REMEMBERED:
            known.clear()
            new = list(dict.fromkeys(operations))
        groups: dict[tuple[type, str], list[Operation]] = {}
        for operation in new:
            groups.setdefault((type(operation), getattr(operation, "dtype", "")), []).append(operation)
        for members in groups.values():
            seconds, _ = _seconds(accelerator(gpu).name, members, conditions)
            known.update(zip(members, seconds.tolist(), strict=True))
    return np.fromiter(map(known.__getitem__, operations), dtype=np.float64, count=len(operations))


_MOST_REMEMBERED = 1 << 20


@dataclass(frozen=True, slots=True)
class _Conditions:
    sm_fraction: float
    hbm_fraction: float
    sustained: bool

    def __post_init__(self) -> None:
        if not 0 < self.sm_fraction <= 1 or not 0 < self.hbm_fraction <= 1:
            raise ValueError(
                f"shares of SMs and memory rate are in (0, 1], found {self.sm_fraction} and {self.hbm_fraction}"
            )

    def of(self, full: Device) -> Device:
        """What is left of a GPU."""
        sms, rate = self.sm_fraction, full.bytes_per_s * self.hbm_fraction
        return Device(full.flops_per_s * sms, rate, full.sms * sms, full.l2_bytes, self.sustained)


@lru_cache(maxsize=64)
def _remembered(gpu: str, conditions: _Conditions) -> dict[Operation, float]:
    return {}


@lru_cache(maxsize=1 << 16)
def _estimate(gpu: str, operation: Operation, conditions: _Conditions) -> Estimate:
    name = accelerator(gpu).name
    surface = _surface_of(name, operation)
    all_seconds, all_training = _seconds(name, [operation], conditions)
    seconds, training = float(all_seconds[0]), bool(all_training[0])
    extra = _BACKWARD_SPREAD if isinstance(operation, (Attention, Experts)) and operation.backward else 1.0
    low, high = min(1.0, surface.low[training] / extra), max(1.0, surface.high[training] * extra)
    return Estimate(seconds, seconds * low, seconds * high, surface.basis)


def _surface_of(gpu: str, operation: Operation) -> _Surface:
    if isinstance(operation, Gemm):
        return _surface(gpu, "gemm", operation.dtype)
    if isinstance(operation, Attention):
        return _surface(gpu, "attention", operation.dtype)
    if isinstance(operation, Experts):
        return _surface(gpu, "experts", operation.dtype)
    return _surface(gpu, "memory", "bf16")


def _seconds(gpu: str, operations: Sequence[Operation], conditions: _Conditions) -> tuple[FloatArray, Mask]:
    """Seconds of operations of one kind and type, and which are like those of training, (R,) each."""
    surface = _surface_of(gpu, operations[0])
    device = conditions.of(surface.device)
    gemms = [one for one in operations if isinstance(one, Gemm)]
    if gemms:
        seconds, training = _gemm_seconds(surface, device, gemms)
    elif attentions := [one for one in operations if isinstance(one, Attention)]:
        seconds, training = _attention_seconds(surface, device, attentions, _family(gpu))
    elif experts := [one for one in operations if isinstance(one, Experts)]:
        seconds, training = _experts_seconds(surface, device, experts, _surface(gpu, "gemm", experts[0].dtype))
    else:
        return _memory_seconds(surface, device, [one for one in operations if isinstance(one, MemoryBound)])
    flops = np.array([0.0 if isinstance(one, MemoryBound) else one.flops for one in operations])
    return np.maximum(seconds, flops / device.flops_per_s), training


def _columns(operations: Sequence[Operation], *names: str) -> tuple[dict[str, FloatArray], Mask]:
    """Fields of operations as columns, at least 1, and which operations do any work, (R,) each."""
    found = {name: np.array([getattr(one, name) for one in operations], dtype=np.float64) for name in names}
    works = np.all([column >= 1 for column in found.values()], axis=0)
    return {name: np.maximum(column, 1.0) for name, column in found.items()}, works


def _gemm_seconds(surface: _Surface, device: Device, gemms: Sequence[Gemm]) -> tuple[FloatArray, Mask]:
    columns, works = _columns(gemms, "m", "n", "k", "count")
    count = columns.pop("count")
    traffic = {"result_bytes": np.array([one.result_bytes for one in gemms])}
    each = gemm_time(surface.figures, device, gemms[0].dtype, columns | traffic) * correction(
        "gemm", surface.correction, columns
    )
    return np.where(works, each * count, 0.0), np.minimum.reduce(list(columns.values())) >= 512


def _attention_seconds(
    surface: _Surface, device: Device, attentions: Sequence[Attention], family: str
) -> tuple[FloatArray, Mask]:
    columns, works = _columns(attentions, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_head_dim")
    backward = np.array([one.backward for one in attentions])
    flops = np.array([one.flops for one in attentions]) / np.where(backward, _BACKWARD_WORK, 1.0)
    per_pair = 2.0 * columns["batch"] * columns["heads"] * (columns["head_dim"] + columns["v_head_dim"])
    columns["pairs"] = flops / per_pair
    columns["edges"] = np.array(
        [0.0 if not one.causal else 2.0 if 0 < one.window < one.kv_len else 1.0 for one in attentions]
    )
    seconds = attention_time(surface.figures, device, attentions[0].dtype, columns)
    seconds = seconds * correction("attention", surface.correction, columns)
    slower = _BACKWARD_WORK / _BACKWARD_EFFICIENCY.get(family, _BACKWARD_OTHER)
    return np.where(works, seconds * np.where(backward, slower, 1.0), 0.0), columns["q_len"] >= 1024


def _experts_seconds(
    surface: _Surface, device: Device, experts: Sequence[Experts], dense: _Surface
) -> tuple[FloatArray, Mask]:
    columns, works = _columns(experts, "experts", "rows", "hidden", "inter")
    columns["gated"] = np.array([float(one.gated) for one in experts])
    dtype = experts[0].dtype
    seconds = experts_time(surface.figures, device, dtype, columns)
    seconds = seconds * correction("experts", surface.correction, columns)
    # Fused kernels blur what products and what moving tokens take; one product of all rows is a bound either way.
    rows, hidden, inter = columns["rows"], columns["hidden"], columns["inter"]
    whole = np.zeros(len(experts))
    for n, k in ((inter * (1 + columns["gated"]), hidden), (hidden, inter)):
        shape = {"m": rows, "n": n, "k": k}
        whole += gemm_time(dense.figures, device, dtype, shape) * correction("gemm", dense.correction, shape)
    times = np.where([one.backward for one in experts], 2.0, 1.0)
    return np.where(works, np.maximum(seconds, whole) * times, 0.0), rows >= 128 * columns["experts"]


def _memory_seconds(surface: _Surface, device: Device, moved: Sequence[MemoryBound]) -> tuple[FloatArray, Mask]:
    size = np.array([max(0.0, one.bytes) for one in moved])
    kernels = np.array([max(0, one.kernels) for one in moved], dtype=np.float64)
    each = size / np.maximum(kernels, 1.0)
    seconds = memory_time(surface.figures, device, {"bytes": each}) * kernels
    return np.where(size > 0, seconds, 0.0), each >= 1e7
