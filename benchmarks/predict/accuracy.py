"""P2 to P5 and P7: the time model on published tables, each campaign left out of the fit that predicts it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options

if TYPE_CHECKING:
    from busbw.accuracy import MeasuredRow, MeasuredTable, Score, ScoredRow, ScoredTable
    from busbw.prediction import Calibration

__all__ = ["alpha_beta_errors", "beside_others", "coverage", "data_folder", "estimate_errors", "left_out_calibrations", "left_out_score", "median_over_tables", "sizes_apart", "systems_left_out", "worst_and_share"]  # fmt: skip

_REPOSITORY = Path(__file__).parents[2]
_FEWEST_TABLES = 3
"""A platform with fewer tables is not compared."""


def _folder(options: Options) -> Path:
    folder = options.data or _REPOSITORY.parent / "shared" / "data" / "measured"
    if not any(folder.glob("*.json")):
        raise NotMeasurableError(f"{folder}: no measured/1 tables there; name their folder with --data DIR")
    return folder


def data_folder(options: Options) -> Path:
    """Where the tables are. Raises NotMeasurableError where there are none."""
    return _folder(options)


def left_out_score(options: Options) -> Score:
    """The score that P2 to P5 and P7 rest on."""
    return _left_out(_folder(options))


def left_out_calibrations(options: Options) -> tuple[list[MeasuredTable], dict[str, Calibration]]:
    """The tables of that score, and by campaign the calibration that its predictions are made with."""
    return _calibrations(_folder(options))


@lru_cache(maxsize=2)
def _left_out(folder: Path) -> Score:
    from busbw.accuracy import score

    return score(*_calibrations(folder))


@lru_cache(maxsize=2)
def _calibrations(folder: Path) -> tuple[list[MeasuredTable], dict[str, Calibration]]:
    from busbw.accuracy import curves_of_table, left_out_calibrations, read_all

    kernels = folder.parent / "kernels" / "collectives.parquet"
    tables, others, _ = read_all([folder, *([kernels] if kernels.is_file() else [])])
    scored = [table for table in tables if table.is_scored]
    rest = [curve for table in tables if not table.is_scored for curve in curves_of_table(table)]
    return scored, left_out_calibrations(scored, [*others, *rest])


def median_over_tables(options: Options) -> Measured:
    """P2."""
    found = _left_out(_folder(options))
    predicted = sum(bool(table.rows) for table in found.tables)
    tests = _barred(found)
    note = (
        f"{len(tests.tables)} tables of nccl-tests and rccl-tests; with other tools {_known(found.median_of_tables()):.3f} "
        f"({len(found.tables)} tables, {predicted} of them with rows predicted)"
    )
    return Measured(_known(tests.median_of_tables()), note=note)


def sizes_apart(options: Options) -> Measured:
    """P3."""
    found = _left_out(_folder(options))
    large, small = (
        [_known(part.median_of_tables(name)) for part in (_barred(found), found)] for name in ("large", "small")
    )
    return Measured([large[0], small[0]], note=f"with other tools {large[1]:.3f}; {small[1]:.3f}")


def worst_and_share(options: Options) -> Measured:
    """P4: all rows count, those without a size among them."""
    everything = _left_out(_folder(options))
    found = _barred(everything)
    errors = [row.error for row in found.rows]
    refused = [refusal.kind for table in found.tables for refusal in table.refused]
    kinds = ", ".join(f"{refused.count(kind)} {kind}" for kind in sorted(set(refused))) or "none"
    return Measured(
        [float(np.quantile(errors, 0.9)), len(errors) / (len(errors) + len(refused))],
        note=f"{len(errors)} rows, {sum(row.is_peak for row in found.rows)} of them the best of a sweep without its size; refused: "
        f"{kinds}; with other tools {np.quantile([row.error for row in everything.rows], 0.9):.3f}; "
        f"{len(everything.rows) / (len(everything.rows) + everything.refused):.3f}",
    )


def coverage(options: Options) -> Measured:
    """P5: the interval's coverage over all rows, then that of the size class farthest from 0.8; median half-width."""
    rows = _barred(_left_out(_folder(options))).rows
    overall, covered, half = _coverage(rows)
    farthest = max(covered.values(), key=lambda share: abs(share - 0.8))
    everything = _coverage(_left_out(_folder(options)).rows)
    note = f"{_named(covered)}; with other tools: overall {everything[0]:.2f}, {_named(everything[1])}, half-width {everything[2]:.2f}"
    return Measured([overall, farthest, half], note=note)


def _coverage(rows: Sequence[ScoredRow]) -> tuple[float, dict[str, float], float]:
    from busbw.prediction import size_class

    parts = {
        name: [row.is_covered for row in rows if size_class(row.size_bytes) == name]
        for name in ("small", "middle", "large")
    }
    covered = {name: float(np.mean(found)) for name, found in parts.items() if found}
    overall = float(np.mean([row.is_covered for row in rows]))
    half = float(np.median([(row.high_s - row.low_s) / 2 / row.predicted_s for row in rows]))
    return overall, covered, half


def _named(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in shares.items())


def _barred(found: Score) -> Score:
    """The tables that the bars are of: tools other than nccl-tests and rccl-tests have a line of their own and no bar."""
    return type(found)(tuple(table for table in found.tables if table.table.group != "p2p"))


