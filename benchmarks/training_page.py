"""`python -m benchmarks.training_page [--data DIR]`: renews docs/training_accuracy.json, of which docs/accuracy.md draws its part on training.

It holds, by model, GPU and precision, how far predicted steps lie from published ones, each predicted by a calibration that was fitted
without the row's source; and where the published layouts stand in a search. It takes several minutes, most of them the searches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Options
from benchmarks.training.accuracy import folder, left_out_calibrations, rows_of, scored
from benchmarks.training.published import Placed, place_layouts

__all__ = ["RECORD", "load_record", "made", "main"]

RECORD = Path(__file__).parents[1] / "docs" / "training_accuracy.json"


def load_record() -> dict[str, Any]:
    """The figures last written."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def made(options: Options) -> dict[str, Any]:
    """The record of today's model on a folder of workload files."""
    place = folder(options)
    rows, refused = rows_of(place)
    sources, error, covered, ratio = scored(place)
    kinds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        kinds[row.job.model.name, row.job.gpu, row.job.precision.name].append(number)
    table = [
        {
            **dict(zip(("model", "gpu", "precision"), kind, strict=True)),
            "gpus": sorted({rows[one].layouts[0].gpus for one in places}),
            "rows": len(places),
            **_errors(error[places], covered[places], ratio[places]),
        }
        for kind, places in sorted(kinds.items())
    ]
    by_source: dict[str, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        by_source[source].append(number)
    return {
        "overall": {
            "rows": len(rows),
            "refused": refused,
            "p90": _percent(float(np.quantile(error, 0.9))),
            "median_of_sources": _percent(float(np.median([error[places].mean() for places in by_source.values()]))),
            **_errors(error, covered, ratio),
        },
        "kinds": table,
        "sources": [
            {"source": source, "rows": len(places), **_errors(error[places], covered[places], ratio[places])}
            for source, places in sorted(by_source.items())
        ],
        "layouts": _layouts(place_layouts(rows, left_out_calibrations(place))),
    }


def _errors(error: np.ndarray, covered: np.ndarray, ratio: np.ndarray) -> dict[str, Any]:
    return {
        "mean": _percent(float(error.mean())),
        "worst": _percent(float(error.max())),
        "ratio": round(float(np.median(ratio)), 3),
        "covered": int(covered.sum()),
    }


def _layouts(placed: Iterable[Placed]) -> list[dict[str, Any]]:
    """By model and GPU, how many published layouts are among our first five."""
    kinds: dict[tuple[str, str], list[Placed]] = defaultdict(list)
    for one in placed:
        kinds[one.model, one.gpu].append(one)
    return [
        {
            "model": kind[0],
            "gpu": kind[1],
            "rows": sum(len(one.rows) for one in members),
            "found": sum(len(one.rows) for one in members if one.found),
            "found_strictly": sum(len(one.rows) for one in members if one.found_strictly),
            "legal": [min(one.legal for one in members), max(one.legal for one in members)],
        }
        for kind, members in sorted(kinds.items())
    ]


def _percent(share: float) -> float:
    return round(100 * share, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the record."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_page", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of workload files; ../shared/data/workloads if not given"
    )
    record = made(Options(data=parser.parse_args(arguments).data))
    parts = []
    for name, value in record.items():
        shown = json.dumps(value)
        if isinstance(value, list):
            shown = "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n ]"
        parts.append(f' "{name}": {shown}')
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(f"{RECORD}: {record['overall']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
