"""What Megatron-Core's names mean: the settings that Megatron-LM, NeMo and Megatron-Bridge share, as model, layout and batch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Imported, Settings
from busbw.workloads.training.layout import PRECISIONS, Layout, Precision
from busbw.workloads.training.models import load_models, model_of

__all__ = ["assemble", "layer_list", "shipped_model"]

_BRIDGE = "megatron-bridge yaml"
_STRATEGY = {"no_shard": "zero0", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"}
_CONTEXT = {"p2p": "ring", "all_gather": "gather", "allgather": "gather", "a2a": "ulysses", "a2a+p2p": "ulysses"}
_FP8_RECIPES = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "current": "fp8",
    "blockwise": "fp8-block",
    "mxfp8": "mxfp8",
    "custom": "fp8",
}
_TOKENIZERS = {
    # Entries of a tokenizer that always has the same. Source: the tokenizers' own vocabularies.
    "gpt2bpetokenizer": 50257,
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
}
_GATED = ("swiglu", "geglu", "reglu", "silu")


def assemble(settings: Settings, form: str, gpus: int | None = None) -> Imported:
    """Model, layout, batch and precision of Megatron-Core's names. Raises InputError for what contradicts itself."""
    layout, missing = _layout(settings, form, gpus)
    dimensions = _dimensions(settings, layout)
    given = shipped_model(settings.word("hf_model_id", "model.name") or "")
    model = None
    lacking = [name for name in ("layers", "hidden", "vocab", "heads") if name not in dimensions]
    if lacking and given is not None and {"layers", "hidden", "heads"} <= set(lacking):
        model = load_models()[given]
        settings.note("hf_model_id", f"stands for the shipped model {given}")
    elif not lacking:
        model = model_of(str(dimensions.get("name", form)), _unnamed(dimensions), settings.path)
    else:
        missing += ["model"] if {"layers", "hidden", "heads"} <= set(lacking) else lacking
    if layout.vpp < 1:
        raise settings.wrong(
            "num_layers_per_virtual_pipeline_stage", "virtual stages hold more layers than a stage has."
        )
    seq_len = settings.integer(
        "model.encoder_seq_length", "model.seq_length", "dataset.sequence_length", "dataset.seq_length",
        "encoder_seq_length", "seq_length", "sequence_length",
    )  # fmt: skip
    whole = settings.integer("train.global_batch_size", "model.global_batch_size", "global_batch_size")
    micro = settings.integer("train.micro_batch_size", "model.micro_batch_size", "micro_batch_size")
    for name, value in (("seq_len", seq_len), ("global_batch", whole), ("micro_batch", micro)):
        missing += [] if value else [name]
    dp = 1 if "dp" in missing else layout.dp
    if whole and micro and whole % (micro * dp):
        raise settings.wrong(
            "global_batch_size",
            f"a global batch of {whole} is no multiple of micro-batch {micro}{f' x dp {dp}' if dp > 1 else ''}. "
            f"Nearest: {max(1, round(whole / (micro * dp))) * micro * dp}.",
        )
    precision = _precision(settings)
    recompute = _recompute(settings)
    overlap = _overlap(settings)
    return Imported(
        path=settings.path,
        format=form,
        model=model,
        dimensions=dimensions,
        layout=layout,
        global_batch=whole,
        micro_batch=micro,
        seq_len=seq_len,
        precision=precision,
        recompute=recompute,
        overlap=overlap,
        gpus=gpus,
        missing=tuple(missing),
        ignored=settings.left(),
    )


def shipped_model(name: str) -> str | None:
    """The shipped model that a Hugging Face id or a path's last part names; None where none does.

    >>> shipped_model("meta-llama/Llama-3.1-70B"), shipped_model("unsloth/DeepSeek-V3"), shipped_model("mine/big")
    ('llama3.1-70b', 'deepseek-v3', None)
    """

    def plain(text: str) -> str:
        text = re.sub(r"^meta-", "", text.strip().rstrip("/").rsplit("/", 1)[-1].lower())
        return re.sub(r"[^a-z0-9.]|-(instruct|base|hf|chat)$", "", re.sub(r"-(instruct|base|hf|chat)\b", "", text))

    wanted = plain(name)
    return next((known for known in load_models() if wanted and plain(known) == wanted), None)