def systems_left_out(options: Options) -> Measured:
    """P6: NCCL's rows of data/kernels in half precision, the median over versions; all systems but the odd L40S server."""
    from busbw.accuracy import curves_of_table, kernel_curves, read_all
    from busbw.prediction import cross_validated, predicted

    folder = _folder(options)
    path = folder.parent / "kernels" / "collectives.parquet"
    if not path.is_file():
        raise NotMeasurableError(f"{path}: not there; it lies beside the folder of measured tables")
    tables, _, _ = read_all([folder])
    kernels = kernel_curves(path)
    systems = sorted({curve.campaign for curve in kernels})
    fitted = cross_validated([*kernels, *(c for table in tables for c in curves_of_table(table))], systems)
    errors = [abs(predicted(curve, fitted[curve.campaign]) / curve.time_s - 1) for curve in kernels]
    found = np.concatenate(errors)
    return Measured(float(np.median(found)), note=f"{len(found)} rows of {len(systems)} systems")


def beside_others(options: Options) -> Measured:
    """P7: the share of platforms on which the median over tables is below NCCL's own estimate and alpha-beta.

    A platform is a GPU. alpha-beta: least squares of log time on the other campaigns of the platform, per collective and number
    of nodes where there are any, else per collective.
    """
    found = _barred(_left_out(_folder(options)))
    platforms: dict[str, list[ScoredTable]] = defaultdict(list)
    for table in found.tables:
        if table.rows:
            platforms[table.table.platform].append(table)
    better, lines = [], []
    for name, tables in sorted(platforms.items()):
        if len(tables) < _FEWEST_TABLES:
            continue
        ours = float(np.median([_known(table.median_error) for table in tables]))
        rivals = {
            "NCCL": _median([_estimate_error(table.table) for table in tables]),
            "alpha-beta": _median([_alpha_beta_error(table.table, [t.table for t in tables]) for table in tables]),
        }
        known = {rival: error for rival, error in rivals.items() if error is not None}
        better.append(all(ours < error for error in known.values()))
        shown = ", ".join(f"{rival} {error * 100:.0f} %" for rival, error in known.items()) or "none comparable"
        lines.append(f"{name}: {ours * 100:.1f} %, {shown}")
    if not better:
        raise NotMeasurableError(f"no platform has {_FEWEST_TABLES} tables")
    return Measured(float(np.mean(better)), note="; ".join(lines))


def _known(value: float | None) -> float:
    if value is None:
        raise NotMeasurableError("no row of such a size was predicted")
    return value


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _estimate_error(table: MeasuredTable) -> float | None:
    return _median(list(estimate_errors(table).values()))


def _alpha_beta_error(table: MeasuredTable, platform: Sequence[MeasuredTable]) -> float | None:
    return _median(list(alpha_beta_errors(table, platform).values()))


def estimate_errors(table: MeasuredTable) -> dict[int, float]:
    """By row the error of NCCL's own estimate for a blueprint with the table's GPU; empty where NCCL has none."""
    from busbw.errors import InputError
    from busbw.hardware import find_accelerator, load_nodes
    from busbw.hardware.formats import node_to_nccl_topology
    from busbw.nccl import Settings, communicator, function_of

    accelerator = find_accelerator(table.platform)
    node = next((n for n in load_nodes().values() if accelerator and n.accelerator.name == accelerator.name), None)
    if node is None or not table.library.startswith("NCCL"):
        return {}
    errors = {}
    for row in table.rows:
        function = function_of(row.collective)
        hosts, rest = divmod(row.where.domain_ranks, node.gpus)
        if function is None or rest or not hosts:
            continue
        try:
            topology, _ = node_to_nccl_topology(node, hosts)
            model = communicator(topology, row.where.domains, Settings())
            estimate_s = float(model.choices(function, [row.size_bytes]).time_us[0]) * 1e-6
        except InputError:
            return {}
        errors[row.row] = abs(estimate_s / row.time_s - 1)
    return errors


def alpha_beta_errors(table: MeasuredTable, platform: Sequence[MeasuredTable]) -> dict[int, float]:
    """By row the error of T = alpha + beta S fitted to other campaigns of the platform; empty where there are none."""
    others = [row for other in platform if other.campaign != table.campaign for row in other.rows]
    errors = {}
    for row in table.rows:
        alike = [other for other in others if other.collective == row.collective]
        near = [other for other in alike if (other.where.domains > 1) == (row.where.domains > 1)]
        fitted = _alpha_beta(tuple(near or alike))
        if fitted is not None:
            errors[row.row] = abs((fitted[0] + fitted[1] * row.size_bytes) / row.time_s - 1)
    return errors


@lru_cache(maxsize=256)
def _alpha_beta(rows: tuple[MeasuredRow, ...]) -> tuple[float, float] | None:
    from scipy.optimize import least_squares

    if len(rows) < 2:
        return None
    size = np.array([row.size_bytes for row in rows], np.float64)
    took = np.array([row.time_s for row in rows])
    begin = np.log([took.min(), (took / size).min()])
    found = least_squares(lambda x: np.log((np.exp(x[0]) + np.exp(x[1]) * size) / took), begin, loss="soft_l1").x
    return float(np.exp(found[0])), float(np.exp(found[1]))
