"""What every rank gives to a collective, where it lies, and what must come out, by numpy: the same for all back ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.measuring.elements import BFLOAT16_EPS, decoded, encoded, item_bytes
from busbw.measuring.request import REDUCING, Request

__all__ = ["Places", "due", "given", "peers", "places", "sent_counts", "wrong_elements"]

Array = npt.NDArray[Any]

_PERIOD = 251
"""Elements after which a rank's input repeats: a prime, so that no chunk of a power of two looks like its neighbour."""
_SHIFT = 37
"""How much further each rank begins."""
_DIGITS = np.random.default_rng(20).integers(0, 3, _PERIOD)
_MOST_FACTORS = 6
"""Ranks whose values take part in a product; 2^6 is exact in every type."""
_MOST_TERMS = 1000
"""Ranks whose values take part in a sum; 2 * 1000 is exact in float16."""
_MOST_TERMS_OF_BFLOAT16 = 128
"""The same where whole numbers are exact to 256."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a collective's data lie, in elements: in `whole` of `length`, and, out of place, in `other` of `other_length`."""

    size: int
    """nccl-tests' size over the element's: the larger of a rank's send and receive buffers."""
    count: int
    """As nccl-tests prints it."""
    part: int
    """A rank's share."""
    length: int
    other_length: int
    source: slice
    """Of `whole`."""
    target: slice
    """Of `whole` in place, else of `other`."""


def sent_counts(part: int, ranks: int) -> Array:
    """(ranks, ranks) int64: elements that rank r sends to rank s in all_to_all_v. Uneven as tokens of experts are: half, one, or one and a half parts."""
    places = np.arange(ranks)
    return part * (1 + (places[:, None] + places[None, :]) % 3) // 2


def places(request: Request, rank: int, size_bytes: int, in_place: bool) -> Places:
    """Where the data of a row lie on this rank: whole elements for each rank, so that the size is at most what was asked for."""
    ranks, item = request.ranks, item_bytes(request.dtype)
    elements = size_bytes // item
    part = elements // ranks
    whole = part * ranks
    own, every, first = slice(rank * part, (rank + 1) * part), slice(0, whole), slice(0, part)
    match request.collective:
        case "all_reduce" | "broadcast" | "reduce":
            return Places(elements, elements, part, elements, 0 if in_place else elements, slice(0, elements), slice(0, elements))  # fmt: skip
        case "reduce_scatter":
            return Places(whole, part, part, whole, 0 if in_place else part, every, own if in_place else first)
        case "all_gather":
            return Places(whole, part, part, whole, 0 if in_place else whole, own if in_place else first, every)
        case "all_to_all":
            return Places(whole, part, part, whole, whole, every, every)
        case "all_to_all_v":
            counts = sent_counts(part, ranks)
            sent, got = int(counts[rank].sum()), int(counts[:, rank].sum())
            largest = int(max(counts.sum(axis=0).max(initial=0), counts.sum(axis=1).max(initial=0)))
            return Places(largest, part, part, sent, got, slice(0, sent), slice(0, got))
        case "gather":
            return Places(whole, part, part, part, whole if rank == request.root else 0, first, slice(0, whole if rank == request.root else 0))  # fmt: skip
        case "scatter":
            return Places(whole, part, part, whole if rank == request.root else 0, part, slice(0, whole if rank == request.root else 0), first)  # fmt: skip
        case "barrier":
            return Places(0, 0, 0, 0, 0, slice(0, 0), slice(0, 0))
        case _:  # messages
            return Places(elements, elements, elements, elements, elements, slice(0, elements), slice(0, elements))


def given(request: Request, rank: int, count: int, start: int = 0) -> Array:
    """Elements start .. start + count of a rank's input: small whole numbers, so that results are exact in every type and order of reduction."""
    return _repeated(encoded(_period(request, rank), request.dtype), start, count)


