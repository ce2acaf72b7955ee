"""What a configuration says, setting by setting, with where it says it; and what an importer makes of it.

A format's parser turns a file into `Settings`. Asking for a setting marks it as understood; all others end up in `Imported.ignored`.
Nothing is executed: shell text is tokenised, YAML is composed but not constructed, variables stay as they stand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.workloads.training.layout import Batch, Layout, Precision
from busbw.workloads.training.models import Model, model_of

__all__ = ["Ignored", "Imported", "Setting", "Settings", "flat", "read_text"]

_MOST_BYTES = 4 << 20
_MOST_SETTINGS = 50_000
_DEEPEST = 40
_MOST_NUMBER = 1 << 40
_VARIABLE = re.compile(r"\$|`|\?\?\?|^auto$|<[^<>]*>")
"""What only a program fills in: $TP, ${TP}, `$(...)`, OmegaConf's ???, DeepSpeed's "auto", a place holder such as <path>."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting that the importer does not use."""

    key: str
    value: str
    line: int | None
    reason: str
    """not modelled, or unresolved: a variable that only a run fills in."""

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.key} = {self.value}{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One name and its value: text, number, truth, None or a list of these."""

    key: str
    value: Any
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What a configuration says of a training job. None and `missing`: it does not say."""

    path: str
    format: str
    model: Model | None = None
    dimensions: Mapping[str, Any] = field(default_factory=dict)
    """Of the model, as far as they are given: with those missing, `model_with` makes the model."""
    layout: Layout | None = None
    """dp is 1 where it is missing: the cluster decides it."""
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    """Micro-batches a step and pipeline, where the file says this and not the global batch."""
    seq_len: int | None = None
    precision: Precision | None = None
    recompute: str | None = None
    overlap: frozenset[str] | None = None
    """Groups whose communication runs beside computing, where the file says so: of tp, dp, ep, pp."""
    gpus: int | None = None
    missing: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()

    def model_with(self, **dimensions: Any) -> Model:
        """The model, with dimensions added or changed. Raises InputError while some are missing."""
        if self.model is not None and not dimensions:
            return self.model
        given = {**self.dimensions, **dimensions}
        name = str(given.pop("name", Path(self.path).stem))
        return model_of(name, given, self.path)

    def on(self, gpus: int | None = None) -> tuple[Layout, Batch]:
        """Layout and batch on a number of GPUs, or on the file's own. Raises InputError for what is missing or does not fit."""
        layout = self.layout or Layout()
        gpus = gpus if gpus is not None else self.gpus
        if "dp" in self.missing:
            if gpus is None:
                raise InputError(f"{self.path}: does not say on how many GPUs it runs. Give --nodes.")
            rest = layout.tp * layout.cp * layout.pp
            if gpus % rest:
                raise InputError(
                    f"{self.path}: tp {layout.tp} x cp {layout.cp} x pp {layout.pp} = {rest} does not divide {gpus} GPUs. "
                    f"Nearest: {max(rest, round(gpus / rest) * rest)}."
                )
            layout = replace(layout, dp=gpus // rest)
        if self.seq_len is None:
            raise InputError(f"{self.path}: no sequence length. Give --seq-len.")
        micro = self.micro_batch or 1
        whole = self.global_batch or micro * layout.dp * (self.accumulation or 1)
        return layout, Batch(whole, micro, self.seq_len)


class Settings:
    """Settings of a file by name. A name without dots finds a key that ends in it; `model.seq_length` one that ends in both.

    `/seed` finds the key `seed` alone. Names are lower case with underscores; of names given together the first that has a value
    counts.
    """

    def __init__(self, path: str, settings: Iterable[Setting]) -> None:
        self.path = path
        self.settings = list(settings)
        if len(self.settings) > _MOST_SETTINGS:
            raise InputError(
                f"{path}: more than {_MOST_SETTINGS} settings; no configuration of a training job has so many."
            )
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, setting in enumerate(self.settings):
            parts = _folded(setting.key).split(".")
            self._places[f"/{'.'.join(parts)}"].append(place)
            for start in range(len(parts)):
                self._places[".".join(parts[start:])].append(place)
        self._used: set[int] = set()
        self._unresolved: dict[int, str] = {}

    def has(self, *names: str) -> bool:
        """Whether one of the names has a value."""
        return any(self.settings[place].value is not None for name in names for place in self._places.get(name, ()))

    def find(self, *names: str, either: bool = False) -> Setting | None:
        """The setting of the first name that has a value; None where none has.

        Raises InputError for two values, but not where `either` will do.
        """
        for name in names:
            places = self._places.get(name, [])
            self._used |= set(places)
            found = [self.settings[place] for place in places if self.settings[place].value is not None]
            if not found:
                continue
            other = next((other for other in found[1:] if _same(other.value) != _same(found[0].value)), None)
            if other is not None and not either:
                raise InputError(
                    f"{self.where(other)}: {_name(other)} is {_shown(other.value)}, but {_name(found[0])} is "
                    f"{_shown(found[0].value)}{_line(found[0])}. Keep one."
                )
            if _unresolved(found[0].value):
                for place in places:
                    self._unresolved[place] = "unresolved: a run fills it in. Write the value out"
                continue
            return found[0]
        return None

    def integer(self, *names: str, least: int = 1, lenient: bool = False) -> int | None:
        """A whole number from `least` on. Raises InputError for anything else; lenient: words and two values are not resolved."""
        setting = self.find(*names, either=lenient)
        if setting is None:
            return None
        value = setting.value
        if lenient and not re.fullmatch(r"\d{1,13}", str(value).strip()):
            for name in names:
                self.note(name, "unresolved: no number. Write the value out")
            return None
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"[+-]?\d{1,13}", value.strip()) else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_NUMBER:
            raise self.error(setting, f"a whole number from {least} on")
        return value

    def flag(self, *names: str) -> bool | None:
        """A truth value; a name without a value is true. Raises InputError for anything else."""
        setting = self.find(*names)
        if setting is None:
            return None
        value = setting.value
        if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE, ""):
            return value.strip().lower() not in _FALSE
        if isinstance(value, (bool, int)):
            return bool(value)
        raise self.error(setting, "true or false")

    def word(
        self, *names: str, among: Mapping[str, Any] | Sequence[str] | None = None, either: bool = False
    ) -> str | None:
        """A text, lower case. Raises InputError for one that is not among those given."""
        setting = self.find(*names, either=either)
        if setting is None or setting.value is False:
            return None
        if not isinstance(setting.value, (str, int, float)):
            raise self.error(setting, "a text" if among is None else f"one of {', '.join(among)}")
        text = str(setting.value).strip().lower()
        if among is not None and text not in among:
            raise self.error(setting, f"one of {', '.join(among)}")
        return text

    def items(self, *names: str) -> list[Any] | None:
        """A list of values."""
        setting = self.find(*names)
        if setting is None:
            return None
        return setting.value if isinstance(setting.value, list) else [setting.value]

    def where(self, setting: Setting) -> str:
        """Path and line."""
        return f"{self.path}:{setting.line}" if setting.line else self.path

    def error(self, setting: Setting, wanted: str) -> InputError:
        """That a value is not what is wanted."""
        return InputError(f"{self.where(setting)}: {_name(setting)} is {_shown(setting.value)}; {wanted}.")

    def wrong(self, name: str, text: str) -> InputError:
        """That something about a name does not fit; with its line where the file has it."""
        places = self._places.get(name, [])
        return InputError(f"{self.where(self.settings[places[0]]) if places else self.path}: {text}")

    def note(self, name: str, reason: str) -> None:
        """Says of a setting that was asked for that it is not followed."""
        for place in self._places.get(name, ()):
            if self.settings[place].value is not None:
                self._unresolved.setdefault(place, reason)

    def left(self) -> tuple[Ignored, ...]:
        """What nobody asked for or nobody could use; names without a value are not listed."""
        found = []
        for place, setting in enumerate(self.settings):
            reason = self._unresolved.get(place)
            if reason is None and (place in self._used or setting.value is None):
                continue
            said = reason or ("unresolved: a run fills it in" if _unresolved(setting.value) else "not modelled")
            found.append(Ignored(_name(setting), _shown(setting.value), setting.line, said))
        return tuple(found)


