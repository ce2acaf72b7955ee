"""Back ends that are the user's own binaries: nccl-tests, OSU micro-benchmarks, ucx_perftest, nixlbench. Run here, read by their readers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from busbw.errors import InputError
from busbw.launching import launch_local
from busbw.measuring.rank import rank_here
from busbw.measuring.request import POINT_TO_POINT, REDUCING, Request
from busbw.measuring.running import How, end_by_launcher

__all__ = ["Invocation", "invocations", "read_rows", "run_program"]

_NCCL_TESTS = {
    "all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf", "reduce_scatter": "reduce_scatter_perf", "all_to_all": "alltoall_perf",
    "all_to_all_v": "alltoallv_perf", "broadcast": "broadcast_perf", "reduce": "reduce_perf", "gather": "gather_perf",
    "scatter": "scatter_perf", "send_recv": "sendrecv_perf",
}  # fmt: skip
_NCCL_TYPES = {"float16": "half", "float32": "float", "float64": "double"}
_OSU = {
    "all_reduce": "osu_allreduce", "all_gather": "osu_allgather", "reduce_scatter": "osu_reduce_scatter", "all_to_all": "osu_alltoall",
    "all_to_all_v": "osu_alltoallv", "broadcast": "osu_bcast", "reduce": "osu_reduce", "gather": "osu_gather", "scatter": "osu_scatter",
    "barrier": "osu_barrier", "latency": "osu_latency", "bandwidth": "osu_bw", "bidirectional": "osu_bibw", "message_rate": "osu_mbw_mr",
}  # fmt: skip
_OSU_SIZE_IS_A_BLOCK = ("all_gather", "all_to_all", "all_to_all_v", "gather", "scatter")
_UCX = {"latency": "tag_lat", "bandwidth": "tag_bw", "message_rate": "tag_bw"}
_ITERATIONS = 100
"""Of programs that take a number only. nccl-tests' default is 20, OSU's 1,000 to 10,000 for small messages (from memory, unverified): between them."""
_UCX_BYTES = 256 << 20
"""Of a test of messages, at most: a gigabyte a second makes a quarter of a second of it. A guess."""
_TRIES = 60
_RETRY_S = 0.1
"""While the server has not begun to listen."""
_EXIT_WRONG = 1


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of a program: several sizes where it steps through them by itself."""

    key: str
    argv: tuple[str, ...]
    """Of one process, or of the client."""
    processes: int
    """That the launcher starts."""
    server: tuple[str, ...] = ()
    """Of a program with two sides: what runs first, on the first host."""

    def shown(self) -> str:
        """The command as a person would write it, which readers look for above the output."""
        before = f"mpirun -n {self.processes} " if self.processes > 1 and not self.server else ""
        return f"$ {before}{' '.join([Path(self.argv[0]).name, *self.argv[1:]])}"


def invocations(request: Request, extra: Sequence[str], folder: Path | None, launcher: str) -> list[Invocation]:
    """What is to be run for a request. extra: options for the program. folder: where its binaries are; PATH if None.

    Raises InputError if the program has no such test, or is not there.
    """
    make: Mapping[str, Callable[..., list[Invocation]]] = {
        "nccl-tests": _of_nccl_tests, "osu": _of_osu, "ucx": _of_ucx, "nixl": _of_nixl,
    }  # fmt: skip
    if request.window:
        raise InputError(f"back end {request.backend}: window memory is of the builtin back end; leave --window out.")
    return make[request.backend](request, tuple(extra), folder, launcher)


def _found(program: str, folder: Path | None, backend: str) -> str:
    from busbw.measuring.backends import kind_of  # noqa: PLC0415

    where = shutil.which(program, path=str(folder) if folder is not None else None)
    if where is None:
        place = f"in {folder}" if folder is not None else "on PATH"
        raise InputError(f"back end {backend}: {program} is not {place}. It needs {kind_of(backend).needs}; --programs DIR says where its binaries are.")  # fmt: skip
    return where


