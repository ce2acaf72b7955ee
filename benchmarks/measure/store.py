"""M5, M6: a store of ten million samples, and one whose writers are killed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.rows import Measured, Options

__all__ = ["ten_million_samples"]

_RUNS, _SIZES, _RANKS, _ITERATIONS = 30, 28, 16, 744
"""30 nightly runs * 28 sizes * 16 ranks * 744 iterations = 10.0 million."""
_SIZES_SMOKE, _ITERATIONS_SMOKE = 4, 50
_NOISE, _RUN_NOISE, _SKEW_NS = 0.05, 0.01, 20_000
_ALPHA_NS, _BYTES_PER_NS = 20_000, 40
_TRIES = 3


def ten_million_samples(options: Options) -> Measured:
    """Seconds to ingest; MB on disk; seconds of the slowest standard query.

    Times are 20 us + size / 40 GB/s, 8 B to 1 GiB, times a lognormal factor of 5 % a sample and of 1 % a run, in whole nanoseconds; arrivals are
    exponential, 20 us on average; starts are the times before with exponential gaps of 3 us. A commit is one cell of a run, all ranks,
    and durable before the next begins, as a benchmark would do it. Numbers are drawn before the clock starts.
    """
    from busbw.observations.store import Circumstances, MeasuredCell, Store

    sizes, iterations = (_SIZES_SMOKE, _ITERATIONS_SMOKE) if options.smoke else (_SIZES, _ITERATIONS)
    random = np.random.default_rng(5)
    ranks = np.repeat(np.arange(_RANKS, dtype=np.int32), iterations)
    hosts = {rank: f"node{rank // 8:02d}" for rank in range(_RANKS)}
    drawn = []
    for _ in range(_RUNS):
        level = np.exp(_RUN_NOISE * random.standard_normal())
        for size in range(sizes):
            size_bytes = 8 << size
            mean = (_ALPHA_NS + size_bytes / _BYTES_PER_NS) * level
            took = np.rint(mean * np.exp(_NOISE * random.standard_normal(ranks.size))).astype(np.int64)
            arrival = random.exponential(_SKEW_NS, ranks.size).astype(np.int64)
            gaps = random.exponential(3_000, ranks.size).astype(np.int64)
            start = 1_790_000_000_000_000_000 + np.cumsum((took + gaps).reshape(_RANKS, -1), axis=1).ravel()
            drawn.append((size_bytes, took, arrival, start))
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name) / "store")
        begun = time.perf_counter()
        written = iter(drawn)
        for night in range(_RUNS):
            with store.record(f"night {night}", Circumstances(host="node00")) as run:
                for _ in range(sizes):
                    size_bytes, took, arrival, start = next(written)
                    cell = MeasuredCell("all_reduce", size_bytes, "float32", "sum", _RANKS, 2, False, "nccl", "ring")
                    run.samples(cell, time_ns=took, rank=ranks, start_ns=start, arrival_ns=arrival, host=hosts)
                    run.commit()
        ingest_s = time.perf_counter() - begun
        size_mb = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file()) / 1e6
        slowest = max((_query_s(store, sql), what) for what, sql in _queries(store).items())
    samples = len(drawn) * ranks.size
    return Measured(
        [ingest_s, size_mb, slowest[0]], note=f"{samples:,} samples, {len(drawn)} commits; slowest: {slowest[1]}"
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
