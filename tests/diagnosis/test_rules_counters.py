"""Counters of NICs and GPUs: two readings, one device among its siblings, and the job's log beside them."""

from __future__ import annotations

import pytest

from busbw.diagnosis.rules.counter_words import word

from .told import Case, Row, check, facts_of, fires_on, near_miss_on, row, shown

TIMEOUT = """
    > cn31:2214:2290 [5] NCCL WARN NET/IB : Got completion from peer 10.1.0.7<45041> with error 12, opcode 0, len 0, vendor err 129 (Send) hca mlx5_2
"""
ELSEWHERE = TIMEOUT.replace("> cn31", "cn44")


def counter(name: str, value: float, device: str = "mlx5_2", host: str | None = "cn31", **more: object) -> Row:
    return row("counters", host=host, device=device, name=name, value=float(value), **more)


def told(name: str, value: float, device: str = "mlx5_2", host: str | None = "cn31", **more: object) -> Row:
    return shown("counters", host=host, device=device, name=name, value=float(value), **more)


def gpu(number: int, name: str, value: float, mark: bool = False, host: str = "cn31") -> Row:
    make = shown if mark else row
    return make("counters", host=host, device=f"nvidia{number}", name=name, value=float(value), labels={"gpu": str(number)})  # fmt: skip


def clocks(*megahertz: float, load: float = 100.0) -> list[Row]:
    rows = [gpu(i, "DCGM_FI_DEV_GPU_UTIL", load) for i in range(len(megahertz))]
    return rows + [gpu(i, "DCGM_FI_DEV_SM_CLOCK", mhz, mark=i < 3) for i, mhz in enumerate(megahertz)]


