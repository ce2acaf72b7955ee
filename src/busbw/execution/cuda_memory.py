"""Windows on GPUs: memory of the same size on every rank, mapped by all of them.

Ranks of one process map each other's memory where it was made; those of other processes get it as a file descriptor (or as an IPC handle, where
the driver has no descriptors) through `descriptors.exchange`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from busbw.execution.cuda_driver import CudaError, Device, Driver
from busbw.execution.descriptors import Message, close_all, exchange
from busbw.execution.shared_memory import SharedMemoryError

__all__ = ["BetweenProcesses", "Facts", "InProcess", "Mapped", "Peers"]

_IPC_BYTES = 2 << 20
"""Allocations for IPC are whole multiples of it: a handle gives the other process the whole block that the allocation lies in (CUDA C++
Programming Guide, "Interprocess Communication")."""


@dataclass(slots=True)
class Mapped:
    """A window: where this process maps it, by rank. close() undoes all that making it did."""

    addresses: tuple[int, ...]
    size_bytes: int
    undo: ExitStack = field(repr=False)

    def close(self) -> None:
        """Unmaps; safe to call twice."""
        self.undo.close()


@dataclass(frozen=True, slots=True)
class Facts:
    """What ranks tell each other before anything is mapped."""

    uuid: str
    """Of the GPU."""
    multiprocessors: int


class Peers(Protocol):
    """How a rank finds the others."""

    def facts(self) -> list[Facts]:
        """Of all ranks, in their order."""

    def window(self, size_bytes: int) -> Mapped:
        """The next window, zeros at first. All ranks call, with the same size, in the same order."""


class InProcess:
    """Ranks of one process, one on each of `devices`; a GPU may be named several times. Whoever asks first makes the window for all."""

    def __init__(self, driver: Driver, devices: Sequence[Device], contexts: dict[int, int]) -> None:
        self._driver, self._devices, self._contexts = driver, list(devices), contexts
        self._made: list[tuple[Mapped, set[int]]] = []
        self._lock = threading.Lock()
        ordinals = sorted({device.ordinal for device in devices})
        self._ordinals = ordinals
        for one in ordinals:
            for other in ordinals:
                found = driver.peer_access(one, other)
                if not found.access:
                    raise CudaError(
                        "cuDeviceCanAccessPeer", 0, "no peer access", f"GPU {one} can't reach GPU {other}'s memory",
                        "See nvidia-smi topo -p2p r; an IOMMU or a virtual machine may forbid it.",
                    )  # fmt: skip
                if not found.native_atomics:
                    raise CudaError(
                        "cuDeviceGetP2PAttribute", 0, "no native atomics", f"signals from GPU {one} to GPU {other} would not be atomic",
                        "Links of PCIe mostly have none; take GPUs that NVLink connects (nvidia-smi topo -m), or one GPU for all ranks.",
                    )  # fmt: skip

    def of(self, rank: int) -> Peers:
        """As one rank sees it."""
        return _InProcessRank(self, rank)

    def facts(self) -> list[Facts]:
        """Of all ranks."""
        return [Facts(device.uuid, device.multiprocessors) for device in self._devices]

    def window(self, rank: int, turn: int, size_bytes: int) -> Mapped:
        """The turn-th window, for a rank."""
        with self._lock:
            if turn == len(self._made):
                self._made.append((self._make(size_bytes), set()))
            made, users = self._made[turn]
            if made.size_bytes != size_bytes:
                raise SharedMemoryError(
                    f"rank {rank} asks for a window of {size_bytes} bytes, another rank for {made.size_bytes}: all must ask for the same."
                )
            users.add(rank)
            undo = ExitStack()
            undo.callback(self._left, rank, turn)
            return Mapped(made.addresses, size_bytes, undo)

    def _left(self, rank: int, turn: int) -> None:
        """The last rank to leave takes the memory with it: the others' kernels may still write into it."""
        with self._lock:
            made, users = self._made[turn]
            users.discard(rank)
            last = not users
        if last:
            made.close()

    def _make(self, size_bytes: int) -> Mapped:
        with ExitStack() as undo:
            addresses = []
            for device in self._devices:
                self._driver.set_current(self._contexts[device.ordinal])
                addresses.append(
                    _made(self._driver, device, size_bytes, undo, shareable=False, users=self._ordinals)[0]
                )
            return Mapped(tuple(addresses), size_bytes, undo.pop_all())


class _InProcessRank:
    def __init__(self, all_of_them: InProcess, rank: int) -> None:
        self._all, self._rank, self._turn = all_of_them, rank, 0

    def facts(self) -> list[Facts]:
        return self._all.facts()

    def window(self, size_bytes: int) -> Mapped:
        made = self._all.window(self._rank, self._turn, size_bytes)
        self._turn += 1
        return made


