"""Memory of one GPU, part by part, of the pipeline stage that needs most: what is held, counted tensor by tensor. N layouts.

Source of the counts: arXiv:2205.05198 (34 s b h + 5 a s^2 b bytes a layer, which these give for its model), Megatron-Core's
theoretical memory, ZeRO (arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from busbw.hardware import Accelerator
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import RECOMPUTE, SCHEDULES, SHARDING
from busbw.workloads.training.models import Kind, Model

__all__ = [
    "CONTEXT_BYTES",
    "PARTS",
    "VERDICTS",
    "Memory",
    "layer_activation_bytes",
    "memory",
    "recomputed_bytes",
    "usable_bytes",
    "verdicts",
]

FloatArray = npt.NDArray[np.float64]

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
CONTEXT_BYTES = 1.5 * 2**30
"""CUDA context, libraries and NCCL's buffers. Source: aiconfigurator books 3.5 GiB with fragmentation; how it divides is a guess."""
_FRAGMENTATION = 0.05
"""What an allocator reserves beyond what is in use, while memory is not short. A guess."""
_USABLE = 0.995
"""Of a GPU's nominal memory, in GiB, that its driver offers: A100 80 GB 81,920 MiB, H100 80 GB 81,559 MiB, H200 143,771 MiB."""
_DRIVER_MIB = {"B300-SXM": 275_040, "GB300": 284_208}
"""Where that rule does not hold. Source: aiconfigurator-core 0.12.0, systems/*.yaml."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes by part, (N,) each, and what a GPU has."""

    parts: Mapping[str, FloatArray]
    capacity_bytes: float

    @property
    def total(self) -> FloatArray:
        """Of all parts: what must be there."""
        return np.asarray(sum(self.parts.values()), np.float64)

    @property
    def reserved(self) -> FloatArray:
        """What a framework's allocator reports at its peak: without the context, with what it keeps and does not use."""
        return (self.total - CONTEXT_BYTES) * (1 + _FRAGMENTATION)

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """Whether a GPU has as much."""
        return self.total <= self.capacity_bytes

    @property
    def fits_with_room(self) -> npt.NDArray[np.bool_]:
        """Whether it also has what an allocator keeps and does not use: what a layout that runs for long needs."""
        return self.reserved + CONTEXT_BYTES <= self.capacity_bytes


def layer_activation_bytes(model: Model, kind: Kind, job: Job, columns: Columns) -> FloatArray:
    """Kept of one layer and micro-batch for the backward pass, nothing recomputed, (N,).

    Tensors along the hidden dimension are split by tp only with sequence parallel.
    """
    t = columns.tp.astype(np.float64)
    tokens = columns.micro_batch * job.seq_len / columns.cp
    split = np.where(columns.sp == 1, tokens / t, tokens)
    h, saved = model.hidden, job.precision.saved_bytes
    kept = np.zeros(len(columns))
    if kind.mixer in ("full", "window"):
        heads, kv = model.heads / t, np.maximum(model.kv_heads / t, 1.0)
        kept += split * h * (2 + saved)  # input of the norm, input of the projections
        kept += tokens * 2 * (heads * model.query_dim + kv * (model.query_dim + model.value_dim))  # q, k, v
        if model.is_mla:
            latent = model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim
            kept += split * 2 * latent
        kept += tokens * heads * model.value_dim * saved + tokens * heads * 4  # output of attention, and its log-sums
        kept += split * h * (0 if job.flash else 1)  # mask of the dropout
        if not job.flash:
            kept += 5.0 * heads * columns.micro_batch * (job.seq_len / columns.cp) * job.seq_len
    elif kind.mixer == "mamba":
        inner = model.mamba_heads * model.mamba_head_dim / t
        projected = 2 * inner + 2 * model.mamba_groups * model.mamba_state / t + model.mamba_heads / t
        kept += split * h * (2 + saved) + tokens * (2 * projected + 2 * inner + saved * inner)
    if kind.ffn == "dense":
        kept += split * h * (2 + saved + (0 if job.flash else 1))
        kept += _ffn_bytes(tokens, model.ffn / t, model.gated, saved)
    elif kind.ffn == "moe":
        kept += split * h * (2 + saved) + split * model.experts * 4
        kept += _ffn_bytes(tokens, model.shared_ffn / t, model.gated, saved)
        rows = split * model.top_k
        kept += rows * columns.etp * model.expert_hidden * (saved + 2)  # permuted tokens, and what they become
        kept += _ffn_bytes(rows * columns.etp, model.moe_ffn / columns.etp, model.gated, saved)
    return kept


