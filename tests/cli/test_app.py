"""The command as a whole: its page of help, its exit statuses, how fast it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from busbw import __version__
from busbw.cli.app import app

COMMAND = [sys.executable, "-m", "busbw"]


def test_the_help_page_is_a_document(busbw, monkeypatch, golden):
    """Purpose, verbs, examples, exit statuses, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = busbw("--help")
    assert ran.status == 0
    golden("help.txt", ran.out)


def test_every_verb_of_the_page_has_a_page_of_its_own(busbw):
    for verb in ("explain", "read", "query", "hardware", "demo"):
        ran = busbw(verb, "--help")
        assert ran.status == 0
        assert ran.out.startswith(f"Usage: busbw {verb}")


def test_help_of_read_lists_the_registered_readers(busbw):
    assert "nccl-tests-json" in busbw("read", "--help").out


def test_help_of_query_lists_the_tables(busbw):
    out = busbw("query", "--help").out
    assert "measurements" in out
    assert "runs" in out


def test_help_loads_none_of_the_heavy_libraries():
    """`busbw --help` answers in under 0.3 s because it imports no arrays, no tables, no figures."""
    heavy = ["numpy", "pyarrow", "duckdb", "matplotlib", "rich.table", "busbw.readers"]
    code = (
        "import sys\nfrom busbw.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_version(busbw):
    ran = busbw("--version")
    assert (ran.status, ran.out) == (0, f"busbw {__version__}\n")


def test_shell_completion_names_the_verbs():
    """What bash asks for when the user presses Tab after `busbw e`."""
    environment = {"_BUSBW_COMPLETE": "complete_bash", "COMP_WORDS": "busbw e", "COMP_CWORD": "1"}
    answer = CliRunner().invoke(app, [], prog_name="busbw", env=environment)
    assert "explain" in answer.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "Missing argument 'PATH...'. See `busbw explain --help`."),
        (["frobnicate"], "No such command 'frobnicate'. See `busbw --help`."),
        (["read", "x", "--frob"], "No such option: --frob See `busbw read --help`."),
        (["explain", "nowhere"], "nowhere: there is no such file or folder. Check the path; files are read where they are."),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(busbw, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ran = busbw(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    # The word for an argument in the message is click's: PATH or PATH...
    assert ran.err.replace("PATH...", "PATH") == f"busbw: {message}\n".replace("PATH...", "PATH")


def test_without_a_verb_the_page_goes_to_stderr(busbw):
    ran = busbw()
    assert (ran.status, ran.out) == (2, "")
    assert "busbw demo" in ran.err


def test_a_closed_pipe_is_no_error_and_no_verdict(sick_job: Path):
    """`busbw ... | head -1` ends quietly, with what a shell shows for SIGPIPE and never with 1."""
    for number in range(600):  # some 250 bytes each, twice what a pipe holds
        (sick_job / f"{number:04}.txt").write_text("nothing to see\n")
    with subprocess.Popen(
        [*COMMAND, "explain", str(sick_job), "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        complaint = run.stderr.read()
    assert (run.returncode, complaint) == (141, b"")


def test_ctrl_c_is_one_line_and_status_130():
    """Interrupted while it waits for standard input."""
    with subprocess.Popen([*COMMAND, "explain", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stderr is not None
        run.stdin.write(b"x" * 200_000)  # returns once the command reads: a pipe holds 64 KiB
        run.stdin.flush()
        time.sleep(0.2)
        os.kill(run.pid, signal.SIGINT)
        complaint = run.stderr.read()
    assert (run.returncode, complaint) == (130, b"busbw: interrupted\n")


def test_the_statuses_of_the_process(sick_job: Path, healthy_job: Path, tmp_path: Path):
    """1: something is wrong; 0: nothing is; 2: nothing could be read."""
    (tmp_path / "nothing.log").write_text("")
    statuses = [
        subprocess.run([*COMMAND, "explain", str(path)], capture_output=True, check=False).returncode
        for path in (sick_job, healthy_job, tmp_path / "nothing.log")
    ]
    assert statuses == [1, 0, 2]


@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("no such thing\nat all"), RecursionError()])
def test_a_defect_of_busbw_is_one_line_and_no_verdict(busbw, sick_job, monkeypatch, error):
    """Python's own status is 1, which would say that the system under study is faulty."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.delenv("BUSBW_DEBUG", raising=False)
    monkeypatch.setattr("busbw.cli.diagnosis_page.print_diagnosis", broken)
    ran = busbw("explain", sick_job)
    assert (ran.status, ran.out, len(ran.err.splitlines())) == (70, "", 1)
    assert ran.err.startswith(f"busbw: internal error: {type(error).__name__}")
    assert f"BUSBW_DEBUG=1 shows, the version ({__version__}) and the command: busbw explain {sick_job}" in ran.err
    monkeypatch.setenv("BUSBW_DEBUG", "1")
    ran = busbw("explain", sick_job)
    assert ran.status == 70
    assert "Traceback (most recent call last)" in ran.err
    assert ran.err.splitlines()[-1].startswith("busbw: internal error: ")


def run_in_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", ["explain {job}", "explain {job} --json", "read {job}", "hardware", "demo --report {job}/r.html"])  # fmt: skip
def test_a_closed_standard_output_is_one_line_and_status_2(sick_job: Path, arguments: str):
    command = f"{sys.executable} -m busbw {arguments.format(job=sick_job)} >&-"
    ran = run_in_shell(command)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert ran.stderr.startswith("busbw: standard output is closed.")
    assert run_in_shell(f"{command} 2>&-").returncode == 2


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_without_standard_error_the_result_is_the_same(sick_job: Path, where: str):
    """Notes are lost; they do not end up among the results."""
    command = f"{sys.executable} -m busbw explain {sick_job} --report {sick_job / 'r.html'}"
    usual, ran = run_in_shell(command), run_in_shell(f"{command} {where}")
    assert (usual.returncode, ran.returncode) == (1, 1)
    assert ran.stdout == usual.stdout


def test_a_full_disk_under_standard_output_is_one_line_and_status_2(sick_job: Path):
    ran = run_in_shell(f"{sys.executable} -m busbw explain {sick_job} > /dev/full")
    assert (ran.returncode, ran.stderr) == (2, "busbw: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", ""],
        ["read", ""],
        ["explain", "job", "--report", ""],
        ["read", "job", "--store", ""],
        ["query", "SELECT 1", "--store", ""],
        ["demo", "--report", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(busbw, tmp_path, monkeypatch, arguments):
    """`busbw explain "$JOB"` where JOB is not set."""
    (tmp_path / "job").write_text("NCCL WARN a line\n")
    monkeypatch.chdir(tmp_path)
    ran = busbw(*arguments)
    assert (ran.status, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert "the path is empty" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


@pytest.mark.parametrize("verb", ["explain", "read", "query", "hardware"])
def test_the_examples_of_a_verb_stand_on_lines_of_their_own(busbw, verb: str) -> None:
    """A help page is read by people: no control word of the help formatter is printed, no example runs into the next."""
    page = busbw(verb, "--help").out
    assert "\\b" not in page
    examples = [line for line in page.splitlines() if line.startswith("    busbw ")]
    assert examples
    assert all(line.count("busbw ") == 1 for line in examples)
