"""Element types as they lie in memory: numpy's, and bfloat16, which numpy lacks, as its bits in uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BFLOAT16_EPS", "decoded", "encoded", "item_bytes", "stored_as"]

Array = npt.NDArray[Any]

_BFLOAT16 = "bfloat16"
BFLOAT16_EPS = 2.0**-7
"""From 1 to the next number: 8 bits of significand, one of them not stored. Source: Intel, BFLOAT16 - Hardware Numerics Definition, 2018 (from memory)."""


def stored_as(dtype: str) -> np.dtype[Any]:
    """The numpy type of an array of such elements.

    >>> stored_as("bfloat16"), stored_as("int8")
    (dtype('uint16'), dtype('int8'))
    """
    return np.dtype(np.uint16 if dtype == _BFLOAT16 else dtype)


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return int(stored_as(dtype).itemsize)


def encoded(values: Array, dtype: str) -> Array:
    """Numbers as elements; to bfloat16 by way of float32, rounded to the nearest, ties to even.

    >>> [hex(bits) for bits in encoded(np.array([1.0, 2.0, 1 + 2**-8]), "bfloat16")]
    ['0x3f80', '0x4000', '0x3f80']
    """
    if dtype != _BFLOAT16:
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decoded(elements: Array, dtype: str) -> Array:
    """Elements as numbers of a type that numpy computes with: the elements themselves, but for bfloat16 float32.

    >>> decoded(np.array([0x3F80, 0x4000], np.uint16), "bfloat16")
    array([1., 2.], dtype=float32)
    """
    return (elements.astype(np.uint32) << 16).view(np.float32) if dtype == _BFLOAT16 else elements
