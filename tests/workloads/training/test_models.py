"""Models: what a token costs and what they hold, against figures that others published."""

from dataclasses import replace

import pytest

from busbw.errors import InputError
from busbw.workloads.training.models import Kind, Model, find_model, load_models, read_model

PUBLISHED = [
    # GFLOP a token trained, as model TFLOP/s over tokens/s of a published table: Megatron-Bridge, NeMo 24.07 (counts what is masked).
    ("llama3.1-405b", 8192, True, 0, 2524.0),
    ("llama3-70b", 8192, True, 0, 449.2),
    ("llama3-70b", 8192, False, 0, 481.4),
    ("llama3.1-8b", 8192, True, 0, 51.5),
    ("deepseek-v3", 4096, True, 1, 260.0),
    ("deepseek-v3", 4096, True, 0, 250.0),
    ("kimi-k2", 4096, True, 0, 204.6),
    ("qwen3-235b-a22b", 4096, True, 0, 148.0),
    ("qwen3-30b-a3b", 4096, True, 0, 23.0),
    ("gpt3-175b", 2048, False, 0, 1077.0),
    ("gpt-oss-120b", 4096, True, 0, 32.6),
    ("nemotron-340b", 4096, False, 0, 2105.6),
    ("llama2-70b", 4096, False, 0, 444.6),
]


@pytest.mark.parametrize(("name", "seq_len", "causal", "mtp", "gflop"), PUBLISHED)
def test_operations_of_a_token_are_those_that_sources_count(name, seq_len, causal, mtp, gflop):
    """Within 0.5 %: sources print three or four digits."""
    model = replace(find_model(name), mtp=mtp)
    assert model.flops_per_token(seq_len, causal) == pytest.approx(gflop * 1e9, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3.1-405b", 405.9, 405.9), ("deepseek-v3", 671.0, 37.6), ("qwen3-235b-a22b", 235.1, 22.2), ("mixtral-8x7b", 46.7, 12.9),
        ("gpt-oss-120b", 116.8, 5.7), ("nemotron3-nano-30b-a3b", 31.6, 3.6), ("nemotron3-super-120b-a12b", 120.7, 12.8),
    ],
)  # fmt: skip
def test_parameters_are_those_of_model_cards(name, billions, active):
    """Cards give one decimal; active counts embeddings."""
    model = find_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=5e-3)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=3e-2)


def test_a_layer_of_gpt_has_twelve_h_squared_parameters():
    """Attention 4 h^2, FFN 2 h 4h: 12 h^2, and two norms of h."""
    model = Model("toy", layers=3, hidden=64, vocab=100, heads=4, ffn=256, gated=False)
    assert model.kind_parameters(Kind("full", "dense")) == (12 * 64**2 + 2 * 64, 0)
    assert model.parameters == 3 * (12 * 64**2 + 128) + 2 * 100 * 64 + 64


def test_masked_work_is_half_of_attention():
    """Causal: s/2 keys on average; 4 s a d a layer without mask."""
    model = Model("toy", layers=2, hidden=64, vocab=100, heads=4, ffn=256, gated=False)
    whole, causal = model.forward_flops_per_token(128, causal=False), model.forward_flops_per_token(128)
    assert whole - causal == pytest.approx(2 * 4 * 128 * 64 / 2)


def test_a_window_stops_attention_from_growing():
    """Tokens past the window see as many keys as it has."""
    model = Model("toy", layers=1, hidden=64, vocab=100, heads=4, ffn=256, window=16)
    kind = Kind("window", "dense")
    assert model.core_flops_per_token(kind, 1 << 20) == pytest.approx(2 * 16 * 4 * (16 + 16), rel=1e-4)
    assert model.core_flops_per_token(kind, 8) == model.core_flops_per_token(Kind("full", "dense"), 8)


def test_every_model_that_ships_has_a_source_and_its_layers():
    for model in load_models().values():
        assert model.source
        assert len(model.kinds) == model.layers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 7}, "no multiple of 7 heads"),
        ({"kv_heads": 3}, "nearest: 4"),
        ({"layers": 0}, "layers is 0"),
        ({"experts": 8}, "Give top_k and moe_ffn"),
        ({"pattern": "M*"}, "2 letters for 4 layers"),
        ({"kv_lora_rank": 8, "head_dim": 16}, "qk_nope_head_dim"),
        ({"ffn": 0}, "ffn is 0"),
    ],
)
def test_dimensions_that_no_model_has_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        Model(**{"name": "toy", "layers": 4, "hidden": 64, "vocab": 100, "heads": 4, "ffn": 128, **changes})


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(InputError, match=r"llama3\.1-405b"):
        find_model("llama-3.1-405b")
    with pytest.raises(InputError, match="cannot be modelled yet"):
        find_model("glm-5")


def test_a_model_of_ones_own_is_a_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("layers: 2\nhidden: 64\nvocab: 100\nheads: 4\nffn: 128\n")
    assert read_model(path).name == "mine"
    assert find_model(str(path)).layers == 2
    path.write_text("layers: 2\nhiden: 64\n")
    with pytest.raises(InputError, match=r"hiden.*Did you mean hidden"):
        read_model(path)
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="mapping"):
        read_model(path)
    path.write_text("layers: many\nhidden: 64\nvocab: 1\nheads: 1\n")
    with pytest.raises(InputError, match="layers is 'many'"):
        read_model(path)
