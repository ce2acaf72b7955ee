"""T8: a profiler's trace of a gigabyte, read and explained, beside HolisticTraceAnalysis on the same file."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rows import Measured, Options
from benchmarks.training.trace_file import write_trace

__all__ = ["trace_read"]

_SIZE_BYTES = 1_000_000_000
_SMOKE_BYTES = 3_000_000
_OURS = "import sys; from busbw.cli import main; sys.argv = ['busbw', 'explain', '--json', sys.argv[1]]; main()"
_THEIRS = "import sys; from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='').get_temporal_breakdown(visualize=False)"


def trace_read(options: Options) -> Measured:
    """CPU seconds, peak memory in GB, and whether HolisticTraceAnalysis (parsing and temporal breakdown) needs more of them on the same file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        events = write_trace(path, _SMOKE_BYTES if options.smoke else _SIZE_BYTES, ranks=1)
        ours_s, ours_gb, wall_s, status = _used(_OURS, path)
        if status:
            raise RuntimeError(f"busbw explain ended with status {status}")
        note = f"{path.stat().st_size / 1e6:.0f} MB, {events} events, {wall_s:.1f} s by the clock"
        if importlib.util.find_spec("hta") is None:
            return Measured(
                [ours_s, ours_gb, -1.0],
                note=f"{note}; no HolisticTraceAnalysis: pip install HolisticTraceAnalysis 'pandas<3'",
            )
        theirs_s, theirs_gb, _, status = _used(_THEIRS, path)
        if status:
            return Measured([ours_s, ours_gb, -1.0], note=f"{note}; HolisticTraceAnalysis ended with status {status}")
        return Measured(
            [ours_s, ours_gb, theirs_s / ours_s],
            {"HolisticTraceAnalysis, CPU s": theirs_s, "HolisticTraceAnalysis, GB": theirs_gb},
            note,
        )


def _used(program: str, path: Path) -> tuple[float, float, float, int]:
    """CPU seconds, peak GB, seconds by the clock and exit status of a Python program on this file."""
    begun = time.perf_counter()
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", program, str(path)], os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ])  # fmt: skip
    _, status, usage = os.wait4(child, 0)
    return (
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1e6,
        time.perf_counter() - begun,
        os.waitstatus_to_exitcode(status),
    )
