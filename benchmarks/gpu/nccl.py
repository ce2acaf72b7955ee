"""NCCL through its library, as much as a head to head needs: several ranks of this process, each a thread with a stream.

Several ranks on one GPU need NCCL 2.30 or later and NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL user guide, environment variables; experimental).
"""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path

from benchmarks.rows import NotMeasurableError

__all__ = ["ENVIRONMENT", "Nccl"]

ENVIRONMENT = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN"}
OLDEST_VERSION = 23000
_FLOAT, _SUM = 7, 0
"""ncclFloat32, ncclSum (nccl.h)."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)  # NCCL_UNIQUE_ID_BYTES


class Nccl:
    """The library; `unique_id` once, then `rank` in a thread of each rank."""

    def __init__(self) -> None:
        self.library = _library()
        number = ctypes.c_int()
        self._check("ncclGetVersion", ctypes.byref(number))
        self.version = number.value
        if self.version < OLDEST_VERSION:
            raise NotMeasurableError(
                f"NCCL {self.version} has no several ranks on a GPU: pip install -U nvidia-nccl-cu13"
            )

    def unique_id(self) -> _UniqueId:
        """What ranks of a communicator share."""
        made = _UniqueId()
        self._check("ncclGetUniqueId", ctypes.byref(made))
        return made

    def rank(self, unique_id: _UniqueId, rank: int, ranks: int) -> int:
        """A rank on the GPU whose context is current; returns when all have come."""
        comm = ctypes.c_void_p()
        self._check("ncclCommInitRank", ctypes.byref(comm), ctypes.c_int(ranks), unique_id, ctypes.c_int(rank))
        return comm.value or 0

    def all_reduce(self, comm: int, source: int, target: int, count: int, stream: int) -> None:
        """Enqueues a sum of float32."""
        pointers = (ctypes.c_void_p(source), ctypes.c_void_p(target), ctypes.c_size_t(count))
        self._check("ncclAllReduce", *pointers, _FLOAT, _SUM, ctypes.c_void_p(comm), ctypes.c_void_p(stream))

    def destroy(self, comm: int) -> None:
        """Ends a rank."""
        self._check("ncclCommDestroy", ctypes.c_void_p(comm))

    def _check(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            words = self.library.ncclGetErrorString
            words.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {words(status).decode(errors='replace')} ({status})")


def _library() -> ctypes.CDLL:
    places = ["libnccl.so.2"]
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        places = [str(Path(str(file.locate()))) for file in files if file.name == "libnccl.so.2"] + places
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise NotMeasurableError("no libnccl.so.2: pip install nvidia-nccl-cu13")
