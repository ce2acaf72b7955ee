"""Flight Recorder dumps: two gloo ranks of PyTorch 2.13 (JSON), the same as the pickle that PyTorch writes, NCCL's states, damage."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers.flight_recorder import READER, version_numbers

from .reading import DATA, columns, read_text

GLOO = [(DATA / f"flight-recorder-gloo-{rank}.json").read_bytes() for rank in (0, 1)]


def as_pickle(text: bytes, protocol: int = 2) -> bytes:
    """The pickle of a JSON dump: None for times of 0, integers in pg_status, a tuple for the group, frames."""
    dump = json.loads(text)
    del dump["nccl_comm_state"]
    dump["pg_status"] = {
        int(number): {name: int(seq) for name, seq in status.items()} for number, status in dump["pg_status"].items()
    }
    for entry in dump["entries"]:
        entry["process_group"] = tuple(entry["process_group"])
        entry["frames"] = [{"name": "step", "filename": "train.py", "line": 7}]
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[name] = entry[name] or None
    return pickle.dumps(dump, protocol)


def dump(*entries: dict[str, Any], **members: Any) -> bytes:
    usual = {
        "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4, 256]], "input_dtypes": ["Float"], "output_sizes": [[4, 256]], "output_dtypes": ["Float"], "state": "completed",
    }  # fmt: skip
    return json.dumps({"entries": [usual | entry for entry in entries], "version": "2.10"} | members).encode()


def test_entries_of_two_gloo_ranks():
    found = read_text(READER, GLOO[0], "fr_0.json")
    wanted = columns(found.collectives, "rank", "process_group", "group_desc", "seq", "op", "size_bytes", "dtype")
    assert wanted == [
        (0, "0", "default_pg", 1, "all_reduce", 1024 * 256 * 4, "float"),
        (0, "1", "tp", 1, "all_gather", 2 * 1024 * 256 * 4, "float"),
        (0, "1", "tp", 2, "all_reduce", 1024 * 256 * 4, "float"),
        (0, "0", "default_pg", 2, "all_reduce", 1024 * 256 * 4, "float"),
        (0, "0", "default_pg", 3, "all_to_all", 1024 * 256 * 4, "float"),
        (0, "0", "default_pg", 4, "broadcast", 1024 * 256 * 4, "float"),
        (0, "0", "default_pg", 5, "barrier", None, None),
    ]
    assert [row["retired"] for row in found.collectives] == [True] * 6 + [False]
    assert not found.losses


def test_a_time_of_zero_is_unknown():
    row = read_text(READER, GLOO[0]).collectives[0]
    assert "started_ns" not in row and "completed_ns" not in row
    assert (row["created_ns"], row["timeout_ns"]) == (1796023127039046446, 1_800_000 * 10**6)


def test_how_far_each_group_is():
    found = read_text(READER, GLOO[0], "fr_0.json")
    wanted = columns(
        found.collective_progress, "process_group", "group_desc", "last_enqueued", "last_started", "last_completed"
    )
    assert wanted == [("0", "default_pg", 6, None, 5), ("1", "tp", 2, None, 2)]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_the_pickle_says_what_the_json_says(protocol):
    def bare(found):
        return [{k: v for k, v in row.items() if k not in ("byte_offset", "line")} for row in found.collectives]

    from_json, from_pickle = read_text(READER, GLOO[1], "1"), read_text(READER, as_pickle(GLOO[1], protocol), "1")
    assert bare(from_pickle) == bare(from_json)
    assert columns(from_pickle.collective_progress, "process_group", "last_enqueued", "last_completed") == [
        ("0", 6, 6),
        ("1", 2, 2),
    ]
    assert not from_pickle.losses


def test_a_row_points_at_its_entry():
    for row in read_text(READER, GLOO[0]).collectives:
        entry, _ = json.JSONDecoder().raw_decode(GLOO[0].decode(), row["byte_offset"])
        assert entry["profiling_name"] == row["profiling_name"]
    data = as_pickle(GLOO[0])
    for row in read_text(READER, data).collectives:
        assert data[row["byte_offset"] : row["byte_offset"] + 1] == b"}"  # EMPTY_DICT


@pytest.mark.parametrize(("name", "rank"), [
    ("trace_3", 3), ("nccl_trace_rank_3", 3), ("fr_0.json", 0), ("comm_lib_trace_rank_12.pkl", 12), ("17", 17), ("host.2026", None), ("dump.json", None),
])  # fmt: skip
def test_the_rank_is_the_number_at_the_end_of_the_name(name, rank):
    assert read_text(READER, dump({}), name).collectives[0].get("rank") == rank


def test_a_send_of_the_default_group_knows_the_rank_better_than_the_name():
    rows = read_text(
        READER, dump({"profiling_name": "nccl:recv 3<-0", "is_p2p": True, "p2p_seq_id": 9}), "trace_1"
    ).collectives
    assert columns(rows, "rank", "peer", "op", "seq", "is_p2p") == [(3, 0, "recv", 9, True)]


def test_a_number_beyond_the_group_is_no_rank():
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    assert "rank" not in read_text(READER, dump({}, pg_config=config), "trace_2026").collectives[0]


def test_members_of_groups():
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    row = read_text(READER, dump({}, pg_config=config), "trace_2").collectives[0]
    assert (row["rank"], row["ranks"], row["members"]) == (2, 4, [0, 1, 2, 3])


@pytest.mark.parametrize(("name", "op"), [
    ("nccl:_all_gather_base", "all_gather"), ("nccl:_reduce_scatter_base", "reduce_scatter"), ("xccl:all_to_all", "all_to_all"), ("nccl:_broadcast_oop", "broadcast"),
    ("nccl:all_reduce_barrier", "barrier"), ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"), ("nccl:coalesced", None),
])  # fmt: skip
def test_operations_have_our_names(name, op):
    row = read_text(READER, dump({"profiling_name": name})).collectives[0]
    assert (row.get("op"), row["profiling_name"]) == (op, name)


def test_versions_are_integers():
    assert version_numbers("2.10") > version_numbers("2.4") > version_numbers("2.0")
    assert version_numbers("two") is None
    assert read_text(READER, dump({}, version="3.0")).loss_counts == {"unknown-version": 1}
    assert not read_text(READER, dump({}, version="2.4")).losses


def test_numbers_as_strings_and_older_entries():
    """A group named by its number only, no p2p fields."""
    entry = {
        "collective_seq_id": "12",
        "process_group": None,
        "pg_id": "3",
        "time_created_ns": "5",
        "duration_ms": "1.5",
    }
    row = read_text(READER, dump(entry)).collectives[0]
    assert (row["seq"], row["process_group"], row["created_ns"], row["duration_ns"]) == (12, "3", 5, 1_500_000)


def test_a_cut_dump_gives_the_entries_before_the_cut():
    """Its first 1500 bytes hold three whole ones."""
    cut = read_text(READER, GLOO[0][:1500])
    assert len(cut.collectives) == 3
    assert cut.loss_counts == {"truncated-file": 1}
    cut = read_text(READER, as_pickle(GLOO[0])[:-300])
    assert len(cut.collectives) >= 1
    assert cut.loss_counts["truncated-file"] == 1


def test_a_pickle_that_would_run_something_is_refused():
    found = read_text(READER, b"\x80\x02}X\x0e\x00\x00\x00profiling_namecos\nsystem\n(X\x04\x00\x00\x00truetRs.")
    assert found.loss_counts == {"refused-opcode": 1}
    assert "opcode GLOBAL at byte 22" in found.losses[0].detail
    assert not found.tables


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (GLOO[0], True),
        (as_pickle(GLOO[0]), True),
        (as_pickle(GLOO[0], 5), True),
        (b'{"traceEvents": [], "distributedInfo": {"pg_config": [{"pg_name": "0"}]}}', False),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', False),
        (b'{"entries": [], "title": "a list of something else"}', False),
        (pickle.dumps({"weights": [1.0]}), False),
        (b"\x80", False),
        (b"", False),
    ],
)
def test_dumps_are_told_apart_by_their_content(head, known):
    assert READER.sniff(head[: 64 * 1024]) is known


@pytest.mark.parametrize(
    "field",
    [
        "process_group",
        "input_sizes",
        "input_dtypes",
        "state",
        "time_created_ns",
        "duration_ms",
        "retired",
        "profiling_name",
        "collective_seq_id",
    ],
)
@pytest.mark.parametrize(
    "value", [None, [], [[]], {}, "", "x" * 5000, -1, 2**70, 1e300, True, [[-1]], [["a"]], [None], "\ud800"]
)
def test_any_value_in_any_field_is_read_or_counted(field, value):
    found = read_text(READER, dump({}, {field: value}))
    assert len(found.collectives) + found.loss_counts.get("damaged-row", 0) == 2


@given(st.binary(max_size=400))
def test_random_bytes_never_raise(data):
    read_text(READER, data)
    read_text(READER, b'{"entries":[' + data)
    read_text(READER, b"\x80\x02" + data)


@given(data=st.data(), pickled=st.booleans())
def test_a_dump_with_changed_bytes_never_raises(data, pickled):
    whole = bytearray(as_pickle(GLOO[0]) if pickled else GLOO[0])
    for _ in range(data.draw(st.integers(1, 12))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    read_text(READER, bytes(whole))
