"""Job: what is trained, on what, and how the software does it: what all layouts of a search share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.workloads.training.layout import PRECISIONS, Batch, Precision
from busbw.workloads.training.models import Model

__all__ = ["DISPATCHERS", "MODULES", "SCOPES", "TASKS", "Job", "Running"]

TASKS = ("pretrain", "sft", "lora")
"""lora: weights stay as they are, so their gradients are neither computed nor sent."""
SCOPES = ("attn", "mamba", "mlp", "router", "experts")
"""Parts of a layer whose launches a CUDA graph may replay."""
MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe")
"""What of a layer selective recompute may compute again. Source: Megatron-Core, --recompute-modules."""
DISPATCHERS = ("alltoall", "deepep", "hybridep")
"""How tokens come to their experts: every copy by NCCL, sorted before and after; once a GPU by DeepEP; once a GPU, sorted on the way, by HybridEP."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """How the software runs a step, whatever the model."""

    software: str = ""
    """Name of a release in the calibration; empty: none in particular."""
    fused: bool = True
    """Whether norms, residuals and activations are fused kernels."""
    flash: bool = True
    """Whether attention is one kernel that keeps no scores."""
    graphs: frozenset[str] = frozenset()
    """Parts of a layer (SCOPES) whose launches are replayed from CUDA graphs, so that the host does not hold the GPU up there."""
    overlap: frozenset[str] = frozenset({"dp", "cp", "pp"})
    """Groups whose communication runs beside computing, of tp, cp, pp, dp, ep."""
    fused_experts: bool = False
    """Whether experts quantise and activate inside their grouped products."""
    kernel: str = "cudnn"
    """Of attention: cudnn (also FlashAttention-3), fa2 (FlashAttention-2 and PyTorch's own)."""
    balanced: bool = False
    """Whether layers are dealt to stages so that the output layer counts as what it takes; else all stages have as many."""
    dispatcher: str = "deepep"
    """Of DISPATCHERS."""
    again: frozenset[str] = frozenset({"core_attn"})
    """Of MODULES: what selective recompute computes again."""
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
        for name, known in (("graphs", SCOPES), ("again", MODULES), ("dispatcher", DISPATCHERS)):
            given = getattr(self, name)
            for word in sorted({given} if isinstance(given, str) else given):
                if word not in known:
                    raise InputError(f"{name} {word!r} is not known; of {', '.join(known)}.")

    @property
    def gpu(self) -> str:
        """The GPU's name in the catalogue."""
        return self.cluster.node.accelerator.name
