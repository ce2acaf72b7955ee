"""DeepSpeed: the JSON of a run. It names no model and no sequence length. Source of names: deepspeed.ai/docs/config-json."""

from __future__ import annotations

from busbw.workloads.importers.configuration import Imported, Settings
from busbw.workloads.training.layout import PRECISIONS, Layout

__all__ = ["import_deepspeed"]

_SHARDING = {0: "zero0", 1: "zero1", 2: "zero2", 3: "fsdp"}


def import_deepspeed(settings: Settings) -> Imported:
    """Batch, ZeRO stage and precision. Raises InputError where the three batch sizes contradict each other."""
    missing = ["model", "seq_len"]
    whole = settings.integer("/train_batch_size")
    micro = settings.integer("/train_micro_batch_size_per_gpu")
    accumulation = settings.integer("/gradient_accumulation_steps")
    dp = 1
    if whole and micro and accumulation:
        if whole % (micro * accumulation):
            raise settings.wrong(
                "train_batch_size",
                f"train_batch_size {whole} is no multiple of train_micro_batch_size_per_gpu {micro} x gradient_accumulation_steps "
                f"{accumulation}. Nearest: {max(1, round(whole / (micro * accumulation))) * micro * accumulation}.",
            )
        dp = whole // (micro * accumulation)
    else:
        missing.append("dp")
    missing += [] if micro else ["micro_batch"]
    stage = settings.find("/zero_optimization.stage")
    number = settings.integer("/zero_optimization.stage", least=0)
    if number is not None and number not in _SHARDING and stage is not None:
        raise settings.error(stage, "a ZeRO stage, 0 to 3")
    sharding = _SHARDING[number or 0]
    shard = 0
    mics = settings.integer("/zero_optimization.mics_shard_size", "mics_shard_size", least=-1)
    if mics and mics > 0:
        sharding, shard = "hsdp", mics
    tp = settings.integer("/tensor_parallel.autotp_size", "autotp_size", "/tensor_parallel.tp_size", least=0) or 1
    cp = settings.integer("/sequence_parallel_size") or 1
    ep = settings.integer("expert_parallel.autoep_size", "autoep_size", least=0) or 1
    settings.note(
        "offload_optimizer.device", "offload is not modelled: the step is that of a GPU that holds everything"
    )
    settings.note("offload_param.device", "offload is not modelled: the step is that of a GPU that holds everything")
    precision = None
    if settings.flag("/bf16.enabled", "/bfloat16.enabled"):
        precision = PRECISIONS["bf16"]
    elif settings.flag("/fp16.enabled"):
        precision = PRECISIONS["fp16"]
    layout = Layout(tp=tp, cp=cp, dp=dp, ep=ep, sharding=sharding, shard=shard, sp=False, context="ulysses")
    return Imported(
        path=settings.path,
        format="deepspeed json",
        layout=layout,
        global_batch=whole,
        micro_batch=micro,
        accumulation=accumulation,
        precision=precision,
        gpus=layout.gpus if "dp" not in missing else None,
        missing=tuple(missing),
        ignored=settings.left(),
    )