def layer_list(text: str) -> list[int] | None:
    """Numbers of Megatron's list expressions: ([0]*3+[1]*58), [1,1,0], "1"; None for anything else.

    >>> layer_list("([0]*3+[1]*2)")
    [0, 0, 0, 1, 1]
    """
    folded = re.sub(r"\s", "", text).strip("()")
    found: list[int] = []
    for term in folded.split("+"):
        match = re.fullmatch(r"\(?\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\)?", term)
        if match is None:
            return None
        found += [int(number) for number in match[1].split(",")] * int(match[2] or 1)
        if len(found) > 10_000:
            return None
    return found


def _unnamed(dimensions: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in dimensions.items() if name != "name"}


def _layout(settings: Settings, form: str, gpus: int | None) -> tuple[Layout, list[str]]:
    tp = settings.integer("tensor_model_parallel_size", "tensor_parallel_size") or 1
    pp = settings.integer("pipeline_model_parallel_size") or 1
    cp = settings.integer("model.context_parallel_size", "context_parallel_size") or 1
    ep = settings.integer("expert_model_parallel_size") or 1
    etp = settings.integer("expert_tensor_parallel_size")
    vpp = _virtual_stages(settings, pp)
    missing = []
    dp = 1
    if gpus is None:
        missing.append("dp")
    else:
        rest = tp * pp * cp
        if gpus % rest:
            raise InputError(
                f"{settings.path}: tp {tp} x pp {pp} x cp {cp} = {rest} does not divide the {gpus} GPUs that it names. "
                f"Nearest: {max(rest, round(gpus / rest) * rest)}."
            )
        dp = gpus // rest
    distributed = settings.flag("ddp.use_distributed_optimizer", "use_distributed_optimizer")
    if distributed is None:
        distributed = form == _BRIDGE  # its recipes use it unless told otherwise
    sharding = "zero1" if distributed else "zero0"
    if "distributed" in (settings.word("optim.name") or ""):  # distributed_fused_adam, mcore_distributed_optim
        sharding = "zero1"
    strategy = settings.word("ddp.data_parallel_sharding_strategy", "data_parallel_sharding_strategy", among=_STRATEGY)
    fsdp = [settings.flag(name) for name in ("ddp.use_megatron_fsdp", "ddp.use_custom_fsdp")]
    fsdp += [settings.flag(name) for name in ("use_megatron_fsdp", "use_custom_fsdp") if not any(fsdp)]
    if any(fsdp):
        sharding = _STRATEGY[strategy] if strategy and strategy != "no_shard" else "fsdp"
    if settings.flag("use_torch_fsdp2"):
        sharding = "fsdp"
    sp = settings.flag("sequence_parallel")
    contexts = settings.items("cp_comm_type") or ["p2p"]
    words = [part for item in contexts for part in str(item).lower().split()] or ["p2p"]
    if words[0] not in _CONTEXT:
        raise settings.wrong("cp_comm_type", f"cp_comm_type is {words[0][:40]!r}; one of {', '.join(_CONTEXT)}.")
    order = "tp-cp-ep-pp-dp" if settings.flag("use_tp_pp_dp_mapping") else "tp-cp-ep-dp-pp"
    experts = settings.integer("num_moe_experts", "num_experts")
    layout = Layout(
        tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=(etp or tp) if experts else 1, vpp=vpp, sharding=sharding, sp=bool(sp) and tp > 1,
        schedule="interleaved" if vpp > 1 else "1f1b", context=_CONTEXT[words[0]], order=order,
    )  # fmt: skip
    return layout, missing


