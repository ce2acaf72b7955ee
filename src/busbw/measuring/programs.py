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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from busbw.errors import InputError
from busbw.launching import launch_local
from busbw.measuring.elements import item_bytes
from busbw.measuring.rank import rank_here
from busbw.measuring.request import POINT_TO_POINT, REDUCING, ROOTED, Request
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
_OSU_TYPES = {"float32": "mpi_float", "int32": "mpi_int", "int8": "mpi_char"}
"""What -T takes. Source: osu_util.c of 7.2 and 7.4, set_type."""
_OSU_MEMORY = 512 << 20
"""OSU's default of -M: sizes that need more are left out without a word. Source: `osu_allreduce --help`, 7.4."""
_OSU_TWO_RANKS = ("latency", "bandwidth", "bidirectional")
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
_NIXL_BUFFER = 8 << 30
"""nixlbench's default of --total_buffer_size, which a block must fit. Source: ai-dynamo/nixl, benchmark/nixlbench/src/utils/utils.cpp."""


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
    sizes: int = 1
    """That were asked for; a program may leave some out."""

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


def _steps(sizes_bytes: Sequence[int], backend: str, only: int | None = None) -> list[tuple[int, int, int, int]]:
    """First, last, factor and number of runs of sizes, since these programs step by a factor, some by `only` one: each as long as it can be."""
    sizes = sorted(set(sizes_bytes))
    if not sizes or sizes[0] < 1:
        raise InputError(f"back end {backend}: its sizes begin at 1 byte.")
    runs: list[list[int]] = [[sizes[0]]]
    for size in sizes[1:]:
        run = runs[-1]
        factor, rest = divmod(size, run[-1])
        if not rest and factor == (only or (run[1] // run[0] if len(run) > 1 else factor)):
            run.append(size)
        else:
            runs.append([size])
    return [(run[0], run[-1], run[1] // run[0] if len(run) > 1 else 2, len(run)) for run in runs]


def _of_nccl_tests(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    if request.collective not in _NCCL_TESTS:
        raise InputError(f"back end nccl-tests: has no test of {request.collective.replace('_', '-')}; send-recv measures messages.")  # fmt: skip
    program = _found(_NCCL_TESTS[request.collective], folder, "nccl-tests")
    one_process = launcher == "local"
    options = ["-g", str(request.ranks) if one_process else "1", "-c", "1", "-w", str(request.warm_up), "-n", str(request.iterations or _ITERATIONS)]  # fmt: skip
    options += ["-d", _NCCL_TYPES.get(request.dtype, request.dtype)]
    options += ["-o", request.op] if request.collective in REDUCING else []
    options += ["-r", str(request.root)] if request.collective in ROOTED else []
    return [
        Invocation(
            f"{request.collective}/{first}-{last}",
            (program, "-b", str(first), "-e", str(last), "-f", str(factor), *options, *extra),
            1 if one_process else request.ranks,
            sizes=number,
        )
        for first, last, factor, number in _steps(request.sizes_bytes, "nccl-tests")
    ]


def _of_osu(request: Request, extra: tuple[str, ...], folder: Path | None, launcher: str) -> list[Invocation]:
    name, reduces = request.collective, request.collective in REDUCING
    if name not in _OSU:
        raise InputError(f"back end osu: has no test of {name.replace('_', '-')}; latency and bandwidth measure messages.")  # fmt: skip
    if request.op != "sum" and reduces:
        raise InputError("back end osu: its tests reduce by sum; leave --op out.")
    if request.root and name in ROOTED:
        raise InputError("back end osu: the root of its tests is rank 0; leave --root out.")
    if request.dtype not in _OSU_TYPES:
        raise InputError(f"back end osu: its types are {', '.join(_OSU_TYPES)}, not {request.dtype}.")
    if name in _OSU_TWO_RANKS and request.ranks != 2:
        raise InputError(f"back end osu: {_OSU[name]} is of exactly 2 ranks, not {request.ranks}.")
    if name == "message_rate" and request.ranks % 2:
        # 7.4 says "must have an even number of processes" nowhere and waits for ever; seen with 3 ranks under Open MPI 4.1.4
        raise InputError(f"back end osu: osu_mbw_mr pairs ranks, and {request.ranks} are odd; write an even number.")
    if request.ranks < 2:
        raise InputError(f"back end osu: {_OSU[name]} needs two ranks or more.")
    if launcher == "local":
        raise InputError("back end osu: its ranks are started by MPI's mpirun; leave --launcher local out.")
    program = _found(_OSU[name], folder, "osu")
    dtype, sizes = request.dtype, request.sizes_bytes
    if reduces and min(sizes) > 0:
        if dtype == "int8":
            # 16 bytes of MPI_CHAR fail the validation of all_reduce (7.4, seen here); of messages they do not.
            raise InputError("back end osu: its check of reductions of int8 fails where the result is right; take float32 or int32.")  # fmt: skip
        item = item_bytes(dtype)  # whole elements: it would print the size that was asked for all the same
        sizes = tuple(max(item, size // item * item) for size in sizes)
    checks = ["-c", "-T", _OSU_TYPES[dtype]] if reduces else ["-c"] if name != "barrier" else []
    full = ["-f"] if name not in POINT_TO_POINT else []
    counts = ["-x", str(request.warm_up), "-i", str(request.iterations or _ITERATIONS)]
    block = request.ranks if name in _OSU_SIZE_IS_A_BLOCK else 1
    if name == "barrier":
        return [Invocation("barrier/0-0", (program, *counts, *full, *extra), request.ranks)]
    if min(sizes) < 1:
        raise InputError("back end osu: its sizes begin at 1 byte.")
    made = []
    for first, last, _, number in _steps([max(1, size // block) for size in sizes], "osu", only=2):
        need = 4 * last * block  # two buffers of all blocks, and as much for the check
        memory = ["-M", str(need)] if need > _OSU_MEMORY else []
        argv = (program, "-m", f"{first}:{last}", *counts, *full, *checks, *memory, *extra)
        made.append(Invocation(f"{name}/{first * block}-{last * block}", argv, request.ranks, sizes=number))
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
    if request.collective not in ("bandwidth", "latency"):
        raise InputError("back end nixl: nixlbench moves blocks one way between two sides: write bandwidth or latency.")
    if request.ranks != 2:
        raise InputError(f"back end nixl: nixlbench has two sides, not {request.ranks}; write --ranks 2.")
    program = _found("nixlbench", folder, "nixl")
    made = []
    for first, last, _, number in _steps(request.sizes_bytes, "nixl", only=2):
        options = ["--check_consistency", "--start_block_size", str(first), "--max_block_size", str(last)]
        # 16 unless said: iterations of blocks over 1 MB are divided by it, and all are rounded up to a multiple of it
        options += ["--num_iter", str(request.iterations or _ITERATIONS), "--warmup_iter", str(request.warm_up), "--large_blk_iter_ftr", "1"]  # fmt: skip
        if last > _NIXL_BUFFER:
            options += ["--total_buffer_size", str(last)]
        if not any(word.lstrip("-").startswith(("etcd_endpoints", "runtime_type", "config_file")) for word in extra):
            # without a server of etcd: the two sides find each other at an address of the first host
            options += ["--runtime_type", "ASIO", "--asio_address", "{server}", "--asio_port", str(_free_port())]
        made.append(Invocation(f"{request.collective}/{first}-{last}", (program, *options, *extra), 2, sizes=number))
    return made


def run_program(invocation: Invocation, how: How) -> str:
    """What a program printed, with its command above it. Raises LaunchError."""
    lines: list[bytes] = []
    server = _address(how.hosts[0]) if how.hosts else "127.0.0.1"
    invocation = replace(invocation, argv=tuple(word.replace("{server}", server) for word in invocation.argv))
    if invocation.server:
        spec = json.dumps({"server": invocation.server, "client": invocation.argv})
        argv = [sys.executable, "-m", "busbw.measuring.programs", spec]
        if how.launcher == "local":
            lines.append(launch_local(argv, 2, deadline_s=how.deadline_s)[1].out.encode())
        else:
            end_by_launcher(how, argv, 2, lines.append)
    elif how.launcher == "local":
        # which of several processes prints the table is the program's own business
        ended = launch_local(invocation.argv, invocation.processes, deadline_s=how.deadline_s, bind=False)
        lines += [one.out.encode() for one in ended]
    else:
        end_by_launcher(how, invocation.argv, invocation.processes, lines.append)
    return f"{invocation.shown()}\n{b''.join(lines).decode('utf-8', 'replace')}"


def _address(host: str) -> str:
    """A host's address as numbers, which nixlbench wants; the name where it has none here.

    >>> _address("127.0.0.1")
    '127.0.0.1'
    """
    name = host.rpartition("@")[2]
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return name


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
