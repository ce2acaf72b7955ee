"""What nvbandwidth prints. GB/s is 1e9 bytes/s; sources of the files are in fixtures/formats.json."""

from __future__ import annotations

import pytest

from busbw.readers.nvbandwidth import JSON_READER, READER

from .reading import FIXTURES, Found, columns, read_text

PAIR = ("quantity", "src", "dst", "value", "unit")


def read(name: str) -> Found:
    reader = JSON_READER if name.endswith(".json") else READER
    return read_text(reader, (FIXTURES / "nvbandwidth" / name).read_bytes(), name)


def test_a_matrix_of_copies_from_gpu_to_gpu():
    """`GPU(row) -> GPU(column)`: the second figure of row 3 is from GPU3 to GPU1. Cells N/A are no pairs. The sum is printed."""
    found = read("d2d_a6000_0.8.txt")
    by_cell = {(row["src"], row["dst"]): row["value"] for row in found.pairs}
    assert len(by_cell) == 6 * 5
    assert by_cell["GPU3", "GPU1"] == pytest.approx(21.82e9)
    assert by_cell["GPU5", "GPU4"] == pytest.approx(26.35e9)
    assert sum(by_cell.values()) == pytest.approx(715.53e9, abs=31 * 0.005e9)
    assert found.events_named("nvbandwidth.sum") == [{"test": "device_to_device_memcpy_read_ce", "sum": "715.53"}]
    assert found.losses == []


def test_the_arrow_says_which_end_is_the_source():
    """`CPU(row) -> GPU(column)`, then `CPU(row) <- GPU(column)`."""
    found = read("rtx4090_0.2.txt")
    assert columns(found.pairs, *PAIR)[1] == ("host_to_device_memcpy_ce", "CPU", "GPU1", 24.26e9, "bytes/s")
    assert columns(found.pairs, *PAIR)[9] == ("device_to_host_memcpy_ce", "GPU1", "CPU", 26.47e9, "bytes/s")
    assert columns(found.devices, "device", "name", "kind")[7] == (7, "NVIDIA GeForce RTX 4090", "gpu")


def test_bidirectional_tests_parts_of_tests_and_latencies():
    """Of a bidirectional copy one direction is measured, the one in the name. 812.33 ns is 8.1233e-7 s."""
    found = read("grammar_verbose.txt")
    assert columns(found.pairs, *PAIR) == [
        ("device_to_host_bidirectional_memcpy_ce", "GPU0", "CPU", pytest.approx(38.51e9), "bytes/s"),
        ("device_to_host_bidirectional_memcpy_ce", "GPU1", "CPU", pytest.approx(38.49e9), "bytes/s"),
        ("device_to_device_bidirectional_memcpy_read_ce/read1", "GPU0", "GPU1", pytest.approx(370.1e9), "bytes/s"),
        ("device_to_device_bidirectional_memcpy_read_ce/read1", "GPU1", "GPU0", pytest.approx(371.2e9), "bytes/s"),
        ("device_to_device_bidirectional_memcpy_read_ce/total", "GPU0", "GPU1", pytest.approx(741.3e9), "bytes/s"),
        ("device_to_device_bidirectional_memcpy_read_ce/total", "GPU1", "GPU0", pytest.approx(741.3e9), "bytes/s"),
        ("device_local_copy", "GPU0", "GPU0", pytest.approx(1234.5e9), "bytes/s"),
        ("device_local_copy", "GPU1", "GPU1", pytest.approx(1236.1e9), "bytes/s"),
        ("device_to_device_latency_sm", "GPU0", "GPU1", pytest.approx(812.33e-9), "s"),
        ("device_to_device_latency_sm", "GPU1", "GPU0", pytest.approx(815.77e-9), "s"),
    ]
    assert columns(found.devices, "host", "device", "bus_id") == [("host0", 0, "00000000:1b:00"), ("host0", 1, "00000000:43:00")]  # fmt: skip
    assert [event["test"] for event in found.events_named("nvbandwidth.sum")][3:] == [
        "device_local_copy",
        "device_to_device_latency_sm",
    ]
    assert len(found.events_named("nvbandwidth.waived")) == 1
    assert found.losses == []


def test_multinode_matrices_are_between_processes():
    """`GPU(row) <- GPU(column)`: the third figure of row 1 goes from rank 2 to rank 1. Processes say where they are."""
    found = read("grammar_multinode.txt")
    assert {(p["src"], p["dst"]): p["value"] for p in found.pairs}["rank2", "rank1"] == pytest.approx(190.3e9)
    assert columns(found.devices, "rank", "host", "device") == [(0, "host0", 0), (1, "host0", 1), (2, "host1", 0)]


def test_statuses():
    """A waived test is no error; wrong data is."""
    assert read("waived_2080ti_0.2.txt").events_named("nvbandwidth.waived") == [
        {"test": "device_to_device_memcpy_write_ce"}
    ]
    found = read("wrong_data_a100_0.7.txt")
    assert [e["level"] for e in found.events if e["event"] in ("nvbandwidth.wrong_data", "nvbandwidth.failed")] == [
        "error",
        "error",
    ]
    assert columns(found.devices, "host", "device", "bus_id")[0] == ("host0", 0, "00000000:34:00")


def test_json_has_the_same_rows():
    found = read("grammar.json")
    assert columns(found.pairs, *PAIR, "line") == [
        ("device_to_device_memcpy_write_ce", "GPU1", "GPU0", pytest.approx(276.07e9), "bytes/s", 18),
        ("device_to_device_memcpy_write_ce", "GPU0", "GPU1", pytest.approx(276.36e9), "bytes/s", 22),
    ]
    assert columns(found.devices, "host", "device", "name", "line")[1] == ("host0", 1, "NVIDIA H100 80GB HBM3", 9)
    assert [(e["event"], e["level"]) for e in found.events] == [
        ("nvbandwidth.waived", "info"),
        ("nvbandwidth.failed", "error"),
        ("nvbandwidth.version", "info"),
        ("nvbandwidth.warned", "info"),
    ]
    assert found.losses == []


def test_json_before_a_cut_is_read():
    text = (FIXTURES / "nvbandwidth" / "grammar.json").read_text()
    found = read_text(JSON_READER, text[: text.index("device_local_copy")])
    assert len(found.pairs) == 2
    assert found.loss_counts == {"truncated-file": 1}


def test_a_missing_row_shows_in_the_sum():
    text = (FIXTURES / "nvbandwidth" / "d2d_a6000_0.8.txt").read_text().splitlines(keepends=True)
    row = next(i for i, line in enumerate(text) if line.startswith(" 3 "))
    assert read_text(READER, "".join(text[:row] + text[row + 1 :])).loss_counts == {"inconsistent-sum": 1}


def test_a_matrix_without_its_sum_was_cut():
    text = (FIXTURES / "nvbandwidth" / "d2d_a6000_0.8.txt").read_text()
    found = read_text(READER, text[: text.index(" 4     22.64")])
    assert len(found.pairs) == 4 * 5
    assert found.loss_counts == {"truncated-matrix": 1}
