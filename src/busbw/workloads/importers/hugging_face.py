"""Hugging Face: a model's config.json. It says nothing of layout or batch. Source of names: transformers, models/*/configuration_*.py."""

from __future__ import annotations

from typing import Any

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Imported, Setting, Settings
from busbw.workloads.training.models import model_of

__all__ = ["import_hugging_face"]

_NOT_MODELLED = {
    "deepseek_v32": "its sparse attention",
    "deepseek_v4": "its compressed sparse attention",
    "glm_moe_dsa": "its sparse attention with an indexer",
    "qwen3_next": "its gated delta-rule layers",
    "qwen3_5": "its gated delta-rule layers",
    "qwen3_5_moe": "its gated delta-rule layers",
    "qwen3_5_text": "its gated delta-rule layers",
    "qwen3_5_moe_text": "its gated delta-rule layers",
    "kimi_linear": "its linear attention",
    "minimax_text_01": "its linear attention",
    "jamba": "its Mamba-1 layers",
    "mamba": "a model without attention",
    "mamba2": "a model without attention",
    "falcon_mamba": "a model without attention",
    "rwkv": "a model without attention",
    "t5": "an encoder beside the decoder",
    "mt5": "an encoder beside the decoder",
    "bart": "an encoder beside the decoder",
    "whisper": "an encoder beside the decoder",
}
_UNGATED = {
    *(
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "codegen",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "phi",
        "starcoder2",
    ),
    *("nemotron", "nemotron_h", "bert", "roberta", "xlm-roberta", "persimmon"),
}
"""Model types whose feed-forward layer has two matrices."""
_TIED = {
    "gpt2",
    "gpt_neo",
    "gpt_bigcode",
    "bloom",
    "falcon",
    "opt",
    "mpt",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "cohere",
    "cohere2",
}
"""Model types that tie input and output embeddings unless the file says otherwise."""
_WINDOW_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "gemma3": 6, "gemma3_text": 6, "olmo3": 4}
"""Every n-th layer sees all tokens, where the file lists no layer types. Source: configuration_*.py of each."""
_WINDOW_KINDS = {"sliding_attention": True, "chunked_attention": True, "full_attention": False, "attention": False}


def import_hugging_face(settings: Settings) -> Imported:
    """The model. Raises InputError for architectures that cannot be modelled and dimensions that cannot be."""
    inner = settings.has("text_config.hidden_size", "llm_config.hidden_size", "language_config.hidden_size")
    if inner:
        settings = _language_part(settings)
    kind = settings.word("model_type") or ""
    if kind in _NOT_MODELLED:
        raise settings.wrong("model_type", f"model_type {kind}: {_NOT_MODELLED[kind]} cannot be modelled yet.")
    if settings.flag("is_encoder_decoder"):
        raise settings.wrong("is_encoder_decoder", "an encoder beside the decoder cannot be modelled yet.")
    if settings.has("index_topk", "index_n_heads", "compress_ratios"):
        raise settings.wrong(
            "index_topk", f"model_type {kind}: attention to a chosen few tokens cannot be modelled yet."
        )
    if settings.has("linear_num_value_heads", "linear_attn_config"):
        raise settings.wrong("model_type", f"model_type {kind}: linear attention cannot be modelled yet.")
    pattern = settings.has("hybrid_override_pattern", "layers_block_type")
    if settings.has("mamba_n_heads", "mamba_num_heads", "mamba_d_state", "ssm_cfg") and not pattern:
        raise settings.wrong(
            "model_type", f"model_type {kind}: Mamba layers as it arranges them cannot be modelled yet."
        )
    if any(one.key.startswith("block_configs.") for one in settings.settings):
        raise settings.wrong("block_configs", f"model_type {kind}: layers of differing sizes cannot be modelled yet.")
    found: dict[str, Any] = {
        "layers": settings.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": settings.integer("hidden_size", "n_embd", "d_model", "dim"),
        "vocab": settings.integer("vocab_size", "padded_vocab_size"),
        "heads": settings.integer("num_attention_heads", "n_head", "n_heads", "attn_num_heads"),
        "kv_heads": _kv_heads(settings, kind),
        "gated": _gated(settings, kind),
    }
    hybrid = _hybrid(settings, kind)
    if found["layers"] is None and hybrid:
        found["layers"] = len(hybrid["pattern"])
    lacking = [name for name in ("layers", "hidden", "vocab", "heads") if found[name] is None]
    if lacking:
        raise InputError(
            f"{settings.path}: {', '.join(lacking)} not given; a config.json has num_hidden_layers, hidden_size, vocab_size and "
            "num_attention_heads, or their older names."
        )
    found |= _latent(settings)
    if not found.get("kv_lora_rank"):
        found["head_dim"] = settings.integer("head_dim", "attention_head_dim", "kv_channels")
    else:
        found.pop("kv_heads")
    found["ffn"] = _ffn(settings, kind, found["hidden"])
    found |= _experts(settings, kind, found["layers"])
    found |= hybrid
    if not found.get("pattern"):
        found |= _window(settings, kind, found["layers"])
    if kind in ("llama4_text", "llama4"):
        dense = settings.integer("intermediate_size_mlp")
        found["ffn"] = dense or found["ffn"]
    found["mtp"] = settings.integer("num_nextn_predict_layers", least=0)
    tied = settings.flag("tie_word_embeddings")
    found["tied"] = tied if tied is not None else kind in _TIED
    for told in ("architectures", "torch_dtype", "dtype", "hidden_act"):
        settings.find(told)
    name = (settings.word("_name_or_path") or kind or "model").rsplit("/", 1)[-1][:80] or "model"
    dimensions = {key: value for key, value in found.items() if value is not None}
    return Imported(
        path=settings.path,
        format="hugging face config.json",
        model=model_of(name, dimensions, settings.path),
        dimensions={**dimensions, "name": name},
        missing=("layout", "global_batch", "seq_len"),
        ignored=settings.left(),
    )


