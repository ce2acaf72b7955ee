"""T4: where the layouts that teams published stand among all legal ones, each job searched as if nothing were known of it."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.rows import Measured, Options
from benchmarks.training.accuracy import folder, left_out_calibrations, rows_of
from busbw.accuracy.workloads import TrainingRow
from busbw.workloads.training.calibration import TrainingCalibration, figures_of
from busbw.workloads.training.columns import Columns, groups
from busbw.workloads.training.frameworks import find_framework
from busbw.workloads.training.layout import SHARDING
from busbw.workloads.training.memory import memory
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.search import ALIKE, Space, candidates, levels
from busbw.workloads.training.step import StepParts, parts_of, times

__all__ = ["Placed", "place_all", "place_layouts", "published_layouts"]

FloatArray = npt.NDArray[np.float64]

_FIRST = 5
_SAMPLED = 12
"""Every so many of different rows are searched on small inputs."""
_MICRO_BATCHES = tuple(1 << power for power in range(8))
"""What a search tries beside the row's own: sizes of three or eighteen sequences are published too."""
_SIZES = ("tp", "cp", "pp", "dp", "ep", "vpp", "sharding")
"""What makes a layout another one; its micro-batch is chosen last."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A row's own layout among those of its search."""

    source: str
    rows: tuple[int | str, ...]
    """Rows that state this job, layout and recipe: one search serves them all."""
    model: str
    gpu: str
    legal: int
    fit: int
    place: int
    """Of the layout among those that differ, each at its best micro-batch; 0: the search leaves it out, as one that does not fit."""
    strict: int
    """The same of the row's own micro-batch, where each micro-batch of a layout is another layout; 0: it does not fit."""
    behind: float
    """The layout's step over the fastest's."""
    own: str
    fastest: str

    @property
    def found(self) -> bool:
        """Whether it is among the first."""
        return 0 < self.place <= _FIRST

    @property
    def found_strictly(self) -> bool:
        """The same where each micro-batch is another layout."""
        return 0 < self.strict <= _FIRST


def published_layouts(options: Options) -> Measured:
    """T4: rows beside a search over all legal layouts of their framework that fit, with the calibration that left the row's source out.

    What a row states beside sizes (recompute, sequence parallelism) is kept; --smoke takes a sample of rows, spread over sources.
    """
    rows, _ = rows_of(folder(options))
    placed = place_layouts(rows, left_out_calibrations(folder(options)), every=_SAMPLED if options.smoke else 1)
    total = sum(len(one.rows) for one in placed)
    strict = sum(len(one.rows) for one in placed if one.found_strictly) / total
    missed = Counter[str]()
    for one in placed:
        missed[one.source] += len(one.rows) * (not one.found)
    counts = [one.legal for one in placed]
    left_out = sum(len(one.rows) for one in placed if not one.place)
    note = (
        f"{total} rows, {len(placed)} different; legal layouts {min(counts)} to {max(counts)}, median {statistics.median(counts):.0f}; "
        f"median place {statistics.median(one.place for one in placed):.0f}; {left_out} rows of layouts that the search leaves out, since they do not fit; "
        f"missed: {', '.join(f'{name} {count}' for name, count in missed.most_common() if count)}"
    )
    return Measured((total - sum(missed.values())) / total, {"each micro-batch another layout": strict}, note=note)


def place_layouts(
    rows: Sequence[TrainingRow], calibrations: dict[str, TrainingCalibration], every: int = 1
) -> list[Placed]:
    """Every so many of the rows that differ, placed; by as many processes as there are cores, with progress on stderr."""
    alike: dict[tuple[str, ...], list[TrainingRow]] = {}
    for row in rows:
        same = (row.job, row.layouts, row.micro_batches, row.recompute, row.source)
        alike.setdefault(tuple(map(repr, same)), []).append(row)
    # Rows of one model and cluster share operators and times of groups, so they go to one process together.
    together: dict[tuple[object, ...], list[list[TrainingRow]]] = {}
    for kind in list(alike.values())[::every]:
        job = kind[0].job
        together.setdefault((job.gpu, job.model.name, job.cluster.nodes), []).append(kind)
    tasks = sorted(together.values(), key=lambda kinds: -len(kinds) * kinds[0][0].job.cluster.gpus)
    found: list[Placed] = []
    done, workers = 0, os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)) or 1, mp_context=context) as pool:
        waited = [pool.submit(place_all, kinds, [calibrations[kind[0].source] for kind in kinds]) for kinds in tasks]
        for one in as_completed(waited):
            found += one.result()
            done += 1
            if sys.stderr.isatty() or done % 10 == 0 or done == len(tasks):
                print(f"layouts placed: {len(found)} of {len(list(alike)[::every])} searches", file=sys.stderr)
    return sorted(found, key=lambda placed: (placed.source, str(placed.rows[0])))


