"""Hosts as network namespaces, each joined to a bridge by a veth whose two ends are held to a rate by tbf.

Every namespace is anonymous: it lives as long as the process that holds it, which dies with whoever started it, so that nothing is left behind
however a run ends. The bridge has a namespace of its own, and the interfaces of this machine are never touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "ACK_BYTES",
    "FRAME_BYTES",
    "SEGMENT_BYTES",
    "HostsRefusedError",
    "Links",
    "MiniCluster",
    "end_with",
    "enter_network",
]

_CLONE_NEWNET = 0x40000000
"""linux/sched.h."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
FRAME_BYTES, SEGMENT_BYTES, ACK_BYTES = 1514, 1448, 66
"""Of a full frame on Ethernet of 1,500 bytes: 14 of Ethernet, 20 of IP, 20 of TCP and 12 of its timestamps are not the user's. An acknowledgement is those 66."""
_NET = "10.77.0"
"""Addresses inside the namespaces, which no other network sees."""
_TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
"""In the namespaces alone. Nothing is lost there, so Reno keeps the window open. BBR, which some machines have, holds two streams that meet on one link to half its rate."""
_FIRST_FRAMES = 1024
"""That a connection may send at once: as RDMA does, which has no slow start; its window is the limit."""
_SEGMENTS = 1
"""Frames that TCP hands to a link as one: as many as its burst, or acknowledgements wait behind 64 KiB of data."""
_NO_LIMIT, _HTB_BURST = "10gbit", 65536
"""Of the queues under a rate: they only take turns."""
_MOST_HOSTS = 16
_COMMAND_S = 20.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class HostsRefusedError(Exception):
    """This machine gives no network namespaces, or lacks what is needed in them; the message says what, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Links:
    """What every host's link is, each way."""

    mbit_per_s: float = 50.0
    """Of frames, as tbf counts them."""
    burst_bytes: int = 4 * FRAME_BYTES
    """That an idle link may send at once: enough to make good for a timer that is a millisecond late at 50 Mbit/s, little beside a message."""
    window_bytes: int = 1 << 18
    """Of a connection under way, at most."""
    queue_bytes: int = 1 << 23
    """Before a link: more than all connections of 16 hosts have under way, so that nothing is dropped: a lossless network, as those of GPUs are."""
    slowed: Mapping[int, float] = field(default_factory=dict)
    """Hosts whose link has only this share of the rate, both ways."""
    groups: int = 1
    """Equal groups of hosts, one after another, each on a switch of its own, and these on one that joins them."""
    uplink_mbit_per_s: float = 50.0
    """Between a group's switch and the one that joins them, each way; of no meaning in one group."""

    def __post_init__(self) -> None:
        if (
            not 0 < self.mbit_per_s <= 10_000
            or min(self.burst_bytes, self.window_bytes, self.queue_bytes) < FRAME_BYTES
        ):
            raise ValueError(f"{self}: a link has a rate of up to 10000 Mbit/s, and room for a frame of {FRAME_BYTES} bytes")  # fmt: skip
        if self.groups < 1 or not 0 < self.uplink_mbit_per_s <= 10_000:
            raise ValueError(f"{self.groups} groups on uplinks of {self.uplink_mbit_per_s} Mbit/s: groups from 1, rates of up to 10000 Mbit/s")  # fmt: skip
        if any(not 0 < share <= 1 for share in self.slowed.values()):
            raise ValueError(f"slowed links {dict(self.slowed)}: a share of the rate is above 0, at most 1")

    def rate_of(self, host: int) -> float:
        """Mbit/s of a host's link."""
        return self.mbit_per_s * self.slowed.get(host, 1.0)


