"""torch.distributed as a back end: gloo on CPUs, NCCL where every rank of a host has a GPU."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from busbw.launching import hosts_of, place
from busbw.measuring.backends import Call, CopiesByNumpy, Together
from busbw.measuring.request import REDUCING, Request
from busbw.measuring.truth import sent_counts

__all__ = ["Torch", "start"]

Array = npt.NDArray[Any]

_WAIT_S = 120.0
_PORTS = 20_000
"""Ports 20,000 to 39,999 are taken by the job's number: below those that Linux gives to clients (32,768 on) for the most part. A guess that they are free."""
_TAG = 77
"""Of messages, gloo's only means of telling them from those of collectives. Any number."""


def start(rank: int, ranks: int, meet: str) -> Torch:
    """This rank; all ranks call. They meet at MASTER_ADDR where a launcher has set it, else in the folder `meet` of this host."""
    local = int(os.environ.get("LOCAL_RANK", rank))
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() > local and dist.is_nccl_available()
    if on_gpus:
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(1)
    here = place(os.environ)
    if here is not None and here.launcher == "slurm" and (here.nodes or 1) > 1:
        os.environ.setdefault("MASTER_ADDR", hosts_of(os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_JOB_NODELIST"])[0])  # fmt: skip
        os.environ.setdefault("MASTER_PORT", str(_PORTS + int(os.environ["SLURM_JOB_ID"]) % _PORTS))
    meets_by_network = os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")
    where = "env://" if meets_by_network else f"file://{Path(meet).resolve()}/torch"
    dist.init_process_group(
        "nccl" if on_gpus else "gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=_WAIT_S)
    )  # fmt: skip
    return Torch(on_gpus, local)


class Torch(CopiesByNumpy):
    """A rank of the default process group; buffers are tensors."""

    def __init__(self, on_gpus: bool, local: int) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
        self._on_gpus = on_gpus
        self._sum = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}  # fmt: skip

    def about(self) -> dict[str, str]:
        """Versions and devices."""
        found = {"torch": torch.__version__, "torch_backend": dist.get_backend(), "memory": "CPU"}
        if self._on_gpus:
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
            found |= {"memory": torch.cuda.get_device_name(self.device), "nccl": nccl, "cuda": str(torch.version.cuda)}
        return found

    def refuses(self, request: Request) -> str | None:
        """What gloo and NCCL do not have."""
        if request.window:
            return "window memory is of the builtin back end; leave --window out."
        if not self._on_gpus and request.op == "avg" and request.collective in REDUCING:
            return "gloo has no operation avg; take sum."
        if request.dtype in ("uint32", "uint64"):
            return f"torch.distributed does not reduce {request.dtype}; take int32 or int64."
        return None

    def barrier(self) -> None:
        """Waits for the other ranks, and for this rank's GPU."""
        dist.barrier()
        if self._on_gpus:
            torch.cuda.synchronize()

    def empty(self, count: int, dtype: str) -> torch.Tensor:
        """A tensor on this rank's device."""
        return torch.empty(count, dtype=getattr(torch, dtype), device=self.device)

    def write(self, buffer: torch.Tensor, values: Array) -> None:
        """Copies to the device."""
        given = np.ascontiguousarray(values)
        if buffer.dtype == torch.bfloat16:  # numpy has its bits
            buffer.copy_(torch.from_numpy(given.view(np.int16)).view(torch.bfloat16))
        else:
            buffer.copy_(torch.from_numpy(given))

    def read(self, buffer: torch.Tensor) -> Array:
        """A copy in host memory."""
        if buffer.dtype == torch.bfloat16:
            bits: Array = buffer.cpu().view(torch.int16).numpy().view(np.uint16)
            return bits
        made: Array = buffer.cpu().numpy()
        return made

    def bind(self, request: Request, source: torch.Tensor, target: torch.Tensor, part: int) -> Call:
        """Blocking calls on CPUs; on GPUs calls are enqueued, and waited for at the end of those in a row."""
        once = self._once(request, source, target, part)
        on_gpus, synchronize = self._on_gpus, torch.cuda.synchronize

        def call(calls: int) -> None:
            for _ in range(calls):
                once()
            if on_gpus:
                synchronize()

        return call

    def _once(self, request: Request, source: torch.Tensor, target: torch.Tensor, part: int) -> Any:
        op, root, ranks = self._sum[request.op], request.root, self.ranks
        same = source.data_ptr() == target.data_ptr() and source.numel() == target.numel()
        is_root = self.rank == root
        match request.collective:
            case "all_reduce":
                return partial(dist.all_reduce, target, op) if same else _copied(source, target, partial(dist.all_reduce, target, op))  # fmt: skip
            case "reduce":
                # torch's reduce works in place; on ranks other than the root it may change the buffer
                return partial(dist.reduce, target, root, op) if same else _copied(source, target, partial(dist.reduce, target, root, op))  # fmt: skip
            case "broadcast":
                if same:
                    return partial(dist.broadcast, target, root)
                return _copied(source, target, partial(dist.broadcast, target, root)) if is_root else partial(dist.broadcast, target, root)  # fmt: skip
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, target, source, op)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, target, source)
            case "all_to_all":
                return partial(dist.all_to_all_single, target, source)
            case "all_to_all_v":
                counts = sent_counts(part, ranks)
                return partial(dist.all_to_all_single, target, source, counts[:, self.rank].tolist(), counts[self.rank].tolist())  # fmt: skip
            case "gather":
                return partial(dist.gather, source, list(target.split(part)) if is_root and part else [target[:0]] * ranks if is_root else None, root)  # fmt: skip
            case "scatter":
                return partial(dist.scatter, target, list(source.split(part)) if is_root and part else [source[:0]] * ranks if is_root else None, root)  # fmt: skip
            case _:
                return dist.barrier

    def window(
        self, source: torch.Tensor, to: int | None, target: torch.Tensor, origin: int | None, messages: int
    ) -> None:
        """Isend and irecv of all, then a wait for all; NCCL's in one group."""
        if self._on_gpus:
            asked = [dist.P2POp(dist.isend, source, to) for _ in range(messages)] if to is not None else []
            asked += [dist.P2POp(dist.irecv, target, origin) for _ in range(messages)] if origin is not None else []
            for work in dist.batch_isend_irecv(asked):
                work.wait()
            torch.cuda.synchronize()
            return
        works = [dist.irecv(target, origin, tag=_TAG) for _ in range(messages)] if origin is not None else []
        works += [dist.isend(source, to, tag=_TAG) for _ in range(messages)] if to is not None else []
        for work in works:
            if work is not None:
                work.wait()

    def together(self, values: npt.NDArray[np.float64], op: Together) -> npt.NDArray[np.float64]:
        """By all_reduce."""
        tensor = torch.from_numpy(np.array(values, np.float64)).to(self.device)
        dist.all_reduce(tensor, self._sum[op])
        return self.read(tensor)

    def gathered(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """By gather."""
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
        made = [torch.empty_like(tensor) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(tensor, made, 0)
        return np.stack([self.read(one) for one in made]) if made is not None else None

    def close(self) -> None:
        """All leave together."""
        dist.barrier()
        dist.destroy_process_group()


def _copied(source: torch.Tensor, target: torch.Tensor, once: Any) -> Any:
    """A call out of place of what the library only does in place: a copy first, as callers must make it."""

    def call() -> None:
        target.copy_(source)
        once()

    return call
