"""What Megatron-Bridge's recipes say beside its tables of measured steps."""

from __future__ import annotations

from busbw.accuracy.recipes import stated_recipe
from busbw.workloads.training.job import SCOPES


def test_the_recipe_of_a_release_is_found_by_its_sizes():
    """v0.3.0, GPT_OSS_120B_PRETRAIN_CONFIG_GB200_BF16_V2: no graphs, no flexible dispatcher, layernorm and moe_act computed again."""
    sizes = {"tp": 1, "pp": 1, "vpp": None, "ep": 64, "micro_batch": 4, "global_batch": 1280}
    found = stated_recipe("gpt-oss-120b", "GB200", "bf16", "26.02", sizes)
    assert found is not None
    assert (found.dispatcher, found.overlaps_experts, found.graphs) == ("alltoall", False, frozenset())
    assert found.again == {"layernorm", "moe_act"}


def test_the_same_sizes_in_a_later_release_may_run_another_way():
    """v0.5.0, GPT_OSS_120B_PRETRAIN_CONFIG_GB200_FP8_MX_V2: a graph of the whole step, HybridEP beside computing."""
    sizes = {"tp": 1, "pp": 1, "ep": 64, "micro_batch": 4, "global_batch": 1280}
    found = stated_recipe("gpt-oss-120b", "GB200", "mxfp8", "26.06", sizes)
    assert found is not None
    assert (found.dispatcher, found.overlaps_experts, found.graphs) == ("hybridep", True, frozenset(SCOPES))


def test_a_model_or_gpu_without_a_recipe_has_none():
    assert stated_recipe("gpt-oss-120b", "MI300X", "bf16", "26.02", {}) is None
    assert stated_recipe("nobody's-model", "GB200", "bf16", "26.02", {}) is None
