"""`python -m benchmarks.accuracy_page [--data DIR] [--trials N]`: renews docs/accuracy.json, of which docs/accuracy.md is made.

It holds, per platform and size class, the error of the time model on tables that its fit left out (the whole campaign of the table),
beside NCCL's own estimate and beside alpha + beta S fitted to the other campaigns of the platform; every row's ratio; the
tables that it rests on; and how often planted faults are named. The tables themselves are not part of the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import faults
from benchmarks.predict import accuracy
from benchmarks.rows import Options
from benchmarks.simulate.accuracy import cross_checked, simulated_beside
from busbw.accuracy import Score, ScoredTable
from busbw.prediction import size_class

__all__ = ["RECORD", "load_record"]

RECORD = Path(__file__).parents[1] / "docs" / "accuracy.json"
SIZES = ("all", "small", "middle", "large")


def load_record() -> dict[str, Any]:
    """The figures last written."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def made(options: Options, trials: int) -> dict[str, Any]:
    """The record of today's model on a folder of tables."""
    score = accuracy.left_out_score(options)
    platforms: dict[str, list[ScoredTable]] = defaultdict(list)
    for table in score.tables:
        platforms[_platform(table)].append(table)
    return {
        "platforms": [_of_platform(name, tables) for name, tables in sorted(platforms.items()) if any(t.rows for t in tables)],
        "overall": _overall([table for table in score.tables if table.table.group != "p2p"]),
        "with_other_tools": _overall(score.tables),
        "simulated": _simulated(options),
        "cross_check": cross_checked(),
        "rows": [[row.size_bytes, float(f"{row.predicted_s / row.measured_s:.3g}")] for row in score.rows],
        "sources": sorted(table.table.id for table in score.tables if table.rows),
        "faults": {"trials": trials, "platforms": len(faults.PLATFORMS), "planted": faults.report(trials), **faults.alarms_on_tables(accuracy.data_folder(options))},
    }  # fmt: skip


def _overall(tables: Sequence[ScoredTable]) -> dict[str, Any]:
    score = Score(tuple(tables))
    return {
        "tables": sum(bool(table.rows) for table in tables),
        "rows": len(score.rows),
        "refused": score.refused,
        **{size: _percent(score.median_of_tables(None if size == "all" else size)) for size in SIZES},
        "p90": _percent(float(np.quantile([row.error for row in score.rows], 0.9))),
        "covered": round(float(np.mean([row.is_covered for row in score.rows])), 3),
    }


def _simulated(options: Options) -> dict[str, Any]:
    """Simulation and closed form on the rows that can be simulated, overall and by platform."""
    simulated, closed = simulated_beside(options)
    platforms: dict[str, list[list[ScoredTable]]] = defaultdict(lambda: [[], []])
    for which, score in enumerate((simulated, closed)):
        for table in score.tables:
            platforms[_platform(table)][which].append(table)

    def errors(tables: Sequence[ScoredTable]) -> dict[str, float | None]:
        found = Score(tuple(tables))
        return {size: _percent(found.median_of_tables(None if size == "all" else size)) for size in SIZES}

    return {
        "rows": len(simulated.rows),
        "refused": simulated.refused,
        "simulated": errors(simulated.tables),
        "closed": errors(closed.tables),
        "platforms": [
            {
                "name": name,
                "rows": sum(len(table.rows) for table in ours),
                "simulated": errors(ours),
                "closed": errors(theirs),
            }
            for name, (ours, theirs) in sorted(platforms.items())
            if any(table.rows for table in ours)
        ],
    }


def _platform(table: ScoredTable) -> str:
    """GPU, and whether one NVLink domain or several took part."""
    several = any(row.where.domains > 1 for row in table.table.rows)
    return f"{table.table.platform}, {'several domains' if several else 'one domain'}"


def _of_platform(name: str, tables: Sequence[ScoredTable]) -> dict[str, Any]:
    measured = [table.table for table in tables]
    errors: dict[str, list[Mapping[int, float]]] = {
        "ours": [{row.row: row.error for row in table.rows} for table in tables],
        "nccl": [accuracy.estimate_errors(table) for table in measured],
        "alpha_beta": [accuracy.alpha_beta_errors(table, measured) for table in measured],
    }
    classes = [{row.row: size_class(row.size_bytes) for row in table.rows} for table in measured]
    return {
        "name": name,
        "tables": sum(bool(table.rows) for table in tables),
        "rows": sum(len(table.rows) for table in tables),
        **{
            who: {size: _percent(_median_of_tables(found, classes, size)) for size in SIZES}
            for who, found in errors.items()
        },
    }


def _median_of_tables(
    found: Sequence[Mapping[int, float]], classes: Sequence[Mapping[int, str]], size: str
) -> float | None:
    """The median over tables of the table's median; None without a row of the class."""
    medians = [
        float(np.median(errors))
        for table, known in zip(found, classes, strict=True)
        if (errors := [error for row, error in table.items() if size in ("all", known[row])])
    ]
    return float(np.median(medians)) if medians else None


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the record."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy_page", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of measured/1 tables; ../shared/data/measured if not given"
    )
    parser.add_argument("--trials", type=int, default=20, help="curves a planted fault and platform")
    given = parser.parse_args(arguments)
    record = made(Options(data=given.data), given.trials)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{RECORD}: {record['overall']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
