"""The figures of predicting: P1 to P10."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.predict import accuracy
from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options

__all__ = ["BENCHMARKS"]

_REPOSITORY = Path(__file__).parents[2]
_GOLDENS = _REPOSITORY / "tests" / "nccl" / "goldens"


def _nccl_equality(_: Options) -> Measured:
    from benchmarks.nccl_equality import compare_folder

    if not any(_GOLDENS.glob("*.xml")):
        raise NotMeasurableError(f"{_GOLDENS}: no recordings of NCCL there; run from a checkout")
    equality = compare_folder(_GOLDENS)
    note = f"{equality.cells} cells, {equality.choices} choices, {equality.setups} setups of NCCL 2.30.7"
    if equality.differences:
        note += f"; first difference: {equality.differences[0]}"
    return Measured(list(equality.shares), note=note)


_SIZES = [8 << place for place in range(31)]
_COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather",
)  # fmt: skip


def _speed(options: Options) -> Measured:
    """P8: the first call, which makes the channel search, is not counted."""
    from busbw.hardware import find_cluster
    from busbw.prediction import predict, predict_in, situation_of

    cluster, _ = find_cluster("dgx-h100", 16_384)
    predict(cluster, "all_reduce", _SIZES)
    took = []
    for _ in range(1 if options.smoke else 7):
        begun = time.perf_counter()
        for collective in _COLLECTIVES:
            predict(cluster, collective, _SIZES)
        took.append(time.perf_counter() - begun)
    where, sizes = (
        situation_of(cluster),
        [1024 * place for place in range(1, (1_000 if options.smoke else 200_000) + 1)],
    )
    begun = time.perf_counter()
    predict_in(where, "all_reduce", sizes)
    return Measured([statistics.median(took) * 1e3, len(sizes) / (time.perf_counter() - begun)])


_LARGEST = """
import re, time
from pathlib import Path
begun = time.perf_counter()
from busbw.hardware import find_cluster
from busbw.prediction import predict
cluster, _ = find_cluster("gb300-nvl72", 131072)
predict(cluster, "all_reduce", [8 << place for place in range(31)])
took_s = time.perf_counter() - begun
# Not ru_maxrss, which keeps the peak of the process that started this one.
print(took_s, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6)
"""


def _largest(_: Options) -> Measured:
    """P9: imports and the channel search counted."""
    ran = subprocess.run([sys.executable, "-c", _LARGEST], capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode:
        raise NotMeasurableError(ran.stderr.strip().splitlines()[-1])
    took_s, memory_mb = map(float, ran.stdout.split())
    return Measured([took_s, memory_mb], note="imports counted; domains of 16 of 18 nodes")


_BOMB = """<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<system version="1">&c;</system>"""


def _wrong_inputs(_: Options) -> Measured:
    """P10: exit status 2, nothing on stdout, one message that names the nearest valid thing or the remedy."""
    with tempfile.TemporaryDirectory() as folder:
        bomb = Path(folder) / "bomb.xml"
        bomb.write_text(_BOMB)
        cases = (
            (("--cluster", "dgx-h10"), "dgx-h100"),
            (("--cluster", "gb200-nvl72", "--nodes", "19"), "nearest: 18 or 20"),
            (("--cluster", "dgx-h100", "--env", "NCCL_ALGO=NVLS", "--env", "NCCL_NVLS_ENABLE=0"), "Unset one"),
            (("--cluster", str(bomb)), "bomb.xml"),
        )
        good, wrong = 0, []
        for arguments, said in cases:
            command = [sys.executable, "-m", "busbw", "predict", "all-reduce", *arguments]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            one = ran.returncode == 2 and not ran.stdout and said in ran.stderr and ran.stderr.count("busbw: ") == 1
            good += one
            if not one:
                wrong.append(" ".join(arguments))
    return Measured(good, note=f"not: {'; '.join(wrong)}" if wrong else "")


_BETTER = "platforms of 3 tables and more on which it is better than NCCL's estimate and than alpha-beta; share"

BENCHMARKS = (
    Benchmark("P1", "cells; choices equal to NCCL's own", "share", ("==", (1.0, 1.0)), _nccl_equality),
    Benchmark("P2", "median over tables of the median error of time, campaign left out", "share", ("<=", (0.08,)), accuracy.median_over_tables),
    Benchmark("P3", "the same from 64 MiB; below 64 KiB", "share", ("<=", (0.05, 0.15)), accuracy.sizes_apart),
    Benchmark("P4", "p90 of the error over rows; share of rows predicted", "share", ("<=;>=", (0.30, 0.98)), accuracy.worst_and_share),
    Benchmark("P5", "coverage of the 80 % interval overall; in the size class farthest from 0.8; median half-width", "share", ("in;in;<=", ((0.75, 0.85), (0.65, 0.95), 0.15)), accuracy.coverage),
    Benchmark("P6", "median error on rows of data/kernels, system left out", "share", ("<=", (0.12,)), accuracy.systems_left_out),
    Benchmark("P7", _BETTER, "share", ("==", (1.0,)), accuracy.beside_others),
    Benchmark("P8", "31 sizes x 8 collectives at 16,384 nodes; predictions a second, one core", "ms; 1/s", ("<;>=", (50.0, 100_000.0)), _speed, sized=True),
    Benchmark("P9", "all_reduce on gb300-nvl72 at 131,072 nodes; memory", "s; MB", ("<", (1.0, 300.0)), _largest, sized=True),
    Benchmark("P10", "wrong inputs answered by one clear error", "of 4", ("==", (4.0,)), _wrong_inputs),
)  # fmt: skip
