"""Kernel log: which device, which process, when. Lines are real but for names and addresses; see fixtures/formats.json."""

from __future__ import annotations

import calendar

import pytest

from busbw.readers.kernel_log import READER

from .host_fixtures import text_of
from .reading import read_text


def only(text: str) -> dict[str, str]:
    """The name and the fields of the only event of a line."""
    found = read_text(READER, text + "\n")
    (row,) = found.events
    return {"event": row["event"], "level": row["level"], **dict(row["fields"])}


def test_every_known_line_is_taken():
    """All but `DRHD: handling fault status reg`, which says nothing that the next line does not."""
    text = text_of("kernel/dmesg.txt")
    assert len(read_text(READER, text).events) == len(text.splitlines()) - 1


def test_device_of_a_pcie_error():
    """The port reports, the device in `received:` is meant."""
    found = read_text(READER, text_of("kernel/dmesg.txt"))
    aer = found.events_named("kernel.pcie_aer")
    assert [(e["driver"], e["bus_id"], e.get("source")) for e in aer] == [
        ("pcieport", "0001:00:00.0", None),
        ("pcieport", "0000:00:1d.0", "0000:02:00.0"),
        ("pcieport", "0000:00:00.0", "0000:00:00.0"),
    ]
    errors = found.events_named("kernel.pcie_error")
    assert [(e["severity"], e["driver"], e["bus_id"]) for e in errors] == [
        ("Corrected", "pcieport", "0001:00:00.0"),
        ("Corrected", "nvme", "0000:02:00.0"),
        ("Corrected", "pcieport", "0000:00:1c.5"),
    ]
    assert [e["status"] for e in found.events_named("kernel.pcie_status")] == ["00000001", "00001041"]


@pytest.mark.parametrize(
    ("line", "bus_id"),
    [
        ("[ 1.5] DMAR: [DMA Read NO_PASID] Request device [0b:00.0] fault addr 0x1 [fault reason 0x06] PTE Read access is not set", "0000:0b:00.0"),
        ("DMAR: [DMA Write] Request device [3b:00.0] PASID ffffffff fault addr ffff0000 [fault reason 05] PTE Write access is not set", "0000:3b:00.0"),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x0017 address=0xbe9f9880 flags=0x0010]", "0000:02:00.0"),
        ("amdgpu 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0007 address=0xffffc02000 flags=0x0000]", "0000:07:00.0"),
    ],
)  # fmt: skip
def test_device_of_an_iommu_fault(line: str, bus_id: str):
    found = only(line)
    assert (found["event"], found["bus_id"], found["level"]) == ("kernel.iommu_fault", bus_id, "error")


def test_process_of_an_xid():
    """The driver prints the process, or that it does not know it."""
    known = only("[ 9001.001] NVRM: Xid (PCI:000f:01:00): 31, pid=5150, name=vllm, Ch 00000010, MMU Fault")
    assert (known["bus_id"], known["xid"], known["pid"], known["name"], known["uptime_s"]) == (
        "000f:01:00.0", "31", "5150", "vllm", "9001.001",
    )  # fmt: skip
    unknown = only("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert "pid" not in unknown
    assert "uptime_s" not in unknown


def test_link_of_an_sxid():
    found = only("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate")
    assert (found["bus_id"], found["sxid"], found["link"]) == ("0000:c3:00.0", "20009", "28")


@pytest.mark.parametrize(
    ("line", "event", "fields"),
    [
        ("mlx5_core 0000:0b:00.1: Port module event: module 1, Cable unplugged", "kernel.nic_link", {"bus_id": "0000:0b:00.1", "state": "unplugged"}),
        ("mlx5_core 0000:0b:00.1: Port module event[error]: module 1, Cable error, Unsupported cable", "kernel.nic_module_error", {"bus_id": "0000:0b:00.1"}),
        ("mlx5_core 0000:18:00.0: wait_func:1155:(pid 7): TEARDOWN_HCA(0x103) timeout. Will cause a leak of a command resource", "kernel.nic_command_timeout", {"command": "TEARDOWN_HCA(0x103)"}),
        ("mlx5_core 0000:49:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(2) CRITICAL:", "kernel.nic_health", {"bus_id": "0000:49:00.0"}),
        ("mlx5_core 0000:49:00.0: poll_health:844:(pid 0): device's health compromised - reached miss count", "kernel.nic_health", {"bus_id": "0000:49:00.0"}),
        ("mlx5_core 0000:49:00.0: temp_warn:191:(pid 712): High temperature on sensors with bit set 0 2", "kernel.nic_hot", {"sensors": "0 2"}),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 5 timed out", "kernel.nic_tx_timeout", {"interface": "eth0", "queue": "5"}),
        ("INFO: task kworker/u64:2:311 blocked for more than 122 seconds.", "kernel.hung_task", {"name": "kworker/u64:2", "pid": "311"}),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]", "kernel.soft_lockup", {"name": "python3", "pid": "4242", "cpu": "12"}),
        ("nfs: server 192.0.2.60 not responding, still trying", "kernel.nfs_stalled", {"server": "192.0.2.60"}),
        ("nfs: server 192.0.2.60 OK", "kernel.nfs_restored", {"server": "192.0.2.60"}),
        ("LustreError: 167-0: fs0-MDT0000-mdc-ffff: This client was evicted by fs0-MDT0000; in progress operations using this service will fail.", "kernel.lustre_evicted", {"service": "fs0-MDT0000"}),
        ("pcieport 0000:5d:02.0: pciehp: Slot(12): Link Down", "kernel.pcie_link_down", {"bus_id": "0000:5d:02.0", "slot": "12"}),
        ("efa 0000:00:1d.0: Admin queue is closed", "kernel.efa_closed", {"bus_id": "0000:00:1d.0"}),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/,task=python3,pid=4243,uid=0", "kernel.oom_kill", {"name": "python3", "pid": "4243"}),
    ],
)  # fmt: skip
def test_lines_of_drivers_and_kernel(line: str, event: str, fields: dict[str, str]):
    found = only(line)
    assert found["event"] == event
    assert {name: found[name] for name in fields} == fields


def test_times_of_day():
    """dmesg -T, a log of ISO times, syslog without a year."""
    found = read_text(READER, text_of("kernel/times.txt"))
    morning = calendar.timegm((2026, 8, 1, 10, 20, 41)) * 10**9
    assert [row.get("time_ns") for row in found.events] == [morning, morning + 10**9, morning + 2_500_000_000, None]
    assert [row.get("host") for row in found.events] == [None, None, "host0", "host0"]