class BetweenProcesses:
    """This process' rank among others of this machine that have agreed on a name."""

    def __init__(self, driver: Driver, device: Device, name: str, *, rank: int, ranks: int, wait_s: float) -> None:
        self._driver, self._device, self._name = driver, device, name
        self._rank, self._ranks, self._wait_s = rank, ranks, wait_s
        self._turn = 0

    def facts(self) -> list[Facts]:
        """Of all ranks."""
        told = self._told({"uuid": self._device.uuid, "multiprocessors": self._device.multiprocessors}, None)
        close_all(message for message, _ in told)
        return [Facts(str(said["uuid"]), int(said["multiprocessors"])) for _, said in told]

    def window(self, size_bytes: int) -> Mapped:
        """The next one. If a rank can't make its part, all raise, with its reason."""
        with ExitStack() as undo:
            try:
                address, allocation = _made(
                    self._driver, self._device, size_bytes, undo, shareable=True, users=[self._device.ordinal]
                )
                mine: dict[str, Any] = {"size": size_bytes}
                descriptor = None
                if allocation is None:
                    mine["ipc"] = self._driver.ipc_export(address).hex()
                else:
                    descriptor = self._driver.export_descriptor(allocation)
            except CudaError as error:
                self._told({"failed": str(error)}, None)
                raise
            told = self._told(mine, descriptor)
            try:
                if descriptor is not None:
                    close_all([told[self._rank][0]])
                    told[self._rank] = (Message(b""), mine)
                addresses = [
                    address if rank == self._rank else self._theirs(rank, message, said, size_bytes, undo)
                    for rank, (message, said) in enumerate(told)
                ]
            finally:
                close_all(message for message, _ in told)
            return Mapped(tuple(addresses), size_bytes, undo.pop_all())

    def _told(self, mine: dict[str, Any], descriptor: int | None) -> list[tuple[Message, dict[str, Any]]]:
        """What all ranks tell in this turn. The descriptors, this rank's included, are the caller's to close."""
        name = f"{self._name}-{self._turn}"
        self._turn += 1
        message = Message(json.dumps(mine).encode(), descriptor)
        try:
            found = exchange(name, self._rank, self._ranks, message, self._wait_s)
        except BaseException:
            close_all([message])
            raise
        try:
            return [(one, _object(one.payload)) for one in found]
        except ValueError as error:
            close_all(found)
            raise SharedMemoryError(
                f"a rank of {self._name} sent no message of this version of busbw: {error}"
            ) from None

    def _theirs(self, rank: int, message: Message, said: dict[str, Any], size_bytes: int, undo: ExitStack) -> int:
        """Another rank's memory, mapped here."""
        if "failed" in said:
            raise SharedMemoryError(f"rank {rank} of {self._name} has no window: {said['failed']}")
        if said.get("size") != size_bytes:
            raise SharedMemoryError(
                f"rank {rank} has a window of {said.get('size')} bytes, this rank of {size_bytes}: all must ask for the same."
            )
        driver = self._driver
        if message.descriptor is None:
            address = driver.ipc_open(bytes.fromhex(str(said.get("ipc", ""))))
            undo.callback(driver.ipc_close, address)
            return address
        allocation = driver.import_descriptor(message.descriptor)
        undo.callback(driver.release, allocation)
        whole = _rounded(driver, self._device, size_bytes)
        return _placed(driver, self._device, allocation, undo, whole=whole, users=[self._device.ordinal])


def _object(payload: bytes) -> dict[str, Any]:
    said = json.loads(payload)
    if not isinstance(said, dict):
        raise ValueError("not an object")
    return said


def _rounded(driver: Driver, device: Device, size_bytes: int) -> int:
    unit = driver.granularity(device.ordinal, device.shares_by_descriptor)
    return -(-max(size_bytes, 1) // unit) * unit


def _made(
    driver: Driver, device: Device, size_bytes: int, undo: ExitStack, *, shareable: bool, users: Sequence[int]
) -> tuple[int, int | None]:
    """Memory of a GPU, zeros: its address, and its allocation if that can be handed on. The context of the GPU must be current."""
    by_descriptor = device.shares_by_descriptor if shareable else device.virtual_memory
    if not by_descriptor:
        if list(users) != [device.ordinal]:
            raise CudaError(
                "cuMemCreate", 0, "no virtual memory", f"GPU {device.ordinal} ({device.name}) can't have its memory mapped by several GPUs",
            )  # fmt: skip
        whole = -(-max(size_bytes, 1) // _IPC_BYTES) * _IPC_BYTES
        address = driver.allocate(whole)
        undo.callback(driver.free, address)
        allocation = None
    else:
        whole = _rounded(driver, device, size_bytes)
        allocation = driver.create(device.ordinal, whole, shareable)
        undo.callback(driver.release, allocation)
        address = _placed(driver, device, allocation, undo, whole=whole, users=users)
    driver.fill(address, 0, whole, 0)
    driver.synchronize(0)  # zeros before anybody else sees it: rule 3 of signals
    return address, allocation


def _placed(
    driver: Driver, device: Device, allocation: int, undo: ExitStack, *, whole: int, users: Sequence[int]
) -> int:
    """An allocation at an address of this process, for the GPUs that use it."""
    address = driver.reserve(whole, driver.granularity(device.ordinal, device.shares_by_descriptor))
    undo.callback(driver.free_reserved, address, whole)
    driver.map(address, whole, allocation)
    undo.callback(driver.unmap, address, whole)
    driver.allow(address, whole, users)
    return address
