"""Models: the dimensions of a transformer or hybrid, layer by layer, its parameters and its operations a token.

Symbols as in the field: h hidden, a query heads, k key/value heads, d head size, f FFN width, V vocabulary, E experts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.hardware.what_if import nearest

__all__ = ["Kind", "Model", "find_model", "load_models", "model_of", "read_model"]

_MOST_BYTES = 1 << 20
_MOST_LAYERS, _MOST_DIMENSION = 10_000, 1 << 24
_LETTERS = {"M": ("mamba", "none"), "*": ("full", "none"), "E": ("none", "moe"), "-": ("none", "dense")}
"""Letters of a hybrid's pattern, as Megatron-Core and Nemotron-H write it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What one layer is: how it mixes tokens (full, window, mamba, none) and what follows (dense, moe, none)."""

    mixer: str
    ffn: str


@dataclass(frozen=True)
class Model:
    """Dimensions of a model. Raises InputError for those that no model can have."""

    name: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int = 0
    """0: as many as heads."""
    head_dim: int = 0
    """0: hidden / heads."""
    ffn: int = 0
    gated: bool = True
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    """Width of the experts that see every token, all together."""
    expert_bias: bool = False
    """Whether routed experts add biases, which grouped products do not fuse."""
    moe_hidden: int = 0
    """What routed experts work on where that is not `hidden` (latent experts); 0: hidden."""
    dense_layers_first: int = 0
    moe_every: int = 1
    pattern: str = ""
    """A letter a layer: M Mamba, * attention, E experts, - dense FFN. Empty: every layer has attention and FFN."""
    window: int = 0
    window_every: int = 0
    """Every n-th layer sees all tokens, the others `window`; 1 or 0 with a window: all layers see the window."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    mtp: int = 0
    """Layers that predict further tokens; each has a projection 2h to h and an output layer."""
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state: int = 0
    mamba_groups: int = 1
    tied: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "vocab", "heads"):
            self._positive(name)
        if self.layers > _MOST_LAYERS:
            raise InputError(f"model {self.name}: {self.layers} layers; at most {_MOST_LAYERS}.")
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim and not self.is_mla:
            if self.hidden % self.heads:
                raise InputError(
                    f"model {self.name}: hidden {self.hidden} is no multiple of {self.heads} heads. Give head_dim."
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise InputError(
                f"model {self.name}: {self.heads} heads cannot share {self.kv_heads} key/value heads; "
                f"kv_heads divides heads, nearest: {_nearest_divisor(self.heads, self.kv_heads)}."
            )
        if self.pattern and (len(self.pattern) != self.layers or set(self.pattern) - set(_LETTERS)):
            raise InputError(
                f"model {self.name}: pattern has {len(self.pattern)} letters for {self.layers} layers; "
                "one of M, *, E, - a layer."
            )
        if self.experts and not (0 < self.top_k <= self.experts and self.moe_ffn):
            raise InputError(
                f"model {self.name}: {self.experts} experts, top_k {self.top_k}, moe_ffn {self.moe_ffn}: a token goes to 1 to "
                f"{self.experts} experts of some width. Give top_k and moe_ffn."
            )
        if self.is_mla and not (self.qk_nope_head_dim and self.v_head_dim):
            raise InputError(
                f"model {self.name}: kv_lora_rank needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim."
            )
        kinds = self.kinds
        if any(kind.ffn == "moe" for kind in kinds) and not self.experts:
            raise InputError(f"model {self.name}: layers with experts, but experts is 0.")
        if any(kind.ffn == "dense" for kind in kinds) and not self.ffn:
            raise InputError(f"model {self.name}: layers with a dense FFN, but ffn is 0.")
        if any(kind.mixer == "mamba" for kind in kinds) and not (
            self.mamba_heads and self.mamba_head_dim and self.mamba_state
        ):
            raise InputError(f"model {self.name}: Mamba layers need mamba_heads, mamba_head_dim and mamba_state.")

    def _positive(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST_DIMENSION:
            raise InputError(f"model {self.name}: {name} is {value!r}; a whole number from 1 to {_MOST_DIMENSION}.")

    @property
    def is_mla(self) -> bool:
        """Whether keys and values come from a latent vector (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def is_moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.experts > 0

    @property
    def matrices(self) -> int:
        """Of an FFN: 3 when gated, else 2."""
        return 3 if self.gated else 2

    @property
    def expert_hidden(self) -> int:
        """What routed experts take in and give out."""
        return self.moe_hidden or self.hidden

    @property
    def query_dim(self) -> int:
        """Of one head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.is_mla else self.head_dim

    @property
    def value_dim(self) -> int:
        """Of one head's value."""
        return self.v_head_dim if self.is_mla else self.head_dim

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Of every layer, in order; layers that predict further tokens are not in it."""
        if self.pattern:
            return tuple(Kind(*_LETTERS[letter]) for letter in self.pattern)
        found = []
        for layer in range(self.layers):
            routed = self.experts and layer >= self.dense_layers_first and (layer + 1) % self.moe_every == 0
            windowed = self.window and not (self.window_every > 1 and (layer + 1) % self.window_every == 0)
            found.append(Kind("window" if windowed else "full", "moe" if routed else "dense"))
        return tuple(found)

    @cached_property
    def counts(self) -> Mapping[Kind, int]:
        """Layers of each kind."""
        return Counter(self.kinds)

    @cached_property
    def mtp_kinds(self) -> tuple[Kind, ...]:
        """What one layer that predicts a further token is made of: like the last layer; of a hybrid attention and experts."""
        if self.pattern:
            return (Kind("full", "none"), Kind("none", "moe" if self.experts else "dense"))
        return (self.kinds[-1],)

    # --- parameters -----------------------------------------------------------------------------------------------
    def attention_parameters(self) -> int:
        """Of one attention: the projections."""
        h, a, k = self.hidden, self.heads, self.kv_heads
        if self.is_mla:
            q = (
                h * self.q_lora_rank + self.q_lora_rank * a * self.query_dim
                if self.q_lora_rank
                else h * a * self.query_dim
            )
            kv = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            return q + kv + self.kv_lora_rank * a * (self.qk_nope_head_dim + self.v_head_dim) + a * self.v_head_dim * h
        return h * a * self.head_dim * 2 + 2 * h * k * self.head_dim

    def mamba_parameters(self) -> int:
        """Of one Mamba-2 mixer: the projections in and out."""
        inner = self.mamba_heads * self.mamba_head_dim
        return (
            self.hidden * (2 * inner + 2 * self.mamba_groups * self.mamba_state + self.mamba_heads)
            + inner * self.hidden
        )

    def dense_parameters(self) -> int:
        """Of one dense FFN."""
        return self.matrices * self.hidden * self.ffn

    def expert_parameters(self) -> int:
        """Of one routed expert."""
        return self.matrices * self.expert_hidden * self.moe_ffn

    def shared_parameters(self) -> int:
        """Of what every token of an MoE layer passes beside routed experts: shared experts, router, ways into a latent space."""
        latent = 2 * self.hidden * self.moe_hidden if self.moe_hidden and self.moe_hidden != self.hidden else 0
        return self.matrices * self.hidden * self.shared_ffn + self.hidden * self.experts + latent

    def kind_parameters(self, kind: Kind) -> tuple[int, int]:
        """Of a layer: (what every rank of a tensor-parallel group shares, routed experts)."""
        mixer = {"full": self.attention_parameters, "window": self.attention_parameters, "mamba": self.mamba_parameters}
        own = mixer[kind.mixer]() if kind.mixer in mixer else 0
        if kind.ffn == "dense":
            own += self.dense_parameters()
        elif kind.ffn == "moe":
            own += self.shared_parameters()
        norms = self.hidden * ((kind.mixer != "none") + (kind.ffn != "none"))
        return own + norms, self.experts * self.expert_parameters() if kind.ffn == "moe" else 0

    @cached_property
    def parameters(self) -> int:
        """All, embeddings once or twice, without layers that predict further tokens."""
        layers = sum(sum(self.kind_parameters(kind)) * count for kind, count in self.counts.items())
        return layers + self.hidden * self.vocab * (1 if self.tied else 2) + self.hidden

    @cached_property
    def active_parameters(self) -> int:
        """Of which a token uses: top_k experts of each layer."""
        idle = sum(count for kind, count in self.counts.items() if kind.ffn == "moe")
        return self.parameters - idle * (self.experts - self.top_k) * self.expert_parameters()

    @cached_property
    def mtp_parameters(self) -> int:
        """Of the layers that predict further tokens; their output layer and embedding are the model's own."""
        one = sum(sum(self.kind_parameters(kind)) for kind in self.mtp_kinds) + 2 * self.hidden**2
        return self.mtp * one

    # --- operations -----------------------------------------------------------------------------------------------
    def core_flops_per_token(self, kind: Kind, seq_len: int, causal: bool = True) -> float:
        """Of scores and weighted sum of one layer, forward, a token on average; of the scan of a Mamba layer."""
        if kind.mixer == "mamba":
            # Source: Megatron-LM, training.py, mamba_layer_flops: 7 operations a channel and state.
            return 7.0 * self.mamba_heads * self.mamba_head_dim * self.mamba_state
        if kind.mixer == "none":
            return 0.0
        seen = seq_len / 2 if causal else float(seq_len)
        if kind.mixer == "window" and self.window < seq_len:
            seen = self.window * (1 - self.window / seq_len / 2) if causal else float(self.window)
        return 2.0 * seen * self.heads * (self.query_dim + self.value_dim)

    def kind_flops_per_token(self, kind: Kind, seq_len: int, causal: bool = True) -> float:
        """Of one layer, forward."""
        own, _ = self.kind_parameters(kind)
        own -= self.hidden * ((kind.mixer != "none") + (kind.ffn != "none"))
        if kind.ffn == "moe":
            own += self.top_k * self.expert_parameters()
        return 2.0 * own + self.core_flops_per_token(kind, seq_len, causal)

    def forward_flops_per_token(self, seq_len: int, causal: bool = True) -> float:
        """Of a token in a sequence of seq_len, forward, output layer included. causal: masked work is not counted."""
        layers = sum(self.kind_flops_per_token(kind, seq_len, causal) * count for kind, count in self.counts.items())
        output = 2.0 * self.hidden * self.vocab
        further = sum(self.kind_flops_per_token(kind, seq_len, causal) for kind in self.mtp_kinds)
        return layers + output + self.mtp * (further + 4.0 * self.hidden**2 + output)

    def flops_per_token(self, seq_len: int, causal: bool = True) -> float:
        """Model operations of a token trained, three times forward; what is computed again is not counted.

        >>> round(find_model("llama3.1-405b").flops_per_token(8192) / 1e9)
        2524
        """
        return 3.0 * self.forward_flops_per_token(seq_len, causal)


_NAMES = {field.name for field in fields(Model)} - {"name"}


def model_of(name: str, dimensions: Mapping[str, Any], where: str) -> Model:
    """The model of dimensions that a file or table gives. Raises InputError for names and values that cannot be."""
    unknown = sorted(str(key) for key in dimensions if key not in _NAMES)
    if unknown:
        raise InputError(
            f"{where}: {unknown[0]!r} is no dimension of a model. {nearest(unknown[0], sorted(_NAMES))}".rstrip()
        )
    for key, value in dimensions.items():
        if key in ("pattern", "source"):
            good = isinstance(value, str)
        elif key in ("expert_bias", "gated", "tied"):
            good = isinstance(value, bool)
        else:
            good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_DIMENSION
        if not good:
            raise InputError(f"{where}: {key} is {value!r}, which cannot be.")
    missing = [key for key in ("layers", "hidden", "vocab", "heads") if key not in dimensions]
    if missing:
        raise InputError(
            f"{where}: {', '.join(missing)} not given. A model has at least layers, hidden, vocab and heads."
        )
    return Model(name=name, **dimensions)


@lru_cache(maxsize=1)
def _shipped() -> tuple[Mapping[str, Model], Mapping[str, str]]:
    text = (resources.files("busbw.workloads.training") / "models.json").read_text(encoding="utf-8")
    document = json.loads(text)
    models = {name: model_of(name, given, f"models.json: {name}") for name, given in document["models"].items()}
    return models, document["not_modelled"]


def load_models() -> Mapping[str, Model]:
    """Every model that ships, by name."""
    return _shipped()[0]


def find_model(name: str) -> Model:
    """The model of a name, or of a YAML file. Raises InputError for one that is not known, with the nearest names."""
    models, not_modelled = _shipped()
    folded = name.strip().lower()
    if folded in models:
        return models[folded]
    if folded.endswith((".yaml", ".yml")):
        return read_model(Path(name))
    if folded in not_modelled:
        raise InputError(
            f"model {name}: {not_modelled[folded]} cannot be modelled yet. {nearest(folded, list(models))}".rstrip()
        )
    raise InputError(
        f"model {name!r} is not known. {nearest(folded, list(models))}A model of your own is a YAML file with layers, hidden, "
        "vocab, heads, ffn ..."
    )


def read_model(path: Path) -> Model:
    """The model of a YAML file: the fields of Model, `name` if it likes. Raises InputError for what is none."""
    import yaml  # noqa: PLC0415 - most models are named

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, so no model.")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Name a model or a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: no YAML ({str(error).splitlines()[0][:200]}).") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: a model is a mapping: layers: 32, hidden: 4096, ...")
    name = document.pop("name", path.stem)
    return model_of(str(name)[:200], document, str(path))


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda divisor: abs(math.log(divisor / max(1, wanted))))
