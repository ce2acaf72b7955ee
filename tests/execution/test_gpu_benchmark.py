"""`python -m benchmarks.gpu` without a GPU: its whole flow on a driver that stands in, and what it says where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import __main__ as script
from benchmarks.gpu.steps import STEPS, Machine, Row, Step, calibration_of
from benchmarks.rows import NotMeasurableError

from busbw.execution.cuda_compiler import CompilationError, Nvcc, Nvrtc
from busbw.execution.cuda_driver import CudaUnavailableError
from busbw.prediction.calibration import load_calibration, read_calibration

from .fake_cuda import fake_toolkit

STAND_IN = "tests.execution.fake_cuda:fake_toolkit"


def rows_of(name: str) -> list[Row]:
    step = next(one for one in STEPS if one.name == name)
    return list(step.body(Machine(fake_toolkit(), True, STAND_IN)))


def test_the_whole_run_stays_below_ten_minutes():
    assert sum(step.limit_s for step in STEPS) < 600


@pytest.mark.parametrize("name", ["device", "compile", "oracle", "graph", "put", "latency"])
def test_a_step_runs_and_finds_nothing_wrong(name):
    rows = rows_of(name)
    assert rows
    assert all(row.ok is not False for row in rows)


def test_a_wrong_result_is_told():
    """The last byte of every larger array is lost on its way to the host."""
    tools = fake_toolkit()
    step = next(one for one in STEPS if one.name == "oracle")
    copy_out = tools.driver.copy_out

    def spoilt(host: int, address: int, size: int, stream: int) -> None:
        copy_out(host, address, size - 1 if size > 48 else size, stream)

    tools.driver.copy_out = spoilt  # type: ignore[method-assign]
    rows = list(step.body(Machine(tools, True, STAND_IN)))
    assert all(row.ok is False for row in rows)
    assert any("of 4099, rank 0" in text for text in rows[0].about["wrong"])


@pytest.mark.parametrize(
    ("name", "said"), [("nccl", "NCCL needs the driver itself"), ("sanitizer", "compute-sanitizer")]
)
def test_a_step_that_cannot_run_says_why(monkeypatch, name, said):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(NotMeasurableError, match=said):
        rows_of(name)


def test_without_a_gpu_it_is_not_run_and_that_is_no_failure(monkeypatch, capsys, tmp_path):
    def missing(name: str) -> None:
        raise CudaUnavailableError("NVIDIA's driver is not on this machine: libcuda.so.1")

    monkeypatch.setattr(script, "toolkit_named", missing)
    assert script.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "not run: NVIDIA's driver is not on this machine: libcuda.so.1\n"
    assert script.main(["--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "not run"
    assert not list(tmp_path.iterdir())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_steps_run_apart_and_a_second_run_takes_up_after_them(tmp_path, capsys):
    run = ["--small", "--out", str(tmp_path), "--toolkit", STAND_IN, "--only"]
    assert script.main([*run, "device", "latency"]) == 0
    assert [(one["step"], one["status"]) for one in lines(tmp_path / "steps.jsonl")] == [
        ("device", "done"),
        ("latency", "done"),
    ]
    found = read_calibration(tmp_path / "calibration.json")
    assert found.parameters["step_s"].classes["hopper"] == 2.5e-6  # half of the stand-in's 5 us
    assert "on one GPU" in found.parameters["step_s"].source
    capsys.readouterr()
    assert script.main([*run, "device", "latency"]) == 0
    assert "device: done before" in capsys.readouterr().out
    assert len(lines(tmp_path / "steps.jsonl")) == 2


def raises(machine: Machine) -> Iterator[Row]:
    yield Row("device", "before", 1)
    raise RuntimeError("an illegal address")


def test_what_a_step_found_before_it_broke_is_kept(tmp_path, monkeypatch):
    """The steps of the child process are those of the parent only by name; so the child is replaced by its output."""
    broken = Step("device", "breaks", 20, raises)
    monkeypatch.setattr(script, "STEPS", (broken, Step("latency", "hangs", 0.5, raises)))
    child = tmp_path / "child.py"
    child.write_text(
        "import json, sys, time\n"
        "print(json.dumps({'step': 'device', 'what': 'before', 'value': 1, 'unit': '', 'ok': None, 'meets': None, 'peers': {}, 'about': {}}), flush=True)\n"
        "print('a library speaks', flush=True)\n"
        "time.sleep(9) if 'latency' in sys.argv else sys.exit('an illegal address')\n"
    )
    monkeypatch.setattr(script, "_COMMAND", (str(child),))
    assert script.main(["--small", "--out", str(tmp_path), "--toolkit", STAND_IN]) == 1
    failed, hung = lines(tmp_path / "steps.jsonl")
    assert (failed["status"], hung["status"]) == ("failed", "timed out")
    assert "exit status 1: an illegal address" in failed["reason"]
    assert [row["what"] for row in lines(tmp_path / "rows.jsonl")] == ["before", "before"]
    assert "a library speaks" in (tmp_path / "device.out").read_text()


def test_a_calibration_needs_a_round_trip():
    assert calibration_of([]) is None
    device = {"step": "device", "about": {"architecture": 89, "name": "RTX 4090"}}
    trip = {"step": "latency", "what": "LL round trip", "value": 3e-6, "about": {"devices": [0, 1]}}
    made = calibration_of([device, trip])
    assert made is not None
    assert made["parameters"]["step_s"]["classes"]["ampere"] == 1.5e-6
    assert set(made["parameters"]) == set(load_calibration().parameters)


def test_the_measuring_kernels_compile():
    from benchmarks.gpu.kernels import SOURCE

    for kind in (Nvcc, Nvrtc):
        try:
            compiler = kind()
        except CudaUnavailableError:
            continue
        try:
            assert compiler.cubin(SOURCE, 90)
        except CompilationError as error:  # pragma: no cover
            pytest.fail(str(error))
        return
    pytest.skip("no toolchain: neither nvcc nor NVRTC")
