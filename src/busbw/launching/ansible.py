"""An Ansible inventory and playbook that check nodes before a job, then run its command once a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from busbw.errors import InputError
from busbw.launching.job import Command, File, Job, Launch, whole_seconds
from busbw.launching.yaml_text import Unexpanded, yaml_text

__all__ = ["AnsibleOptions", "render"]


@dataclass(frozen=True, slots=True)
class AnsibleOptions:
    """What is expected of a node."""

    program: str = "ansible-playbook"
    python: str = "/usr/bin/python3"
    """On the nodes; found out by Ansible otherwise, which takes the first python3 on the path, whatever it is."""
    gpus: int = -1
    """GPUs of a node; -1: as many as its ranks use."""
    ib_ports: int = 0
    """InfiniBand or RoCE ports of a node that must be active."""
    shm_bytes: int = 1 << 30
    """Least size of /dev/shm. A guess: NCCL takes about 10 MiB a connection between ranks of a node."""
    run: bool = True
    """Whether to run the command after the checks."""
    arguments: tuple[str, ...] = ()
    """Further words for ansible-playbook, such as '--user root'."""


def render(job: Job, options: AnsibleOptions) -> Launch:
    """An inventory, a playbook and the ansible-playbook that runs it. A node that fails a check does not run the command."""
    hosts = job.hosts or ("localhost",)
    if not job.hosts and job.nodes > 1:
        raise InputError(f"ansible on {job.nodes} nodes: name them with --hosts.")
    if options.gpus < -1:
        raise InputError(f"gpus={options.gpus}: write 0 or more.")
    gpus = job.gpus_per_rank * job.ranks_per_node if options.gpus == -1 else options.gpus
    inventory = {
        "all": {
            "hosts": {host: {"ansible_connection": "local"} if host == "localhost" else {} for host in hosts},
            "vars": {"ansible_python_interpreter": options.python},
        }
    }
    play = {
        "name": "Nodes are as the job needs them",
        "hosts": "all",
        "gather_facts": False,
        "vars": {"gpus": gpus, "ib_ports": options.ib_ports, "shm_bytes": options.shm_bytes},
        "tasks": [*_CHECKS, *_ALIKE, *(_run(job) if options.run else [])],
    }
    files = (
        File(f"{job.name}-inventory.yaml", yaml_text(inventory)),
        File(f"{job.name}-nodes.yaml", yaml_text([play])),
    )
    argv = (options.program, "-i", files[0].name, *options.arguments, files[1].name)
    return Launch("ansible", (Command(argv, range(0), {"ANSIBLE_NOCOLOR": "1"}),), files)


def _read(name: str, what: str, script: str) -> dict[str, Any]:
    """A task that reads something of a node and changes nothing."""
    return {
        "name": what,
        "ansible.builtin.command": {"argv": ["sh", "-c", script]},
        "register": name,
        "changed_when": False,
        "failed_when": False,
        "check_mode": False,
    }


def _expect(what: str, that: list[str], message: str, when: str | None = None) -> dict[str, Any]:
    task: dict[str, Any] = {
        "name": what,
        "ansible.builtin.assert": {"that": that, "fail_msg": message, "quiet": True},
    }
    return task | ({"when": when} if when else {})


_CHECKS = [
    _read("shm", "Read the size of /dev/shm", "df -B1 -P /dev/shm | awk 'NR == 2 { print $2 }'"),
    _expect(
        "/dev/shm has room for buffers between ranks",
        ["shm.stdout | int >= shm_bytes"],
        "/dev/shm has {{ shm.stdout | default('?', true) }} bytes, {{ shm_bytes }} are needed: mount -o remount,size=16G /dev/shm, "
        "or give the container a larger one (--shm-size).",
    ),
    _read("memlock", "Read the limit of locked memory", "ulimit -l"),
    _expect(
        "Memory may be pinned",
        ["memlock.stdout == 'unlimited'"],
        "Locked memory is limited to {{ memlock.stdout }} KiB: verbs can't register buffers. Set 'memlock unlimited' in /etc/security/limits.conf, "
        "and LimitMEMLOCK=infinity for slurmd or the container runtime.",
        when="ib_ports > 0",
    ),
    _read(
        "ports",
        "Read states of InfiniBand ports",
        "cat /sys/class/infiniband/*/ports/*/state 2> /dev/null | grep -c ': ACTIVE'",
    ),
    _expect(
        "InfiniBand and RoCE ports are active",
        ["ports.stdout | int >= ib_ports"],
        "{{ ports.stdout | default('0', true) }} ports are active, {{ ib_ports }} are expected: see `ibstat` for cables and `dmesg` for the driver.",
        when="ib_ports > 0",
    ),
    _read(
        "cards",
        "Read GPUs, driver and uncorrected errors",
        "nvidia-smi --query-gpu=name,driver_version,ecc.errors.uncorrected.volatile.total --format=csv,noheader",
    )
    | {"when": "gpus > 0"},
    _expect(
        "All GPUs are there",
        ["cards.rc == 0", "cards.stdout_lines | length == gpus"],
        "{{ cards.stdout_lines | default([]) | length }} GPUs answer, {{ gpus }} are expected ({{ cards.stderr | default('') }}): see `dmesg | grep -i xid` "
        "and `lspci -d 10de:`.",
        when="gpus > 0",
    ),
    _expect(
        "No GPU has uncorrected memory errors",
        ["cards.stdout_lines | reject('search', ', (0|\\[N/A\\])$') | list | length == 0"],
        "A GPU counts uncorrected memory errors since the driver was loaded: {{ cards.stdout_lines | reject('search', ', (0|\\[N/A\\])$') | join('; ') }}. "
        "Reset it, and see `nvidia-smi -q -d ROW_REMAPPER`.",
        when="gpus > 0",
    ),
]

_ALIKE = [
    _read("kernel", "Read the kernel's version", "uname -r"),
    _expect(
        "All nodes run one kernel",
        ["ansible_play_hosts | map('extract', hostvars, ['kernel', 'stdout']) | unique | length == 1"],
        "Nodes run different kernels: {% for host in ansible_play_hosts %}{{ host }} {{ hostvars[host].kernel.stdout }}; {% endfor %}ranks of a job are then compared "
        "with what is not alike.",
    )
    | {"run_once": True},
]


def _run(job: Job) -> list[dict[str, Any]]:
    """The command, once a node. Its words are data: Ansible expands nothing in them."""
    task: dict[str, Any] = {
        "name": "Run the command",
        "ansible.builtin.command": {
            "argv": [Unexpanded(word) for word in ("timeout", str(whole_seconds(job.time_limit_s)), *job.argv)],
            "expand_argument_vars": False,  # since ansible-core 2.16
            **({"chdir": Unexpanded(job.working_directory)} if job.working_directory else {}),
        },
        "register": "ran",
        "changed_when": False,
    }
    if job.environment:
        task["environment"] = {name: Unexpanded(value) for name, value in sorted(job.environment.items())}
    return [task, {"name": "Show what it wrote", "ansible.builtin.debug": {"var": "ran.stdout_lines"}}]
