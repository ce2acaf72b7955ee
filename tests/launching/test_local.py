"""A launcher starts ranks, gives back what they wrote, and leaves no process behind, however they end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from busbw.launching import LaunchError, launch_local


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_rank_knows_who_it_is_and_what_it_wrote_comes_back_in_order():
    told = "import os; print(*(os.environ[f'BUSBW_{name}'] for name in ('RANK', 'RANKS', 'JOB')))"
    ended = launch_local(python(told), 3, deadline_s=30)
    assert [one.rank for one in ended] == [0, 1, 2]
    words = [one.out.split() for one in ended]
    assert [word[:2] for word in words] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({word[2] for word in words}) == 1  # one job


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("raise SystemExit('no such card')", "rank 1 ended with status 1: no such card"),
        ("os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL; it wrote no error"),
    ],
)
def test_when_one_fails_the_others_are_ended_and_it_is_named(tmp_path, failing, said):
    code = f"""
import os, time
from pathlib import Path
place = Path({str(tmp_path)!r})
if os.environ['BUSBW_RANK'] == '0':
    (place / 'pid.new').write_text(str(os.getpid()))
    (place / 'pid.new').rename(place / 'pid')
    time.sleep(60)
while not (place / 'pid').exists():
    time.sleep(0.01)
{failing}
"""
    with pytest.raises(LaunchError, match=said):
        launch_local(python(code), 2, deadline_s=30)
    assert not is_running(int(Path(tmp_path, "pid").read_text()))


def test_a_deadline_names_who_has_not_ended():
    begun = time.monotonic()
    with pytest.raises(LaunchError, match=r"rank 1 had not ended after 0\.5 s"):
        launch_local(python("import os, time; time.sleep(60 * int(os.environ['BUSBW_RANK']))"), 2, deadline_s=0.5)
    assert time.monotonic() - begun < 30


def test_what_is_no_program_and_no_rank_is_said():
    with pytest.raises(LaunchError, match="/no/such/program can't be started: No such file or directory"):
        launch_local(["/no/such/program"], 1, deadline_s=1)
    with pytest.raises(LaunchError, match="at least one is needed"):
        launch_local(["true"], 0, deadline_s=1)


def test_names_in_shared_memory_end_with_the_job():
    """A rank that is killed while it waits for others can't take its name away."""
    waits = (
        "import os, sys; open(f\"/dev/shm/busbw-{os.environ['BUSBW_JOB']}-0\", 'w').close(); "
        "print(os.environ['BUSBW_JOB'], file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    )
    with pytest.raises(LaunchError, match="killed by SIGKILL") as raised:
        launch_local(python(waits), 1, deadline_s=30)
    job = str(raised.value).rpartition(": ")[2]
    assert job.startswith(f"{os.getpid()}-")
    assert not list(Path("/dev/shm").glob(f"busbw-{job}*"))
