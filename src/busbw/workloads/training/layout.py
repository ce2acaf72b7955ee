"""Layouts: how a model's weights, tokens, layers and sequences are spread over GPUs, and which are legal.

Written `tp8.cp1.pp16.dp128`: tensor, context, pipeline and data parallel multiply to the GPUs; ep (experts) and etp (tensor
parallel of experts) fold the same GPUs of a stage another way; vpp is virtual stages a GPU. Words that follow: zero0, zero1,
zero2, fsdp (or zero3), hsdp8 (shards of 8, copies of them), sp or nosp, 1f1b, gpipe, interleaved, zb, dualpipe, ring, gather, ulysses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from busbw.errors import InputError
from busbw.hardware.what_if import nearest
from busbw.workloads.training.models import Model

__all__ = [
    "CONTEXT", "ORDERS", "PRECISIONS", "RECOMPUTE", "SCHEDULES", "SHARDING", "Batch", "Layout", "Precision", "check",
    "parse_layout", "precision_of", "strides",
]  # fmt: skip

SHARDING = ("zero0", "zero1", "zero2", "fsdp", "hsdp")
"""What is kept in one copy of a data-parallel group: nothing, optimizer, and gradients, and weights; hsdp: in groups."""
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb", "dualpipe")
CONTEXT = ("ring", "gather", "ulysses")
RECOMPUTE = ("none", "selective", "full", "ops")
"""Of activations in the backward pass: nothing; core attention; whole layers; every second product and all that is no product, as torchtitan's
selective checkpointing by operator does."""
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Axes of the ranks, the fastest first. Source: Megatron-LM, parallel_state.py; the second with --use-tp-pp-dp-mapping."""
_MOST = 1 << 24
_SIZES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp")


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the groups, and how each kind of parallelism is done."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    sharding: str = "zero1"
    shard: int = 0
    """GPUs over which fsdp or hsdp spreads weights; 0: all of a data-parallel group."""
    sp: bool = True
    """Sequence parallel: what tensor parallelism leaves whole is split along the sequence."""
    schedule: str = "1f1b"
    context: str = "ring"
    order: str = ORDERS[0]

    @property
    def gpus(self) -> int:
        """How many it needs."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def edp(self) -> int:
        """Copies of an expert."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    @property
    def shards(self) -> int:
        """GPUs that share one copy of the weights' state: of a group of dp times cp."""
        return self.shard if self.sharding == "hsdp" and self.shard else self.dp * self.cp

    def __str__(self) -> str:
        """As `parse_layout` reads it; what is 1 or usual is left out, but for tp, pp and dp."""
        words = [f"tp{self.tp}"]
        words += [f"cp{self.cp}"] if self.cp > 1 else []
        words += [f"pp{self.pp}", f"dp{self.dp}"]
        words += [f"{name}{getattr(self, name)}" for name in ("ep", "etp", "vpp") if getattr(self, name) > 1]
        if self.sharding != "zero1":
            words.append(f"hsdp{self.shards}" if self.sharding == "hsdp" else self.sharding)
        if self.tp > 1 and not self.sp:
            words.append("nosp")
        if self.schedule not in ("1f1b", "interleaved"):
            words.append(self.schedule)
        if self.cp > 1 and self.context != "ring":
            words.append(self.context)
        return ".".join(words)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of a step, of a micro-batch, and tokens of a sequence."""

    global_batch: int
    micro_batch: int = 1
    seq_len: int = 4096

    def __post_init__(self) -> None:
        for name in ("global_batch", "micro_batch", "seq_len"):
            if not 0 < getattr(self, name) <= _MOST:
                raise InputError(
                    f"{name.replace('_', ' ')} is {getattr(self, name)}; a whole number from 1 to {_MOST}."
                )

    def micro_batches(self, layout: Layout) -> int:
        """That each pipeline runs a step."""
        return self.global_batch // (self.micro_batch * layout.dp)


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of a recipe: of matrix products, and bytes an element of what is kept and sent."""

    name: str
    gemm: str
    """Type of matrix products, as `operations` names types."""
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    """Of the gradient that accumulates."""
    reduce_bytes: float = 4.0
    """Of the gradient that is sent."""
    gather_bytes: float = 2.0
    """Of the weights that are gathered."""
    state_bytes: float = 12.0
    """Master weight and moments."""
    saved_bytes: float = 2.0
    """Of inputs of matrix products kept for the backward pass."""
    dispatch_bytes: float = 2.0
    """Of a token on its way to an expert."""
    attention: str = ""
    """Type of attention's projections where it differs."""
    wide_layers: int = 0
    """Layers that are kept in bf16 whole: the last ones."""


