"""The figures of reading, storing and explaining: E1 to E9, and R1 to R8 (causes.py)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.explain import causes
from benchmarks.explain.triage import CASES, scored
from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options

__all__ = ["BENCHMARKS"]

_REPOSITORY = Path(__file__).parents[2]
_SEED = 1

_SCAN_BYTES, _SCAN_SMOKE_BYTES = 100_000_000, 8_000_000
_LARGE_BYTES, _LARGE_SMOKE_BYTES = 2_000_000_000, 50_000_000
_HOSTILE_BYTES, _HOSTILE_SMOKE_BYTES = 50_000_000, 2_000_000
_KILLS, _KILLS_SMOKE = 100, 4
_COMMANDS, _COMMANDS_SMOKE = 60, 3
_PAIRS, _PAIRS_SMOKE = 10, 1


def _known(options: Options) -> str:
    return "" if options.cases else "; the cases the rules were written on"


def _root_cause_first(options: Options) -> Measured:
    score = scored(options)
    if not score.decided:
        raise NotMeasurableError("no case of a fault among the cases")
    note = (
        f"{len(score.right)} of {score.decided} cases, {len(score.undecidable)} undecidable left out{_known(options)}"
    )
    if score.missed:
        note += f"; missed: {', '.join(score.missed)}"
    return Measured(len(score.right) / score.decided, note=note)


def _false_alarms(options: Options) -> Measured:
    score = scored(options)
    note = f"{len(score.healthy)} healthy cases{_known(options)}"
    if score.false_alarms or score.broken:
        note += f"; alarms: {', '.join(score.false_alarms) or 'none'}; broken: {', '.join(score.broken) or 'none'}"
    return Measured([len(score.false_alarms), len(score.broken)], note=note)


def _scan_rate(options: Options) -> Measured:
    from benchmarks.explain.scan import scan_rates

    try:
        rates = scan_rates(_SCAN_SMOKE_BYTES if options.smoke else _SCAN_BYTES, _SEED)
    except ModuleNotFoundError as error:
        raise NotMeasurableError(f"{error.name} is not installed; pip install '.[bench]' brings the peers") from error
    return Measured(rates["busbw"], {name: rate for name, rate in rates.items() if name != "busbw"})


def _peak_memory(options: Options) -> Measured:
    from benchmarks.explain.scan import peak_memories_bytes

    size, hostile = (_LARGE_SMOKE_BYTES, _HOSTILE_SMOKE_BYTES) if options.smoke else (_LARGE_BYTES, _HOSTILE_BYTES)
    peaks = peak_memories_bytes(size, hostile)
    each = ", ".join(f"{command} {peak / 1e6:.0f}" for command, peak in peaks.items())
    return Measured(
        max(peaks.values()) / 1e6,
        note=f"worst of {each}; log of {size / 1e6:.0f} MB, hostile one {hostile / 1e6:.0f} MB",
    )


_EXPLAIN_ONCE = """
import sys, time
from pathlib import Path
import pyarrow
import busbw.diagnosis.rules, busbw.readers
from busbw.diagnosis import explain, to_json

