"""Curves to fit a calibration to: measured/1 tables, and the NCCL rows of a collectives.parquet (data/kernels)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from busbw.accuracy.measured import MeasuredRow, MeasuredTable, curves_of, read_measured
from busbw.collectives import collective_named
from busbw.errors import InputError
from busbw.hardware import find_accelerator
from busbw.prediction import (
    Curve,
    Movement,
    Situation,
    blueprint_of,
    chosen,
    gpu_class,
    intra_rate,
    model_in,
    movements,
)

__all__ = ["curves_of_table", "found_files", "kernel_curves", "movements_of", "read_all"]

_MOST_FILES = 100_000
_MOST_PARQUET_BYTES = 256 << 20
_ODD_SYSTEMS = ("l40s",)
"""Left out: at 4 and 8 GPUs every library but one gives 2 to 6 of 32 GB/s, so the host was set up otherwise. Source:
data/kernels/README.md."""
_NVLS_RANKS = 3
"""The fewest ranks that NVLS serves: for two NCCL's ring is as good."""


def found_files(paths: Iterable[Path]) -> list[Path]:
    """The files of paths, folders read one level deep for .json and .parquet, sorted. Raises InputError for none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.suffix in (".json", ".parquet") and p.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"{path}: no such file or folder.")
    if not found:
        raise InputError("no .json or .parquet file there. Pass measured/1 tables, or the folder they lie in.")
    if len(found) > _MOST_FILES:
        raise InputError(f"{len(found)} files; at most {_MOST_FILES} are read at once.")
    return found


def movements_of(row: MeasuredRow) -> tuple[Movement, ...]:
    """What a row may have run as: what its settings leave; all where they leave nothing the model knows."""
    every = movements(row.collective, row.where)
    left = [
        move
        for move in every
        if (row.algorithms is None or move.algorithm in row.algorithms)
        and (row.protocols is None or move.protocol in row.protocols)
    ]
    return tuple(left or every)


def pick_of(
    where: Situation, moves: Sequence[Movement], collective: str, size_bytes: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """The place among movements of what NCCL runs at each size, (S,)."""
    return chosen(where, model_in(where), moves, collective, size_bytes.astype(np.int64).tolist())


def curves_of_table(table: MeasuredTable) -> Iterator[Curve]:
    """The curves of a table of NCCL or RCCL; none of a table about something slow."""
    if table.health == "sick" or not table.library.upper().startswith(("NCCL", "RCCL")):
        return
    judged = table.is_scored and table.group != "p2p"
    for rows in curves_of(table.rows):
        first = rows[0]
        moves = movements_of(first)
        if moves and first.where.ranks > 1:
            sizes = np.array([row.size_bytes for row in rows], np.float64)
            times = np.array([row.time_s for row in rows], np.float64)
            pick = pick_of(first.where, moves, first.collective, sizes)
            yield Curve(
                table.id, table.campaign, first.where, first.collective, sizes, times, moves, pick=pick, judged=judged
            )


def kernel_curves(path: Path) -> list[Curve]:
    """NCCL's rows of one node in half precision, the median over versions.

    Columns: system, gpu, library, dtype, n_gpus, collective, bytes, latency_us. Raises InputError for another file.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - loads slowly

    if path.stat().st_size > _MOST_PARQUET_BYTES:
        raise InputError(f"{path}: larger than {_MOST_PARQUET_BYTES >> 20} MiB.")
    columns = ["system", "gpu", "library", "dtype", "n_gpus", "collective", "bytes", "latency_us"]
    try:
        rows = pq.read_table(path, columns=columns).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: no table of {', '.join(columns)} ({str(error)[:200]}).") from None
    groups: dict[tuple[str, int, str], dict[int, list[float]]] = {}
    names: dict[str, str] = {}
    for row in rows:
        if row["library"] == "nccl" and row["dtype"] == "half" and row["bytes"] and row["latency_us"]:
            names.setdefault(row["system"], row["gpu"] or row["system"].split("_")[0])
            sizes = groups.setdefault((row["system"], row["n_gpus"], row["collective"]), {})
            sizes.setdefault(row["bytes"], []).append(row["latency_us"])
    found = []
    for (system, ranks, named), sizes in sorted(groups.items()):
        accelerator, collective = find_accelerator(names[system]), collective_named(named)
        if accelerator is None or collective is None or ranks < 2:
            continue
        rate, shape = intra_rate(accelerator)
        if system in _ODD_SYSTEMS:
            continue
        where = Situation(
            ranks=ranks,
            domains=1,
            gpu=gpu_class(accelerator),
            intra_bytes_per_s=rate,
            shape=shape,
            network="infiniband",
            network_bytes_per_s=0.0,
            nics=0,
            nvls=(accelerator.compute_capability or 0) >= 90 and shape == "switch" and ranks >= _NVLS_RANKS,
            sharp=False,
            library="NCCL",
            node=blueprint_of(accelerator),
        )
        moves = tuple(movements(collective, where))
        if moves:
            ordered = sorted(sizes)
            found.append(
                Curve(
                    f"kernels/{system}/{ranks}/{collective}",
                    f"kernels/{system}",
                    where,
                    collective,
                    np.array(ordered, np.float64),
                    np.array([float(np.median(sizes[size])) * 1e-6 for size in ordered]),
                    moves,
                    pick=pick_of(where, moves, collective, np.array(ordered, np.float64)),
                )
            )
    return found


def read_all(paths: Iterable[Path]) -> tuple[list[MeasuredTable], list[Curve], list[str]]:
    """Tables and kernel curves of files and folders, and a line for each file that is neither."""
    tables, curves, unread = [], [], []
    for path in found_files(paths):
        try:
            if path.suffix == ".parquet":
                curves += kernel_curves(path)
            else:
                tables.append(read_measured(path))
        except InputError as error:
            unread.append(str(error))
    return tables, curves, unread
