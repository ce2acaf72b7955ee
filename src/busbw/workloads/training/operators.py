"""What one rank computes and sends for a layer, the embedding and the output layer, and a micro-batch: the operators of a step.

Source of the collectives and their sizes: Megatron-Core's parallel layers, as its documents describe them; sizes are of the full tensor of the group.
Legend: T tokens of this rank and micro-batch before sequence parallel splits them, b sequences, s tokens of a sequence, h hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from busbw.workloads.operations import Attention, Experts, Gemm, MemoryBound, Operation
from busbw.workloads.training.layout import Precision
from busbw.workloads.training.models import Kind, Model

__all__ = [
    "PHASES",
    "Communicate",
    "Compute",
    "Operator",
    "Shard",
    "layer_operators",
    "layer_parts",
    "output_operators",
    "part_key",
    "part_operators",
]

PHASES = ("forward", "input", "weight", "again")
"""forward; backward to the inputs and to the weights; forward computed again in the backward pass."""
_E = 2.0
"""Bytes of an activation: bf16."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What of a layer one rank has: what the operators of a layer depend on beside the model."""

    tp: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    seq_len: int
    sp: bool
    context: str
    precision: Precision
    recompute: str
    fused: bool
    """Whether norms, residuals and activations are fused kernels; without: a kernel an operation."""
    flash: bool
    """Whether attention is one kernel; without: scores in memory."""
    fused_experts: bool
    """Whether experts quantise and activate inside their products."""
    document_len: int
    """Tokens that attend to each other; 0: all of a sequence."""
    dispatcher: str
    """How tokens come to their experts: a word of `job.DISPATCHERS`."""
    graphs: frozenset[str]
    """Parts of a layer whose launches are replayed from graphs: words of `job.SCOPES`."""
    again: frozenset[str]
    """What selective recompute computes again: words of `job.MODULES`."""

    added_bytes: float
    """Read and written a weight when its gradient is added to; 0: gradients are written anew each micro-batch."""

    @property
    def dedup(self) -> bool:
        """Whether a token goes to a GPU once, whatever number of its experts are there."""
        return self.dispatcher != "alltoall"

    @property
    def tokens(self) -> int:
        """Of this rank and micro-batch, before sequence parallel."""
        return self.micro_batch * self.seq_len // self.cp

    @property
    def split_tokens(self) -> float:
        """Where sequence parallel splits them."""
        return self.tokens / self.tp if self.sp else float(self.tokens)


@dataclass(frozen=True, slots=True)
class Compute:
    """An operation of a phase."""

    name: str
    phase: str
    operation: Operation
    times: int = 1
    scope: str = ""
    """The part of a layer it belongs to, of `job.SCOPES`."""


@dataclass(frozen=True, slots=True)
class Communicate:
    """A collective of a group in a phase."""

    name: str
    phase: str
    collective: str
    group: str
    size_bytes: float
    behind: str = ""
    """What of the same layer hides it: attention, weight (its gradient); empty: nothing."""
    times: int = 1
    choices: int = 0
    """Of dispatch and combine that send a token once to a GPU or domain: experts that it chooses."""


Operator = Compute | Communicate


def layer_parts(kind: Kind) -> tuple[str, ...]:
    """The parts of a layer that `part_operators` knows."""
    mixer = (kind.mixer,) if kind.mixer != "none" else ()
    return mixer + {"dense": ("dense",), "moe": ("router", "experts")}.get(kind.ffn, ())


def part_key(part: str, shard: Shard) -> tuple[object, ...]:
    """What of a shard the operators of a part depend on, beside what all shards of a job share: parts of equal keys are equal."""
    if part == "experts":
        return (part, shard.split_tokens, shard.ep, shard.etp, shard.recompute)
    own = (part, shard.tp, shard.cp, shard.micro_batch, shard.sp, shard.recompute, shard.added_bytes)
    return (*own, shard.context) if part in ("full", "window") else own


