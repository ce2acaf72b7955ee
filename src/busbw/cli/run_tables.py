"""What `busbw run` prints: nccl-tests' table with what bounds each row and how sure it is, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from busbw.measuring.measure import Measured, MeasuredRow
    from busbw.measuring.samples import Half

__all__ = ["as_json", "table_of", "wrong_of"]

SCHEMA = 1
"""Number of the JSON shape of `busbw run --json`."""
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_NCCL_TYPES = {"float16": "half", "float32": "float", "float64": "double"}
"""nccl-tests' words where they are not ours."""
_NCCL_PROGRAMS = {"all_to_all": "alltoall", "all_to_all_v": "alltoallv", "send_recv": "sendrecv"}
_MESSAGES = {
    "latency": "half a round trip of a message between ranks 0 and 1",
    "bandwidth": "a message of a window of 64 from rank 0 to rank 1",
    "bidirectional": "a message of windows of 64 both ways between ranks 0 and 1",
    "message_rate": "a message of windows of 64 from each of the first half of the ranks to one of the other half",
}


def wrong_of(measured: Measured) -> int:
    """Elements that were not what they must be, of all rows."""
    return sum(half.wrong for row in measured.rows for half in row.halves())


def table_of(measured: Measured, launcher: str = "local") -> str:
    """The table, with what bounds each row and how sure it is in comment lines after it."""
    lines = _messages(measured, launcher) if measured.request.collective in _MESSAGES else _as_nccl_tests(measured, launcher)  # fmt: skip
    return "\n".join([*lines, *_bounds(measured), *_spread(measured)]) + "\n"


def _who(measured: Measured, launcher: str) -> str:
    from busbw import __version__  # noqa: PLC0415

    request = measured.request
    about = measured.about
    if request.backend == "builtin":
        what = "busbw's kernels on the CPUs of this machine, not nccl-tests"
    elif request.backend == "mpi":
        what = f"{about.get('mpi', 'MPI')[:60]} through mpi4py, not nccl-tests"
    else:
        what = f"torch {about.get('torch', '')} with {about.get('torch_backend', '')}, not nccl-tests"
    ranks = "threads" if launcher == "threads" else "processes"
    return f"# busbw {__version__}, backend {request.backend}: {what}; ranks are {ranks}" + (
        "; window memory, so nothing is copied" if request.window else ""
    )


def _as_nccl_tests(measured: Measured, launcher: str) -> list[str]:
    request = measured.request
    program = f"{_NCCL_PROGRAMS.get(request.collective, request.collective)}_perf"
    calls = max((half.calls for row in measured.rows for half in row.halves()), default=0)
    sizes = request.sizes_bytes
    lines = [
        _who(measured, launcher),
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) warmup iters: {request.warm_up} iters: {calls} agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {place.rank:2} Group  0 Pid {place.pid:6} on {place.host.split('.')[0] or 'localhost'} device {place.rank:2} [0000:00:00] {measured.about.get('memory', 'CPU')}"
            for place in measured.places
        ),
        "#",
        f"#{'':53}{'out-of-place':^36}{'in-place':^36}".rstrip(),
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
    ]
    op = request.op if request.collective in _REDUCING else "none"
    root = request.root if request.collective in _ROOTED else -1
    for row in measured.rows:
        halves = (_half(measured, row.size_bytes, half) for half in (row.out_of_place, row.in_place))
        lines.append(
            f"{row.size_bytes:12} {row.count:13} {_NCCL_TYPES.get(request.dtype, request.dtype):>9} {op:>7} {root:7}"
            + "".join(halves)
        )
    wrong = wrong_of(measured)
    rates = [measured.busbw_bytes_per_s(row.size_bytes, half)[1] for row in measured.rows for half in row.halves()]
    return [
        *lines,
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(rates) / len(rates) / 1e9 if rates else 0.0:.6g}",
        "#",
        f"# Collective test concluded: {program}",
        "#",
    ]


def _half(measured: Measured, size_bytes: int, half: Half | None) -> str:
    if half is None:
        return f" {'N/A':>8} {'N/A':>7} {'N/A':>7} {'N/A':>7}"
    algbw, busbw = measured.busbw_bytes_per_s(size_bytes, half)
    time_us = half.time_s * 1e6
    return f" {time_us:8.{_decimals(time_us)}f} {algbw / 1e9:7.{_decimals(algbw / 1e9)}f} {busbw / 1e9:7.{_decimals(busbw / 1e9)}f} {half.wrong:7}"


