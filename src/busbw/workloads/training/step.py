"""Time of a training step in closed form, for many layouts at once: parts that hardware decides, and figures of a calibration on them.

`parts_of` sums the operators of a rank of the busiest stage (tables by shard, gathered by layout) and the collectives of a step; `times`
puts pipeline, overlap and overheads together. N layouts, P phases of `operators.PHASES`, C classes of CLASSES, G links of LINKS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.workloads.compute import operation_time
from busbw.workloads.operations import Attention, Experts, Gemm, MemoryBound, Operation
from busbw.workloads.training.columns import Columns, groups
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import CONTEXT, PRECISIONS, RECOMPUTE, SCHEDULES, SHARDING
from busbw.workloads.training.network import GroupTimes, members_inside
from busbw.workloads.training.operators import (
    PHASES,
    Communicate,
    Compute,
    Operator,
    Shard,
    layer_parts,
    output_operators,
    part_key,
    part_operators,
)

__all__ = ["BREAKDOWN", "CLASSES", "LINKS", "Figures", "StepParts", "StepTimes", "parts_of", "stack", "times"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CLASSES = ("gemm", "gemm16", "attention", "experts", "memory", "kernels", "launches")
"""Seconds of products in the recipe's type and in bf16, of attention, of routed experts, of work that HBM bounds; kernels: how many; launches: how many
of the host, outside graphs."""
LINKS = ("tp", "tp_weight", "cp", "ep", "etp", "cp_open")
"""Seconds of communication inside a layer, by group; tp_weight hides behind the gradient of the weights, cp behind attention, cp_open behind nothing."""
BREAKDOWN = ("compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "other")
"""Of a step's time; communication that computing does not hide."""
_P, _C, _G = len(PHASES), len(CLASSES), len(LINKS)
_TIMED = CLASSES.index("kernels")
"""Columns of CLASSES that are seconds."""
_ADAM_BYTES = 30.0
"""Read and written a parameter: gradient 4, master and moments 12 twice, weight 2. Source: arithmetic on fp32 Adam."""
_BF16 = ("bf16", "fp16")


@lru_cache(maxsize=1 << 17)
def _seconds(gpu: str, operation: Operation) -> float:
    return float(operation_time(gpu, operation).seconds)


def _class_of(operation: Operation, recipe: str) -> str:
    if isinstance(operation, MemoryBound):
        return "memory"
    if isinstance(operation, Attention):
        return "attention"
    if isinstance(operation, Experts):
        return "experts"
    return "gemm16" if operation.dtype in _BF16 or recipe in _BF16 else "gemm"


def _kernels(operation: Operation) -> int:
    if isinstance(operation, MemoryBound):
        return operation.kernels
    if isinstance(operation, Gemm):
        return operation.count
    return 2 if isinstance(operation, Experts) else 1


_PER_PRODUCT = {"bf16": 1, "fp16": 1, "fp8": 2, "fp8_block": 2, "mxfp8": 3, "nvfp4": 3}
"""Launches for an expert's product: itself, quantising its input, bringing scales into order. Source: Transformer Engine's grouped linear layer runs
experts one by one on several streams; the counts are a guess."""


def _launches(operation: Operation, fused_experts: bool) -> int:
    """What the host launches for an operation; experts are launched one by one unless they are fused."""
    if isinstance(operation, Experts) and not fused_experts:
        products = 4 if operation.backward else 2
        return products * operation.experts * _PER_PRODUCT.get(operation.dtype, 2)
    return _kernels(operation)


def _sums(
    operators: tuple[Operator, ...], gpu: str, recipe: str, links: GroupTimes, shard: Shard
) -> tuple[FloatArray, FloatArray]:
    """Of some operators: (P, C) computing, (P, G) communication."""
    computing, sending = np.zeros((_P, _C)), np.zeros((_P, _G))
    ranks = {"tp": shard.tp, "cp": shard.cp, "ep": shard.ep, "etp": shard.etp}
    stride = {"tp": 1, "cp": shard.tp, "ep": shard.etp, "etp": 1}
    for one in operators:
        phase = PHASES.index(one.phase)
        if isinstance(one, Compute):
            computing[phase, CLASSES.index(_class_of(one.operation, recipe))] += one.times * _seconds(
                gpu, one.operation
            )
            computing[phase, CLASSES.index("kernels")] += one.times * _kernels(one.operation)
            if one.scope not in shard.graphs:
                launched = one.times * _launches(one.operation, shard.fused_experts)
                computing[phase, CLASSES.index("launches")] += launched
            continue
        n = 2 if one.collective == "send_recv" else ranks[one.group]
        name = "tp_weight" if one.group == "tp" and one.behind == "weight" else one.group
        name = "cp_open" if name == "cp" and one.behind != "attention" else name
        took = 0.0
        if ranks[one.group] > 1:
            took = links.time(
                one.collective, n, stride[one.group], one.size_bytes * _once_a_domain(one, n, stride[one.group], links)
            )
        sending[phase, LINKS.index(name)] += took * one.times
    return computing, sending