def _steps(request: Request, backend: str) -> list[tuple[int, int, int]]:
    """First, last and factor of runs of sizes, since these programs step by a factor: each as long as it can be."""
    sizes = sorted(set(request.sizes_bytes))
    if not sizes or sizes[0] < 1:
        raise InputError(f"back end {backend}: its sizes begin at 1 byte.")
    runs: list[list[int]] = [[sizes[0]]]
    for size in sizes[1:]:
        run = runs[-1]
        factor = size / run[-1]
        if factor == int(factor) and (len(run) < 2 or run[1] // run[0] == factor):
            run.append(size)
        else:
            runs.append([size])
    return [(run[0], run[-1], run[1] // run[0] if len(run) > 1 else 2) for run in runs]


def _of_nccl_tests(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    if request.collective not in _NCCL_TESTS:
        raise InputError(f"back end nccl-tests: has no test of {request.collective.replace('_', '-')}; send-recv measures messages.")  # fmt: skip
    program = _found(_NCCL_TESTS[request.collective], folder, "nccl-tests")
    one_process = launcher == "local"
    options = ["-g", str(request.ranks) if one_process else "1", "-c", "1", "-w", str(request.warm_up), "-n", str(request.iterations or _ITERATIONS)]  # fmt: skip
    options += ["-d", _NCCL_TYPES.get(request.dtype, request.dtype)]
    options += ["-o", request.op] if request.collective in REDUCING else []
    options += ["-r", str(request.root)] if request.collective in ("broadcast", "reduce", "gather", "scatter") else []
    return [
        Invocation(
            f"{request.collective}/{first}-{last}",
            (program, "-b", str(first), "-e", str(last), "-f", str(factor), *options, *extra),
            1 if one_process else request.ranks,
        )
        for first, last, factor in _steps(request, "nccl-tests")
    ]


def _of_osu(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    if request.collective not in _OSU:
        raise InputError(f"back end osu: has no test of {request.collective.replace('_', '-')}; latency and bandwidth measure messages.")  # fmt: skip
    if request.op != "sum" and request.collective in REDUCING:
        raise InputError("back end osu: its tests reduce by sum; leave --op out.")
    program = _found(_OSU[request.collective], folder, "osu")
    # The default type MPI_CHAR fails its own validation of all_reduce at 16 bytes (7.4, seen here); of messages it does not.
    checks = ["-c", "-T", "mpi_float"] if request.collective in REDUCING else ["-c"] if request.collective != "barrier" else []  # fmt: skip
    full = ["-f"] if request.collective not in POINT_TO_POINT else []
    counts = ["-x", str(request.warm_up), "-i", str(request.iterations or _ITERATIONS)]
    sizes = [(0, 0, 2)] if request.collective == "barrier" else _steps(request, "osu")
    block = request.ranks if request.collective in _OSU_SIZE_IS_A_BLOCK else 1
    made = []
    for first, last, factor in sizes:
        if factor != 2:
            raise InputError(f"back end osu: its sizes go by powers of 2; write --bytes {first}:{last}:2.")
        span = ["-m", f"{max(1, first // block)}:{max(1, last // block)}"] if last else []
        made.append(Invocation(f"{request.collective}/{first}-{last}", (program, *span, *counts, *full, *checks, *extra), request.ranks))  # fmt: skip
    return made


def _of_ucx(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    del launcher
    test = _UCX.get(request.collective)
    if test is None or request.ranks != 2:
        raise InputError("back end ucx: ucx_perftest measures latency, bandwidth and message-rate between 2 ranks; take --backend mpi over UCX for others.")  # fmt: skip
    program = _found("ucx_perftest", folder, "ucx")
    made = []
    for size in request.sizes_bytes:
        calls = request.iterations or max(_ITERATIONS, min(100_000, _UCX_BYTES // max(1, size)))
        port = _free_port()
        options = ("-t", test, "-s", str(size), "-n", str(calls), "-w", str(max(1, request.warm_up)), "-p", str(port), "-f", *extra)  # fmt: skip
        made.append(Invocation(f"{request.collective}/{size}", (program, "{server}", *options), 2, (program, *options)))
    return made


def _free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as tried:
        tried.bind(("", 0))
        return int(tried.getsockname()[1])


def _of_nixl(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    del launcher
    if request.collective not in ("bandwidth", "bidirectional", "latency"):
        raise InputError("back end nixl: nixlbench moves blocks between two sides: write bandwidth.")
    program = _found("nixlbench", folder, "nixl")
    smallest, largest = min(request.sizes_bytes), max(request.sizes_bytes)
    options = ("--check_consistency", "--start_block_size", str(smallest), "--max_block_size", str(largest), "--num_iter", str(request.iterations or _ITERATIONS), "--warmup_iter", str(request.warm_up))  # fmt: skip
    return [Invocation(f"{request.collective}/{smallest}-{largest}", (program, *options, *extra), request.ranks)]


def run_program(invocation: Invocation, how: How) -> str:
    """What a program printed, with its command above it. Raises LaunchError."""
    lines: list[bytes] = []
    if invocation.server:
        server = how.hosts[0] if how.hosts else "127.0.0.1"
        spec = json.dumps({"server": invocation.server, "client": [word.replace("{server}", server) for word in invocation.argv]})  # fmt: skip
        argv = [sys.executable, "-m", "busbw.measuring.programs", spec]
        if how.launcher == "local":
            lines.append(launch_local(argv, 2, deadline_s=how.deadline_s)[1].out.encode())
        else:
            end_by_launcher(how, argv, 2, lines.append)
    elif how.launcher == "local":
        lines.append(
            launch_local(invocation.argv, invocation.processes, deadline_s=how.deadline_s, bind=False)[0].out.encode()
        )
    else:
        end_by_launcher(how, invocation.argv, invocation.processes, lines.append)
    return f"{invocation.shown()}\n{b''.join(lines).decode('utf-8', 'replace')}"


def read_rows(text: str, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of `measurements` in an output, and what could not be read, in words."""
    from busbw.errors import Loss  # noqa: PLC0415
    from busbw.observations import Artefact, Rows  # noqa: PLC0415 - loads the tables
    from busbw.readers import Reading, read_artefact  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    lost: list[str] = []
    with tempfile.TemporaryDirectory(prefix="busbw-run-") as folder:
        artefact = Artefact.written([text.encode("utf-8", "replace")], Path(folder) / "output.txt", name)
        for item in read_artefact(artefact, Reading(artefact)):
            if isinstance(item, Rows) and item.table == "measurements":
                rows += item.batch.to_pylist()
            elif isinstance(item, Loss):
                lost.append(str(item))
    return rows, lost


def wrong_rows(rows: Sequence[Mapping[str, Any]]) -> int:
    """Rows whose results were wrong, as the program itself has checked them."""
    return sum(bool(row["wrong"] and not np.isnan(row["wrong"])) for row in rows)


def _two_sides(spec: Mapping[str, list[str]]) -> int:
    """The server is rank 0; rank 1 is the client, and tries until the server listens."""
    if rank_here() == 0:
        os.execvp(spec["server"][0], spec["server"])
    for left in range(_TRIES, 0, -1):
        ended = subprocess.run(spec["client"], check=False, capture_output=True, text=True)
        if ended.returncode == 0 or left == 1 or "refused" not in (ended.stdout + ended.stderr).lower():
            sys.stdout.write(ended.stdout)
            sys.stderr.write(ended.stderr)
            return ended.returncode
        time.sleep(_RETRY_S)
    return _EXIT_WRONG


if __name__ == "__main__":
    sys.exit(_two_sides(json.loads(sys.argv[1])))
