"""What busbw asks of NVIDIA's driver, as one typed interface, so that tests can stand in for it; and the driver itself behind it.

Handles are ints: contexts, allocations, addresses, streams, events, modules, functions, graphs. What fails raises `CudaError` with the
name of the call; what is missing on a machine is said by `CudaUnavailableError`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "BindingsDriver",
    "CudaError",
    "CudaUnavailableError",
    "Device",
    "Driver",
    "PeerAccess",
    "open_driver",
]

IPC_HANDLE_BYTES = 64
"""Of CUipcMemHandle (cuda.h)."""

_NO_DEVICE, _INVALID_DEVICE, _SYSTEM_NOT_READY, _DRIVER_MISMATCH, _COMPATIBILITY = 100, 101, 802, 803, 804
_MENDS = {
    _NO_DEVICE: "No GPU is visible: look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and whether the container was started with --gpus.",
    _INVALID_DEVICE: "CUDA_VISIBLE_DEVICES names a GPU that is not there.",
    _SYSTEM_NOT_READY: "NVSwitch is not up: systemctl status nvidia-fabricmanager.",
    _DRIVER_MISMATCH: "libcuda.so.1 is not of the version of the loaded kernel module: restart the machine, or the container with its own libraries.",
    _COMPATIBILITY: "The libraries of forward compatibility (cuda-compat) do not serve this GPU: take them off LD_LIBRARY_PATH.",
}
"""What helps, by CUresult (cuda.h)."""


class CudaError(RuntimeError):
    """A call of the driver failed; the message has the call, CUDA's name of the error and its words. code: the CUresult."""

    def __init__(self, call: str, code: int, name: str, words: str, about: str = "") -> None:
        self.call, self.code = call, code
        mend = _MENDS.get(code, "")
        super().__init__(f"{call}: {name} ({code}): {words}.{' ' + about if about else ''}{' ' + mend if mend else ''}")


class CudaUnavailableError(RuntimeError):
    """This machine cannot run CUDA kernels; the message says what is missing, library, driver or device, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the driver describes it."""

    ordinal: int
    name: str
    uuid: str
    architecture: int
    """10 times the major and the minor of its compute capability: 90 is sm_90."""
    multiprocessors: int
    cooperative_launch: bool
    virtual_memory: bool
    """Whether memory can be made apart from its addresses, and mapped by several GPUs of a process."""
    shares_by_descriptor: bool
    """Whether its memory can be handed to other processes as a file descriptor; IPC handles serve otherwise."""
    multicast: bool


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """What one GPU may do with another's memory."""

    access: bool
    native_atomics: bool
    """Whether atomics on it are atomic: over NVLink yes, over PCIe mostly not."""


class Driver(Protocol):
    """The calls, each of one driver function or two. All act on the current context of the calling thread but for those that name a device."""

    def version(self) -> tuple[int, int]:
        """Of CUDA, as the driver knows it."""

    def device_count(self) -> int: ...
    def device(self, ordinal: int) -> Device: ...
    def peer_access(self, device: int, peer: int) -> PeerAccess: ...

    def retain_context(self, device: int) -> int: ...
    def release_context(self, device: int) -> None: ...
    def set_current(self, context: int) -> None: ...

    def granularity(self, device: int, shareable: bool) -> int:
        """What sizes and addresses of `create` and `reserve` are multiples of, bytes."""

    def create(self, device: int, size_bytes: int, shareable: bool) -> int:
        """Physical memory, not mapped anywhere."""

    def release(self, allocation: int) -> None: ...
    def export_descriptor(self, allocation: int) -> int:
        """A file descriptor of it, the caller's to close."""

    def import_descriptor(self, descriptor: int) -> int: ...
    def reserve(self, size_bytes: int, alignment: int) -> int: ...
    def free_reserved(self, address: int, size_bytes: int) -> None: ...
    def map(self, address: int, size_bytes: int, allocation: int) -> None: ...
    def unmap(self, address: int, size_bytes: int) -> None: ...
    def allow(self, address: int, size_bytes: int, devices: Sequence[int]) -> None:
        """Lets devices read and write what is mapped there."""

    def allocate(self, size_bytes: int) -> int: ...
    def free(self, address: int) -> None:
        """Waits for all that runs in the context."""

    def allocate_on(self, size_bytes: int, stream: int) -> int:
        """Memory that is there from this place of the stream on."""

    def free_on(self, address: int, stream: int) -> None:
        """Gives it back at this place of the stream; waits for nothing."""

    def ipc_export(self, address: int) -> bytes: ...
    def ipc_open(self, handle: bytes) -> int: ...
    def ipc_close(self, address: int) -> None: ...

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None: ...
    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: int) -> None: ...
    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: int) -> None: ...
    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None: ...

    def load(self, image: bytes) -> int: ...
    def unload(self, module: int) -> None: ...
    def function(self, module: int, name: str) -> int: ...
    def blocks_per_multiprocessor(self, function: int, threads: int) -> int: ...
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
        """arguments: the bytes of each parameter of the kernel, in order."""

    def create_stream(self) -> int:
        """One that does not wait for the default stream."""

    def destroy_stream(self, stream: int) -> None: ...
    def synchronize(self, stream: int) -> None: ...
    def is_captured(self, stream: int) -> bool: ...
    def create_event(self, timing: bool) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait_for(self, stream: int, event: int) -> None: ...
    def elapsed_s(self, begin: int, end: int) -> float:
        """Between two events; waits for the second."""

    def begin_capture(self, stream: int) -> None: ...
    def end_capture(self, stream: int) -> int:
        """A graph that is ready to launch."""

    def launch_graph(self, graph: int, stream: int) -> None: ...
    def destroy_graph(self, graph: int) -> None: ...


