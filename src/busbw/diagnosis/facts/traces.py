"""Traces of profilers as facts: what the GPU of each rank did in each step, in how much time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busbw.diagnosis.findings import LineRef

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Step", "TraceSpans"]

_COMMUNICATION = r"^(?:n?r?ccl(?:Dev)?Kernel|nvshmem|.*(?:all_?reduce|all_?gather|reduce_?scatter|deep_ep|multimem).*)"
"""Kernels that communicate: NCCL's and RCCL's by their names; others by what they are called. A name that hides it counts as computation."""
_AT_ONCE_NS = 20_000
"""Between launch and begin of a kernel that found its stream empty, at most. A guess: a launch takes 3 to 10 us."""
MOST_STEPS = 4096
"""Of one rank."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training, or one trace without steps, on the GPU of one rank. Times in ns."""

    at: LineRef
    """The longest collective that nothing hid, else the first kernel."""
    rank: int | None
    host: str | None
    number: int | None
    """As the profiler counts; None: the trace has no steps."""
    time_ns: int
    """From the first to the last span."""
    compute_ns: int
    """Kernels but those of collectives; where several run at once, once."""
    communication_ns: int
    exposed_ns: int
    """Of it, while no kernel computed."""
    copy_ns: int
    """Copies and clearing of memory while neither computed nor communicated."""
    idle_ns: int
    at_once: float
    """Share of the kernels that began as soon as they were launched: the GPU had nothing left to do."""
    longest: str
    """Name of the collective that was exposed longest."""
    longest_ns: int
    pid: int | None = None
    """Of the process, where the trace names it: a file may hold several."""
    device: int | None = None


class TraceSpans:
    """Rows of `spans`, kept as columns until all of a trace are there."""

    def __init__(self) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = defaultdict(list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Spans of one artefact: those of a GPU."""
        import pyarrow.compute as pc  # noqa: PLC0415 - few inputs have spans

        category = batch.column("category")
        gpu = batch.filter(pc.is_in(category, value_set=_work_of_gpus()))
        if gpu.num_rows:
            name = gpu.column("name")
            communicates = pc.and_(
                pc.equal(gpu.column("category"), "kernel"),
                pc.match_substring_regex(name, _COMMUNICATION, ignore_case=True),
            )
            kept = gpu.select(
                [
                    "line",
                    "byte_offset",
                    "host",
                    "pid",
                    "device",
                    "rank",
                    "category",
                    "begin_ns",
                    "end_ns",
                    "launched_ns",
                    "step",
                ]
            )
            kept = kept.append_column("communicates", communicates).append_column(
                "name", pc.if_else(communicates, name, "")
            )
            self._batches[gpu.column("artefact")[0].as_py()].append(kept)

    def steps(self, paths: dict[str, str]) -> Iterator[Step]:
        """Every step of every trace, by artefact and number."""
        import pyarrow as pa  # noqa: PLC0415

        for artefact, batches in self._batches.items():
            table = pa.Table.from_batches(batches)
            for one in _processes(table):
                yield from _Columns(one, artefact, paths[artefact]).steps()


def _work_of_gpus() -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    return pa.array(["kernel", "memcpy", "memset"])


def _processes(table: pa.Table) -> Iterator[pa.Table]:
    """The spans of each GPU of each process, where a file has those of several; a trace that names no process is one."""
    import pyarrow.compute as pc  # noqa: PLC0415

    if table.column("pid").null_count == len(table):
        yield table
        return
    for whose in table.group_by(["pid", "device"], use_threads=False).aggregate([]).to_pylist():
        chosen = None
        for key, value in whose.items():
            same = (
                pc.is_null(table.column(key))
                if value is None
                else pc.fill_null(pc.equal(table.column(key), value), False)
            )
            chosen = same if chosen is None else pc.and_(chosen, same)
        yield table.filter(chosen)


class _Columns:
    """The spans of one artefact as arrays."""

    def __init__(self, table: pa.Table, artefact: str, path: str) -> None:
        self.table, self.artefact, self.path = table, artefact, path
        self.begin, self.end = self._column("begin_ns", 0), self._column("end_ns", 0)
        self.step, self.launched = self._column("step", -1), self._column("launched_ns", -1)
        self.kernel = self._column("category", "") == "kernel"
        self.communicates = self._column("communicates", False)

    def _column(self, name: str, missing: Any) -> Any:
        return self.table.column(name).combine_chunks().fill_null(missing).to_numpy(zero_copy_only=False)

    def value(self, name: str, row: int = 0) -> Any:
        return self.table.column(name)[row].as_py()

    def steps(self) -> Iterator[Step]:
        import numpy as np  # noqa: PLC0415

        numbers = np.unique(self.step[self.step >= 0])[:MOST_STEPS].tolist()
        order = np.argsort(self.step, kind="stable")
        if not numbers:
            yield self.one(order, None)
        first, after = (np.searchsorted(self.step[order], numbers, side=side) for side in ("left", "right"))
        for number, low, high in zip(numbers, first, after, strict=True):
            yield self.one(order[low:high], number)

    def one(self, rows: Any, number: int | None) -> Step:
        """The step that these spans are."""
        import numpy as np  # noqa: PLC0415

        from busbw.statistics.intervals import common, length, union  # noqa: PLC0415

        def of(which: Any) -> Any:
            return union(self.begin[rows[which]], self.end[rows[which]])

        kernel, communicates = self.kernel[rows], self.communicates[rows]
        compute, communication, everything = of(kernel & ~communicates), of(communicates), of(slice(None))
        time = int(self.end[rows].max() - self.begin[rows].min())
        launched = kernel & (self.launched[rows] >= 0)
        at_once = self.begin[rows[launched]] - self.launched[rows[launched]] <= _AT_ONCE_NS
        calls = rows[communicates]
        alone = (
            self.end[calls]
            - self.begin[calls]
            - _covered(compute, self.end[calls])
            + _covered(compute, self.begin[calls])
        )
        worst = int(calls[np.argmax(alone)]) if calls.size else int(rows[np.argmin(self.begin[rows])])
        return Step(
            LineRef(self.path, self.value("line", worst), self.value("byte_offset", worst), self.artefact),
            self.value("rank"), self.value("host"), number, time, length(compute), length(communication),
            length(communication) - common(compute, communication), length(everything) - length(of(kernel)), time - length(everything),
            float(at_once.mean()) if at_once.size else 0.0, _plain(self.value("name", worst)), int(alone.max()) if calls.size else 0,
            self.value("pid"), self.value("device"),
        )  # fmt: skip


def _covered(intervals: Any, moments: Any) -> Any:
    """(M,) int64: how much of the time before each moment lies in the intervals."""
    import numpy as np  # noqa: PLC0415

    begin, end = intervals
    if not begin.size:
        return np.zeros(len(moments), np.int64)
    at = np.searchsorted(begin, moments, side="right")
    last = np.maximum(at - 1, 0)
    before = np.concatenate(([0], np.cumsum(end - begin)))[at]
    return np.where(at > 0, before - np.maximum(end[last] - moments, 0), 0)


def _plain(name: str) -> str:
    return re.split(r"[(<]", name, maxsplit=1)[0][:80]
