"""M5, M6: a store of ten million samples, and one whose writers are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np

from benchmarks.rows import Measured, Options

__all__ = ["RecordingTrials", "killed_while_recording", "recording_trials", "ten_million_samples"]

_RUNS, _SIZES, _RANKS, _ITERATIONS = 30, 28, 16, 744
"""30 nightly runs * 28 sizes * 16 ranks * 744 iterations = 10.0 million."""
_SIZES_SMOKE, _ITERATIONS_SMOKE = 4, 50
_NOISE, _RUN_NOISE, _SKEW_NS = 0.05, 0.01, 20_000
_ALPHA_NS, _BYTES_PER_NS = 20_000, 40
_CELLS_A_COMMIT = 4
_TRIES = 3


def ten_million_samples(options: Options) -> Measured:
    """Seconds to ingest; MB on disk; seconds of the slowest standard query.

    Times are 20 us + size / 40 GB/s, 8 B to 1 GiB, times a lognormal factor of 5 % a sample and of 1 % a run, in whole nanoseconds; arrivals are
    exponential, 20 us on average; starts are the times before with exponential gaps of 3 us. A commit is four sizes of a run, all ranks,
    48,000 samples, durable before the next begins. Numbers are drawn before the clock starts.
    """
    from busbw.observations.store import Circumstances, MeasuredCell, Store

    sizes, iterations = (_SIZES_SMOKE, _ITERATIONS_SMOKE) if options.smoke else (_SIZES, _ITERATIONS)
    draws = np.random.default_rng(5)
    ranks = np.repeat(np.arange(_RANKS, dtype=np.int32), iterations)
    hosts = {rank: f"node{rank // 8:02d}" for rank in range(_RANKS)}
    drawn = []
    for _ in range(_RUNS):
        level = np.exp(_RUN_NOISE * draws.standard_normal())
        for size in range(sizes):
            size_bytes = 8 << size
            mean = (_ALPHA_NS + size_bytes / _BYTES_PER_NS) * level
            took = np.rint(mean * np.exp(_NOISE * draws.standard_normal(ranks.size))).astype(np.int64)
            arrival = draws.exponential(_SKEW_NS, ranks.size).astype(np.int64)
            gaps = draws.exponential(3_000, ranks.size).astype(np.int64)
            start = 1_790_000_000_000_000_000 + np.cumsum((took + gaps).reshape(_RANKS, -1), axis=1).ravel()
            drawn.append((size_bytes, took, arrival, start))
    ingests = []
    for left in reversed(range(1 if options.smoke else _TRIES)):
        with tempfile.TemporaryDirectory() as name:
            store = Store(Path(name) / "store")
            begun = time.perf_counter()
            written = iter(drawn)
            for night in range(_RUNS):
                with store.record(f"night {night}", Circumstances(host="node00")) as run:
                    for number in range(sizes):
                        size_bytes, took, arrival, start = next(written)
                        cell = MeasuredCell(
                            "all_reduce", size_bytes, "float32", "sum", _RANKS, 2, False, "nccl", "ring"
                        )
                        run.samples(cell, time_ns=took, rank=ranks, start_ns=start, arrival_ns=arrival, host=hosts)
                        if number % _CELLS_A_COMMIT == _CELLS_A_COMMIT - 1:
                            run.commit()
            ingests.append(time.perf_counter() - begun)
            if not left:
                size_mb = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file()) / 1e6
                slowest = max((_query_s(store, sql), what) for what, sql in _queries(store).items())
    samples = len(drawn) * ranks.size
    return Measured(
        [min(ingests), size_mb, slowest[0]],
        note=f"{samples:,} samples, {len(drawn) // _CELLS_A_COMMIT} commits; slowest: {slowest[1]}; least of {_TRIES} tries",
    )


def _queries(store: object) -> dict[str, str]:
    from busbw.observations.store import Store, standard

    assert isinstance(store, Store)
    first, second = store.query("SELECT run_id FROM runs ORDER BY created_ns LIMIT 2").column(0).to_pylist()
    return {
        "latest": standard.latest(),
        "percentiles": standard.cell_percentiles(),
        "rank medians": standard.rank_medians(),
        "stragglers": standard.stragglers(),
        "compare": standard.compare_runs(first, second),
        "history": standard.history(),
        "percentiles of a run": standard.cell_percentiles(first),
    }


def _query_s(store: object, sql: str) -> float:
    """The least of several tries: other work on the machine only adds."""
    from busbw.observations.store import Store

    assert isinstance(store, Store)
    took = []
    for _ in range(_TRIES):
        begun = time.perf_counter()
        rows = store.query(sql).num_rows
        took.append(time.perf_counter() - begun)
        if not rows:
            raise RuntimeError(f"a standard query answered nothing: {sql}")
    return min(took)


@dataclass(frozen=True, slots=True)
class RecordingTrials:
    """What came of recorders that were killed; lost, duplicates and unreadable are to be 0."""

    lost: int
    """Rows that a writer had acknowledged."""
    duplicates: int
    unreadable: int
    """Queries that failed while others wrote, compacted and died."""
    acknowledged: int
    queries: int


_WRITERS, _CELLS, _SAMPLES = 3, 6, 50
_A_STORE = 10
"""Trials that share a store."""


def killed_while_recording(options: Options) -> Measured:
    """Acknowledged rows lost."""
    trials = recording_trials(3 if options.smoke else 100, seed=6)
    if trials.duplicates or trials.unreadable:
        raise RuntimeError(
            f"{trials.duplicates} rows are there twice, {trials.unreadable} of {trials.queries} queries failed"
        )
    return Measured(
        trials.lost,
        note=f"{trials.acknowledged:,} rows acknowledged, no duplicates, {trials.queries} queries meanwhile",
    )


def recording_trials(trials: int, seed: int) -> RecordingTrials:
    """Three processes that write into one run, and one that compacts the store, each killed (kill -9) at a random moment; the run then resumes.

    The moments are uniform over twice the time that such a process took last. A thread queries all the while. Raises RuntimeError if
    a batch is there in part, or a run is not whole after it was resumed.
    """
    from busbw.observations.store import Store

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["busbw.observations.store", "pyarrow.parquet", "benchmarks.measure.store"])
    chance = random.Random(seed)
    lost = duplicates = acknowledged = 0
    readers = []
    with tempfile.TemporaryDirectory() as name:
        life_s = 1.0
        for trial in range(trials):
            if trial % _A_STORE == 0:
                store = Store(Path(name) / f"store{trial}")
                readers.append(_Reader(store))
            said = Path(name) / f"said{trial}"
            run_id = f"{trial:032x}"
            began = time.perf_counter()
            processes = _started(context, store, run_id, said, kills=life_s * 2, chance=chance)
            ended = [process.exitcode for process in processes]
            if any(code not in (0, -signal.SIGKILL) for code in ended):
                raise RuntimeError(f"a process failed by itself: {ended}")
            if 0 in ended[:_WRITERS]:
                life_s = min(life_s, time.perf_counter() - began)
            promised = set(said.read_text().split()) if said.exists() else set()
            acknowledged += len(promised) * _SAMPLES
            counts = _recorded_counts(store, run_id)
            torn = {cell: count for cell, count in counts.items() if count[1] != _SAMPLES}
            if torn:
                raise RuntimeError(f"trial {trial}: batches are there in part: {torn}")
            lost += sum(_SAMPLES for cell in promised if cell not in counts)
            for writer in range(_WRITERS):
                _write(store.folder, run_id, writer, said)
            counts = _recorded_counts(store, run_id)
            duplicates += sum(rows - distinct for rows, distinct in counts.values())
            if len(counts) != _WRITERS * _CELLS or any(distinct != _SAMPLES for _, distinct in counts.values()):
                raise RuntimeError(f"trial {trial}: the run is not whole after it was resumed: {counts}")
            status = store.recorded(run_id)
            if status is None or status.status() != "done":
                raise RuntimeError(f"trial {trial}: the resumed run is not done")
            if (trial + 1) % _A_STORE == 0 or trial == trials - 1:
                readers[-1].stop()
    return RecordingTrials(
        lost, duplicates, sum(r.failed for r in readers), acknowledged, sum(r.asked for r in readers)
    )


def _started(
    context: ForkServerContext, store: object, run_id: str, said: Path, *, kills: float, chance: random.Random
) -> list[multiprocessing.process.BaseProcess]:
    """Processes that have ended or were killed."""
    folder = store.folder  # type: ignore[attr-defined]
    processes: list[multiprocessing.process.BaseProcess] = [
        context.Process(target=_write, args=(folder, run_id, writer, said)) for writer in range(_WRITERS)
    ]
    processes.append(context.Process(target=_compact, args=(folder,)))
    for process in processes:
        process.start()
    began = time.perf_counter()
    for moment, process in sorted((chance.uniform(0, kills), index) for index in range(len(processes))):
        time.sleep(max(0.0, began + moment - time.perf_counter()))
        pid = processes[process].pid
        if pid is not None and processes[process].is_alive():
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.join()
    return processes


def _write(folder: Path, run_id: str, writer: int, said: Path) -> None:
    """Writes those cells of a writer that the run lacks, a commit each, and says which are safe."""
    from busbw.observations.store import Circumstances, MeasuredCell, Store

    store = Store(folder)
    with store.record("trial", Circumstances(), run_id=run_id, resume=store.recorded(run_id) is not None) as run:
        there = run.cells()
        for number in range(_CELLS):
            cell = MeasuredCell("all_reduce", 8, variant=f"{writer}-{number}")
            if cell in there:
                continue
            run.samples(cell, rank=0, time_ns=np.arange(_SAMPLES))
            run.commit()
            descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{cell.variant}\n".encode())
            os.close(descriptor)


def _compact(folder: Path) -> None:
    from busbw.observations.store import Store

    for _ in range(4):
        Store(folder).compact(grace_s=0.1)


def _recorded_counts(store: object, run_id: str) -> dict[str, tuple[int, int]]:
    """Rows and distinct rows by cell of a run."""
    from busbw.observations.store import Store

    assert isinstance(store, Store)
    if not store.has_runs() or store.recorded(run_id) is None:
        return {}
    rows = store.query(
        f"SELECT variant, count(*) AS n, count(DISTINCT time_ns) AS d FROM samples WHERE run_id = '{run_id}' GROUP BY variant"
    )
    return {row["variant"]: (row["n"], row["d"]) for row in rows.to_pylist()}


class _Reader:
    """A thread that queries a store until it is told to stop, and counts what fails."""

    def __init__(self, store: object) -> None:
        self.asked = self.failed = 0
        self._store = store
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the thread has ended."""
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        from busbw.errors import InputError

        began = False
        while not self._ended.wait(0.02):
            try:
                self._store.query("SELECT count(*) AS n, sum(time_ns) AS t FROM samples")  # type: ignore[attr-defined]
                began = True
                self.asked += 1
            except InputError as error:
                if began or "holds no committed run" not in str(error):
                    self.failed += 1
                    print(error)
