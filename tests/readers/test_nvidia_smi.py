"""nvidia-smi: table, -q, csv, nvlink. Expected values are read off the text by eye."""

from __future__ import annotations

import calendar

import pytest

from busbw.readers import line_readers
from busbw.readers.nvidia_smi import READER
from busbw.readers.text import TextScan

from .host_fixtures import text_of
from .reading import columns, read_text


def test_the_table():
    found = read_text(READER, text_of("nvidia_smi/table.txt"))
    assert columns(found.devices, "device", "bus_id", "name") == [
        (0, "0000:04:00.0", "NVIDIA H100 80GB HBM3"),
        (1, "0000:64:00.0", "NVIDIA H100 80GB HBM3"),
    ]
    assert dict(found.devices[1]["attributes"]) == {
        "persistence_mode": "On", "ecc_uncorrected_volatile": "0", "display_active": "Off", "fan": "N/A", "temperature_c": "40",
        "performance_state": "P0", "power_w": "73", "power_limit_w": "699", "memory_used_mib": "0", "memory_total_mib": "81559",
        "utilisation_pct": "0", "compute_mode": "Default", "mig_mode": "Disabled",
    }  # fmt: skip
    assert found.events_named("gpu.driver") == [{"driver": "550.54.15", "cuda": "12.4"}]
    assert found.events_named("gpu.process") == [
        {"gpu": "0", "pid": "4242", "kind": "C", "name": "/usr/bin/python3", "memory": "1024MiB"}
    ]


def test_the_table_of_an_older_driver_and_a_damaged_row():
    found = read_text(READER, text_of("nvidia_smi/table_535.txt"))
    figures = [
        tuple(dict(row["attributes"])[k] for k in ("power_w", "memory_used_mib", "fan")) for row in found.devices
    ]
    assert figures == [("259", "18449", "N/A"), ("219", "427", "65%")]
    assert found.loss_counts == {"damaged-row": 1}


def test_the_whole_query():
    found = read_text(READER, text_of("nvidia_smi/query.txt"))
    gpu = dict(found.devices[0]["attributes"])
    assert found.devices[0]["bus_id"] == "0000:42:00.0"
    assert gpu["pci.gpu_link_info.pcie_generation.max"] == "5"
    assert gpu["pci.gpu_link_info.pcie_generation.current"] == "1"
    assert gpu["clocks_event_reasons.hw_slowdown"] == "Active"
    assert gpu["clocks_event_reasons.hw_thermal_slowdown"] == "Active"
    assert gpu["remapped_rows.pending"] == "Yes"
    counted = {row["name"]: row["value"] for row in found.counters if row["device"] == "0000:42:00.0"}
    assert counted["ecc_errors.volatile.dram_uncorrectable"] == 4
    assert counted["remapped_rows.uncorrectable_error"] == 1
    assert counted["clocks_event_reasons_counters.sw_power_capping"] == 1202176
    assert "pci.tx_throughput" not in counted  # a rate, no count
    assert found.losses == []


def test_the_fabric_is_registered_or_not():
    """Completed and Success is well; anything else but N/A warns (NVML: nvmlGpuFabricState_t)."""
    found = read_text(READER, text_of("nvidia_smi/query.txt"))
    assert [
        (e["level"], dict(e["fields"])["bus_id"], dict(e["fields"])["state"])
        for e in found.events
        if e["event"] == "gpu.fabric_state"
    ] == [
        ("info", "0000:42:00.0", "Completed"),
        ("warning", "0000:61:00.0", "In Progress"),
    ]


@pytest.mark.parametrize("state", ["N/A", "Not Supported"])
def test_a_gpu_without_a_fabric_says_nothing(state: str):
    text = f"GPU 00000000:42:00.0\n    Fabric\n        State : {state}\n        Status : N/A\n"
    assert read_text(READER, text).events == []


def test_csv():
    found = read_text(READER, text_of("nvidia_smi/query.csv"))
    assert columns(found.devices, "device", "bus_id") == [(0, "0000:04:00.0"), (1, "0000:64:00.0")]
    power = [(row["device"], row["value"], row["time_ns"]) for row in found.counters if row["name"] == "power.draw_w"]
    second = calendar.timegm((2026, 1, 14, 15, 17, 9))
    assert power == [
        ("0000:04:00.0", 259.15, second * 10**9 + 125_000_000),
        ("0000:64:00.0", 71.0, second * 10**9 + 126_000_000),
        ("0000:04:00.0", 300.15, (second + 1) * 10**9 + 125_000_000),
    ]
    assert {row["name"] for row in found.counters} >= {
        "memory.used_mib",
        "clocks.current.sm_mhz",
        "pcie.link.width.current",
    }
    assert found.loss_counts == {"damaged-row": 1}


def test_nvlink_states():
    found = read_text(READER, text_of("nvidia_smi/nvlink_s.txt"))
    rates = [(row["device"], row["port"], row["value"]) for row in found.counters]
    assert rates == [
        ("GPU 0", 0, 26.562e9),
        ("GPU 0", 1, 0),
        ("GPU 0", 2, 26.562e9),
        ("GPU 1", 0, 26.562e9),
        ("GPU 1", 1, 26.562e9),
    ]
    assert found.events_named("nvlink.link_down") == [
        {"link": "1", "gpu": "0", "uuid": "GPU-00000000-0000-0000-0000-000000000000"}
    ]
    assert found.loss_counts == {"damaged-value": 1}


def test_a_rate_of_a_link_is_no_note_of_a_measurement():
    """`Link 0: 26.562 GB/s` has the shape of both."""
    readers = line_readers()
    templates = [t.event for t in TextScan(readers).templates]
    assert templates.index("nvlink.link_up") < templates.index("note.figure")
    assert len(read_text(READER, text_of("nvidia_smi/nvlink_s.txt")).events_named("nvlink.link_up")) == 4


def test_nvlink_errors_of_any_name():
    found = read_text(READER, text_of("nvidia_smi/nvlink_e.txt"))
    assert [(row["port"], row["name"], row["value"]) for row in found.counters] == [
        (0, "nvlink_replay_errors", 12), (0, "nvlink_recovery_errors", 0), (0, "nvlink_crc_errors", 5),
        (17, "nvlink_replay_errors", 0), (17, "nvlink_malformed_packet_errors", 0),
    ]  # fmt: skip
    assert found.losses == []


@pytest.mark.parametrize(
    "text",
    [
        "step, loss, name\n1, 2, 3\n",
        "index of the book, name of the author\n",
        "| a | b |\n",
        "GPU 0: fast\n    Link 3: fine\n",
    ],
)
def test_other_texts_give_no_devices(text: str):
    assert read_text(READER, text).devices == []
