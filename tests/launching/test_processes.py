"""Ranks run side by side; when one fails all end, whoever started them, and what they wrote has been passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busbw.errors import InputError
from busbw.launching import Command, Job, Launch, LaunchError, Line, launch, render
from busbw.launching.processes import run_commands
from busbw.launching.scripts import node_argv

PATH = {"PATH": os.environ["PATH"]}


def shell(script: str, ranks: int = 1, per_node: int = 0, **fields) -> Job:
    return Job(("sh", "-c", script), ranks, per_node, environment=PATH, **fields)


def collected(
    job: Job, launcher: str = "local", options: tuple[str, ...] = ()
) -> tuple[list[Line], LaunchError | None]:
    lines: list[Line] = []
    try:
        launch(job, launcher, options, write=lines.append)
    except LaunchError as error:
        return lines, error
    return lines, None


def out(lines: list[Line]) -> list[str]:
    return sorted(line.text.decode().rstrip("\n") for line in lines if not line.to_error)


def still_run(mark: str) -> bool:
    """Whether a process with these words in its command line is left."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


def gone(mark: str, most_s: float = 5.0) -> bool:
    until = time.monotonic() + most_s
    while still_run(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A program that does what ssh does with its last words: joins them with spaces and hands them to a shell."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2; shift 2\n'
        '[ "$host" != down ] || { echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }\nexec sh -c "$*"\n'
    )
    program.chmod(0o755)
    return f"program={program}"


WHO = 'echo "$BUSBW_RANK/$BUSBW_RANKS local $BUSBW_LOCAL_RANK/$BUSBW_LOCAL_RANKS node $BUSBW_NODE/$BUSBW_NODES"'


def test_every_rank_is_told_its_place(ssh):
    """Five ranks, two a node: the third node has one."""
    lines, error = collected(shell(WHO, 5, 2, hosts=("a", "b", "c")), "ssh", (ssh,))
    assert error is None
    assert out(lines) == ["0/5 local 0/2 node 0/3", "1/5 local 1/2 node 0/3", "2/5 local 0/2 node 1/3", "3/5 local 1/2 node 1/3", "4/5 local 0/1 node 2/3"]  # fmt: skip
    lines, error = collected(shell(WHO, 3))
    assert out(lines) == [f"{rank}/3 local {rank}/3 node 0/1" for rank in range(3)]


def test_a_ranks_place_in_an_outer_job_is_not_its_own(monkeypatch):
    monkeypatch.setenv("BUSBW_RANK", "7")
    lines: list[Line] = []
    run_commands(
        Launch("ssh", (Command(("sh", "-c", 'echo "${BUSBW_RANK-none}"'), range(1)),)),
        deadline_s=10,
        write=lines.append,
    )
    assert out(lines) == ["none"]


@pytest.mark.parametrize("words", [("a  b", "$HOME", "it's"), ('"', "\\", "`id`"), ("\n", "*", "")])
def test_words_reach_a_rank_as_they_were_written(ssh, words):
    """ssh hands one string to a shell on the other side."""
    job = Job(("printf", "<%s>", *words), 1, hosts=("a",), environment={"NCCL_X": "a 'b' $c"})
    lines, error = collected(job, "ssh", (ssh,))
    assert error is None
    assert "".join(line.text.decode() for line in lines) == "".join(f"<{word}>" for word in words)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("exit 7", "ended with status 7"),
        ("kill -9 $$", "was killed by SIGKILL"),
        ("kill -11 $$", "was killed by SIGSEGV"),
    ],
)
@pytest.mark.parametrize("launcher", ["local", "ssh"])
def test_a_failure_names_rank_host_how_and_last_words(ssh, tmp_path, launcher, end, how):
    mark = f"31.{os.getpid()}"
    per_node, hosts, options = (2, ("a", "b"), (ssh,)) if launcher == "ssh" else (4, (), ())
    script = (
        f'echo begun; if [ "$BUSBW_RANK" = 2 ]; then sleep 0.2; echo "no such link" >&2; {end}; fi; exec sleep {mark}'
    )
    lines, error = collected(shell(script, 4, per_node, hosts=hosts), launcher, options)
    assert str(error) == f"rank 2 on {'b' if launcher == 'ssh' else 'localhost'} {how}: no such link"
    assert out(lines) == ["begun"] * 4  # what was measured is left
    assert gone(mark)


def test_a_rank_that_hangs_is_ended_at_the_limit(ssh):
    mark = f"32.{os.getpid()}"
    job = shell(f'[ "$BUSBW_RANK" = 0 ] || exec sleep {mark}', 2, 1, hosts=("a", "b"), time_limit_s=1.0)
    _, error = collected(job, "ssh", (ssh,))
    assert str(error) == "rank 1 on b had not ended within its time limit (status 124); it wrote no error"
    _, error = collected(shell(f'[ "$BUSBW_RANK" = 0 ] || exec sleep {mark}', 2, time_limit_s=0.5))
    assert str(error) == "rank 1 on localhost had not ended after 0.5 s; it wrote no error"
    assert gone(mark)


def test_a_rank_that_ignores_sigterm_is_made_to_end():
    mark = f"33.{os.getpid()}"
    stubborn = Launch("local", (Command(("sh", "-c", f"trap '' TERM; while :; do sleep {mark}; done"), range(1)),))
    with pytest.raises(LaunchError, match=r"had not ended after 0\.2 s"):
        run_commands(stubborn, deadline_s=0.2, grace_s=0.2)
    assert gone(mark)


