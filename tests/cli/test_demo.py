"""`busbw demo`: the main job on bundled inputs."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_demo_explains_both_jobs_and_ends_with_the_report(busbw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = busbw("demo")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert any(line.startswith("faulty: ") for line in lines)
    assert any(line.startswith("healthy: ") for line in lines)
    assert any(line.startswith("1. gdr-peermem-missing") for line in lines)
    assert Path(lines[-1]) == tmp_path / "busbw-demo.html"
    assert "gdr-peermem-missing" in Path(lines[-1]).read_text()


def test_the_report_goes_where_it_is_asked_to(busbw, tmp_path):
    target = tmp_path / "x.html"
    assert busbw("demo", "--report", target).out.splitlines()[-1] == str(target)
    assert target.exists()


def test_a_folder_that_cannot_be_written_is_no_obstacle(busbw, tmp_path, monkeypatch):
    """The report goes to a temporary folder instead. Permissions do not bind root, so the check is replaced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("busbw.cli.demo.os.access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    report = Path(busbw("demo").out.splitlines()[-1])
    assert report.parent.parent == tmp_path / "temporary"
    assert report.exists()


@pytest.mark.parametrize("name", ["sick/nccl.log", "healthy/nccl-tests.txt"])
def test_the_inputs_are_shown_by_the_names_they_have_in_the_package(busbw, tmp_path, name):
    assert f"$ busbw explain {name}" in busbw("demo", "--report", tmp_path / "x.html").out
