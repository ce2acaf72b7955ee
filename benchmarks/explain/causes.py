"""The figures of explaining everything: R1 to R8."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import unseen
from benchmarks.explain.triage import scored
from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options

__all__ = ["BENCHMARKS"]

_SEED = 1
_RUNS, _RUNS_SMOKE = 3_000, 10
"""Mutations a reader."""
_GUIDED_RUNS, _GUIDED_RUNS_SMOKE = 3_000, 0
_BUNDLE, _BUNDLE_SMOKE = (2_000, 1_000_000_000), (160, 20_000_000)
"""Files and bytes."""


def _root_cause(options: Options) -> Measured:
    score = scored(options)
    note = f"{len(score.right)} and {len(score.in_three)} of {score.decided} cases, {len(score.undecidable)} undecidable left out"
    return Measured([len(score.right) / score.decided, len(score.in_three) / score.decided], note=note)


def _evidence(options: Options) -> Measured:
    score = scored(options)
    if not score.citable:
        raise NotMeasurableError("no case among them names lines of evidence")
    note = f"{score.cited} of {score.citable} lines that the cases name"
    if score.misled:
        note += f"; misled: {', '.join(score.misled)}"
    return Measured([score.cited / score.citable, len(score.misled)], note=note)


def _alarms(options: Options) -> Measured:
    score = scored(options)
    return Measured([len(score.false_alarms), len(score.broken)], note=f"{len(score.healthy)} healthy cases")


def _unseen(_: Options) -> Measured:
    records = unseen.load_records()
    first, now = unseen.Answers(records, "first"), unseen.Answers(records, "now")
    last = max(r["round"] for r in records)
    newest = unseen.Answers([r for r in records if r["round"] == last], "first")
    note = (
        f"{first.right}, now {now.right} of {first.faulty} reports; in the last round {newest.right} of {newest.faulty} at first; false alarms "
        f"on {first.healthy} healthy ones {first.alarms}, now {now.alarms}; recorded in docs/cases.json, whose texts are not in the tree"
    )
    return Measured([first.right / first.faulty, now.right / now.faulty], note=note)


def _calibration(_: Options) -> Measured:
    records = unseen.load_records()
    _, right = unseen.stated(records)
    note = f"{len(right)} first answers with a stated confidence, {sum(right)} right; silence states none; plot in docs/cases.md"
    return Measured(unseen.brier(records), note=note)


def _fuzz(options: Options) -> Measured:
    from benchmarks.explain import fuzzing

    corpus = fuzzing.corpus()
    outcome = fuzzing.fuzz(corpus, _RUNS_SMOKE if options.smoke else _RUNS, _SEED)
    led = fuzzing.guided(corpus, _GUIDED_RUNS_SMOKE if options.smoke else _GUIDED_RUNS, _SEED)
    if led is not None:
        outcome.add(led)
    note = (
        f"{len(outcome.readers)} readers, at least {min(outcome.readers.values())} inputs each, "
        f"{led.inputs if led else 'no (atheris is not installed)'} more led by coverage; slowest {outcome.slowest_s:.2f} s, "
        f"peak memory {outcome.peak_bytes / 1e6:.0f} MB"
    )
    if outcome.failures:
        note += f"; failures: {'; '.join(outcome.failures[:5])}"
    return Measured([outcome.inputs, len(outcome.failures)], note=note)


_FORMATS = Path(__file__).parents[2] / "tests" / "readers" / "fixtures" / "formats.json"


def _formats(options: Options) -> Measured:
    from benchmarks.explain.formats import nonconforming

    wrong, count = nonconforming(_FORMATS)
    note = f"{count} formats"
    if wrong:
        note += f"; not so: {'; '.join(wrong[:5])}"
    return Measured((count - len(wrong)) / count, note=note)


def _bundle(options: Options) -> Measured:
    from benchmarks.explain.bundle import write_bundle

    with tempfile.TemporaryDirectory() as name:
        files = write_bundle(Path(name) / "bundle", *(_BUNDLE_SMOKE if options.smoke else _BUNDLE), _SEED)
        size = sum(file.stat().st_size for file in Path(name).rglob("*") if file.is_file())
        began = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", _EXPLAIN_AND_TELL_PEAK, f"{name}/bundle"], capture_output=True, text=True, check=True
        )
        took_s = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict, peak_kb = done.stdout.split()
    if verdict != "faulty":
        raise RuntimeError("the sick node of the bundle was not found")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    note = f"{files} files, {size / 1e6:.0f} MB, one node sick and found; {cpu_s:.1f} s of CPU"
    return Measured([took_s, int(peak_kb) / 1e3], note=note)


_EXPLAIN_AND_TELL_PEAK = """
import json, resource, sys
from busbw.diagnosis import explain, to_json
from busbw.readers import find_artefacts
print(to_json(explain(*find_artefacts(sys.argv[1:])).diagnosis)["verdict"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


BENCHMARKS = (
    Benchmark(
        "R1",
        "triage cases: root cause first; among the first three",
        "share",
        (">=", [0.95, 0.98]),
        _root_cause,
        sized=True,
    ),
    Benchmark(
        "R2",
        "triage cases: evidence that the first finding cites; cases where it cites a red herring",
        "share; cases",
        (">=;<=", [0.80, 0]),
        _evidence,
        sized=True,
    ),
    Benchmark("R3", "triage cases: false alarms on healthy ones; broken runs", "cases", ("==", [0, 0]), _alarms),
    Benchmark(
        "R4",
        "public reports nobody tuned to: root cause first when first seen; after kinds were mended",
        "share",
        (">=", [0, 0.85]),
        _unseen,
    ),
    Benchmark("R5", "Brier score of the confidence of first answers", "", ("<=", [0.18]), _calibration),
    Benchmark("R6", "fuzz: inputs; failures", "inputs", (">=;<=", [100_000, 0]), _fuzz, sized=True),
    Benchmark("R7", "formats whose fixture is read as it should be", "share", ("==", [1]), _formats),
    Benchmark("R8", "explaining a support bundle: time; peak memory", "s; MB", ("<", [20, 1000]), _bundle, sized=True),
)
