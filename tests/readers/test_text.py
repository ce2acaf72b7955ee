"""What a log becomes: rows of tables, events, plain lines, and a count of the rest. Lines are NCCL's wording with invented values."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.readers.reading import columns, read_text

from busbw.errors import Loss
from busbw.observations import SCHEMAS, Artefact, Rows
from busbw.readers import line_readers, reading
from busbw.readers.base import Item, PlainLine, TableReader, Template
from busbw.readers.nccl_log import READER
from busbw.readers.text import TextScan, scan_text

HEAD = "host0:42:43 [1] NCCL INFO "
WHERE = {"line": 1, "byte_offset": 0, "host": "host0", "pid": 42, "device": 1}


def row_of(table: str, message: str) -> dict[str, object]:
    """The only row of a table that one line of NCCL gives, which is no event."""
    found = read_text(READER, HEAD + message + "\n")
    assert found.events == []
    (row,) = found.tables[table]
    return dict(row)


@pytest.mark.parametrize(
    ("message", "row"),
    [
        (
            "Channel 03/0 : 7[3] -> 8[0] [send] via NET/IB/2/GDRDMA/Shared",  # src/transport/net.cc, 2.22
            {"direction": "send", "transport": "NET", "via": "NET/IB/2/GDRDMA/Shared"},
        ),
        (
            "Channel 03 : 7[b1000] -> 8[c1000] via P2P/IPC",  # src/transport/p2p.cc, 2.8
            {"transport": "P2P", "via": "P2P/IPC"},
        ),
        (
            "Ring 03 : 7[3] -> 8[0] via direct shared memory",  # src/transport/shm.cu, 2.3
            {"transport": "SHM", "via": "direct shared memory"},
        ),
    ],
)
def test_a_connection_is_a_row_of_links(message: str, row: dict[str, object]) -> None:
    assert row_of("links", message) == WHERE | {"channel": 3, "src_rank": 7, "dst_rank": 8} | row


CALL = "AllReduce: opCount 1f sendbuff 0x7f0000 recvbuff 0x7f8000 count 1024 datatype 9 op 0 root 0 comm 0x55d0a0b0c0d0"


@pytest.mark.parametrize(
    ("message", "ranks"),
    [(CALL + " [nranks=16] stream 0x55d0a0", {"ranks": 16}), (CALL, {})],  # src/enqueue.cc
)
def test_a_call_is_a_row_of_calls(message: str, ranks: dict[str, int]) -> None:
    """opCount is hexadecimal; datatype 9 is bfloat16 and op 0 sum (src/nccl.h.in)."""
    assert row_of("calls", message) == WHERE | ranks | {
        "collective": "all_reduce",
        "comm": "0x55d0a0b0c0d0",
        "op_count": 0x1F,
        "count": 1024,
        "dtype": "bfloat16",
        "redop": "sum",
        "root": 0,
    }


def test_a_datatype_without_a_name_stays_a_number() -> None:
    """Numbers past the names known here come from a later NCCL."""
    text = "".join(
        HEAD + CALL.replace("datatype 9 op 0", f"datatype {t} op {op}") + "\n" for t, op in [(7, 4), (99, 77)]
    )
    assert columns(read_text(READER, text).calls, "dtype", "redop") == [("float32", "avg"), ("99", "77")]


@pytest.mark.parametrize(
    ("message", "row"),
    [
        (
            "AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",  # src/enqueue.cc, 2.24
            {
                "collective": "all_reduce",
                "algorithm": "RING",
                "protocol": "LL128",
                "channel_low": 0,
                "channel_high": 15,
            },
        ),
        (
            "AllGather: 4096 Bytes -> Algo 1 proto 2 time 12.5",  # src/enqueue.cc, 2.23
            {"collective": "all_gather", "algorithm": "RING", "protocol": "SIMPLE", "time_ns": 12_500},
        ),
        ("4096 Bytes -> Algo 0 proto 0 time 2.000000", {"algorithm": "TREE", "protocol": "LL", "time_ns": 2000}),
        (
            "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 16",  # src/enqueue.cc, 2.27
            {"collective": "all_reduce", "algorithm": "AllReduce_AGxLL_R"},
        ),
    ],
)
def test_a_choice_is_a_row_of_choices(message: str, row: dict[str, object]) -> None:
    assert row_of("choices", message) == WHERE | {"printed_bytes": 4096} | row


@pytest.mark.parametrize(
    ("message", "origin"),
    [
        ("NCCL_IB_HCA set by environment to mlx5_0,mlx5_1.", "environment"),  # src/misc/param.cc
        ("NCCL_IB_HCA set by /etc/nccl.conf to mlx5_0,mlx5_1", "/etc/nccl.conf"),
        ("NCCL_IB_HCA set to mlx5_0,mlx5_1", "environment"),  # src/misc/socket.cc
    ],
)
def test_a_variable_is_a_row_of_settings(message: str, origin: str) -> None:
    assert row_of("settings", message) == WHERE | {"name": "NCCL_IB_HCA", "value": "mlx5_0,mlx5_1", "origin": origin}


def test_what_a_line_does_not_say_is_null() -> None:
    """Without a head there is no host; a number too large for its column is damage."""
    found = read_text(READER, "Channel 4294967296/0 : 1[0] -> 1234567890123456789[1] via P2P/CUMEM\n")
    assert found.links == [
        {"line": 1, "byte_offset": 0, "src_rank": 1, "transport": "P2P", "via": "P2P/CUMEM"},
    ]
    assert read_text(READER, "1 Bytes -> Algo 0 proto 0 time 1e300\n").choices[0].keys() == {
        "line", "byte_offset", "printed_bytes", "algorithm", "protocol",
    }  # fmt: skip


def test_text_that_is_no_utf8_is_kept_readable() -> None:
    found = read_text(READER, b"NCCL_IB_HCA set to mlx5\xff\n")
    assert found.settings[0]["value"] == "mlx5\ufffd"


class _Notes:
    """A reader whose fields are the columns of its table."""

    name = "notes"
    templates: Sequence[Template] = (
        Template("note.set", "^{name:w} is {value:s}", table="settings"),
        Template("note.said", "said {what:w}"),
    )
    signature: re.Pattern[str] | None = None

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        return iter(())

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        return iter(())


class _LoudNotes(_Notes):
    def columns(self, table: str, fields: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
        return {**fields, "value": pa.compute.utf8_upper(fields["value"]), "no such column": fields["name"]}


def test_fields_named_like_columns_need_no_code() -> None:
    found = read_text(_Notes(), "NAME is set\nhe said yes\n")
    assert columns(found.settings, "line", "name", "value", "origin") == [(1, "NAME", "set", None)]
    assert found.events_named("note.said") == [{"what": "yes"}]


def test_a_reader_may_compute_columns() -> None:
    assert isinstance(_LoudNotes(), TableReader)
    assert not isinstance(_Notes(), TableReader)
    assert columns(read_text(_LoudNotes(), "NAME is set\n").settings, "name", "value") == [("NAME", "SET")]


LOG = (
    "NCCL version 2.30.7+cuda13.0\n"
    "\n"
    f"{HEAD}NCCL_DEBUG set by environment to INFO.\n"
    f"{HEAD}Using network IB\n"
    f"{HEAD}words that no template knows\n"
    f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "host0:42:43 [1] src/a.cc:7 (f) NCCL WARN words that no template knows\n"
    f"{HEAD}{CALL}\n"
    "words of the application\n"
    f"{HEAD}AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{{Lo..Hi}}={{0..15}}\n"
    "more words of the application\n"
)


def test_every_line_is_accounted_for(tmp_path: Path) -> None:
    """Rows, events, plain lines within the budget, and counts of unknown, left out and empty lines add up."""
    file = tmp_path / "nccl.log"
    file.write_text(LOG * 200)
    artefact = Artefact.of(file, "nccl.log")
    grammar = TextScan(line_readers())
    budget = 5 * 32  # a plain line costs at least 32 bytes
    rows: dict[str, int] = {}
    left_out = 0
    for item in scan_text(artefact, grammar, plain_budget_bytes=budget):
        if isinstance(item, Rows):
            assert item.batch.schema == SCHEMAS[item.table]
            rows[item.table] = rows.get(item.table, 0) + item.batch.num_rows
        elif isinstance(item, Loss):
            left_out += item.count
    assert rows == dict.fromkeys(("settings", "links", "calls", "choices"), 200) | {"events": 3 * 200}
    assert left_out == 2 * 200 - 5

    scanner = grammar.scanner(budget)
    scanner.feed(file.read_bytes())
    scanner.finish()
    counts = scanner.counts()
    assert (counts["lines"], counts["empty_lines"], counts["unrecognised_info"]) == (11 * 200, 200, 200)
    assert counts["first_unrecognised_line"] == 5
    plain = 5
    accounted = sum(rows.values()) + plain + left_out + counts["empty_lines"] + counts["unrecognised_info"]
    assert accounted == counts["lines"]


def test_events_keep_their_fields_beside_lines_that_are_none() -> None:
    """Plain lines and rows between events do not shift fields."""
    found = read_text(READER, LOG)
    assert columns(found.events, "line", "event", "fields", "location", "level") == [
        (1, "nccl.version", [("version", "2.30.7+cuda13.0")], None, "info"),
        (4, "nccl.network", [("network", "IB")], None, "info"),
        (7, None, [], "src/a.cc:7", "warning"),
    ]


def test_small_files_cost_no_compilation(tmp_path: Path) -> None:
    """All templates are taken apart once: 300 files take less than ten times as long as that. They took a hundred times."""
    file = tmp_path / "log"
    file.write_text(HEAD + "Using network IB\n")
    artefact = Artefact.of(file, "log")
    begin = time.process_time()
    grammar = TextScan(line_readers())
    compiled = time.process_time()
    for _ in range(300):
        grammar.scanner()
    assert time.process_time() - compiled < 10 * (compiled - begin)
    assert [item for item in scan_text(artefact, grammar) if isinstance(item, Rows)]


def test_a_template_that_does_not_compile_is_no_damage_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Broken(_Notes):
        templates: Sequence[Template] = (Template("note.broken", "{name:q} is"),)

    monkeypatch.setattr(reading, "line_readers", lambda: (Broken(),))
    reading._grammar.cache_clear()
    (tmp_path / "a.txt").write_text("NAME is set\n")
    artefact = Artefact.of(tmp_path / "a.txt", "a.txt")
    with pytest.raises(TypeError, match="does not compile"):
        list(reading.read_artefact(artefact, reading.Reading(artefact)))
    reading._grammar.cache_clear()
