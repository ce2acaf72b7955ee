"""Measured training steps: rows of a workload file as jobs and layouts, refused by kind where they cannot be.

What a source does not say is taken from its software's recipes, and said so: see `recipe_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from busbw.accuracy.measured import Refusal
from busbw.accuracy.recipes import stated_recipe
from busbw.errors import InputError
from busbw.hardware import Cluster, find_accelerator, find_cluster
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import SCOPES, Job, Running
from busbw.workloads.training.layout import RECOMPUTE, Layout, Precision, precision_of
from busbw.workloads.training.memory import memory
from busbw.workloads.training.models import Model, find_model, model_of

__all__ = ["TrainingRow", "read_rows", "training_row"]

_MOST_GPUS = 1 << 20
_BLUEPRINT = {
    "A100-SXM-40GB": "dgx-a100", "A100-SXM-80GB": "dgx-a100", "H100-SXM-80GB": "dgx-h100", "H100-SXM-96GB-HBM2e-500W": "dgx-h100",
    "H200-SXM-141GB": "dgx-h200", "B200-SXM": "dgx-b200", "B300-SXM": "hgx-b300", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72",
    "MI300X": "mi300x-8", "MI325X": "mi325x-8", "MI355X": "mi355x-8",
}  # fmt: skip
"""The node that a table's GPU is taken to be in; 8 x A100 with eight 200 Gb/s NICs is what sources call 1600 Gb/s."""


@dataclass(frozen=True)
class TrainingRow:
    """A measured step: what ran, and how long a step took."""

    row: int | str
    source: str
    job: Job
    layouts: tuple[Layout, ...]
    """The one that is stated; several where the source leaves virtual stages open."""
    micro_batches: tuple[int, ...]
    recompute: str
    measured_s: float
    peak_bytes: float | None
    precision_said: str
    framework: str = "megatron"
    """Of `frameworks.FRAMEWORKS`: whose layouts the row could have had."""
    is_regression: bool = False
    """Whether the source or its neighbours say that software was slow by a defect."""

    @property
    def columns(self) -> Columns:
        """Every way the row may have run."""
        ways = [(layout, micro) for layout in self.layouts for micro in self.micro_batches]
        return Columns.of([way[0] for way in ways], [way[1] for way in ways], [self.recompute] * len(ways))


