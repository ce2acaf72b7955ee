"""What perftest prints. MiB/sec and MB/sec are 2^20 bytes/s, Gb/sec is 1e9 bits/s; sources of the files are in fixtures/formats.json."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers.perftest import JSON_READER, READER

from .reading import FIXTURES, Found, columns, read_text

MIB = 2.0**20
GBIT = 1.25e8
FIGURES = ("size_bytes", "algbw_bytes_per_s", "time_ns", "min_ns", "max_ns", "p99_ns", "iterations", "collective")


def read(name: str) -> Found:
    reader = JSON_READER if name.endswith(".json") else READER
    return read_text(reader, (FIXTURES / "perftest" / name).read_bytes(), name)


def test_a_bandwidth_in_gigabits_with_cpu_load():
    """92.57 Gb/s are 11.57 GB/s; the peak is 0.00 in duration mode and is not kept."""
    found = read("write_bw_cpu_util.txt")
    assert columns(found.measurements, *FIGURES) == [(65536, 92.57 * GBIT, None, None, None, None, 1059332, None)]
    assert columns(found.measurements, "line", "tool", "ranks", "table_index") == [(23, "perftest", 2, 0)]
    assert found.losses == []


def test_what_the_header_says_stands_with_the_nic_and_with_the_table():
    found = read("write_bw_cpu_util.txt")
    assert columns(found.devices, "kind", "name", "line") == [("nic", "roceP2p1s0f0", 3)]
    attributes = dict(found.devices[0]["attributes"])
    assert (attributes["mtu_bytes"], attributes["link_layer"], attributes["gid_index"]) == ("1024", "Ethernet", "3")
    (test,) = found.events_named("perftest.test")
    assert (test["program"], test["unit"], test["bidirectional"], test["device"], test["table_index"]) == (
        "ib_write_bw", "Gb/sec", "false", "roceP2p1s0f0", "0",
    )  # fmt: skip


def test_megabytes_are_powers_of_two_in_every_version():
    """2 bytes 2.450225 million times a second are 4.900450e6 bytes/s: 4.67 * 2^20 (within rounding), not 4.67e6."""
    found = read("read_bw_all_sizes.txt")
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s")[0] == (2, 4.67 * MIB)
    assert pytest.approx(2 * 2.450225e6, abs=0.005 * MIB + 2 * 0.5) == 4.67 * MIB
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s")[-1] == (128, 310.05 * MIB)
    assert len(found.measurements) == 7


def test_latencies_of_writes_are_half_a_round_trip_and_warnings_stand_among_them():
    found = read("write_lat_ib.txt")
    assert columns(found.measurements, *FIGURES) == [
        (2, None, 1880, 1790, 5410, 2030, 1000, None),
        (4, None, 1860, 1770, 5140, 2010, 1000, None),
        (8, None, 1880, 1770, 4720, 2010, 1000, None),
    ]
    assert found.events_named("perftest.test")[0]["round_trip"] == "half"
    assert found.events_named("perftest.cpu_frequency")[0] == {"nominal": "3393.693000", "actual": "1500.000000"}
    assert found.losses == []


def test_latencies_of_reads_are_whole_round_trips():
    found = read("read_lat_roce.txt")
    assert columns(found.measurements, "size_bytes", "time_ns", "max_ns") == [(2, 4820, 13200)]
    assert found.events_named("perftest.test")[0]["round_trip"] == "whole"


def test_a_test_that_failed_has_its_error_and_its_nic_but_no_row():
    """Status 12 is IBV_WC_RETRY_EXC_ERR."""
    found = read("retry_exceeded.txt")
    assert found.measurements == []
    assert found.events_named("perftest.completion_failed") == [{"status": "12", "wr_id": "7", "syndrome": "0x81"}]
    assert columns(found.devices, "name") == [("rocep1s0f0",)]


def test_ports_service_levels_small_figures_and_duration():
    """Per-port columns after the row's own, #sl, six decimals below 0.1 Gb/s, and t_avg alone."""
    found = read("grammar_variants.txt")
    assert columns(found.measurements, "table_index", "size_bytes", "algbw_bytes_per_s", "time_ns", "iterations") == [
        (0, 65536, 21900.50 * MIB, None, 5000),
        (1, 65536, 195.75 * GBIT, None, 5000),
        (2, 2, 0.0479 * GBIT, None, 5000),
        (3, 8, None, 3250, 500000),
    ]
    assert [test["bidirectional"] for test in found.events_named("perftest.test")[:3]] == ["true", "false", "false"]
    assert found.losses == []