def part_operators(model: Model, part: str, shard: Shard) -> tuple[Operator, ...]:
    """All operators of one part of a layer and micro-batch: a mixer, a dense FFN, the router with shared experts, or routed experts."""
    if part in ("full", "window"):
        found = list(_in("attn", _attention(model, part, shard)))
    else:
        scope, made = {
            "mamba": ("mamba", _mamba), "dense": ("mlp", _dense), "router": ("router", _router), "experts": ("experts", _experts)
        }[part]  # fmt: skip
        found = list(_in(scope, made(model, shard)))
    return (*found, *(_again(one) for one in _computed_again(found, shard)))


def layer_operators(model: Model, kind: Kind, shard: Shard) -> tuple[Operator, ...]:
    """All operators of one layer and micro-batch, part by part."""
    return tuple(one for part in layer_parts(kind) for one in part_operators(model, part, shard))


def _in(scope: str, operators: Iterator[Operator]) -> Iterator[Operator]:
    for one in operators:
        yield replace(one, scope=scope) if isinstance(one, Compute) else one


_MODULES = {
    "core_attn": frozenset({"attention", "scores", "softmax", "values"}),
    "mla_up_proj": frozenset({"q up", "kv up", "rotate"}),
    "layernorm": frozenset({"attention norm", "mamba norm", "ffn norm", "experts norm"}),
    "moe_act": frozenset({"expert activation"}),
    "mlp": frozenset({"ffn up", "ffn activation", "ffn down"}),
}
"""Names of the operators that a module of selective recompute computes again; moe is its whole scope."""


def _computed_again(found: list[Operator], shard: Shard) -> list[Operator]:
    """Forward operators that the backward pass repeats."""
    forward = [one for one in found if one.phase == "forward"]
    if shard.recompute == "full":
        return forward
    if shard.recompute == "ops":
        computed = [one for one in forward if isinstance(one, Compute)]
        products = [one for one in computed if isinstance(one.operation, Gemm)]
        cheap = [one for one in computed if isinstance(one.operation, MemoryBound)]
        gathered = [one for one in forward if isinstance(one, Communicate) and one.collective == "all_gather"]
        return [*products[::2], *cheap, *gathered]
    if shard.recompute == "selective":
        names = frozenset().union(*(_MODULES.get(module, frozenset()) for module in shard.again))
        if shard.flash and shard.again == {"core_attn"}:
            return []  # the fused kernel keeps no scores, and computes them again anyway
        whole = ("router", "experts") if "moe" in shard.again else ()
        moved = ("dispatch", "combine") if "moe" in shard.again else ()
        return [
            one
            for one in forward
            if one.name in names or one.name in moved or (isinstance(one, Compute) and one.scope in whole)
        ]
    return []


