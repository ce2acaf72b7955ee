"""Fits the surfaces of `surfaces.json` to the kernel tables: `python -m busbw.workloads.compute.fitting FOLDER [--gpu NAME]`.

The tables are gemm, attention, moe and memops.parquet (their README names the source). Of several libraries the fastest at each shape is the
target: a modern stack picks its kernels. Residuals of log time, robust loss, then a smooth correction on a coarse grid of shapes. A fifth of the shapes, chosen by their CRC, is held out, the error on them
is written beside the figures, and then all shapes are fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse
from scipy.optimize import least_squares
from scipy.sparse.linalg import spsolve

from busbw.workloads.compute.forms import (
    AXES,
    LIMITS,
    Device,
    Figures,
    Shape,
    attention_time,
    corners,
    correction,
    experts_time,
    gemm_time,
    memory_time,
    moving_time,
    quantising_time,
)
from busbw.workloads.compute.peaks import peak_device
from busbw.workloads.compute.timing import surfaces
from busbw.workloads.operations import Attention

FloatArray = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[Any]]
Model = Callable[[Figures, Device, str, Shape], FloatArray]

SYSTEMS = {
    "a100_sxm": "A100-SXM-80GB",
    "h100_sxm": "H100-SXM-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}
"""Names of the tables -> names of the catalogue. b60 is not in the catalogue."""
_TYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
_HOPELESS, _NEAR = 2.0, 1.10
"""Libraries whose median time over training shapes is above the fastest by more than the first are left out; those by less than the second
count towards the interval. Choices."""
_UNTUNED, _SLACK_S = 2.0, 20e-6
"""Experts slower than this factor on dense products, and this much more, are left out: the table holds many shapes that a library
without a tuned kernel ran at a tenth of the rate others reach. A choice."""
_NOISE = 0.05
"""Residuals beyond this count linearly, not squared. The tables' repeats differ by 1.5 % in the median, 9.6 % at p90."""
_SMALL, _SMOOTH, _ROUNDS = 1.0, 1.0, 6
"""Of the correction: rows that a node's smallness and its likeness to each neighbour count as, and rounds of reweighting. Chosen by error
held out: figures from a third to three times these change it by less than a tenth."""
_HELD_OUT = 5
_FEWEST_SHAPES = 60
_TRITON = ("triton", "fused_moe")
_TRAINING_SHAPE = 512
"""m, n and k from which a product counts as one of training."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one GPU, kernel class and type: shapes, the library each was measured with, seconds. R rows."""

    shape: Columns
    library: npt.NDArray[Any]  # (R,) str
    time_s: FloatArray  # (R,)
    training: npt.NDArray[np.bool_]  # (R,)

    def at(self, kept: npt.NDArray[Any]) -> Rows:
        """The rows that `kept` names."""
        shape = {name: column[kept] for name, column in self.shape.items()}
        return Rows(shape, self.library[kept], self.time_s[kept], self.training[kept])

    def shape_of_row(self) -> npt.NDArray[np.int64]:
        """A number for each row's shape, (R,)."""
        table = np.stack([np.asarray(column, dtype=np.float64) for column in self.shape.values()], axis=1)
        return np.unique(table, axis=0, return_inverse=True)[1].ravel()


