"""The figures of executing: those of X1 to X10 whose part exists."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options

__all__ = ["BENCHMARKS"]

_REPOSITORY = Path(__file__).parents[2]


def _compiler() -> str:
    from benchmarks.execute.weakening import find_compiler

    found = find_compiler()
    if found is None:
        raise NotMeasurableError("no C++ compiler; install g++")
    return found


def _interpreted(options: Options) -> Measured:
    """X5: the worst size. Both move the same bytes through shared memory, in place, on private arrays."""
    from benchmarks.execute.interpreter import ratios, wrong_plans

    times = ratios(smoke=options.smoke)
    done, wrong = wrong_plans(2 if options.smoke else 4)
    each = ", ".join(f"{size >> 10} KiB {a / b:.2f}" for size, (a, b) in times.items())
    if wrong:
        return Measured(None, note=f"{len(wrong)} of {done} runs of library plans are wrong: {wrong[0]}")
    return Measured(max(a / b for a, b in times.values()), note=f"{each}; {done} runs of library plans right")


def _weakened(options: Options) -> Measured:
    """X7: with --smoke the first few weakenings only."""
    from benchmarks.execute.weakening import try_all

    tried = list(try_all(50 if options.smoke else 1000, _compiler(), most=3 if options.smoke else None))
    missed = [str(one.weakening) for one in tried if not one.found]
    note = f"{len(tried)} weakenings" + (f"; missed: {'; '.join(missed)}" if missed else "")
    return Measured(len(missed), note=note)


def _seeds(options: Options) -> Measured:
    """X8: each kernel on 2 to 4 ranks, so many seeds each; every one of them is a schedule in which an alarm would be false."""
    seeds = 20 if options.smoke else 1000
    tests = _REPOSITORY / "cpp" / "tests"
    primitives, schedules, took_s = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "test"
        for name in ("test_device_sim.cpp", "test_device_programs_sim.cpp"):
            build = [_compiler(), "-std=c++20", "-O2", f"-I{tests.parent / 'include'}", f"-I{tests}"]
            subprocess.run([*build, str(tests / name), "-o", str(program)], check=True, timeout=600)
            begun = time.perf_counter()
            ran = subprocess.run([str(program), str(seeds)], check=False, capture_output=True, text=True, timeout=1800)
            took_s += time.perf_counter() - begun
            told = [line.split() for line in ran.stderr.splitlines() if line.endswith(" schedules")]
            if ran.returncode or not told:
                return Measured([0, 1, 0], note=ran.stderr.strip().splitlines()[0] if ran.stderr.strip() else "")
            primitives += int(told[0][0])
            schedules += int(told[0][2])
    return Measured([1, 0, primitives / took_s], note=f"{schedules} schedules")


def _machine_code(options: Options) -> Measured:
    """X10: with --smoke one compiler, one architecture, one type, and no vendors' headers."""
    from benchmarks.execute.sass import compile_beside_vendors, examine, examine_others

    reports, notes = examine(options.smoke)
    wrong = [
        f"{one.compiler} sm_{one.architecture} {one.entry.symbol}: {text}" for one in reports for text in one.wrong
    ]
    if not options.smoke:
        others, more = examine_others()
        wrong += others
        notes += more
        try:
            beside = compile_beside_vendors()
        except NotMeasurableError as error:
            notes.append(f"NCCL's and NVSHMEM's headers not compiled: {error}")
        else:
            notes.append("NCCL's and NVSHMEM's headers compile beside")
            wrong += [f"beside NCCL and NVSHMEM: {beside}"] if beside else []
    made = sorted({f"{one.compiler} sm_{one.architecture}" for one in reports})
    return Measured(len(wrong), note="; ".join([f"{len(reports)} kernels: {', '.join(made)}", *wrong[:5], *notes]))


def _collectives(row: str) -> Callable[[Options], Measured]:
    """A row of the contest, which is loaded when it is run."""

    def measure(options: Options) -> Measured:
        from benchmarks.execute import collectives

        measured: Measured = getattr(collectives, row)(options)
        return measured

    return measure


BENCHMARKS = (
    Benchmark("X1", "all_reduce float32 on window memory, 16 B to 64 MiB: worst time over Open MPI's", "", ("<=", (0.5,)), _collectives("window"), sized=True),
    Benchmark("X2", "all_reduce float32 on private buffers, 16 B to 64 MiB: worst time over Open MPI's", "", ("<=", (0.8,)), _collectives("private"), sized=True),
    Benchmark("X3", "reduce_scatter, all_gather, all_to_all, broadcast on private buffers: worst time over Open MPI's", "", ("<=", (1.0,)), _collectives("others"), sized=True),
    Benchmark("X4", "gloo's all_reduce over ours below 1 MiB: least ratio", "", (">=", (10.0,)), _collectives("gloo"), sized=True),
    Benchmark("X5", "plan interpreter over the hand-written all_reduce, time, 64 KiB and more", "", ("<=", (1.15,)), _interpreted, sized=True),
    Benchmark("X6", "all_reduce of 16 B over a cache line's round trip between the cores", "", ("<=", (2.0,)), _collectives("round_trip"), sized=True),
    Benchmark("X7", "weakenings of the device headers that the simulated memory does not notice", "", ("==", (0.0,)), _weakened),
    Benchmark("X8", "all seeds of all kernels right; false alarms; primitives a second", "; ; 1/s", ("==;==;>=", (1.0, 0.0, 0.5e6)), _seeds, sized=True),
    Benchmark("X9", "8 ranks on 2 cores: results right; all_reduce of 1 MiB over that of 2 ranks", "", ("==;<=", (1.0, 10.0)), _collectives("many_ranks"), sized=True),
    Benchmark("X10", "kernels whose machine code has local memory, narrow accesses, a poll that drops the cache, or a wrong fence; or that do not compile", "", ("==", (0.0,)), _machine_code),
)  # fmt: skip
