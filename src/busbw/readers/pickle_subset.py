"""Plain data out of a pickle, without running it: dict, list, tuple, str, bytes, int, float, bool and None.

A pickle is a program. This loader knows only the opcodes that push plain data (protocols 2 to 5, memo, frames) and
refuses all others by name and offset before anything happens: no class is looked up, nothing is called. Source:
CPython Lib/pickletools.py. Size, stack, nesting and integers are bounded; what was whole before a cut is kept.
"""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LARGEST_PICKLE_BYTES", "Plain", "plain_data"]

LARGEST_PICKLE_BYTES = 256 * 2**20
"""A file is read as a whole; a Flight Recorder buffer of 20 000 entries with stacks is some 50 MB."""
MAX_OBJECTS = 20_000_000
"""Values pushed. A dump has 30 to 200 an entry."""
MAX_OPEN_MARKS = 1_000
"""Containers that are open at once: how deep one may lie in another."""
MAX_INTEGER_BYTES = 16
"""Of a LONG; times in nanoseconds have 8."""

_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
_SIZED = {  # opcode: (bytes of the length, kind)
    0x58: (4, "str"), 0x8C: (1, "str"), 0x8D: (8, "str"),  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
    0x42: (4, "bytes"), 0x43: (1, "bytes"), 0x8E: (8, "bytes"),  # BINBYTES, SHORT_BINBYTES, BINBYTES8
    0x54: (4, "str"), 0x55: (1, "str"),  # BINSTRING, SHORT_BINSTRING: text of Python 2
}  # fmt: skip
_INTEGERS = {0x4A: 4, 0x4B: 1, 0x4D: 2}  # BININT (signed), BININT1, BININT2
_LONGS = {0x8A: 1, 0x8B: 4}  # LONG1, LONG4: bytes of the length
_CONSTANTS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_FIXED_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUTS = {0x71: 1, 0x72: 4}  # BINPUT, LONG_BINPUT
_GETS = {0x68: 1, 0x6A: 4}  # BINGET, LONG_BINGET


@dataclass(slots=True)
class Plain:
    """What a pickle holds."""

    value: Any = None
    """The whole value; None if the pickle is damaged or refused."""
    dicts: list[tuple[int, dict[Any, Any]]] = field(default_factory=list)
    """Every dict and the offset where it begins, in order; also those before the damage."""
    problem: str | None = None
    """refused-opcode, truncated-file, damaged-file or too-large; None: the value is whole."""
    detail: str = ""
    """What stands where."""


class _StopError(Exception):
    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(detail)
        self.problem, self.detail = problem, detail


def plain_data(data: bytes) -> Plain:
    """The plain data in a pickle. Never raises for what the bytes hold.

    >>> import pickle
    >>> plain_data(pickle.dumps({"rank": 3, "sizes": [(4, 5)]}, protocol=4)).value
    {'rank': 3, 'sizes': [(4, 5)]}
    >>> plain_data(pickle.dumps(print, protocol=2)).problem
    'refused-opcode'
    """
    out = Plain()
    if len(data) > LARGEST_PICKLE_BYTES:
        out.problem, out.detail = "too-large", f"larger than {LARGEST_PICKLE_BYTES // 2**20} MiB and not read"
        return out
    try:
        out.value = _Machine(data, out.dicts).run()
    except _StopError as stop:
        out.problem, out.detail = stop.problem, stop.detail
    return out


