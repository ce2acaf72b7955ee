"""The figures of training steps: T1 to T9."""

from __future__ import annotations

from benchmarks.rows import Benchmark
from benchmarks.training import accuracy, footprint, published, speed, traces, wrong

__all__ = ["BENCHMARKS"]

BENCHMARKS = (
    Benchmark("T1", "error of step time, source left out: MAPE over rows; median over sources of the source's MAPE; p90", "share", ("<=", (0.10, 0.10, 0.20)), accuracy.step_times),
    Benchmark("T2", "share of rows with layout, measured time and catalogued GPU that are predicted", "share", (">=", (0.98,)), accuracy.predicted_share),
    Benchmark("T3", "MAPE on the same rows; a null model beside (median TFLOP/s per GPU, precision, dense or MoE), source left out", "share", ("<", (1.0,)), accuracy.beside_null),
    Benchmark("T4", "share of rows whose published layout is among the first five legal ones that differ by 0.5 %", "share", (">=", (0.8,)), published.published_layouts),
    Benchmark("T5", "memory: MAPE on measured peaks; error of Megatron's figure of selective recompute; false 'does not fit'", "share; share; rows", ("<=", (0.10, 0.03, 0.0)), footprint.memory_errors),
    Benchmark("T6", "largest error of operations a token against 11 published figures", "share", ("<=", (0.005,)), footprint.operations),
    Benchmark("T7", "closed-form layouts a second, 2 cores; a step of 16,384 GPUs; of 100,352 GPUs; its memory", "1/s; s; s; GB", (">=;<;<;<", (100_000.0, 5.0, 10.0, 2.0)), speed.closed_form_and_steps, sized=True),
    Benchmark("T8", "a profiler's trace of 1 GB explained: CPU time; peak memory; HolisticTraceAnalysis' CPU time over it", "s; GB; ", ("<=;<=;>=", (15.0, 2.0, 1.0)), traces.trace_read, sized=True),
    Benchmark("T9", "wrong inputs answered by one message with what, where and what would do", "share", (">=", (1.0,)), wrong.wrong_inputs),
)  # fmt: skip
