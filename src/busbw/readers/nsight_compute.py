"""Kernels as Nsight Compute measured them: `ncu --csv`, the page of details (a row a metric) and `--page raw` (a row a kernel, its second line the units).

    "ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value", ...
    "0","1234","app","node0","gemm(float *)","1","7","(256, 1, 1)","(128, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","12.35", ...

The table stands among lines of the program and of ncu (`==PROF==`). Which columns and metrics there are depends on the version and on what was asked for; metrics are
known by name, and in the page of details by section where two sections use one name. Numbers have commas between thousands; units may be scaled
(`--print-units`). ncu serialises kernels, flushes caches and fixes clocks unless told not to: times are those of a kernel alone.
Sources: Nsight Compute CLI manual (--csv, --page, --print-units), Kernel Profiling Guide (names of metrics); outputs of releases 2022 to 2025 in public reports.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place
from busbw.readers.json_values import integer, small_integer
from busbw.readers.text_values import finite

__all__ = ["READER"]

_SIGNATURE = re.compile(r'^"?ID"?,"?Process ID"?,"?Process Name"?,"?Host Name"?,"?Kernel Name"?')
_ROW = re.compile(r'"?\d{0,12}"?,"?\d{0,12}"?,')
"""A kernel's, or that of the units, which has neither number."""
_LONGEST = 1 << 18
"""Of a line: the raw page has some hundred metrics, names of kernels may take kilobytes."""
_MOST_KERNELS = 1_000_000
_TIMES = {"nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9}
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_OF_SPEED = "GPU Speed Of Light Throughput"
_METRICS: Mapping[str, str] = {
    "gpu__time_duration.sum": "time_ns", "gpu__time_duration.avg": "time_ns", "gpu__time_duration_measured_user.sum": "time_ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_share", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_share",
    "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed": "memory_share",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_share", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_share",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_share", "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "tensor_share",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_share", "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "dram__bytes.sum": "dram_bytes", "dram__bytes.sum.per_second": "dram_bytes_per_s", "sm__cycles_elapsed.avg.per_second": "sm_hz",
    "gpc__cycles_elapsed.avg.per_second": "sm_hz",
}  # fmt: skip
_PARTS: Mapping[str, str] = {"dram__bytes_read.sum": "dram_bytes", "dram__bytes_write.sum": "dram_bytes", "dram__bytes_op_read.sum": "dram_bytes", "dram__bytes_op_write.sum": "dram_bytes"}  # fmt: skip
"""Metrics that add up to a column, where the whole is not there."""
_LABELS: Mapping[tuple[str, str], str] = {
    (_OF_SPEED, "Duration"): "time_ns", (_OF_SPEED, "Compute (SM) Throughput"): "sm_share", (_OF_SPEED, "Memory Throughput"): "memory_share",
    (_OF_SPEED, "DRAM Throughput"): "dram_share", (_OF_SPEED, "SM Frequency"): "sm_hz", ("GPU Speed Of Light", "Duration"): "time_ns", ("GPU Speed Of Light", "SOL SM"): "sm_share",
    ("GPU Speed Of Light", "SOL Memory"): "memory_share", ("GPU Speed Of Light", "SOL DRAM"): "dram_share", ("GPU Speed Of Light", "SM [%]"): "sm_share",
    ("GPU Speed Of Light", "Memory [%]"): "memory_share", ("GPU Speed Of Light", "SM Frequency"): "sm_hz", ("Occupancy", "Achieved Occupancy"): "occupancy",
    ("Memory Workload Analysis", "Memory Throughput"): "dram_bytes_per_s",
}  # fmt: skip
"""Names of the page of details, by section; GPU Speed Of Light alone to release 2021."""
_SHARES = frozenset({"sm_share", "memory_share", "dram_share", "tensor_share", "occupancy"})
_OPS = re.compile(r"sm__sass_thread_inst_executed_op_[hfd](add|mul|fma)_pred_on\.sum|sm__ops_path_tensor_\w+\.sum")
"""Counts of operations: a fused multiply-add of the vector units counts as two, the tensor cores' are operations already."""
_NUMBER = re.compile(r"\s*[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)?(?:\.\d*)?(?:[eE][+-]?\d{1,4})?\s*")
"""Commas stand between thousands and nowhere else: in locales that write decimals with a comma, 89,50 would be 8950."""
_SIZE = re.compile(r"\(?\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)?")


class NsightComputeReader(Lines):
    """CSV of Nsight Compute."""

    name = "nsight-compute"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `kernels` a kernel."""
        losses = Losses(artefact.path)
        kernels: dict[tuple[int, str], dict[str, Any]] = {}
        header: list[str] = []
        units: list[str] = []
        table = -1
        for line in lines:
            text = line.text
            if _SIGNATURE.match(text) is not None:
                header, units, table = _cells(text), [], table + 1
                continue
            if not header or _ROW.match(text) is None:
                continue
            values = _cells(text) if len(text) <= _LONGEST else []
            # Rows of metrics end behind the value, those of rules go on.
            least = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
            if not least <= len(values) <= len(header):
                losses.add(
                    "damaged-row",
                    line.number,
                    "the values of a row do not fit its header; it was left out. Print the CSV again, to a file of its own (--log-file)",
                )
                continue
            row = dict(zip(header, values, strict=False))
            if not row["ID"]:
                units = units or values
                continue
            if integer(row["ID"]) is None:
                losses.add("damaged-row", line.number, "a row without the number of its kernel was left out")
                continue
            key = (table, row["ID"])
            if key not in kernels and len(kernels) >= _MOST_KERNELS:
                losses.add("too-large", line.number, f"kernels beyond the first {_MOST_KERNELS:,} were left out")
                continue
            kernel = kernels.setdefault(key, place(artefact, line) | _about(row))
            if "Metric Name" in row:
                said = (row.get(key, "") for key in ("Section Name", "Metric Name", "Metric Unit", "Metric Value"))
                _take(kernel, tuple(said), line, losses)
            else:
                for at, name in enumerate(header):
                    if "__" in name:
                        _take(kernel, ("", name, units[at] if units else "", values[at]), line, losses)
        rows = [_finished(kernel) for kernel in kernels.values()]
        if rows:
            yield rows_of("kernels", rows)
        if rows and all(row.get("time_ns") is None for row in rows):
            losses.add(
                "no-times",
                None,
                "no kernel has its duration: collect gpu__time_duration.sum, or the section SpeedOfLight",
            )
        yield from losses


READER = NsightComputeReader()


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=False), [])
    except csv.Error:
        return []


def _about(row: Mapping[str, str]) -> dict[str, Any]:
    """Which kernel it is."""
    pid, device = integer(row.get("Process ID")), small_integer(row.get("Device"))
    return {
        "tool": "ncu", "host": row.get("Host Name", "")[:200] or None, "pid": pid, "device": device, "kernel": integer(row["ID"]), "name": row.get("Kernel Name", "")[:400],
        "lane": row.get("Stream", "")[:40] or None, "grid": _size(row.get("Grid Size")), "block": _size(row.get("Block Size")),
        "compute_capability": row.get("CC", "")[:10] or None,
    }  # fmt: skip


def _size(text: str | None) -> str | None:
    """128x1x1."""
    found = _SIZE.fullmatch(text or "")
    return "x".join(found.groups()) if found else None


def _take(kernel: dict[str, Any], said: tuple[str, ...], line: PlainLine, losses: Losses) -> None:
    """Keeps a metric that has a column. said: section, name, unit, value."""
    section, name, unit, text = said
    column = _METRICS.get(name) or _LABELS.get((section.removesuffix(" (Chart)"), name))
    part = _PARTS.get(name)
    ops = _OPS.fullmatch(name)
    if column is None and part is None and ops is None:
        return
    value = finite(text.replace(",", "")) if _NUMBER.fullmatch(text) else None
    if value is None or value < 0:
        if text.strip().lower() not in ("", "n/a", "nan", "-nan", "no data"):
            losses.add(
                "damaged-row",
                line.number,
                f"{name} is no number: {text[:40]}; the metric was left out. Decimals have a point: run ncu with LC_ALL=C",
            )
        return
    if ops is not None:
        kernel["_flops"] = kernel.get("_flops", 0.0) + value * _scale(unit) * (2.0 if ops[1] == "fma" else 1.0)
        return
    if column is None and part is not None:
        kernel["_" + part] = kernel.get("_" + part, 0.0) + value * _scale(unit)
        return
    if column in _SHARES:
        if unit.strip() not in ("%", ""):  # a section may name a rate like a share
            return
        kernel.setdefault(column, value / 100)
    elif column == "time_ns":
        factor = _TIMES.get(unit.strip())
        if factor is None:
            losses.add(
                "unknown-unit",
                line.number,
                f"{name} in {unit[:20] or 'no unit'}: the metric was left out; print with --print-units base",
            )
        elif value * factor < 1 << 62:
            kernel.setdefault(column, round(value * factor))
    elif column is not None:
        kernel.setdefault(column, value * _scale(unit))


def _scale(unit: str) -> float:
    """Factor of a unit's prefix: Gbyte/second, Ghz, cycle/nsecond.

    >>> _scale("Gbyte/second"), _scale("cycle/nsecond"), _scale("byte"), _scale("KB"), _scale("inst")
    (1000000000.0, 1000000000.0, 1.0, 1000.0, 1.0)
    """
    above, _, below = unit.strip().partition("/")
    prefix = re.match(r"([KMGTP])(?=byte|B$|hz|Hz|inst)", above, re.IGNORECASE)
    factor = _SCALES[prefix[1].upper()] if prefix else 1.0
    return factor * (1e9 / _TIMES[below] if below in _TIMES else 1.0)


def _finished(kernel: dict[str, Any]) -> dict[str, Any]:
    """The row, with what follows from its metrics."""
    time, per_s = kernel.get("time_ns"), kernel.get("dram_bytes_per_s")
    moved = kernel.get("dram_bytes", kernel.pop("_dram_bytes", None))
    kernel.pop("_dram_bytes", None)
    if moved is None and time and per_s is not None:
        moved = per_s * time / 1e9
    if moved is not None and per_s is None and time:
        kernel["dram_bytes_per_s"] = moved / time * 1e9
    flops = kernel.pop("_flops", None)
    return kernel | {"dram_bytes": round(moved) if moved is not None and moved < 1 << 62 else None, "flops": flops}
