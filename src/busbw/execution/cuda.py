"""Collectives on GPUs: the kernels of the device headers, compiled at run time and launched on windows that all ranks map.

A rank is a GPU, or several ranks share one for tests: as processes that have agreed on a name (`CudaCommunicator(rank, ranks, name)`), or all
in this process (`CudaCommunicator.local([0, 1])`).
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from busbw.collectives.collective import DTYPE_BYTES as REDUCED_BYTES
from busbw.collectives.collective import OPERATIONS as ALL_OPERATIONS
from busbw.execution.communicator import PRIMITIVES, GaveUpError
from busbw.execution.cuda_compiler import Compiler, CubinCache, find_compiler
from busbw.execution.cuda_driver import CudaError, CudaUnavailableError, Device, Driver, open_driver
from busbw.execution.cuda_kernels import (
    DIVIDE,
    MOST_RANKS,
    PACKET_FORMS,
    REPORT,
    TYPES,
    WORDS,
    Comm,
    Entry,
    Layout,
    Window,
    argument_bytes,
    as_window,
    divide_bytes,
    layout_bytes,
    source_of,
)
from busbw.execution.cuda_memory import BetweenProcesses, InProcess, Mapped, Peers

__all__ = ["CudaCommunicator", "CudaWindow", "DeviceArray", "Toolkit", "each_rank", "find_toolkit"]

Array = npt.NDArray[Any]
T = TypeVar("T")

SLOT_BYTES = 128 << 10
"""Of a strip. Half of it is under way while the other half is read; 32 blocks of 8 ranks take 64 MiB. A guess."""
MOST_BLOCKS = 32
"""Of a rank: fielded kernels take 8 to 36 (kernel-design.md, section 2.3)."""
PACKET_SLOT_BYTES = 16 << 10
"""Of packets, which are for small messages. A guess."""
PACKETS_BELOW_BYTES = 64 << 10
"""all_reduce by LL: the most that kernel-design.md, section 4, would have one shot be fast for. A guess: LL stores twice the bytes, and saves a fence."""
PACKET_BYTES_A_BLOCK = 4 << 10
"""A block more for each: one packet of 8 bytes for each of 512 threads."""
BYTES_A_BLOCK = 16 << 10
"""A block more for each: two vectors of 16 bytes for each of 512 threads. A guess."""
OLDEST_ARCHITECTURE = 70
"""The memory model of PTX begins there (PTX ISA, "Memory Consistency Model")."""
DTYPE_BYTES = {**REDUCED_BYTES, "uint16": 2}
"""Of what can be moved."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What a communicator works with; tests give it parts of their own."""

    driver: Driver
    compiler: Compiler
    cache: CubinCache


def find_toolkit() -> Toolkit:
    """The driver and a compiler of this machine. Raises CudaUnavailableError that names all that is missing."""
    missing = []
    driver: Driver | None = None
    compiler: Compiler | None = None
    try:
        driver = open_driver()
    except CudaUnavailableError as error:
        missing.append(str(error))
    try:
        compiler = find_compiler()
    except CudaUnavailableError as error:
        missing.append(str(error))
    if driver is None or compiler is None:
        raise CudaUnavailableError("\n".join(missing))
    if compiler.version[0] > driver.version()[0]:
        raise CudaUnavailableError(
            f"{compiler.name} makes code that a driver of CUDA {'.'.join(map(str, driver.version()))} does not load. Install a newer driver, or the "
            f"compiler of the driver's version: pip install 'nvidia-cuda-nvrtc-cu{driver.version()[0]}'."
        )
    return Toolkit(driver, compiler, CubinCache())


class Functions:
    """The functions of one GPU's context by entry, each compiled and loaded at its first use."""

    def __init__(self, toolkit: Toolkit, device: Device, context: int) -> None:
        self._toolkit, self.device, self.context = toolkit, device, context
        self._found: dict[Entry, int] = {}
        self._others: dict[tuple[str, str], int] = {}
        self._modules: list[int] = []
        self._lock = threading.Lock()

    def of(self, entry: Entry) -> int:
        """The function. Its context must be current.

        It is loaded here and not at its first launch: loading may wait for kernels of the context that run, and they may wait for that launch
        (CUDA C++ Programming Guide, "Lazy Loading").
        """
        with self._lock:
            if entry not in self._found:
                self._found[entry] = self._loaded(source_of([entry]), entry.symbol)
            return self._found[entry]

    def of_source(self, source: str, symbol: str) -> int:
        """A function of another source."""
        with self._lock:
            if (source, symbol) not in self._others:
                self._others[source, symbol] = self._loaded(source, symbol)
            return self._others[source, symbol]

    def _loaded(self, source: str, symbol: str) -> int:
        toolkit = self._toolkit
        image = toolkit.cache.cubin(toolkit.compiler, source, self.device.architecture)
        module = toolkit.driver.load(image)
        self._modules.append(module)
        return toolkit.driver.function(module, symbol)

    def close(self) -> None:
        """Unloads all."""
        with self._lock, ExitStack() as undo:
            for module in self._modules:
                undo.callback(self._toolkit.driver.unload, module)
            self._modules, self._found, self._others = [], {}, {}