def _period(request: Request, rank: int) -> Array:
    digits = np.roll(_DIGITS, -_SHIFT * rank)
    if request.op == "prod" and request.collective in REDUCING:
        digits = 1 + digits % 2 if rank < _MOST_FACTORS else np.ones_like(digits)
    elif request.op in ("sum", "avg") and rank >= (
        _MOST_TERMS_OF_BFLOAT16 if request.dtype == "bfloat16" else _MOST_TERMS
    ):
        digits = np.zeros_like(digits)
    return digits.astype(np.float32 if request.dtype == "bfloat16" else request.dtype)


def _repeated(period: Array, start: int, count: int) -> Array:
    return np.resize(np.roll(period, -(start % _PERIOD)), count) if count else period[:0]


def due(request: Request, rank: int, at: Places) -> Array | None:
    """What must be in the target of this rank; None where nothing must."""
    ranks = request.ranks
    match request.collective:
        case "all_reduce":
            return _repeated(encoded(_reduced(request), request.dtype), 0, at.size)
        case "reduce":
            return _repeated(encoded(_reduced(request), request.dtype), 0, at.size) if rank == request.root else None
        case "reduce_scatter":
            return _repeated(encoded(_reduced(request), request.dtype), rank * at.part, at.part)
        case "all_gather":
            return np.concatenate([given(request, r, at.part) for r in range(ranks)])
        case "gather":
            return np.concatenate([given(request, r, at.part) for r in range(ranks)]) if rank == request.root else None
        case "scatter":
            return given(request, request.root, at.part, rank * at.part)
        case "all_to_all":
            return np.concatenate([given(request, r, at.part, rank * at.part) for r in range(ranks)])
        case "all_to_all_v":
            counts = sent_counts(at.part, ranks)
            return np.concatenate(
                [given(request, r, int(counts[r, rank]), int(counts[r, :rank].sum())) for r in range(ranks)]
            )
        case "broadcast":
            return given(request, request.root, at.size)
        case "barrier":
            return None
        case _:
            origin = peers(request, rank)[1]
            return None if origin is None else given(request, origin, at.size)


def peers(request: Request, rank: int) -> tuple[int | None, int | None]:
    """Whom this rank sends messages to, and whom it gets some from: send_recv goes round a ring, message_rate to the other half of the ranks."""
    ranks, half = request.ranks, request.ranks // 2
    match request.collective:
        case "send_recv":
            return (rank + 1) % ranks, (rank - 1) % ranks
        case "bandwidth":
            return (1, None) if rank == 0 else (None, 0 if rank == 1 else None)
        case "message_rate":
            return (rank + half, None) if rank < half else (None, rank - half if rank < 2 * half else None)
        case _:
            return (1 - rank, 1 - rank) if rank < 2 else (None, None)


def wrong_elements(request: Request, got: Array, must: Array | None) -> int:
    """Elements that are not what they must be. Averages of fractions may be a rounding off: NCCL multiplies by 1/n before it adds."""
    if must is None:
        return 0
    got, must = decoded(got, request.dtype), decoded(must, request.dtype)
    if request.op == "avg" and request.collective in REDUCING and np.issubdtype(got.dtype, np.floating):
        slack = 2 * request.ranks * (BFLOAT16_EPS if request.dtype == "bfloat16" else float(np.finfo(got.dtype).eps))
        off = np.abs(got.astype(np.float64) - must.astype(np.float64)) > slack * np.abs(must.astype(np.float64))
        return int(np.count_nonzero(off | np.isnan(got)))
    return int(np.count_nonzero(got != must))


def _reduced(request: Request) -> Array:
    """The reduction of all ranks' inputs, of one period: avg of whole numbers goes towards 0, of float16 is made in float32, as NCCL has it."""
    combine: Any = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[request.op]
    total = _period(request, 0)
    for rank in range(1, request.ranks):
        total = combine(total, _period(request, rank))
    if request.op != "avg":
        return total
    if not np.issubdtype(total.dtype, np.floating):
        return np.asarray(np.trunc(total / request.ranks).astype(total.dtype))
    wide = total.astype(np.float32) if total.dtype.itemsize == 2 else total
    return np.asarray((wide / wide.dtype.type(request.ranks)).astype(total.dtype))
