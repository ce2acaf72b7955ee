"""Finds out what a configuration file is and gives it to its importer."""

from __future__ import annotations

from pathlib import Path

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Imported, Settings, read_text
from busbw.workloads.importers.deepspeed import import_deepspeed
from busbw.workloads.importers.documents import json_settings, toml_settings, yaml_settings
from busbw.workloads.importers.hugging_face import import_hugging_face
from busbw.workloads.importers.megatron import import_arguments, import_settings, looks_like_arguments
from busbw.workloads.importers.nemo import import_bridge, import_nemo
from busbw.workloads.importers.torchtitan import import_torchtitan

__all__ = ["FORMATS", "import_configuration"]

FORMATS = (
    "Megatron-LM arguments (command line or shell script) or YAML, NeMo and Megatron-Bridge YAML, torchtitan TOML, DeepSpeed JSON, "
    "Hugging Face config.json"
)
_DEEPSPEED = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BRIDGE = ("model", "train", "ConfigContainer", "perf_matrix", "mixed_precision", "ddp", "dataset", "_target_")


def import_configuration(path: str | Path) -> Imported:
    """What a configuration says of a training job, and what of it was not used. Raises InputError for files of no known format."""
    name = str(path)
    text = read_text(Path(path))
    suffix = Path(path).suffix.lower()
    if suffix == ".toml":
        return _toml(name, text)
    if suffix in (".yaml", ".yml"):
        return _yaml(name, text)
    if suffix == ".json" or (suffix in ("", ".txt", ".conf", ".cfg") and text.lstrip()[:1] == "{"):
        return _json(name, text)
    if looks_like_arguments(text):
        return import_arguments(name, text)
    raise InputError(f"{name}: no configuration of a known format. Known: {FORMATS}.")


def _toml(name: str, text: str) -> Imported:
    settings = toml_settings(name, text)
    if not any(_has_section(settings, section) for section in ("training", "parallelism", "model")):
        raise InputError(
            f"{name}: TOML, but no [training], [parallelism] or [model] as torchtitan has. Known: {FORMATS}."
        )
    return import_torchtitan(settings)


def _json(name: str, text: str) -> Imported:
    settings = json_settings(name, text)
    if any(_has_section(settings, section) for section in _DEEPSPEED):
        return import_deepspeed(settings)
    if settings.has("model_type", "architectures", "hidden_size", "n_embd", "d_model"):
        return import_hugging_face(settings)
    raise InputError(f"{name}: JSON, but neither DeepSpeed's nor a model's config.json. Known: {FORMATS}.")


def _yaml(name: str, text: str) -> Imported:
    settings = yaml_settings(name, text)
    if _has_section(settings, "trainer"):
        return import_nemo(settings)
    megatron = any(
        _has_section(settings, section) for section in ("ARGS", "MODEL_ARGS", "language_model", "model_parallel")
    )
    if megatron or settings.has("/num_layers", "/hidden_size"):
        return import_settings(settings)
    if any(_has_section(settings, section) for section in _BRIDGE):
        return import_bridge(settings)
    if looks_like_arguments(text):
        return import_settings(settings)
    raise InputError(f"{name}: YAML, but neither Megatron's, NeMo's nor Megatron-Bridge's. Known: {FORMATS}.")


def _has_section(settings: Settings, section: str) -> bool:
    return any(one.key.split(".", 1)[0] == section for one in settings.settings)
