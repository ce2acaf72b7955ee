"""Fields of JSON that a stranger wrote: each is what it must be, or one clear InputError says where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from busbw.errors import InputError

__all__ = ["MAX_BYTES", "Fields", "read_json"]

MAX_BYTES = 256 << 20
"""Largest file read. A ring of 256 ranks is 21 MB as written by the MSCCL++ DSL (measured); the bound is a guess with room."""
_SHOWN = 60


def read_json(data: bytes | str, path: str) -> Fields:
    """The object that a file holds. Raises InputError for what is too large, no JSON, nested too deep, or no object."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES:,} bytes; no plan is")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise InputError(f"{path}: nested too deep to be a plan") from None
    except ValueError as error:  # of JSON, of text that is no UTF-8, of numbers with too many digits
        raise InputError(f"{path}: no JSON: {str(error)[:200]}") from None
    return Fields(value, path, "")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a file, with the way to it."""

    value: Any
    path: str
    at: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise self.wrong("is no object")

    def wrong(self, what: str) -> InputError:
        """An error about this object."""
        return InputError(f"{self.path}: {self.at or 'the file'} {what}")

    def has(self, name: str) -> bool:
        """Whether there is such a field."""
        return name in self.value

    def _get(self, name: str, default: Any) -> Any:
        if name in self.value:
            return self.value[name]
        if default is None:
            raise self.wrong(f"has no {name}")
        return default

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(f"has {name} {str(value)[:_SHOWN]}; a whole number from {least} to {most} is needed")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(f"has {name} {str(value)[:_SHOWN]}; true or false is needed")
        return value

    def text(self, name: str, known: tuple[str, ...] | None = None, default: str | None = None) -> str:
        """A string, one of `known` if that is given."""
        value = self._get(name, default)
        if not isinstance(value, str) or (known is not None and value not in known):
            needed = f"one of {', '.join(known)}" if known else "a string"
            raise self.wrong(f"has {name} {str(value)[:_SHOWN]!r}; {needed} is needed")
        return value

    def items(self, name: str, default: list[Any] | None = None) -> list[Any]:
        """A list."""
        value = self._get(name, default)
        if not isinstance(value, list):
            raise self.wrong(f"has {name} {str(value)[:_SHOWN]}; a list is needed")
        return value

    def numbers(self, name: str, least: int, most: int, default: list[int] | None = None) -> list[int]:
        """A list of whole numbers."""
        values = self.items(name, default)
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise self.wrong(
                    f"has {str(value)[:_SHOWN]} in {name}; whole numbers from {least} to {most} are needed"
                )
        return values

    def objects(self, name: str, default: list[Any] | None = None) -> Iterator[Fields]:
        """The objects of a list."""
        for place, value in enumerate(self.items(name, default)):
            yield Fields(value, self.path, f"{self.at + '.' if self.at else ''}{name}[{place}]")

    def object(self, name: str) -> Fields:
        """A field that is an object."""
        return Fields(self._get(name, None), self.path, f"{self.at + '.' if self.at else ''}{name}")
