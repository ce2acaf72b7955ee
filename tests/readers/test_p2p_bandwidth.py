"""What p2pBandwidthLatencyTest prints (cuda-samples): matrices, one cell a pair, GB/s are 1e9 bytes/s."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.p2p_bandwidth import READER

from .reading import DATA, columns, read_text

LATENCY = """\
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.35   2.56
     1   2.52   2.31

   CPU     0      1
     0   2.24   1.72
     1   1.75   2.18
"""
PAIR = ("quantity", "src", "dst", "value", "unit")


def test_recorded_a6000():
    """Source: stas00/ml-engineering#1: P2P is slower than the way through host memory."""
    found = read_text(READER, (DATA / "p2p-a6000.txt").read_bytes())
    by_cell = {(row["quantity"], row["src"], row["dst"]): row["value"] for row in found.pairs}
    assert by_cell["unidirectional_p2p_disabled", "GPU1", "GPU2"] == pytest.approx(22.20e9)
    assert by_cell["unidirectional_p2p_enabled", "GPU0", "GPU2"] == pytest.approx(1.58e9)
    assert by_cell["peer_access", "GPU2", "GPU0"] == 1.0
    assert len(found.pairs) == 3 * 9
    assert columns(found.devices, "device", "kind", "bus_id", "name", "line")[1] == (
        1,
        "gpu",
        "0000:21:00",
        "NVIDIA RTX A6000",
        3,
    )
    assert found.losses == []


def test_recorded_two_sockets():
    """Source: NVIDIA/nccl#257: peers of one socket reach each other only."""
    found = read_text(READER, (DATA / "p2p-two-socket.txt").read_bytes())
    apart = {(row["src"], row["dst"]) for row in found.pairs if row["value"] == 0.0}
    assert apart == {(f"GPU{a}", f"GPU{b}") for a in range(4) for b in range(4) if a // 2 != b // 2}
    assert [device["bus_id"] for device in found.devices] == ["0000:02:00", "0000:03:00", "0000:82:00", "0000:83:00"]


def test_latencies_by_the_clock_of_the_gpu_and_of_the_cpu():
    """2.56 us is 2.56e-6 s. Source: a log of two H100 PCIe with a bridge."""
    found = read_text(READER, LATENCY)
    assert columns(found.pairs, *PAIR)[1] == ("latency_p2p_enabled", "GPU0", "GPU1", pytest.approx(2.56e-6), "s")
    assert columns(found.pairs, *PAIR)[5] == ("cpu_latency_p2p_enabled", "GPU0", "GPU1", pytest.approx(1.72e-6), "s")
    assert len(found.pairs) == 8


def test_bidirectional_matrices_also_where_markdown_ate_the_backslash():
    title = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)"
    text = f"{title}\n   DD     0      1\n     0 1600.87 111.17\n     1 111.12 1636.90\n"
    found = read_text(READER, text)
    assert columns(found.pairs, *PAIR)[1] == (
        "bidirectional_p2p_enabled",
        "GPU0",
        "GPU1",
        pytest.approx(111.17e9),
        "bytes/s",
    )


def test_without_a_matrix_the_lines_say_who_reaches_whom():
    found = read_text(READER, "Device=0 CAN Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n")
    assert columns(found.pairs, *PAIR) == [
        ("peer_access", "GPU0", "GPU1", 1.0, "1"),
        ("peer_access", "GPU1", "GPU0", 0.0, "1"),
    ]


def test_a_cut_row_keeps_its_whole_cells():
    found = read_text(READER, LATENCY[: LATENCY.index("2.31") + 3])
    assert columns(found.pairs, "src", "dst") == [("GPU0", "GPU0"), ("GPU0", "GPU1"), ("GPU1", "GPU0")]
    assert found.loss_counts == {"truncated-row": 1}


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = (DATA / "p2p-a6000.txt").read_text()
    start = text.index("P2P Connectivity")
    whole = columns(read_text(READER, text[start:]).pairs, *PAIR)
    for end in range(start, len(text)):
        part = columns(read_text(READER, text[start:end]).pairs, *PAIR)
        assert part == whole[: len(part)]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray((DATA / "p2p-a6000.txt").read_bytes() + LATENCY.encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b"9" * 30, b"f" * 30]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
