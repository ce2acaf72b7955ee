"""What launchers print when a rank fails: which rank, where, how."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["RANK_ENDED", "Words", "words_of"]

RANK_ENDED = "busbw: rank {rank} on {host} ended with status {status}"
"""What the scripts that start ranks write (`scripts.py`); status as a shell says it, 128 + n for signal n."""

_Pattern = tuple[str, re.Pattern[str]]


@dataclass(slots=True)
class Words:
    """Fed with the lines of a launcher, knows what they said of a failure."""

    patterns: Sequence[_Pattern]
    rank: int | None = None
    host: str | None = None
    how: str | None = None
    failed: bool = False
    """Whether the job is to be ended although its launcher still runs."""
    _muted: bool = False
    _weak: bool = False
    _frame: re.Pattern[str] = field(default=re.compile(r"[-=*]{20,}"))

    def take(self, line: str) -> bool:
        """Whether the line is the launcher's and not a rank's. What came first counts: others fail because of it."""
        if self._frame.fullmatch(line):
            return True
        for kind, pattern in self.patterns:
            match = pattern.search(line)
            if match is None:
                continue
            found = match.groupdict()
            if kind == "cause":
                self.rank = self.host = self.how = None
                return True
            if kind in ("noise", "rest"):
                self._muted |= kind == "rest"
                return True
            if kind == "ends":
                if self.how is None:
                    self.rank, self.host, self.how = int(found["rank"]), found["host"], _status(int(found["status"]))
                self.failed = True
                return True
            if kind == "weak" and self.how is not None:
                return True
            if kind == "failed" and self._weak:
                self.rank = self.host = self.how = None
                self._weak = False
            self._weak |= kind == "weak"
            if self.rank is None and found.get("rank"):
                self.rank = int(found["rank"])
            if self.host is None and found.get("host"):
                self.host = found["host"]
            if self.how is None and kind in ("failed", "weak"):
                self.how = _how(found)
            return True
        return self._muted


def words_of(launcher: str) -> Words:
    """A listener to the words of a launcher; to none but the scripts' if it has none of its own."""
    return Words([*_OURS, *_LAUNCHERS.get(launcher, ())])


def _how(found: Mapping[str, str | None]) -> str | None:
    if signal_ := found.get("signal"):
        return f"was killed by {_signal(int(signal_))}"
    if word := found.get("word"):
        return f"was killed by {_SIGNALS.get(word, word)}"
    if status := found.get("status"):
        return _status(int(status))
    if limit := found.get("limit"):
        return f"had not ended after {limit} s"
    if unreached := found.get("unreached"):
        return f"could not be reached ({unreached})"
    if "lost" in found:
        return "was lost with its node"
    return f"ended: {said}" if (said := found.get("how")) else None


def _status(status: int) -> str:
    """In words. 124 is timeout(1)'s, which bounds each rank in the scripts."""
    if status == 124:
        return "had not ended within its time limit (status 124)"
    return f"was killed by {_signal(status - 128)}" if 128 < status <= 192 else f"ended with status {status}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _compiled(*patterns: tuple[str, str]) -> tuple[_Pattern, ...]:
    return tuple((kind, re.compile(pattern)) for kind, pattern in patterns)


_SIGNALS = {text: number.name for number in signal.Signals if (text := signal.strsignal(number))}
"""As the C library, and so Slurm, says them."""

_OURS = _compiled(
    ("noise", rf"^(?:{'|'.join(map(re.escape, _SIGNALS))})(?: \(core dumped\))?$"),  # what a shell says of its child
    ("ends", r"^busbw: rank (?P<rank>\d+) on (?P<host>\S+) ended with status (?P<status>\d+)$"),
)

