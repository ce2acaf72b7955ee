"""NeMo and Megatron-Bridge: recipes and configurations as YAML, whole or as overrides.

Sources of names: NeMo, examples/nlp/language_modeling/conf; Megatron-Bridge, ConfigContainer and scripts/performance.
"""

from __future__ import annotations

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Imported, Settings
from busbw.workloads.importers.megatron_core import assemble

__all__ = ["import_bridge", "import_nemo"]


def import_bridge(settings: Settings) -> Imported:
    """What a Megatron-Bridge ConfigContainer says. Raises InputError for a table of several configurations."""
    rows = sorted(
        {".".join(one.key.split(".")[1:3]) for one in settings.settings if one.key.startswith("perf_matrix.")}
    )
    if rows:
        raise InputError(
            f"{settings.path}: perf_matrix holds {len(rows)} configurations ({', '.join(rows[:4])}{' ...' if len(rows) > 4 else ''}); "
            "an import is of one. Copy its values (tp, pp, cp, ep, mbs, gbs) into model and train, and take perf_matrix out."
        )
    return assemble(settings, "megatron-bridge yaml", _gpus(settings))


def import_nemo(settings: Settings) -> Imported:
    """What a NeMo configuration says."""
    return assemble(settings, "nemo yaml", _gpus(settings))


def _gpus(settings: Settings) -> int | None:
    nodes = settings.integer("trainer.num_nodes", "num_nodes")
    each = settings.integer("trainer.devices", "devices", "num_gpus_per_node")
    return nodes * each if nodes and each else None
