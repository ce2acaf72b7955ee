"""The flow simulator: programs as columns, run at max-min fair rates."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


RATE_UNITS_PER_BYTE: int = 1024

def tree_ways(down: Sequence[int], up: Sequence[int], parallel: Sequence[int], src_slot: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst_slot: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int, hashed: bool) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))]]:
    """
    Ways through a fat tree, one a pair of slots: where each begins, and its links. D-mod-k, or ECMP if hashed, by endpoints src, dst.
    """

class Program:
    """
    Streams of instructions that exchange messages over channels; columns as in busbw/sim/program.hpp.
    """

    def __init__(self) -> None: ...

    def set_code(self, code: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """(instructions x 4), flat: operation, first, count, amount."""

    def set_streams(self, entry: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], channels: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], channel_of: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ports: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], port_of: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slowness: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], background: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_channels(self, way: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], size_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], injector: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ports: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], credit_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], overhead_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_ports(self, stream: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], latency_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_ways(self, begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], share: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_tree_ways(self, down: Sequence[int], up: Sequence[int], parallel: Sequence[int], src_slot: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst_slot: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int, hashed: bool) -> Annotated[NDArray[numpy.int8], dict(shape=(None,))]:
        """Takes what tree_ways gives; returns how many links each way has."""

    def set_capacity(self, units: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """(L,) in 1/1024 byte per second."""

    @property
    def share_unit(self) -> int: ...

    @share_unit.setter
    def share_unit(self, arg: int, /) -> None: ...

    def set_injectors(self, gap_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_changes(self, time_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], units: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], channel: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], way: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class Run:
    """One run of a program."""

    def __init__(self, program: Program, record: bool, fast_forward: bool, most_rows: int) -> None:
        """Takes the program's columns; the program is empty afterwards."""

    def run(self, events: int) -> int:
        """Goes on for about so many events: 0 not yet done, 1 done, 2 stalled."""

    @property
    def now_ps(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def messages(self) -> int: ...

    @property
    def messages_skipped(self) -> int: ...

    @property
    def solves(self) -> int: ...

    @property
    def rows_left_out(self) -> bool: ...

    def ends_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """(S,) when each stream ended, -1 if it has not."""

    def causes(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """(S,) the row that let each stream end, -1 none."""

    def channel_bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def tasks(self) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))]]:
        """channel, stream, posted, begin, end (ps), bytes, bottleneck, cause."""

    def repeats(self) -> list[tuple[int, int, int, int]]:
        """first row, last row, times, period in ps."""

    def waits(self) -> list[tuple[int, int, int, int]]:
        """
        stream, operation, channel, link without capacity; of streams that have not ended.
        """