_LAUNCHERS: Mapping[str, tuple[_Pattern, ...]] = {
    # Seen in Open MPI 4.1.4 and 5.0.11 (orte/tools/orterun and PRRTE's help-prun.txt).
    "openmpi": _compiled(
        ("failed", r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s*(?:signal (?P<signal>\d+))?"),
        ("named", r"^Process name: \[(?:\[\d+,\d+\]|[^,\]]+),(?P<rank>\d+)\]"),
        ("failed", r"^Exit code:\s+(?P<status>\d+)$"),
        ("failed", r"^Timeout: (?P<limit>\d+) seconds"),
        ("failed", r"^(?P<lost>ORTE has lost communication with a remote daemon|PRTE has lost communication with a remote daemon)"),
        ("named", r"^\s*HNP daemon\s+:|^\s*Remote daemon: \[[^\]]*\] on node (?P<host>\S+)"),
        ("noise", r"^Primary job +terminated normally, but|^a non-zero exit code\. Per user-direction|^(?:mpirun|mpiexec|prterun)\S* (?:detected that|noticed)"),
        ("noise", r"^the job to be terminated\. The first process|^The user-provided time limit|^The job will now be aborted|^adjust/remove the job|^command line option or MPIEXEC_TIMEOUT"),
    ),
    # Seen in MPICH 4.0.2; Hydra says it on standard output.
    "mpich": _compiled(
        ("noise", r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES|CLEANING UP REMAINING PROCESSES|YOU CAN IGNORE THE BELOW CLEANUP"),
        ("named", r"^=\s+PID \d+ RUNNING AT (?P<host>\S+)"),
        ("noise", r"^=\s+EXIT CODE: \d+"),
        ("failed", r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)"),
        ("failed", r"APPLICATION TIMED OUT, TIMEOUT = (?P<limit>\d+)s"),
        ("noise", r"^\[(?:proxy:|mpiexec@)|^This typically refers to a problem|^Please see the FAQ page"),
    ),
    # Seen in Slurm 22.05 (src/srun/libsrun).
    "slurm": _compiled(
        ("failed", r"^srun: error: (?P<host>[^\s:,\[]+): task (?P<rank>\d+): Exited with exit code (?P<status>\d+)"),
        ("failed", r"^srun: error: (?P<host>[^\s:,\[]+): task (?P<rank>\d+): (?P<word>(?!Terminated)[A-Z][A-Za-z ]+?)(?: \(core dumped\))?$"),
        ("weak", r"^srun: error: (?P<host>[^\s:,\[]+): tasks? (?P<rank>\d+)[-,\d]*: (?P<word>Terminated)$"),
        ("failed", r"^srun: error: \S+: tasks (?P<rank>\d+)[-,\d]*: Exited with exit code (?P<status>\d+)"),
        ("failed", r"^srun: error: Node failure on (?P<host>\S+)(?P<lost>)"),
        ("failed", r"CANCELLED AT \S+ DUE TO (?P<how>TIME LIMIT|NODE FAILURE|PREEMPTION)"),
        ("failed", r"^srun: error: (?P<how>Unable to allocate resources: .*|Timed out waiting for job step to complete.*)"),
        ("noise", r"^(?:srun|slurmstepd(?:-[^\s:]+)?|sbatch|salloc): "),
    ),
    # torch/distributed/elastic/multiprocessing/errors; seen in 2.13.
    "torchrun": _compiled(
        ("cause", r"^Root Cause \(first observed failure\):$"),
        ("noise", r"^Setting OMP_NUM_THREADS environment variable for each process"),
        ("named", r"^host\s+: (?P<host>\S+)"),
        ("named", r"^rank\s+: (?P<rank>\d+) \(local_rank: \d+\)"),
        ("failed", r"^exitcode\s+: -(?P<signal>\d+) "),
        ("failed", r"^exitcode\s+: (?P<status>\d+) "),
        ("rest", r"^E\d{4} .*\] failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\) of binary: "),
        ("noise", r"^[WI]\d{4} \S+ .*torch/distributed/"),
    ),
    "ansible": _compiled(("failed", r'^fatal: \[(?P<host>[^\]]+)\]: [A-Z]+! => .*"msg": "(?P<how>(?:[^"\\]|\\.)*)"')),
    # ssh.c, sshconnect.c, clientloop.c of OpenSSH
    "ssh": _compiled(
        ("failed", r"^ssh: connect to host (?P<host>\S+) port \d+: (?P<unreached>.+)"),
        ("failed", r"^ssh: Could not resolve hostname (?P<host>[^:]+): (?P<unreached>.+)"),
        ("failed", r"^\S+@(?P<host>[^:\s]+): (?P<unreached>Permission denied \(.*)"),
        ("failed", r"^(?P<unreached>Host key verification failed)"),
        ("failed", r"^(?P<lost>Timeout, server (?P<host>\S+) not responding)"),
        ("failed", r"^(?P<lost>Connection (?:to|reset by|closed by) (?P<host>\S+) (?:port|closed by remote host).*|client_loop: send disconnect: .*)"),
    ),
}  # fmt: skip
"""A kind (failed: says how; weak: says it of a rank that was ended because another failed, if that one is not named; named: says who;
cause: what follows is what counts; noise: nothing; rest: nothing from here on) and a pattern that a stripped line holds."""
