"""`python -m benchmarks.gpu [--out DIR] [--only STEP...] [--again] [--small] [--json]`: what only a GPU can show, in less than ten minutes.

Each step runs in a process of its own with a time limit, so that a crash or a hang costs no other step. Rows are written to DIR/rows.jsonl as they come,
what became of each step to DIR/steps.jsonl; a run that is repeated takes up after the steps that were done on the same machine with the same
headers. Last, DIR/calibration.json is written, for `busbw predict --calibration`. Without a GPU it says "not run" and why; status 0.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import STEPS, Machine, Step, calibration_of
from benchmarks.rows import NotMeasurableError
from busbw.execution.cuda import Toolkit, find_toolkit
from busbw.execution.cuda_compiler import headers_hash
from busbw.execution.cuda_driver import CudaUnavailableError

_NOT_RUN = 3
"""Exit status of a step that can't run on this machine."""
_REPOSITORY = Path(__file__).parents[2]
_COMMAND = ("-m", "benchmarks.gpu")
"""Of a step's process, for Python."""


def toolkit_named(name: str) -> Toolkit:
    """The machine's; or what `module:function` gives, for tests of this script."""
    if not name:
        return find_toolkit()
    module, _, function = name.partition(":")
    made = getattr(importlib.import_module(module), function)()
    assert isinstance(made, Toolkit)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the steps; the exit status: 1 if a step failed or a result was wrong."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n\n")[1])
    names = [step.name for step in STEPS]
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), metavar="DIR", help="where results go (gpu-results)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="STEP", choices=names, help=f"these steps alone: {', '.join(names)}"
    )
    parser.add_argument("--again", action="store_true", help="also what was done before")
    parser.add_argument("--small", action="store_true", help="small sizes: whether it runs")
    parser.add_argument("--json", action="store_true", help="rows on stdout, one JSON object a line")
    parser.add_argument("--step", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--toolkit", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.step:
        return _run_here(given.step, given.small, given.toolkit)
    try:
        key = _key(toolkit_named(given.toolkit), given.small)
    except CudaUnavailableError as error:
        print(
            json.dumps({"schema": 1, "step": "all", "status": "not run", "reason": str(error)})
            if given.json
            else f"not run: {error}"
        )
        return 0
    return _run_all(given, key)


def _key(tools: Toolkit, small: bool) -> str:
    """What results rest on: headers, compiler, driver, GPUs."""
    driver = tools.driver
    uuids = [driver.device(ordinal).uuid for ordinal in range(driver.device_count())]
    parts = (headers_hash(), tools.compiler.name, driver.version(), uuids, small)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _run_here(name: str, small: bool, toolkit: str) -> int:
    """One step in this process, a row a line."""
    step = next(one for one in STEPS if one.name == name)
    try:
        machine = Machine(toolkit_named(toolkit), small, toolkit)
        for row in step.body(machine):
            print(row.to_json(), flush=True)
    except (NotMeasurableError, CudaUnavailableError) as error:
        print(str(error), file=sys.stderr)
        return _NOT_RUN
    return 0


def _run_all(given: argparse.Namespace, key: str) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    rows_file, steps_file = given.out / "rows.jsonl", given.out / "steps.jsonl"
    done = (
        set()
        if given.again
        else {one["step"] for one in _lines(steps_file) if one.get("key") == key and one.get("status") == "done"}
    )
    bad = False
    for step in STEPS:
        if given.only and step.name not in given.only:
            continue
        if step.name in done:
            _say(given, {"step": step.name, "status": "done before", "key": key})
            continue
        _say(given, None, f"{step.name}: {step.what} ...")
        begun = time.monotonic()
        wrong = 0
        outcome: dict[str, Any] = {}
        for line in _rows_of(step, given, outcome):
            row = {**line, "key": key}
            with rows_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            wrong += row["ok"] is False
            _say(given, row, _shown(row))
        status = {
            "schema": 1,
            "step": step.name,
            "key": key,
            "took_s": round(time.monotonic() - begun, 1),
            "wrong": wrong,
            **outcome,
        }
        with steps_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(status) + "\n")
        _say(
            given,
            status,
            f"  {status['status']} after {status['took_s']} s{': ' + status['reason'] if status.get('reason') else ''}",
        )
        bad = bad or wrong > 0 or status["status"] in ("failed", "timed out")
    document = calibration_of([row for row in _lines(rows_file) if row.get("key") == key])
    if document is not None:
        (given.out / "calibration.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        _say(given, None, f"calibration: {given.out / 'calibration.json'}")
    return 1 if bad else 0


def _rows_of(step: Step, given: argparse.Namespace, outcome: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that a step's process prints, as they come; `outcome` gets what became of it."""
    command = [sys.executable, *_COMMAND, "--step", step.name, "--toolkit", given.toolkit]
    command += ["--small"] if given.small else []
    log = given.out / f"{step.name.replace(' ', '-')}.log"
    with log.open("w", encoding="utf-8") as errors, log.with_suffix(".out").open("w", encoding="utf-8") as others:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_REPOSITORY)
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            process.kill()

        clock = threading.Timer(step.limit_s, end)
        clock.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if isinstance(row, dict) and "what" in row:
                    yield row
                else:  # a library's own words
                    others.write(line)
            status = process.wait()
        finally:
            clock.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if timed_out.is_set():
        outcome.update(
            status="timed out", reason=f"it took longer than {step.limit_s:g} s; its last words are in {log}"
        )
    elif status == 0:
        outcome.update(status="done")
    elif status == _NOT_RUN:
        outcome.update(status="not run", reason=" ".join(words))
    else:
        last = words[-1] if words else "no word"
        outcome.update(status="failed", reason=f"exit status {status}: {last} (all of it in {log})")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; a line that a killed run left half is passed over."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue
            if isinstance(one, dict):
                found.append(one)
    return found


def _shown(row: dict[str, Any]) -> str:
    verdict = {True: "  right", False: "  WRONG", None: ""}[row["ok"]]
    verdict += {True: "  meets its goal", False: "  misses its goal", None: ""}[row["meets"]]
    value = f"{row['value']:.4g}" if isinstance(row["value"], float) else str(row["value"])
    peers = "".join(f"  {name} {figure:.4g}" for name, figure in row["peers"].items())
    return f"  {row['what']}: {value} {row['unit']}{peers}{verdict}"


def _say(given: argparse.Namespace, row: dict[str, Any] | None, text: str | None = None) -> None:
    if given.json:
        if row is not None:
            print(json.dumps(row), flush=True)
    else:
        print(text if text is not None else f"{row and row['step']}: {row and row['status']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
