"""Messages in protobuf's wire format, field by field: all that a reader of a fixed schema needs.

Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes. Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["DamagedError", "Value", "fields", "packed_varints", "signed", "split"]

Value = int | bytes
_LONGEST_VARINT = 10


class DamagedError(Exception):
    """Bytes that are no message; offset is where."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise DamagedError("ends inside a number", at)
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise DamagedError("a number of more than ten bytes", at)


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: integers of varints, bytes of the rest. Raises DamagedError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Value
        if wire == 0:
            value, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                length, at = _varint(data, at)
            if length is None or number == 0:
                raise DamagedError(f"field {number} of wire type {wire}", at)
            if length > len(data) - at:
                raise DamagedError("ends inside a field", at)
            value, at = data[at : at + length], at + length
        yield number, value


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of messages that stand one after another, each behind its length. Raises DamagedError where one is cut."""
    at = 0
    while at < len(data):
        length, begin = _varint(data, at)
        if length > len(data) - begin:
            raise DamagedError("ends inside a message", at)
        yield at, data[begin : begin + length]
        at = begin + length


def packed_varints(value: Value) -> Iterator[int]:
    """The numbers of a repeated field, which writers may pack or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def signed(value: Value) -> int | None:
    """A number of any integer type of four or eight bytes; None for what is none."""
    if isinstance(value, int):
        return value - (1 << 64) if value >= 1 << 63 else value
    if len(value) in (4, 8):
        number: int = struct.unpack("<i" if len(value) == 4 else "<q", value)[0]
        return number
    return None
