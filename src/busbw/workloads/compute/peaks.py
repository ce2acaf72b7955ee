"""What a GPU can do at best, by number format: the catalogue's figures, and for products it has none for those of data sheets."""

from __future__ import annotations

from difflib import get_close_matches

from busbw.errors import InputError
from busbw.hardware.catalogue import Accelerator, find_accelerator, load_catalogue
from busbw.workloads.compute.forms import Device

__all__ = ["accelerator", "peak_device", "peak_flops"]

_TERA = 1e12
_DATA_SHEET = {
    # Dense tensor TFLOP/s of bf16 (fp16 before Ampere) and of fp8. Data sheets of the makers, from memory, unverified.
    "V100-SXM2-16GB": {"bf16": 125.0},
    "V100-PCIe-32GB": {"bf16": 112.0},
    "A100-PCIe-40GB": {"bf16": 312.0},
    "A800-SXM-80GB": {"bf16": 312.0},
    "H20-SXM-96GB": {"bf16": 148.0, "fp8": 296.0},
    "H200-NVL-141GB": {"bf16": 835.0, "fp8": 1671.0},
    "H100-SXM-96GB-HBM2e-500W": {
        "bf16": 989.0,
        "fp8": 1979.0,
    },  # the peak of the 700 W part: torchtitan says it does not know
    "A30-24GB": {"bf16": 165.0},
    "A40-48GB": {"bf16": 149.7},
    "A10-24GB": {"bf16": 125.0},
    "A10G-24GB": {"bf16": 70.0},
    "L4-24GB": {"bf16": 121.0, "fp8": 242.0},
    "L40-48GB": {"bf16": 181.0, "fp8": 362.0},
    "L20-48GB": {"bf16": 119.5, "fp8": 239.0},
    "T4-16GB": {"bf16": 65.0},
    "RTX-A6000": {"bf16": 154.8},
    "RTX-6000-Ada": {"bf16": 364.0, "fp8": 728.0},
    "RTX-3090": {"bf16": 71.0},
    "RTX-4090": {"bf16": 165.2, "fp8": 330.3},
    "RTX-5090": {"bf16": 209.5, "fp8": 419.0, "fp4": 1676.0},
    "MI210": {"bf16": 181.0},
    "MI250X": {"bf16": 383.0},
}
_FP32 = {
    # TFLOP/s outside tensor units. Same source: data sheets, from memory, unverified. Others: 1/16 of bf16, as A100 and H100 have.
    "Volta": 15.7,
    "Ampere": 19.5,
    "Hopper": 67.0,
    "Blackwell": 75.0,
    "Blackwell Ultra": 77.0,
}
_COLUMN = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}


def accelerator(gpu: str) -> Accelerator:
    """The catalogue's entry. Raises InputError with the nearest names where there is none."""
    found = find_accelerator(gpu)
    if found is None:
        names = list(load_catalogue().accelerators)
        upper = {name.upper(): name for name in names}
        near = [upper[name] for name in get_close_matches(gpu.upper(), upper, 3, 0.3)] or names[:3]
        raise InputError(
            f"hardware-unknown: no GPU {gpu!r} in the catalogue, so its speed is not known. Nearest: {', '.join(near)}. "
            "`busbw hardware` lists all."
        )
    return found


def peak_flops(gpu: str, dtype: str) -> float:
    """Dense peak, operations per second. Raises InputError where the GPU has no such number format or nobody says its peak."""
    found = accelerator(gpu)
    if dtype == "fp32":
        family = found.architecture.split(" sm_")[0]
        if family in _FP32 and found.form != "PCIE":
            return _FP32[family] * _TERA
        return peak_flops(gpu, "bf16") / 16
    if dtype == "tf32":
        return peak_flops(gpu, "bf16") / 2  # A100: 156 of 312; H100: 495 of 989 (data sheets)
    if dtype not in _COLUMN:
        raise InputError(f"number format {dtype!r} is unknown; known: fp32, tf32, {', '.join(_COLUMN)}")
    column = _COLUMN[dtype]
    figure = found.dense_flops.get(column)
    value = (
        figure.value if figure is not None and figure.value else _DATA_SHEET.get(found.name, {}).get(column, 0) * _TERA
    )
    if (
        dtype == "mxfp8"
        and (found.vendor != "NVIDIA" or (found.compute_capability or 0) < 100)
        and found.model != "RUBIN"
    ):
        value = 0.0  # block scales of 32 came with Blackwell
        if found.name == "MI355X":
            value = peak_flops(gpu, "fp8")
    if not value:
        has = [
            name
            for name in ("bf16", "fp8", "fp4")
            if (found.dense_flops.get(name) or _DATA_SHEET.get(found.name, {}).get(name))
        ]
        raise InputError(
            f"hardware-unknown: {found.name} has no known peak for {dtype} "
            f"(its formats here: {', '.join(has) or 'none'}). Choose a precision that it computes in, or another GPU."
        )
    return value


def peak_device(gpu: str, dtype: str) -> Device:
    """The GPU at its peak figures for one number format. Raises InputError where one is missing."""
    found = accelerator(gpu)
    rate, sms = found.memory_bytes_per_s.value, found.multiprocessors.value
    if not rate:
        raise InputError(f"hardware-unknown: the catalogue has no memory rate of {found.name}. Choose another GPU.")
    return Device(peak_flops(gpu, dtype), rate, float(sms or 148), found.l2_bytes.value or 50e6)