def output_operators(model: Model, shard: Shard) -> tuple[Operator, ...]:
    """Of the output layer and the loss."""
    t, tokens = shard.tp, shard.tokens
    logits = tokens * model.vocab / t
    found: list[Operator] = [_norm("final norm", "forward", shard, model.hidden)]
    if t > 1:
        found.append(_tp("gather", shard, model, "forward", first=True))
    found += _gemm("output", tokens, model.vocab // t, model.hidden, dtype="bf16", shard=shard)
    # Cross-entropy in fp32: logits cast, maximum, exponentials and sum, target; the gradient written over them. A guess of passes.
    found.append(Compute("loss", "forward", MemoryBound(logits * (2 + 4 + 4 + 4), 8)))
    found.append(Compute("loss", "input", MemoryBound(logits * (4 + 4 + 2), 4)))
    if t > 1:
        found += [
            Communicate("loss sums", "forward", "all_reduce", "tp", tokens * 4.0, times=3),
            _tp("scatter", shard, model, "input", first=False),
        ]
    return tuple(found)


def _again(one: Operator) -> Operator:
    return replace(one, phase="again")


def _gemm(name: str, m: float, n: int, k: int, *, dtype: str, shard: Shard) -> Iterator[Compute]:
    """A product forward, and both of its backward pass; the second adds to the gradient."""
    rows, columns = max(1, round(m)), max(1, n)
    yield Compute(name, "forward", Gemm(rows, columns, k, dtype))
    yield Compute(name, "input", Gemm(rows, k, columns, dtype))
    yield Compute(name, "weight", Gemm(columns, k, rows, dtype, result_bytes=shard.added_bytes))


def _quantise(shard: Shard, inputs: float, outputs: float) -> Iterator[Compute]:
    """Of what a layer's products take in, in fp8 or fp4: bf16 read, both orders written; and of the gradients."""
    if shard.precision.gemm in ("bf16", "fp16"):
        return
    kernels = 2
    yield Compute("quantise", "forward", MemoryBound(inputs * (2 + 1 + 1), kernels))
    yield Compute("quantise", "input", MemoryBound(outputs * (2 + 1 + 1), kernels))


def _norm(name: str, phase: str, shard: Shard, h: int) -> Compute:
    """Norm and residual: read and written; unfused: cast to fp32 and back, a kernel each."""
    passes = 2 if shard.fused else 4
    return Compute(name, phase, MemoryBound(shard.split_tokens * h * _E * passes, 1 if shard.fused else 4))


def _pre(name: str, shard: Shard, h: int) -> Iterator[Compute]:
    """Norm before a block and the residual after it: forward 5 tensors pass, backward 8."""
    tokens, much = shard.split_tokens, 1.0 if shard.fused else 1.6
    yield Compute(f"{name} norm", "forward", MemoryBound(tokens * h * _E * 5 * much, 2 if shard.fused else 5))
    yield Compute(f"{name} norm", "input", MemoryBound(tokens * h * _E * 8 * much, 3 if shard.fused else 7))


def _tp(what: str, shard: Shard, model: Model, phase: str, first: bool) -> Communicate:
    """Before a block its input is gathered, after it partial sums are scattered; without sequence parallel one all_reduce after it."""
    size = shard.tokens * model.hidden * _E
    if not shard.sp:
        return Communicate(f"{what} {phase}", phase, "all_reduce", "tp", 0.0 if first else size)
    collective = "all_gather" if what == "gather" else "reduce_scatter"
    return Communicate(f"{what} {phase}", phase, collective, "tp", size)


def _tensor_parallel(shard: Shard, model: Model) -> Iterator[Communicate]:
    """Of one block: forward gather and scatter, backward the two swapped and the input gathered again for the weights."""
    if shard.tp == 1:
        return
    size = shard.tokens * model.hidden * _E
    if not shard.sp:
        yield Communicate("sum", "forward", "all_reduce", "tp", size)
        yield Communicate("sum", "input", "all_reduce", "tp", size)
        return
    yield Communicate("gather", "forward", "all_gather", "tp", size)
    yield Communicate("scatter", "forward", "reduce_scatter", "tp", size)
    yield Communicate("gather", "input", "all_gather", "tp", size)
    yield Communicate("scatter", "input", "reduce_scatter", "tp", size)
    yield Communicate("gather again", "input", "all_gather", "tp", size, "weight")


def _attention(model: Model, mixer: str, shard: Shard) -> Iterator[Operator]:
    t, c, b, s, tokens = shard.tp, shard.cp, shard.micro_batch, shard.seq_len, shard.tokens
    h, dtype = model.hidden, shard.precision.attention or shard.precision.gemm
    heads = max(1, model.heads // t)
    kv_heads = max(1, model.kv_heads // t)
    query, value = model.query_dim, model.value_dim
    yield from _pre("attention", shard, h)
    if model.is_mla:
        down = model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim
        yield from _gemm(
            "q and kv down", tokens if not shard.sp else shard.split_tokens, down, h, dtype=dtype, shard=shard
        )
        if model.q_lora_rank:
            yield from _gemm("q up", tokens, heads * query, model.q_lora_rank, dtype=dtype, shard=shard)
        else:
            yield from _gemm("q", tokens, heads * query, h, dtype=dtype, shard=shard)
        yield from _gemm(
            "kv up", tokens, heads * (model.qk_nope_head_dim + value), model.kv_lora_rank, dtype=dtype, shard=shard
        )
        taken_in = tokens * float(down + h)
        made = heads * (query * 2 + value)
    else:
        made = (heads + 2 * kv_heads) * query
        yield from _gemm("qkv", tokens, made, h, dtype=dtype, shard=shard)
        taken_in = float(tokens * h)
    rotated = (heads + kv_heads) * query if not model.is_mla else heads * 2 * query
    much = 2 if shard.fused else 6
    yield Compute("rotate", "forward", MemoryBound(tokens * rotated * _E * much, 2 if shard.fused else 8))
    yield Compute("rotate", "input", MemoryBound(tokens * rotated * _E * much, 2 if shard.fused else 8))
    window = model.window if mixer == "window" else 0
    if shard.flash:
        q_len, kv_len, causal, split, steps = s, s, True, 1, 1
        if c > 1 and shard.context == "ulysses":
            split = c
        elif c > 1:
            # Ranks take blocks i and 2c - 1 - i of the sequence, so each sees half of the pairs of its queries: in c kernels, as keys come.
            q_len, kv_len, causal = s // c, max(1, min(window, s) if window else s // 2), False
            steps = c if shard.context == "ring" and not window else 1
        if 0 < shard.document_len < q_len:
            b, q_len, kv_len, causal, steps = (
                b * (q_len // shard.document_len),
                shard.document_len,
                shard.document_len,
                True,
                1,
            )
        shape = (
            b,
            q_len,
            max(1, kv_len // steps),
            max(1, heads // split),
            max(1, kv_heads // split),
            query,
            value,
            causal,
            window if causal else 0,
        )
        yield Compute("attention", "forward", Attention(*shape), steps)
        yield Compute("attention", "input", Attention(*shape, backward=True), steps)
        if steps > 1:  # each step's output is scaled into the sum, in fp32
            merged = tokens * heads * value * 4.0 * 3 * (steps - 1)
            yield Compute("attention sums", "forward", MemoryBound(merged, 2 * (steps - 1)))
            yield Compute("attention sums", "input", MemoryBound(merged, 2 * (steps - 1)))
    else:
        yield from _unfused_scores(b * heads, s // c, s, query, value)
    if c > 1:
        yield from _context(shard, kv_heads, query, value, heads)
    yield from _gemm("attention out", tokens, h, heads * value, dtype=dtype, shard=shard)
    if not shard.precision.attention:
        yield from _quantise(shard, taken_in + tokens * float(heads * value), tokens * float(made + h))
    yield from _tensor_parallel(shard, model)


def _unfused_scores(batch_heads: int, q_len: int, s: int, query: int, value: int) -> Iterator[Compute]:
    """Scores in memory, as before flash attention: two batched products, written as one of equal work each, and mask, softmax and dropout over all pairs."""
    rows, columns, pairs = batch_heads * q_len, batch_heads * s, float(batch_heads) * q_len * s
    yield Compute("scores", "forward", Gemm(rows, s, query, "fp16"))
    yield Compute("softmax", "forward", MemoryBound(pairs * 9, 3))
    yield Compute("values", "forward", Gemm(rows, value, s, "fp16"))
    for name, shape in (
        ("values", (rows, s, value)), ("values", (columns, value, q_len)), ("scores", (rows, query, s)), ("scores", (columns, query, q_len)),
    ):  # fmt: skip
        yield Compute(name, "input", Gemm(*shape, "fp16"))
    yield Compute("softmax", "input", MemoryBound(pairs * 11, 3))


def _context(shard: Shard, kv_heads: int, query: int, value: int, heads: int) -> Iterator[Communicate]:
    c, b, s = shard.cp, shard.micro_batch, shard.seq_len
    kv = b * s * kv_heads * (query + value) * _E  # keys and values of the whole sequence
    if shard.context == "gather":
        yield Communicate("keys and values", "forward", "all_gather", "cp", kv)
        yield Communicate("keys and values", "input", "all_gather", "cp", kv)
        yield Communicate("their gradients", "input", "reduce_scatter", "cp", kv)
    elif shard.context == "ulysses":
        local = b * s / c
        for phase in ("forward", "input"):
            yield Communicate(
                "to heads", phase, "all_to_all", "cp", local * (heads * query + kv_heads * (query + value)) * _E
            )
            yield Communicate("from heads", phase, "all_to_all", "cp", local * heads * value * _E)
    else:
        yield Communicate("keys and values", "forward", "send_recv", "cp", kv / c, "attention", c - 1)
        yield Communicate("keys and values", "input", "send_recv", "cp", 2 * kv / c, "attention", c - 1)


def _mamba(model: Model, shard: Shard) -> Iterator[Operator]:
    t, tokens, h, dtype = shard.tp, shard.tokens, model.hidden, shard.precision.gemm
    inner = model.mamba_heads * model.mamba_head_dim // t
    states = 2 * model.mamba_groups * model.mamba_state // max(1, min(t, model.mamba_groups))
    heads = model.mamba_heads // t
    projected = 2 * inner + states + heads
    yield from _pre("mamba", shard, h)
    yield from _gemm("mamba in", tokens, projected, h, dtype=dtype, shard=shard)
    # The chunked scan: products of a chunk of 128 tokens, batched over heads and written as one product of equal work, and the passes over x, z, B, C and dt,
    # decays and states in fp32, all computed again backward. A guess of passes.
    chunk = 128
    for phase, much in (("forward", 1), ("input", 2)):
        rows = max(1, tokens * heads) * much
        yield Compute("scan", phase, Gemm(rows, model.mamba_state, chunk, "bf16"))
        yield Compute("scan", phase, Gemm(rows, model.mamba_head_dim, chunk, "bf16"))
        yield Compute("scan", phase, Gemm(2 * rows, model.mamba_head_dim, model.mamba_state, "bf16"))
        yield Compute(
            "scan passes", phase, MemoryBound(tokens * projected * _E * (10 if phase == "forward" else 30), 8 * much)
        )
    if shard.cp > 1:
        # Heads instead of tokens for the scan: what is projected goes to the ranks of its heads, and comes back. Source: Megatron-Core, ssm/mamba_context_parallel.py.
        for phase in ("forward", "input"):
            yield Communicate("to heads", phase, "all_to_all", "cp", tokens * projected * _E)
            yield Communicate("from heads", phase, "all_to_all", "cp", tokens * inner * _E)
    yield from _gemm("mamba out", tokens, h, inner, dtype=dtype, shard=shard)
    yield from _quantise(shard, tokens * float(h + inner), tokens * float(projected + h))
    yield from _tensor_parallel(shard, model)


def _activation(tokens: float, width: float, gated: bool, fused: bool, name: str = "activation") -> Iterator[Compute]:
    """Gated: two halves read, one written; backward three read, two written. Else one read, one written."""
    forward, backward = (3, 5) if gated else (2, 3)
    much = 1.0 if fused else 1.6
    yield Compute(name, "forward", MemoryBound(tokens * width * _E * forward * much, 1 if fused else 3))
    yield Compute(name, "input", MemoryBound(tokens * width * _E * backward * much, 1 if fused else 3))


def _ffn(name: str, f: int, model: Model, shard: Shard) -> Iterator[Compute]:
    dtype, tokens, h, gated = shard.precision.gemm, shard.tokens, model.hidden, model.gated
    yield from _gemm(f"{name} up", tokens, f * (2 if gated else 1), h, dtype=dtype, shard=shard)
    yield from _activation(tokens, f, gated, shard.fused, f"{name} activation")
    yield from _gemm(f"{name} down", tokens, h, f, dtype=dtype, shard=shard)
    yield from _quantise(shard, tokens * float(h + f), tokens * float(h + f * (2 if gated else 1)))


def _dense(model: Model, shard: Shard) -> Iterator[Operator]:
    yield from _pre("ffn", shard, model.hidden)
    yield from _ffn("ffn", model.ffn // shard.tp, model, shard)
    yield from _tensor_parallel(shard, model)


def _router(model: Model, shard: Shard) -> Iterator[Operator]:
    """What an MoE layer does before its tokens leave, and its shared experts."""
    h, inner = model.hidden, model.expert_hidden
    tokens = shard.split_tokens
    yield from _pre("experts", shard, h)
    yield from _gemm("router", tokens, model.experts, h, dtype="bf16", shard=shard)
    yield Compute("route", "forward", MemoryBound(tokens * model.experts * 4 * 4, 10))
    yield Compute("route", "input", MemoryBound(tokens * model.experts * 4 * 4, 6))
    if inner != h:
        yield from _gemm("into latent", tokens, inner, h, dtype="bf16", shard=shard)
        yield from _gemm("out of latent", tokens, h, inner, dtype="bf16", shard=shard)
    if model.shared_ffn:
        if shard.tp > 1:
            yield from _tensor_parallel(shard, model)
        yield from _ffn("shared", model.shared_ffn // shard.tp, model, shard)


_SORTS = {"alltoall": 2.0, "deepep": 1.0, "hybridep": 0.5}
"""Passes over a rank's copies of tokens on the way to its experts, and again on the way back: alltoall sorts by GPU before sending and by expert after
it, DeepEP by expert, HybridEP as it copies. Source: Megatron-Core, transformer/moe/token_dispatcher.py; the half is a guess."""


def _experts(model: Model, shard: Shard) -> Iterator[Operator]:
    inner, k = model.expert_hidden, model.top_k
    tokens = shard.split_tokens
    copies = tokens * k
    moved = copies * inner * _E * 2 * _SORTS[shard.dispatcher]
    for phase in ("forward", "input"):
        yield Compute("permute", phase, MemoryBound(moved, 2))
        yield Compute("unpermute", phase, MemoryBound(moved, 2))
    rows = max(1, round(copies * shard.etp))
    width = max(1, model.moe_ffn // shard.etp)
    here = max(1, model.experts // shard.ep)
    dtype = shard.precision.gemm
    yield Compute("experts", "forward", Experts(rows, inner, width, here, dtype, model.gated))
    yield Compute("experts", "input", Experts(rows, inner, width, here, dtype, model.gated, True))
    if not shard.fused_experts:
        yield from _activation(rows, width, model.gated, shard.fused, "expert activation")
        yield from _quantise(
            shard, rows * float(inner + width), rows * float(inner + width * (2 if model.gated else 1))
        )
        if model.expert_bias:
            # Not fused: a product of bias and probability in fp32, a sum, a copy and a cast, expert by expert; backward the same and sums over rows.
            biased = rows * float(inner)
            yield Compute("expert bias", "forward", MemoryBound(biased * (4 + 4 + 2 + 4 + 4 + 4 + 4 + 2), 3 * here))
            yield Compute("expert bias", "input", MemoryBound(biased * (2 + 4 + 4 + 4 + 4 + 4 + 2), 4 * here))
    if shard.ep > 1:
        choices = k if shard.dedup else 0
        sent = tokens * inner * _sent(k, shard.ep, shard.dedup)
        for phase in ("forward", "input"):
            yield Communicate(
                "dispatch", phase, "all_to_all", "ep", sent * shard.precision.dispatch_bytes, choices=choices
            )
            yield Communicate("combine", phase, "all_to_all", "ep", sent * _E, choices=choices)
    if shard.etp > 1:
        for phase in ("forward", "input"):
            yield Communicate("gather tokens", phase, "all_gather", "etp", rows * inner * _E)
            yield Communicate("scatter tokens", phase, "reduce_scatter", "etp", rows * inner * _E)


def _sent(k: int, ep: int, dedup: bool) -> float:
    """Copies of a token that leave for other GPUs or stay: k, or the GPUs that k even choices hit."""
    return ep * (1 - (1 - 1 / ep) ** k) if dedup else float(k)
