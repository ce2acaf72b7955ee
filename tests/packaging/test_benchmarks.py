"""`python -m benchmarks`: every figure has a row, whatever happens, in the shape that docs/json.md describes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import explain, predict
from benchmarks.__main__ import main
from benchmarks.explain.triage import Case, score
from benchmarks.explain.unusable import outcomes
from benchmarks.rows import Benchmark, Measured, NotMeasurableError, Options, measure
from benchmarks.training.published import place_all

from busbw.accuracy.workloads import training_row
from busbw.workloads.training.calibration import load_training_calibration
from busbw.workloads.training.frameworks import find_framework
from busbw.workloads.training.search import Space, search

REPOSITORY = Path(__file__).parents[2]


def rows_of(*benchmarks: Benchmark, smoke: bool = False):
    return list(measure("group", benchmarks, Options(smoke=smoke)))


def always(value):
    return lambda options: Measured(value)


def test_a_value_is_judged_by_its_bar_part_by_part():
    (alone, low, both, one_off) = rows_of(
        Benchmark("A1", "", "", (">=", [0.95]), always(0.95)),
        Benchmark("A2", "", "", (">=", [0.95]), always(0.94)),
        Benchmark("A3", "", "", ("==", [0, 0]), always([0, 0])),
        Benchmark("A4", "", "", ("==", [0, 0]), always([0, 1])),
    )
    assert [row.holds for row in (alone, low, both, one_off)] == [True, False, True, False]


def test_what_cannot_be_measured_is_a_row_with_a_reason():
    def absent(options: Options) -> Measured:
        raise NotMeasurableError("no GPU here")

    def broken(options: Options) -> Measured:
        raise ZeroDivisionError("division by zero")

    rows = rows_of(Benchmark("A1", "", "", ("<", [1]), absent), Benchmark("A2", "", "", ("<", [1]), broken))
    assert [(row.value, row.holds, row.reason) for row in rows] == [
        (None, None, "no GPU here"),
        (None, None, "ZeroDivisionError: division by zero"),
    ]


def test_sizes_for_smoke_prove_no_speed():
    slow = Benchmark("A1", "", "", (">=", [200]), always(1.0), sized=True)
    assert [rows_of(slow, smoke=smoke)[0].holds for smoke in (False, True)] == [False, None]


def test_a_row_is_one_line_of_json(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "--only", "E6", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert list(row) == ["id", "what", "value", "unit", "command", "peers", "reason"]
    assert row["id"] == "E6"
    assert row["command"] == "python -m benchmarks explain --only E6"
    assert row["reason"] is None


def test_every_figure_has_one_row_and_one_line_in_the_docs():
    known = [benchmark.id for group in (explain, predict) for benchmark in group.BENCHMARKS]
    assert known == [f"{letter}{n}" for letter, last in (("E", 9), ("R", 8), ("P", 10)) for n in range(1, last + 1)]
    documented = re.findall(r"^\| ([EPR]\d+) \|", (REPOSITORY / "docs" / "benchmarks.md").read_text(), re.MULTILINE)
    assert documented == known


def test_parts_of_a_figure_may_compare_differently():
    """P4: an error at most 0.3, a share at least 0.98."""
    (well, badly) = rows_of(
        Benchmark("A1", "", "", ("<=;>=", [0.3, 0.98]), always([0.2, 0.99])),
        Benchmark("A2", "", "", ("<=;>=", [0.3, 0.98]), always([0.2, 0.9])),
    )
    assert (well.holds, badly.holds, well.bar) == (True, False, "<= 0.3; >= 0.98")


def test_accuracy_without_measured_tables_says_where_they_should_be(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["predict", "--json", "--only", "P2", "P10", "--data", str(tmp_path)]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["id"], row["value"]) for row in rows] == [("P2", None), ("P10", 4)]
    assert str(tmp_path) in rows[0]["reason"]
    assert "--data" in rows[0]["reason"]


def test_wrong_arguments_end_with_status_2():
    for arguments in (["nothing"], ["--only", "Z1"]):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "Z1" in done.stderr or "nothing" in done.stderr


def finding(kind: str, severity: str = "major") -> dict[str, object]:
    return {"kind": kind, "severity": severity, "evidence": []}


def faulty(*kinds: str) -> dict[str, object]:
    return {"verdict": "faulty", "findings": [finding(kind) for kind in kinds]}


HEALTHY = {"verdict": "healthy", "findings": []}


def test_a_fault_is_found_if_the_first_finding_is_one_that_the_inputs_support():
    cases = [Case("first", (), ("a", "b"), False), Case("second", (), ("a",), False), Case("none", (), ("a",), False)]
    scored = score(cases, {"first": faulty("b", "c"), "second": faulty("c", "a"), "none": HEALTHY})
    assert scored.right == ("first",)
    assert scored.missed == ("second", "none")
    assert scored.decided == 3


def test_inputs_that_support_a_fault_and_none_decide_nothing():
    scored = score([Case("open", (), ("a", "healthy"), False)], {"open": HEALTHY})
    assert (scored.decided, scored.undecidable) == (0, ("open",))


def test_a_healthy_case_is_an_alarm_if_something_grave_is_found_or_it_is_called_faulty():
    cases = [Case(name, (), ("healthy",), True) for name in ("well", "blamed", "minor", "called")]
    minor = {"verdict": "healthy", "findings": [finding("a", "minor")]}
    scored = score(
        cases, {"well": HEALTHY, "blamed": faulty("a"), "minor": minor, "called": {"verdict": "faulty", "findings": []}}
    )
    assert scored.false_alarms == ("blamed", "called")


def test_evidence_counts_where_the_first_finding_cites_it_and_so_does_what_misleads():
    """Of two named lines the first finding cites one; the line that misleads is cited by the second finding only."""
    first = {**finding("a"), "evidence": [{"text": "12:00 the cause itself"}]}
    second = {**finding("b"), "evidence": [{"text": "noise of a peer"}]}
    answer = {"verdict": "faulty", "findings": [first, second]}
    case = Case("c", (), ("a",), False, ("the cause itself", "another line of it"), ("noise of a peer",))
    told = score([case], {"c": answer})
    assert (told.cited, told.citable, told.misled, told.in_three) == (1, 2, (), ("c",))
    turned = score([case], {"c": {**answer, "findings": [second, first]}})
    assert (turned.cited, turned.misled, turned.right, turned.in_three) == (0, ("c",), (), ("c",))


def test_parts_of_a_bar_may_compare_differently():
    (row,) = rows_of(Benchmark("A1", "", "", (">=;<=", [0.8, 0]), always([0.9, 0])))
    assert (row.holds, row.bar) == (True, ">= 0.8; <= 0")
    assert rows_of(Benchmark("A1", "", "", (">=;<=", [0.8, 0]), always([0.9, 1])))[0].holds is False


def test_a_run_without_an_answer_is_broken_and_misses():
    scored = score([Case("lost", (), ("a",), False)], {"lost": None})
    assert (scored.broken, scored.missed) == (("lost",), ("lost",))


def test_unusable_inputs_get_one_clear_line_and_status_2_and_leave_nothing():
    assert outcomes() == dict.fromkeys(["missing path", "folder without files", "binary", "empty", "unreadable"], "")


def test_a_published_layout_is_placed_among_all_that_could_have_been_chosen():
    """The fastest layout of a search is first; the slowest of dozens is not among five; tp3 divides no heads of this model, so no search has it."""
    row = training_row(
        {
            "model": "llama3.1-8b",
            "framework": "torchtitan",
            "precision": "bf16",
            "hardware": {"gpu": "H100-SXM-80GB", "gpus": 8},
            "parallel": {"dp": 8, "fsdp": 8},
            "batch": {"global_batch": 16, "micro_batch": 1, "seq_len": 8192},
            "measured": {"step_time_s": 2.5},
            "recompute": "full",
        },
        "table",
        0,
    )
    space = Space(recompute=("full",), sharding=("fsdp", "hsdp"), framework=find_framework("torchtitan"))
    found = search(row.job, space)
    steps = found.steps
    ends = [
        (steps.columns.layout(place), int(steps.columns.micro_batch[place])) for place in (0, len(steps.columns) - 1)
    ]
    ways = [*ends, (replace(ends[0][0], tp=3), 1)]
    rows = [[replace(row, layouts=(layout,), micro_batches=(micro,))] for layout, micro in ways]
    first, last, none = place_all(rows, [load_training_calibration()] * 3)
    assert (first.place, first.strict, first.found, first.behind) == (1, 1, True, 1.0)
    assert last.place > 5
    assert not last.found
    assert (none.place, none.found) == (0, False)
    assert first.fit == found.fit
