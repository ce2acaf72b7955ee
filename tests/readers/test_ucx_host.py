"""What UCX and UCC say: ucx_info, the log, tables of protocols. Expected values are read off the text by eye."""

from __future__ import annotations

import pytest

from busbw.readers import line_readers
from busbw.readers.settings import READER as SETTINGS
from busbw.readers.text import TextScan
from busbw.readers.ucx_info import READER as INFO
from busbw.readers.ucx_log import READER as LOG
from busbw.readers.ucx_perftest import READER as PERFTEST

from .host_fixtures import text_of
from .reading import columns, read_text


@pytest.mark.parametrize(
    ("name", "transports"),
    [
        ("ucx/info_d_1.13.txt", ["self/memory0", "tcp/lo", "tcp/eth0", "sysv/memory", "posix/memory", "cma/memory"]),
        ("ucx/info_d_1.22.txt", ["self/memory", "tcp/eth0", "tcp/lo", "sysv/memory", "posix/memory", "cma/memory"]),
    ],
)
def test_transports(name: str, transports: list[str]):
    found = read_text(INFO, text_of(name))
    assert [row["name"] for row in found.devices] == transports
    assert {row["kind"] for row in found.devices} == {"ucx_transport"}
    tcp = next(dict(row["attributes"]) for row in found.devices if row["name"] == "tcp/eth0")
    assert tcp["bandwidth"] == "11.27/ppn + 0.00 MB/sec"
    assert (tcp["latency"], tcp["overhead"], tcp["type"], tcp["component"]) == (
        "10960 nsec",
        "50000 nsec",
        "network",
        "tcp",
    )
    assert found.losses == []


def test_what_could_not_be_opened():
    found = read_text(INFO, text_of("ucx/info_d_1.13.txt"))
    assert found.events_named("ucx.transport_failed") == [{"what": "failed to open connection manager rdmacm"}]


@pytest.mark.parametrize(("name", "version"), [("ucx/info_v_1.13.txt", "1.13.1"), ("ucx/info_v_1.22.txt", "1.22.0")])
def test_version(name: str, version: str):
    assert read_text(INFO, text_of(name)).events_named("ucx.version") == [{"version": version}]


def test_a_listing_of_all_variables_is_no_environment():
    """ucx_info -c prints hundreds of values in effect, which nobody need have set; an env file sets a few."""
    listed = read_text(SETTINGS, text_of("ucx/info_c_1.22.txt"))
    assert {row["origin"] for row in listed.settings} == {"ucx_info"}
    assert len(listed.settings) == 60
    set_by_hand = read_text(SETTINGS, "UCX_TLS=rc,cuda\nUCX_NET_DEVICES=mlx5_0:1\n")
    assert {row["origin"] for row in set_by_hand.settings} == {"environment"}


def test_the_head_gives_time_host_and_process():
    """1653901933.475958 s; `5215 :0` is process and thread."""
    found = read_text(LOG, text_of("ucx/log.txt"))
    (row,) = [row for row in found.events if row["event"] == "ucx.connect_failed"]
    assert (row["time_ns"], row["host"], row["pid"], row["tid"]) == (1653901933_475958_000, "host2", 5215, 0)
    assert dict(row["fields"]) == {"fd": "40", "address": "172.17.0.1:40703", "error": "Connection refused"}


def test_lanes_of_endpoints_in_old_and_new_wording():
    found = read_text(LOG, text_of("ucx/log.txt"))
    assert [(e.get("scope"), e["index"], e["lanes"]) for e in found.events_named("ucx.lanes")] == [
        (None, "0", "tag(self/memory rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1);"),
        ("inter-node", "8", "tag(rc_mlx5/mlx5_2:1 rc_mlx5/mlx5_0:1)"),
    ]


def test_levels():
    """An error that no template of its own knows may be harmless, and is a remark; so is a misspelt variable."""
    found = read_text(LOG, text_of("ucx/log.txt"))
    assert columns(found.events, "event", "level")[2:] == [
        ("ucx.connect_failed", "error"), ("ucx.error", "info"), ("ucx.too_many_resources", "error"), ("ucx.error", "info"),
        ("ucx.unused_variable", "info"), ("ucx.warning", "warning"), ("ucx.shared_memory_refused", "error"),
        ("ucx.shared_memory_refused", "error"), ("ucx.caught_signal", "error"),
    ]  # fmt: skip


def test_what_another_reader_knows_better_goes_there_first():
    """`no active messages transport` and CQ failures have events that rules read; this reader's general templates come last."""
    names = [reader.name for reader in line_readers()]
    assert names.index("ucx-log") > names.index("messages")
    templates = [t.event for t in TextScan(line_readers()).templates]
    assert templates.index("ucx.no_transport") < templates.index("ucx.error")


def test_protocols_by_size():
    """UCX_PROTO_INFO=y of UCX 1.22, recorded: three operations; the first with 3 ranges, the second 4, the third 3."""
    found = read_text(LOG, text_of("ucx/proto_info.txt"))
    rows = found.events_named("ucx.protocol")
    assert len(rows) == 10
    assert rows[2] == {
        "context": "perftest", "scope": "intra-node", "index": "0", "operation": "tagged message by ucp_tag_send* from host memory",
        "low": "5029", "high": "inf", "protocol": "(?) rendezvous zero-copy read from remote", "lanes": "cma/memory",
    }  # fmt: skip
    assert [row["high"] for row in rows[3:7]] == ["92", "8248", "262143", "inf"]


def test_a_benchmark_is_read_between_log_lines_and_tables():
    found = read_text(PERFTEST, text_of("ucx/proto_info.txt"))
    assert columns(found.measurements, "iterations") == [(100,)]


def test_scores_of_ucc():
    found = read_text(LOG, text_of("ucx/ucc_log.txt"))
    assert found.events_named("ucc.score_of") == [{"collective": "Allgather"}]
    assert found.events_named("ucc.scores") == [
        {"memory": "Host", "ranges": "{0..inf}:TL_UCP:10"},
        {"memory": "Cuda", "ranges": "{0..inf}:TL_NCCL:10"},
    ]
    assert [e["component"] for e in found.events_named("ucc.error")] == ["NCCL"]


def test_a_damaged_range_is_a_loss():
    text = "  | ucp_context_0 inter-node cfg#1 |\n  | 0..92 | eager short |\n  | 93..inf | rndv | rc |\n"
    found = read_text(LOG, text)
    assert len(found.events_named("ucx.protocol")) == 1
    assert found.loss_counts == {"damaged-row": 1}