class _Opened:
    """Contexts and functions of the GPUs that ranks of this process use, each GPU once; gone with the last rank."""

    def __init__(self, toolkit: Toolkit, ordinals: Sequence[int]) -> None:
        self.toolkit = toolkit
        self.functions: dict[int, Functions] = {}
        self._users = 0
        self._lock = threading.Lock()
        self._undo = ExitStack()
        with ExitStack() as undo:
            for ordinal in dict.fromkeys(ordinals):
                device = toolkit.driver.device(ordinal)
                if device.architecture < OLDEST_ARCHITECTURE:
                    raise CudaUnavailableError(
                        f"GPU {ordinal} ({device.name}) is sm_{device.architecture}; the kernels need the memory model of sm_{OLDEST_ARCHITECTURE}."
                    )
                context = toolkit.driver.retain_context(ordinal)
                undo.callback(toolkit.driver.release_context, ordinal)
                functions = Functions(toolkit, device, context)
                undo.callback(self._unload, functions)
                self.functions[ordinal] = functions
            self._undo = undo.pop_all()

    def _unload(self, functions: Functions) -> None:
        self.toolkit.driver.set_current(functions.context)
        functions.close()

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._undo.close()


class DeviceArray:
    """A run of elements in a GPU's memory. cupy, numba and torch take it by `__cuda_array_interface__`; `numpy()` copies it to the host.

    dtype: numpy's; bfloat16 goes as uint16. Valid as long as this object, and as its communicator is open.
    """

    def __init__(
        self, driver: Driver, context: int, address: int, size: int, *, dtype: Any, owner: object = None
    ) -> None:
        self._driver, self._context, self._owner = driver, context, owner
        self.address, self.size, self.dtype = address, size, np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return int(self.size * self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": self.dtype.str, "data": (self.address, False), "version": 3}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> DeviceArray:
        """A part of it, without a copy."""
        begin, end, step = part.indices(self.size)
        if step != 1:
            raise ValueError("parts of a DeviceArray have step 1")
        address = self.address + begin * self.dtype.itemsize
        return DeviceArray(
            self._driver, self._context, address, max(end - begin, 0), dtype=self.dtype, owner=self._owner or self
        )

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as other elements."""
        kind = np.dtype(dtype)
        if self.nbytes % kind.itemsize or self.address % kind.itemsize:
            raise ValueError(f"{self.nbytes} bytes at {self.address:#x} are no whole {kind}")
        size = self.nbytes // kind.itemsize
        return DeviceArray(self._driver, self._context, self.address, size, dtype=kind, owner=self._owner or self)

    def numpy(self, stream: int = 0) -> Array:
        """A copy on the host, after what the stream has before it."""
        out = np.empty(self.size, self.dtype)
        self._driver.set_current(self._context)
        if self.nbytes:
            self._driver.copy_out(out.ctypes.data, self.address, self.nbytes, stream)
        self._driver.synchronize(stream)
        return out

    def fill(self, values: Any, stream: int = 0) -> None:
        """Copies values from the host; returns when they are there."""
        given = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), (self.size,)))
        self._driver.set_current(self._context)
        if given.nbytes:
            self._driver.copy_in(self.address, given.ctypes.data, given.nbytes, stream)
        self._driver.synchronize(stream)


class CudaWindow:
    """Memory of the same size on every rank that all of them map; `array` is this rank's, of bytes. Collectives on it copy nothing besides."""

    def __init__(self, mapped: Mapped, rank: int, driver: Driver, context: int) -> None:
        self._mapped, self._rank = mapped, rank
        self.size_bytes = mapped.size_bytes
        self.array = DeviceArray(driver, context, mapped.addresses[rank], mapped.size_bytes, dtype=np.uint8, owner=self)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where this process maps it, by rank."""
        return self._mapped.addresses

    @property
    def struct(self) -> Window:
        """As kernels take it."""
        return as_window(self._mapped.addresses, self.size_bytes)

    def offset_of(self, address: int, size_bytes: int) -> int | None:
        """Where a piece of memory begins in this rank's part, bytes; None if it is not all in it."""
        begin = address - self._mapped.addresses[self._rank]
        return begin if begin >= 0 and begin + size_bytes <= self.size_bytes else None


@dataclass(frozen=True, slots=True)
class _Given:
    """An array that a caller gave."""

    address: int
    size: int
    kind: str
    host: Array | None
    keep: object

    @property
    def nbytes(self) -> int:
        return self.size * DTYPE_BYTES[self.kind]


class CudaCommunicator:
    """One rank of a communicator whose ranks are GPUs of this machine, one process each, that have agreed on `name`.

    Arrays are on this rank's GPU, by DLPack or `__cuda_array_interface__` (torch, cupy, `DeviceArray`), or numpy arrays, which are copied there and
    back; contiguous. With `stream` (a CUstream as int) a call only enqueues its kernels there, also while the stream is captured into a graph;
    `check()` says afterwards whether a wait gave up. Without it, a call waits for its result. Reductions go by rank 0, 1, .. n-1 on every rank, so
    all ranks get the same bits, those of the other back ends.

    One stream at a time: calls of a communicator that run at once would take each other's signals. device: None takes GPU rank modulo their
    number. blocks: of a kernel, at most. Several processes on one GPU take turns unless MPS runs, so every exchange takes a time slice.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        name: str,
        *,
        device: int | None = None,
        wait_s: float = 30.0,
        slot_bytes: int = SLOT_BYTES,
        blocks: int = MOST_BLOCKS,
        toolkit: Toolkit | None = None,
    ) -> None:
        _check_shape(rank, ranks, slot_bytes, blocks)
        with ExitStack() as undo:
            tools = find_toolkit() if toolkit is None else toolkit
            ordinal = rank % tools.driver.device_count() if device is None else device
            opened = _Opened(tools, [ordinal])
            undo.callback(opened.leave)
            opened.enter()
            found = opened.functions[ordinal].device
            tools.driver.set_current(opened.functions[ordinal].context)
            peers = BetweenProcesses(tools.driver, found, name, rank=rank, ranks=ranks, wait_s=wait_s)
            self._begin(
                rank,
                ranks,
                name,
                opened=opened,
                ordinal=ordinal,
                peers=peers,
                wait_s=wait_s,
                slot_bytes=slot_bytes,
                blocks=blocks,
                undo=undo,
            )
            self._undo = undo.pop_all()

    @classmethod
    def local(
        cls,
        devices: Sequence[int],
        *,
        wait_s: float = 30.0,
        slot_bytes: int = SLOT_BYTES,
        blocks: int = MOST_BLOCKS,
        toolkit: Toolkit | None = None,
    ) -> list[CudaCommunicator]:
        """All ranks of a communicator in this process: rank r on GPU devices[r]; a GPU may be named several times.

        Calls that wait for their result must be made from a thread a rank (`each_rank`), or none would come back.
        """
        ranks = len(devices)
        _check_shape(0, ranks, slot_bytes, blocks)
        made: list[CudaCommunicator] = []
        with ExitStack() as undo:
            tools = find_toolkit() if toolkit is None else toolkit
            opened = _Opened(tools, devices)
            undo.callback(opened.leave)
            opened.enter()  # this function's own, until all ranks have theirs
            functions = opened.functions
            contexts = {ordinal: one.context for ordinal, one in functions.items()}
            peers = InProcess(tools.driver, [functions[ordinal].device for ordinal in devices], contexts)
            for rank, ordinal in enumerate(devices):
                with ExitStack() as own:
                    one = cls.__new__(cls)
                    own.callback(opened.leave)
                    opened.enter()
                    tools.driver.set_current(contexts[ordinal])
                    one._begin(
                        rank,
                        ranks,
                        "local",
                        opened=opened,
                        ordinal=ordinal,
                        peers=peers.of(rank),
                        wait_s=wait_s,
                        slot_bytes=slot_bytes,
                        blocks=blocks,
                        undo=own,
                    )
                    one._undo = own.pop_all()
                undo.callback(one.close)
                made.append(one)
            undo.pop_all()
            opened.leave()
        return made

    def _begin(
        self,
        rank: int,
        ranks: int,
        name: str,
        *,
        opened: _Opened,
        ordinal: int,
        peers: Peers,
        wait_s: float,
        slot_bytes: int,
        blocks: int,
        undo: ExitStack,
    ) -> None:
        """Stream, control window and what ranks agree on; `undo` takes what is to be undone at the end."""
        self.rank, self.ranks, self.name = rank, ranks, name
        self._wait_s, self._slot_bytes, self._opened, self._peers = wait_s, slot_bytes, opened, peers
        self._functions = opened.functions[ordinal]
        self.device = self._functions.device
        self.driver = driver = opened.toolkit.driver
        facts = peers.facts()
        sharing = [sum(other.uuid == one.uuid for other in facts) for one in facts]
        # Every block of every rank must have a place at once: one block a multiprocessor always has.
        self.blocks = min(blocks, *(one.multiprocessors // shared for one, shared in zip(facts, sharing, strict=True)))
        if self.blocks < 1:
            raise CudaError("launch", 0, "too many ranks", f"{max(sharing)} ranks on one GPU have less than a multiprocessor each")  # fmt: skip
        self._cooperative = sharing[rank] == 1 and self.device.cooperative_launch
        self.stream = driver.create_stream()
        undo.callback(driver.destroy_stream, self.stream)
        self._scratch: dict[str, tuple[int, int]] = {}
        undo.callback(self._free_scratch)
        control = peers.window(layout_bytes(ranks, self.blocks, slot_bytes))
        undo.callback(control.close)
        self._comm = self._comm_on(control, slot_bytes)
        self._packet_comms: dict[str, bytes] = {}
        for form in PACKET_FORMS:
            packets = peers.window(layout_bytes(ranks, self.blocks, PACKET_SLOT_BYTES))
            undo.callback(packets.close)
            self._packet_comms[form] = self._comm_on(packets, PACKET_SLOT_BYTES)
        self._windows: list[CudaWindow] = []
        self._arrays: list[weakref.finalize[..., DeviceArray]] = []
        undo.callback(self._free_arrays)
        self._failed = self._closed = False

    def _comm_on(self, control: Mapped, slot_bytes: int) -> bytes:
        """The struct that kernels take, on a control window."""
        comm = Comm()
        comm.rank, comm.ranks, comm.wait_ns = self.rank, self.ranks, int(self._wait_s * 1e9)
        comm.layout = Layout(self.ranks, self.blocks, slot_bytes)
        comm.control = as_window(control.addresses, control.size_bytes)
        return bytes(comm)

    def _control_of(self, rank: int) -> list[int]:
        """Where a rank's control windows lie; a report is at the beginning of each."""
        return [Comm.from_buffer_copy(one).control.base[rank] for one in (self._comm, *self._packet_comms.values())]

    def __enter__(self) -> CudaCommunicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back windows, arrays, stream and context; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.driver.set_current(self._functions.context)
        with ExitStack() as undo:
            undo.callback(self._undo.close)
            self.driver.synchronize(self.stream)  # what is enqueued must not meet memory that is gone

    def shared(self, size_bytes: int) -> CudaWindow:
        """Memory of at least size_bytes that all ranks map, zeros. All ranks call, with the same size, in the same order."""
        if size_bytes < 1:
            raise ValueError(f"a window of {size_bytes} bytes")
        self.driver.set_current(self._functions.context)
        mapped = self._peers.window(size_bytes)
        self._undo.callback(mapped.close)
        made = CudaWindow(mapped, self.rank, self.driver, self._functions.context)
        self._windows.append(made)
        return made

    def empty(self, size: int, dtype: Any) -> DeviceArray:
        """New memory on this rank's GPU, private, of any contents."""
        kind = np.dtype(dtype)
        self.driver.set_current(self._functions.context)
        # On the stream, and given back there: cuMemFree would wait for the kernel of another rank on this GPU, which waits for this rank.
        address = self.driver.allocate_on(max(size * kind.itemsize, 1), self.stream)
        self.driver.synchronize(self.stream)
        made = DeviceArray(self.driver, self._functions.context, address, size, dtype=kind)
        given_back = weakref.finalize(made, _free, self.driver, self._functions.context, address, self.stream)
        given_back.atexit = False
        self._arrays = [*(one for one in self._arrays if one.alive), given_back]
        return made

    def array(self, values: Any) -> DeviceArray:
        """A copy of values on this rank's GPU."""
        given = np.ascontiguousarray(values).reshape(-1)
        made = self.empty(given.size, given.dtype)
        made.fill(given, self.stream)
        return made

    def barrier(self, *, stream: int | None = None, times: int = 1) -> None:
        """Nobody's kernel ends before everybody's has begun."""
        with _Call(self, stream) as call:
            for _ in range(times):
                call.launch(Entry("barrier"), 1, [])

    def all_reduce(
        self,
        source: Any,
        target: Any = None,
        op: str = "sum",
        *,
        dtype: str | None = None,
        stream: int | None = None,
        times: int = 1,
        kernel: str | None = None,
    ) -> Any:
        """The reduction of all ranks' source, in target (new if None; may be source). op: sum, prod, min, max, avg. times: calls in a row.

        kernel: all_reduce_ll, all_reduce_ll128, all_reduce_one_shot, all_reduce_staged, or on windows all_reduce_two_shot, all_reduce_ring; chosen by size
        and place if None. The ring reduces in the order of ranks from the chunk's own on, so its bits are not those of the others.
        """
        with _Call(self, stream) as call:
            given = call.taken(source)
            made, answer = call.target(given, target, given.size)
            kind, operation = _reduction(given, dtype, op)
            place = self._both_in_a_window(given, made)
            chosen = kernel or self._all_reduce_kernel(given.nbytes, place is not None)
            entry = Entry(chosen, kind, operation)
            blocks = self._blocks_for(given.nbytes, by_packets=bool(entry.form))
            if entry.form and given.nbytes > self._room_for_packets(blocks):
                raise ValueError(f"{given.nbytes} bytes do not fit {blocks} slots of {PACKET_SLOT_BYTES} as packets")
            if chosen == "all_reduce_one_shot" and given.nbytes > blocks * self._slot_bytes:
                raise ValueError(f"{given.nbytes} bytes do not fit {blocks} slots of {self._slot_bytes} for one shot")
            if chosen in ("all_reduce_two_shot", "all_reduce_ring"):
                if place is None:
                    raise ValueError(f"{chosen} needs source and target in one window: see shared()")
                window, begin, end = place
                values = argument_bytes(chosen, data=window.struct, in_offset=begin, out_offset=end, count=given.size)
            else:
                values = argument_bytes(chosen, **{"in": given.address}, out=made.address, count=given.size)
            for _ in range(times):
                call.launch(entry, blocks, values)
                if op == "avg":
                    call.launch(Entry(DIVIDE, kind), blocks, divide_bytes(made.address, made.size, self.ranks), False)
            return call.finished(made, answer)

    def reduce_scatter(
        self,
        source: Any,
        target: Any = None,
        op: str = "sum",
        *,
        dtype: str | None = None,
        stream: int | None = None,
        times: int = 1,
    ) -> Any:
        """This rank's part of the reduction of all ranks' source: part r of `ranks` equal ones on rank r."""
        with _Call(self, stream) as call:
            given = call.taken(source)
            size = _part(given.size, self.ranks)
            made, answer = call.target(given, target, size)
            kind, operation = _reduction(given, dtype, op)
            entry, blocks = Entry("reduce_scatter_staged", kind, operation), self._blocks_for(given.nbytes)
            values = argument_bytes(entry.kernel, **{"in": given.address}, out=made.address, count=size)
            for _ in range(times):
                call.launch(entry, blocks, values)
                if op == "avg":
                    call.launch(Entry(DIVIDE, kind), blocks, divide_bytes(made.address, size, self.ranks), False)
            return call.finished(made, answer)

    def all_gather(self, source: Any, target: Any = None, *, stream: int | None = None, times: int = 1) -> Any:
        """All ranks' source, one after the other, in the order of ranks."""
        with _Call(self, stream) as call:
            given = call.taken(source)
            made, answer = call.target(given, target, given.size * self.ranks)
            window, end = self._window_of(made)
            word = _word(given.address, made.address, given.nbytes)
            blocks = self._blocks_for(made.nbytes)
            of_moving: dict[str, Any] = {"in": given.address, "count": given.nbytes // DTYPE_BYTES[word]}
            if window is not None:
                entry = Entry("all_gather_direct", word)
                values = argument_bytes(entry.kernel, data=window.struct, out_offset=end, **of_moving)
            else:
                entry = Entry("all_gather_staged", word)
                values = argument_bytes(entry.kernel, out=made.address, **of_moving)
            for _ in range(times):
                call.launch(entry, blocks, values)
            return call.finished(made, answer)

    def all_to_all(self, source: Any, target: Any = None, *, stream: int | None = None, times: int = 1) -> Any:
        """Part s of the result is the part of rank s's source that is for this rank. source and target must not overlap."""
        with _Call(self, stream) as call:
            given = call.taken(source)
            size = _part(given.size, self.ranks)
            made, answer = call.target(given, target, given.size)
            if max(given.address, made.address) < min(given.address, made.address) + given.nbytes:
                raise ValueError("source and target of all_to_all overlap")
            part = size * DTYPE_BYTES[given.kind]
            entry = Entry("all_to_all_staged", _word(given.address, made.address, part))
            count = part // DTYPE_BYTES[entry.element]
            values = argument_bytes(entry.kernel, **{"in": given.address}, out=made.address, count=count)
            for _ in range(times):
                call.launch(entry, self._blocks_for(given.nbytes), values)
            return call.finished(made, answer)

    def broadcast(
        self, source: Any, target: Any = None, root: int = 0, *, stream: int | None = None, times: int = 1
    ) -> Any:
        """The root's source, on all ranks. On the others source gives the size only, and is the target if there is none."""
        if not 0 <= root < self.ranks:
            raise ValueError(f"root {root} is none of the ranks 0..{self.ranks - 1}")
        with _Call(self, stream) as call:
            given = call.taken(source)
            made, answer = call.target(given, source if target is None else target, given.size)
            entry = Entry("broadcast_staged", _word(given.address, made.address, given.nbytes))
            count = given.nbytes // DTYPE_BYTES[entry.element]
            values = argument_bytes(entry.kernel, **{"in": given.address}, out=made.address, count=count, root=root)
            for _ in range(times):
                call.launch(entry, self._blocks_for(given.nbytes), values)
            return call.finished(made, answer)

    def load(self, entries: Sequence[Entry]) -> None:
        """Compiles and loads kernels now; a graph's capture and a first call then need not."""
        self.driver.set_current(self._functions.context)
        for entry in entries:
            for functions in self._opened.functions.values():
                self.driver.set_current(functions.context)
                functions.of(entry)
        self.driver.set_current(self._functions.context)

    def kernel(self, source: str, symbol: str) -> int:
        """A kernel of one's own, compiled with the device headers; `launch` runs it. Its first parameter is `const __grid_constant__ Comm`."""
        for functions in self._opened.functions.values():
            self.driver.set_current(functions.context)
            functions.of_source(source, symbol)
        self.driver.set_current(self._functions.context)
        return self._functions.of_source(source, symbol)

    def launch(
        self,
        kernel: int,
        arguments: Sequence[bytes],
        *,
        blocks: int,
        threads: int,
        stream: int,
        waits: bool = True,
        with_comm: bool = True,
    ) -> None:
        """Enqueues a kernel of `kernel`; arguments follow the communicator, unless it takes none.

        waits: its blocks wait for other ranks' blocks, so that all must be on the GPU at once; at most `self.blocks` are.
        """
        if waits and blocks > self.blocks:
            raise ValueError(f"{blocks} blocks that wait for others; {self.blocks} are sure to run at once")
        self.driver.set_current(self._functions.context)
        cooperative = waits and self._cooperative
        values = [self._comm, *arguments] if with_comm else list(arguments)
        self.driver.launch(kernel, values, blocks=blocks, threads=threads, stream=stream, cooperative=cooperative)

    def launch_entry(self, entry: Entry, arguments: Sequence[bytes]) -> None:
        """Enqueues a kernel that waits for nobody and takes no communicator, on the own stream."""
        function = self._functions.of(entry)
        wide, threads = self.blocks, entry.threads
        self.launch(function, arguments, blocks=wide, threads=threads, stream=self.stream, waits=False, with_comm=False)

    @property
    def wait_s(self) -> float:
        """How long a rank waits for another."""
        return self._wait_s

    def check(self, *more: int) -> None:
        """Raises GaveUpError if a wait of this rank has given up. Waits for nothing: call it when the stream's work is done.

        more: addresses of other reports of this rank, such as a plan's.
        """
        places = [*self._control_of(self.rank), *more]
        data = ctypes.create_string_buffer(len(places) * REPORT.size)
        self.driver.set_current(self._functions.context)
        for place, address in enumerate(places):
            self.driver.copy_out(ctypes.addressof(data) + place * REPORT.size, address, REPORT.size, self.stream)
        self.driver.synchronize(self.stream)
        reports = [REPORT.unpack_from(data, place * REPORT.size) for place in range(len(places))]
        state, primitive, block, peer, expected, seen = max(reports)  # the states of those that nobody wrote are 0
        if not state:
            return
        if self._failed:
            raise GaveUpError(f"rank {self.rank} of {self.name} had given up before; make a new communicator")
        self._failed = True
        what = PRIMITIVES[primitive] if primitive < len(PRIMITIVES) else "something"
        raise GaveUpError(
            f"rank {self.rank} of {self.name} waited {self._wait_s:g} s for {what} of rank {peer} (block {block}): number {expected} was due, "
            f"{seen} had come. See that rank's log: it has died, is busy, or called something else."
        )

    def abort(self, rank: int) -> None:
        """Makes the waits of a rank's kernels end: what is left to do when its process is known to be dead."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"no rank {rank} among {self.ranks}")
        word = ctypes.c_uint32(1)
        self.driver.set_current(self._functions.context)
        with ExitStack() as undo:  # not behind the kernels that wait
            stream = self.driver.create_stream()
            undo.callback(self.driver.destroy_stream, stream)
            for address in self._control_of(rank):
                self.driver.copy_in(address, ctypes.addressof(word), ctypes.sizeof(word), stream)
            self.driver.synchronize(stream)

    def _all_reduce_kernel(self, size_bytes: int, in_window: bool) -> str:
        # vLLM's switch (custom_all_reduce, as read in kernel-design.md 1.7): one stage below 512 KiB for up to 4 ranks, 256 KiB for up to 8.
        # Below a share of it for more ranks: a guess.
        most = 512 << 10 if self.ranks <= 4 else (2 << 20) // self.ranks
        if size_bytes <= min(PACKETS_BELOW_BYTES, self._room_for_packets(self.blocks)):
            return "all_reduce_ll"
        if size_bytes <= min(most, self._blocks_for(size_bytes) * self._slot_bytes):
            return "all_reduce_one_shot"
        return "all_reduce_two_shot" if in_window else "all_reduce_staged"

    def _blocks_for(self, size_bytes: int, by_packets: bool = False) -> int:
        each = PACKET_BYTES_A_BLOCK if by_packets else BYTES_A_BLOCK
        return max(1, min(self.blocks, -(-size_bytes // each)))

    def _room_for_packets(self, blocks: int) -> int:
        """Bytes of data that slots hold as LL packets, or as LL128, which take less room; a vector a block is lost to how they are shared."""
        return blocks * (PACKET_SLOT_BYTES // 2 - 16)

    def _window_of(self, given: _Given) -> tuple[CudaWindow | None, int]:
        for window in self._windows:
            begin = window.offset_of(given.address, given.nbytes)
            if begin is not None:
                return window, begin
        return None, 0

    def _both_in_a_window(self, given: _Given, made: _Given) -> tuple[CudaWindow, int, int] | None:
        window, begin = self._window_of(given)
        end = window.offset_of(made.address, made.nbytes) if window is not None else None
        return None if window is None or end is None else (window, begin, end)

    def _scratch_of(self, use: str, size_bytes: int) -> int:
        """Memory on the GPU for a numpy array, kept for the next one."""
        address, room = self._scratch.get(use, (0, 0))
        if room < size_bytes:
            if address:
                del self._scratch[use]
                self.driver.free_on(address, self.stream)
            address = self.driver.allocate_on(size_bytes, self.stream)
            self._scratch[use] = (address, size_bytes)
        return address

    def _free_arrays(self) -> None:
        for given_back in self._arrays:
            given_back()
        self._arrays = []

    def _free_scratch(self) -> None:
        with ExitStack() as undo:
            for address, _ in self._scratch.values():
                undo.callback(self.driver.free_on, address, self.stream)
            self._scratch = {}


class _Call:
    """One call of a collective: arrays in, kernels, and the wait for them if the caller gave no stream."""

    def __init__(self, comm: CudaCommunicator, stream: int | None) -> None:
        self._comm, self._given_stream = comm, stream
        self._stream = comm.stream if stream is None else stream
        self._uses = itertools.count()

    def __enter__(self) -> _Call:
        comm = self._comm
        if comm._failed:
            raise GaveUpError(f"rank {comm.rank} of {comm.name} had given up before; make a new communicator")
        comm.driver.set_current(comm._functions.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given_stream is not None:
            return
        self._comm.driver.synchronize(
            self._stream
        )  # after an error too: copies may be under way from arrays that the caller will free
        if kind is None:
            self._comm.check()

    def taken(self, given: Any) -> _Given:
        """An array as kernels can read it; a numpy array is copied to the GPU."""
        if isinstance(given, np.ndarray):
            return self._from_host(given, True)
        found = _on_device(given, self._comm.device.ordinal, self._stream if self._given_stream is None else -1)
        if self._given_stream is None:
            self._after_default_stream()
        return found

    def target(self, source: _Given, given: Any, size: int) -> tuple[_Given, Any]:
        """Where the result goes on the GPU, and what is answered: given, or something new of the source's kind."""
        answer = given
        if given is None and source.host is not None:
            answer = np.empty(size, source.host.dtype)
        elif given is None:
            plain = source.kind if source.kind != "bfloat16" else "uint16"
            answer = self._comm.empty(size, plain)
        if isinstance(answer, np.ndarray):
            made = self._from_host(answer, False) if answer is not source.host else source
        else:
            made = _on_device(answer, self._comm.device.ordinal, -1)
        if made.size != size or DTYPE_BYTES[made.kind] != DTYPE_BYTES[source.kind]:
            raise ValueError(f"target holds {made.size} {made.kind}; {size} {source.kind} are to go there")
        return made, answer

    def launch(self, entry: Entry, blocks: int, values: list[bytes], collective: bool = True) -> None:
        """Enqueues a kernel. collective: it takes the communicator, and waits for other ranks' blocks."""
        comm = self._comm
        if len(comm._opened.functions) > 1:
            comm.load([entry])
        function = comm._functions.of(entry)
        arguments = [comm._packet_comms.get(entry.form, comm._comm), *values] if collective else values
        comm.driver.launch(
            function,
            arguments,
            blocks=blocks,
            threads=entry.threads,
            stream=self._stream,
            cooperative=collective and comm._cooperative,
        )

    def finished(self, made: _Given, answer: Any) -> Any:
        """The answer; a numpy array is filled."""
        if made.host is not None and made.nbytes:
            self._comm.driver.copy_out(made.host.ctypes.data, made.address, made.nbytes, self._stream)
        return answer

    def _from_host(self, array: Array, copy: bool) -> _Given:
        if self._given_stream is not None:
            raise ValueError("numpy arrays can't be enqueued on a stream: pass arrays on the GPU, or no stream")
        if not array.flags.c_contiguous:
            raise ValueError("the array is not contiguous: pass np.ascontiguousarray(x)")
        kind = array.dtype.name
        if kind not in DTYPE_BYTES and array.dtype.itemsize not in WORDS:
            raise ValueError(f"arrays of {array.dtype} can't be moved")
        address = self._comm._scratch_of(f"host {next(self._uses)}", max(array.nbytes, 1))
        if copy and array.nbytes:
            self._comm.driver.copy_in(address, array.ctypes.data, array.nbytes, self._stream)
        plain = kind if kind in DTYPE_BYTES else WORDS[array.dtype.itemsize]
        return _Given(address, array.size, plain, array, array)

    def _after_default_stream(self) -> None:
        """What the caller enqueued on the default stream comes before what this call enqueues.

        Streams of communicators don't wait for that one by themselves: else a kernel that waits would hold up the copies of another rank.
        """
        driver = self._comm.driver
        event = driver.create_event(timing=False)
        try:
            driver.record(event, 0)
            driver.wait_for(self._stream, event)
        finally:
            driver.destroy_event(event)


def each_rank(ranks: Sequence[CudaCommunicator], body: Callable[[CudaCommunicator], T]) -> list[T]:
    """What body returns on each rank of `CudaCommunicator.local`, each in a thread of its own. Raises the first rank's error, when all have ended."""
    with ThreadPoolExecutor(max_workers=len(ranks)) as pool:
        running = [pool.submit(body, one) for one in ranks]
    return [one.result() for one in running]


def _check_shape(rank: int, ranks: int, slot_bytes: int, blocks: int) -> None:
    if not 0 <= rank < ranks <= MOST_RANKS:
        raise ValueError(f"rank {rank} of {ranks}: ranks are counted from 0, up to {MOST_RANKS}")
    if slot_bytes < 64 or slot_bytes % 64:
        raise ValueError(f"slot_bytes is {slot_bytes}; it must be a multiple of 64")
    if blocks < 1:
        raise ValueError(f"{blocks} blocks")


def _free(driver: Driver, context: int, address: int, stream: int) -> None:
    driver.set_current(context)
    driver.free_on(address, stream)


def _part(size: int, ranks: int) -> int:
    if size % ranks:
        raise ValueError(f"{size} elements have no equal part for each of {ranks} ranks")
    return size // ranks


def _word(*places: int) -> str:
    """The widest word that all addresses and sizes are multiples of."""
    return next(word for size, word in WORDS.items() if not any(place % size for place in places))


def _reduction(given: _Given, dtype: str | None, op: str) -> tuple[str, str]:
    kind = dtype or given.kind
    if kind not in TYPES or DTYPE_BYTES[kind] != DTYPE_BYTES[given.kind]:
        raise ValueError(f"no reduction of {kind} in arrays of {given.kind}; there are {', '.join(TYPES)}")
    if op not in ALL_OPERATIONS:
        raise ValueError(f"no operation {op!r}; there are {', '.join(ALL_OPERATIONS)}")
    return kind, "sum" if op == "avg" else op


def _on_device(given: Any, ordinal: int, stream: int) -> _Given:
    """An array on the GPU, by what it says of itself. stream: whose work is to come after the array's; -1 if there is nothing to wait for."""
    told = getattr(given, "__cuda_array_interface__", None)
    if told is not None:
        return _from_interface(given, told)
    if not hasattr(given, "__dlpack__"):
        raise TypeError(f"{type(given).__name__} is no array: it has neither __cuda_array_interface__ nor __dlpack__")
    kind, number = given.__dlpack_device__()
    if int(kind) != _CUDA:
        raise ValueError(
            f"the array is not on a GPU (DLPack device type {int(kind)}): pass it as numpy, or move it to GPU {ordinal}"
        )
    if int(number) != ordinal:
        raise ValueError(f"the array is on GPU {int(number)}, this rank on GPU {ordinal}")
    return _from_dlpack(given, given.__dlpack__(stream=stream if stream != 0 else 1))


_CUDA = 2
"""kDLCUDA (dlpack.h)."""


def _from_interface(given: Any, told: dict[str, Any]) -> _Given:
    kind = np.dtype(told["typestr"])
    shape = tuple(told["shape"])
    _check_strides(shape, None if told.get("strides") is None else [s // kind.itemsize for s in told["strides"]])
    size = int(np.prod(shape, dtype=np.int64))
    name = kind.name if kind.name in DTYPE_BYTES else WORDS.get(kind.itemsize, "")
    if not name:
        raise ValueError(f"arrays of {kind} can't be moved")
    return _Given(int(told["data"][0] or 0), size, name, None, given)


def _check_strides(shape: Sequence[int], strides: Sequence[int] | None) -> None:
    if strides is None:
        return
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != expected:
            raise ValueError("the array is not contiguous: make a contiguous copy")
        expected *= extent


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, version 0.8; the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "uint"}
"""DLDataTypeCode of dlpack.h; bool moves as a byte."""
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(given: Any, capsule: Any) -> _Given:
    """What a capsule describes. It is not consumed: its own end gives the tensor back, so it is kept as long as the call needs the memory."""
    address = _pointer_of(capsule, b"dltensor")
    tensor = _DLTensor.from_address(address)
    shape = [int(tensor.shape[i]) for i in range(tensor.ndim)]
    _check_strides(shape, [int(tensor.strides[i]) for i in range(tensor.ndim)] if tensor.strides else None)
    name = f"{_CODES.get(tensor.code, '')}{tensor.bits}"
    if tensor.lanes != 1 or (name not in DTYPE_BYTES and tensor.bits not in (8, 16, 32, 64)):
        raise ValueError(f"arrays of DLPack type {tensor.code} with {tensor.bits} bits x {tensor.lanes} can't be moved")
    plain = name if name in DTYPE_BYTES else WORDS[tensor.bits // 8]
    size = int(np.prod(shape, dtype=np.int64))
    return _Given(int(tensor.data or 0) + int(tensor.byte_offset), size, plain, None, (given, capsule))
