"""What launchers print of a failure is read as rank, host and how. Texts are of the real launchers, cut to these lines."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from busbw.launching.failures import words_of


@dataclass(frozen=True)
class Case:
    source: str
    launcher: str
    text: str
    rank: int | None
    host: str | None
    how: str


CASES = [
    Case("Open MPI 4.1.4, rank 1 of 2 killed", "openmpi", """
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun.openmpi noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
--------------------------------------------------------------------------""", 1, "vm", "was killed by SIGKILL"),
    Case("Open MPI 4.1.4, rank 1 of 2 ends with status 3", "openmpi", """
mpirun.openmpi detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[14791,1],1]
  Exit code:    3""", 1, None, "ended with status 3"),
    Case("Open MPI 4.1.4, --timeout 1", "openmpi", """
The user-provided time limit for job execution has been reached:

  Timeout: 1 seconds

The job will now be aborted.  Please check your code and/or
adjust/remove the job execution time limit (as specified by --timeout
command line option or MPIEXEC_TIMEOUT environment variable).""", None, None, "had not ended after 1 s"),
    Case("MPICH 4.0.2, rank 1 of 2 killed", "mpich", """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 21287 RUNNING AT localhost
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions""", None, "localhost", "was killed by SIGKILL"),
    Case("MPICH 4.0.2, MPIEXEC_TIMEOUT=1", "mpich", "[mpiexec@vm] APPLICATION TIMED OUT, TIMEOUT = 1s", None, None, "had not ended after 1 s"),
    Case("Slurm 22.05.8, task 2 of 4 ends with status 3", "slurm", """
srun: error: n3: task 2: Exited with exit code 3
srun: launch/slurm: _step_signal: Terminating StepId=4.0
slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-30T22:08:44 ***
srun: error: n1: task 0: Terminated""", 2, "n3", "ended with status 3"),
    Case("the same, the lines of those that were ended first", "slurm", """
srun: error: n1: tasks 0-1: Terminated
srun: error: n3: task 2: Exited with exit code 3""", 2, "n3", "ended with status 3"),
    Case("Slurm 22.05.8, task 1 killed", "slurm", "srun: error: n2: task 1: Killed", 1, "n2", "was killed by SIGKILL"),
    Case("srun of Slurm, a crash", "slurm", "srun: error: n2: task 1: Segmentation fault (core dumped)", 1, "n2", "was killed by SIGSEGV"),
    Case("Slurm 22.05.8, its time limit", "slurm", """
slurmstepd-n1: error: *** STEP 6.0 ON n1 CANCELLED AT 2026-11-30T22:07:44 DUE TO TIME LIMIT ***
srun: error: n2: tasks 2-3: Terminated""", None, None, "ended: TIME LIMIT"),
    Case("torchrun 2.13, rank 1 ends with status 1, rank 0 is ended", "torchrun", """
E1130 22:11:36.273000 30705 torch/torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 30739) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
tt.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_22:11:36
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 30738)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 30738
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_22:11:36
  host      : n7
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 30739)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================""", 1, "n7", "ended with status 1"),
    Case("OpenSSH, nobody listens", "ssh", "ssh: connect to host n4 port 22: Connection refused", None, "n4", "could not be reached (Connection refused)"),
    Case("OpenSSH, no such name", "ssh", "ssh: Could not resolve hostname n9: Name or service not known", None, "n9", "could not be reached (Name or service not known)"),
    Case("OpenSSH, no key", "ssh", "root@n4: Permission denied (publickey,password).", None, "n4", "could not be reached (Permission denied (publickey,password).)"),
    Case("OpenSSH, ServerAliveCountMax", "ssh", "Timeout, server n4 not responding.", None, "n4", "was lost with its node"),
    Case("our script for a node", "ssh", "busbw: rank 3 on n2 ended with status 137", 3, "n2", "was killed by SIGKILL"),
    Case("our script, timeout(1)", "docker", "busbw: rank 3 on n2 ended with status 124", 3, "n2", "had not ended within its time limit (status 124)"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.source)
def test_the_words_of_a_launcher(case):
    words = words_of(case.launcher)
    taken = [words.take(line.strip()) for line in case.text.splitlines() if line.strip()]
    assert (words.rank, words.host, words.how) == (case.rank, case.host, case.how)
    if case.launcher != "torchrun":
        assert all(taken), "a launcher's line would be shown as a rank's last words"


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "slurm", "torchrun", "ssh", "local"])
def test_words_of_ranks_are_left_alone(launcher):
    words = words_of(launcher)
    for line in (
        "[rank1]: RuntimeError: no link",
        "vm:12:34 [0] NCCL WARN Call to ibv_reg_mr failed",
        "error: task failed",
        "Exit code 3",
    ):
        assert not words.take(line)
    assert (words.rank, words.host, words.how) == (None, None, None)
