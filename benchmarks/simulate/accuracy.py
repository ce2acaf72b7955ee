"""S10: measured tables simulated with the calibration of the closed form, each campaign left out of the fit."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.predict import accuracy
from benchmarks.rows import Benchmark, Measured, Options

if TYPE_CHECKING:
    from busbw.accuracy import Score

__all__ = ["BENCHMARKS", "cross_checked", "simulated_beside"]

_SIZES = [8 << (4 * step) for step in range(8)]
"""8 B to 2 GiB."""
_NODES = (1, 2)


def simulated_beside(options: Options) -> tuple[Score, Score]:
    """What simulation gives of the tables of nccl-tests and rccl-tests, and the closed form on the rows that it gives."""
    return _beside(accuracy.data_folder(options))


@lru_cache(maxsize=2)
def _beside(folder: Path) -> tuple[Score, Score]:
    from dataclasses import replace

    from busbw.accuracy import Score, score
    from busbw.accuracy.simulated import score_simulated

    tables, calibrations = accuracy.left_out_calibrations(Options(data=folder))
    tables = [table for table in tables if table.group != "p2p"]
    simulated, closed = score_simulated(tables, calibrations), score(tables, calibrations)
    same = []
    for ours, theirs in zip(simulated.tables, closed.tables, strict=True):
        rows = {row.row for row in ours.rows}
        same.append(replace(theirs, rows=tuple(row for row in theirs.rows if row.row in rows)))
    return simulated, Score(tuple(same))


def cross_checked() -> list[dict[str, Any]]:
    """By collective, algorithm and protocol, how far simulated and closed-form times of an H100 system differ, in percent."""
    from busbw.accuracy.simulated import cross_check
    from busbw.hardware import find_cluster
    from busbw.prediction import PREDICTED, situation_of

    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for nodes in _NODES:
        where = situation_of(find_cluster("dgx-h100", nodes)[0])
        for collective in PREDICTED:
            for (algorithm, protocol), found in cross_check(where, collective, _SIZES).items():
                ratios[collective, algorithm, protocol] += found
    return [
        {
            "collective": collective, "algorithm": algorithm, "protocol": protocol, "rows": len(found),
            **{name: round(100 * (float(np.quantile(found, part)) - 1), 1) for name, part in (("low", 0.1), ("median", 0.5), ("high", 0.9))},
        }
        for (collective, algorithm, protocol), found in sorted(ratios.items())
    ]  # fmt: skip


def _measured(options: Options) -> Measured:
    simulated, closed = simulated_beside(options)
    ours, theirs = simulated.median_of_tables(), closed.median_of_tables()
    if ours is None or theirs is None:
        raise ValueError("no row was simulated")
    apart = {
        size: f"{simulated.median_of_tables(size):.3f} beside {closed.median_of_tables(size):.3f}"
        for size in ("small", "middle", "large")
    }
    note = (
        f"simulated {ours:.4f}, closed form {theirs:.4f}, median over tables, {len(simulated.rows)} rows; "
        f"{', '.join(f'{size} {told}' for size, told in apart.items())}; {simulated.refused} rows not simulated"
    )
    return Measured(ours - theirs, {"closed form": theirs}, note)


BENCHMARKS = (
    Benchmark("S10", "measured tables simulated with their calibration: how much more they err than by the closed form", "share", ("<=", (0.03,)), _measured),
)  # fmt: skip