def _once_a_domain(one: Communicate, ranks: int, stride: int, links: GroupTimes) -> float:
    """What of a token's copies crosses the network: one a domain that it is sent to, spread inside over NVLink; 1 in one domain."""
    inside = members_inside(ranks, stride, links.domain)
    domains = ranks // inside
    if not one.choices or domains == 1:
        return 1.0
    hit = [n * (1 - (1 - 1 / n) ** one.choices) for n in (ranks, domains)]
    return hit[1] / hit[0]


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """What a step is made of, before a calibration's figures: seconds on one GPU of the busiest stage."""

    computing: FloatArray  # (N, P, C), of a micro-batch
    sending: FloatArray  # (N, P, G), of a micro-batch
    hop: FloatArray  # (N,), of one message between stages
    gather: FloatArray  # (N,), of the weights, once; of FSDP of one pass over the layers
    scatter: FloatArray  # (N,), of the gradients
    bare: FloatArray  # (N,), share of gather and scatter that no computing is beside: the first and last bucket
    updated: FloatArray  # (N,), seconds of HBM of the optimizer
    micro_batches: FloatArray  # (N,)
    pp: FloatArray
    vpp: FloatArray
    schedule: IntArray
    sharding: IntArray
    layers: FloatArray  # (N,), of a stage
    tokens: float
    """Of a step, all GPUs."""
    gpus: FloatArray
    flops: float
    """Model operations of a step, causal half of attention."""

    def __len__(self) -> int:
        return len(self.pp)


class _Tables:
    """Sums of a layer and of the output layer by shard, kept for a job."""

    def __init__(self, job: Job, links: GroupTimes) -> None:
        self.job, self.links = job, links
        self.kept: dict[tuple[object, ...], tuple[FloatArray, FloatArray]] = {}
        self.kinds = dict(job.model.counts)
        for kind in job.model.mtp_kinds if job.model.mtp else ():
            self.kinds[kind] = self.kinds.get(kind, 0) + job.model.mtp

    def of(self, key: tuple[int, ...]) -> tuple[FloatArray, ...]:
        """All layers' (P, C) and (P, G), the output's (P, C) and (P, G)."""
        tp, cp, ep, etp, micro_batch, sp, context, recompute, sharded = key
        job = self.job
        shard = Shard(
            tp, cp, ep, etp, micro_batch, job.seq_len, bool(sp), CONTEXT[context], job.precision, RECOMPUTE[recompute], job.fused,
            job.flash, job.fused_experts, job.document_len, job.dispatcher, job.graphs, job.again,
            0.0 if sharded else 2 * job.precision.gradient_bytes,
        )  # fmt: skip
        computing, sending = np.zeros((_P, _C)), np.zeros((_P, _G))
        for kind, count in self.kinds.items():
            for part in layer_parts(kind):
                one, sent = self._part(part, shard)
                computing, sending = computing + one * count, sending + sent * count
        out_key = ("output", tp, cp, micro_batch, sp, sharded)
        if out_key not in self.kept:
            self.kept[out_key] = self._sums(output_operators(job.model, shard), shard)
        out, out_sent = self.kept[out_key]
        further = 1 + job.model.mtp
        return computing, sending, out * further, out_sent * further

    def _part(self, part: str, shard: Shard) -> tuple[FloatArray, FloatArray]:
        key = part_key(part, shard)
        if key not in self.kept:
            one, sent = self._sums(part_operators(self.job.model, part, shard), shard)
            wide = min(1.0, self.job.precision.wide_layers / self.job.model.layers)
            if wide:
                whole = replace(shard, precision=PRECISIONS["bf16"])
                other, _ = self._sums(part_operators(self.job.model, part, whole), whole)
                one = (1 - wide) * one + wide * other
            self.kept[key] = one, sent
        return self.kept[key]

    def _sums(self, operators: tuple[Operator, ...], shard: Shard) -> tuple[FloatArray, FloatArray]:
        found = _sums(operators, self.job.gpu, self.job.precision.gemm, self.links, shard)
        if self.job.task == "lora":
            for part in found:
                part[PHASES.index("weight")] = 0.0
        return found