class MiniCluster:
    """Hosts 0 to hosts - 1, up until closed: `with MiniCluster(8) as cluster: ...`.

    Raises HostsRefusedError where this machine does not let us.
    """

    def __init__(self, hosts: int, links: Links | None = None) -> None:
        if not 2 <= hosts <= _MOST_HOSTS:
            raise ValueError(f"{hosts} hosts: a mini cluster has 2 to {_MOST_HOSTS}")
        self.hosts, self.links = hosts, links or Links()
        if hosts % self.links.groups:
            raise ValueError(f"{hosts} hosts make no {self.links.groups} equal groups")
        self._holders: list[tuple[int, int]] = []
        """Processes, and the pipes that keep them."""
        self._refuse_missing()
        try:
            for _ in range(hosts + 1):
                self._holders.append(_held_namespace())
            self._wire()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> MiniCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the hosts; their namespaces and links go with them."""
        for process, pipe in self._holders:
            os.close(pipe)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
        self._holders.clear()

    def group(self, host: int) -> int:
        """Which group a host is in."""
        return host * self.links.groups // self.hosts

    def name(self, host: int) -> str:
        """As tables have it."""
        return f"host{host}"

    def address(self, host: int) -> str:
        """Of a host's link."""
        return f"{_NET}.{host + 1}"

    def network(self, host: int) -> str:
        """The file that stands for a host's namespace, for `nsenter --net=`."""
        return f"/proc/{self._holders[host][0]}/ns/net"

    def set_rate(self, host: int, share: float) -> None:
        """Gives a host's link another share of the rate, both ways, while all runs on."""
        tbf = self._tbf(self.links.mbit_per_s * share)
        _in_network(self.network(host), ["tc", "qdisc", "change", "dev", "eth0", "root", *tbf])
        _in_network(self.network(self.hosts), ["tc", "qdisc", "change", "dev", f"port{host}", "root", *tbf])

    @staticmethod
    def _refuse_missing() -> None:
        if sys.platform != "linux":
            raise HostsRefusedError("network namespaces are of Linux")
        for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
            if shutil.which(tool, path=_PATH) is None:
                raise HostsRefusedError(f"{tool} is missing: install {package}")

    def _wire(self) -> None:
        switch = self.network(self.hosts)
        groups = range(self.links.groups)
        lines = [line for g in groups for line in (f"link add sw{g} type bridge", f"link set sw{g} up")]
        if len(groups) > 1:
            lines += ["link add core type bridge", "link set core up"]
            for g in groups:
                lines += [
                    f"link add up{g} type veth peer name down{g}",
                    f"link set up{g} master sw{g} up gso_max_segs {_SEGMENTS}",
                    f"link set down{g} master core up gso_max_segs {_SEGMENTS}",
                ]
        for host in range(self.hosts):
            lines += [
                f"link add port{host} type veth peer name eth0 netns {self._holders[host][0]}",
                f"link set port{host} master sw{self.group(host)}",
                f"link set port{host} up gso_max_segs {_SEGMENTS}",
            ]
        _in_network(switch, ["ip", "-batch", "-"], lines)
        for host in range(self.hosts):
            up = [
                "link set lo up",
                f"addr add {self.address(host)}/24 dev eth0",
                f"link set eth0 up gso_max_segs {_SEGMENTS}",
                f"route change {_NET}.0/24 dev eth0 initcwnd {_FIRST_FRAMES} initrwnd {_FIRST_FRAMES}",
            ]
            _in_network(self.network(host), ["ip", "-batch", "-"], up)
            _in_network(
                self.network(host), ["tc", "-batch", "-"], self._queues("eth0", self.links.rate_of(host), "dst")
            )
        ports = [
            line for host in range(self.hosts) for line in self._queues(f"port{host}", self.links.rate_of(host), "src")
        ]
        for g in groups if len(groups) > 1 else ():
            for device in (f"up{g}", f"down{g}"):
                ports += self._queues(device, self.links.uplink_mbit_per_s, "src")
        _in_network(switch, ["tc", "-batch", "-"], ports)

    def _queues(self, device: str, mbit_per_s: float, side: str) -> list[str]:
        """A device's rate, and under it a queue for each peer by what side of it names it."""
        tbf = " ".join(self._tbf(mbit_per_s))
        lines = [f"qdisc add dev {device} root handle 1: {tbf}", f"qdisc add dev {device} parent 1: handle 2: htb"]
        fast = f"htb rate {_NO_LIMIT} burst {_HTB_BURST} cburst {_HTB_BURST} quantum {FRAME_BYTES}"
        lines.append(f"class add dev {device} parent 2: classid 2:ff {fast} prio 0")
        small = "match u16 0x0000 0xff80 at 2"  # IP's total length is below 128
        lines.append(f"filter add dev {device} parent 2: prio 1 protocol ip u32 {small} flowid 2:ff")
        for peer in range(self.hosts):
            lines.append(f"class add dev {device} parent 2: classid 2:{peer + 1:x} {fast} prio 1")
            lines.append(f"qdisc add dev {device} parent 2:{peer + 1:x} bfifo limit {self.links.queue_bytes}")
            to = f"match ip {side} {self.address(peer)}/32"
            lines.append(f"filter add dev {device} parent 2: prio 2 protocol ip u32 {to} flowid 2:{peer + 1:x}")
        return lines

    def _tbf(self, mbit_per_s: float) -> list[str]:
        burst, limit = self.links.burst_bytes, self.links.queue_bytes
        return ["tbf", "rate", f"{round(mbit_per_s * 1e6)}bit", "burst", str(burst), "limit", str(limit)]


def enter_network(network: str) -> None:
    """Moves this process into the namespace of a file; it can't go back. Raises OSError if it may not."""
    with Path(network).open() as file:
        _checked(_libc().setns(file.fileno(), _CLONE_NEWNET), "setns")


def end_with(parent: int) -> None:
    """Has this process end when the one that started it does, however that ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _held_namespace() -> tuple[int, int]:
    """A process that holds a new network namespace until the pipe is closed, or this process ends."""
    said, say = os.pipe()
    kept, keep = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        _hold(parent, said, say, kept, keep)
    os.close(say)
    os.close(kept)
    with os.fdopen(said) as answer:
        problem = answer.read()
    if problem != "up":
        os.close(keep)
        os.waitpid(process, 0)
        raise HostsRefusedError(f"no network namespace: {problem}. Run as root, in a container with --cap-add SYS_ADMIN,NET_ADMIN")  # fmt: skip
    return process, keep


def _hold(parent: int, said: int, say: int, kept: int, keep: int) -> None:
    """The life of a holder."""
    status = 1
    try:
        os.close(said)
        os.close(keep)
        libc = _libc()
        end_with(parent)
        try:
            _checked(libc.unshare(_CLONE_NEWNET), "unshare")
            for name, value in _TCP.items():
                Path("/proc/sys/net/ipv4", name).write_text(f"{value}\n")
            os.write(say, b"up")
        except OSError as error:
            os.write(say, str(error).encode())
        os.close(say)
        os.read(kept, 1)
        status = 0
    finally:
        os._exit(status)


def _in_network(network: str, argv: Sequence[str], lines: Sequence[str] = ()) -> None:
    """Runs a command in a namespace. Raises HostsRefusedError with what it said."""
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    done = run(
        ["nsenter", f"--net={network}", *argv],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
        env=os.environ | {"PATH": _PATH},
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise HostsRefusedError(f"{' '.join(argv)}: {said[0] if said else f'status {done.returncode}'}. The kernel needs veth, bridge and sch_tbf")  # fmt: skip