CASES = (
    fires_on("packets_lost_in_the_run", "roce-lossy-fabric", {
        "hw_before.txt": [told("out_of_sequence", 1200)],
        "hw_after.txt": [told("out_of_sequence", 9200)],
    }, severity="major"),
    fires_on("packets_lost_in_the_run", "roce-lossy-fabric", {
        "hw_before.txt": [told("out_of_sequence", 1200)],
        "hw_after.txt": [told("out_of_sequence", 9200)],
    }, {"nccl.log": TIMEOUT}, severity="fatal", why="and NCCL names that NIC"),
    fires_on("packets_lost_in_the_run", "roce-lossy-fabric", {
        "hw_before.txt": [told("out_of_sequence", 1200)],
        "hw_after.txt": [told("out_of_sequence", 9200)],
    }, {"nccl.log": ELSEWHERE}, severity="major", why="a transfer failed on another host"),
    fires_on("packets_lost_in_the_run", "roce-lossy-fabric", {
        "watch.txt": [told("rx_prio0_discards", 5, time_ns=10), told("rx_prio0_discards", 25, time_ns=20)],
    }, severity="minor", why="a few losses"),
    near_miss_on("packets_lost_in_the_run", "high, and the same before and after", {
        "hw_before.txt": [counter("out_of_sequence", 9200)],
        "hw_after.txt": [counter("out_of_sequence", 9200, port=None)],
    }),
    near_miss_on("packets_lost_in_the_run", "InfiniBand, where adaptive routing changes the order", {
        "hw_before.txt": [counter("out_of_sequence", 1200)], "hw_after.txt": [counter("out_of_sequence", 91200)],
        "ibstat.txt": [row("ports", host="cn31", device="mlx5_2", port=1, state="active", link_layer="InfiniBand")],
    }),
    near_miss_on("clocks_held_down", "another model has a lower clock", {
        "dcgm.prom": [row("counters", host="cn31", device=f"nvidia{i}", name=name, value=value, labels={"gpu": str(i), "modelName": "NVIDIA A100" if i < 4 else "NVIDIA H100"})
                      for i in range(12) for name, value in (("DCGM_FI_DEV_SM_CLOCK", 1410.0 if i < 4 else 1980.0), ("DCGM_FI_DEV_GPU_UTIL", 100.0))],
    }),
    near_miss_on("packets_lost_in_the_run", "one reading", {"hw.txt": [counter("out_of_sequence", 9200)]}),
    near_miss_on("packets_lost_in_the_run", "the link itself went down", {
        "hw_before.txt": [counter("out_of_sequence", 1200), counter("link_downed", 3)],
        "hw_after.txt": [counter("out_of_sequence", 9200), counter("link_downed", 5)],
    }),
    near_miss_on("packets_lost_in_the_run", "two hosts in one file without names: one of their counters falls", {
        "hw.txt": [counter("out_of_sequence", 12, host=None), counter("packet_seq_err", 70, host=None),
                   counter("out_of_sequence", 90, host=None), counter("packet_seq_err", 3, host=None)],
    }),
    fires_on("link_lost_or_noisy", "link-flap", {
        "perf_before.txt": [told("LinkDownedCounter", 3)],
        "perf_after.txt": [told("LinkDownedCounter", 5)],
    }, severity="major"),
    fires_on("link_lost_or_noisy", "link-flap", {
        "perf.txt": [told("SymbolErrorCounter", 0, "mlx5_1"), told("SymbolErrorCounter", 88_000), told("SymbolErrorCounter", 0, "mlx5_3"),
                     counter("SymbolErrorCounter", 2, "mlx5_0")],
    }, severity="minor", why="one reading: it may have been before the job"),
    fires_on("link_lost_or_noisy", "link-flap", {
        "perf.txt": [told("symbol_error", 0, "mlx5_1"), told("symbol_error", 88_000), told("symbol_error", 0, "mlx5_3")],
    }, {"nccl.log": TIMEOUT}, severity="major", why="and NCCL names that NIC"),
    near_miss_on("link_lost_or_noisy", "all ports count alike since the boot", {
        "perf.txt": [counter("symbol_error", n, f"mlx5_{i}") for i, n in enumerate((80, 95, 88, 70))],
    }),
    near_miss_on("link_lost_or_noisy", "two ports only: nobody knows what is usual", {
        "perf.txt": [counter("symbol_error", 0, "mlx5_0"), counter("symbol_error", 900)],
    }),
    near_miss_on("link_lost_or_noisy", "a counter that was reset has not grown", {
        "perf_before.txt": [counter("link_downed", 7)],
        "perf_after.txt": [counter("link_downed", 0)],
    }),
    fires_on("receiver_behind", "rank-late-or-stuck", {
        "hw_before.txt": [told("rnr_nak_retry_err", 0)],
        "hw_after.txt": [told("rnr_nak_retry_err", 40)],
    }, severity="minor"),
    near_miss_on("receiver_behind", "since the boot", {"hw.txt": [counter("rnr_nak_retry_err", 40)]}),
    fires_on("one_port_waits", "ecmp-collision", {
        "x_before.txt": [counter("port_xmit_wait", 0, f"mlx5_{i}") for i in (0, 1, 3)] + [told("port_xmit_wait", 0)],
        "x_after.txt": [told("port_xmit_wait", 900, "mlx5_0"), told("port_xmit_wait", 1100, "mlx5_1"), counter("port_xmit_wait", 1000, "mlx5_3"), told("port_xmit_wait", 90_000)],
    }, severity="minor"),
    near_miss_on("one_port_waits", "all ports wait", {
        "x_before.txt": [counter("port_xmit_wait", 0, f"mlx5_{i}") for i in range(4)],
        "x_after.txt": [counter("port_xmit_wait", 90_000 + i, f"mlx5_{i}") for i in range(4)],
    }),
    fires_on("nvlink_errors", "nvlink-down", {
        "dcgm.prom": [told("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 0, time_ns=1), told("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 3, time_ns=2)],
    }, severity="major"),
    fires_on("nvlink_errors", "nvlink-down", {
        "dcgm.prom": [gpu(i, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", n, mark=n > 100) for i, n in enumerate((0, 4, 90_000, 2))],
    }, severity="minor"),
    near_miss_on("nvlink_errors", "all GPUs alike", {
        "dcgm.prom": [gpu(i, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 900 + i) for i in range(4)],
    }),
    fires_on("pcie_replays", "pcie-link-degraded", {
        "dcgm.prom": [gpu(i, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", n, mark=n > 100) for i, n in enumerate((0, 3, 40_000, 1))],
    }, severity="minor"),
    near_miss_on("pcie_replays", "a few are normal", {
        "dcgm.prom": [gpu(i, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", n) for i, n in enumerate((0, 3, 40, 1))],
    }),
    fires_on("fault_gauges", "gpu-fallen-off-bus", {"dcgm.prom": [gpu(0, "DCGM_FI_DEV_XID_ERRORS", 0), gpu(1, "DCGM_FI_DEV_XID_ERRORS", 79, mark=True)]}),
    fires_on("fault_gauges", "gpu-ecc", {"dcgm.prom": [gpu(1, "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, mark=True)]}),
    near_miss_on("fault_gauges", "an application's fault (13) and no Xid at all", {
        "dcgm.prom": [gpu(0, "DCGM_FI_DEV_XID_ERRORS", 0), gpu(1, "DCGM_FI_DEV_XID_ERRORS", 13), gpu(1, "DCGM_FI_DEV_ROW_REMAP_FAILURE", 0)],
    }),
    fires_on("clocks_held_down", "gpu-throttling", {"dcgm.prom": [gpu(0, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x40 | 0x4, mark=True)]}, severity="major"),
    fires_on("clocks_held_down", "gpu-throttling", {"dcgm.prom": clocks(1170, 1980, 1965, 1980, 1980)}, severity="major"),
    near_miss_on("clocks_held_down", "the power cap, normal at full load", {"dcgm.prom": [gpu(0, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x4)]}),
    near_miss_on("clocks_held_down", "idle GPUs", {"dcgm.prom": clocks(345, 1980, 1965, 1980, 1980, load=0.0)}),
    fires_on("packets_lost_in_the_run", "roce-lossy-fabric", {
        "hw_before.txt": [told("out_of_sequence", 1200)],
        "hw_after.txt": [told("out_of_sequence", 9200), *[told("pfc_enabled", 0, "ens1", labels={"priority": str(i)}) for i in range(2)]],
    }, severity="major", why="and no priority has flow control"),
    fires_on("clocks_held_down", "gpu-throttling", {
        "dmon.txt": [row("counters", device=f"GPU {i}", name="sm", value=99.0, labels={"unit": "%"}) for i in range(4)]
        + [(shown if i < 3 else row)("counters", device=f"GPU {i}", name="pclk", value=1200.0 if i == 0 else 1980.0, labels={"unit": "MHz"}) for i in range(4)],
    }, why="dmon, whose sm is a load and pclk a clock"),
    near_miss_on("clocks_held_down", "SM loads differ, clocks do not", {
        "dmon.txt": [row("counters", device=f"GPU {i}", name="sm", value=30.0 if i == 0 else 99.0) for i in range(4)]
        + [row("counters", device=f"GPU {i}", name="pclk", value=1980.0) for i in range(4)],
    }),
    fires_on("clocks_held_down", "gpu-throttling", {
        "smi_before.txt": [told("clocks_event_reasons_counters.hw_thermal_slowdown", 0, "0000:42:00.0")],
        "smi_after.txt": [told("clocks_event_reasons_counters.hw_thermal_slowdown", 90_000, "0000:42:00.0")],
    }, why="time spent in thermal slowdown grew"),
    fires_on("fault_gauges", "gpu-ecc", {"smi.csv": [told("ecc.errors.uncorrected.volatile.total", 2, "0000:42:00.0")]}, why="nvidia-smi"),
    near_miss_on("fault_gauges", "before the last reset", {"smi.txt": [counter("ecc_errors.aggregate.dram_uncorrectable", 2, "0000:42:00.0")]}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


@pytest.mark.parametrize(
    "name", ["SymbolErrorCounter", "symbol_error_counter", "node_infiniband_symbol_error_counter_total"]
)
def test_tools_spell_one_counter_differently(name: str):
    assert word(name) == "symbol_error_counter"


def test_readings_of_one_host_are_ordered_by_their_clock():
    """Files named by chance: 30 s later the counter is 25 higher, so it grew by 25."""
    facts = facts_of({}, {
        "a.txt": [counter("link_downed", 30, time_ns=40_000_000_000)],
        "b.txt": [counter("link_downed", 5, time_ns=10_000_000_000)],
    })  # fmt: skip
    (growth,) = facts.growths
    assert growth.by == 25


def test_files_of_one_host_without_times_are_not_compared():
    """Nobody knows which came first."""
    assert facts_of({}, {"a.txt": [counter("link_downed", 5)], "b.txt": [counter("link_downed", 30)]}).growths == []


def test_files_of_two_hosts_are_not_two_readings():
    rows = {"cn31_before.txt": [counter("link_downed", 5)], "cn32_after.txt": [counter("link_downed", 30, host="cn32")]}
    assert facts_of({}, rows).growths == []