def parts_of(job: Job, columns: Columns, links: GroupTimes | None = None) -> StepParts:
    """The parts of each layout."""
    links = links or GroupTimes(job.cluster)
    tables = _Tables(job, links)
    keys = (
        columns.tp,
        columns.cp,
        columns.ep,
        columns.etp,
        columns.micro_batch,
        columns.sp,
        columns.context,
        columns.recompute,
        (columns.sharding >= SHARDING.index("fsdp")) & (columns.pp == 1),
    )
    first, which = groups(keys)
    rows = [tables.of(tuple(int(column[place]) for column in keys)) for place in first.tolist()]
    return _parts(job, columns, links, [np.array([row[place] for row in rows]) for place in range(4)], which)


def _parts(job: Job, columns: Columns, links: GroupTimes, summed: Sequence[FloatArray], which: IntArray) -> StepParts:
    layers, sent, output, output_sent = summed  # by shard; `which` is each layout's
    model = job.model
    pp, vpp = columns.pp.astype(np.float64), columns.vpp.astype(np.float64)
    total = float(model.layers)
    # Stages of equal layers where they divide; else the busiest has a whole number of layers, or its share of layers and output if that is more.
    one_layer = layers[:, :, :_TIMED].sum(axis=(1, 2)) / total
    head = (output[:, :, :_TIMED].sum(axis=(1, 2)) / one_layer)[which]
    even = ((total % (pp * vpp)) == 0) & ((not job.balanced) | (pp == 1))
    dealt = np.maximum(np.ceil(total / pp - 1e-9), (total + head) / pp)
    share = np.where(even, 1.0 / pp, np.minimum(1.0, dealt / total))
    with_output = np.where(even | (pp == 1), 1.0, 0.0)

    def joined(whole: FloatArray, ends: FloatArray) -> FloatArray:
        own = np.take(ends, which, axis=0)
        own *= with_output[:, None, None]
        found = np.take(whole, which, axis=0)
        found *= share[:, None, None]
        found += own
        return found

    computing, sending = joined(layers, output), joined(sent, output_sent)
    tokens = columns.micro_batch * job.seq_len / columns.cp
    split = np.where(columns.sp == 1, tokens / columns.tp, tokens)
    hop = links.times(
        "send_recv", np.where(pp > 1, 2, 1).astype(np.int64), columns.pp_stride, split * model.hidden * 2.0
    )
    gather, scatter, bare, updated = _data_parallel(job, columns, links, share * total)
    micro_batches = np.maximum(1, job.global_batch // (columns.micro_batch * columns.dp)).astype(np.float64)
    step_tokens = float(job.global_batch) * job.seq_len
    return StepParts(
        computing, sending, hop, gather, scatter, bare, updated, micro_batches, pp, vpp, columns.schedule, columns.sharding,
        share * total, step_tokens, (columns.tp * columns.cp * columns.pp * columns.dp).astype(np.float64),
        model.flops_per_token(job.seq_len) * step_tokens,
    )  # fmt: skip


def _data_parallel(
    job: Job, columns: Columns, links: GroupTimes, stage_layers: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Seconds of gathering weights and scattering gradients, the share of them that nothing hides, and of the optimizer."""
    model, precision = job.model, job.precision
    counts = model.counts.items()
    own = sum(model.kind_parameters(kind)[0] * count for kind, count in counts) / model.layers
    routed = sum(model.kind_parameters(kind)[1] * count for kind, count in counts) / model.layers
    pp = columns.pp.astype(np.float64)
    # The first or the last stage has an embedding or an output layer, one stage both.
    ends = model.hidden * model.vocab * np.where((pp == 1) & (not model.tied), 2.0, 1.0)
    dense = (stage_layers * own + ends) / columns.tp
    expert = stage_layers * routed / (columns.etp * columns.ep)
    if job.task == "lora":
        dense, expert = dense * _LORA_SHARE, expert * _LORA_SHARE
    group, edp = columns.dp * columns.cp, columns.edp
    shards, stride = columns.shards, columns.dp_stride
    expert_stride = columns.etp * columns.ep

    def both(collective: str, size: float, dense_ranks: IntArray, expert_ranks: IntArray) -> FloatArray:
        return links.times(collective, dense_ranks, stride, dense * size) + links.times(
            collective, expert_ranks, expert_stride, expert * size
        )

    level = columns.sharding
    plain = level == SHARDING.index("zero0")
    fsdp = level >= SHARDING.index("fsdp")
    reduce = precision.reduce_bytes
    gather = np.where(plain, 0.0, both("all_gather", precision.gather_bytes, shards, edp))
    scatter = np.where(
        plain,
        both("all_reduce", reduce, group, edp),
        both("reduce_scatter", reduce, shards, edp),
    )
    copies = group // np.maximum(1, shards)
    hsdp = fsdp & (copies > 1)
    if hsdp.any():
        scatter = scatter + np.where(
            hsdp, links.times("all_reduce", copies, stride * shards, dense / shards * 4.0), 0.0
        )
    held = np.where(plain, dense + expert, dense / shards + expert / edp)
    rate = float(job.cluster.node.accelerator.memory_bytes_per_s.value or 1e12)
    bare = 1.0 / np.maximum(1.0, stage_layers)
    return gather, scatter, bare, held * _ADAM_BYTES / rate


_LORA_SHARE = 0.01


def stack(parts: list[StepParts]) -> StepParts:
    """Parts of several jobs, one after another; tokens and operations become columns."""
    joined: dict[str, Any] = {}
    for field in fields(StepParts):
        values = [getattr(one, field.name) for one in parts]
        if field.name in ("tokens", "flops"):
            joined[field.name] = np.concatenate(
                [np.full(len(one), value) for one, value in zip(parts, values, strict=True)]
            )
        else:
            joined[field.name] = np.concatenate(values)
    return StepParts(**joined)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """A calibration's figures for each layout of a table, (N,) each or one for all; what they mean stands in calibration.json."""

    gemm: FloatArray | float = 1.0
    gemm16: FloatArray | float = 1.0
    attention: FloatArray | float = 1.0
    experts: FloatArray | float = 1.0
    memory: FloatArray | float = 1.0
    gap_s: FloatArray | float = 1e-6
    host_s: FloatArray | float = 0.0
    links: FloatArray | float = 1.0
    tp_hidden: FloatArray | float = 0.0
    ep_hidden: FloatArray | float = 0.0
    dp_hidden: FloatArray | float = 1.0
    routed: FloatArray | float = 1.0
    software: FloatArray | float = 1.0
    step_s: FloatArray | float = 5e-3
    optimizer: FloatArray | float = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Seconds of a step, (N,), and what of it is what."""

    total_s: FloatArray
    parts_s: Mapping[str, FloatArray]
    """By BREAKDOWN."""
    forward_s: FloatArray
    backward_s: FloatArray
    """Of a micro-batch on one GPU, communication that is not hidden included."""


def times(parts: StepParts, figures: Figures) -> StepTimes:
    """The time of each layout's step."""
    weights = np.stack(
        [
            np.broadcast_to(np.asarray(getattr(figures, name), np.float64), len(parts))
            for name in ("gemm", "gemm16", "attention", "experts", "memory", "gap_s")
        ],
        axis=1,
    )
    phases = (
        np.einsum("npc,nc->np", parts.computing[:, :, : weights.shape[1]], weights)
        * np.asarray(figures.software)[..., None]
    )
    host = parts.computing[:, :, CLASSES.index("launches")] * np.asarray(figures.host_s)[..., None]
    forward, inputs, weight, again = phases.T
    forward_host, back_host = host[:, 0], host[:, 1:].sum(axis=1)
    sent = parts.sending * np.asarray(figures.links)[..., None, None]
    tp, tp_weight, cp, ep, etp, cp_open = (sent[:, :, place] for place in range(_G))
    attention = parts.computing[:, :, CLASSES.index("attention")] * np.asarray(figures.attention)[..., None]
    tp_open = 1.0 - np.asarray(figures.tp_hidden)
    ep_open = 1.0 - np.asarray(figures.ep_hidden)
    backward_phases = (1, 2, 3)

    def back(values: FloatArray) -> FloatArray:
        return np.asarray(values[:, backward_phases].sum(axis=1), np.float64)

    tp_f, tp_b = tp[:, 0] * tp_open, back(tp) * tp_open + np.maximum(0.0, back(tp_weight) - weight)
    cp_over = np.maximum(_RING_OPEN * cp, cp - attention) + cp_open
    cp_f, cp_b = cp_over[:, 0], back(cp_over)
    ep_f = ep[:, 0] * ep_open + etp[:, 0]
    ep_b = back(ep) * ep_open + back(etp)
    compute_f = _longer(forward, forward_host)
    compute_b = _longer(inputs + weight + again, back_host)
    f = compute_f + tp_f + cp_f + ep_f
    b = compute_b + tp_b + cp_b + ep_b
    m, pp = parts.micro_batches, parts.pp
    bubble = _bubble(parts, f, b, weight) * np.where(pp > 1, 1.0, 0.0)
    # A hop is hidden in the steady state of interleaved schedules; 1F1B waits for it twice a micro-batch; the ramp pays it p - 1 times each way.
    interleaved = parts.schedule == SCHEDULES.index("interleaved")
    hops = 2 * (pp - 1) + np.where(interleaved, 0.0, 2.0 * m)
    hop = np.where(pp > 1, hops * parts.hop * np.asarray(figures.links), 0.0)
    dp = _exposed(parts, figures, f, b, m)
    optimizer = parts.updated * np.asarray(figures.optimizer)
    other = np.broadcast_to(np.asarray(figures.step_s, np.float64), len(parts))
    shown = {
        "compute": m * (compute_f + compute_b),
        "bubble": bubble,
        "tp": m * (tp_f + tp_b),
        "cp": m * (cp_f + cp_b),
        "ep": m * (ep_f + ep_b),
        "pp": hop,
        "dp": dp,
        "optimizer": optimizer,
        "other": other,
    }
    return StepTimes(np.asarray(sum(shown.values()), np.float64), shown, f, b)


_RING_OPEN = 0.25
"""Share of a ring's messages that attention does not hide though it takes longer: each step waits for the slower of both neighbours. A guess."""
_SHARP = 3
"""Of the norm that joins host and GPU: a quarter more where they are alike, since each waits for the other in places. Chosen among 3, 4 and 8 by the error of sources left out."""


def _longer(one: FloatArray, other: FloatArray) -> FloatArray:
    """The longer of two, a little more where they are alike: neither waits for the other all the time."""
    return np.asarray((one**_SHARP + other**_SHARP) ** (1 / _SHARP), np.float64)


def _bubble(parts: StepParts, f: FloatArray, b: FloatArray, w: FloatArray) -> FloatArray:
    """Idle time of a stage a step. Source: arXiv:2104.04473 (1F1B, interleaved), arXiv:2401.10241 (zero bubble), DeepSeek-V3 (DualPipe)."""
    schedule, pp = parts.schedule, parts.pp
    found = (pp - 1) * (f + b) / parts.vpp
    zero = np.maximum(0.0, (pp - 1) * (f + b - 2 * w))
    dual = np.maximum(0.0, (pp / 2 - 1) * (f + 2 * b - 3 * w))
    found = np.where(schedule == SCHEDULES.index("zb"), zero, found)
    return np.where(schedule == SCHEDULES.index("dualpipe"), dual, found)


def _exposed(parts: StepParts, figures: Figures, f: FloatArray, b: FloatArray, m: FloatArray) -> FloatArray:
    """Of gathering weights and scattering gradients what computing does not hide."""
    hidden = np.asarray(figures.dp_hidden)
    links = np.asarray(figures.links)
    gather, scatter, bare = parts.gather * links, parts.scatter * links, parts.bare
    fsdp = parts.sharding >= SHARDING.index("fsdp")

    def over(sent: FloatArray, beside: FloatArray) -> FloatArray:
        return np.asarray(bare * sent + np.maximum(0.0, (1 - bare) * sent - beside * hidden), np.float64)

    once = over(gather, f) + over(scatter, b)
    # Without a pipeline FSDP gathers twice and scatters once a micro-batch; a pipeline keeps gathered weights for all of them, and does both once a step.
    each = over(gather, f) + over(gather + scatter, b)
    zero2 = parts.sharding == SHARDING.index("zero2")
    found = np.where(zero2, over(gather, f) + m * over(scatter, b), once)
    return np.where(fsdp & (parts.pp == 1), m * each, found)
