"""Configurations of training software: what they say, what is ignored, what is refused and how that is said.

The texts are made for these tests from the names that each program documents; the values are those of published configurations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from busbw.errors import InputError
from busbw.workloads.importers import Imported, import_configuration
from busbw.workloads.training.models import load_models

FIXTURES = Path(__file__).parent / "fixtures"
GPT3 = (FIXTURES / "gpt3.sh").read_text()
DEEPSEEK = (FIXTURES / "deepseek_v3.yaml").read_text()
NEMO = (FIXTURES / "nemo.yaml").read_text()
BRIDGE = (FIXTURES / "bridge.yaml").read_text()
TITAN = (FIXTURES / "llama3.toml").read_text()
DEEPSPEED = json.loads((FIXTURES / "deepspeed.json").read_text())
LLAMA = json.loads((FIXTURES / "config.json").read_text())


def read(tmp_path: Path, name: str, text: str | dict) -> Imported:
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return import_configuration(file)


def test_a_megatron_script_is_tokenised(tmp_path: Path):
    """96 layers over 16 stages in pieces of 3 are 2 virtual stages; 128 GPUs over tp 8 x pp 16 leave dp 1; 50257 entries are padded to 128 x 8."""
    found = read(tmp_path, "train.sh", GPT3)
    assert str(found.layout) == "tp8.pp16.dp1.vpp2"
    assert (found.global_batch, found.micro_batch, found.seq_len, found.gpus) == (1536, 1, 2048, 128)
    assert (found.precision.name, found.recompute, found.missing) == ("fp16", "selective", ())
    assert found.model.vocab == 51200
    assert found.model.tied and not found.model.gated
    assert found.model.parameters == pytest.approx(175e9, rel=0.01)
    reasons = {one.key: one for one in found.ignored}
    assert reasons["data-path"].reason.startswith("unresolved")
    assert reasons["lr"].reason == "not modelled"
    assert reasons["lr"].line == 16


def test_a_variable_stays_unresolved_and_the_script_s_value_is_shown(tmp_path: Path):
    text = GPT3.replace("--tensor-model-parallel-size 8", "--tensor-model-parallel-size $TP").replace(
        "TRAIN=", "TP=8\nTRAIN="
    )
    found = read(tmp_path, "train.sh", text)
    (one,) = [one for one in found.ignored if one.key == "tensor-model-parallel-size"]
    assert one.value == "'$TP'"
    assert "the script sets TP=8" in one.reason
    assert found.layout.tp == 1


def test_nothing_in_a_script_is_run(tmp_path: Path):
    trap = tmp_path / "trap"
    read(tmp_path, "x.sh", f"--num-layers $(touch {trap}) --hidden-size `touch {trap}`\ntouch {trap}\n")
    assert not trap.exists()


def test_a_recipe_of_deepseek_v3_is_deepseek_v3(tmp_path: Path):
    """32 stages written over pp 8 are 4 virtual ones; the vocabulary is that of the tokenizer's model."""
    found = read(tmp_path, "fp8.yaml", DEEPSEEK)
    shipped = load_models()["deepseek-v3"]
    assert found.model.parameters == pytest.approx(shipped.parameters, rel=0.001)
    assert found.model.active_parameters == pytest.approx(shipped.active_parameters, rel=0.001)
    assert (found.model.kinds[2].ffn, found.model.kinds[3].ffn) == ("dense", "moe")
    layout, batch = found.on(1024)
    assert str(layout) == "tp2.pp8.dp64.ep64.vpp4"
    assert batch.micro_batches(layout) == 128
    assert found.precision.name == "fp8-block"
    assert found.missing == ("dp",)
    reasons = {one.key: one.reason for one in found.ignored}
    assert "core attention only" in reasons["ARGS.recompute_modules"]
    assert reasons["ARGS.load"].startswith("unresolved")


def test_nemo(tmp_path: Path):
    """32 GPUs over tp 4 x pp 2 leave dp 4."""
    found = read(tmp_path, "llama.yaml", NEMO)
    assert str(found.layout) == "tp4.pp2.dp4"
    assert found.model.parameters == pytest.approx(load_models()["llama2-7b"].parameters, rel=1e-3)
    assert (found.precision.name, found.format) == ("fp8", "nemo yaml")


