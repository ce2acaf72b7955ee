"""T7: how fast layouts and steps are predicted."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options
from busbw.hardware import find_cluster
from busbw.workloads.training.calibration import figures_of, load_training_calibration
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import precision_of
from busbw.workloads.training.models import find_model
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.search import candidates
from busbw.workloads.training.step import parts_of, times

__all__ = ["closed_form_and_steps"]

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
