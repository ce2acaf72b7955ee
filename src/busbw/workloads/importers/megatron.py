"""Megatron-LM: a command line or shell script with its arguments, or its YAML. Scripts are tokenised, never run.

Sources of names: Megatron-LM, megatron/training/arguments.py; examples/gpt3/gpt_config.yaml, examples/moe_recipes (ARGS).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from busbw.errors import InputError
from busbw.workloads.importers.configuration import Ignored, Imported, Setting, Settings
from busbw.workloads.importers.megatron_core import assemble

__all__ = ["import_arguments", "import_settings", "looks_like_arguments"]

_ARGUMENT = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]*(?:=.*)?", re.DOTALL)
_TELLING = re.compile(
    r"--(?:num-layers|hidden-size|num-attention-heads|(?:tensor|pipeline|expert)-model-parallel-size|micro-batch-size)\b"
)
_LONGEST_LINE = 1 << 18


def looks_like_arguments(text: str) -> bool:
    """Whether a text holds Megatron's arguments."""
    return _TELLING.search(text) is not None


def import_arguments(path: str, text: str) -> Imported:
    """What the arguments in a command line or shell script say. Raises InputError for values that cannot be."""
    settings, assigned = _tokens(path, text)
    found = Settings(path, settings)
    imported = assemble(found, "megatron arguments", _gpus(found))
    hints: list[Ignored] = []
    for one in imported.ignored:
        variables = re.findall(r"\$\{?(\w+)", one.value)
        known = [f"{name}={assigned[name]}" for name in variables if name in assigned]
        hint = f" (the script sets {', '.join(known)})" if known and one.reason.startswith("unresolved") else ""
        hints.append(replace(one, reason=one.reason + hint))
    return replace(imported, ignored=tuple(hints))


def import_settings(settings: Settings) -> Imported:
    """What Megatron's YAML says, flat or in its sections."""
    return assemble(settings, "megatron yaml", _gpus(settings))


def _gpus(settings: Settings) -> int | None:
    world = settings.integer("world_size", lenient=True)
    nodes = settings.integer("nnodes", "num_nodes", "nodes", lenient=True)
    each = settings.integer("nproc_per_node", "gpus_per_node", "num_gpus_per_node", "ntasks_per_node", lenient=True)
    if world:
        return world
    return nodes * each if nodes and each else None


def _tokens(path: str, text: str) -> tuple[list[Setting], dict[str, str]]:
    """Arguments with their lines, and plain assignments of the script."""
    settings: list[Setting] = []
    assigned: dict[str, str] = {}
    pending: tuple[str, int, list[str]] | None = None

    def close() -> None:
        nonlocal pending
        if pending is not None:
            name, line, values = pending
            value = "" if not values else values[0] if len(values) == 1 else list(values)
            settings.append(Setting(name, value, line))
        pending = None

    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _LONGEST_LINE:
            raise InputError(f"{path}:{number}: a line of {len(line)} characters. Break the command with backslashes.")
        for word in _words(line):
            equals = re.fullmatch(r"(\w+)\+?=([\w./:-]+)", word)
            if equals and pending is None:
                assigned[equals[1]] = equals[2]
                continue
            if _ARGUMENT.fullmatch(word) and not re.fullmatch(r"-\d.*", word):
                close()
                name, _, value = word.lstrip("-").partition("=")
                pending = (name, number, [value] if value else [])
                if not word.startswith("--"):
                    pending = None  # of another program: srun -N, bash -c
            elif word in ("\\", "|", "&&", ";", "||", ">", "2>&1", "&") or re.fullmatch(r"[(){}\[\]]+", word):
                if word != "\\":
                    close()
            elif pending is not None:
                if word.endswith(".py") or (pending[2] and word.startswith("$")):
                    close()  # the program that is run, or a variable that holds further arguments
                else:
                    pending[2].append(word)
        if not line.rstrip().endswith("\\"):
            close()
    close()
    return settings, assigned


def _words(line: str) -> list[str]:
    """Words of a line as a shell splits them; of one with quotes that do not end on it, as blanks split it."""
    stripped = line.strip()
    if stripped.startswith("#SBATCH"):
        stripped = stripped.removeprefix("#SBATCH")
    elif stripped.startswith("#"):
        return []
    spaced = re.sub(r"=\(", "= ( ", stripped)
    spaced = re.sub(r"\)$", " )", spaced)
    try:
        words = shlex.split(spaced, comments=True)
    except ValueError:
        words = spaced.replace('"', " ").replace("'", " ").split()
    found: list[str] = []
    for word in words:  # OPTIONS="--tp 2 --pp 4" holds arguments too
        inner = re.sub(r"^\w+\+?=", "", word)
        if " " in inner and "--" in inner:
            found += inner.replace("\\", " ").split()
        else:
            found.append(word)
    return found
