"""T5 and T6: memory against measured peaks, operations a token against published figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.rows import Measured, Options
from benchmarks.training.accuracy import folder, rows_of
from busbw.hardware import find_cluster
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import parse_layout, precision_of
from busbw.workloads.training.memory import layer_activation_bytes, memory, verdicts
from busbw.workloads.training.models import Kind, find_model

__all__ = ["memory_errors", "operations"]

_SAVED = (("gpt3-175b", 0.70), ("mt-nlg-530b", 0.65))
"""Of activations by selective recompute. Source: arXiv:2205.05198, section 5."""
_PUBLISHED = (
    # GFLOP a token: the table of facts/workloads.md, from Megatron-Bridge and NeMo 24.07; gpt-oss by the counter of Megatron-Bridge's newest rows.
    ("llama3.1-405b", 8192, True, 0, 2524.0), ("llama3-70b", 8192, True, 0, 449.2), ("llama3-70b", 8192, False, 0, 481.4),
    ("llama3.1-8b", 8192, True, 0, 51.5), ("deepseek-v3", 4096, True, 1, 260.0), ("deepseek-v3", 4096, True, 0, 250.0),
    ("kimi-k2", 4096, True, 0, 204.6), ("qwen3-235b-a22b", 4096, True, 0, 148.0), ("qwen3-30b-a3b", 4096, True, 0, 23.0),
    ("gpt3-175b", 2048, False, 0, 1077.0), ("gpt-oss-120b", 4096, True, 0, 32.6),
)  # fmt: skip


def memory_errors(options: Options) -> Measured:
    """T5."""
    rows, _ = rows_of(folder(options))
    peaks = [row for row in rows if row.peak_bytes]
    off = [abs(memory(row.job, row.columns).reserved[0] / (row.peak_bytes or 1.0) - 1) for row in peaks]
    figures = []
    cluster, _ = find_cluster("dgx-a100", 1)
    for name, saved in _SAVED:
        model = find_model(name)
        job = Job(model, cluster, 8, 2048, precision_of("fp16"), flash=False)
        columns = Columns.of([parse_layout("tp8.dp1")], [1], ["none"])
        with_scores = layer_activation_bytes(model, Kind("full", "dense"), job, columns)[0]
        scores = 5.0 * model.heads / 8 * 2048 * 2048
        figures.append(abs(scores / with_scores / saved - 1))
    false = sum(all(word == "does not fit" for word in verdicts(row.job, row.columns)) for row in rows)
    return Measured(
        [float(np.mean(off)), max(figures), false],
        note=f"{len(peaks)} peaks, worst {max(off):.2f}; {len(rows)} rows that ran",
    )


def operations(_: Options) -> Measured:
    """T6."""
    off = [
        abs(replace(find_model(name), mtp=mtp).flops_per_token(seq_len, causal) / (gflop * 1e9) - 1)
        for name, seq_len, causal, mtp, gflop in _PUBLISHED
    ]
    return Measured(max(off), note=f"{len(off)} figures")
