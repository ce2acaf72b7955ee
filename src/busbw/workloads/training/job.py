"""Job: what is trained, on what, and how the software does it: what all layouts of a search share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.workloads.training.layout import PRECISIONS, Batch, Precision
from busbw.workloads.training.models import Model

__all__ = ["TASKS", "Job", "Running"]

TASKS = ("pretrain", "sft", "lora")
"""lora: weights stay as they are, so their gradients are neither computed nor sent."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """How the software runs a step, whatever the model."""

    software: str = ""
    """Name of a release in the calibration; empty: none in particular."""
    fused: bool = True
    """Whether norms, residuals and activations are fused kernels."""
    flash: bool = True
    """Whether attention is one kernel that keeps no scores."""
    graphs: bool = False
    """Whether launches are replayed from CUDA graphs, so that the host does not hold the GPU up."""
    overlap: frozenset[str] = frozenset({"dp", "cp", "pp"})
    """Groups whose communication runs beside computing, of tp, cp, pp, dp, ep."""
    fused_experts: bool = False
    """Whether experts quantise and activate inside their grouped products."""
    kernel: str = "cudnn"
    """Of attention: cudnn (also FlashAttention-3), fa2 (FlashAttention-2 and PyTorch's own)."""
    balanced: bool = False
    """Whether layers are dealt to stages so that the output layer counts as what it takes; else all stages have as many."""
    dedup: bool = True
    """Whether dispatch sends a token once to a GPU."""
    loss_bytes: float = 6.0
    """A logit, in the loss: bf16 logits and their fp32 copy."""

    def running(self) -> dict[str, Any]:
        """These choices by name, for another that runs the same way."""
        return {one.name: getattr(self, one.name) for one in fields(Running)}


@dataclass(frozen=True)
class Job(Running):
    """A model, its batch and precision on a cluster, and how the software runs it."""

    model: Model
    cluster: Cluster
    global_batch: int
    seq_len: int
    precision: Precision = field(default_factory=lambda: PRECISIONS["bf16"])
    task: str = "pretrain"
    document_len: int = 0
    """Tokens that attend to each other where several documents share a sequence; 0: all of it."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task {self.task!r} is not known; {', '.join(TASKS)}.")
        Batch(self.global_batch, 1, self.seq_len)
        wrong = sorted(self.overlap - {"tp", "cp", "pp", "dp", "ep"})
        if wrong:
            raise InputError(f"overlap {wrong[0]!r} is not known; of tp, cp, pp, dp, ep.")

    @property
    def gpu(self) -> str:
        """The GPU's name in the catalogue."""
        return self.cluster.node.accelerator.name