def test_megatron_bridge(tmp_path: Path):
    found = read(tmp_path, "bridge.yaml", BRIDGE)
    assert found.model.parameters == load_models()["qwen3-30b-a3b"].parameters
    layout, batch = found.on(16)
    assert str(layout) == "tp1.cp2.pp1.dp8.ep8.fsdp.ulysses"
    assert (batch.global_batch, batch.seq_len, found.precision.name) == (512, 8192, "mxfp8")


def test_torchtitan(tmp_path: Path):
    """16 data-parallel ranks with 2 sequences each; with a pipeline a micro-batch is 1 unless said otherwise."""
    found = read(tmp_path, "llama3.toml", TITAN)
    assert found.model is load_models()["llama3.1-405b"]
    assert str(found.layout) == "tp8.pp4.dp16.vpp2.hsdp8"
    assert (found.global_batch, found.micro_batch, found.seq_len, found.gpus) == (32, 1, 8192, 512)
    assert (found.precision.name, found.recompute) == ("fp8-rowwise", "full")
    assert [(one.key, one.line) for one in found.ignored] == [("optimizer.name", 21)]


def test_torchtitan_shards_over_all_gpus_that_are_left(tmp_path: Path):
    text = "[model]\nname='llama3'\nflavor='8B'\n[training]\nlocal_batch_size=2\nseq_len=8192\n[parallelism]\ndata_parallel_shard_degree=-1\n"
    layout, batch = read(tmp_path, "a.toml", text).on(64)
    assert (str(layout), batch.global_batch, batch.micro_batch) == ("tp1.pp1.dp64.fsdp", 128, 2)


