"""What of a layout a training framework can run: a search among layouts that one's software lacks helps nobody."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.hardware.what_if import nearest
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.layout import SHARDING

__all__ = ["FRAMEWORKS", "Framework", "find_framework"]


@dataclass(frozen=True, slots=True)
class Framework:
    """Kinds of parallelism of a framework."""

    sharding: tuple[str, ...]
    """Words of `layout.SHARDING`."""
    groups: frozenset[str] = frozenset({"tp", "cp", "pp", "ep"})
    """Groups beside data parallel that it has."""
    sharded_pipelines: bool = False
    """Whether weights are sharded also where there is a pipeline."""
    virtual_stages: bool = True
    deals_ends: bool = True
    """Whether embedding and output may count as layers when layers are dealt to virtual stages."""

    def can(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Which layouts it runs, (N,)."""
        good = np.isin(columns.sharding, [SHARDING.index(word) for word in self.sharding])
        for group in ("tp", "cp", "pp", "ep"):
            if group not in self.groups:
                good &= getattr(columns, group) == 1
        if not self.sharded_pipelines:
            good &= (columns.pp == 1) | (columns.sharding < SHARDING.index("fsdp"))
        if not self.virtual_stages:
            good &= columns.vpp == 1
        return np.asarray(good, np.bool_)


_DENSE = frozenset({"tp", "pp"})
FRAMEWORKS = {
    # FSDP and pipelines exclude each other: NVIDIA/Megatron-LM#6081, examples/multimodal_dev/scripts/run_qwen35_vl.sh.
    # Ends as layers: --account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split, --pipeline-model-parallel-layout.
    "megatron": Framework(("zero0", "zero1", "fsdp", "hsdp")),
    # arXiv:2104.04473 and arXiv:2205.05198: neither a distributed optimizer nor context parallelism is named.
    "megatron-2022": Framework(("zero0",), _DENSE, deals_ends=False),
    "nemo-24": Framework(("zero0", "zero1"), deals_ends=False),
    # Ends as layers: torchtitan/distributed/pipeline_parallel.py, weights of input and output. Its docs: FSDP2 and HSDP compose with all three.
    "torchtitan": Framework(("fsdp", "hsdp"), sharded_pipelines=True),
    "llm-foundry": Framework(("zero0", "zero2", "fsdp", "hsdp"), frozenset()),
    # DeepSpeed's pipeline module refuses ZeRO-2 and ZeRO-3; it has no virtual stages.
    "deepspeed": Framework(("zero0", "zero1", "zero2", "fsdp"), frozenset({"tp", "pp", "ep"}), virtual_stages=False),
}  # fmt: skip
"""By name. Sources beside each; where none stands, from memory, unverified."""


def find_framework(name: str) -> Framework:
    """The framework of a name. Raises InputError for one that is not known, with the nearest names."""
    found = FRAMEWORKS.get(name.strip().lower())
    if found is None:
        raise InputError(f"framework {name!r} is not known. {nearest(name, list(FRAMEWORKS))}")
    return found
