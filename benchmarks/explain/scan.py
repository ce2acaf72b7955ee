"""How fast a NCCL log is taken apart, beside Python's re and pandas on the same file in the same run."""

from __future__ import annotations

import multiprocessing
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.explain.log_generator import write_log

__all__ = ["peak_memories_bytes", "scan_rates"]

_REPEATS = 5

_LINE = (
    r"^(?P<host>[^\s:]+):(?P<pid>\d+):(?P<tid>\d+) (?:\[(?P<device>\d+)\] )?"
    r"(?:(?P<location>\S+:\d+) (?:\((?P<function>[^)]*)\) )?)?"
    r"NCCL (?P<level>INFO|WARN|TRACE|CALL|ATTN) (?P<message>"
    r"Channel (?P<channel>\d+)(?:/(?P<index>\d+))? : (?P<src>\d+)\[(?P<src_device>[0-9a-f]+)\] -> "
    r"(?P<dst>\d+)\[(?P<dst_device>[0-9a-f]+)\]"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>\S.*)"
    r"|(?P<call>\w+): opCount (?P<op_count>[0-9a-f]+) sendbuff (?P<send>\S+) recvbuff (?P<recv>\S+) "
    r"count (?P<count>\d+) datatype (?P<dtype>\d+) "
    r"op (?P<op>\d+) root (?P<root>\d+) comm (?P<comm>\S+) \[nranks=(?P<ranks>\d+)\].*"
    r"|(?P<choice>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\S+) proto (?P<protocol>\S+) "
    r"channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}.*"
    r"|.*)$"
)
"""The fields that busbw takes from these lines, as one expression."""


def scan_rates(size_bytes: int, seed: int) -> dict[str, float]:
    """MB/s (1e6 bytes a CPU second of one process, the best of five processes) of busbw, re and pandas on one generated log.

    busbw runs the grammar of all registered readers and hands out every row; the other two take the fields of calls,
    choices and connections alone, which is less work.
    """
    with _log(size_bytes, seed) as path:
        size = path.stat().st_size
        ways: dict[str, Callable[[Path], None]] = {"busbw": _scan_busbw, "re": _scan_re, "pandas": _scan_pandas}
        return {name: size / 1e6 / _least_cpu_s(scan, path) for name, scan in ways.items()}


def peak_memories_bytes(size_bytes: int, hostile_bytes: int, seed: int = 1) -> dict[str, int]:
    """Peak resident memory in bytes by command, as Linux counts it for a child process.

    `read --store` and `explain` get a generated log of size_bytes, `explain` also a hostile one of hostile_bytes: every
    line is of another process and says something else, a third of them warnings that nobody knows. Raises RuntimeError
    if a command breaks.
    """
    with _log(size_bytes, seed) as path:
        peaks = {
            "read --store": _peak_bytes(["read", str(path), "--store", str(path.parent / "store")], path.parent),
            "explain": _peak_bytes(["explain", str(path)], path.parent),
        }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.log"
        _write_hostile_log(path, hostile_bytes)
        return {**peaks, "explain, hostile": _peak_bytes(["explain", str(path)], path.parent)}


def _peak_bytes(arguments: Sequence[str], folder: Path) -> int:
    measure = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    # A process in between, so that no earlier child of this one counts.
    command = [sys.executable, "-c", measure, sys.executable, "-m", "busbw", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    status, peak_kib = map(int, done.stdout.split())
    if status not in (0, 1):  # 1: a fault was found
        raise RuntimeError(f"busbw {arguments[0]} ended with status {status}: {done.stderr.strip()[-500:]}")
    return peak_kib * 1024


def _write_hostile_log(path: Path, size_bytes: int) -> None:
    """Lines that no two processes share; each kind of fact is asked for more room than there is."""
    kinds = (
        "foo.cc:{i} NCCL WARN Nobody has seen message {i} before {i:060d}\n",
        "NCCL INFO NCCL_IB_HCA set by environment to mlx5_{i}\n",
        "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer cn{i}.cluster<33514>\n",
        "NCCL INFO Channel 00/0 : {i}[0] -> 1[0] [send] via NET/IB/{i}/GDRDMA\n",
        "foo.cc:{i} NCCL WARN Nobody knows why {i}\n",
        "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22\n",
    )
    with path.open("w", encoding="utf-8") as out:
        written = i = 0
        while written < size_bytes:
            written += out.write(f"cn{i % 9973}:{i}:{i} [0] " + kinds[i % len(kinds)].format(i=i))
            i += 1


@contextmanager
def _log(size_bytes: int, seed: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        write_log(path, size_bytes, seed)
        yield path


def _least_cpu_s(scan: Callable[[Path], None], path: Path) -> float:
    """The least of several processes: where a process's pages lie alone makes up to a factor of two on a shared machine."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return min(pool.submit(_cpu_s_of, scan, path).result() for _ in range(_REPEATS))


def _cpu_s_of(scan: Callable[[Path], None], path: Path) -> float:
    def once() -> float:
        start = _cpu_s()
        scan(path)
        return _cpu_s() - start

    return min(once() for _ in range(2))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _scan_busbw(path: Path) -> None:
    from busbw.observations import Artefact
    from busbw.readers import line_readers
    from busbw.readers.text import TextScan, scan_text

    no_hash = "0" * 64  # hashing is no part of the scan
    artefact = Artefact(sha256=no_hash, path=path.name, file=path, size_bytes=path.stat().st_size)
    for _ in scan_text(artefact, TextScan(line_readers())):
        pass


def _scan_re(path: Path) -> None:
    expression = re.compile(_LINE)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := expression.match(line):
                found.groups()


def _scan_pandas(path: Path) -> None:
    import pandas as pd

    with path.open(encoding="utf-8", errors="replace") as stream:
        pd.Series(stream.read().splitlines()).str.extract(_LINE)


if __name__ == "__main__":
    start = time.monotonic()
    size, log_seed = int(sys.argv[1]), int(sys.argv[2])
    for way, megabytes_per_s in scan_rates(size, log_seed).items():
        print(f"{way:8s} {megabytes_per_s:8.1f} MB/s")
    for command, peak in peak_memories_bytes(size, size // 40).items():
        print(f"peak memory of busbw {command}: {peak / 2**20:.0f} MiB")
    print(f"{time.monotonic() - start:.0f} s in all")