class _RefusedError(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def read_rows(document: Mapping[str, Any]) -> tuple[list[TrainingRow], list[Refusal]]:
    """The rows of a workload file of kind training, and those refused."""
    source = str(document.get("id", ""))[:200]
    rows: list[TrainingRow] = []
    refused: list[Refusal] = []
    for place, row in enumerate(document["rows"]):
        named = row.get("id") if isinstance(row, dict) else None
        name: int | str = named[:200] if isinstance(named, str) and named else place
        try:
            if not isinstance(row, dict):
                raise _RefusedError("layout-unknown", "no object")
            missing = [
                key for key in ("hardware", "parallel", "batch", "measured") if not isinstance(row.get(key), dict)
            ]
            if missing:
                raise _RefusedError("layout-unknown", f"lacks {', '.join(missing)}")
            rows.append(training_row(row, source, name))
        except _RefusedError as error:
            refused.append(Refusal(name, error.kind, error.reason))
        except (InputError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            refused.append(Refusal(name, "layout-unknown", str(error)[:500]))
    return rows, refused


def training_row(row: Mapping[str, Any], source: str, name: int | str) -> TrainingRow:
    """One row. Raises _RefusedError where it cannot be predicted."""
    hardware, parallel, batch, measured = (row[key] for key in ("hardware", "parallel", "batch", "measured"))
    accelerator = find_accelerator(str(hardware.get("gpu", "")))
    if accelerator is None or accelerator.name not in _BLUEPRINT:
        raise _RefusedError("hardware-unknown", f"{hardware.get('gpu')}: not in the catalogue of GPUs")
    model = _model(row)
    seq_len, global_batch = batch.get("seq_len"), batch.get("global_batch")
    if parallel.get("dp") is None or not seq_len or not global_batch:
        raise _RefusedError("layout-unknown", "the source does not say how the model is spread")
    gpus = int(hardware["gpus"])
    if not 0 < gpus <= _MOST_GPUS:
        raise _RefusedError("layout-unknown", f"{gpus} GPUs")
    step = measured.get("step_time_s")
    if not step and measured.get("tokens_per_s_per_gpu"):
        step = global_batch * seq_len / (measured["tokens_per_s_per_gpu"] * gpus)
    if not step or step <= 0:
        raise _RefusedError("not-measured", "the source gives no time of a step")
    cluster = _cluster(accelerator.name, gpus)
    how = recipe_of(str(row.get("framework", "")), row, accelerator.compute_capability or 0, accelerator.name)
    layout = _layout(parallel, how, row, model)
    micro = _micro_batches(batch, layout, how)
    recompute = str(row.get("recompute") or "none").split(" ")[0]
    recompute = recompute if recompute in RECOMPUTE else "none"
    if recompute == "none" and not row.get("recompute") and how.again != {"core_attn"} and how.again:
        recompute = "selective"  # the recipe's, where the table has no column for it
    if "per op" in str(row.get("recompute")):
        recompute = "ops"
    job = Job(
        replace(model, mtp=how.mtp) if how.mtp and not model.mtp else model,
        cluster,
        int(global_batch),
        int(seq_len),
        how.precision,
        str(row.get("task") or "pretrain"),
        **how.running(),
    )
    layout = _that_fits(job, layout, micro)
    layouts = _virtual_stages(layout, parallel, model, row)
    peak = measured.get("peak_memory_gib")
    return TrainingRow(
        name,
        source,
        job,
        layouts,
        micro,
        recompute,
        float(step),
        float(peak) * 2**30 if peak else None,
        str(row.get("precision", "")),
        _framework(str(row.get("framework", ""))),
        "regression" in str(row.get("note", "")),
    )


def _framework(name: str) -> str:
    names = {
        "llm-foundry": "llm-foundry",
        "torchtitan": "torchtitan",
        "Megatron-LM 202": "megatron-2022",
        "NeMo 24": "nemo-24",
        "Megatron-Core r0": "nemo-24",
    }
    return next((ours for start, ours in names.items() if name.startswith(start)), "megatron")


def _model(row: Mapping[str, Any]) -> Model:
    dimensions = row.get("model_dims")
    name = str(row.get("model", ""))
    try:
        return model_of(name, dimensions, name) if isinstance(dimensions, dict) else find_model(name)
    except InputError as error:
        raise _RefusedError("unsupported", str(error)) from None


def _cluster(gpu: str, gpus: int) -> Cluster:
    name = _BLUEPRINT[gpu]
    probe, _ = find_cluster(name, 1, {"gpu": gpu} if name.startswith("dgx-") else {})
    nodes = max(1, -(-gpus // probe.node.gpus))
    found, _ = find_cluster(
        name, nodes, {"gpu": gpu} if probe.node.accelerator.name != gpu or name in ("dgx-a100", "dgx-h100") else {}
    )
    return found


@dataclass(frozen=True)
class Recipe(Running):
    """How a release of a framework runs a step where a row does not say."""

    precision: Precision
    mtp: int = 0
    sharding: str = "zero1"
    sequence_parallel: bool = True


def recipe_of(framework: str, row: Mapping[str, Any], capability: int, gpu: str = "") -> Recipe:
    """What a release does. Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/perf_recipes; SC21 and 2022 papers;
    torchtitan's and llm-foundry's defaults; of MLPerf: NVIDIA's submissions, from memory, unverified.
    """  # noqa: D205 - the first sentence ends there
    said = str(row.get("precision", ""))
    options = " ".join(str(option).lower() for option in row.get("options") or ())
    moe = bool(find_is_moe(row))
    if framework.startswith("llm-foundry"):
        stage = {3: "fsdp", 2: "zero2", 1: "zero1", 0: "zero0"}.get(row.get("zero_stage", 3), "fsdp")
        precision = precision_of(said)
        if row.get("reduce_dtype") == "bf16":
            precision = replace(precision, reduce_bytes=2.0)
        return Recipe(precision, software="llm-foundry", fused=False, sharding=stage, kernel="fa2")
    if framework.startswith("Megatron-LM 202"):
        whole = row.get("sequence_parallel", False)
        return Recipe(
            precision_of("fp16"),
            software=framework.lower().replace(" ", "-"),
            flash=False,
            sharding="zero0",
            sequence_parallel=bool(whole),
            overlap=frozenset(),
        )
    if framework.startswith("torchtitan"):
        overlap = {"dp", "cp", "pp", "tp"} if "async" in options else {"dp", "cp", "pp"}
        return Recipe(
            precision_of(said),
            software="torchtitan",
            sharding="fsdp",
            overlap=frozenset(overlap),
            loss_bytes=16.0,
            kernel="fa2",
        )
    if framework.startswith("Megatron-Core"):
        return Recipe(precision_of(said), software="megatron-core-0.8", overlap=frozenset({"tp", "dp", "cp", "pp"}))
    if framework.startswith("NeMo"):
        return Recipe(
            precision_of(said),
            software="nemo-" + framework.rsplit(" ", maxsplit=1)[-1],
            overlap=frozenset({"tp", "dp", "cp", "pp"}),
        )
    if framework.startswith("MLPerf"):
        new = "v5" in framework and capability >= 100
        return Recipe(
            precision_of("nvfp4" if new else "fp8"),
            software="mlperf-" + (re.findall(r"v\d\.\d", framework) or [""])[0],
            graphs=frozenset(SCOPES),
            overlap=frozenset({"tp", "dp", "cp", "pp"}),
        )
    if framework.startswith("Megatron-Bridge"):
        return _bridge_recipe(framework, row, gpu, moe)
    return Recipe(precision_of(said or "bf16"))


def _bridge_recipe(framework: str, row: Mapping[str, Any], gpu: str, moe: bool) -> Recipe:
    """Of a release of Megatron-Bridge: what its performance recipe of the model and GPU sets, see `recipes`."""
    name, note = str(row.get("model", "")), str(row.get("note", ""))
    release = (re.findall(r"\d\d\.\d\d(?:\.\d\d)?", framework) or [""])[0]
    precision = replace(precision_of(str(row.get("precision", ""))), gradient_bytes=2.0, reduce_bytes=2.0)
    if name.startswith(("nemotron3-super", "nemotron3-ultra")) and precision.gemm == "nvfp4":
        # Its quantisation keeps attention's projections and the last 14 layers in bf16 (te_quant.cfg, mixed_precision.py).
        precision = replace(precision, attention="bf16", wide_layers=14)
    sizes = {**row["parallel"], **{key: row["batch"].get(key) for key in ("micro_batch", "global_batch")}}
    stated = stated_recipe(name, gpu, precision.name, release, sizes)
    overlap, graphs, again, dispatcher = {"tp", "dp", "cp", "pp"}, frozenset[str](), frozenset[str](), "deepep"
    if stated is not None:
        graphs, again, dispatcher = stated.graphs, stated.again, stated.dispatcher or dispatcher
        overlap |= {"ep"} if stated.overlaps_experts else set()
    mtp = 1 if name.startswith("deepseek") and release > "25.09" and "w/o MTP" not in note else 0
    mtp = 2 if name.startswith(("nemotron3-super", "nemotron3-ultra")) else mtp
    return Recipe(
        precision, software=f"megatron-bridge-{release[:5]}", graphs=graphs, overlap=frozenset(overlap), mtp=mtp,
        fused_experts=moe and graphs == frozenset(SCOPES) and precision.gemm == "mxfp8", balanced=True,
        sharding="fsdp" if row["parallel"].get("fsdp") else "zero1", dispatcher=dispatcher, again=again,
    )  # fmt: skip


def find_is_moe(row: Mapping[str, Any]) -> bool:
    """Whether the row's model has experts."""
    dimensions = row.get("model_dims")
    if isinstance(dimensions, dict):
        return bool(dimensions.get("experts"))
    try:
        return find_model(str(row.get("model", ""))).is_moe
    except InputError:
        return False


def _layout(parallel: Mapping[str, Any], how: Recipe, row: Mapping[str, Any], model: Model) -> Layout:
    sizes: dict[str, Any] = {name: int(parallel.get(name) or 1) for name in ("tp", "cp", "pp", "dp", "ep", "vpp")}
    fsdp = int(parallel.get("fsdp") or 0)
    sharding = "fsdp" if fsdp and how.sharding != "zero2" else how.sharding
    shard = 0
    if sharding == "fsdp" and fsdp and fsdp < sizes["dp"] * sizes["cp"] and fsdp < sizes["dp"]:
        sharding, shard = "hsdp", fsdp
    schedule = str(row.get("pipeline_schedule") or "").lower()
    vpp = sizes["vpp"] if sizes["pp"] > 1 else 1
    if vpp > 1 and sizes["pp"] * vpp > model.layers + 2:
        vpp = max(1, model.layers // sizes["pp"])
    sizes["vpp"] = vpp
    return Layout(
        **sizes,
        sharding=sharding,
        shard=shard,
        sp=bool(row.get("sequence_parallel", how.sequence_parallel)) and sizes["tp"] > 1,
        schedule="interleaved" if vpp > 1 else "gpipe" if "gpipe" in schedule else "1f1b",
        context="gather" if sizes["cp"] > 1 and how.software.startswith("torchtitan") else "ring",
    )


def _micro_batches(batch: Mapping[str, Any], layout: Layout, how: Recipe) -> tuple[int, ...]:
    stated, each = batch.get("micro_batch"), int(batch["global_batch"]) // layout.dp
    if stated:
        micro = int(stated)
        if how.software.startswith("torchtitan") and layout.pp > 1:
            micro = max(1, micro // layout.pp)  # torchtitan cuts the local batch into as many micro-batches as stages
        return (max(1, micro),)
    return tuple(1 << place for place in range(3) if each % (1 << place) == 0)


def _that_fits(job: Job, layout: Layout, micro: tuple[int, ...]) -> Layout:
    """The layout; with its weights sharded where they could not be held otherwise: tables leave FSDP out."""
    if layout.sharding == "zero1" and layout.pp == 1:
        columns = Columns.of([layout], [micro[0]], ["full"])
        if not memory(job, columns).fits[0]:
            return replace(layout, sharding="fsdp")
    return layout


def _virtual_stages(
    layout: Layout, parallel: Mapping[str, Any], model: Model, row: Mapping[str, Any]
) -> tuple[Layout, ...]:
    """The layout, with every number of virtual stages that it may have where the source leaves that open."""
    # NeMo's table of fine-tuning has no column for virtual stages, so their 1 says nothing.
    stated = parallel.get("vpp") is not None and not (
        str(row.get("framework")).startswith("NeMo") and row.get("task") != "pretrain"
    )
    if stated or layout.pp == 1:
        return (layout,)
    interleaved = "interleaved" in str(row.get("pipeline_schedule") or "").lower()
    if interleaved:
        return (replace(layout, vpp=2, schedule="interleaved"),)  # the fewest; the source names the schedule alone
    per_stage = max(1, model.layers // layout.pp)
    stages = [vpp for vpp in range(2, per_stage + 1) if per_stage % vpp == 0]
    return (layout, *(replace(layout, vpp=vpp, schedule="interleaved") for vpp in stages))
