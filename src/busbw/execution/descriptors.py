"""A message and a file descriptor from every rank to every other, for processes of one machine that have agreed on a name.

Over UNIX sockets in the abstract name space, which leave nothing behind however a process ends. Linux only.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass

from busbw.execution.shared_memory import SharedMemoryError

__all__ = ["Message", "close_all", "exchange"]

_HEAD = struct.Struct("<4sIII")
"""Magic, the sender's rank, bytes of the message, descriptors beside it."""
_MAGIC = b"bbw1"
_MOST_BYTES = 1 << 16
"""Of a message: less than what a socket takes before its reader comes (Linux: net.core.wmem_default, 208 KiB)."""
_POLL_S = 0.002
_CREDENTIALS = struct.Struct("3i")  # process, user, group: unix(7), SO_PEERCRED


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank sent. descriptor: the receiver's to close; None if it sent none."""

    payload: bytes
    descriptor: int | None = None


def exchange(name: str, rank: int, ranks: int, mine: Message, wait_s: float) -> list[Message]:
    """The messages of all ranks in their order; this rank's is `mine`. All ranks call it with the same name, once.

    A descriptor arrives as a new one for the same file. Raises SharedMemoryError if a rank does not come within wait_s, naming it; then, and
    for any other error, the descriptors that had come are closed. Strangers (another user's processes) are not listened to.
    """
    if not 0 <= rank < ranks:
        raise SharedMemoryError(f"rank {rank} of {ranks}: ranks are counted from 0")
    if len(mine.payload) > _MOST_BYTES:
        raise ValueError(f"a message of {len(mine.payload)} bytes; at most {_MOST_BYTES}")
    until = time.monotonic() + wait_s
    found: dict[int, Message] = {rank: mine}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(_address(name, rank))
        except OSError as error:
            raise SharedMemoryError(
                f"rank {rank} of {name} can't be reached under its name ({error.strerror}): if another job has this name, choose another."
            ) from None
        listener.listen(ranks)
        try:
            for step in range(1, ranks):
                _send(name, (rank + step) % ranks, rank, mine, until)
            while len(found) < ranks:
                _receive(listener, found, name, ranks, until)
        except BaseException:
            close_all(message for sender, message in found.items() if sender != rank)
            raise
    return [found[sender] for sender in range(ranks)]


def close_all(messages: Iterable[Message]) -> None:
    """Closes the descriptors of messages."""
    for message in messages:
        if message.descriptor is not None:
            os.close(message.descriptor)


def _address(name: str, rank: int) -> str:
    return f"\0busbw-{name}-{rank}"


def _is_ours(peer: socket.socket) -> bool:
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def _late(name: str, rank: int) -> SharedMemoryError:
    return SharedMemoryError(
        f"rank {rank} of {name} did not come. See its log; all ranks must run on this machine, in one network name space, as one user."
    )


def _send(name: str, peer: int, rank: int, message: Message, until: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        while True:
            try:
                to.connect(_address(name, peer))
                break
            except (ConnectionRefusedError, BlockingIOError):
                if time.monotonic() > until:
                    raise _late(name, peer) from None
                time.sleep(_POLL_S)
        if not _is_ours(to):
            raise SharedMemoryError(f"rank {peer} of {name} is a process of another user: choose another name.")
        beside = [] if message.descriptor is None else [message.descriptor]
        text = _HEAD.pack(_MAGIC, rank, len(message.payload), len(beside)) + message.payload
        sent = socket.send_fds(to, [text], beside)
        if sent < len(text):
            to.sendall(text[sent:])


def _receive(listener: socket.socket, found: dict[int, Message], name: str, ranks: int, until: float) -> None:
    """Takes one connection, and its message if it is one of ours."""
    left_s = until - time.monotonic()
    if left_s <= 0 or not select.select([listener], [], [], left_s)[0]:
        raise _late(name, next(rank for rank in range(ranks) if rank not in found))
    connection, _ = listener.accept()
    with connection:
        if not _is_ours(connection):
            return
        connection.settimeout(max(until - time.monotonic(), _POLL_S))
        data, descriptors = b"", []
        try:
            while len(data) < _HEAD.size or len(data) < _HEAD.size + min(_HEAD.unpack_from(data)[2], _MOST_BYTES):
                part, more, _, _ = socket.recv_fds(connection, _HEAD.size + _MOST_BYTES, 4)
                descriptors += more
                if not part:
                    break
                data += part
        except TimeoutError:
            data = b""
        magic, sender, size, beside = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0, 0, 0)
        whole = magic == _MAGIC and len(data) == _HEAD.size + size and len(descriptors) == beside <= 1
        if not whole or sender >= ranks or sender in found:
            close_all(Message(b"", one) for one in descriptors)
            return
        found[sender] = Message(data[_HEAD.size :], descriptors[0] if descriptors else None)
