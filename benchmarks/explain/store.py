"""The store under attack: writers that are killed, and writers that get in one another's way."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CommandTrials", "command_trials", "concurrent_writers", "kill_trials"]

_COMMITS = 8
_ROWS = 400
_TABLES = ("counters", "pairs")

# Reads the files 0, 1, ... of argv[2] into the store argv[1], a run each; prints an artefact once its commit returned.
_WRITER = """
import sys
from pathlib import Path
from busbw.observations import Artefact, rows_of
from busbw.observations.store import Store, segments

segments._ROW_GROUP_ROWS = 64  # many writes a run, so that a kill meets every state of a segment
folder, files, commits, rows = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for commit in range(commits):
    one = Artefact.of(files / str(commit), str(commit))
    with Store(folder).begin([one]) as run:
        for first in range(0, rows, 20):
            for table in sys.argv[5:]:
                values = [{"artefact": one.sha256, "value": float(i)} for i in range(first, first + 20)]
                run.add(one, rows_of(table, values))
        run.keep(one, ["benchmark"])
        run.commit()
    print(one.sha256, flush=True)
print("end", flush=True)
"""


def kill_trials(trials: int, seed: int) -> int:
    """Rows lost of those that a writer had acknowledged when it was killed (kill -9), over all trials; 0 is expected.

    Each trial kills a process that commits eight runs. The moments are spread evenly over the life of such a process,
    with a random shift: before, during and after commits. Four trials in a row share a store, leftovers and all.
    Raises RuntimeError if a killed run is there in part, or a writer fails by itself.
    """
    chance = random.Random(seed)
    lost = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        life_s = _life_s(scratch)
        for trial in range(trials):
            if trial % 4 == 0:
                folder, files, acknowledged = scratch / f"store{trial}", scratch / f"files{trial}", set[str]()
            else:
                files = scratch / f"files{trial}"
            _make_files(files, f"trial {trial}")
            writer = _start(folder, files)
            _go(writer)
            time.sleep(life_s * (trial + chance.random()) / trials)
            writer.send_signal(signal.SIGKILL)
            said = _words(writer)
            acknowledged |= {word for word in said if word != "end"}
            lost += _lost_rows(folder, acknowledged)
    return lost


def concurrent_writers(pairs: int) -> int:
    """Duplicate rows after pairs of processes have read the same eight files into one store at once; 0 is expected.

    Raises RuntimeError if a writer fails or a row is missing.
    """
    duplicates = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for pair in range(pairs):
            folder, files = scratch / f"store{pair}", scratch / f"files{pair}"
            _make_files(files, f"pair {pair}")
            writers = [_start(folder, files), _start(folder, files)]
            for writer in writers:
                _go(writer)
            for writer in writers:
                if "end" not in _words(writer):
                    raise RuntimeError(f"a writer of pair {pair} ended with status {writer.returncode}")
            counts = _counts(folder)
            if len(counts) != _COMMITS * len(_TABLES) or any(distinct != _ROWS for _, distinct in counts.values()):
                raise RuntimeError(f"pair {pair}: rows are missing: {counts}")
            duplicates += sum(rows - distinct for rows, distinct in counts.values())
    return duplicates


@dataclass(frozen=True, slots=True)
class CommandTrials:
    """What came of commands that were killed; lost and duplicates are rows, 0 is expected."""

    lost: int
    duplicates: int
    killed: int
    acknowledged: int


_LOGS, _LOGS_A_RUN = 8, 5
_LOG_LINES = 3_000


def command_trials(trials: int, seed: int) -> CommandTrials:
    """`busbw read --store` twice at once, each of five of the same eight logs, one of the two killed (kill -9) at a random moment.

    What a command that printed its run had read must be there, once, after every trial; what was read by the killed one
    is there as a whole or not at all. All trials share logs and ten of them a store, so that a run finds some files
    stored, some half written. Raises RuntimeError if a command fails by itself, or an artefact is there in part.
    """
    chance = random.Random(seed)
    lost = duplicates = killed = acknowledged = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        logs = [_write_settings(scratch / f"rank{i}.log", i) for i in range(_LOGS)]
        began = time.perf_counter()
        if _read_logs(scratch / "whole", logs[:_LOGS_A_RUN]).wait() != 0:
            raise RuntimeError("busbw read failed, though nobody killed it")
        life_s = time.perf_counter() - began
        for trial in range(trials):
            if trial % 10 == 0:
                folder, safe = scratch / f"store{trial}", set[Path]()
            runs = [chance.sample(logs, _LOGS_A_RUN) for _ in range(2)]
            commands = [_read_logs(folder, run) for run in runs]
            # The first third of a life is imports; two at once take longer than one.
            time.sleep(life_s * chance.uniform(0.3, 1.8))
            commands[0].send_signal(signal.SIGKILL)
            for command, run in zip(commands, runs, strict=True):
                said = command.communicate()[0]
                if command.returncode == 0 and said.strip():
                    safe.update(run)
                    acknowledged += 1
                elif command.returncode == -signal.SIGKILL:
                    killed += 1
                else:
                    raise RuntimeError(f"busbw read ended with status {command.returncode}")
            counts = _setting_counts(folder)
            torn = {path: count for path, count in counts.items() if count[1] != _LOG_LINES}
            if torn:
                raise RuntimeError(f"rows of a run are there in part: {torn}")
            duplicates += sum(rows - distinct for rows, distinct in counts.values())
            lost += sum(_LOG_LINES for path in safe if path.name not in counts)
    return CommandTrials(lost, duplicates, killed, acknowledged)


def _write_settings(path: Path, rank: int) -> Path:
    lines = (
        f"node{rank}:{rank + 100}:{rank + 100} [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_{i}\n"
        for i in range(_LOG_LINES)
    )
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _read_logs(folder: Path, logs: list[Path]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "busbw", "read", *map(str, logs), "--store", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _setting_counts(folder: Path) -> dict[str, tuple[int, int]]:
    """Rows and distinct rows by name of the log; nothing if no run was committed."""
    from busbw.observations.store import Store

    if not list(folder.glob("*/manifest.json")):
        return {}
    rows = Store(folder).query(
        "SELECT path, count(line) AS n, count(DISTINCT line) AS d FROM artefacts LEFT JOIN settings USING (artefact) GROUP BY path"
    )
    return {Path(row["path"]).name: (row["n"], row["d"]) for row in rows.to_pylist()}


def _make_files(folder: Path, text: str) -> None:
    folder.mkdir()
    for i in range(_COMMITS):
        (folder / str(i)).write_text(f"{text}, file {i}\n", encoding="utf-8")


def _start(folder: Path, files: Path) -> subprocess.Popen[str]:
    """A writer that has loaded its modules and waits for a line."""
    arguments = [sys.executable, "-c", _WRITER, str(folder), str(files), str(_COMMITS), str(_ROWS), *_TABLES]
    writer = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    if writer.stdout.readline() != "ready\n":
        raise RuntimeError(f"the writer did not start: status {writer.wait()}")
    return writer


def _go(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()


def _words(writer: subprocess.Popen[str]) -> list[str]:
    """What a writer said until its end."""
    return writer.communicate()[0].split()


def _life_s(scratch: Path) -> float:
    """How long a writer takes that nobody kills."""
    _make_files(scratch / "files", "whole life")
    writer = _start(scratch / "store", scratch / "files")
    began = time.perf_counter()
    _go(writer)
    if "end" not in _words(writer):
        raise RuntimeError(f"the writer ended with status {writer.returncode}")
    return time.perf_counter() - began


def _counts(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Rows and distinct rows by table and artefact; nothing if no run was committed."""
    from busbw.observations.store import Store

    if not list(folder.glob("*/manifest.json")):
        return {}
    selects = (
        f"SELECT '{table}' AS t, artefact AS a, count(*) AS n, count(DISTINCT value) AS d FROM {table} GROUP BY a"
        for table in _TABLES
    )
    rows = Store(folder).query(" UNION ALL ".join(selects)).to_pylist()
    return {(row["t"], row["a"]): (row["n"], row["d"]) for row in rows}


def _lost_rows(folder: Path, acknowledged: set[str]) -> int:
    """Acknowledged rows that are not there. Raises RuntimeError if any artefact is there in part or twice."""
    counts = _counts(folder)
    torn = {key: count for key, count in counts.items() if count != (_ROWS, _ROWS)}
    if torn or any((table, of) not in counts for _, of in counts for table in _TABLES):
        raise RuntimeError(f"rows of a run are there in part: {torn or counts}")
    return sum(_ROWS for of in acknowledged for table in _TABLES if (table, of) not in counts)
