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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Weakened", "Weakening", "find_compiler", "try_all", "weakenings"]

_REPOSITORY = Path(__file__).parents[2]
_HEADERS = (
    "semaphore.hpp",
    "comm.hpp",
    "wait.hpp",
    "block.hpp",
    "network.hpp",
    "proxy.hpp",
    "plan_proxy.hpp",
    "kernels",
)
"""Where order is asked for. The targets below them are what it is asked of."""
_PROGRAMS = ("network.hpp", "proxy.hpp", "plan_proxy.hpp", "interpreter.hpp", "experts.hpp", "gemm_all_reduce.hpp")
_TESTS = ("test_device_sim.cpp", "test_device_programs_sim.cpp")
"""What notices: the second what is in _PROGRAMS, the first all else, and then the second."""
_KINDS = (
    ("acquire", re.compile(r"(?<!::)\bkAcquire\b"), "kRelaxed"),
    ("release", re.compile(r"(?<!::)\bkRelease\b"), "kRelaxed"),
    ("block barrier", re.compile(r"\bblock_?\.sync\(\);"), ";"),
    ("block barrier of an agreement", re.compile(r"\bblock\.agreed\((mine|stop|stopped)\)"), r"\1"),
    ("block barrier of an agreement", re.compile(r"(?<!WaitResult )\bagreed\(\)"), "stopped_"),
    ("block barrier between rows", re.compile(r"(?<=    )in_order\(\);"), ";"),
    ("block barrier of a wait", re.compile(r"(?<!WaitResult )\bwaited\(\)"), "kArrived"),
    ("epoch", re.compile(r"\+\+\*comm\.epoch\(block\.block\);"), ";"),
    ("epoch", re.compile(r"(?<=weak_store\(comm\.epoch\(block\.block\), )call \+ 1"), "call"),
    ("epoch", re.compile(r"first_run_ \+ p_\.runs"), "first_run_"),
    (
        "count of messages",
        re.compile(r"weak_store\(&p_\.word\(p_\.rank, (?:in->count_at|out->count_at|taken)\), [^;]*;"),
        ";",
    ),
    ("count of a flag", re.compile(r"\+\+sets_;"), ";"),
    ("flag of a packet", re.compile(r"static_cast<std::uint32_t>\((?:run_number\(\)|slot\.number|call) \+ 1\)"), "1u"),
    ("the other slot", re.compile(r"parity \^= 1;"), ";"),
    ("the other slot", re.compile(r"\b(?:call|round) & 1\b"), "0"),
    ("the other slot", re.compile(r"number % (?:way\.slots|depth)\b"), "0"),
    ("the other scratch", re.compile(r"run_number\(\) / p_\.runs % 2"), "0"),
    ("bar of a strong signal", re.compile(r"queue\.barred = true;"), ";"),
    ("count taken", re.compile(r"\*taken = expected;"), ";"),
    ("barrier of ranks", re.compile(r"barrier\(comm, block\)(?=;)(?<!WaitResult barrier\(comm, block\))"), "kArrived"),
    ("signal", re.compile(r"signal_all\(comm, block\);"), ";"),
    ("signal", re.compile(r"\bsignal_one\(comm, block, next\);"), ";"),
    ("wait", re.compile(r"\bwait_(?:all|one)\(comm, block, (?:previous, )?Primitive::\w+\)"), "kArrived"),
    ("barrier of pipes", re.compile(r"(?<!WaitResult )\bmeet\(pipes, block\)"), "kArrived"),
    ("signal of a pipe", re.compile(r"\bpipes\.signal\(block, (?:[^()]|\([^()]*\))*\)"), "kArrived"),
    ("wait of a pipe", re.compile(r"\bpipes\.wait\(block, (?:[^()]|\([^()]*\))*\)"), "kArrived"),
    ("count of a pipe", re.compile(r"weak_store\(&mine\.(?:sent|taken), [^;]*\);"), ";"),
    ("flush", re.compile(r"port_of\(way\)\.flush\(p_\.deadline\(\)\)"), "kArrived"),
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
                    yield Weakening(path, line, kind, match.start(), match.end(), match.expand(instead))


def _try(weakening: Weakening, seeds: int, compiler: str) -> Weakened:
    with tempfile.TemporaryDirectory() as folder:
        include = Path(folder) / "include"
        shutil.copytree(_REPOSITORY / "cpp" / "include", include)
        text = weakening.path.read_text()
        changed = text[: weakening.begin] + weakening.instead + text[weakening.end :]
        (include / weakening.path.relative_to(_REPOSITORY / "cpp" / "include")).write_text(changed)
        said = ""
        for name in _TESTS[1:] if weakening.path.name in _PROGRAMS else _TESTS:
            said = said or _failure(include, name, Path(folder) / "test", seeds, compiler)
        return Weakened(weakening, bool(said), said)


def _failure(include: Path, name: str, program: Path, seeds: int, compiler: str) -> str:
    """The first line that a test says when it fails; empty if it passes."""
    tests = _REPOSITORY / "cpp" / "tests"
    build = [compiler, "-std=c++20", "-O1", f"-I{include}", f"-I{tests}", str(tests / name), "-o", str(program)]
    built = subprocess.run(build, check=False, capture_output=True, text=True, timeout=600)
    if built.returncode:
        wrong = [line for line in built.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"a weakening does not compile: {wrong[0] if wrong else built.stderr}")
    try:
        ran = subprocess.run([str(program), str(seeds)], check=False, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "it does not end"
    return (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[0] if ran.returncode else ""


def find_compiler() -> str | None:
    """A C++20 compiler: $CXX, g++ or clang++; None if there is none."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None
    )


def try_all(
    seeds: int, compiler: str, *, most: int | None = None, workers: int = 2, only: str = ""
) -> Iterator[Weakened]:
    """Every weakening of headers whose path has `only` in it, or the first `most`, tried on so many seeds a kernel and number of ranks."""
    chosen = [one for one in weakenings() if only in str(one.path)][:most]
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda one: _try(one, seeds, compiler), chosen)


def main() -> int:
    """Lists all of them; exit status 1 if one was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute.weakening", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--only", default="", help="part of a header's path")
    options = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        parser.error("no C++ compiler; install g++")
    tried = []
    for one in try_all(options.seeds, compiler, only=options.only):
        print(f"{'found ' if one.found else 'MISSED'} {one.weakening}: {one.said}", flush=True)
        tried.append(one)
    print(f"{sum(one.found for one in tried)} of {len(tried)} found")
    return int(not all(one.found for one in tried))


if __name__ == "__main__":
    sys.exit(main())
