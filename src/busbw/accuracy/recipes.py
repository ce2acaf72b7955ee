"""What Megatron-Bridge's performance recipes set beside the layout: how tokens are dispatched, what graphs replay, what is computed again.

Its tables of measured steps leave that out and say that it stands in the recipes. Source: NVIDIA-NeMo/Megatron-Bridge, Apache-2.0, tags v0.1.0rc4 to v0.6.0,
scripts/performance (from v0.6.0 on src/megatron/bridge/perf_recipes); containers 25.09 to 26.08 in that order.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from busbw.workloads.training.job import SCOPES

__all__ = ["StatedRecipe", "stated_recipe"]

_RELEASES = ("25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.06", "26.06.01", "26.08")
_GPUS = {"H100-SXM-80GB": "H100", "B200-SXM": "B200", "B300-SXM": "B300"}
_SCOPES = {"attn": "attn", "mamba": "mamba", "mlp": "mlp", "moe_router": "router", "moe": "experts"}
_SIZES = ("tp", "pp", "vpp", "ep", "micro_batch", "global_batch")


@dataclass(frozen=True, slots=True)
class StatedRecipe:
    """Of one recipe."""

    dispatcher: str
    overlaps_experts: bool
    graphs: frozenset[str]
    again: frozenset[str]


@lru_cache(maxsize=1)
def _recipes() -> tuple[Mapping[str, str], ...]:
    text = (resources.files("busbw.accuracy") / "megatron_bridge_recipes.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def stated_recipe(model: str, gpu: str, precision: str, release: str, sizes: Mapping[str, Any]) -> StatedRecipe | None:
    """The recipe of a model on a GPU, of its precision if there is one: with most sizes alike, a release apart counting as half a size; else None.

    sizes: tp, pp, vpp, ep, micro_batch, global_batch.
    """
    place = _place(release)
    found: tuple[tuple[float, ...], Mapping[str, str]] | None = None
    for one in _recipes():
        if one["model"] != model or one["gpu"] != _GPUS.get(gpu, gpu):
            continue
        alike = sum(int(one[name]) == int(sizes.get(name) or 1) for name in _SIZES)
        far = min(abs(_place(word) - place) for word in one["releases"].split())
        rank = (one["precision"] == precision, alike - far / 2)
        if found is None or rank > found[0]:
            found = (rank, one)
    if found is None:
        return None
    one = found[1]
    parts = one["graphs"].split("+")
    graphs = frozenset(SCOPES) if "full" in parts else frozenset(_SCOPES[part] for part in parts if part in _SCOPES)
    again = frozenset(word for word in one["recompute"].split("+") if word)
    return StatedRecipe(one["dispatcher"], one["ep_overlap"] == "1", graphs, again)


def _place(release: str) -> int:
    return sum(release >= one for one in _RELEASES)