def _virtual_stages(settings: Settings, pp: int) -> int:
    found = settings.integer(
        "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_parallel_size"
    )
    each = settings.integer("num_layers_per_virtual_pipeline_stage")
    written = settings.word("pipeline_model_parallel_layout")
    if found:
        return found
    if each:
        layers = settings.integer("num_layers", "encoder_num_layers", "decoder_num_layers")
        if layers is None:
            return 1
        if layers % (pp * each):
            raise settings.wrong(
                "num_layers_per_virtual_pipeline_stage",
                f"{each} layers a virtual stage and pp {pp} do not divide {layers} layers. Take a divisor of {layers // pp}.",
            )
        return layers // pp // each
    if written:
        stages = _stages_written(written)
        if stages is None or stages % pp:
            raise settings.wrong(
                "pipeline_model_parallel_layout",
                f"pipeline_model_parallel_layout is {written[:60]!r}: {'no layout' if stages is None else f'{stages} stages'}, "
                f"which pp {pp} does not divide. Separate stages with |.",
            )
        settings.note("pipeline_model_parallel_layout", "only the number of stages is used; layers are spread evenly")
        return stages // pp
    return 1


def _stages_written(text: str) -> int | None:
    """Stages of Megatron's layout text: E embedding, t layer, m MTP, L loss, | next stage, (..)*n repeated; None where it is none.

    >>> _stages_written("et*3|(tt|)*29m|l")
    32
    """
    folded = re.sub(r"[\s,]", "", text)
    for _ in range(10):
        found = re.search(r"\(([a-z|]*)\)\*(\d{1,4})|([a-z|])\*(\d{1,4})", folded)
        if found is None:
            break
        group, times = (found[1], int(found[2])) if found[2] else (found[3], int(found[4]))
        if len(group) * times > 100_000:
            return None
        folded = folded[: found.start()] + group * times + folded[found.end() :]
    return folded.count("|") + 1 if re.fullmatch(r"[etml|]+", folded) else None


def _dimensions(settings: Settings, layout: Layout) -> dict[str, Any]:
    if settings.has("encoder_num_layers") and settings.has("decoder_num_layers"):
        raise settings.wrong("decoder_num_layers", "an encoder beside the decoder cannot be modelled yet.")
    found: dict[str, Any] = {
        "layers": settings.integer("num_layers", "encoder_num_layers", "decoder_num_layers"),
        "hidden": settings.integer("hidden_size"),
        "heads": settings.integer("num_attention_heads"),
    }
    groups = settings.integer("num_query_groups")
    if groups and settings.flag("group_query_attention") is not False:
        found["kv_heads"] = groups
    mla = settings.flag("multi_latent_attention")
    head_dim = settings.integer("kv_channels")
    if mla:
        found |= _latent(settings)
        found.pop("kv_heads", None)
    elif head_dim:
        found["head_dim"] = head_dim
    gated = bool(settings.flag("swiglu")) or bool(settings.flag("gated_linear_unit"))
    gated = gated or bool(settings.flag("quick_geglu"))
    activation = settings.word("model.activation", "activation")
    gated = gated or bool(activation and any(word in activation for word in _GATED))
    found["gated"] = gated and not settings.flag("squared_relu")
    hidden = found["hidden"] or 0
    ffn = settings.integer("ffn_hidden_size")
    if ffn is None and hidden:  # Megatron-LM arguments.py: 4 h, or two thirds of it in multiples of 64 when gated
        ffn = int(4 * hidden * 2 / 3) // 64 * 64 if settings.flag("swiglu") else 4 * hidden
    found["ffn"] = ffn
    found |= _experts(settings, found)
    found |= _hybrid(settings, hidden)
    if found["layers"] is None and "pattern" in found:
        found["layers"] = len(found["pattern"])
    window = settings.items("window_size")
    if window:
        sizes = re.findall(r"\d{1,9}", str(window[0]))
        found["window"] = int(sizes[0]) + 1 if sizes else 0
        skip = settings.integer("window_attn_skip_freq")
        found["window_every"] = skip or 0
    found["mtp"] = settings.integer("mtp_num_layers", least=0) or None
    found["vocab"] = _vocabulary(settings, layout)
    untied = settings.flag("untie_embeddings_and_output_weights")
    shared = settings.flag("share_embeddings_and_output_weights")
    found["tied"] = shared if shared is not None else not untied
    return {name: value for name, value in found.items() if value is not None}


