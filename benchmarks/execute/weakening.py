"""X7: each piece of memory order of the device headers is taken away, one at a time, and the simulated memory must notice.

`python -m benchmarks.execute.weakening [--seeds N]` lists every weakening and what found it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Weakened", "Weakening", "find_compiler", "try_all", "weakenings"]

_REPOSITORY = Path(__file__).parents[2]
_HEADERS = ("semaphore.hpp", "comm.hpp", "wait.hpp", "kernels")
"""Where order is asked for. The targets below them are what it is asked of."""
_KINDS = (
    ("acquire", re.compile(r"\bkAcquire\b"), "kRelaxed"),
    ("release", re.compile(r"\bkRelease\b"), "kRelaxed"),
    ("block barrier", re.compile(r"\bblock\.sync\(\);"), ";"),
    ("epoch", re.compile(r"\+\+\*comm\.epoch\(block\.block\);"), ";"),
    ("the other slot", re.compile(r"parity \^= 1;"), ";"),
    ("count taken", re.compile(r"\*taken = expected;"), ";"),
    ("barrier of ranks", re.compile(r"barrier\(comm, block\)(?=;)(?<!WaitResult barrier\(comm, block\))"), "kArrived"),
    ("signal", re.compile(r"signal_all\(comm, block\);"), ";"),
    ("exchange", re.compile(r"detail::exchange\(comm, block, parity\)"), "(parity ^= 1, kArrived)"),
)


@dataclass(frozen=True, slots=True)
class Weakening:
    """One place where order is taken away."""

    path: Path
    line: int
    kind: str
    begin: int
    end: int
    instead: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(_REPOSITORY / 'cpp' / 'include')}:{self.line} without {self.kind}"


@dataclass(frozen=True, slots=True)
class Weakened:
    """What became of it."""

    weakening: Weakening
    found: bool
    said: str
    """The first line that the test said; empty where it noticed nothing."""


def weakenings(root: Path = _REPOSITORY / "cpp" / "include" / "busbw" / "device") -> Iterator[Weakening]:
    """Every place of the shipped headers, but for comments."""
    for name in _HEADERS:
        place = root / name
        for path in sorted(place.rglob("*.hpp")) if place.is_dir() else [place]:
            text = path.read_text()
            for kind, pattern, instead in _KINDS:
                for match in pattern.finditer(text):
                    begin_of_line = text.rfind("\n", 0, match.start()) + 1
                    if "//" in text[begin_of_line : match.start()]:
                        continue
                    line = text.count("\n", 0, match.start()) + 1
                    yield Weakening(path, line, kind, match.start(), match.end(), instead)


def _try(weakening: Weakening, seeds: int, compiler: str) -> Weakened:
    with tempfile.TemporaryDirectory() as folder:
        include = Path(folder) / "include"
        shutil.copytree(_REPOSITORY / "cpp" / "include", include)
        text = weakening.path.read_text()
        changed = text[: weakening.begin] + weakening.instead + text[weakening.end :]
        (include / weakening.path.relative_to(_REPOSITORY / "cpp" / "include")).write_text(changed)
        test, program = _REPOSITORY / "cpp" / "tests" / "test_device_sim.cpp", Path(folder) / "test"
        build = [compiler, "-std=c++20", "-O1", f"-I{include}", f"-I{test.parent}", str(test), "-o", str(program)]
        subprocess.run(build, check=True, capture_output=True, text=True, timeout=300)
        ran = subprocess.run([str(program), str(seeds)], check=False, capture_output=True, text=True, timeout=600)
        return Weakened(weakening, ran.returncode != 0, ran.stderr.strip().splitlines()[0] if ran.returncode else "")


def find_compiler() -> str | None:
    """A C++20 compiler: $CXX, g++ or clang++; None if there is none."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None
    )


def try_all(seeds: int, compiler: str, *, most: int | None = None, workers: int = 2) -> Sequence[Weakened]:
    """Every weakening, or the first `most`, tried on so many seeds a kernel and number of ranks."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda one: _try(one, seeds, compiler), list(weakenings())[:most]))


def main() -> int:
    """Lists all of them; exit status 1 if one was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute.weakening", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    compiler = find_compiler()
    if compiler is None:
        parser.error("no C++ compiler; install g++")
    tried = try_all(seeds, compiler)
    for one in tried:
        print(f"{'found ' if one.found else 'MISSED'} {one.weakening}: {one.said}")
    print(f"{sum(one.found for one in tried)} of {len(tried)} found")
    return int(not all(one.found for one in tried))


if __name__ == "__main__":
    sys.exit(main())
