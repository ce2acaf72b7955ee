"""Parts of docs/accuracy.md on training steps, made from docs/training_accuracy.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.training_page import load_record

__all__ = ["training_kinds", "training_layouts", "training_overall", "training_sources"]


def training_overall() -> str:
    """One paragraph."""
    found = load_record()["overall"]
    return (
        f"{found['rows']} published steps, {found['refused']} more that could not be predicted: mean error {found['mean']:g} %, median over sources of the "
        f"source's mean {found['median_of_sources']:g} %, "
        f"nine of ten err by less than {found['p90']:g} %, the worst by {found['worst']:g} %; {found['covered'] / found['rows']:.0%} of them lie in "
        "their 80 % interval."
    )


def training_kinds() -> str:
    """A row a model, GPU and precision."""
    return _table(
        ["model", "GPU", "precision", "GPUs", *_ERRORS],
        [
            [one["model"], one["gpu"], one["precision"], _ends(one["gpus"]), *_errors(one)]
            for one in load_record()["kinds"]
        ],
    )


def training_sources() -> str:
    """A row a source."""
    return _table(["source", *_ERRORS], [[f"`{one['source']}`", *_errors(one)] for one in load_record()["sources"]])


def training_layouts() -> str:
    """How many published layouts are among the first five, overall and a row a model and GPU."""
    found = load_record()["layouts"]
    rows, first, strictly = (sum(one[name] for one in found) for name in ("rows", "found", "found_strictly"))
    table = _table(
        ["model", "GPU", "legal layouts", "rows", "among the first five", "each micro-batch another layout"],
        [
            [one["model"], one["gpu"], _ends(one["legal"]), str(one["rows"]), str(one["found"]), str(one["found_strictly"])]
            for one in found
        ],
    )  # fmt: skip
    return (
        f"{first} of {rows} rows ({first / rows:.0%}) have a layout that is among our first five; {strictly / rows:.0%} where each micro-batch "
        f"of a layout counts as another one.\n\n{table}"
    )


_ERRORS = ("rows", "mean error", "worst", "predicted over measured, median", "in the 80 % interval")


def _errors(one: Mapping[str, Any]) -> list[str]:
    return [
        str(one["rows"]),
        f"{one['mean']:g} %",
        f"{one['worst']:g} %",
        f"{one['ratio']:.2f}",
        f"{one['covered']} of {one['rows']}",
    ]


def _ends(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows])