def open_driver() -> BindingsDriver:
    """The driver of this machine, initialised. Raises CudaUnavailableError if the library, the driver or a device is missing."""
    try:
        from cuda.bindings import driver as bindings  # noqa: PLC0415  (an extra; costs 50 ms)
    except ImportError as error:
        raise CudaUnavailableError(
            f"The cuda back end needs the package cuda-bindings, which can't be imported ({error}): pip install 'busbw[cuda]'."
        ) from None
    try:
        status = int(bindings.cuInit(0)[0])
    except (RuntimeError, OSError) as error:
        raise CudaUnavailableError(
            "NVIDIA's driver is not on this machine: libcuda.so.1 can't be loaded. Install the driver; in a container, start it with --gpus all "
            f"(NVIDIA Container Toolkit). The loader said: {(str(error) or repr(error)).splitlines()[0]}"
        ) from None
    opened = BindingsDriver(bindings)
    if status:
        raise CudaUnavailableError(f"NVIDIA's driver is there but does not start: {opened.error('cuInit', status)}")
    if opened.device_count() == 0:
        raise CudaUnavailableError(f"NVIDIA's driver is there but has no device. {_MENDS[_NO_DEVICE]}")
    return opened


class BindingsDriver:
    """The driver through cuda.bindings.driver, which finds libcuda and the newest version of each call."""

    def __init__(self, bindings: Any) -> None:
        self._cu = bindings

    def error(self, call: str, code: int, about: str = "") -> CudaError:
        """The error of a call, in CUDA's words."""
        texts = []
        for ask in (self._cu.cuGetErrorName, self._cu.cuGetErrorString):
            try:
                failed, text = ask(self._cu.CUresult(code))
            except (ValueError, RuntimeError):  # a code newer than the bindings
                failed, text = 1, b""
            texts.append(text.decode(errors="replace") if not int(failed) and text else "unknown error")
        return CudaError(call, code, texts[0], texts[1], about)

    def _call(self, name: str, *arguments: Any, about: str = "") -> Any:
        """What a call gives beside its status: nothing, one thing, or a tuple."""
        status, *given = getattr(self._cu, name)(*arguments)
        if int(status):
            raise self.error(name, int(status), about)
        return given[0] if len(given) == 1 else tuple(given)

    def version(self) -> tuple[int, int]:
        number = int(self._call("cuDriverGetVersion"))
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def device(self, ordinal: int) -> Device:
        handle = self._call(
            "cuDeviceGet",
            ordinal,
            about=f"There are {self.device_count()} GPUs, counted from 0; {ordinal} was asked for.",
        )
        name = bytes(self._call("cuDeviceGetName", 256, handle)).split(b"\0")[0].decode(errors="replace")
        uuid = bytes(self._call("cuDeviceGetUuid", handle).bytes).hex()
        kinds = self._cu.CUdevice_attribute

        def attribute(kind: str) -> int:
            return int(self._call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{kind}"), handle))

        virtual = attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")
        return Device(
            ordinal,
            name,
            uuid,
            10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR"),
            attribute("MULTIPROCESSOR_COUNT"),
            bool(attribute("COOPERATIVE_LAUNCH")),
            bool(virtual),
            bool(virtual and attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")),
            self.version() >= (12, 1) and bool(attribute("MULTICAST_SUPPORTED")),
        )

    def peer_access(self, device: int, peer: int) -> PeerAccess:
        if device == peer:
            return PeerAccess(True, True)
        one, other = self._call("cuDeviceGet", device), self._call("cuDeviceGet", peer)
        if not int(self._call("cuDeviceCanAccessPeer", one, other)):
            return PeerAccess(False, False)
        kind = self._cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        return PeerAccess(True, bool(int(self._call("cuDeviceGetP2PAttribute", kind, one, other))))

    def retain_context(self, device: int) -> int:
        return int(self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", device)))

    def release_context(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._call("cuDeviceGet", device))

    def set_current(self, context: int) -> None:
        self._call("cuCtxSetCurrent", self._cu.CUcontext(context))

    def _properties(self, device: int, shareable: bool) -> Any:
        wanted = self._cu.CUmemAllocationProp()
        wanted.type = self._cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = device
        kinds = self._cu.CUmemAllocationHandleType
        wanted.requestedHandleTypes = (
            kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if shareable else kinds.CU_MEM_HANDLE_TYPE_NONE
        )
        return wanted

    def granularity(self, device: int, shareable: bool) -> int:
        minimum = self._cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._properties(device, shareable), minimum))

    def create(self, device: int, size_bytes: int, shareable: bool) -> int:
        return int(
            self._call(
                "cuMemCreate",
                size_bytes,
                self._properties(device, shareable),
                0,
                about=f"{size_bytes} bytes on GPU {device}.",
            )
        )

    def release(self, allocation: int) -> None:
        self._call("cuMemRelease", self._cu.CUmemGenericAllocationHandle(allocation))

    def export_descriptor(self, allocation: int) -> int:
        kind = self._cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        handle = self._cu.CUmemGenericAllocationHandle(allocation)
        return int(self._call("cuMemExportToShareableHandle", handle, kind, 0))

    def import_descriptor(self, descriptor: int) -> int:
        kind = self._cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(self._call("cuMemImportFromShareableHandle", descriptor, kind))

    def reserve(self, size_bytes: int, alignment: int) -> int:
        return int(self._call("cuMemAddressReserve", size_bytes, alignment, self._cu.CUdeviceptr(0), 0))

    def free_reserved(self, address: int, size_bytes: int) -> None:
        self._call("cuMemAddressFree", self._cu.CUdeviceptr(address), size_bytes)

    def map(self, address: int, size_bytes: int, allocation: int) -> None:
        handle = self._cu.CUmemGenericAllocationHandle(allocation)
        self._call("cuMemMap", self._cu.CUdeviceptr(address), size_bytes, 0, handle, 0)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._call("cuMemUnmap", self._cu.CUdeviceptr(address), size_bytes)

    def allow(self, address: int, size_bytes: int, devices: Sequence[int]) -> None:
        wanted = []
        for device in devices:
            one = self._cu.CUmemAccessDesc()
            one.location.type = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            one.location.id = device
            one.flags = self._cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            wanted.append(one)
        self._call(
            "cuMemSetAccess",
            self._cu.CUdeviceptr(address),
            size_bytes,
            wanted,
            len(wanted),
            about="GPUs without peer access can't map each other's memory: see nvidia-smi topo -p2p r.",
        )

    def allocate(self, size_bytes: int) -> int:
        return int(self._call("cuMemAlloc", size_bytes, about=f"{size_bytes} bytes."))

    def free(self, address: int) -> None:
        self._call("cuMemFree", self._cu.CUdeviceptr(address))

    def allocate_on(self, size_bytes: int, stream: int) -> int:
        return int(self._call("cuMemAllocAsync", size_bytes, self._cu.CUstream(stream), about=f"{size_bytes} bytes."))

    def free_on(self, address: int, stream: int) -> None:
        self._call("cuMemFreeAsync", self._cu.CUdeviceptr(address), self._cu.CUstream(stream))

    def ipc_export(self, address: int) -> bytes:
        handle = self._call("cuIpcGetMemHandle", self._cu.CUdeviceptr(address))
        return ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES)

    def ipc_open(self, handle: bytes) -> int:
        if len(handle) != IPC_HANDLE_BYTES:
            raise ValueError(f"an IPC handle has {IPC_HANDLE_BYTES} bytes, not {len(handle)}")
        made = self._cu.CUipcMemHandle()
        ctypes.memmove(made.getPtr(), handle, IPC_HANDLE_BYTES)
        lazily = self._cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(self._call("cuIpcOpenMemHandle", made, int(lazily)))

    def ipc_close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", self._cu.CUdeviceptr(address))

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", self._cu.CUdeviceptr(address), byte, size_bytes, self._cu.CUstream(stream))

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: int) -> None:
        self._call(
            "cuMemcpyHtoDAsync", self._cu.CUdeviceptr(address), host_address, size_bytes, self._cu.CUstream(stream)
        )

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: int) -> None:
        self._call(
            "cuMemcpyDtoHAsync", host_address, self._cu.CUdeviceptr(address), size_bytes, self._cu.CUstream(stream)
        )

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self._call(
            "cuMemcpyAsync",
            self._cu.CUdeviceptr(target),
            self._cu.CUdeviceptr(source),
            size_bytes,
            self._cu.CUstream(stream),
        )

    def load(self, image: bytes) -> int:
        return int(
            self._call(
                "cuModuleLoadData",
                image,
                about="Code made by a newer toolkit than the driver is refused: install nvidia-cuda-nvrtc of the driver's version "
                f"(CUDA {'.'.join(map(str, self.version()))}), or a newer driver.",
            )
        )

    def unload(self, module: int) -> None:
        self._call("cuModuleUnload", self._cu.CUmodule(module))

    def function(self, module: int, name: str) -> int:
        return int(self._call("cuModuleGetFunction", self._cu.CUmodule(module), name.encode(), about=f"{name}."))

    def blocks_per_multiprocessor(self, function: int, threads: int) -> int:
        handle = self._cu.CUfunction(function)
        return int(self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, threads, 0))

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
        # The driver copies what the pointers show to before it returns.
        kept = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*map(ctypes.addressof, kept))
        shape = (blocks, 1, 1, threads, 1, 1, 0, self._cu.CUstream(stream), ctypes.addressof(pointers))
        handle, about = self._cu.CUfunction(function), f"{blocks} blocks of {threads} threads."
        if cooperative:
            self._call("cuLaunchCooperativeKernel", handle, *shape, about=about)
        else:
            self._call("cuLaunchKernel", handle, *shape, 0, about=about)

    def create_stream(self) -> int:
        return int(self._call("cuStreamCreate", int(self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", self._cu.CUstream(stream))

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", self._cu.CUstream(stream))

    def is_captured(self, stream: int) -> bool:
        return int(self._call("cuStreamIsCapturing", self._cu.CUstream(stream))) != 0

    def create_event(self, timing: bool) -> int:
        flags = self._cu.CUevent_flags
        wanted = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return int(self._call("cuEventCreate", int(wanted)))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", self._cu.CUevent(event))

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", self._cu.CUevent(event), self._cu.CUstream(stream))

    def wait_for(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", self._cu.CUstream(stream), self._cu.CUevent(event), 0)

    def elapsed_s(self, begin: int, end: int) -> float:
        self._call("cuEventSynchronize", self._cu.CUevent(end))
        return float(self._call("cuEventElapsedTime", self._cu.CUevent(begin), self._cu.CUevent(end))) / 1e3

    def begin_capture(self, stream: int) -> None:
        mode = self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._cu.CUstream(stream), mode)

    def end_capture(self, stream: int) -> int:
        graph = self._call("cuStreamEndCapture", self._cu.CUstream(stream))
        try:
            return int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._call("cuGraphDestroy", graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", self._cu.CUgraphExec(graph), self._cu.CUstream(stream))

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", self._cu.CUgraphExec(graph))