PRECISIONS = {
    "bf16": Precision("bf16", "bf16"),
    "fp16": Precision("fp16", "fp16"),
    "fp8": Precision("fp8", "fp8", gather_bytes=1.0, saved_bytes=1.0),
    "fp8-rowwise": Precision("fp8-rowwise", "fp8", saved_bytes=1.0),
    "fp8-block": Precision("fp8-block", "fp8_block", gather_bytes=1.0, saved_bytes=1.0),
    "mxfp8": Precision("mxfp8", "mxfp8", saved_bytes=1.0),
    "nvfp4": Precision("nvfp4", "nvfp4", saved_bytes=1.0),
}
"""Recipes by name. Bytes: Megatron-Core's defaults; weights kept in fp8 are gathered so where scales are per tensor."""
_ALIASES = {
    "fp8-cs": "fp8", "fp8-ds": "fp8", "float8": "fp8", "float8 tensorwise": "fp8", "fp8+bf16": "fp8", "float8+bf16": "fp8",
    "float8 rowwise": "fp8-rowwise", "fp8-mx": "mxfp8", "fp8-sc": "fp8-block", "bfloat16": "bf16", "float16": "fp16",
}  # fmt: skip


def precision_of(text: str) -> Precision:
    """The recipe of a name. Raises InputError for one that is not known."""
    folded = text.strip().lower()
    found = PRECISIONS.get(_ALIASES.get(folded, folded))
    if found is None:
        raise InputError(f"precision {text!r} is not known. There is {', '.join([*PRECISIONS, *_ALIASES])}.")
    return found


def parse_layout(text: str, gpus: int | None = None) -> Layout:
    """The layout of a text such as tp8.pp16.dp128.vpp2.fsdp. gpus: of the cluster; dp is what is left if it is not given.

    Raises InputError with the word that is wrong.

    >>> str(parse_layout("tp8.pp4", gpus=256))
    'tp8.pp4.dp8'
    """
    values: dict[str, int] = {}
    words: dict[str, object] = {}
    for word in re.split(r"[.,\s]+", text.strip().lower()):
        if not word:
            continue
        match = re.fullmatch(r"([a-z]+)=?(\d+)", word)
        if match and match[1] in _SIZES:
            name, value = match[1], int(match[2])
            if not 0 < value <= _MOST:
                raise InputError(f"layout {text!r}: {word}: a group has 1 to {_MOST} GPUs.")
            if name in values:
                raise InputError(f"layout {text!r}: {name} is given twice. Give it once.")
            values[name] = value
        elif match and match[1] in ("hsdp", "fsdp") and int(match[2]):
            words |= {"sharding": "hsdp", "shard": int(match[2])}
        elif word in SHARDING or word == "zero3":
            words["sharding"] = "fsdp" if word == "zero3" else word
        elif word in SCHEDULES:
            words["schedule"] = word
        elif word in CONTEXT:
            words["context"] = word
        elif word in ("sp", "nosp"):
            words["sp"] = word == "sp"
        else:
            known = [*_SIZES, *SHARDING, *SCHEDULES, *CONTEXT, "sp", "nosp"]
            raise InputError(
                f"layout {text!r}: {word!r} is no part of a layout. {nearest(word, known)}Write tp8.cp1.pp16.dp128, "
                "and vpp, ep, etp, fsdp, hsdp8, nosp, zb."
            )
    if not values and not words:
        raise InputError(f"layout {text!r} names no group. Write tp8.cp1.pp16.dp128, or what of it is not 1.")
    if "dp" not in values and gpus is not None:
        rest = math.prod(values.get(name, 1) for name in ("tp", "cp", "pp"))
        if gpus % rest:
            raise InputError(
                f"layout {text!r}: {rest} GPUs of tp, cp and pp do not divide {gpus}. Give sizes whose product divides {gpus}."
            )
        values["dp"] = gpus // rest
    layout = Layout(**values, **words)  # type: ignore[arg-type]
    if layout.vpp > 1 and layout.schedule == "1f1b":
        layout = replace(layout, schedule="interleaved")
    return layout


def strides(layout: Layout) -> dict[str, int]:
    """Ranks from one member of a group to the next, by group, by the layout's order of axes.

    dp stands for data parallel times context parallel, the group that sums gradients; edp for copies of experts.

    >>> strides(Layout(tp=2, cp=2, pp=4, dp=8))["pp"]
    32
    """
    pipeline_last = layout.order.endswith("pp")
    inner = layout.tp * layout.cp
    return {
        "tp": 1,
        "cp": layout.tp,
        "dp": layout.tp if pipeline_last else inner * layout.pp,
        "pp": inner * layout.dp if pipeline_last else inner,
        "etp": 1,
        "ep": layout.etp,
        "edp": layout.etp * layout.ep,
    }


