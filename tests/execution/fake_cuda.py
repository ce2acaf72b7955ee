"""A driver without a GPU: memory is the host's, and kernels are those of the CPU target, run by threads that stand for streams.

What a program may do wrong with the real driver is refused as there (no current context, memory without access, too many blocks, work in a
captured stream), and what it holds is counted, so that tests can ask what was left behind.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from busbw.execution._cpu import Rank
from busbw.execution._plan_run import PlanRank
from busbw.execution.cuda import Toolkit
from busbw.execution.cuda_compiler import OPTIONS, CubinCache
from busbw.execution.cuda_driver import CudaError, Device, PeerAccess
from busbw.execution.cuda_kernels import DIVIDE, Comm, Window, every_entry, parameters
from busbw.execution.cuda_plan import Program, tables_of

PAGE = mmap.PAGESIZE
GRANULARITY = 16 * PAGE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NONE, _READ_WRITE = 0, 3
_SHARED, _PRIVATE_ANONYMOUS, _FIXED = 0x01, 0x22, 0x10
_ENTRIES = {entry.symbol: entry for entry in every_entry()}


def bytes_at(address: int, size: int) -> np.ndarray:
    """Memory at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)) if size else np.empty(0, np.uint8)


class FakeCompiler:
    """Whose machine code is the source."""

    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.version, self.name, self.compiled = version, f"fake {version[0]}.{version[1]}", 0

    def cubin(self, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        self.compiled += 1
        return f"sm_{architecture}\n{source}".encode()


class FakeDriver:
    """GPUs that are not there. `calls`: names of calls in their order; `held()`: what was taken and not given back."""

    def __init__(
        self,
        devices: int = 1,
        *,
        descriptors: bool = True,
        multiprocessors: int = 8,
        apart: bool = False,
        fails: dict[str, int] | None = None,
    ) -> None:
        self._devices, self._descriptors, self._multiprocessors, self._apart = (
            devices,
            descriptors,
            multiprocessors,
            apart,
        )
        self.fails = dict(fails or {})
        self.calls: list[str] = []
        self.launches: list[tuple[str, int, bool]] = []
        self._ids = itertools.count(1000)
        self._held: dict[tuple[str, int], Any] = {}
        self._functions: dict[int, str] = {}
        self._kernels = _Kernels()
        self._contexts: Counter[int] = Counter()
        self._current = threading.local()
        self._streams: dict[int, _Stream] = {0: _Stream()}
        self._lock = threading.Lock()

    def held(self) -> list[str]:
        """Kinds of what was not given back."""
        contexts = [f"context of GPU {device}" for device, count in self._contexts.items() if count]
        return sorted([kind for kind, _ in self._held] + contexts)

    def _did(self, name: str, needs_context: bool = True) -> None:
        with self._lock:
            self.calls.append(name)
            if name in self.fails:
                self.fails[name] -= 1
                if self.fails[name] < 0:
                    del self.fails[name]
                    raise CudaError(name, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        if needs_context and not getattr(self._current, "device", None):
            raise CudaError(name, 201, "CUDA_ERROR_INVALID_CONTEXT", "no context is current")

    def _take(self, kind: str, what: Any = None, number: int | None = None) -> int:
        number = next(self._ids) if number is None else number
        self._held[kind, number] = what
        return number

    def _give(self, kind: str, number: int) -> Any:
        if (kind, number) not in self._held:
            raise CudaError(f"give back {kind}", 1, "CUDA_ERROR_INVALID_VALUE", f"{number} is no {kind}")
        return self._held.pop((kind, number))

    def version(self) -> tuple[int, int]:
        return 13, 0

    def device_count(self) -> int:
        return self._devices

    def device(self, ordinal: int) -> Device:
        if not 0 <= ordinal < self._devices:
            raise CudaError("cuDeviceGet", 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")
        return Device(
            ordinal, "fake", f"{ordinal:032x}", 90, self._multiprocessors, True, True, self._descriptors, False
        )

    def peer_access(self, device: int, peer: int) -> PeerAccess:
        return PeerAccess(device == peer or not self._apart, True)

    def retain_context(self, device: int) -> int:
        self._did("retain_context", False)
        self._contexts[device] += 1
        return device + 1

    def release_context(self, device: int) -> None:
        self._did("release_context", False)
        self._contexts[device] -= 1

    def set_current(self, context: int) -> None:
        if not self._contexts[context - 1]:
            raise CudaError("cuCtxSetCurrent", 201, "CUDA_ERROR_INVALID_CONTEXT", "the context is gone")
        self._current.device = context

    def granularity(self, device: int, shareable: bool) -> int:
        return GRANULARITY

    def create(self, device: int, size_bytes: int, shareable: bool) -> int:
        self._did("create", False)
        if size_bytes % GRANULARITY:
            raise CudaError("cuMemCreate", 1, "CUDA_ERROR_INVALID_VALUE", "size is no multiple of the granularity")
        return self._take("allocation", (_memory_file(size_bytes), size_bytes, shareable))

    def release(self, allocation: int) -> None:
        self._did("release", False)
        os.close(self._give("allocation", allocation)[0])

    def export_descriptor(self, allocation: int) -> int:
        self._did("export_descriptor", False)
        file, _, shareable = self._held["allocation", allocation]
        if not shareable:
            raise CudaError("cuMemExportToShareableHandle", 1, "CUDA_ERROR_INVALID_VALUE", "not made to be shared")
        return os.dup(file)

    def import_descriptor(self, descriptor: int) -> int:
        self._did("import_descriptor", False)
        return self._take("allocation", (os.dup(descriptor), os.fstat(descriptor).st_size, False))

    def reserve(self, size_bytes: int, alignment: int) -> int:
        self._did("reserve", False)
        address = _mapped(0, size_bytes, _NONE, _PRIVATE_ANONYMOUS, -1)
        return self._take("addresses", size_bytes, address)

    def free_reserved(self, address: int, size_bytes: int) -> None:
        self._did("free_reserved", False)
        if ("mapping", address) in self._held:
            raise CudaError("cuMemAddressFree", 1, "CUDA_ERROR_INVALID_VALUE", "something is mapped there")
        assert self._give("addresses", address) == size_bytes
        _LIBC.munmap(address, size_bytes)

    def map(self, address: int, size_bytes: int, allocation: int) -> None:
        self._did("map", False)
        file, size, _ = self._held["allocation", allocation]
        if size != size_bytes or ("addresses", address) not in self._held:
            raise CudaError("cuMemMap", 1, "CUDA_ERROR_INVALID_VALUE", f"{size_bytes} bytes of {size}")
        _mapped(address, size_bytes, _NONE, _SHARED | _FIXED, file)
        self._take("mapping", size_bytes, address)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._did("unmap", False)
        self._kernels.forget(address)
        assert self._give("mapping", address) == size_bytes
        _mapped(address, size_bytes, _NONE, _PRIVATE_ANONYMOUS | _FIXED, -1)

    def allow(self, address: int, size_bytes: int, devices: Sequence[int]) -> None:
        self._did("allow", False)
        assert devices and all(0 <= one < self._devices for one in devices)
        _LIBC.mprotect(address, size_bytes, _READ_WRITE)

    def allocate(self, size_bytes: int) -> int:
        self._did("allocate")
        self._refuse_while_capturing()
        size = -(-size_bytes // PAGE) * PAGE
        file = _memory_file(size)
        return self._take("memory", (file, size), _mapped(0, size, _READ_WRITE, _SHARED, file))

    def free(self, address: int) -> None:
        self._did("free")
        self._kernels.forget(address)
        self._refuse_while_capturing()
        file, size = self._give("memory", address)
        _LIBC.munmap(address, size)
        os.close(file)

    def allocate_on(self, size_bytes: int, stream: int) -> int:
        if stream not in self._streams:
            raise CudaError("cuMemAllocAsync", 400, "CUDA_ERROR_INVALID_HANDLE", f"{stream} is no stream")
        return self.allocate(size_bytes)

    def free_on(self, address: int, stream: int) -> None:
        if ("memory", address) not in self._held:
            raise CudaError("cuMemFreeAsync", 1, "CUDA_ERROR_INVALID_VALUE", f"{address:#x} is not allocated")
        self._on(stream, lambda: self._freed(address))

    def _freed(self, address: int) -> None:
        self._kernels.forget(address)
        file, size = self._give("memory", address)
        _LIBC.munmap(address, size)
        os.close(file)

    def ipc_export(self, address: int) -> bytes:
        self._did("ipc_export")
        return struct.pack("<QQQ40x", os.getpid(), *self._held["memory", address])

    def ipc_open(self, handle: bytes) -> int:
        self._did("ipc_open")
        process, file, size = struct.unpack_from("<QQQ", handle)
        if process == os.getpid():
            raise CudaError("cuIpcOpenMemHandle", 201, "CUDA_ERROR_INVALID_CONTEXT", "of this process")
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        address = _mapped(0, size, _READ_WRITE, _SHARED, opened)
        os.close(opened)
        return self._take("ipc memory", size, address)

    def ipc_close(self, address: int) -> None:
        self._did("ipc_close")
        self._kernels.forget(address)
        _LIBC.munmap(address, self._give("ipc memory", address))

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self._did("fill")
        self._on(stream, lambda: ctypes.memset(address, byte, size_bytes))

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: int) -> None:
        self._did("copy_in")
        self._on(stream, lambda: ctypes.memmove(address, host_address, size_bytes))

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: int) -> None:
        self._did("copy_out")
        self._on(stream, lambda: ctypes.memmove(host_address, address, size_bytes))

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self._did("copy")
        self._on(stream, lambda: ctypes.memmove(target, source, size_bytes))

    def load(self, image: bytes) -> int:
        self._did("load")
        self._refuse_while_capturing()
        return self._take("module", image.decode())

    def unload(self, module: int) -> None:
        self._did("unload")
        self._give("module", module)

    def function(self, module: int, name: str) -> int:
        self._did("function")
        if f" {name}(" not in self._held["module", module]:
            raise CudaError("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found")
        number = next(self._ids)
        self._functions[number] = name
        return number

    def blocks_per_multiprocessor(self, function: int, threads: int) -> int:
        return 1

    def launch(
        self,
        function: int,
        arguments: Sequence[bytes],
        *,
        blocks: int,
        threads: int,
        stream: int,
        cooperative: bool,
    ) -> None:
        self._did("launch")
        symbol = self._functions[function]
        if not 0 < threads <= 1024 or (cooperative and blocks > self._multiprocessors):
            raise CudaError("cuLaunchCooperativeKernel", 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", f"{blocks}")
        self.launches.append((symbol, blocks, cooperative))
        kept = list(arguments)  # the driver copies them before it returns
        self._on(stream, lambda: self._kernels.run(symbol, kept))

    def create_stream(self) -> int:
        self._did("create_stream")
        number = self._take("stream")
        self._streams[number] = _Stream()
        return number

    def destroy_stream(self, stream: int) -> None:
        self._did("destroy_stream")
        self._give("stream", stream)
        self._streams.pop(stream).close()

    def synchronize(self, stream: int) -> None:
        self._did("synchronize")
        if self._streams[stream].captured is not None:
            raise CudaError("cuStreamSynchronize", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "it is captured")
        self._streams[stream].join()

    def is_captured(self, stream: int) -> bool:
        return self._streams[stream].captured is not None

    def create_event(self, timing: bool) -> int:
        self._did("create_event")
        return self._take("event", {"timing": timing})

    def destroy_event(self, event: int) -> None:
        self._did("destroy_event")
        self._give("event", event)

    def record(self, event: int, stream: int) -> None:
        self._did("record")
        state = self._held["event", event]
        state["done"] = Future()
        done = state["done"]
        self._on(stream, lambda: done.set_result(time.perf_counter()))

    def wait_for(self, stream: int, event: int) -> None:
        self._did("wait_for")
        done = self._held["event", event].get("done")
        if done is not None:
            self._on(stream, done.result)

    def elapsed_s(self, begin: int, end: int) -> float:
        states = [self._held["event", event] for event in (begin, end)]
        if not all(state["timing"] for state in states):
            raise CudaError("cuEventElapsedTime", 1, "CUDA_ERROR_INVALID_VALUE", "an event without time")
        first, last = (state["done"].result(60) for state in states)
        return max(last - first, 1e-9)

    def begin_capture(self, stream: int) -> None:
        self._did("begin_capture")
        self._streams[stream].captured = []

    def end_capture(self, stream: int) -> int:
        self._did("end_capture")
        work = self._streams[stream].captured
        self._streams[stream].captured = None
        return self._take("graph", work)

    def launch_graph(self, graph: int, stream: int) -> None:
        self._did("launch_graph")
        for work in self._held["graph", graph]:
            self._on(stream, work)

    def destroy_graph(self, graph: int) -> None:
        self._did("destroy_graph")
        self._give("graph", graph)

    def _on(self, stream: int, work: Callable[[], Any]) -> None:
        if stream not in self._streams:
            raise CudaError("enqueue", 400, "CUDA_ERROR_INVALID_HANDLE", f"{stream} is no stream")
        self._streams[stream].put(work)

    def _refuse_while_capturing(self) -> None:
        if any(stream.captured is not None for stream in self._streams.values()):
            raise CudaError("allocate", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "a stream is captured")


class _Stream:
    """A thread that does what is enqueued, in order."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._pending: list[Future[Any]] = []
        self.captured: list[Callable[[], Any]] | None = None

    def put(self, work: Callable[[], Any]) -> None:
        if self.captured is not None:
            self.captured.append(work)
            return
        self._pending.append(self._worker.submit(work))

    def join(self) -> None:
        while self._pending:
            self._pending.pop(0).result()

    def close(self) -> None:
        self._worker.shutdown()


def _memory_file(size: int) -> int:
    file = os.memfd_create("busbw-fake-cuda")
    os.ftruncate(file, size)
    return file


def _mapped(address: int, size: int, access: int, flags: int, file: int) -> int:
    found = _LIBC.mmap(address or None, size, access, flags, file, 0)
    assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return int(found)


class _Kernels:
    """What kernels do, by those of the CPU on the same memory, with one block."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, ...], tuple[Rank, set[tuple[int, ...]]]] = {}
        self._lock = threading.Lock()

    def forget(self, address: int) -> None:
        """Of memory that goes."""
        with self._lock:
            self._ranks = {key: one for key, one in self._ranks.items() if address not in key[1:]}

    def _rank(self, argument: bytes) -> tuple[Comm, Rank, set[tuple[int, ...]]]:
        assert len(argument) == ctypes.sizeof(Comm)
        comm = Comm.from_buffer_copy(argument)
        assert comm.layout.ranks == comm.ranks
        bases = list(comm.control.base)[: comm.ranks]
        with self._lock:
            if (comm.rank, *bases) not in self._ranks:
                cell = next(
                    size for size in (4096, 1024, 256, 64) if Rank.control_bytes(comm.ranks, size) <= comm.control.bytes
                )
                control = [bytes_at(base, comm.control.bytes) for base in bases]
                self._ranks[comm.rank, *bases] = (Rank(comm.rank, control, cell, comm.wait_ns / 1e9), set())
            return comm, *self._ranks[comm.rank, *bases]

    def _plan(self, dtype: str, arguments: list[bytes]) -> None:
        """The interpreter, by the one for CPUs. Tables lie one behind the other, so each ends before the next begins."""
        program = Program.from_buffer_copy(arguments[0])
        sizes = {"rows": 24, "block_rows": 12, "walks": 56, "ways": 48, "groups": 4 * 65}
        places = list(tables_of(program))
        tables = [
            bytes_at(at, (then - at) // sizes[name] * sizes[name]).copy()
            for (name, at), (_, then) in itertools.pairwise(places)
            if name in sizes
        ]
        tables[3] = tables[3][: 48 * program.way_count]
        tables[1] = tables[1][: 12 * program.blocks]
        block_runs = bytes_at(program.block_runs, 16 * program.blocks).view(np.uint64).copy()
        spaces = bytes_at(program.spaces, 32 * 4 * program.ranks).view(np.uint64).reshape(-1, 4)
        numbers = [getattr(program, name) for name in (
            "rank", "ranks", "blocks", "in_order", "chunk_bytes", "run_bytes", "grain", "runs", "blocks_at", "barriers_at", "semaphores_at", "proxy_at",
        )]  # fmt: skip
        wires = [bytes_at(base, program.wire.bytes) for base in list(program.wire.base)[: program.ranks]]
        rank = PlanRank(*tables, block_runs, spaces[:, 1:].reshape(-1).copy(), np.array(numbers, np.uint64), wires, 1)
        operation = ("sum", "prod", "min", "max")[int.from_bytes(arguments[1], "little")]
        rank.run(spaces[:, 0].copy(), dtype, operation, program.wait_ns / 1e9)

    def run(self, symbol: str, arguments: list[bytes]) -> None:
        if symbol.startswith("busbw_plan_"):
            self._plan(symbol.removeprefix("busbw_plan_"), arguments)
            return
        if symbol.startswith("busbw_measure"):
            self._measure(symbol, arguments)
            return
        entry = _ENTRIES[symbol]
        if entry.kernel == DIVIDE:
            address, count, ranks = (int.from_bytes(one, "little") for one in arguments)
            _divide(entry.element, address, count, ranks)
            return
        comm, rank, windows = self._rank(arguments[0])
        given: dict[str, Any] = dict(zip(parameters(entry.kernel), arguments[1:], strict=True))
        values = {name: int.from_bytes(one, "little") for name, one in given.items() if name != "data"}
        name = entry.kernel
        if name == "barrier":
            rank.barrier()
            return
        kind = np.dtype("uint16" if entry.element == "bfloat16" else entry.element)
        n, part = comm.ranks, values["count"]
        of_in = n if name.startswith(("reduce_scatter", "all_to_all")) else 1
        of_out = n if name.startswith(("all_gather", "all_to_all")) else 1
        if "data" in given:
            window = Window.from_buffer_copy(given["data"])
            bases = tuple(list(window.base)[:n])
            if bases not in windows:
                windows.add(bases)
                rank.add_window([bytes_at(base, window.bytes) for base in bases], window.bytes)
            for end in ("in", "out"):
                if f"{end}_offset" in values:
                    values[end] = bases[comm.rank] + values[f"{end}_offset"]
        source = bytes_at(values["in"], of_in * part * kind.itemsize).view(kind)
        target = bytes_at(values["out"], of_out * part * kind.itemsize).view(kind)
        if name.startswith("all_reduce"):
            rank.all_reduce(source, target, entry.operation, entry.element)
        elif name.startswith("reduce_scatter"):
            rank.reduce_scatter(source, target, entry.operation, entry.element)
        elif name.startswith("all_gather"):
            rank.all_gather(source, target)
        elif name.startswith("all_to_all"):
            rank.all_to_all(source, target)
        else:
            rank.broadcast(source, target, values["root"])

    def _measure(self, symbol: str, arguments: list[bytes]) -> None:
        """Kernels of benchmarks.gpu: the times they write are made up, 5 us each; a put is a copy."""
        if symbol.endswith("put"):
            window = Window.from_buffer_copy(arguments[1])
            peer, source, offset, count = (int.from_bytes(one, "little") for one in arguments[2:])
            ctypes.memmove(window.base[peer] + offset, source, 8 * count)
            return
        self.run("busbw_barrier", arguments[:1])
        out, times = (int.from_bytes(one, "little") for one in arguments[1:3])
        bytes_at(out, 8).view(np.uint64)[0] = 5000 * times


def _divide(element: str, address: int, count: int, ranks: int) -> None:
    if element == "bfloat16":
        bits = bytes_at(address, 2 * count).view(np.uint16)
        quotient = ((bits.astype(np.uint32) << 16).view(np.float32) / np.float32(ranks)).view(np.uint32)
        bits[:] = (quotient + 0x7FFF + (quotient >> 16 & 1)) >> 16  # to the nearest, ties to even
        return
    kind = np.dtype(element)
    values = bytes_at(address, count * kind.itemsize).view(kind)
    values[:] = np.trunc(values / ranks).astype(kind) if kind.kind in "iu" else (values / kind.type(ranks)).astype(kind)


def fake_toolkit(folder: Path | None = None, **of: Any) -> Toolkit:
    """A toolkit with such a driver, which caches below folder, or nowhere."""
    return Toolkit(FakeDriver(**of), FakeCompiler(), CubinCache(folder or Path("/proc/busbw-no-such-folder")))