def test_a_host_that_is_down_ends_the_others(ssh):
    mark = f"34.{os.getpid()}"
    _, error = collected(shell(f"exec sleep {mark}", 2, 1, hosts=("a", "down")), "ssh", (ssh,))
    assert str(error) == "rank 1 on down could not be reached (No route to host); it wrote no error"
    assert gone(mark)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_on_other_hosts_end_with_the_command(ssh, number):
    """Even when it is killed: the end of its connection is the order to end."""
    mark = f"35.{os.getpid()}{int(number):02}"
    argv = [
        sys.executable,
        "-m",
        "busbw",
        "launch",
        "--launcher",
        "ssh",
        "--launcher-option",
        ssh,
        "--hosts",
        "a,b",
        "--",
        "sh",
        "-c",
        f"echo up; exec sleep {mark}",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == [b"up\n", b"up\n"]
        process.send_signal(number)
        said = process.communicate(timeout=30)[1].decode()
        assert process.returncode == (-number if number == signal.SIGKILL else 130), said
    assert gone(mark)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's order to end with one's parent is Linux's")
@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_ranks_here_end_with_a_command_that_is_killed(tmp_path, launcher):
    """kill -9 lets nothing be cleaned up: the kernel sends SIGTERM to ranks, and to mpirun, which ends its own (here it is a script that does)."""
    mark = f"36.{os.getpid()}"
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\n"$@" &\ntrap "trap - TERM; kill 0" TERM\nwait\n'
    )
    mpirun.chmod(0o755)
    how = ["--launcher-option", f"program={mpirun}", "--launcher-option", "flavour=openmpi"] * (launcher == "mpirun")
    argv = [sys.executable, "-m", "busbw", "launch", "--launcher", launcher, *how]
    with subprocess.Popen([*argv, "--", "sh", "-c", f"echo up; exec sleep {mark}"], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline().endswith(b"up\n")
        process.kill()
    assert gone(mark)


def test_labels_are_taken_off_wherever_a_launcher_puts_them():
    """Open MPI labels each piece that a rank writes, so two ranks' pieces may share a line (seen in 4.1.4)."""
    text = b"[1,1]<stdout>:one[1,0]<stdout>:zero[1,1]<stdout>: more\n[1,0]<stdout>:\n[1,0]<stdout>:  two\nmpirun says\n"
    mpirun = render(Job(("x",), 2, environment={}), "mpirun", ["flavour=openmpi", "root=no", "oversubscribe=no"])
    command = Command(
        (sys.executable, "-c", f"import sys; sys.stdout.buffer.write({text!r})"),
        range(2),
        label=mpirun.commands[0].label,
    )
    lines: list[Line] = []
    run_commands(Launch("openmpi", (command,)), deadline_s=10, write=lines.append)
    assert [(line.rank, line.text) for line in lines] == [
        (1, b"one more\n"),
        (0, b"zero\n"),
        (0, b"  two\n"),
        (None, b"mpirun says\n"),
    ]


def test_what_open_mpi_5_says_of_all_ranks_has_no_rank():
    """Its labels name a job and a rank, or WILDCARD (seen in 5.0.11)."""
    text = b"[1,0]<stdout>:   x\n[1,WILDCARD]<stdout>:   Timeout: 2 seconds\n"
    mpirun = render(Job(("x",), 2), "mpirun", ["flavour=openmpi", "version=5", "root=no", "oversubscribe=no"])
    command = Command(
        (sys.executable, "-S", "-c", f"import sys; sys.stdout.buffer.write({text!r}); sys.exit(1)"),
        range(2),
        label=mpirun.commands[0].label,
    )
    lines: list[Line] = []
    with pytest.raises(LaunchError, match="the job had not ended after 2 s"):
        run_commands(Launch("openmpi", (command,)), deadline_s=10, write=lines.append)
    assert [(line.rank, line.text, line.to_error) for line in lines] == [
        (0, b"  x\n", False),
        (None, b"  Timeout: 2 seconds\n", True),
    ]


def test_what_has_no_end_of_line_is_passed_on_too():
    lines, _ = collected(shell("printf half"))
    assert [line.text for line in lines] == [b"half"]


def test_something_left_behind_does_not_hold_the_job_up():
    begun = time.monotonic()
    lines, error = collected(shell("sleep 36 & echo done"))
    assert error is None and out(lines) == ["done"]
    assert time.monotonic() - begun < 20


def test_the_script_of_a_node_wants_a_number():
    done = subprocess.run(node_argv(shell("true"), "x"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "busbw: no number of this node: 'x'\n")


def test_a_program_that_is_not_there():
    with pytest.raises(LaunchError, match="/no/such/program can't be started: No such file"):
        launch(Job(("/no/such/program",)))
    with pytest.raises(InputError, match="no-ssh: no such program here"):
        launch(Job(("true",), hosts=("a",)), "ssh", ["program=no-ssh"])


def test_what_the_others_wrote_before_they_were_ended_is_left():
    """Rank 1 measures on while rank 0 fails; its lines up to its end come through."""
    script = '[ "$BUSBW_RANK" = 1 ] || { sleep 0.3; exit 3; }; trap "echo last; exit" TERM; echo first; while :; do sleep 0.02; done'
    lines, error = collected(shell(script, 2))
    assert error and error.failure and error.failure.rank == 0
    assert out(lines) == ["first", "last"]
