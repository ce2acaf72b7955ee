"""What must hold of every run: folding changes nothing, textbook answers, sanitizers, and errors that name their cause."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["folding", "sanitizers", "textbook", "wrong_inputs"]

_REPOSITORY = Path(__file__).parents[2]
_TESTS = _REPOSITORY / "tests" / "simulation"


def _pytest(*arguments: str) -> tuple[int, int]:
    """Tests that passed, and all that ran."""
    if not _TESTS.is_dir():
        raise NotMeasurableError(f"{_TESTS} is not there; run from a checkout")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments], capture_output=True, text=True, check=False, cwd=_REPOSITORY
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", ran.stdout)}
    if not counts:
        raise NotMeasurableError(
            ran.stdout.strip().splitlines()[-1] if ran.stdout.strip() else ran.stderr.strip()[-200:]
        )
    return counts.get("passed", 0), sum(counts.values())


def folding(options: Options) -> Measured:
    """S8: random trees, programs and routings, each folded and fast-forwarded, and neither; then the same seed twice."""
    from benchmarks.simulate.programs import direct_all_to_all, leaf_and_spine
    from busbw.simulation import Conditions, simulate

    profile = [] if options.smoke else ["--hypothesis-profile=full"]
    passed, ran = _pytest(str(_TESTS / "test_symmetry.py"), "-k", "change_no_picosecond", *profile)
    cases = (30 if options.smoke else 1000) if passed == ran == 1 else 0
    noisy = Conditions(speed_spread=0.1, start_spread_s=1e-6, seed=3)
    runs = [
        simulate(direct_all_to_all(16, 1 << 20), leaf_and_spine(4), routing="ecmp", seed=3, conditions=noisy)
        for _ in range(2)
    ]
    same = all(
        getattr(runs[0].tasks, name).tobytes() == getattr(runs[1].tasks, name).tobytes()
        for name in ("channel", "stream", "posted_ps", "begin_ps", "end_ps", "size_bytes", "bottleneck", "cause")
    )
    return Measured([float(cases), float(same)], note="random cases equal to the picosecond; same seed, same bytes")


def textbook(_: Options) -> Measured:
    """S9: flow cases; those against packets are the packet simulator's."""
    passed, ran = _pytest(str(_TESTS / "test_textbook.py"))
    return Measured(
        passed,
        note=f"of {ran} cases derived in tests/simulation/test_textbook.py",
    )


def sanitizers(options: Options) -> Measured:
    """S11: every C++ test of the simulator under each sanitizer, built here."""
    clean = 0
    wanted = ("address,undefined",) if options.smoke else ("address,undefined", "thread")
    tests = ["test_event_queue", "test_fair_rates", "test_program_run"]
    if not options.smoke:
        tests += ["test_packet_events", "test_packet_congestion", "test_packet_queues"]
    with tempfile.TemporaryDirectory() as folder:
        for sanitizer in wanted:
            for test in tests:
                program = Path(folder) / test
                command = [
                    "c++",
                    "-std=c++20",
                    "-O1",
                    "-g",
                    f"-fsanitize={sanitizer}",
                    "-fno-sanitize-recover=all",
                    "-pthread",
                ]
                source = _REPOSITORY / "cpp" / "tests" / f"{test}.cpp"
                try:
                    subprocess.run(
                        [*command, f"-I{_REPOSITORY / 'cpp' / 'include'}", str(source), "-o", str(program)],
                        check=True,
                        capture_output=True,
                    )
                    subprocess.run([str(program)], check=True, capture_output=True, timeout=600)
                except FileNotFoundError as error:
                    raise NotMeasurableError("no C++ compiler here; install g++") from error
                except subprocess.CalledProcessError as error:
                    raise NotMeasurableError(
                        f"{test} under {sanitizer}: {error.stderr.decode(errors='replace')[-300:]}"
                    ) from error
            clean += sanitizer.count(",") + 1
    return Measured(clean, note=f"of {', '.join(wanted)}, over {', '.join(tests)}")


def wrong_inputs(_: Options) -> Measured:
    """S12: exit status 2, nothing on stdout but what is known, one message that names the cause."""
    cycle = {
        "schema": 1,
        "ranks": 2,
        "tasks": [
            {"id": n, "rank": 0, "kind": "compute", "time_s": 1, "after": [m]} for n, m in (("a", "b"), ("b", "a"))
        ],
    }
    where = ("--cluster", "dgx-h100", "--nodes", "2")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cycle.json"
        file.write_text(json.dumps(cycle))
        cases = (
            (("graph", str(file), *where), "has a cycle: "),
            (
                ("collective", "all-reduce", *where, "--fail-link", "nic0 -> leaf0"),
                "no way leads from node0 nic0 to node1 nic0 once nic0 -> leaf0",
            ),
            (("collective", "all-reduce", *where, "--degrade-link", "nic0 -> leaf0=0"), "above 0, or fail the link"),
            (
                (
                    "collective",
                    "all-to-all",
                    "--cluster",
                    "dgx-h100",
                    "--nodes",
                    "64",
                    "--routing",
                    "ecmp",
                    "--memory-limit",
                    "60MB",
                ),
                "memory limit of ",
            ),
        )
        good, wrong = 0, []
        for arguments, said in cases:
            ran = subprocess.run(
                [sys.executable, "-m", "busbw", "simulate", *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            one = ran.returncode == 2 and said in ran.stderr and "Traceback" not in ran.stderr
            good += one
            if not one:
                wrong.append(f"{' '.join(arguments)}: status {ran.returncode}, {ran.stderr.strip()[-200:]}")
    return Measured(good, note=f"not: {'; '.join(wrong)}" if wrong else "")
