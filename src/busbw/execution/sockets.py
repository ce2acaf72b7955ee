"""FIFOs between processes over TCP, a connection each: messages arrive whole and in order, and a writer waits when its slots are full.

A message is a head (bytes that follow, pieces whose lengths are told), the lengths, and the data. Nothing is encrypted: for networks whose hosts
trust each other, as MPI's and NCCL's own sockets are. Who connects must know the run's key, so that strangers and other runs are not taken for peers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.execution.communicator import GaveUpError

__all__ = ["KEY_BYTES", "Address", "Incoming", "Message", "Outgoing", "Way", "connect_all", "listen"]

Bytes = npt.NDArray[np.uint8]
Address = tuple[str, int]
"""Host and port."""
Way = tuple[int, int]
"""Peer and channel of one end of a FIFO."""

KEY_BYTES = 16
_HELLO = struct.Struct(f"<4s{KEY_BYTES}sII")
"""Magic, key, the writer's rank, channel."""
_MAGIC = b"bbs1"
_HEAD = struct.Struct("<QI")
"""Bytes of data, lengths told."""
_LENGTH = np.dtype("<u8")
_HELLO_S = 2.0
"""For whoever connects to say who it is. A guess: peers say it at once."""
_POLL_S = 0.01
_UNBOUNDED = 1 << 62
_AT_ONCE = 1 << 18
"""Bytes asked of the kernel in one call. A guess."""


@dataclass(frozen=True, slots=True)
class Message:
    """Data, and the lengths of its pieces where they are not those that its row says."""

    data: Bytes
    lengths: tuple[int, ...] | None = None