busbw.readers.all_readers()
pyarrow.array(["x"])  # imports pandas if it is installed, whoever needs it or not
began = time.perf_counter()
artefacts, losses = busbw.readers.find_artefacts(sys.argv[1:])
answer = to_json(explain(artefacts, losses).diagnosis)
took_s = time.perf_counter() - began
lines = sum(len(finding["evidence"]) for finding in answer["findings"])
print(took_s, len(answer["findings"]), lines)
"""


def _ten_files_s(_: Options) -> Measured:
    """Every time is that of the first call in a new process, so what is compiled on first use counts."""
    with _ten_files() as folder:
        size = sum(file.stat().st_size for file in folder.iterdir())
        told = [_output_of([sys.executable, "-c", _EXPLAIN_ONCE, str(folder)]).split() for _ in range(3)]
    _, findings, lines = told[0]
    if findings == "0":
        raise RuntimeError("no rule fired on the two sick files")
    note = f"{size / 1e6:.1f} MB, 2 files sick, {findings} findings with {lines} lines, best of 3 processes"
    return Measured(min(float(took_s) for took_s, _, _ in told), note=note)


_SICK = {"nccl-6.log": "gdr-peermem-one-node/nccl.log", "dmesg-1.txt": "fallen-off-bus-no-xid/dmesg.txt"}
"""Reports of tests/diagnosis/cases by the file of the ten that they end."""


@contextmanager
def _ten_files() -> Iterator[Path]:
    """Logs of seven jobs of 64 ranks, two kernel logs, a table of nccl-tests: 5 MB. One log and one kernel log end in a public report."""
    from benchmarks.explain.log_generator import write_log

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job in range(7):
            write_log(folder / f"nccl-{job}.log", 600_000, seed=_SEED + job)
        kernel = "".join(
            f"[{second:5d}.{second % 997:06d}] audit: type=1400 apparmor=ALLOWED operation=open name=/proc/{second}\n"
            if second % 500
            else f"[{second:5d}.000000] mlx5_core 0000:{second // 500:02x}:00.0 eth{second // 500}: Link up\n"
            for second in range(4_000)
        )
        for host in range(2):
            (folder / f"dmesg-{host}.txt").write_text(kernel, encoding="utf-8")
        for file, report in _SICK.items():
            with (folder / file).open("ab") as out:
                out.write((CASES / report).read_bytes())
        rows = "".join(
            f"{2**i:12d} {2**i // 4:12d} float sum -1 {20 + 2**i / 4e5:10.2f} {1:6.2f} {1:6.2f} 0\n"
            for i in range(3, 34)
        )
        (folder / "nccl-tests.txt").write_text(rows, encoding="utf-8")
        yield folder


def _import_s(_: Options) -> Measured:
    """In a new process each time: what the import statement itself takes."""
    code = "import time; began = time.perf_counter(); import busbw; print(time.perf_counter() - began)"
    return Measured(min(float(_output_of([sys.executable, "-c", code])) for _ in range(5)), note="best of 5 processes")


def _store(options: Options) -> Measured:
    from benchmarks.explain.store import command_trials, concurrent_writers, kill_trials

    kills, pairs, commands = (
        (_KILLS_SMOKE, _PAIRS_SMOKE, _COMMANDS_SMOKE) if options.smoke else (_KILLS, _PAIRS, _COMMANDS)
    )
    by_command = command_trials(commands, _SEED)
    note = (
        f"{kills} kills and {pairs} pairs of writers in Python; {commands} pairs of `busbw read --store` on overlapping files, "
        f"{by_command.killed} commands killed, {by_command.acknowledged} acknowledged"
    )
    return Measured(
        [kill_trials(kills, _SEED) + by_command.lost, concurrent_writers(pairs) + by_command.duplicates], note=note
    )


def _wheel_runs(options: Options) -> Measured:
    from benchmarks.explain.installation import demo_runs_from_a_wheel

    return Measured(
        demo_runs_from_a_wheel(_REPOSITORY, borrow_dependencies=options.smoke),
        note="dependencies borrowed from this environment, not installed"
        if options.smoke
        else "dependencies installed",
    )


def _unusable_inputs(_: Options) -> Measured:
    from benchmarks.explain.unusable import outcomes

    told = outcomes()
    wrong = [f"{name}: {problem}" for name, problem in told.items() if problem]
    return Measured(len(told) - len(wrong), note="; ".join(wrong))


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


BENCHMARKS = (
    Benchmark("E1", "triage cases: root cause first", "share", (">=", [0.95]), _root_cause_first, sized=True),
    Benchmark("E2", "triage cases: false alarms on healthy ones; broken runs", "cases", ("==", [0, 0]), _false_alarms),
    Benchmark(
        "E3",
        "scan of a NCCL INFO log, one core, without hashing, rules and store",
        "MB/s",
        (">=", [200]),
        _scan_rate,
        sized=True,
    ),
    Benchmark(
        "E4",
        "peak memory of keeping and explaining a large NCCL log and a hostile one",
        "MB",
        ("<=", [500]),
        _peak_memory,
    ),
    Benchmark("E5", "explaining 10 files, after import", "s", ("<", [1]), _ten_files_s),
    Benchmark("E6", "import busbw", "s", ("<", [0.3]), _import_s),
    Benchmark(
        "E7",
        "store: acknowledged rows lost to kill -9; duplicate rows of concurrent writers",
        "rows",
        ("==", [0, 0]),
        _store,
    ),
    Benchmark("E8", "busbw demo from a wheel in an empty environment", "runs", ("==", [True]), _wheel_runs),
    Benchmark(
        "E9", "unusable inputs: one clear line, status 2, nothing written", "of 5", ("==", [5]), _unusable_inputs
    ),
    *causes.BENCHMARKS,
)