@dataclass(frozen=True, slots=True, eq=False)
class _Searched:
    """A search before a calibration's figures."""

    legal: int
    fits: Columns
    parts: StepParts | None
    """None where no layout fits."""


def place_all(kinds: Iterable[list[TrainingRow]], calibrations: Iterable[TrainingCalibration]) -> list[Placed]:
    """Rows of one model and cluster, placed, a list for each kind that is alike; searches that differ in figures of the calibration alone are made once."""
    links: GroupTimes | None = None
    searched: dict[str, _Searched] = {}
    found = []
    for kind, calibration in zip(kinds, calibrations, strict=True):
        row = kind[0]
        links = links or GroupTimes(row.job.cluster)
        space = _space(row)
        key = repr((replace(row.job, software=""), space))
        if key not in searched:
            legal = candidates(row.job, space)
            fits = legal.at(np.flatnonzero(memory(row.job, legal).fits_with_room)) if len(legal) else legal
            searched[key] = _Searched(len(legal), fits, parts_of(row.job, fits, links) if len(fits) else None)
        found.append(_placed(kind, calibration, links, searched[key]))
    return found


def _space(row: TrainingRow) -> Space:
    own = row.layouts[0]
    return Space(
        micro_batch=tuple(sorted({*_MICRO_BATCHES, *row.micro_batches})),
        recompute=(row.recompute,) if row.recompute != "none" else ("none", "full"),
        sharding=tuple(dict.fromkeys(("zero1", "fsdp", "hsdp", own.sharding))),
        sp=bool(own.sp or own.tp == 1),
        framework=find_framework(row.framework),
    )


def _placed(
    kind: list[TrainingRow], calibration: TrainingCalibration, links: GroupTimes, searched: _Searched
) -> Placed:
    legal, fits, parts = searched.legal, searched.fits, searched.parts
    row = kind[0]
    figures = figures_of([row.job], calibration)
    mine = times(parts_of(row.job, row.columns, links), figures).total_s
    named = Placed(
        row.source, tuple(one.row for one in kind), row.job.model.name, row.job.gpu, legal, len(fits), 0, 0, float("nan"),
        _shown(row.columns, int(np.argmin(mine))), "",
    )  # fmt: skip
    if parts is None:
        return named
    total = times(parts, figures).total_s
    first, which = groups([getattr(fits, name) for name in _SIZES])
    best = np.full(len(first), np.inf)
    np.minimum.at(best, which, total)
    same = np.zeros(len(fits), np.bool_)
    for place in range(len(row.columns)):
        same |= np.all([getattr(fits, name) == getattr(row.columns, name)[place] for name in _SIZES], axis=0)
    fastest = _shown(fits, int(np.argmin(total)))
    if not same.any():
        return replace(named, behind=float(mine.min() / total.min()), fastest=fastest)
    own = float(total[same].min())
    stated = same & np.isin(fits.micro_batch, row.columns.micro_batch)
    return replace(
        named,
        place=_better(best, own),
        strict=_better(total, float(total[stated].min())) if stated.any() else 0,
        behind=own / float(total.min()),
        fastest=fastest,
    )


def _shown(columns: Columns, place: int) -> str:
    return f"{columns.layout(place)} mb{int(columns.micro_batch[place])} {SHARDING[int(columns.sharding[place])]}"


def _better(total: FloatArray, mine: float) -> int:
    """The place of a time among those that differ."""
    return len(levels(np.sort(total[total * (1 + ALIKE) < mine]))) + 1
