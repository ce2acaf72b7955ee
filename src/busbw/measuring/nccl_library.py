"""NCCL without PyTorch as a back end: not written yet. Says what this machine lacks for it, and what measures NCCL now."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from pathlib import Path
from typing import NoReturn

from busbw.errors import InputError
from busbw.execution.cuda_driver import CudaUnavailableError, open_driver

__all__ = ["start"]

_WHEEL = "nvidia.nccl"
_INSTEAD = "--backend torch measures NCCL through PyTorch, --backend nccl-tests by nccl-tests."


def start(rank: int, ranks: int, meet: str) -> NoReturn:
    """Raises InputError: what is missing here, library first, then GPUs; else that this back end is not written yet."""
    del rank, ranks, meet
    library = _library()
    if library is None:
        raise InputError(
            f"back end nccl: there is no libnccl.so.2: pip install nvidia-nccl-cu13. Then GPUs are needed. {_INSTEAD}"
        )
    try:
        open_driver()
    except CudaUnavailableError as error:
        raise InputError(f"back end nccl: {library} is here, but no GPU: {error}") from None
    raise InputError(f"back end nccl: calling {library} itself is not written yet. {_INSTEAD}")


def _library() -> str | None:
    """Where NCCL is: in NVIDIA's wheel, or where the loader finds it."""
    found = None
    try:
        found = importlib.util.find_spec(_WHEEL)
    except ModuleNotFoundError:
        found = None
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for file in sorted(Path(folder).glob("lib/libnccl.so*")):
            return str(file)
    return ctypes.util.find_library("nccl")