def _ffn_bytes(tokens: FloatArray, width: FloatArray | float, gated: bool, saved: float) -> FloatArray:
    return np.asarray(tokens * width * (2 * (2 if gated else 1) + saved), np.float64)


def recomputed_bytes(model: Model, kind: Kind, job: Job, columns: Columns) -> FloatArray:
    """What of `layer_activation_bytes` selective recompute with the job's modules does not keep, (N,)."""
    t = columns.tp.astype(np.float64)
    tokens = columns.micro_batch * job.seq_len / columns.cp
    split = np.where(columns.sp == 1, tokens / t, tokens)
    rows = np.asarray(split * model.top_k * columns.etp, np.float64)
    saved, mixes = job.precision.saved_bytes, kind.mixer in ("full", "window")
    found = np.zeros(len(columns))
    if "core_attn" in job.again and mixes and not job.flash:
        found += 5.0 * model.heads / t * columns.micro_batch * (job.seq_len / columns.cp) * job.seq_len
    if "mla_up_proj" in job.again and mixes and model.is_mla:
        found += (
            tokens * 2 * (model.heads / t * model.query_dim + model.kv_heads / t * (model.query_dim + model.value_dim))
        )
    if "layernorm" in job.again:
        found += split * model.hidden * saved * ((kind.mixer != "none") + (kind.ffn != "none"))
    if "mlp" in job.again and kind.ffn == "dense":
        found += _ffn_bytes(np.asarray(tokens, np.float64), model.ffn / t, model.gated, saved)
    if kind.ffn == "moe":
        width = model.moe_ffn / columns.etp
        if "moe" in job.again:
            found += rows * model.expert_hidden * (saved + 2) + _ffn_bytes(rows, width, model.gated, saved)
        elif "moe_act" in job.again:
            found += rows * width * saved
    return found


VERDICTS = ("fits", "needs recompute", "does not fit")


def verdicts(job: Job, columns: Columns) -> list[str]:
    """For each layout: whether it fits as it is, only where more is computed again or offloaded, or not even so."""
    full = replace(columns, recompute=np.full(len(columns), RECOMPUTE.index("full")))
    fits, might = memory(job, columns).fits, memory(job, full).fits
    return [VERDICTS[0] if fit else VERDICTS[1] if may else VERDICTS[2] for fit, may in zip(fits, might, strict=True)]


def memory(job: Job, columns: Columns) -> Memory:
    """Of the stage that needs most, each layout."""
    model, precision = job.model, job.precision
    pp, vpp = columns.pp.astype(np.float64), columns.vpp.astype(np.float64)
    t = columns.tp.astype(np.float64)
    per_stage = np.ceil(model.layers / pp)
    own = sum(model.kind_parameters(kind)[0] * count for kind, count in model.counts.items()) / model.layers
    routed = sum(model.kind_parameters(kind)[1] * count for kind, count in model.counts.items()) / model.layers
    embedding = model.hidden * model.vocab * np.where((pp == 1) & (not model.tied), 2.0, 1.0)
    dense = (per_stage * own + embedding + (model.mtp_parameters if model.mtp and not model.is_moe else 0)) / t
    expert = per_stage * routed / (columns.etp * columns.ep)
    level = columns.sharding
    shards = columns.shards.astype(np.float64)
    edp = columns.edp.astype(np.float64)
    whole_weights = level < SHARDING.index("fsdp")
    trained = 1.0 if job.task != "lora" else _LORA
    # Weights of FSDP: a shard, and whole layers while they are used; all of a stage where a pipeline keeps them.
    layer = (own / t, routed / (columns.etp * columns.ep))
    gathered = np.where(pp > 1, (dense + expert), 2 * (layer[0] + layer[1]) + embedding / t) * precision.weight_bytes
    weights = np.where(whole_weights, (dense + expert) * precision.weight_bytes, gathered)
    gradients_whole = (dense + expert) * precision.gradient_bytes * trained
    gradients = np.where(
        level <= SHARDING.index("zero1"), gradients_whole, _shared(dense, expert, shards, edp) * 4.0 * trained
    )
    # A pipeline over FSDP sums gradients of its micro-batches whole, in the type they are reduced in, before they are scattered.
    gradients = np.where(
        (~whole_weights) & (pp > 1), gradients + (dense + expert) * precision.reduce_bytes * trained, gradients
    )
    spread = np.where(level == SHARDING.index("zero0"), 1.0, 0.0)
    optimizer = (
        (spread * (dense + expert) + (1 - spread) * _shared(dense, expert, shards, edp))
        * precision.state_bytes
        * trained
    )
    activations, logits = _activations(job, columns, per_stage, vpp)
    # Beside a block with sequence parallel: its input gathered, the gradient of that, and sums before they are scattered.
    wide = (1 if "tp" in job.overlap else 3) * columns.micro_batch * job.seq_len / columns.cp * model.hidden * 2.0
    buffers = CONTEXT_BYTES + np.where(columns.tp > 1, wide, 0.0)
    parts = dict(zip(PARTS, (weights, gradients, optimizer, activations, logits, buffers), strict=True))
    return Memory(parts, usable_bytes(job.cluster.node.accelerator))