def _language_part(settings: Settings) -> Settings:
    """The text model of one that also sees or hears; its other parts are ignored."""
    names = ("text_config", "llm_config", "language_config")
    kept, others = [], []
    for one in settings.settings:
        head, _, rest = one.key.partition(".")
        if head in names and rest:
            kept.append(Setting(rest, one.value, one.line))
        else:
            others.append(Setting(f"(outside the language model).{one.key}", one.value, one.line))
    told = {one.key for one in kept}
    for one in list(others):
        plain = one.key.rsplit(".", 1)[-1]
        if plain in ("vocab_size", "tie_word_embeddings") and plain not in told and one.key.count(".") == 1:
            kept.append(Setting(plain, one.value, one.line))
            others.remove(one)
    renamed = [Setting(one.key.replace(".", "/"), one.value, one.line) for one in others]
    return Settings(settings.path, [*kept, *renamed])


def _kv_heads(settings: Settings, kind: str) -> int | None:
    found = settings.integer("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads")
    if kind == "falcon" and settings.flag("new_decoder_architecture") is not True and settings.flag("multi_query"):
        return 1
    if kind == "gpt_bigcode" and settings.flag("multi_query"):
        return 1
    return found


def _gated(settings: Settings, kind: str) -> bool:
    act = settings.word("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act") or ""
    if "glu" in act:
        return True
    return kind not in _UNGATED and act not in ("relu2",)


def _ffn(settings: Settings, kind: str, hidden: int) -> int | None:
    found = settings.integer("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if found is None and kind == "mpt":
        return hidden * (settings.integer("expansion_ratio") or 4)
    if found is None and kind in _UNGATED:
        return 4 * hidden  # gpt2, bloom, falcon: stated nowhere else
    return found


def _latent(settings: Settings) -> dict[str, Any]:
    rank = settings.integer("kv_lora_rank")
    if rank is None:
        return {}
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": settings.integer("q_lora_rank"),
        "qk_rope_head_dim": settings.integer("qk_rope_head_dim"),
        "qk_nope_head_dim": settings.integer("qk_nope_head_dim"),
        "v_head_dim": settings.integer("v_head_dim"),
    }