def _latent(settings: Settings) -> dict[str, Any]:
    """Multi-head latent attention; defaults of Megatron-Core's MLATransformerConfig."""
    return {
        "q_lora_rank": settings.integer("q_lora_rank") or 0,
        "kv_lora_rank": settings.integer("kv_lora_rank") or 512,
        "qk_nope_head_dim": settings.integer("qk_head_dim") or 128,
        "qk_rope_head_dim": settings.integer("qk_pos_emb_head_dim") or 64,
        "v_head_dim": settings.integer("v_head_dim") or 128,
    }


def _experts(settings: Settings, found: dict[str, Any]) -> dict[str, Any]:
    experts = settings.integer("num_moe_experts", "num_experts", least=0)
    if not experts:
        return {}
    routed: dict[str, Any] = {
        "experts": experts,
        "top_k": settings.integer("moe_router_topk") or 2,
        "moe_ffn": settings.integer("moe_ffn_hidden_size") or found["ffn"],
        "shared_ffn": settings.integer("moe_shared_expert_intermediate_size", least=0) or 0,
        "moe_hidden": settings.integer("moe_latent_size") or 0,
    }
    setting = settings.find("moe_layer_freq")
    layers = found["layers"] or 0
    if setting is None:
        return routed
    value = setting.value
    listed: list[int] | None
    if isinstance(value, list):
        listed = [int(item) for item in value if str(item) in ("0", "1")]
    elif re.fullmatch(r"\d{1,4}", str(value).strip()):
        every = max(1, int(str(value)))
        # A number n puts experts in layers 0, n, 2n ...; ours are the last of each n: as many, elsewhere.
        listed, routed["moe_every"] = None, every
        return routed
    else:
        listed = layer_list(str(value))
    if listed is None or (layers and len(listed) != layers):
        raise settings.error(setting, f"a number, or a list of a 0 or 1 for each of {layers or 'the'} layers")
    period = round(len(listed) / max(1, sum(listed)))
    if period > 1 and listed == [int((place + 1) % period == 0) for place in range(len(listed))]:
        routed["moe_every"] = period
        return routed
    dense = listed.index(1) if 1 in listed else len(listed)
    routed["dense_layers_first"] = dense
    if 0 in listed[dense:]:
        every = (len(listed) - dense) // max(1, sum(listed))
        routed["moe_every"] = max(1, every)
        settings.note(
            "moe_layer_freq", f"dense layers among those with experts; modelled as experts in every {every}. layer"
        )
    return routed


def _hybrid(settings: Settings, hidden: int) -> dict[str, Any]:
    setting = settings.find("hybrid_override_pattern", "hybrid_layer_pattern")
    if setting is None:
        return {}
    pattern = re.split(r"/", str(setting.value).strip())[0].replace("|", "")
    if set(pattern) - set("M*E-"):
        raise settings.error(setting, "a letter a layer: M Mamba, * attention, E experts, - FFN")
    head_dim = settings.integer("mamba_head_dim") or 64
    return {
        "pattern": pattern,
        "mamba_heads": settings.integer("mamba_num_heads") or 2 * hidden // head_dim or None,  # MambaMixer: expand 2
        "mamba_head_dim": head_dim,
        "mamba_state": settings.integer("mamba_state_dim") or 128,
        "mamba_groups": settings.integer("mamba_num_groups") or 8,
    }