def usable_bytes(accelerator: Accelerator) -> float:
    """What a GPU's driver offers: vendors' GB are GiB here. What a user set is taken as it is.

    >>> from busbw.hardware import find_accelerator
    >>> round(usable_bytes(find_accelerator("H100-SXM-80GB")) / 2**20, -2)
    81500.0
    """
    figure = accelerator.memory_bytes
    nominal = float(figure.value or 0.0)
    if figure.source.startswith("set by the user"):
        return nominal
    if accelerator.name in _DRIVER_MIB:
        return _DRIVER_MIB[accelerator.name] * 2.0**20
    return nominal / 1e9 * 2**30 * _USABLE


_LORA = 0.01
"""Share of weights that adapters add and train. A guess: rank 32 on the projections."""


def _shared(dense: FloatArray, expert: FloatArray, shards: FloatArray, edp: FloatArray) -> FloatArray:
    return np.asarray(dense / shards + expert / edp, np.float64)


def _activations(job: Job, columns: Columns, per_stage: FloatArray, vpp: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Kept of all micro-batches under way, and what the loss needs beside them."""
    model = job.model
    t, pp = columns.tp.astype(np.float64), columns.pp.astype(np.float64)
    tokens = columns.micro_batch * job.seq_len / columns.cp
    split = np.where(columns.sp == 1, tokens / t, tokens)
    each = (
        sum(
            (layer_activation_bytes(model, kind, job, columns) * count for kind, count in model.counts.items()),
            np.zeros(len(columns)),
        )
        / model.layers
    )
    full = columns.recompute == RECOMPUTE.index("full")
    selective = columns.recompute == RECOMPUTE.index("selective")
    again = (
        sum(
            (recomputed_bytes(model, kind, job, columns) * count for kind, count in model.counts.items()),
            np.zeros(len(columns)),
        )
        / model.layers
    )
    each_kept = np.where(
        full,
        2.0 * split * model.hidden,
        np.where(selective, each - again, np.where(columns.recompute == RECOMPUTE.index("ops"), each / 2, each)),
    )
    micro_batches = np.maximum(1, job.global_batch // (columns.micro_batch * columns.dp))
    under_way = np.minimum(micro_batches, pp)
    # Interleaved: about p (1 + (p - 1) / (p v)) micro-batches of a stage. Source: arXiv:2104.04473, section 2.2.
    interleaved = columns.schedule == SCHEDULES.index("interleaved")
    under_way = np.where(interleaved, np.minimum(micro_batches, pp * (1 + (pp - 1) / (pp * vpp))), under_way)
    under_way = np.where(columns.schedule == SCHEDULES.index("gpipe"), micro_batches, under_way)
    under_way = np.where(columns.schedule == SCHEDULES.index("dualpipe"), np.minimum(micro_batches, pp + 1), under_way)
    working = np.where(full, each, 0.0)  # the layer whose activations are being computed again
    kept = each_kept * per_stage * under_way + working
    kept = kept + 2.0 * split * model.hidden * under_way  # output of the embedding
    # Loss in fp32 beside the logits in bf16: probabilities and gradient; compiled or fused losses keep half. On the last stage.
    per_token = model.vocab / t
    logits = tokens * per_token * job.loss_bytes
    return np.asarray(kept, np.float64), np.asarray(logits, np.float64)