def test_deepspeed_says_how_many_gpus_its_batch_sizes_mean(tmp_path: Path):
    """256 sequences, 1 a GPU and micro-batch, 8 of these a step: 32 GPUs."""
    found = read(tmp_path, "ds.json", DEEPSPEED)
    assert str(found.layout) == "tp1.pp1.dp32.fsdp"
    assert found.missing == ("model", "seq_len")
    reasons = {one.key: one.reason for one in found.ignored}
    assert "offload is not modelled" in reasons["zero_optimization.offload_optimizer.device"]
    with pytest.raises(InputError, match="no sequence length"):
        found.on()


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (LLAMA, 70.6, 70.6),
        (
            {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
             "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "sliding_window": None},
            46.7, 12.9,
        ),
        (
            {"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
             "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
             "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936},
            235.1, 22.2,
        ),
        (
            {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
             "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
             "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536,
             "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1, "vocab_size": 129280},
            671.0, 37.6,
        ),
        (
            {"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
             "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
             "layer_types": ["sliding_attention", "full_attention"] * 18, "vocab_size": 201088},
            116.8, 5.7,
        ),
        ({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}, 1.55, 1.55),
        (
            {"architectures": ["Qwen3VL"], "tie_word_embeddings": False, "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
             "text_config": LLAMA},
            70.6, 70.6,
        ),
    ],
    ids=["llama", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "gpt2", "vision"],
)  # fmt: skip
def test_hugging_face_models_have_the_parameters_that_their_names_say(tmp_path, config, billions, active):
    found = read(tmp_path, "config.json", config)
    assert found.model.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert found.model.active_parameters / 1e9 == pytest.approx(active, rel=0.01)
    assert found.layout is None


def test_what_lies_outside_the_language_model_is_ignored_by_name(tmp_path: Path):
    found = read(tmp_path, "config.json", {"text_config": LLAMA, "vision_config": {"hidden_size": 1152}})
    assert any("vision_config" in one.key for one in found.ignored)


def test_windows_of_gpt_oss_alternate(tmp_path: Path):
    config = {**LLAMA, "model_type": "gpt_oss", "sliding_window": 128}
    kinds = read(tmp_path, "config.json", config).model.kinds
    assert [kind.mixer for kind in kinds[:4]] == ["window", "full", "window", "full"]


WRONG = [
    ("no.sh", "echo hello\n", r"no\.sh: no configuration of a known format. Known: Megatron-LM"),
    ("gpt.sh", GPT3.replace("--num-layers 96", "--num-layers many"), r"gpt\.sh:6: num-layers is 'many'; a whole number from 1 on"),
    ("gpt.sh", GPT3 + "--num-layers 95\n", r"gpt\.sh:17: num-layers is '95', but num-layers is '96' \(line 6\). Keep one"),
    ("gpt.sh", GPT3.replace("--nnodes 16", "--nnodes 15"), r"tp 8 x pp 16 x cp 1 = 128 does not divide the 120 GPUs.*Nearest: 128"),
    ("gpt.sh", GPT3.replace("stage 3", "stage 4"), r"4 layers a virtual stage and pp 16 do not divide 96 layers. Take a divisor of 6"),
    ("v3.yaml", DEEPSEEK.replace("[1]*58", "[1]*57"), r"v3\.yaml:16: ARGS.moe_layer_freq is .*each of 61 layers"),
    ("v3.yaml", DEEPSEEK.replace("Et*3|(tt|)*29m|L", "Et*3|tt"), r"pipeline_model_parallel_layout.* 2 stages, which pp 8 does not divide"),
    ("v3.yaml", DEEPSEEK.replace("blockwise", "sideways"), r"ARGS.fp8_recipe is 'sideways'; one of delayed"),
    ("v3.yaml", "ARGS: [", r"v3\.yaml:1: no YAML"),
    ("v3.yaml", "- a\n- b\n", r"a configuration is one mapping.*a list or a single value"),
    ("perf.yaml", "perf_matrix: {h100: {num_gpus_64: {tp: 1}}, b200: {num_gpus_64: {tp: 2}}}", r"perf_matrix holds 2 configurations"),
    ("t.toml", TITAN.replace("local_batch_size = 2", "local_batch_size = 0"), r"t\.toml:7: training.local_batch_size is 0; a whole number"),
    ("t.toml", TITAN.replace("Interleaved1F1B", "1F2B"), r"pipeline_parallel_schedule is '1F2B'; one of 1f1b"),
    ("t.toml", "[model\n", r"t\.toml:1: no TOML"),
    ("t.toml", "[tool]\nx=1\n", r"TOML, but no \[training\]"),
    ("ds.json", {**DEEPSPEED, "train_batch_size": 250}, r"ds\.json:1: train_batch_size 250 is no multiple of .*1 x .*8. Nearest: 248"),
    ("ds.json", {**DEEPSPEED, "zero_optimization": {"stage": 4}}, r"zero_optimization.stage is 4; a ZeRO stage, 0 to 3"),
    ("ds.json", "{,}", r"ds\.json:1: no JSON"),
    ("ds.json", '{"train_batch_size": 1, "train_batch_size": 2}', r"'train_batch_size' is given twice"),
    ("x.json", {"a": 1}, r"JSON, but neither DeepSpeed's nor a model's config.json"),
    ("config.json", {**LLAMA, "num_key_value_heads": 7}, r"64 heads cannot share 7 key/value heads.*nearest: 8"),
    ("config.json", {**LLAMA, "model_type": "qwen3_next"}, r"model_type qwen3_next: its gated delta-rule layers cannot be modelled yet"),
    ("config.json", {"model_type": "llama"}, r"layers, hidden, vocab, heads not given"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "says"), WRONG)
def test_what_cannot_be_is_refused_with_place_and_remedy(tmp_path: Path, name: str, text: str | dict, says: str):
    with pytest.raises(InputError, match=says):
        read(tmp_path, name, text)


def test_files_that_are_none(tmp_path: Path):
    with pytest.raises(InputError, match="a folder"):
        import_configuration(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        import_configuration(tmp_path / "missing.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text"):
        import_configuration(tmp_path / "b.json")


def test_aliases_that_multiply_are_stopped(tmp_path: Path):
    bomb = "a0: &a0 {x: 1, y: 2}\n" + "".join(
        f"a{n}: &a{n} {{l: *a{n - 1}, m: *a{n - 1}, n: *a{n - 1}}}\n" for n in range(1, 30)
    )
    with pytest.raises(InputError, match="larger or deeper"):
        read(tmp_path, "bomb.yaml", "model: {num_layers: 1}\n" + bomb)


def test_a_model_lacks_only_what_the_file_lacks(tmp_path: Path):
    found = read(tmp_path, "train.sh", GPT3.replace("    --vocab-size 50257\n", ""))
    assert found.model is None
    assert found.missing == ("vocab",)
    assert found.model_with(vocab=51200).layers == 96
    with pytest.raises(InputError, match="vocab not given"):
        found.model_with()


WHOLE = """
_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap: {tp_comm_overlap: false, overlap_grad_reduce: false}
dataset: {context_parallel_size: null, sequence_length: 4096, sequence_parallel_size: 0, data_parallel_size: 1}
ddp: {use_megatron_fsdp: false, use_distributed_optimizer: true, grad_reduce_in_fp32: false, overlap_grad_reduce: true,
  data_parallel_sharding_strategy: no_shard, fp8_param_gather: false}
dist: {use_megatron_fsdp: false, use_torch_fsdp2: false, use_tp_pp_dp_mapping: false}
mixed_precision: {bf16: true, fp16: false, fp4: null, fp4_recipe: nvfp4, fp8: hybrid, fp8_recipe: blockwise, fp8_param_gather: false}
model:
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  bf16: true
  fp8: null
  fp8_recipe: delayed
  num_layers: 61
  hidden_size: 7168
  ffn_hidden_size: 18432
  num_attention_heads: 128
  num_query_groups: 128
  kv_channels: 64
  gated_linear_unit: true
  multi_latent_attention: true
  q_lora_rank: 1536
  kv_lora_rank: 512
  qk_head_dim: 128
  qk_pos_emb_head_dim: 64
  v_head_dim: 128
  num_moe_experts: 256
  moe_router_topk: 8
  moe_ffn_hidden_size: 2048
  moe_shared_expert_intermediate_size: 2048
  moe_layer_freq: [0, 0, 0%s]
  window_size: null
  mtp_num_layers: 1
  vocab_size: 129280
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 8
  pipeline_model_parallel_layout: Et|(tt|)*30mL
  virtual_pipeline_model_parallel_size: 4
  expert_model_parallel_size: 64
  expert_tensor_parallel_size: 1
  context_parallel_size: 1
  sequence_parallel: true
  tp_comm_overlap: false
  overlap_moe_expert_parallel_comm: false
optimizer:
  use_distributed_optimizer: true
  use_precision_aware_optimizer: true
  main_grads_dtype: {_call_: false, _target_: torch.bfloat16}
  main_params_dtype: {_call_: false, _target_: torch.float32}
  exp_avg_dtype: {_call_: false, _target_: torch.bfloat16}
  exp_avg_sq_dtype: {_call_: false, _target_: torch.bfloat16}
  fp8_recipe: null
tokenizer: {vocab_size: 32000}
train: {global_batch_size: 8192, micro_batch_size: 1}
""" % (", 1" * 58)  # fmt: skip


def test_a_whole_bridge_configuration_says_one_name_in_several_places(tmp_path: Path):
    """Gradients are kept and sent in bf16; a master weight in fp32 and two moments in bf16 are 8 bytes; weights are gathered in bf16."""
    found = read(tmp_path, "dump.yaml", WHOLE)
    assert found.model.parameters == pytest.approx(load_models()["deepseek-v3"].parameters, rel=0.001)
    layout, _ = found.on(1024)
    assert str(layout) == "tp2.pp8.dp64.ep64.vpp4"
    precision = found.precision
    assert (precision.name, precision.gemm) == ("fp8-block", "fp8_block")
    assert (precision.gradient_bytes, precision.reduce_bytes, precision.state_bytes, precision.gather_bytes) == (
        2,
        2,
        8,
        2,
    )
    assert found.overlap == {"dp"}
