"""T4 and T7: published layouts among the best found, and how fast layouts and steps are predicted."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options
from benchmarks.training.accuracy import folder, left_out_calibrations, rows_of
from busbw.hardware import find_cluster
from busbw.workloads.training.calibration import figures_of, load_training_calibration
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


def published_layouts(options: Options) -> Measured:
    """T4: rows with one layout; a search over all legal layouts that fit, with the calibration that left the row's source out."""
    rows, _ = rows_of(folder(options))
    calibrations = left_out_calibrations(folder(options))
    seen: dict[tuple[object, ...], bool] = {}
    found, counts, places = [], [], []
    for row in rows:
        job, columns = row.job, row.columns
        key = (
            job.model.name,
            job.gpu,
            job.cluster.nodes,
            job.global_batch,
            job.seq_len,
            job.precision,
            job.software,
            row.layouts,
            row.micro_batches,
            row.recompute,
            row.source,
        )
        if key not in seen:
            links = GroupTimes(job.cluster)
            space = Space(
                micro_batch=None,
                recompute=(row.recompute,) if row.recompute != "none" else ("none", "full"),
                sharding=tuple(dict.fromkeys(("zero1", "fsdp", SHARDING[int(columns.sharding[0])]))),
            )
            legal = candidates(job, space)
            fits = legal.at(np.flatnonzero(memory(job, legal).fits))
            calibration = calibrations[row.source]
            mine = float(predict_steps(job, columns, links, calibration).total_s.min())
            if len(fits):
                total = np.sort(predict_steps(job, fits, links, calibration).total_s)
                better = [total[place] for place in levels(total) if total[place] * (1 + ALIKE) < mine]
            else:
                better = []
            seen[key] = len(better) < _FIRST
            counts.append(len(legal))
            places.append(len(better) + 1)
        found.append(seen[key])
    note = f"{len(found)} rows, {len(seen)} different; legal layouts {min(counts)} to {max(counts)}, median {statistics.median(counts):.0f}; median place {statistics.median(places):.0f}"
    return Measured(float(np.mean(found)), note=note)


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
