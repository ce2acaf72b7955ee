"""YAML as people write it: scripts as blocks, no anchors, keys in the order given."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["Unexpanded", "yaml_text"]


class Unexpanded(str):
    """Text in which Ansible expands nothing."""

    __slots__ = ()


def yaml_text(value: Any) -> str:
    """The text of dicts, lists and scalars."""
    import yaml  # noqa: PLC0415 - most launchers do without

    return yaml.dump(value, Dumper=_dumper(), sort_keys=False, width=10_000, allow_unicode=True)


@cache
def _dumper() -> type[Any]:
    import yaml  # noqa: PLC0415

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def as_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, as_text)
    Dumper.add_representer(Unexpanded, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))
    return Dumper
