"""Slurm of four nodes on this machine: munged, slurmctld and slurmds in a temporary folder, stopped by their process ids."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NODES = 4
_START_S = 30.0
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path
    environment: dict[str, str]
    """What srun and sbatch need to find it."""
    slurmds: dict[str, int]
    """Process of each node's slurmd."""

    def run(self, *argv: str, timeout_s: float = 30.0) -> str:
        done = subprocess.run(
            argv, env=os.environ | self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{argv[0]}: status {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def lose(self, node: str) -> None:
        """Kills a node's slurmd, then step daemons and ranks, as a crash of the host would."""
        doomed = [self.slurmds[node]]
        for rank in _processes_of(node):
            doomed += [int((Path("/proc") / str(rank) / "stat").read_text().rpartition(")")[2].split()[1]), rank]
        for process in doomed:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _processes_of(node: str) -> list[int]:
    """Ranks that run on a node."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"SLURMD_NODENAME={node}".encode() in (entry / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(entry.name))
    return found


def why_not() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd starts steps of other users, so it must run as root"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Four nodes n1 to n4 with two cores each, ready for jobs; gone afterwards."""
    with ExitStack() as stack:
        # A short path: munge's socket must fit into 108 bytes.
        folder = Path(tempfile.mkdtemp(prefix="busbw-slurm-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        ports = _free_ports(NODES + 1)
        config = folder / "slurm.conf"
        config.write_text(_config(folder, ports))
        environment = {"SLURM_CONF": str(config), "PATH": _path()}
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_stop, processes)

        def start(*argv: str) -> int:
            log = stack.enter_context((folder / f"{argv[0]}-{len(processes)}.log").open("wb"))
            processes.append(
                subprocess.Popen(
                    argv,
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
            return processes[-1].pid

        # Foreground, so that each is our child and can be ended by its id.
        start("munged", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
              f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed", "--force")  # fmt: skip
        _until((folder / "munge.sock").exists, folder, processes, "munged")
        start("slurmctld", "-D", "-i", "-f", str(config))
        slurmds = {}
        for name in (f"n{number}" for number in range(1, NODES + 1)):
            # PMIx servers of two slurmds would take one folder; in a mount namespace of its own each has another.
            script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            private = (str(folder / "spool" / name / "pmix"), str(folder / "pmix"))
            slurmds[name] = start(
                "unshare", "--mount", "sh", "-c", script, "sh", *private, "slurmd", "-D", "-f", str(config), "-N", name
            )
        cluster = SlurmCluster(folder, environment, slurmds)
        _until(lambda: _idle(cluster) == NODES, folder, processes, "slurmctld and slurmd")
        yield cluster


def _config(folder: Path, ports: list[int]) -> str:
    host = socket.gethostname()
    nodes = "".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[number]} CPUs=2 RealMemory=100 State=UNKNOWN\n"
        for number in range(1, NODES + 1)
    )
    (folder / "topology.conf").write_text(
        "SwitchName=leaf0 Nodes=n[1-2]\nSwitchName=leaf1 Nodes=n[3-4]\nSwitchName=spine Switches=leaf[0-1]\n"
    )
    for number in range(1, NODES + 1):
        (folder / "spool" / f"n{number}" / "pmix").mkdir(parents=True)
    (folder / "pmix").mkdir()
    (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/pmix\n")
    (folder / "state").mkdir()
    return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
TopologyPlugin=topology/tree
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
KillWait=2
InactiveLimit=0
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _idle(cluster: SlurmCluster) -> int:
    with suppress(RuntimeError, subprocess.TimeoutExpired):
        return sum(
            line == "idle"
            for line in cluster.run("sinfo", "--noheader", "--Node", "--format=%T", timeout_s=5).splitlines()
        )
    return 0


def _until(holds, folder: Path, processes: list[subprocess.Popen[bytes]], what: str) -> None:
    until = time.monotonic() + _START_S
    while not holds():
        ended = [process for process in processes if process.poll() is not None]
        if ended or time.monotonic() > until:
            said = "".join(path.read_text(errors="replace")[-600:] for path in sorted(folder.glob("*-[0-9].log")))
            raise RuntimeError(f"{what} did not start: {ended[0].args if ended else 'too slow'}\n{said}")
        time.sleep(0.05)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + 1.0
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.05, until - time.monotonic()))
        if process.poll() is None:
            process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