def flat(path: str, document: Any, lines: Mapping[str, int] | None = None) -> list[Setting]:
    """Settings of a nested document; lists of plain values stay whole. Raises InputError for one that is too deep or too large."""
    found: list[Setting] = []

    def walk(key: str, value: Any, depth: int) -> None:
        if depth > _DEEPEST or len(found) > _MOST_SETTINGS:
            raise InputError(f"{path}: nested deeper than {_DEEPEST} or larger than any configuration.")
        if isinstance(value, Mapping):
            for name, inner in value.items():
                walk(f"{key}.{name}" if key else str(name), inner, depth + 1)
        elif isinstance(value, list) and any(isinstance(inner, (Mapping, list)) for inner in value):
            for number, inner in enumerate(value):
                walk(f"{key}.{number}", inner, depth + 1)
        else:
            found.append(Setting(key, value, (lines or {}).get(key)))

    walk("", document, 0)
    return found


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError where it is none, too large, or not there."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, so no configuration.")
        return path.read_bytes().decode("utf-8-sig")
    except IsADirectoryError:
        raise InputError(f"{path}: a folder. Name the configuration file in it.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Name a configuration file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: no text (byte {error.start} is no UTF-8). Name a configuration file.") from None


def _folded(key: str) -> str:
    return re.sub(r"(^|\.)-+", r"\1", key.strip().lower()).replace("-", "_")


def _same(value: Any) -> str:
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", str(value).strip().lower())


def _unresolved(value: Any) -> bool:
    if isinstance(value, list):
        return any(_unresolved(inner) for inner in value)
    return isinstance(value, str) and _VARIABLE.search(value) is not None


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(setting: Setting) -> str:
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", setting.key)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _line(setting: Setting) -> str:
    return f" (line {setting.line})" if setting.line else ""