def _linear_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of a linear layer as the tables have it: the product, and before it the quantising of narrow operands, (R,)."""
    return gemm_time(figures, device, dtype, shape) + quantising_time(figures, device, dtype, shape)


def _fused_moe_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    """Seconds of a fused MoE as the table has it: products, activation, and the moving of tokens, (R,)."""
    return experts_time(figures, device, dtype, shape) + moving_time(figures, device, shape)


def _memory_time(figures: Figures, device: Device, dtype: str, shape: Shape) -> FloatArray:
    return memory_time(figures, device, shape)


MODELS: Mapping[str, Model] = {
    "gemm": _linear_time,
    "attention": attention_time,
    "experts": _fused_moe_time,
    "memory": _memory_time,
}


def _floats(table: Mapping[str, npt.NDArray[Any]], *names: str) -> dict[str, FloatArray]:
    return {name: np.asarray(table[name], dtype=np.float64) for name in names}


def read_rows(folder: Path, kernel: str, system: str, dtype: str) -> Rows:
    """Rows of one system, kernel class and type (the table's names) of the kernel tables."""
    file = {"gemm": "gemm", "attention": "attention", "experts": "moe", "memory": "memops"}[kernel]
    where = pc.field("system") == system
    if kernel in ("gemm", "experts"):
        where &= pc.field("dtype") == dtype
    if kernel == "experts":  # every rank has the same rows; the seeds before 0.5.14 are not tuned for any GPU
        where &= (pc.field("distribution") == "balanced") & (pc.field("version") != "0.5.10")
    if kernel == "attention":
        where &= (pc.field("attn_dtype") == dtype) & (pc.field("kv_dtype") == dtype)
        where &= pc.field("phase").isin(["context", "mla_context"]) & (pc.field("q_len") == pc.field("kv_len"))
    table = pq.read_table(folder / f"{file}.parquet", filters=where)
    columns = {
        name: table[name].to_numpy() for name in table.column_names if name not in ("gpu", "source_file", "n_rep")
    }
    library = columns["backend"].astype(str) + np.char.add(" ", columns["version"].astype(str)).astype(object)
    library = np.array([f"{name} {kind}" for name, kind in zip(library, columns["kernel"], strict=True)], dtype=object)
    time_s = np.asarray(columns["latency_us"], dtype=np.float64) * 1e-6
    shape, training, kept = _shape(kernel, columns)
    return Rows(shape, library, time_s, training).at(np.flatnonzero(kept & (time_s > 0)))


def _shape(kernel: str, columns: Columns) -> tuple[Columns, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Columns that the model takes; which rows are like training; which to keep."""
    if kernel == "gemm":
        gemm = _floats(columns, "m", "n", "k")
        # Scales of 128 x 128 blocks: other sizes fall to kernels a hundred times as slow.
        blocks = (columns["dtype"] != "fp8_block") | ((gemm["n"] % 128 == 0) & (gemm["k"] % 128 == 0))
        return gemm, np.minimum(np.minimum(gemm["m"], gemm["n"]), gemm["k"]) >= _TRAINING_SHAPE, blocks
    if kernel == "memory":
        moved = _floats(columns, "m", "k")
        size = moved["m"] * moved["k"] * 3.0  # reads bf16, writes fp8
        return {"bytes": size}, size >= 1e7, columns["backend"] != "sglang"  # its kernel reaches a tenth of the rate
    if kernel == "experts":
        moe = _floats(columns, "tokens", "hidden", "inter", "topk", "experts", "tp", "ep")
        gated = np.array(["nongated" not in name for name in columns["kernel"]], dtype=np.float64)
        rows = moe["tokens"] * moe["topk"] / moe["ep"]
        shape = {
            "experts": moe["experts"] / moe["ep"],
            "rows": rows,
            "hidden": moe["hidden"],
            "inter": moe["inter"] / moe["tp"],
            "gated": gated,
            "tokens": moe["tokens"],
        }
        training = (rows / shape["experts"] >= 128) & (shape["inter"] >= 256)
        kept = (shape["experts"] >= 1) & (rows / shape["experts"] >= 1)
        # Training stacks run grouped products of cuBLAS or CUTLASS; Triton's are a third to a half as fast here.
        grouped = kept & np.array([not any(word in name for word in _TRITON) for name in columns["kernel"]], dtype=bool)
        return shape, training, grouped if grouped.sum() >= _FEWEST_SHAPES else kept
    attention = _floats(columns, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    mla = columns["phase"] == "mla_context"
    attention["kv_heads"] = np.where(mla, attention["heads"], attention["kv_heads"])
    attention["v_head_dim"] = np.where(mla, 128.0, attention["head_dim"])  # DeepSeek-V3: 192 for scores, 128 for values
    attention["head_dim"] = np.where(mla, 192.0, attention["head_dim"])
    window = np.asarray(columns["window"], dtype=np.int64)
    attention["pairs"] = np.array(
        [
            Attention(1, int(q), int(kv), 1, 1, 1, 0, window=int(w)).flops / 2
            for q, kv, w in zip(attention["q_len"], attention["kv_len"], window, strict=True)
        ],
    )
    attention["edges"] = np.where((window > 0) & (window < attention["kv_len"]), 2.0, 1.0)
    training = (attention["q_len"] >= 1024) & (attention["batch"] * attention["heads"] >= 8)
    kept = np.array(["triton" not in name for name in columns["kernel"]], dtype=bool) & (attention["q_len"] >= 16)
    return attention, training, kept


def modern(rows: Rows, within: float) -> Rows:
    """Rows of the libraries that are near the fastest one, by the median over training shapes of time over the shape's least."""
    sizes = rows.at(np.flatnonzero(rows.training))
    if not len(sizes.time_s):
        return rows
    shape = sizes.shape_of_row()
    least = np.full(shape.max() + 1, np.inf)
    np.minimum.at(least, shape, sizes.time_s)
    several = np.bincount(shape)[shape] > 1
    ratio = sizes.time_s / least[shape]
    found = {
        str(name): float(np.median(ratio[several & (sizes.library == name)]))
        for name in np.unique(sizes.library.astype(str))
        if (several & (sizes.library == name)).sum() >= 10
    }
    if not found:
        return rows
    best = min(found.values())
    return rows.at(np.flatnonzero([found.get(str(name), best) <= within * best for name in rows.library]))


def fastest(rows: Rows) -> Rows:
    """One row a shape: its least time. Shapes that a single library measured are left out where most have several."""
    shape = rows.shape_of_row()
    libraries = np.bincount(shape)[shape]
    if np.quantile(libraries, 0.5) >= 2:
        rows = rows.at(np.flatnonzero(libraries >= 2))
    order = np.lexsort((rows.time_s, shape := rows.shape_of_row()))
    return rows.at(order[np.unique(shape[order], return_index=True)[1]])


def held_out(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows' shapes are held out, (R,): a fifth, by the CRC of the shape."""
    text = np.stack([column.astype(str) for column in rows.shape.values()], axis=1)
    return np.array([zlib.crc32(",".join(line).encode()) % _HELD_OUT == 0 for line in text])


def fit(kernel: str, device: Device, rows: Rows, dtype: str) -> tuple[dict[str, float], FloatArray]:
    """The figures under which the rows' times are nearest, and the correction of what is left; training shapes count twice."""
    model, limits = MODELS[kernel], LIMITS[kernel]
    names = list(limits)
    low, high = (np.log([limits[name][place] for name in names]) for place in (1, 2))
    weight = np.where(rows.training, 1.0, 0.5)

    def residuals(logs: FloatArray) -> FloatArray:
        figures = dict(zip(names, np.exp(logs), strict=True))
        found: FloatArray = (np.log(model(figures, device, dtype, rows.shape)) - np.log(rows.time_s)) * weight / _NOISE
        return found

    begin = np.log([limits[name][0] for name in names])
    found = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", max_nfev=60, x_scale=0.3)
    figures = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(found.x), strict=True)}
    return figures, _correction(kernel, rows, np.log(rows.time_s / model(figures, device, dtype, rows.shape)), weight)


def _correction(kernel: str, rows: Rows, left: FloatArray, weight: FloatArray) -> FloatArray:
    """Logarithms at the nodes of the kernel's axes: near what is left, small, and smooth along each axis."""
    axes = [len(nodes) for nodes in AXES[kernel].values()]
    if not axes:
        return np.zeros(0)
    nodes = int(np.prod(axes))
    count = len(left)
    design = sum(
        (
            sparse.csr_matrix((weights, (np.arange(count), at)), shape=(count, nodes))
            for at, weights in corners(kernel, rows.shape)
        ),
        start=sparse.csr_matrix((count, nodes)),
    )
    smooth = _SMALL * sparse.identity(nodes, format="csr")
    for axis, length in enumerate(axes):
        step = sparse.diags([-1.0, 1.0], [0, 1], shape=(length - 1, length))
        before, after = sparse.identity(int(np.prod(axes[:axis]))), sparse.identity(int(np.prod(axes[axis + 1 :])))
        across = sparse.kron(sparse.kron(before, step), after)
        smooth = smooth + _SMOOTH * (across.T @ across)
    logs = np.zeros(nodes)
    for _ in range(_ROUNDS):
        error = (left - design @ logs) * weight / _NOISE
        now = weight**2 / np.sqrt(1 + error**2)
        normal = design.T @ sparse.diags(now) @ design + smooth
        logs = spsolve(normal.tocsc(), design.T @ (now * left))
    return np.asarray(np.round(logs, 3))


def predicted(kernel: str, fitted: tuple[Figures, FloatArray], device: Device, shape: Shape, dtype: str) -> FloatArray:
    """Seconds, (R,)."""
    figures, logs = fitted
    return MODELS[kernel](figures, device, dtype, shape) * correction(kernel, logs, shape)


def _errors(kernel: str, fitted: tuple[Figures, FloatArray], device: Device, rows: Rows, dtype: str) -> FloatArray:
    """log(measured / predicted), (R,)."""
    return np.log(rows.time_s) - np.log(predicted(kernel, fitted, device, rows.shape, dtype))


def tuned(rows: Rows, device: Device, dense: Mapping[str, float], dtype: str) -> Rows:
    """Rows of experts that take at most _UNTUNED times what the GPU's dense products take for the same tiles."""
    dense = {**dense, "moving": 1.0}
    expected = _fused_moe_time(dense, device, dtype, rows.shape)
    return rows.at(np.flatnonzero(rows.time_s <= _UNTUNED * expected + _SLACK_S))


def surface(
    folder: Path, kernel: str, system: str, dtype: str, dense: Mapping[str, float] | None = None
) -> dict[str, object] | None:
    """One entry of surfaces.json; None where the tables have too few shapes. dense: figures of the same GPU's products."""
    every = read_rows(folder, kernel, system, dtype)
    if not len(every.time_s):
        return None
    if kernel == "experts" and dense is not None:
        every = tuned(every, peak_device(SYSTEMS[system], _TYPES[dtype]), dense, _TYPES[dtype])
    target, near = fastest(modern(every, _HOPELESS)), modern(every, _NEAR)
    if len(target.time_s) < _FEWEST_SHAPES or target.training.sum() < _FEWEST_SHAPES // 4:
        return None
    ours = _TYPES[dtype]
    device = peak_device(SYSTEMS[system], ours)
    out = held_out(target)
    tried = fit(kernel, device, target.at(np.flatnonzero(~out)), ours)
    figures, logs = fit(kernel, device, target, ours)
    entry: dict[str, object] = {"gpu": SYSTEMS[system], "kernel": kernel, "dtype": ours, "figures": figures}
    entry["correction_per_mille"] = np.round(logs * 1000).astype(int).tolist()
    entry["libraries"] = sorted({str(name) for name in target.library})
    entry["shapes"] = len(target.time_s)
    for name, mine in (("training", target.training), ("other", ~target.training)):
        test, beside = np.flatnonzero(out & mine), near.training if name == "training" else ~near.training
        if len(test) < 5:
            continue
        left = _errors(kernel, tried, device, target.at(test), ours)
        error = np.abs(np.expm1(left))
        others = _errors(kernel, tried, device, near.at(np.flatnonzero(beside & held_out(near))), ours)
        low, high = np.quantile(np.concatenate([left, others]), (0.1, 0.9))
        entry[name] = {
            "held_out_shapes": len(test),
            "median_abs": round(float(np.median(error)), 4),
            "p90_abs": round(float(np.quantile(error, 0.9)), 4),
            "low": round(float(np.exp(low)), 4),
            "high": round(float(np.exp(high)), 4),
        }
    return entry


def _figures(entry: Mapping[str, Any]) -> Mapping[str, float]:
    return dict(entry["figures"])


def fit_all(folder: Path, gpus: frozenset[str] | None = None) -> list[dict[str, object]]:
    """All entries of surfaces.json."""
    found = []
    for system, gpu in SYSTEMS.items():
        if gpus is not None and gpu not in gpus:
            continue
        dense: dict[str, Mapping[str, float]] = {}
        for kernel in MODELS:
            types = {"memory": ["bfloat16"], "attention": ["bfloat16", "fp8"]}.get(kernel, list(_TYPES))
            for dtype in types:
                entry = surface(folder, kernel, system, dtype, dense.get(dtype))
                if entry is not None:
                    found.append(entry)
                    if kernel == "gemm":
                        dense[dtype] = _figures(entry)
                    errors = {name: entry[name] for name in ("training", "other") if name in entry}
                    print(gpu, kernel, dtype, entry["shapes"], json.dumps(errors), file=sys.stderr)
    return found


def transferred(folder: Path, source: str, target: str) -> dict[str, tuple[float, float]]:
    """By kernel class and type: the median error of a GPU's shipped surface on another's training shapes, and its bias (measured over predicted)."""
    systems = {gpu: system for system, gpu in SYSTEMS.items()}
    found = {}
    for (gpu, kernel, ours), entry in surfaces().items():
        dtype = next(name for name, known in _TYPES.items() if known == ours)
        if gpu != source or (target, kernel, ours) not in surfaces():
            continue
        rows = fastest(modern(read_rows(folder, kernel, systems[target], dtype), _HOPELESS))
        rows = rows.at(np.flatnonzero(rows.training))
        fitted = (entry["figures"], np.asarray(entry["correction_per_mille"]) / 1000)
        left = _errors(kernel, fitted, peak_device(target, ours), rows, ours)
        found[f"{kernel} {ours}"] = (float(np.median(np.abs(np.expm1(left)))), float(np.exp(np.median(left))))
    return found


SOURCE = (
    "fitted by busbw.workloads.compute.fitting to tables of aiconfigurator-core 0.12.0 (ai-dynamo/aiconfigurator, collector at 095f58a; "
    "Copyright NVIDIA CORPORATION & AFFILIATES, Apache-2.0), thinned; nothing here was measured by this project"
)


def main() -> None:
    """Writes surfaces.json beside this module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="holds gemm, attention, moe and memops.parquet")
    parser.add_argument("--gpu", action="append", help="only this GPU (printed, nothing is written)")
    parser.add_argument(
        "--transfer", nargs=2, metavar=("FROM", "TO"), help="the error of one GPU's surfaces on another; writes nothing"
    )
    arguments = parser.parse_args()
    if arguments.transfer:
        for name, (error, bias) in transferred(arguments.folder, *arguments.transfer).items():
            print(f"{name}: median error {100 * error:.1f} %, measured over predicted {bias:.2f}")
        return
    entries = fit_all(arguments.folder, frozenset(arguments.gpu) if arguments.gpu else None)
    if arguments.gpu:
        print(json.dumps(entries, indent=1))
        return
    target = Path(str(resources.files(__package__).joinpath("surfaces.json")))
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    target.write_text(
        f'{{"schema": 1,\n"source": {json.dumps(SOURCE)},\n"surfaces": [\n{lines}\n]}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