def listen(address: Address, buffer_bytes: int | None = None) -> socket.socket:
    """A socket that peers connect to; port 0: any free one. Raises OSError where the address is none of this host, or taken.

    buffer_bytes: of each connection, at most; None: as the kernel sees fit. It must be known before a peer connects, as window scaling is.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if buffer_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.bind(address)
        made.listen(4096)  # peers connect before they are accepted
    except BaseException:
        made.close()
        raise
    return made


class Outgoing:
    """The writing end: at most `slots` messages wait here to leave."""

    def __init__(self, way: Way, connection: socket.socket, slots: int) -> None:
        self.peer, self.channel = way
        self.connection, self.slots = connection, slots
        self.sent = 0
        """Messages taken, of all runs."""
        self._waiting: deque[list[memoryview]] = deque()

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return len(self._waiting) >= self.slots

    @property
    def idle(self) -> bool:
        """Whether all has been given to the kernel."""
        return not self._waiting

    def send(self, message: Message) -> None:
        """Takes a message, which stays as it is."""
        lengths = np.array(message.lengths or (), _LENGTH)
        parts = [memoryview(_HEAD.pack(len(message.data), len(lengths)) + lengths.tobytes())]
        if len(message.data):
            parts.append(message.data.data)
        self._waiting.append(parts)
        self.sent += 1
        self.pump()

    def pump(self) -> bool:
        """Gives the kernel what it takes; whether it took anything."""
        took = False
        while self._waiting:
            parts = self._waiting[0]
            try:
                count = self.connection.sendmsg(parts)
            except BlockingIOError:
                return took
            except OSError as error:  # reset, timed out, no way to the host
                raise GaveUpError(f"rank {self.peer} is gone: {error.strerror}. See its log.") from None
            took = True
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][count:]
            else:
                self._waiting.popleft()
        return took


@dataclass(slots=True)
class _Arriving:
    """A message of which a part is there."""

    head: bytearray = field(default_factory=bytearray)
    lengths: int = -1
    data: Bytes | None = None
    filled: int = 0


class Incoming:
    """The reading end: up to `slots` messages are taken from the kernel ahead of their turn."""

    def __init__(self, way: Way, connection: socket.socket, slots: int) -> None:
        self.peer, self.channel = way
        self.connection, self.slots = connection, slots
        self.most_bytes = _UNBOUNDED
        """That a message may have: a peer that says more is not believed."""
        self.taken = 0
        """Messages handed out, of all runs."""
        self._there: deque[Message] = deque()
        self._now = _Arriving()
        self._closed = False
        """By the peer, between two messages: nothing is wrong unless another is due."""

    @property
    def full(self) -> bool:
        """Whether nothing more is taken."""
        return self._closed or len(self._there) >= self.slots

    def take(self) -> Message | None:
        """The next message, if it is there."""
        if not self._there:
            self.pump()
        if not self._there:
            self._refuse_end(0 if self._closed else 1)
            return None
        self.taken += 1
        return self._there.popleft()

    def pump(self) -> bool:
        """Takes what has arrived; whether anything had."""
        took = False
        while not self.full:
            try:
                if not self._step():
                    return took
            except BlockingIOError:
                return took
            except GaveUpError:
                raise
            except OSError as error:
                raise GaveUpError(f"rank {self.peer} is gone: {error.strerror}. See its log.") from None
            took = True
        return took

    def _step(self) -> bool:
        """One call of the kernel; whether it gave something."""
        now = self._now
        if now.data is None:
            due = _HEAD.size if now.lengths < 0 else _HEAD.size + now.lengths * _LENGTH.itemsize
            got = self.connection.recv(due - len(now.head))
            if not got and not now.head:
                self._closed = True
                return True
            self._refuse_end(len(got))
            now.head += got
            if len(now.head) < due:
                return True
            size, lengths = _HEAD.unpack_from(now.head)
            if max(size, lengths) > self.most_bytes:
                raise GaveUpError(
                    f"rank {self.peer} says that {size} bytes in {lengths} pieces follow, and no message has more than {self.most_bytes}: "
                    "all ranks must be called with the same plan, sizes and types"
                )
            if now.lengths < 0 and lengths:
                now.lengths = lengths
                return True
            now.data = np.empty(size, np.uint8)
        if now.filled < len(now.data):
            room = now.data.data[now.filled : now.filled + _AT_ONCE]
            try:
                count = self.connection.recv_into(room)
            except BlockingIOError:
                return False
            self._refuse_end(count)
            now.filled += count
        if now.filled == len(now.data):
            told = np.frombuffer(now.head, _LENGTH, offset=_HEAD.size)
            self._there.append(Message(now.data, tuple(told.tolist()) if len(told) else None))
            self._now = _Arriving()
        return True

    def _refuse_end(self, count: int) -> None:
        if not count:
            raise GaveUpError(f"rank {self.peer} closed its connection before it had sent all. See its log.")


def connect_all(
    rank: int,
    addresses: Sequence[Address],
    out: Mapping[Way, int],
    into: Mapping[Way, int],
    listener: socket.socket,
    *,
    key: bytes,
    wait_s: float,
    buffer_bytes: int | None = None,
) -> tuple[dict[Way, Outgoing], dict[Way, Incoming]]:
    """The ends of a rank's FIFOs, connected; out and into: slots of each. All ranks call. Closes what it opened if it fails.

    Raises GaveUpError for a peer that isn't there within wait_s.
    """
    until = time.monotonic() + wait_s
    made: list[socket.socket] = []
    try:
        outgoing = {}
        for way, slots in out.items():
            connection = _connected(rank, way[0], addresses[way[0]], until, wait_s, buffer_bytes)
            made.append(connection)
            connection.sendall(_HELLO.pack(_MAGIC, key, rank, way[1]))
            outgoing[way] = Outgoing(way, _ready(connection), slots)
        incoming: dict[Way, Incoming] = {}
        while len(incoming) < len(into):
            missing = next(way for way in into if way not in incoming)
            found = _accepted(listener, until, key)
            if found is None:
                raise GaveUpError(
                    f"rank {rank} waited {wait_s:g} s for rank {missing[0]} to connect. See that rank's log; firewalls between hosts must let it through."
                )
            connection, way = found
            made.append(connection)
            if way in into and way not in incoming:
                incoming[way] = Incoming(way, _ready(connection), into[way])
            else:
                connection.close()
    except BaseException:
        for one in made:
            one.close()
        raise
    return outgoing, incoming


def _connected(  # noqa: PLR0917 - who, whom, where, how long
    rank: int, peer: int, address: Address, until: float, wait_s: float, buffer_bytes: int | None
) -> socket.socket:
    found: list[Any] = []
    error: OSError = TimeoutError("timed out")
    while (left_s := until - time.monotonic()) > 0:
        try:
            found = found or socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            family, kind, protocol, _, to = found[0]
            made = socket.socket(family, kind, protocol)
        except OSError as why:
            raise GaveUpError(f"rank {rank}: rank {peer} is said to be at {address[0]}: {why}") from None
        try:
            if buffer_bytes is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            made.settimeout(left_s)
            made.connect(to)
            return made
        except OSError as why:  # it may not listen yet
            made.close()
            error = why
            time.sleep(_POLL_S)
        except BaseException:
            made.close()
            raise
    raise GaveUpError(
        f"rank {rank} could not reach rank {peer} at {address[0]} port {address[1]} within {wait_s:g} s: {error.strerror or error}. See that rank's log."
    )


def _accepted(listener: socket.socket, until: float, key: bytes) -> tuple[socket.socket, Way] | None:
    """A peer of this run that has connected, and the way that it writes; None if none does in time."""
    while (left_s := until - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return None
        connection.settimeout(min(left_s, _HELLO_S))
        said = b""
        with contextlib.suppress(OSError):
            while len(said) < _HELLO.size and (more := connection.recv(_HELLO.size - len(said))):
                said += more
        if len(said) == _HELLO.size:
            magic, told, peer, channel = _HELLO.unpack(said)
            if magic == _MAGIC and told == key:
                return connection, (peer, channel)
        connection.close()
    return None


def _ready(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