@dataclass(frozen=True, slots=True)
class _Wrong:
    what: str
    mend: str


def check(model: Model, layout: Layout, batch: Batch, gpus: int | None = None) -> None:
    """Raises InputError for a layout that cannot run: every rule that it breaks, and the nearest layout that breaks none.

    gpus: of the cluster; None: as many as the layout needs.
    """
    wrong = list(_broken(model, layout, batch, gpus))
    if not wrong:
        return
    near = _nearest_legal(model, layout, batch, gpus if gpus is not None else layout.gpus)
    hint = f" Nearest legal layout: {near}." if near is not None else ""
    said = " ".join(f"{one.what} {one.mend}" for one in wrong)
    raise InputError(f"layout {layout} of {model.name}: {said}{hint}")


def is_legal(model: Model, layout: Layout, batch: Batch, gpus: int | None = None) -> bool:
    """Whether a layout can run."""
    return next(_broken(model, layout, batch, gpus), None) is None


def _broken(model: Model, layout: Layout, batch: Batch, gpus: int | None) -> Iterator[_Wrong]:
    if gpus is not None and layout.gpus != gpus:
        yield _Wrong(
            f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp} = {layout.gpus} GPUs, the cluster has {gpus}.",
            "Change dp or --nodes.",
        )
    yield from _broken_widths(model, layout, batch)
    yield from _broken_experts(model, layout)
    yield from _broken_pipeline(model, layout, batch)
    yield from _broken_batch(layout, batch)


def _broken_widths(model: Model, layout: Layout, batch: Batch) -> Iterator[_Wrong]:
    tp, cp = layout.tp, layout.cp
    if model.heads % tp:
        yield _Wrong(f"tp {tp} does not divide {model.heads} heads.", f"Take one of {_divisors(model.heads)}.")
    elif model.kv_heads % tp and tp % model.kv_heads:
        yield _Wrong(f"tp {tp} neither divides nor is a multiple of {model.kv_heads} key/value heads.", "Change tp.")
    if model.ffn and model.ffn % tp:
        yield _Wrong(f"tp {tp} does not divide the FFN's {model.ffn}.", "Change tp.")
    if model.mamba_heads and model.mamba_heads % tp:
        yield _Wrong(f"tp {tp} does not divide {model.mamba_heads} Mamba heads.", "Change tp.")
    if cp > 1 and batch.seq_len % (2 * cp):
        yield _Wrong(
            f"cp {cp} cuts a sequence into 2 x {cp} pieces, and {batch.seq_len} is no multiple of that.", "Change cp."
        )
    if tp > 1 and layout.sp and batch.seq_len // cp % tp:
        yield _Wrong(
            f"sequence parallel splits {batch.seq_len // cp} tokens over tp {tp}, which does not divide them.",
            "Say nosp, or change tp.",
        )
    if layout.context == "ulysses" and cp > 1 and model.kv_heads % (cp * tp):
        yield _Wrong(
            f"Ulysses needs cp x tp = {cp * tp} to divide {model.kv_heads} key/value heads.", "Take ring or gather."
        )


def _broken_experts(model: Model, layout: Layout) -> Iterator[_Wrong]:
    ep, etp = layout.ep, layout.etp
    if not model.is_moe:
        if ep > 1 or etp > 1:
            yield _Wrong(f"ep {ep}, etp {etp}, but {model.name} has no experts.", "Leave ep and etp out.")
        return
    if model.experts % ep:
        yield _Wrong(f"ep {ep} does not divide {model.experts} experts.", f"Take one of {_divisors(model.experts)}.")
    inner = layout.tp * layout.cp * layout.dp
    if inner % (ep * etp):
        yield _Wrong(
            f"etp {etp} x ep {ep} does not divide the {inner} GPUs of a stage (tp x cp x dp), which experts fold.",
            "Change ep, etp or dp.",
        )
    if model.moe_ffn % etp:
        yield _Wrong(f"etp {etp} does not divide an expert's {model.moe_ffn}.", "Change etp.")


