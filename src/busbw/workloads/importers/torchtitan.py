"""torchtitan: TOML configurations. Source of names: pytorch/torchtitan, config/job_config.py and train_configs, through 2025-12."""

from __future__ import annotations

from busbw.errors import InputError
from busbw.hardware.what_if import nearest
from busbw.workloads.importers.configuration import Imported, Settings
from busbw.workloads.training.layout import PRECISIONS, Layout, Precision
from busbw.workloads.training.models import Model, load_models

__all__ = ["import_torchtitan"]

_FLAVOURS = {
    # torchtitan's model and flavour -> a shipped model. Source: torchtitan/models/*/__init__.py.
    ("llama3", "8b"): "llama3.1-8b",
    ("llama3", "70b"): "llama3.1-70b",
    ("llama3", "405b"): "llama3.1-405b",
    ("llama4", "17bx128e"): "llama4-maverick",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "interleaved",
    "interleavedzerobubble": "zb",
    "zbvzerobubble": "zb",
    "dualpipev": "dualpipe",
}
_RECOMPUTE = {"none": "none", "selective": "selective", "full": "full", "memory_budget": "selective"}
_ROTATE = {"allgather": "gather", "alltoall": "ring"}


def import_torchtitan(settings: Settings) -> Imported:
    """What a torchtitan job says. Raises InputError for values that cannot be."""
    model, missing = _model(settings)
    layout = _layout(settings, missing, model)
    local = settings.integer("training.local_batch_size", "training.batch_size")
    if local is None:
        local = 8  # default of job_config.py
        missing.append("micro_batch")
    micro, in_pipeline = local, 1
    if layout.pp > 1:
        micro = settings.integer("parallelism.pipeline_parallel_microbatch_size") or 1
        if local % micro:
            raise settings.wrong(
                "parallelism.pipeline_parallel_microbatch_size",
                f"micro-batches of {micro} do not divide the local batch of {local}. Take a divisor.",
            )
        in_pipeline = local // micro
    whole = settings.integer("training.global_batch_size", least=-1)
    whole = whole if whole and whole > 0 else None
    known = "dp" not in missing
    if whole and known and whole % (local * layout.dp):
        raise settings.wrong(
            "training.global_batch_size",
            f"a global batch of {whole} is no multiple of the local batch {local} x {layout.dp} data-parallel ranks. "
            f"Nearest: {max(1, round(whole / (local * layout.dp))) * local * layout.dp}.",
        )
    if whole is None and known:
        whole = local * layout.dp
    mode = settings.word("activation_checkpoint.mode", among=_RECOMPUTE)
    seq_len = settings.integer("training.seq_len", "model.max_seq_len")
    missing += [] if seq_len else ["seq_len"]
    return Imported(
        path=settings.path,
        format="torchtitan toml",
        model=model,
        layout=layout,
        global_batch=whole,
        micro_batch=micro,
        accumulation=in_pipeline,
        seq_len=seq_len,
        precision=_precision(settings),
        recompute=_RECOMPUTE[mode] if mode else None,
        overlap=frozenset({"dp"} | ({"tp"} if settings.flag("enable_async_tensor_parallel") else set())),
        gpus=layout.gpus if known else None,
        missing=tuple(missing),
        ignored=settings.left(),
    )


def _model(settings: Settings) -> tuple[Model | None, list[str]]:
    name = (settings.word("model.name") or "").replace("-", "_")
    flavour = settings.word("model.flavor")
    if not name or flavour is None:
        return None, ["model"]
    known = _FLAVOURS.get((name, flavour))
    if known is None:
        settings.note(
            "model.flavor",
            f"{name} {flavour} has no shipped model; name one with --model. "
            + nearest(f"{name} {flavour}", [f"{one} {other}" for one, other in _FLAVOURS]).strip(),
        )
        return None, ["model"]
    return load_models()[known], []


def _layout(settings: Settings, missing: list[str], model: Model | None) -> Layout:
    def size(*names: str, least: int = 1) -> int | None:
        return settings.integer(
            *(f"{section}.{name}" for name in names for section in ("parallelism", "training", "experimental")),
            least=least,
        )

    tp = size("tensor_parallel_degree") or 1
    pp = size("pipeline_parallel_degree") or 1
    cp = size("context_parallel_degree") or 1
    ep = size("expert_parallel_degree") or 1
    etp = size("expert_tensor_parallel_degree")
    replicate = size("data_parallel_replicate_degree") or 1
    shard = size("data_parallel_shard_degree", "data_parallel_degree", least=-1)
    shard = -1 if shard is None else shard
    if shard == 0:
        raise settings.wrong(
            "data_parallel_shard_degree", "data_parallel_shard_degree is 0; -1 for all that are left, or from 1 on."
        )
    if shard < 0:
        missing.append("dp")
    written = settings.word(
        "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule", among=_SCHEDULES
    )
    schedule = _SCHEDULES[written] if written and pp > 1 else "1f1b"
    rotate = settings.word("parallelism.context_parallel_rotate_method", among=_ROTATE) or "allgather"
    vpp = 2 if schedule == "interleaved" else 1  # torchtitan makes two stages a rank where nothing else is said
    split = settings.items("parallelism.pipeline_parallel_split_points", "experimental.pipeline_parallel_split_points")
    if split and schedule == "interleaved":
        if (len(split) + 1) % pp:
            raise settings.wrong(
                "pipeline_parallel_split_points", f"{len(split) + 1} stages, which pp {pp} does not divide."
            )
        vpp = (len(split) + 1) // pp
    each = size("pipeline_parallel_layers_per_stage")
    if each and schedule == "interleaved" and model is not None:
        vpp = max(2, -(-model.layers // (each * pp)))
    sharded = shard < 0 or shard > 1 or replicate == 1
    sharding = "zero0" if not sharded else "hsdp" if replicate > 1 else "fsdp"
    return Layout(
        tp=tp, cp=cp, pp=pp, dp=replicate * max(1, shard), ep=ep, etp=etp or 1, vpp=vpp, sharding=sharding,
        shard=max(1, shard) * cp if sharding == "hsdp" and shard > 0 else 0, sp=tp > 1, schedule=schedule, context=_ROTATE[rotate],
    )  # fmt: skip


def _precision(settings: Settings) -> Precision:
    converters = [str(one).lower() for one in settings.items("model.converters") or []]
    settings.word("training.mixed_precision_param")
    recipe = settings.word("float8.recipe_name", "mx.recipe_name") or ""
    if any("mx" in one for one in converters):
        return PRECISIONS["mxfp8"]
    if any("float8" in one for one in converters) or settings.flag("float8.enable_float8_linear"):
        return PRECISIONS["fp8-rowwise" if "rowwise" in recipe else "fp8"]
    if settings.word("training.mixed_precision_param") in ("float32", "fp32"):
        raise InputError(f"{settings.path}: training in float32 is not modelled. Take bfloat16.")
    return PRECISIONS["bf16"]
