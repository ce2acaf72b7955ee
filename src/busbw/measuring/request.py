"""What to measure: a request as it is written on a command line, sent to every rank, and kept beside its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from busbw.errors import InputError

__all__ = [
    "COLLECTIVES",
    "DTYPES",
    "IN_PLACE",
    "OPERATIONS",
    "POINT_TO_POINT",
    "REDUCING",
    "ROOTED",
    "Precision",
    "Request",
    "request_from",
]

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", "gather", "scatter", "send_recv",
    "barrier",
)  # fmt: skip
POINT_TO_POINT = ("latency", "bandwidth", "bidirectional", "message_rate")
"""Of messages: half a round trip; a window of them one way; both ways; small ones between all pairs of a rank and the one half the ranks further."""
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = ("sum", "prod", "min", "max", "avg")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Those that have calls in place, as nccl-tests has them."""
_WIDTH = 0.02
_LIMIT_S = 0.5
"""Of a half of a row. A guess: a table of 24 sizes then takes less than half a minute."""
_WARM_UP = 5
"""nccl-tests' default is 1, OSU's 10 to 200 (both from memory, unverified); the first calls open connections and register memory."""


@dataclass(frozen=True, slots=True)
class Precision:
    """When enough has been measured."""

    width: float = _WIDTH
    """Of the interval in which the median lies with 95 %, as a share of the median."""
    limit_s: float = _LIMIT_S
    """Of a half of a row, unless five calls take longer."""
    iterations: int | None = None
    """Exactly so many calls, whatever the interval."""
    warm_up: int = _WARM_UP
    """Calls before the first that counts."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure. Raises InputError for what no back end could measure."""

    collective: str
    ranks: int
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    window: bool = False
    """all_reduce on memory that all ranks map, which copies nothing; of the builtin back end."""
    in_place: bool = True
    """Whether in-place calls are measured besides."""
    iterations: int | None = None
    """Calls of a half of a row, exactly; as many as `width` needs if None."""
    root: int = 0
    backend: str = "builtin"
    width: float = _WIDTH
    limit_s: float = _LIMIT_S
    warm_up: int = _WARM_UP

    def __post_init__(self) -> None:
        """Refuses what can't be."""
        if self.collective not in COLLECTIVES + POINT_TO_POINT:
            raise InputError(
                f"{self.collective}: is not measured; there are {', '.join(COLLECTIVES + POINT_TO_POINT).replace('_', '-')}."
            )
        if self.ranks < 1:
            raise InputError(f"{self.ranks} ranks: write 1 or more.")
        if self.collective in POINT_TO_POINT and self.ranks < 2:
            raise InputError(f"{self.collective.replace('_', '-')} is between two ranks: write --ranks 2 or more.")
        if self.dtype not in DTYPES:
            raise InputError(f"type {self.dtype}: there are {', '.join(DTYPES)}.")
        if self.op not in OPERATIONS:
            raise InputError(f"operation {self.op}: there are {', '.join(OPERATIONS)}.")
        if not 0 <= self.root < self.ranks:
            raise InputError(f"root {self.root}: is none of the ranks 0 to {self.ranks - 1}.")
        if self.iterations is not None and self.iterations < 1:
            raise InputError(f"{self.iterations} iterations: write 1 or more.")
        if not 0 < self.width < 1:
            raise InputError(f"confidence width {self.width:g}: write a share between 0 and 1, such as 2%.")
        if not self.limit_s > 0:
            raise InputError(f"limit of a cell {self.limit_s:g} s: write more than 0.")
        if self.warm_up < 0:
            raise InputError(f"{self.warm_up} calls of warm-up: write 0 or more.")
        if any(size < 0 for size in self.sizes_bytes):
            raise InputError("a size is below 0 bytes.")

    @property
    def precision(self) -> Precision:
        """When enough has been measured."""
        return Precision(self.width, self.limit_s, self.iterations, self.warm_up)

    def key(self, size_bytes: int) -> str:
        """Names the row of a size among all that one run measures: what `--resume` looks for."""
        return f"{self.collective}/{self.dtype}/{self.op}/{self.root}/{self.ranks}/{'window/' if self.window else ''}{size_bytes}"

    def to_json(self) -> dict[str, Any]:
        """For another process, or a store."""
        return asdict(self)


def request_from(told: Mapping[str, Any]) -> Request:
    """The inverse of `Request.to_json`. Raises InputError for other content."""
    try:
        return Request(**{**told, "sizes_bytes": tuple(told["sizes_bytes"])})
    except (KeyError, TypeError) as error:
        raise InputError(f"no request of `busbw run`: {error}") from None