def _broken_pipeline(model: Model, layout: Layout, batch: Batch) -> Iterator[_Wrong]:
    pp, vpp = layout.pp, layout.vpp
    if pp * vpp > model.layers + 2 + model.mtp:
        yield _Wrong(
            f"pp {pp} x vpp {vpp} = {pp * vpp} stages for {model.layers} layers.",
            "A stage has a layer at least; take fewer.",
        )
    if pp == 1 and vpp > 1:
        yield _Wrong(f"vpp {vpp} without a pipeline.", "Take vpp 1, or pp from 2 on.")
    if layout.schedule == "interleaved" and vpp == 1:
        yield _Wrong("the interleaved schedule needs virtual stages.", "Give vpp from 2 on, or take 1f1b.")
    if layout.schedule in ("1f1b", "gpipe", "zb", "dualpipe") and vpp > 1:
        yield _Wrong(f"{layout.schedule} has no virtual stages, vpp is {vpp}.", "Take interleaved, or vpp 1.")
    if layout.schedule == "dualpipe" and pp % 2:
        yield _Wrong(f"DualPipe pairs stages, pp is {pp}.", "Take an even pp.")
    if layout.sharding in ("fsdp", "zero2") and pp > 1 and layout.sharding == "zero2":
        yield _Wrong("zero2 sums gradients each micro-batch, which a pipeline does not allow.", "Take zero1 or fsdp.")
    m = batch.global_batch // (batch.micro_batch * layout.dp)
    if vpp > 1 and m and m % pp:
        yield _Wrong(
            f"the interleaved schedule needs micro-batches ({m}) in multiples of pp {pp}.",
            "Change dp, pp or the batch.",
        )


def _broken_batch(layout: Layout, batch: Batch) -> Iterator[_Wrong]:
    if batch.global_batch % (batch.micro_batch * layout.dp):
        yield _Wrong(
            f"a global batch of {batch.global_batch} is no multiple of micro-batch {batch.micro_batch} x dp {layout.dp}.",
            f"Nearest global batch: {_nearest_multiple(batch.global_batch, batch.micro_batch * layout.dp)}.",
        )
    if layout.sharding == "hsdp" and layout.shard and layout.dp * layout.cp % layout.shard:
        yield _Wrong(
            f"shards of {layout.shard} do not divide the {layout.dp * layout.cp} GPUs of dp x cp.",
            f"Take one of {_divisors(layout.dp * layout.cp)}.",
        )


def _nearest_legal(model: Model, layout: Layout, batch: Batch, gpus: int) -> Layout | None:
    """The legal layout on as many GPUs whose sizes differ least, in doublings; None if none of up to a few thousand is."""
    best: tuple[float, Layout] | None = None
    tried = 0
    for tp in _near(gpus, layout.tp):
        for pp in _near(gpus // tp, layout.pp):
            for cp in _near(gpus // tp // pp, layout.cp):
                dp = gpus // (tp * pp * cp)
                for ep in _near(model.experts, layout.ep) if model.is_moe else (1,):
                    for vpp in dict.fromkeys((layout.vpp, 1, max(1, model.layers // pp))):
                        tried += 1
                        if tried > _MOST_TRIED:
                            return best[1] if best else None
                        etp = layout.etp if model.is_moe and layout.etp <= tp else 1
                        schedule = (
                            "interleaved"
                            if vpp > 1
                            else "1f1b"
                            if layout.schedule == "interleaved"
                            else layout.schedule
                        )
                        found = replace(
                            layout, tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, vpp=vpp, etp=etp, schedule=schedule,
                            context=layout.context if layout.context != "ulysses" else "ring",
                        )  # fmt: skip
                        if layout.sharding == "hsdp" and found.shard and dp * cp % found.shard:
                            found = replace(found, sharding="fsdp", shard=0)
                        far = _distance(layout, found)
                        if (best is None or far < best[0]) and is_legal(model, found, batch, gpus):
                            best = (far, found)
    return best[1] if best else None


_MOST_TRIED = 2_000
"""Layouts looked at for a hint: a fraction of a second."""


def _near(number: int, wanted: int) -> list[int]:
    return sorted(_all_divisors(number), key=lambda divisor: abs(math.log(divisor / wanted)))[:12]


def _distance(one: Layout, other: Layout) -> float:
    return sum(
        abs(math.log2(getattr(one, name) / getattr(other, name))) * (0.25 if name == "dp" else 1.0) for name in _SIZES
    )


def _all_divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(max(1, number)) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)}) if number else [1]


def _divisors(number: int) -> str:
    found = _all_divisors(number)
    return ", ".join(map(str, found[:8])) + (" ..." if len(found) > 8 else "")


def _nearest_multiple(number: int, of: int) -> int:
    return max(of, round(number / of) * of)
