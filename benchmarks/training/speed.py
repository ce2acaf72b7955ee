"""T4 and T7: published layouts among the best found, and how fast layouts and steps are predicted."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options
from benchmarks.training.accuracy import folder, left_out_calibrations, rows_of
from busbw.accuracy.workloads import TrainingRow
from busbw.hardware import find_cluster
from busbw.workloads.training.calibration import TrainingCalibration, figures_of, load_training_calibration
from busbw.workloads.training.columns import groups
from busbw.workloads.training.frameworks import find_framework
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import SHARDING, precision_of
from busbw.workloads.training.memory import memory
from busbw.workloads.training.models import find_model
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.predict import predict_steps
from busbw.workloads.training.search import ALIKE, Space, candidates, levels
from busbw.workloads.training.step import parts_of, times

__all__ = ["closed_form_and_steps", "published_layouts"]

_FIRST = 5


_SAMPLED = 12
"""Every so many of different rows are searched on small inputs."""


def published_layouts(options: Options) -> Measured:
    """T4: rows beside a search over all legal layouts of their framework that fit, with the calibration that left the row's source out.

    What a row states beside sizes (recompute, sequence parallelism) is kept; --smoke takes a sample of rows, spread over sources.
    """
    rows, _ = rows_of(folder(options))
    calibrations = left_out_calibrations(folder(options))
    alike: dict[tuple[object, ...], list[TrainingRow]] = {}
    for row in rows:
        job = row.job
        same = (job, row.layouts, row.micro_batches, row.recompute, row.source)
        alike.setdefault(tuple(map(repr, same)), []).append(row)
    kinds = list(alike.values())[:: _SAMPLED if options.smoke else 1]
    links: dict[tuple[object, ...], GroupTimes] = {}
    found, with_micro_batch, counts, places, missed = 0, 0, [], [], Counter[str]()
    for kind in kinds:
        row = kind[0]
        shared = links.setdefault(
            (row.job.cluster.name, row.job.gpu, row.job.cluster.nodes), GroupTimes(row.job.cluster)
        )
        legal, place, strict = _place(row, shared, calibrations[row.source])
        counts.append(legal)
        places.append(place)
        found += len(kind) * (place <= _FIRST)
        with_micro_batch += len(kind) * (strict <= _FIRST)
        missed[row.source] += len(kind) * (place > _FIRST)
    total = sum(map(len, kinds))
    note = (
        f"{total} rows, {len(kinds)} different; legal layouts {min(counts)} to {max(counts)}, median {statistics.median(counts):.0f}; "
        f"median place {statistics.median(places):.0f}; {with_micro_batch / total:.2f} where other micro-batches of a layout count as others; missed: {', '.join(f'{name} {count}' for name, count in missed.most_common() if count)}"
    )
    return Measured(found / total, note=note)


def _place(row: TrainingRow, links: GroupTimes, calibration: TrainingCalibration) -> tuple[int, int, int]:
    """Legal layouts of a row's job, and the place of the row's own among those that differ: each at its best micro-batch, and at all micro-batches."""
    job, columns = row.job, row.columns
    own = SHARDING[int(columns.sharding[0])]
    space = Space(
        recompute=(row.recompute,) if row.recompute != "none" else ("none", "full"),
        sharding=tuple(dict.fromkeys(("zero1", "fsdp", "hsdp", own))),
        sp=bool(row.layouts[0].sp or row.layouts[0].tp == 1),
        framework=find_framework(row.framework),
    )
    legal = candidates(job, space)
    fits = legal.at(np.flatnonzero(memory(job, legal).fits_with_room))
    mine = float(predict_steps(job, columns, links, calibration).total_s.min())
    if not len(fits):
        return len(legal), 1, 1
    total = predict_steps(job, fits, links, calibration).total_s
    # A layout counts with its best micro-batch: that is another choice, made last.
    sizes = [getattr(fits, name) for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "sharding")]
    first, kind = groups(sizes)
    best = np.full(len(first), np.inf)
    np.minimum.at(best, kind, total)
    same = np.ones(len(fits), np.bool_)
    for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "sharding"):
        same &= np.isin(getattr(fits, name), getattr(columns, name))
    own_best = min(mine, float(total[same].min()) if same.any() else mine)
    return len(legal), _better(best, own_best), _better(total, mine)


def _better(total: np.ndarray, mine: float) -> int:
    """The place of a time among those that differ."""
    return len(levels(np.sort(total[total * (1 + ALIKE) < mine]))) + 1


_STEP = """
import re, time
from pathlib import Path
begun = time.perf_counter()
from busbw.cli.app import main
import contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main(sys.argv[1:])
    except SystemExit as stop:
        assert not stop.code, stop.code
took_s = time.perf_counter() - begun
print(took_s, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e9)
"""


def _step(nodes: int, layout: str, batch: int) -> tuple[float, float]:
    arguments = [
        *(
            "simulate",
            "training",
            "--model",
            "llama3.1-405b",
            "--cluster",
            "dgx-h100",
            "--nodes",
            str(nodes),
            "--layout",
            layout,
        ),
        *("--global-batch", str(batch), "--seq-len", "8192", "--recompute", "full"),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", _STEP, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    if ran.returncode or not re.match(r"[\d.]", ran.stdout):
        raise NotMeasurableError((ran.stderr.strip().splitlines() or ["no output"])[-1])
    took, memory_gb = map(float, ran.stdout.split())
    return took, memory_gb


def closed_form_and_steps(options: Options) -> Measured:
    """T7: the layouts of a search, repeated; their tables by shard are made in the same run and counted."""
    cluster, _ = find_cluster("dgx-h100", 64)
    job = Job(find_model("llama3-70b"), cluster, 1024, 8192, precision_of("bf16"))
    columns = candidates(job)
    count = 20_000 if options.smoke else 400_000
    halves = [columns.at(np.resize(np.arange(len(columns)), count // 2)) for _ in range(2)]
    figures = figures_of([job], load_training_calibration())
    best = 0.0
    for _ in range(1 if options.smoke else 3):
        links = GroupTimes(cluster)
        begun = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:  # numpy gives the interpreter up in its loops
            list(pool.map(lambda half: times(parts_of(job, half, links), figures), halves))  # noqa: B023 - run at once
        best = max(best, count / (time.perf_counter() - begun))
    small, _ = _step(2048, "tp8.pp16.dp128.vpp2", 2048)
    large, memory_gb = _step(12544, "tp8.pp14.dp896.vpp9", 896 * 28)
    return Measured(
        [best, small, large, memory_gb],
        note=f"{len(columns)} different layouts among {count}; steps by the command line, imports counted",
    )
