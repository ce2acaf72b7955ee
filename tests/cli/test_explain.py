"""`busbw explain`: what it prints, what it writes, when it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from busbw.cli.console import Page
from busbw.cli.diagnosis_page import print_step
from busbw.diagnosis import explain, to_json
from busbw.diagnosis.beside_model import ExpectedStep, StepPart, read_expected
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
EXPECTED = {
    "schema": 1,
    "model": "m",
    "layout": "dp16",
    "step_s": 0.15,
    "low_s": 0.14,
    "high_s": 0.17,
    "breakdown_s": {"compute": 0.1, "dp": 0.03, "optimizer": 0.001, "bubble": 0.0, "other": 0.002},
}


@pytest.fixture
def step_file(tmp_path):
    file = tmp_path / "step.json"
    file.write_text(json.dumps(EXPECTED))
    return file


def test_the_bundled_traces_are_what_their_script_makes():
    assert BUNDLE.read_bytes() == bundle()


def test_traces_are_laid_beside_a_cluster_and_a_step_and_drawn_a_bar_a_rank(busbw, tmp_path, step_file):
    """Of the bundled traces a rank computes 4 x (8.2 + 17.0) = 100.8 ms a step; the last rank to come spends 10.6 ms in each transfer."""
    drawing = tmp_path / "trace.svg"
    ran = busbw(
        "explain", BUNDLE, "--cluster", "dgx-h100", "--nodes", "2", "--expect", step_file, "--plot", drawing, "--json"
    )
    told = json.loads(ran.out)
    step, computing, communication, rest = told["step"]
    assert (computing["measured_s"], computing["expected_s"]) == pytest.approx((0.1008, 0.101))
    assert (step["expected_s"], communication["expected_s"], rest["expected_s"]) == pytest.approx((0.15, 0.03, 0.002))
    assert step["measured_s"] == pytest.approx(
        computing["measured_s"] + communication["measured_s"] + rest["measured_s"], rel=0.01
    )
    found = {
        (
            one["collective"],
            one["size_bytes"],
            one["ranks"],
            one["ranks_in_a_domain"],
            one["calls"],
            one["matched"],
            one["took_s"],
        )
        for one in told["collectives"]
    }
    assert found == {
        ("all_gather", 436207616, 16, 8, 24, True, 0.0106),
        ("reduce_scatter", 436207616, 16, 8, 12, True, 0.0106),
    }
    assert all(one["expected_s"] < one["high_s"] for one in told["collectives"])
    assert f"plot: {drawing}" in ran.err
    drawn = drawing.read_text()
    assert all(f">rank {rank}<" in drawn for rank in range(16)) and ">communication, exposed<" in drawn


def test_without_traces_and_collectives_there_is_nothing_to_lay_beside(busbw, healthy_job, step_file, tmp_path):
    drawing = tmp_path / "nothing.svg"
    ran = busbw("explain", healthy_job, "--cluster", "dgx-h100", "--expect", step_file, "--plot", drawing)
    said = " ".join((ran.out + ran.err).split())
    assert (
        "none can be laid beside the model" in said and "No trace of a GPU here" in said and "nothing was drawn" in said
    )
    assert not drawing.exists()
    assert not {"cluster", "step"} & set(json.loads(busbw("explain", healthy_job, "--json").out))


def test_an_expected_step_is_printed_part_by_part(capsys):
    parts = [StepPart("step", 0.2, 0.15), StepPart("computing", 0.1, 0.101)]
    print_step(Page(), parts, ExpectedStep("m", "dp16", 0.15, 0.14, 0.17, {}))
    out = capsys.readouterr().out
    assert "(m, dp16; ms, median over ranks; a healthy step: 140 to 170)" in out
    assert [line.split() for line in out.splitlines() if line.startswith(("step", "computing"))] == [
        ["step", "200", "150", "+50"],
        ["computing", "100", "101", "-1"],
    ]


@pytest.mark.parametrize(("words", "said"), [
    (["--nodes", "2"], "name it with --cluster"), (["--cluster", "dgx-h1000"], "no cluster of this name"), (["--cluster", "dgx-h100", "--nodes", "0"], "at least one node"),
    (["--cluster", "dgx-h100", "--set", "nic"], "write NAME=VALUE"), (["--expect", "none.json"], "cannot be read"),
])  # fmt: skip
def test_what_cannot_be_laid_beside_is_refused(busbw, words, said):
    ran = busbw("explain", NSIGHT, *words)
    assert (ran.status, ran.out) == (2, "")
    assert said in " ".join(ran.err.split())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"step_s": 1, "low_s": 1, "high_s": 1, "breakdown_s": {"compute": "x"}}',
        '{"step_s": 1, "low_s": 1, "high_s": 1, "breakdown_s": {}}',
        '{"step_s": NaN, "low_s": 1, "high_s": 1, "breakdown_s": {}}',
        "[" * 5000,
    ],
)
def test_what_is_no_expected_step_is_refused(step_file, text):
    step_file.write_text(text)
    with pytest.raises(InputError, match=r"busbw simulate training \.\.\. --json > FILE"):
        read_expected(step_file)


@pytest.mark.parametrize("where", ["none/x.svg", "."])
def test_a_drawing_that_cannot_be_written_is_refused_before_anything_is_read(busbw, tmp_path, where):
    ran = busbw("explain", NSIGHT, "--plot", tmp_path / where)
    assert (ran.status, ran.out) == (2, "")
    assert "--plot" in ran.err and "folder" in ran.err


def test_a_group_larger_than_the_nodes_named_is_told(busbw):
    """16 ranks ran on what is said to be one node of eight GPUs."""
    ran = busbw("explain", BUNDLE, "--cluster", "dgx-h100", "--nodes", "1")
    assert "16 ranks" in ran.err and "8 GPUs" in ran.err and "--nodes" in ran.err