@pytest.mark.parametrize(
    ("name", "rate", "unit"),
    [("bw_gbits.json", 195.75 * GBIT, "Gb/sec"), ("bw_mib.json", 23335.20 * MIB, "MiB/sec")],
)
def test_the_unit_of_the_json_follows_from_the_message_rate(name: str, rate: float, unit: str):
    """0.373363 million messages of 65536 bytes a second are 24.4687 GB/s: 195.75 Gb/s, and 23335.2 MiB/s."""
    found = read(name)
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s", "iterations") == [(65536, rate, 5000)]
    assert rate == pytest.approx(0.373363e6 * 65536, rel=1e-5)
    assert found.events_named("perftest.test")[0]["unit"] == unit
    assert found.losses == []


def test_a_json_without_message_rate_has_no_unit_and_says_so():
    found = read("output_bandwidth.json")
    assert found.measurements == []
    assert found.loss_counts == {"unknown-unit": 1, "repaired": 1}


def test_a_json_whose_rate_is_rounded_to_nothing_has_no_unit():
    text = (FIXTURES / "perftest" / "bw_gbits.json").read_text()
    found = read_text(JSON_READER, text.replace("195.75", "0.00").replace("0.373363", "0.000000"))
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s") == [(65536, None)]
    assert found.loss_counts == {"unknown-unit": 1}


def test_keys_and_words_without_quotes_are_read():
    """As versions to 2023 wrote it; 2.42 us is half of a round trip."""
    found = read("lat_unquoted.json")
    assert columns(found.measurements, *FIGURES) == [(128, None, 2420, 2370, 5390, 2470, 5000, None)]
    assert columns(found.devices, "name", "line") == [("rxe0", 5)]
    assert found.loss_counts == {"repaired": 1}
    assert read("qos.json").loss_counts == {"repaired": 1}
    assert columns(read("qos.json").measurements, "algbw_bytes_per_s") == [(195.75 * GBIT,)]


def test_a_cut_json_keeps_whole_figures_and_says_that_it_is_cut():
    text = (FIXTURES / "perftest" / "lat_unquoted.json").read_text()
    found = read_text(JSON_READER, text[: text.index("t_max") + 8])
    assert columns(found.measurements, "size_bytes", "min_ns", "max_ns", "time_ns") == [(128, 2370, None, None)]
    assert found.loss_counts == {"truncated-file": 1}


def test_cycles_are_no_time():
    """-C prints cycles under a header that says usec."""
    text = (FIXTURES / "perftest" / "write_lat_ib.txt").read_text().replace("ib_write_lat -d", "ib_write_lat -C -d")
    found = read_text(READER, text)
    assert columns(found.measurements, "size_bytes", "time_ns") == [(2, None), (4, None), (8, None)]
    assert set(found.loss_counts) == {"unknown-unit"}


def test_impossible_figures_become_unknown():
    """Negative averages of day-long runs: linux-rdma/perftest#82."""
    text = (FIXTURES / "perftest" / "write_bw_cpu_util.txt").read_text().replace("92.57", "-92.57")
    found = read_text(READER, text)
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s") == [(65536, None)]
    assert found.loss_counts == {"impossible-value": 1}


@given(
    size=st.integers(1, 2**23),
    rate=st.floats(1e3, 1e11),
    in_gigabits=st.booleans(),
)
def test_a_derived_unit_is_never_the_wrong_one(size: int, rate: float, in_gigabits: bool):
    """Whatever is rounded away, the bandwidth is right within rounding or unknown."""
    factor = GBIT if in_gigabits else MIB
    text = (FIXTURES / "perftest" / "bw_gbits.json").read_text()
    text = text.replace("65536", str(size)).replace("195.75", f"{rate / factor:.2f}")
    found = read_text(JSON_READER, text.replace("0.373363", f"{rate / size / 1e6:.6f}"))
    value = found.measurements[0].get("algbw_bytes_per_s")
    assert value is None or value == pytest.approx(rate, abs=0.51 * 0.01 * factor)
    assert (value is None) == ("unknown-unit" in found.loss_counts)