def _messages(measured: Measured, launcher: str) -> list[str]:
    request = measured.request
    lines = [
        _who(measured, launcher),
        f"# {request.collective.replace('_', '-')}: {_MESSAGES[request.collective]}; GB/s and messages/s are of all pairs and directions",
        *(f"# rank {place.rank} pid {place.pid} on {place.host}" for place in measured.places),
        "#   size (B)      type    time (us)       GB/s     messages/s   wrong",
    ]
    for row in measured.rows:
        half = row.out_of_place
        if half is None:
            continue
        rate = measured.busbw_bytes_per_s(1, half)[1]
        time_us, gb = half.time_s * 1e6, rate * row.size_bytes / 1e9
        lines.append(
            f"{row.size_bytes:12} {request.dtype:>9} {time_us:12.3f} {gb:10.{_decimals(gb)}f} {rate:14.0f} {half.wrong:7}"
        )
    return [*lines, "#"]


def _decimals(value: float) -> int:
    """nccl-tests' digits, and a third decimal where a time or rate is below 10: a call may take a tenth of a microsecond."""
    return 3 if value < 10 else 2 if value < 1000 else 1


def _bounds(measured: Measured) -> list[str]:
    if measured.request.backend != "builtin":
        trip = "bound: copying in host memory what a rank stores, all ranks at once, in this run."
    else:
        cache = f"{measured.round_trip_s * 1e9:.0f} ns" if measured.round_trip_s is not None else "none, with one rank"
        trip = f"bound: half a round trip of a cache line between ranks 0 and 1 ({cache}), or copying what a rank stores, all ranks at once; both of this run."
    lines = [
        f"# {trip}",
        "# predicted: no calibration for this machine (busbw has time models of NCCL on GPUs, none of a CPU).",
        "#     size (B)   bound (us)    best (us)    best/bound",
    ]
    for row in measured.rows:
        bound = measured.bound_s(row)
        best = min((half.best_s for half in row.halves()), default=math.nan)
        ratio = f"{best / bound:13.2f}" if bound > 0 else f"{'-':>13}"
        lines.append(f"# {row.size_bytes:12} {bound * 1e6:12.3f} {best * 1e6:12.3f} {ratio}")
    return lines


def _spread(measured: Measured) -> list[str]:
    """How sure each time is: the median's interval, percentiles, who came last."""
    lines = [
        "# spread: of the samples, each the mean of the ranks: one call, or a batch of calls where one takes less than 20 us. +-: half the width of the",
        "# median's 95 % interval. skew: median of how long after the first rank the last began"
        + (f"; clocks of other hosts are off by up to {measured.clock_error_s * 1e6:.1f} us." if measured.clock_error_s else "."),
        "#     size (B) place   median (us)   +- %    p95 (us)    p99 (us)    min (us)    max (us)    calls batch   skew (us)  last",
    ]  # fmt: skip
    for row in measured.rows:
        for place, half in (("out", row.out_of_place), ("in", row.in_place)):
            if half is None or math.isnan(half.median_s):
                continue
            middle = half.median_s
            wide = f"{(half.high_s - half.low_s) / middle * 50:6.1f}" if half.high_s >= half.low_s and middle > 0 else f"{'-':>6}"  # fmt: skip
            times = "".join(f"{value * 1e6:12.3f}" for value in (half.p95_s, half.p99_s, half.min_s, half.max_s))
            skew = f"{half.skew_s * 1e6:12.3f}" if half.batch == 1 and not math.isnan(half.skew_s) else f"{'-':>12}"
            last = f"{half.last_rank} ({half.last_share:.0%})" if half.last_rank is not None else "-"
            lines.append(f"# {row.size_bytes:12} {place:>5}{middle * 1e6:14.3f} {wide}{times} {half.calls:8} {half.batch:5}{skew}  {last}")  # fmt: skip
    return lines


def as_json(measured: Measured, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The results of one request."""
    request = measured.request

    def half(of: Half | None, size_bytes: int) -> dict[str, Any] | None:
        if of is None:
            return None
        algbw, busbw = measured.busbw_bytes_per_s(size_bytes, of)
        return of.to_json() | {"algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw}

    def line(row: MeasuredRow) -> dict[str, Any]:
        return {
            "size_bytes": row.size_bytes,
            "count": row.count,
            "out_of_place": half(row.out_of_place, row.size_bytes),
            "in_place": half(row.in_place, row.size_bytes),
            "bound_s": measured.bound_s(row),
            "predicted_s": row.predicted_s,
        }

    return {
        "schema": SCHEMA,
        "backend": request.backend,
        "collective": request.collective,
        "ranks": request.ranks,
        "dtype": request.dtype,
        "op": request.op,
        "root": request.root,
        "window": request.window,
        "round_trip_s": measured.round_trip_s,
        "reads_peers_memory": measured.about.get("reads_peers_memory") == "true",
        "about": measured.about,
        "hosts": [place.host for place in measured.places],
        "clock_error_s": measured.clock_error_s,
        "rows": [line(row) for row in measured.rows],
        "notes": ["predicted_s: no calibration for this machine", *notes],
    }
