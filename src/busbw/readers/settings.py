"""Variables and options as people hand them over: env files, `export` lines, command lines with -x NAME=VALUE, YAML `env` lists.

Only variables of the allow-list leave this reader; the rest is dropped at the door.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.observations import Artefact, is_allowed_variable, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template

__all__ = ["READER", "SettingsReader"]

_NAME = r"[A-Z][A-Z0-9_]{2,63}"
_WHOLE_LINE = re.compile(
    rf"\s*+(?:export\s++|declare\s++-x\s++|setenv\s++|set\s++|ENV\s++|-\s++)?(?P<name>{_NAME})\s*+[=:]\s*+(?P<value>.*)"
)
_INLINE = re.compile(
    rf"(?<![A-Za-z0-9_/$.{{-])(?P<name>{_NAME})=(?P<value>\"[^\"]*\"|'[^']*'|(?:(?!,[A-Za-z_]\w*=)[^\s;&|\"')\]])*)"
)
_YAML_NAME = re.compile(rf"\s*+(?:-\s*+)?name:\s*+\"?(?P<name>{_NAME})\"?\s*+")
_YAML_VALUE = re.compile(r"\s*+value:\s*+[\"']?(?P<value>[^\"']*+)[\"']?\s*+")
_COMMAND = re.compile(
    r"^\s*(?:[$#>]\s*|\w+@[^\s$#]++[$#]\s*)?(?:[^\s=]++=\S*+\s++)*+(?:\S*/)?(?:mpirun|mpiexec|srun|torchrun|salloc|docker run|ucx_perftest|nixlbench|\w+_perf|osu_\w+|ib_\w+_bw)\b"
)
_OPTION = re.compile(r"\s--?\w")
_PROSE = re.compile(
    r"\b(?:avoids?|works?|fix(?:es|ed)?|solves?|solved|helps?|workaround|passing|consider|try|tried|should|please|you can|with and without)\b|\bmax busbw\b",
    re.IGNORECASE,
)
"""A sentence about a variable is no setting."""
_LISTING_LINES = 40
"""So many lines in a row that set a variable of UCX are what `ucx_info -c` prints (250 to 500 lines); people set a handful."""
_UCX_LINE = re.compile(r"UCX_[A-Z0-9_]+=.*")
TEMPLATES: tuple[Template, ...] = (
    Template("command.perf_test", "{program:w}_perf -", "a command line of nccl-tests", "info"),
    Template("command.cpu_bind", "--cpu-bind={value:w}", "srun", "info"),
    Template("osu.device_memory", "Buffer on DEVICE (D)", "OSU micro-benchmarks", "info"),
    Template("command.device_memory", "osu_{program:w} D D", "OSU micro-benchmarks", "info"),
    Template("command.device_memory", "osu_{program:w} H D", "OSU micro-benchmarks", "info"),
    Template("command.device_memory", "osu_{program:w} D H", "OSU micro-benchmarks", "info"),
    Template("command.device_memory", "-d cuda", "OSU micro-benchmarks", "info"),
    Template("command.device_memory", "-m cuda", "ucx_perftest", "info"),
    Template("command.ulimit", "ulimit -l {value:w}", "shell", "info"),
    Template("command.bind_to", "--bind-to {value:w}", "mpirun", "info"),
)


class SettingsReader(Lines):
    """Assignments on plain lines, as table settings."""

    name = "settings"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = re.compile(rf"(?<![A-Za-z0-9_/$]){_NAME}\s*[=:]|name:\s*\"?{_NAME}")

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Every assignment of an allowed variable, in order."""
        rows: list[dict[str, Any]] = []
        pending: str | None = None

        prose = False

        def found(line: PlainLine, name: str, value: str, origin: str) -> None:
            if is_allowed_variable(name) or name == "FI_PROVIDER":
                rows.append({
                    "artefact": artefact.sha256, "line": line.number, "byte_offset": line.byte_offset, "host": line.host,
                    "rank": line.rank, "name": name, "value": value.strip("\"'").rstrip(","), "origin": "note" if prose else origin,
                })  # fmt: skip

        listed = _listed(lines)
        for line in lines:
            text = line.text
            prose = _PROSE.search(text) is not None and (_COMMAND.search(text) is None or _OPTION.search(text) is None)
            prose = prose and line.number not in listed
            if pending is not None and (value := _YAML_VALUE.fullmatch(text)) is not None:
                found(line, pending, value["value"], "manifest")
                pending = None
                continue
            pending = None
            if "=" not in text and ":" not in text:
                continue
            if (named := _YAML_NAME.fullmatch(text)) is not None:
                pending = named["name"]
                continue
            matches = list(_INLINE.finditer(text))
            if (
                len(matches) <= 1
                and (whole := _WHOLE_LINE.fullmatch(text)) is not None
                and not _COMMAND.search(_shell_value(whole["value"]))
            ):
                origin = "ucx_info" if line.number in listed else "environment"
                found(line, whole["name"], _shell_value(whole["value"]), origin)
                continue
            for match in matches:
                found(line, match["name"], match["value"], "command line")
        if rows:
            yield rows_of("settings", rows)


READER = SettingsReader()


def _shell_value(text: str) -> str:
    """What an assignment gives, without the semicolon that ends it."""
    return text.strip().removesuffix(";").rstrip()


def _listed(lines: Sequence[PlainLine]) -> frozenset[int]:
    """Numbers of the lines of `ucx_info -c`: values in effect, which nobody need have set."""
    found: set[int] = set()
    run: list[int] = []
    for line in lines:
        if line.text.startswith("UCX_") and _UCX_LINE.fullmatch(line.text) is not None:
            run.append(line.number)
            continue
        if len(run) >= _LISTING_LINES:
            found.update(run)
        run = []
    return frozenset(found | (set(run) if len(run) >= _LISTING_LINES else set()))