class _Machine:
    def __init__(self, data: bytes, dicts: list[tuple[int, dict[Any, Any]]]) -> None:
        self.data, self.at, self.op_at = data, 0, 0
        self.dicts = dicts
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.pushed = 0

    def run(self) -> Any:
        """The value at STOP. What makes up most of a dump (strings remembered and fetched, small integers) is done here, for speed."""
        data, stack, memo = self.data, self.stack, self.memo
        safe = len(data) - 5  # up to here an opcode with four bytes behind it is not cut
        while True:
            at = self.op_at = self.at
            if self.pushed > MAX_OBJECTS:
                raise _StopError("too-large", f"more than {MAX_OBJECTS} values; not read further")
            if at < safe:
                code = data[at]
                if code == 0x68 and data[at + 1] in memo:  # BINGET
                    stack.append(memo[data[at + 1]])
                    self.at = at + 2
                    self.pushed += 1
                    continue
                if code == 0x6A and (number := int.from_bytes(data[at + 1 : at + 5], "little")) in memo:  # LONG_BINGET
                    stack.append(memo[number])
                    self.at = at + 5
                    self.pushed += 1
                    continue
                if code == 0x4B:  # BININT1
                    stack.append(data[at + 1])
                    self.at = at + 2
                    self.pushed += 1
                    continue
                if code in (0x71, 0x72) and len(stack) > (self.marks[-1] if self.marks else 0):  # BINPUT, LONG_BINPUT
                    width = 1 if code == 0x71 else 4
                    memo[int.from_bytes(data[at + 1 : at + 1 + width], "little")] = stack[-1]
                    self.at = at + 1 + width
                    continue
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                if len(self.stack) != 1 or self.marks:
                    raise self.damaged("the end comes with values left over or none")
                return self.stack[0]
            self.step(code)

    def step(self, code: int) -> None:
        """One opcode of those that make plain data."""
        if code in _SIZED:
            width, kind = _SIZED[code]
            raw = self.take(int.from_bytes(self.take(width), "little"))
            self.push(raw.decode("utf-8", "replace") if kind == "str" else raw)
        elif code in _PUTS:
            self.memo[int.from_bytes(self.take(_PUTS[code]), "little")] = self.top()
        elif code == 0x94:  # MEMOIZE
            self.memo[len(self.memo)] = self.top()
        elif code in _GETS:
            number = int.from_bytes(self.take(_GETS[code]), "little")
            if number not in self.memo:
                raise self.damaged(f"nothing was remembered as {number}")
            self.push(self.memo[number])
        elif code in _INTEGERS:
            self.push(int.from_bytes(self.take(_INTEGERS[code]), "little", signed=code == 0x4A))
        elif code in _CONSTANTS:
            self.push(_CONSTANTS[code])
        elif code in _LONGS:
            width = int.from_bytes(self.take(_LONGS[code]), "little")
            if width > MAX_INTEGER_BYTES:
                raise self.damaged(f"an integer of {width} bytes")
            self.push(int.from_bytes(self.take(width), "little", signed=True))
        elif code == 0x47:  # BINFLOAT
            self.push(struct.unpack(">d", self.take(8))[0])
        elif code == 0x80:  # PROTO
            version = self.take(1)[0]
            if not 2 <= version <= 5:
                raise self.damaged(f"protocol {version}; 2 to 5 are read")
        elif code == 0x95:  # FRAME: how much follows, which the opcodes say themselves
            self.take(8)
        elif code == 0x28:  # MARK
            if len(self.marks) >= MAX_OPEN_MARKS:
                raise _StopError("too-large", f"more than {MAX_OPEN_MARKS} containers in each other; not read further")
            self.marks.append(len(self.stack))
        else:
            self.container(code)

    def container(self, code: int) -> None:
        """Opcodes that begin or fill a dict, list or tuple."""
        if code == 0x7D:  # EMPTY_DICT
            self.push_dict({})
        elif code == 0x5D:  # EMPTY_LIST
            self.push([])
        elif code == 0x29:  # EMPTY_TUPLE
            self.push(())
        elif code in _FIXED_TUPLES:
            items = [self.pop() for _ in range(_FIXED_TUPLES[code])]
            self.push(tuple(reversed(items)))
        elif code == 0x74:  # TUPLE
            self.push(tuple(self.pop_marked()))
        elif code == 0x6C:  # LIST
            self.push(self.pop_marked())
        elif code == 0x64:  # DICT
            items = self.pop_marked()
            made: dict[Any, Any] = {}
            self.set_items(made, items)
            self.push_dict(made)
        elif code in (0x61, 0x65):  # APPEND, APPENDS
            items = [self.pop()] if code == 0x61 else self.pop_marked()
            if not isinstance(target := self.top(), list):
                raise self.damaged("values are put into what is no list")
            target.extend(items)
        elif code in (0x73, 0x75):  # SETITEM, SETITEMS
            items = [self.pop(), self.pop()][::-1] if code == 0x73 else self.pop_marked()
            if not isinstance(target := self.top(), dict):
                raise self.damaged("keys are put into what is no dict")
            self.set_items(target, items)
        elif code in _NAMES:
            detail = f"opcode {_NAMES[code]} at byte {self.op_at} is not of plain data and was not run"
            raise _StopError("refused-opcode", f"{detail}; only take dumps from jobs you trust")
        else:
            raise self.damaged(f"byte {code:#04x} is no opcode")

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self.data) - self.at:
            raise _StopError("truncated-file", f"the file ends inside a value that begins at byte {self.op_at}")
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken

    def damaged(self, what: str) -> _StopError:
        """The exception that says what is wrong at this opcode."""
        return _StopError("damaged-file", f"at byte {self.op_at}: {what}")

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self.stack.append(value)
        self.pushed += 1

    def push_dict(self, made: dict[Any, Any]) -> None:
        """Puts a dict on the stack and notes where it begins."""
        self.dicts.append((self.op_at, made))
        self.push(made)

    def top(self) -> Any:
        """The value on top; it must lie above the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self.damaged("a value is wanted and there is none")
        return self.stack[-1]

    def pop(self) -> Any:
        """Takes the value on top."""
        self.top()
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        """Takes all above the last mark, and the mark."""
        if not self.marks:
            raise self.damaged("a container ends that never began")
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def set_items(self, target: dict[Any, Any], items: list[Any]) -> None:
        """Keys are scalars: a tuple of shared tuples would take for ever to hash."""
        if len(items) % 2:
            raise self.damaged("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not (key is None or isinstance(key, str | bytes | int | float)):
                raise self.damaged("a key that is no string or number")
            target[key] = value