def _vocabulary(settings: Settings, layout: Layout) -> int | None:
    found = settings.integer("padded_vocab_size", "model.vocab_size", "vocab_size")
    tokenizer = settings.word("tokenizer_type", either=True) or ""
    named = settings.word("tokenizer_model", "tokenizer.model", "tokenizer_name_or_path", either=True)
    if found is None:
        found = _TOKENIZERS.get(tokenizer)
        model = shipped_model(named or "")
        if found is None and model is not None:
            return load_models()[model].vocab
    if found is None:
        return None
    multiple = (settings.integer("make_vocab_size_divisible_by") or 128) * layout.tp
    return -(-found // multiple) * multiple


def _precision(settings: Settings) -> Precision | None:
    name = None
    written = settings.word("mixed_precision", "trainer.precision")
    if written:
        name = "fp16" if written.startswith(("16", "fp16")) else "bf16" if "bf16" in written else None
        for part, recipe in (
            ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("subchannel", "fp8-block"), ("blockwise", "fp8-block"), ("fp8", "fp8"),
        ):  # fmt: skip
            if part in written:
                name = recipe
                break
    elif settings.flag("mixed_precision.bf16", "bf16"):
        name = "bf16"
    elif settings.flag("mixed_precision.fp16", "fp16"):
        name = "fp16"
    fp8 = settings.word("mixed_precision.fp8", "model.fp8", "fp8_format", "fp8")
    fp8 = fp8 if fp8 not in ("none", "false", "0") else None
    if settings.flag("fp8_hybrid", "fp8_e4m3"):
        fp8 = "hybrid"
    recipe_of_fp8 = settings.word("mixed_precision.fp8_recipe", "fp8_recipe", among=_FP8_RECIPES)
    if fp8:
        name = _FP8_RECIPES[recipe_of_fp8 or "delayed"]
    fp4 = settings.word("mixed_precision.fp4", "fp4_format", "fp4")
    settings.word("mixed_precision.fp4_recipe", "fp4_recipe")
    if fp4 and fp4 not in ("none", "false", "0"):
        name = "nvfp4"
    return _stored(settings, PRECISIONS[name]) if name else None


_BYTES = {
    "fp32": 4.0,
    "float32": 4.0,
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "uint8": 1.0,
}


def _stored(settings: Settings, precision: Precision) -> Precision:
    """The recipe with what the file says of gradients, gathered weights and optimizer state."""

    def size(name: str, usual: float) -> float:
        setting = settings.find(f"optimizer.{name}", name, f"{name}._target_", either=True)
        text = str(setting.value).lower().rpartition(".")[2] if setting is not None else ""
        return _BYTES.get(text, usual)

    changes: dict[str, Any] = {}
    reduced = settings.flag("ddp.grad_reduce_in_fp32", "grad_reduce_in_fp32", "accumulate_allreduce_grads_in_fp32")
    if reduced is not None:
        changes["reduce_bytes"] = 4.0 if reduced else 2.0
    if settings.flag("mixed_precision.fp8_param_gather", "fp8_param_gather"):
        changes["gather_bytes"] = 1.0
    elif settings.has("mixed_precision.fp8_param_gather", "fp8_param_gather") and precision.gather_bytes < 2.0:
        changes["gather_bytes"] = 2.0
    if settings.flag("use_precision_aware_optimizer"):
        changes["gradient_bytes"] = size("main_grads_dtype", precision.gradient_bytes)
        moments = size("exp_avg_dtype", 4.0) + size("exp_avg_sq_dtype", 4.0)
        changes["state_bytes"] = size("main_params_dtype", 4.0) + moments
    return replace(precision, **changes) if changes else precision


def _overlap(settings: Settings) -> frozenset[str] | None:
    told = {
        "tp": settings.flag(
            "model.tp_comm_overlap", "comm_overlap.tp_comm_overlap", "ub_tp_comm_overlap", "tp_comm_overlap"
        ),
        "dp": settings.flag("ddp.overlap_grad_reduce", "comm_overlap.overlap_grad_reduce", "overlap_grad_reduce"),
        "ep": settings.flag("model.overlap_moe_expert_parallel_comm", "overlap_moe_expert_parallel_comm"),
        "pp": settings.flag("model.overlap_p2p_comm", "overlap_p2p_comm"),
    }
    if all(value is None for value in told.values()):
        return None
    return frozenset(name for name, value in told.items() if value)


def _recompute(settings: Settings) -> str | None:
    found = settings.word(
        "recompute_granularity", "activations_checkpoint_granularity", among=("full", "selective", "none")
    )
    layers = settings.integer("recompute_num_layers", "activations_checkpoint_num_layers", least=0)
    modules = settings.items("recompute_modules")
    if settings.flag("recompute_activations"):
        found = found or "selective"
    if found == "full" and layers and layers > 1:
        for name in ("recompute_num_layers", "activations_checkpoint_num_layers"):
            settings.note(name, "full recompute is taken as of every layer")
    names = [part for item in modules or [] for part in str(item).split()]
    if modules and names != ["core_attn"]:
        settings.note("recompute_modules", "selective recompute is taken as of core attention only")
    return found
