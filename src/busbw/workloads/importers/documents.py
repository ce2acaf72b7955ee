"""YAML, TOML and JSON as settings with lines. Raises InputError, with path and line, for text that is none."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import yaml

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Setting, Settings, flat

__all__ = ["json_settings", "toml_settings", "yaml_settings"]

_MOST_NODES = 60_000
_DEEPEST = 60


def yaml_settings(path: str, text: str) -> Settings:
    """Settings of a YAML document, each with its line; tags other than YAML's own make no objects."""
    try:
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: no YAML ({error.problem or error.context}). Mend that line.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: no YAML ({str(error).splitlines()[0][:120] or type(error).__name__}).") from None
    if len(documents) != 1 or not isinstance(documents[0], yaml.MappingNode):
        raise InputError(f"{path}: a configuration is one mapping of names to values; this is {_what(documents)}.")
    found: list[Setting] = []
    _walk(path, documents[0], "", found, [_MOST_NODES])
    return Settings(path, found)


def toml_settings(path: str, text: str) -> Settings:
    """Settings of a TOML document, with the lines of those that stand on one of their own."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        at = re.search(r"at line (\d+)", str(error))
        where = f"{path}:{at[1]}" if at else path
        raise InputError(f"{where}: no TOML ({str(error)[:120]}). Mend that line.") from None
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\s*([\w.\"'-]+)\s*\]", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if head:
            section = head[1].replace('"', "").replace("'", "") + "."
        elif key:
            lines.setdefault(section + key[1].replace('"', "").replace("'", ""), number)
    return Settings(path, flat(path, document, lines))


def json_settings(path: str, text: str) -> Settings:
    """Settings of a JSON document, with the lines of names that occur once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found and found[key] != value:
                raise InputError(f"{path}: {key!r} is given twice, with two values. Keep one.")
            found[key] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: no JSON ({error.msg}). Mend that line.") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: no JSON ({str(error)[:120]}).") from None
    if not isinstance(document, Mapping):
        raise InputError(f"{path}: a configuration is one object of names and values.")
    seen: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for match in re.finditer(r'"([^"\\]{1,80})"\s*:', line):
            seen[match[1]] = None if match[1] in seen else number
    settings = flat(path, document)
    found = [Setting(one.key, one.value, seen.get(one.key.rsplit(".", 1)[-1])) for one in settings]
    return Settings(path, found)


def _what(documents: list[Any]) -> str:
    if not documents:
        return "empty"
    return f"{len(documents)} documents" if len(documents) > 1 else "a list or a single value"


def _walk(path: str, node: yaml.Node, key: str, found: list[Setting], left: list[int]) -> None:
    """Adds the settings below a node. Aliases are followed, so what may be visited is bounded."""
    left[0] -= 1
    line = node.start_mark.line + 1
    if left[0] < 0 or key.count(".") > _DEEPEST:
        raise InputError(f"{path}:{line}: larger or deeper than any configuration.")
    if isinstance(node, yaml.ScalarNode):
        found.append(Setting(key, _scalar(node), line))
    elif isinstance(node, yaml.SequenceNode):
        if all(isinstance(inner, yaml.ScalarNode) for inner in node.value):
            left[0] -= len(node.value)
            found.append(Setting(key, [_scalar(inner) for inner in node.value], line))
        else:
            for number, inner in enumerate(node.value):
                _walk(path, inner, f"{key}.{number}", found, left)
    else:
        for name, inner in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise InputError(f"{path}:{name.start_mark.line + 1}: a name that is a list or mapping. Write a word.")
            below = str(name.value)
            merged = below == "<<" and isinstance(inner, yaml.MappingNode)
            _walk(path, inner, key if merged else f"{key}.{below}" if key else below, found, left)


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    kind = node.tag.rsplit(":", 1)[-1]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("yes", "true", "on", "y")
    if kind == "int":
        plain = text.replace("_", "")
        return int(plain) if re.fullmatch(r"[+-]?\d{1,18}", plain) else text
    if kind == "float":
        try:
            return float(text.replace("_", ""))
        except ValueError:
            return text
    return text
