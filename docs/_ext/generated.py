"""Parts of pages that are made from the package at build time: `<!-- generated: NAME -->` in a page becomes what NAME returns.

A table that is written twice is wrong once; so rules, tables, readers and hardware are described where they are defined.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from accuracy_page import (
    accuracy_cross_check,
    accuracy_faults,
    accuracy_overall,
    accuracy_platforms,
    accuracy_rows,
    accuracy_simulated,
    accuracy_sources,
    predicted_curve,
)
from training_page import training_kinds, training_layouts, training_overall, training_sources
from unseen_reports import case_reliability, case_rounds, cases

from busbw.collectives import algorithms as library
from busbw.collectives.legality import RULES as PLAN_RULES
from busbw.diagnosis.findings import kinds
from busbw.diagnosis.rules import RULES
from busbw.hardware import load_catalogue, load_nodes
from busbw.observations import SCHEMAS
from busbw.readers import FileReader, LineReader, all_readers
from busbw.workloads.compute.timing import surfaces

__all__ = ["PARTS", "setup", "with_parts"]

_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def rules() -> str:
    """Every rule with its docstring, a family a section, in the order in which they run."""
    families: dict[str, list[Any]] = defaultdict(list)
    for rule in RULES:
        families[rule.__module__].append(rule)
    out = []
    for module, members in families.items():
        out += [
            f"### {module.rsplit('.', 1)[1].replace('_', ' ')}",
            "",
            _escaped(_first_paragraph(sys.modules[module].__doc__)),
            "",
        ]
        for rule in members:
            head, _, body = inspect.getdoc(rule).partition("\n") if inspect.getdoc(rule) else ("", "", "")
            out += [
                f"**{_escaped(rule.__name__.replace('_', ' '))}**: {_escaped(head)}",
                "",
                _escaped(body.strip()),
                "",
            ]
    return "\n".join(out)


def finding_kinds() -> str:
    """The taxonomy: kind, family, layer, meaning."""
    return _table(
        ["kind", "family", "layer", "meaning"],
        ([f"`{k.kind}`", k.family, k.layer, k.meaning] for k in kinds().values()),
    )


def tables() -> str:
    """Columns of every table of a store."""
    out = []
    for name, schema in SCHEMAS.items():
        out += [
            f"### {name}",
            "",
            _table(["column", "type"], ([f"`{field.name}`", f"`{field.type}`"] for field in schema)),
            "",
        ]
    return "\n".join(out)


def readers() -> str:
    """Every registered reader: what it reads and the messages it knows."""
    out = []
    for reader in all_readers():
        templates = reader.templates if isinstance(reader, LineReader) else ()
        kind = "reads whole documents" if isinstance(reader, FileReader) else "reads lines and blocks of lines"
        out += [f"### {reader.name}", "", _escaped((sys.modules[type(reader).__module__].__doc__ or "").strip()), ""]
        known = f"; knows {len(templates)} messages" if templates else ""
        out += [f"Registered by `{type(reader).__module__}`; {kind}{known}.", ""]
        if templates:
            cells = ([f"`{t.event}`", f"`` {t.pattern} ``", _escaped(t.source)] for t in templates)
            out += [_table(["event", "pattern", "printed by"], cells), ""]
    return "\n".join(out)


def accelerators() -> str:
    """Accelerators with the figures that matter for communication."""
    listed = load_catalogue().accelerators.values()
    names = ["name", "memory GB", "memory GB/s", "between GPUs", "GB/s", "PCIe", "source of the link rate"]
    cells = (
        [
            a.name,
            _giga(a.memory_bytes.value),
            _giga(a.memory_bytes_per_s.value),
            a.scale_up_link.value or "-",
            _giga(a.scale_up_bytes_per_s.value),
            a.pcie.value or "-",
            a.scale_up_bytes_per_s.source,
        ]
        for a in listed
    )
    return _table(names, (map(_escaped, row) for row in cells))


def nodes() -> str:
    """Blueprints of nodes."""
    names = ["name", "what it is", "GPUs", "NICs", "network GB/s"]
    cells = (
        [
            f"`{n.name}`",
            n.title,
            f"{n.gpus} x {n.accelerator.name}",
            f"{n.nics} x {n.nic.name}",
            f"{n.network_bytes_per_s / 1e9:g}",
        ]
        for n in load_nodes().values()
    )
    return _table(names, cells)


def nics() -> str:
    """NICs and their line rates."""
    cells = (
        [
            n.name,
            "-" if n.rate_bytes_per_s.value is None else f"{n.rate_bytes_per_s.value * 8 / 1e9:g}",
            _escaped(n.rate_bytes_per_s.source),
        ]
        for n in load_catalogue().nics.values()
    )
    return _table(["name", "Gb/s", "source"], cells)


def switches() -> str:
    """Switches and NVSwitch chips."""
    catalogue = load_catalogue()
    cells = [[s.name, str(s.ports.value or "-"), _escaped(s.ports.source)] for s in catalogue.switches.values()]
    cells += [[s.name, str(s.ports.value or "-"), _escaped(s.ports.source)] for s in catalogue.nvswitches.values()]
    return _table(["name", "ports", "source"], cells)


def plan_rules() -> str:
    """What a legal plan is."""
    return _table(["rule", "what it asks"], ([f"`{rule.name}`", rule.text] for rule in PLAN_RULES))


def algorithms() -> str:
    """Every file of the library with what it says about itself, and the schedules in it."""
    out = []
    for module in sorted(pkgutil.iter_modules(library.__path__), key=lambda m: m.name):
        found = importlib.import_module(f"{library.__name__}.{module.name}")
        said = inspect.cleandoc(found.__doc__ or "")
        named = [n for n in found.__all__ if n in library.__all__ and n != "LIBRARY"]
        title, _, body = said.partition("\n")
        out += [f"### {module.name.replace('_', ' ')}", "", f"{_escaped(title)}", "", _escaped(body.strip()), ""]
        out += [f"In `collectives/algorithms/{module.name}.py`: {', '.join(f'`{n}`' for n in named)}.", ""]
    return "\n".join(out)


def operation_errors() -> str:
    """Error of the surfaces of operations on shapes held out of their fit, of training and others."""
    names = ["GPU", "kernel", "type", "shapes", "held out", "median error", "90 % below", "interval"]
    rows = []
    for (gpu, kernel, dtype), entry in sorted(surfaces().items()):
        told = entry.get("training") or entry.get("other") or {}
        rows.append(
            [
                *(gpu, kernel, dtype, str(entry["shapes"]), str(told["held_out_shapes"])),
                f"{100 * told['median_abs']:.1f} %",
                f"{100 * told['p90_abs']:.0f} %",
                f"{told['low']:.2f} to {told['high']:.2f}",
            ]
        )
    return _table(names, rows)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        *(rules, finding_kinds, tables, readers, accelerators, nodes, nics, switches),
        *(case_rounds, case_reliability, cases, algorithms, plan_rules),
        *(accuracy_overall, accuracy_platforms, accuracy_rows, accuracy_faults, accuracy_sources, predicted_curve),
        *(accuracy_simulated, accuracy_cross_check, operation_errors),
        *(training_overall, training_kinds, training_sources, training_layouts),
    )
}


def with_parts(text: str) -> str:
    """The page with every mark replaced. Raises KeyError for a part that does not exist."""
    return _MARK.sub(lambda mark: PARTS[mark[1]](), text)


def _table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _giga(value: float | None) -> str:
    return "-" if not value else f"{value / 1e9:.4g}" if value < 1e13 else f"{value / 1e9:.0f}"


def _first_paragraph(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0]


def _escaped(text: str) -> str:
    """Text without Markdown in it, but for `code`."""
    return "".join(
        part if i % 2 and len(parts) % 2 else re.sub(r"([\\*_\[\]<>{}$#~^])", r"\\\1", part)
        for parts in [re.split(r"(`[^`]*`)", text)]
        for i, part in enumerate(parts)
    )


def as_rst(lines: Sequence[str]) -> list[str]:
    """A docstring, which is plain text with `code` and examples, as reStructuredText: nothing in it is markup by accident."""
    out: list[str] = []
    example = drawing = False
    for i, line in enumerate(lines):
        indented, blank = line.startswith("    "), not line.strip()
        example = line.lstrip().startswith(">>>") or (example and not blank)
        if indented and not drawing and i and not lines[i - 1].strip() and not example and not _is_section(out):
            drawing = True
            out += ["::", ""]
        elif not indented and not blank:
            drawing = False
        out.append(line if example or drawing else _plain(line))
    return out


def _is_section(lines: Sequence[str]) -> bool:
    """Whether the text so far ends inside a section such as `Args:`."""
    heads = [line for line in lines if line.strip() and not line.startswith(" ")]
    return bool(heads) and heads[-1].strip() in {
        "Args:",
        "Returns:",
        "Raises:",
        "Yields:",
        "Attributes:",
        "Example:",
        "Examples:",
        "Note:",
    }


def _plain(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if i % 2 else re.sub(r"([*|\\]|(?<=\w)_(?=\W|$))", r"\\\1", part) for i, part in enumerate(parts)
    )


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""

    def replace(_: Any, __: str, source: list[str]) -> None:
        source[0] = with_parts(source[0])

    def plain(_: Any, __: str, ___: str, ____: Any, _____: Any, lines: list[str]) -> None:
        lines[:] = as_rst(lines)

    app.connect("source-read", replace)
    app.connect("autodoc-process-docstring", plain, priority=400)
    return {"version": "1", "parallel_read_safe": True, "env_version": 1}
