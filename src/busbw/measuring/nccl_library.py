"""NCCL without PyTorch as a back end: its own functions by ctypes, buffers and streams by CUDA's driver. A rank is a process with a GPU of its own."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.execution.cuda_driver import CudaUnavailableError, Driver, open_driver
from busbw.launching import place
from busbw.measuring.backends import Call, CopiesByNumpy, Together
from busbw.measuring.elements import stored_as
from busbw.measuring.request import Request
from busbw.measuring.truth import sent_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Buffer", "Nccl", "NcclError", "library_path", "start"]

Array = npt.NDArray[Any]

_WHEEL = "nvidia.nccl"
_INSTEAD = "--backend torch measures NCCL through PyTorch, --backend nccl-tests by nccl-tests."
_ID_BYTES = 128
"""NCCL_UNIQUE_ID_BYTES (nccl.h)."""
_WAIT_S = 60.0
"""For rank 0 to say where it is. A guess: ranks of a job start within seconds of each other."""
_LOOK_S = 0.01
# ncclDataType_t and ncclRedOp_t, nccl.h; the same since 2.0, bfloat16 since 2.10
_TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}  # fmt: skip
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(_I),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_P), _I, UniqueId, _I),
    "ncclCommDestroy": (_P,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_P, _P, _N, _I, _I, _P, _P),
    "ncclReduce": (_P, _P, _N, _I, _I, _I, _P, _P),
    "ncclBroadcast": (_P, _P, _N, _I, _I, _P, _P),
    "ncclReduceScatter": (_P, _P, _N, _I, _I, _P, _P),
    "ncclAllGather": (_P, _P, _N, _I, _P, _P),
    "ncclSend": (_P, _N, _I, _I, _P, _P),
    "ncclRecv": (_P, _N, _I, _I, _P, _P),
}
"""Those that are called here, and what they take (nccl.h, 2.7 and later). All return ncclResult_t."""


class NcclError(RuntimeError):
    """A call of NCCL failed; the message has the call and NCCL's words."""


class Library:
    """libnccl.so.2: each function raises NcclError where it fails."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        for name, takes in _FUNCTIONS.items():
            function = getattr(opened, name)
            function.argtypes, function.restype = takes, _I
        for name, takes in (("ncclGetErrorString", (_I,)), ("ncclGetLastError", (_P,))):
            function = getattr(opened, name)
            function.argtypes, function.restype = takes, ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Calls one."""
        if status := getattr(self._opened, name)(*arguments):
            words = self._opened.ncclGetErrorString(status) or b""
            last = self._opened.ncclGetLastError(None) or b""
            said = " ".join(f"{words.decode(errors='replace')}. {last.decode(errors='replace')}".split())
            raise NcclError(f"{name}: {said} ({status}). NCCL_DEBUG=WARN says more.")

    def function(self, name: str) -> Callable[..., int]:
        """One to be called often: 0 is success."""
        made: Callable[..., int] = getattr(self._opened, name)
        return made

    def version(self) -> str:
        """Such as 2.28.3."""
        number = _I()
        self.call("ncclGetVersion", ctypes.byref(number))
        code = number.value  # 2.9 and later: 10000 major + 100 minor + patch; before: 1000 (nccl.h, NCCL_VERSION)
        major, rest = divmod(code, 10_000) if code >= 10_000 else divmod(code, 1_000)
        return f"{major}.{rest // 100}.{rest % 100}"