def _experts(settings: Settings, kind: str, layers: int) -> dict[str, Any]:
    experts = settings.integer("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", least=0)
    if not experts:
        return {}
    width = settings.integer("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size")
    shared = settings.integer(
        "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", least=0
    )
    count = settings.integer("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", least=0)
    if kind == "nemotron_h" and shared is not None:
        count, shared = count or 1, shared * (count or 1)
    elif shared is None and count:
        shared = count * (width or 0)
    if kind.startswith("llama4"):
        shared = width
    found: dict[str, Any] = {
        "experts": experts,
        "top_k": settings.integer(
            "num_experts_per_tok",
            "num_experts_per_token",
            "experts_per_token",
            "moe_k",
            "moe_topk",
            "top_k_experts",
            "moe_top_k",
        ),
        "moe_ffn": width,
        "shared_ffn": shared,
        "moe_hidden": settings.integer("moe_latent_size"),
        "dense_layers_first": settings.integer("first_k_dense_replace", "moe_layer_start_index", least=0),
    }
    listed = settings.items("moe_layer_freq")
    if listed is not None and len(listed) > 1:
        first = next((place for place, one in enumerate(listed) if str(one) == "1"), len(listed))
        found["dense_layers_first"] = first
        if any(str(one) == "0" for one in listed[first:]):
            settings.note("moe_layer_freq", "dense layers after the first with experts are taken as having experts")
    else:
        found["moe_every"] = settings.integer("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
    dense = settings.items("mlp_only_layers")
    if dense:
        numbers = sorted(int(one) for one in dense if str(one).isdigit())
        if numbers == list(range(len(numbers))):
            found["dense_layers_first"] = len(numbers)
        else:
            settings.note(
                "mlp_only_layers", "layers without experts other than the first ones are taken as having them"
            )
    routed = settings.items("moe_layers")
    if routed and not found.get("moe_every"):
        settings.note("moe_layers", "only the number of layers with experts is used")
        found["moe_every"] = max(1, layers // len(routed))
    return found


def _hybrid(settings: Settings, kind: str) -> dict[str, Any]:
    setting = settings.find("hybrid_override_pattern", "layers_block_type")
    if setting is None:
        return {}
    letters = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
    value = setting.value
    if isinstance(value, list):
        if any(str(one) not in letters for one in value):
            raise settings.error(setting, f"one of {', '.join(letters)} a layer")
        pattern = "".join(letters[str(one)] for one in value)
        if kind in ("zamba2", "bamba", "granitemoehybrid"):
            raise settings.wrong(
                "model_type", f"model_type {kind}: Mamba layers with a feed-forward part cannot be modelled yet."
            )
    else:
        pattern = str(value)
        if set(pattern) - set("M*E-"):
            raise settings.error(setting, "a letter a layer: M Mamba, * attention, E experts, - FFN")
    return {
        "pattern": pattern,
        "mamba_heads": settings.integer("mamba_num_heads", "n_mamba_heads", "mamba_n_heads"),
        "mamba_head_dim": settings.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
        "mamba_state": settings.integer("ssm_state_size", "mamba_d_state"),
        "mamba_groups": settings.integer("n_groups", "mamba_n_groups", "mamba_ngroups"),
    }


def _window(settings: Settings, kind: str, layers: int) -> dict[str, Any]:
    types = settings.find("layer_types")
    window = settings.integer("sliding_window", "sliding_window_size", "attention_chunk_size", least=0)
    if settings.flag("use_sliding_window") is False:
        return {}
    kinds = types.value if types is not None and isinstance(types.value, list) else None
    if types is not None and kinds is not None:
        strange = next((str(one) for one in kinds if str(one) not in _WINDOW_KINDS), None)
        if strange is not None:
            raise settings.error(
                types, f"{strange[:40]!r} layers cannot be modelled yet; full_attention and sliding_attention can"
            )
        seen = [_WINDOW_KINDS[str(one)] for one in kinds]
        if not any(seen) or not window:
            return {}
        whole = len(seen) - sum(seen)
        every = round(len(seen) / whole) if whole else 0
        if whole and seen != [(place + 1) % every != 0 for place in range(len(seen))]:
            settings.note("layer_types", f"taken as every {every}. layer seeing all tokens")
        return {"window": window, "window_every": every}
    if not window:
        return {}
    every = settings.integer("sliding_window_pattern", "_sliding_window_pattern", "window_every") or _WINDOW_EVERY.get(
        kind, 0
    )
    most = settings.integer("max_window_layers", least=0)
    if kind.startswith("qwen2") and most is not None and most >= layers:
        return {}  # windows begin at layer max_window_layers, which none reaches
    return {"window": window, "window_every": every}
