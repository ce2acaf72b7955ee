"""Plain data comes out of a pickle as pickle.loads gives it; whatever would run code is refused by name and offset."""

from __future__ import annotations

import collections
import datetime
import functools
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers import pickle_subset
from busbw.readers.pickle_subset import plain_data

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)
PLAIN_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
}  # fmt: skip


@given(value=VALUES, protocol=st.integers(2, 5))
def test_plain_data_comes_out_as_it_went_in(value, protocol):
    if protocol == 2 and any(op.name == "GLOBAL" for op, _, _ in pickletools.genops(pickle.dumps(value, 2))):
        return  # protocol 2 has no bytes: Python writes them as a call of codecs.encode
    found = plain_data(pickle.dumps(value, protocol))
    assert (found.problem, found.value) == (None, value)


class _Runs:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("value", [
    _Runs(), print, len, datetime.date(2026, 1, 2), collections.OrderedDict(a=1), {1, 2}, frozenset({3}), 1j, functools.partial(print, "x"),
    ValueError("x"), bytearray(b"x"),
], ids=lambda value: getattr(value, "__name__", type(value).__name__))  # fmt: skip
@pytest.mark.parametrize("protocol", range(2, 6))
def test_whatever_needs_a_class_or_a_call_is_refused(value, protocol, capsys):
    found = plain_data(pickle.dumps({"entries": [value]}, protocol))
    assert found.problem == "refused-opcode"
    assert found.value is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "op", [op for op in pickletools.opcodes if op.name not in PLAIN_OPCODES], ids=lambda op: op.name
)
def test_every_opcode_that_is_not_of_plain_data_is_refused_by_name_and_offset(op):
    """On a stack with something to call and arguments for it."""
    found = plain_data(b"\x80\x02" + b"X\x02\x00\x00\x00os)" + op.code.encode("latin-1") + b"cos\nsystem\n.")
    assert found.problem == "refused-opcode"
    assert f"opcode {op.name} at byte 10" in found.detail


@pytest.mark.parametrize(
    "attack",
    [
        b"\x80\x02cposix\nsystem\n(X\x04\x00\x00\x00truetR.",  # GLOBAL, REDUCE
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"\x80\x02(iposix\nsystem\n.",  # INST
        b"\x80\x02(cposix\nsystem\nX\x04\x00\x00\x00trueo.",  # OBJ
        b"\x80\x02}X\x01\x00\x00\x00a\x82\x01.",  # EXT1
        b"\x80\x02X\x01\x00\x00\x00aQ.",  # BINPERSID
        b"\x80\x02}}b.",  # BUILD
        b"\x80\x05\x97.",  # NEXT_BUFFER
    ],
)
def test_pickles_that_would_run_something_are_refused(attack):
    assert plain_data(attack).problem == "refused-opcode"


def test_a_cut_pickle_gives_the_dicts_that_stand_before_the_cut():
    data = pickle.dumps({"entries": [{"profiling_name": "nccl:all_reduce", "n": i} for i in range(3)]}, 2)
    found = plain_data(data[:-12])
    assert found.problem == "truncated-file"
    assert [made for _, made in found.dicts if made.get("n") is not None][:2] == [
        {"profiling_name": "nccl:all_reduce", "n": 0},
        {"profiling_name": "nccl:all_reduce", "n": 1},
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated-file"),
        (b"\x80\x02", "truncated-file"),
        (b"\x80\x02.", "damaged-file"),
        (b"\x80\x02NN.", "damaged-file"),
        (b"\x80\x02(.", "damaged-file"),
        (b"\x80\x02a.", "damaged-file"),
        (b"\x80\x02h\x07.", "damaged-file"),
        (b"\x80\x02t.", "damaged-file"),
        (b"\x80\x02NNs.", "damaged-file"),
        (b"\x80\x02}]Ns.", "damaged-file"),  # a list as key
        (b"\x80\x02}(Nu.", "damaged-file"),
        (b"\x80\x00.", "damaged-file"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "truncated-file"),
        (b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".", "damaged-file"),
        (b"\x80\x02" + b"(" * 2000 + b".", "too-large"),
        (b"\xff\xff", "damaged-file"),
    ],
)
def test_damage_is_told_apart(data, problem):
    assert plain_data(data).problem == problem


def test_size_and_number_of_values_are_bounded(monkeypatch):
    monkeypatch.setattr(pickle_subset, "MAX_OBJECTS", 100)
    assert plain_data(b"\x80\x02" + b"N" * 200 + b".").problem == "too-large"
    monkeypatch.setattr(pickle_subset, "LARGEST_PICKLE_BYTES", 1000)
    assert plain_data(b"\x80\x02" + b"N" * 2000).problem == "too-large"


def test_a_tower_of_shared_tuples_costs_no_time():
    """Each is a pair of the one before: 2**1000 leaves if anybody walked them."""
    tower = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 1000 + b"."
    assert plain_data(tower).problem == "damaged-file"  # values are left over
    as_key = b"\x80\x02})q\x00" + b"h\x00h\x00\x86q\x00" * 40 + b"Ns."
    assert plain_data(as_key).problem == "damaged-file"


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    plain_data(data)
    plain_data(b"\x80\x04" + data)


@given(st.data())
def test_a_pickle_with_changed_bytes_never_raises(data):
    whole = bytearray(pickle.dumps({"version": "2.10", "entries": [{"a": (1, [2.5, None]), "b": b"x"}] * 3}, 4))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    plain_data(bytes(whole))
