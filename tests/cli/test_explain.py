"""`busbw explain`: what it prints, what it writes, when it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from busbw.diagnosis import explain, to_json
from busbw.diagnosis.beside_model import read_expected
from busbw.errors import InputError
from busbw.readers import find_artefacts

from .conftest import SICK
from .step_traces import BUNDLE, bundle


def test_the_verdict_comes_first_then_the_cause_with_its_lines(busbw, sick_job):
    ran = busbw("explain", sick_job)
    lines = ran.out.splitlines()
    assert ran.status == 1
    assert lines[0].startswith("faulty: 1 cause (1 file,")
    assert lines[2].startswith("1. gdr-peermem-missing  ")
    assert ran.err == ""
    # The first line of the log is no evidence but stands before one.
    assert "     1 | gpu0:22612:22693 [0] NCCL INFO 4 coll channels, 4 p2p channels, 1 p2p channels per peer" in lines
    assert "   > 3 | gpu1:52125:52256 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [receive] via NET/IB/0" in lines
    assert f"   {sick_job / 'nccl.log'}:2" in lines


def test_piped_output_has_no_escape_sequences_and_breaks_no_line_of_a_file(busbw, sick_job, monkeypatch):
    """Whatever the width and colour settings of the environment say."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = busbw("explain", sick_job)
    assert "\x1b" not in ran.out
    assert all(line in ran.out for line in SICK.splitlines())


def test_json_is_the_diagnosis(busbw, sick_job):
    ran = busbw("explain", "--json", sick_job)
    expected = to_json(explain(find_artefacts([str(sick_job)])[0]).diagnosis)
    assert ran.status == 1
    assert ran.out == json.dumps(expected, indent=2) + "\n"


def test_nothing_wrong_is_status_0(busbw, healthy_job):
    ran = busbw("explain", healthy_job)
    assert (ran.status, ran.out.splitlines()[0][:8]) == (0, "healthy:")


def test_a_text_that_says_nothing_is_unknown_and_status_0(busbw, tmp_path):
    (tmp_path / "poem.txt").write_text("the quick brown fox\n")
    ran = busbw("explain", tmp_path)
    assert ran.status == 0
    assert ran.out.startswith("unknown: these files do not show a cause")
    assert "NCCL_DEBUG=INFO" in ran.out


def test_one_unreadable_file_among_others_stops_nothing(busbw, sick_job):
    (sick_job / "core").write_bytes(b"\x7fELF" + bytes(1000))
    (sick_job / "empty.log").write_text("")
    ran = busbw("explain", sick_job)
    assert ran.status == 1
    assert f"   - {sick_job / 'core'}: binary:" in ran.out
    assert f"   - {sick_job / 'empty.log'}: empty:" in ran.out


def test_nothing_readable_is_status_2_and_writes_nothing(busbw, tmp_path):
    """One line a file on stderr, no output, no report."""
    (tmp_path / "core").write_bytes(bytes(1000))
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b" + bytes(range(100)))
    report = tmp_path.parent / "report.html"
    ran = busbw("explain", tmp_path, "--report", report, "--json")
    assert (ran.status, ran.out) == (2, "")
    assert [line.split(": ")[:3] for line in ran.err.splitlines()] == [
        ["busbw", str(tmp_path / "core"), "binary"],
        ["busbw", str(tmp_path / "log.gz"), "compressed"],
    ]
    assert not report.exists()


def test_an_empty_folder_is_status_2(busbw, tmp_path):
    ran = busbw("explain", tmp_path)
    assert ran.status == 2
    assert ran.err.startswith(f"busbw: {tmp_path}: no file in it")


def test_standard_input_is_read_and_leaves_nothing_behind(busbw, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SICK.encode())))
    ran = busbw("explain", "-")
    assert ran.status == 1
    assert "   <stdin>:2" in ran.out.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_written_and_left_out_of_the_next_run(busbw, sick_job):
    """A report quotes log lines; reading it as a log would count them twice."""
    report = sick_job / "report.html"
    first = busbw("explain", sick_job, "--report", report)
    assert first.err == f"busbw: report: {report}\n"
    assert report.read_text().startswith("<!doctype html>")
    second = busbw("explain", sick_job, "--report", report)
    assert second.err.splitlines()[0] == f"busbw: {report}: left out, a report of busbw"
    assert second.out == first.out


def test_a_report_never_overwrites_what_is_read(busbw, sick_job):
    log = sick_job / "nccl.log"
    ran = busbw("explain", sick_job, "--report", log)
    assert (ran.status, ran.err) == (
        2,
        f"busbw: {log}: is one of the files to be read. Give the report another name.\n",
    )
    assert log.read_text() == SICK


def test_a_report_that_is_a_folder_is_refused(busbw, sick_job, tmp_path):
    ran = busbw("explain", sick_job, "--report", tmp_path)
    assert ran.status == 2
    assert ran.err.startswith(f"busbw: {tmp_path}: is a folder; name the file of the report")


def test_names_of_files_cannot_write_on_the_terminal(busbw, tmp_path):
    """Escape sequences, line breaks and bytes that are no UTF-8 are written out."""
    (tmp_path / "a\udcff\x1b[31m\n.log").write_text(SICK)
    ran = busbw("explain", tmp_path)
    assert ran.status == 1
    assert "a\\udcff\\x1b[31m\\n.log:2" in ran.out