@dataclass(slots=True)
class _Memory:
    """An allocation; given back when the last buffer in it is gone."""

    address: int
    __weakref__: Any = field(init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Elements in a GPU's memory; slices are views."""

    memory: _Memory
    address: int
    dtype: np.dtype[Any]
    count: int

    def __getitem__(self, span: slice) -> Buffer:
        start, stop, _ = span.indices(self.count)
        return Buffer(self.memory, self.address + start * self.dtype.itemsize, self.dtype, max(0, stop - start))


def start(rank: int, ranks: int, meet: str) -> Nccl:
    """This rank; all ranks call. Raises InputError that says all that is missing here: library, driver, enough GPUs."""
    path = library_path()
    missing = [] if path is not None else ["there is no libnccl.so.2: pip install nvidia-nccl-cu13."]
    try:
        driver: Driver | None = open_driver()
    except CudaUnavailableError as error:
        driver = None
        missing.append(str(error))
    if path is None or driver is None:
        here = f"{path} is here, but " if path is not None else ""
        raise InputError(f"back end nccl: {here}{' Then: '.join(missing)} {_INSTEAD}")
    try:
        library = Library(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        raise InputError(
            f"back end nccl: {path} can't be used: {error}. NCCL 2.7 or later is needed. {_INSTEAD}"
        ) from None
    found = place(os.environ)
    local = found.local_rank if found is not None and found.local_rank is not None else rank
    if local >= (gpus := driver.device_count()):
        raise InputError(
            f"back end nccl: rank {rank} is number {local} of its host, counted from 0, and sees {gpus} GPUs; NCCL wants one for each rank."
        )
    return Nccl(library, driver, rank, ranks, local, lambda: _meeting(library, rank, Path(meet)))


def _meeting(library: Library, rank: int, meet: Path) -> UniqueId:
    """The id that all ranks share. Ranks of several hosts meet at MASTER_ADDR, which NCCL takes as NCCL_COMM_ID; those of one in a folder."""
    made = UniqueId()
    if (
        "NCCL_COMM_ID" not in os.environ
        and (host := os.environ.get("MASTER_ADDR"))
        and (port := os.environ.get("MASTER_PORT"))
    ):
        os.environ["NCCL_COMM_ID"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if "NCCL_COMM_ID" in os.environ or rank == 0:
        library.call("ncclGetUniqueId", ctypes.byref(made))
    if "NCCL_COMM_ID" in os.environ:
        return made
    file = meet / "nccl-id"
    if rank == 0:
        try:
            new = file.with_suffix(".new")
            new.write_bytes(bytes(made))
            new.replace(file)
        except OSError as error:
            raise InputError(
                f"back end nccl: {file}: {error.strerror}. Ranks of several hosts need MASTER_ADDR and MASTER_PORT, as torchrun sets them."
            ) from None
        return made
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        try:
            return UniqueId.from_buffer_copy(file.read_bytes())
        except FileNotFoundError:
            time.sleep(_LOOK_S)
    raise InputError(
        f"back end nccl: rank {rank} waited {_WAIT_S:g} s for rank 0 in {meet}. Ranks of several hosts need MASTER_ADDR and MASTER_PORT, as torchrun sets them."
    )


def library_path() -> str | None:
    """Where NCCL is: in NVIDIA's wheel, or where the loader finds it."""
    try:
        found = importlib.util.find_spec(_WHEEL)
    except ModuleNotFoundError:
        found = None
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for file in sorted(Path(folder).glob("lib/libnccl.so*")):
            return str(file)
    return ctypes.util.find_library("nccl")


class Nccl(CopiesByNumpy):
    """A rank of a communicator; buffers lie in its GPU's memory."""

    def __init__(  # noqa: PLR0917 - made in one place
        self, library: Library, driver: Driver, rank: int, ranks: int, device: int, meeting: Callable[[], UniqueId]
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self._library, self._driver, self._device = library, driver, device
        driver.set_current(driver.retain_context(device))
        self._stream = driver.create_stream()
        comm = _P()
        library.call("ncclCommInitRank", ctypes.byref(comm), ranks, meeting(), rank)
        self._comm = comm.value
        self._word = self.empty(1, "int32")

    def about(self) -> dict[str, str]:
        """Versions, and the GPU."""
        major, minor = self._driver.version()
        return {
            "nccl": self._library.version(),
            "cuda": f"{major}.{minor}",
            "memory": self._driver.device(self._device).name,
        }

    def refuses(self, request: Request) -> str | None:
        """NCCL has no barrier."""
        if request.window:
            return "window memory is of the builtin back end; leave --window out."
        if request.collective == "barrier":
            return "NCCL has no barrier; the smallest all-reduce is what stands for one."
        return None

    def barrier(self) -> None:
        """An all_reduce of a word, waited for."""
        word = self._word.address
        self._library.call("ncclAllReduce", word, word, 1, _TYPES["int32"], _OPS["max"], self._comm, self._stream)
        self._driver.synchronize(self._stream)

    def empty(self, count: int, dtype: str) -> Buffer:
        """Memory of this rank's GPU."""
        kind = stored_as(dtype)
        memory = _Memory(self._driver.allocate(max(1, count * kind.itemsize)))
        weakref.finalize(memory, self._driver.free, memory.address).atexit = False
        return Buffer(memory, memory.address, kind, count)

    def write(self, buffer: Buffer, values: Array) -> None:
        """Copies to the GPU."""
        given = np.ascontiguousarray(values, buffer.dtype)
        if given.nbytes:
            self._driver.copy_in(buffer.address, given.ctypes.data, given.nbytes, self._stream)
            self._driver.synchronize(self._stream)

    def read(self, buffer: Buffer) -> Array:
        """A copy in host memory."""
        made = np.empty(buffer.count, buffer.dtype)
        if made.nbytes:
            self._driver.copy_out(made.ctypes.data, buffer.address, made.nbytes, self._stream)
            self._driver.synchronize(self._stream)
        return made

    def bind(self, request: Request, source: Buffer, target: Buffer, part: int) -> Call:
        """Calls are enqueued one after the other, and waited for at the end of those in a row."""
        once, synchronize, stream = self._once(request, source, target, part), self._driver.synchronize, self._stream

        def call(calls: int) -> None:
            for _ in range(calls):
                once()
            synchronize(stream)

        return call

    def _once(self, request: Request, source: Buffer, target: Buffer, part: int) -> Callable[[], None]:
        kind, op, root = _TYPES[request.dtype], _OPS[request.op], request.root
        own = (self._comm, self._stream)
        match request.collective:
            case "all_reduce":
                return self._one("ncclAllReduce", source.address, target.address, target.count, kind, op, *own)
            case "reduce":
                return self._one("ncclReduce", source.address, target.address, source.count, kind, op, root, *own)
            case "broadcast":
                return self._one("ncclBroadcast", source.address, target.address, target.count, kind, root, *own)
            case "reduce_scatter":
                return self._one("ncclReduceScatter", source.address, target.address, target.count, kind, op, *own)
            case "all_gather":
                return self._one("ncclAllGather", source.address, target.address, source.count, kind, *own)
            case name:
                return self._exchange(name, root, source, target, part)

    def _one(self, name: str, *arguments: Any) -> Callable[[], None]:
        function, again = self._library.function(name), self._library.call

        def once() -> None:
            if function(*arguments):
                again(name, *arguments)  # says what it is

        return once

    def _exchange(self, name: str, root: int, source: Buffer, target: Buffer, part: int) -> Callable[[], None]:
        """Sends and receives in one group, as nccl-tests does what NCCL has no call for."""
        sends: list[tuple[int, Buffer]] = []
        takes: list[tuple[int, Buffer]] = []
        every = range(self.ranks)
        match name:
            case "all_to_all_v":
                counts = sent_counts(part, self.ranks)
                sends, takes = _laid(source, counts[self.rank]), _laid(target, counts[:, self.rank])
            case "gather":
                sends = [(root, source)]
                takes = _laid(target, [part] * self.ranks) if self.rank == root else []
            case "scatter":
                sends = _laid(source, [part] * self.ranks) if self.rank == root else []
                takes = [(root, target)]
            case _:
                sends = [(peer, source[peer * part : (peer + 1) * part]) for peer in every]
                takes = [(peer, target[peer * part : (peer + 1) * part]) for peer in every]

        def once() -> None:
            with self._group():
                self._messages(sends, takes)

        return once

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._library.call("ncclGroupStart")
        yield
        self._library.call("ncclGroupEnd")

    def _messages(self, sends: list[tuple[int, Buffer]], takes: list[tuple[int, Buffer]]) -> None:
        call, byte = self._library.call, _TYPES["uint8"]
        for peer, one in sends:
            call("ncclSend", one.address, one.count * one.dtype.itemsize, byte, peer, self._comm, self._stream)
        for peer, one in takes:
            call("ncclRecv", one.address, one.count * one.dtype.itemsize, byte, peer, self._comm, self._stream)

    def window(self, source: Buffer, to: int | None, target: Buffer, origin: int | None, messages: int) -> None:
        """All in one group, waited for."""
        with self._group():
            for _ in range(messages):
                self._messages(
                    [(to, source)] if to is not None else [], [(origin, target)] if origin is not None else []
                )
        self._driver.synchronize(self._stream)

    def together(self, values: npt.NDArray[np.float64], op: Together) -> npt.NDArray[np.float64]:
        """By ncclAllReduce of float64."""
        buffer = self.empty(len(values), "float64")
        self.write(buffer, values)
        at = buffer.address
        self._library.call("ncclAllReduce", at, at, buffer.count, _TYPES["float64"], _OPS[op], self._comm, self._stream)
        return self.read(buffer)

    def gathered(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """By ncclAllGather."""
        mine, all_ = self.empty(len(values), "int64"), self.empty(self.ranks * len(values), "int64")
        self.write(mine, values)
        kind = _TYPES["int64"]
        self._library.call("ncclAllGather", mine.address, all_.address, mine.count, kind, self._comm, self._stream)
        made = self.read(all_)
        return made.reshape(self.ranks, -1) if self.rank == 0 else None

    def close(self) -> None:
        """All leave together."""
        self.barrier()
        self._library.call("ncclCommDestroy", self._comm)
        self._driver.destroy_stream(self._stream)


def _laid(buffer: Buffer, counts: Any) -> list[tuple[int, Buffer]]:
    """A share of a buffer for each rank, one after the other."""
    found, at = [], 0
    for peer, count in enumerate(int(one) for one in counts):
        found.append((peer, buffer[at : at + count]))
        at += count
    return found