def test_secrets_beside_evidence_are_not_shown(busbw, tmp_path):
    """The line before an evidence line sets a token."""
    lines = SICK.splitlines()
    file = Path(tmp_path / "nccl.log")
    file.write_text("\n".join([*lines[:1], "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345", *lines[1:]]) + "\n")
    ran = busbw("explain", file, "--report", tmp_path / "r.html")
    assert "HF_TOKEN=*" in ran.out
    assert "abcdefghij" not in ran.out + (tmp_path / "r.html").read_text()


NSIGHT = Path(__file__).parents[1] / "readers" / "fixtures" / "nsight" / "two_ranks.sqlite"


def test_collectives_of_a_trace_are_laid_beside_the_cluster_that_is_named(busbw):
    """Two ranks of one host: 8 KiB gathered, 1 MiB reduced, each twice; both traced."""
    ran = busbw("explain", NSIGHT, "--cluster", "dgx-h100", "--json")
    told = json.loads(ran.out)
    assert told["cluster"] == "dgx-h100"
    found = {
        (one["collective"], one["size_bytes"], one["ranks"], one["ranks_in_a_domain"], one["calls"], one["matched"])
        for one in told["collectives"]
    }
    assert found == {("all_reduce", 1 << 20, 2, 2, 2, True), ("all_gather", 8192, 2, 2, 2, True)}
    assert all(one["took_s"] > 0 and one["expected_s"] < one["high_s"] for one in told["collectives"])
    page = busbw("explain", NSIGHT, "--cluster", "dgx-h100").out
    assert "collectives beside the model (dgx-h100;" in page
    assert "cluster" not in json.loads(busbw("explain", NSIGHT, "--json").out)


def test_files_without_collectives_say_so_beside_a_cluster(busbw, healthy_job):
    assert "none can be laid beside the model" in " ".join(
        busbw("explain", healthy_job, "--cluster", "dgx-h100").out.split()
    )


@pytest.mark.parametrize(("words", "said"), [
    (["--nodes", "2"], "name it with --cluster"), (["--cluster", "dgx-h1000"], "no cluster of this name"), (["--cluster", "dgx-h100", "--nodes", "0"], "at least one node"),
    (["--cluster", "dgx-h100", "--set", "nic"], "write NAME=VALUE"),
])  # fmt: skip
def test_a_cluster_that_cannot_be_is_refused(busbw, words, said):
    ran = busbw("explain", NSIGHT, *words)
    assert ran.status == 2
    assert said in " ".join(ran.err.split())


def test_the_bundled_traces_are_what_their_script_makes():
    assert BUNDLE.read_bytes() == bundle()


def test_the_steps_of_traces_are_drawn_a_bar_a_rank(busbw, tmp_path, healthy_job):
    file = tmp_path / "trace.svg"
    ran = busbw("explain", BUNDLE, "--plot", file)
    assert f"plot: {file}" in ran.err
    drawn = file.read_text()
    assert drawn.startswith("<?xml") or drawn.startswith("<svg")
    assert all(f">rank {rank}<" in drawn for rank in range(16)) and ">communication, exposed<" in drawn
    nothing = tmp_path / "nothing.svg"
    assert "nothing was drawn" in " ".join(busbw("explain", healthy_job, "--plot", nothing).err.split())
    assert not nothing.exists()


EXPECTED = {
    "schema": 1,
    "model": "m",
    "layout": "dp16",
    "step_s": 0.15,
    "low_s": 0.14,
    "high_s": 0.17,
    "breakdown_s": {"compute": 0.1, "dp": 0.03, "optimizer": 0.001, "bubble": 0.0, "other": 0.002},
}


def test_the_step_of_traces_is_laid_beside_an_expected_one(busbw, tmp_path):
    """Of the bundled traces a rank computes 4 x (8.2 + 17.0) = 100.8 ms a step."""
    file = tmp_path / "step.json"
    file.write_text(json.dumps(EXPECTED))
    step, computing, communication, rest = json.loads(busbw("explain", BUNDLE, "--expect", file, "--json").out)["step"]
    assert (computing["measured_s"], computing["expected_s"]) == pytest.approx((0.1008, 0.101))
    assert (step["expected_s"], communication["expected_s"], rest["expected_s"]) == pytest.approx((0.15, 0.03, 0.002))
    assert step["measured_s"] == pytest.approx(
        computing["measured_s"] + communication["measured_s"] + rest["measured_s"], rel=0.01
    )
    assert "the step beside the model (m, dp16; ms" in busbw("explain", BUNDLE, "--expect", file).out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"step_s": 1, "low_s": 1, "high_s": 1, "breakdown_s": {"compute": "x"}}',
        '{"step_s": NaN, "low_s": 1, "high_s": 1, "breakdown_s": {}}',
        "[" * 5000,
    ],
)
def test_what_is_no_expected_step_is_refused(tmp_path, text):
    file = tmp_path / "step.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"busbw simulate training \.\.\. --json > FILE"):
        read_expected(file)


def test_an_expected_step_that_is_not_there_ends_with_status_2(busbw, tmp_path):
    ran = busbw("explain", BUNDLE, "--expect", tmp_path / "none.json")
    assert (ran.status, ran.out) == (2, "")
