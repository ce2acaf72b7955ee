"""Ports of NICs and switches compared with their siblings, as ibstat, ibv_devinfo and iblinkinfo tell them."""

from __future__ import annotations

import pytest

from .told import Case, Row, check, fires, fires_on, near_miss, near_miss_on, row, shown

NDR, HDR = 50e9, 25e9
"""400 and 200 Gb/s in bytes per second."""


def nic(
    host: str, device: str, state: str = "Active", rate: float | None = NDR, *, mark: bool = False, **more: object
) -> Row:
    columns = {
        "host": host,
        "device": device,
        "node_kind": "nic",
        "port": 1,
        "state": state,
        "link_layer": "InfiniBand",
        **more,
    }
    return (shown if mark else row)("ports", rate_bytes_per_s=rate, **columns)


def switch(port: int, rate: float, *, mark: bool = False, **more: object) -> Row:
    columns = {
        "device": "leaf03",
        "node_kind": "switch",
        "port": port,
        "state": "Active",
        "link_layer": "InfiniBand",
        **more,
    }
    return (shown if mark else row)("ports", rate_bytes_per_s=rate, **columns)


DOWN = {"state": "Down", "physical_state": "Polling", "rate": None, "peer": "leaf03", "peer_port": 7}

CASES = (
    fires_on("port_down_here_only", "link-rate-degraded", {
        "ibstat.txt": [nic("cn01", "mlx5_0", mark=True), nic("cn02", "mlx5_0"), nic("cn03", "mlx5_0", mark=True, **DOWN), nic("cn04", "mlx5_0")],
    }, severity="major"),
    fires_on("port_down_here_only", "link-rate-degraded", {
        "ibstat.txt": [nic("cn01", "mlx5_0", mark=True), nic("cn01", "mlx5_1", mark=True), nic("cn01", "mlx5_2", mark=True, **DOWN)],
    }, severity="minor", why="beside active ports of one host"),
    near_miss_on("port_down_here_only", "down on every host: nobody uses it", {
        "ibstat.txt": [nic(f"cn0{i}", "mlx5_2", **DOWN) for i in range(1, 5)] + [nic(f"cn0{i}", "mlx5_0") for i in range(1, 5)],
    }),
    near_miss_on("port_down_here_only", "a free port of a switch", {
        "iblinkinfo.txt": [switch(1, NDR), switch(2, NDR), switch(3, 0.0, state="Down", physical_state="Polling")],
    }),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "iblinkinfo.txt": [switch(1, NDR, width=4), switch(2, NDR / 4, mark=True, width=1, possible_width=4, peer="cn07 HCA-1", peer_port=1)],
    }, severity="major"),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "ibstat.txt": [nic("cn01", "mlx5_0", mark=True), nic("cn02", "mlx5_0", mark=True), nic("cn03", "mlx5_0", rate=HDR, mark=True), nic("cn04", "mlx5_0")],
    }, severity="major"),
    near_miss_on("link_below_its_ends", "every host has one slower NIC, for storage", {
        "ibstat.txt": [nic(f"cn0{i}", f"mlx5_{d}", rate=HDR if d == 4 else NDR) for i in range(1, 4) for d in range(5)],
    }),
    near_miss_on("link_below_its_ends", "a port that is down shows its lowest rate", {
        "ibstat.txt": [nic("cn01", "mlx5_0"), nic("cn02", "mlx5_0"), nic("cn03", "mlx5_0"), nic("cn04", "mlx5_0", "Down", 1.25e9)],
    }),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "iblinkinfo.txt": [switch(i, NDR / 2, mark=True, possible_rate_bytes_per_s=NDR) for i in range(4)],
    }, severity="minor", why="the whole fabric is set below what it can"),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "ibstat.txt": [nic(f"cn0{i}", "mlx5_0", rate=HDR / 4 if i == 4 else HDR, possible_rate_bytes_per_s=NDR, mark=i != 3) for i in range(1, 5)],
    }, severity="major", why="one link is slower still"),
    near_miss_on("link_below_its_ends", "an interface that NCCL does not name", {
        "ethtool.txt": [row("ports", host="cn01", device="eno1", node_kind="netdev", state="active", rate_bytes_per_s=12.5e6, possible_rate_bytes_per_s=125e6)],
    }),
    fires_on("another_link_layer", "net-plugin-mismatch", {
        "ibstat.txt": [nic("cn01", "mlx5_0", mark=True), nic("cn02", "mlx5_0", mark=True), nic("cn03", "mlx5_0", mark=True, link_layer="Ethernet")],
    }, severity="major"),
    near_miss_on("another_link_layer", "the Ethernet NIC of every host", {
        "ibstat.txt": [nic(f"cn0{i}", d, link_layer=layer) for i in range(1, 4) for d, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet"))],
    }),
    near_miss_on("port_down_here_only", "a management interface without cable", {
        "ethtool.txt": [row("ports", host=f"cn0{i}", device="eno1", node_kind="netdev", state="down" if i == 3 else "active", rate_bytes_per_s=125e6) for i in range(1, 4)],
    }),
    near_miss_on("port_down_here_only", "another kind of NIC under that name on a login node", {
        "ibstat.txt": [nic(f"cn0{i}", "mlx5_1") for i in range(1, 4)] + [nic("login1", "mlx5_1", "Down", None, link_layer="Ethernet")],
    }),
    fires_on("port_down_here_only", "link-rate-degraded", {
        "ibstat.txt": [nic(f"cn0{i}", f"mlx5_{d}") for i in range(1, 4) for d in range(2)] + [nic("cn01", "mlx5_8", rate=HDR, mark=True), nic("cn02", "mlx5_8", rate=HDR), nic("cn03", "mlx5_8", mark=True, **DOWN)],
    }, severity="minor", why="a storage port: slower than those of the job"),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "ibstat.txt": [nic("cn01", f"mlx5_{d}", mark=d < 2) for d in range(8)] + [nic("cn01", f"mlx5_{d}", rate=HDR, mark=True) for d in (8, 9)],
    }, severity="minor", why="one host: its slower NICs may be for storage"),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "ibstat.txt": [nic("cn01", f"mlx5_{d}", mark=d < 2) for d in range(7)] + [nic("cn01", "mlx5_7", rate=HDR, mark=True)],
    }, "cn01:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_7:1/IB [RO]; OOB eth0:10.0.0.1<0>\n", severity="major", why="NCCL uses it beside faster ones"),
    fires_on("link_below_its_ends", "link-rate-degraded", {
        "iblinkinfo.txt": [switch(i, NDR, mark=i < 2) for i in range(8)] + [switch(8, HDR, mark=True)],
    }, severity="minor", why="a storage host on a switch"),
    near_miss_on("link_below_its_ends", "every host has one slower NIC, numbered as the kernel found it", {
        "ibstat.txt": [nic(f"cn0{i}", f"mlx5_{d}", rate=HDR if d == (3 if i == 2 else 4) else NDR) for i in range(1, 4) for d in range(5)],
    }),
    near_miss_on("another_link_layer", "the Ethernet NIC has another number on one host", {
        "ibstat.txt": [nic(f"cn0{i}", f"mlx5_{d}", link_layer="Ethernet" if d == (0 if i == 2 else 2) else "InfiniBand") for i in range(1, 4) for d in range(3)],
    }),
    near_miss_on("another_link_layer", "a login node with a slow Ethernet NIC", {
        "ibstat.txt": [nic(f"cn0{i}", "mlx5_0") for i in range(1, 4)] + [nic("login1", "mlx5_0", rate=3.125e9, link_layer="Ethernet")],
    }),
    fires_on("mtu_differs", "mtu-mismatch", {
        "devinfo.txt": [nic("cn01", "mlx5_0", mark=True, mtu_bytes=4096), nic("cn02", "mlx5_0", mark=True, mtu_bytes=4096), nic("cn03", "mlx5_0", mark=True, mtu_bytes=1024)],
    }, severity="minor"),
    fires_on("mtu_differs", "mtu-mismatch", {
        "devinfo.txt": [nic("cn01", "mlx5_0", mark=True, mtu_bytes=4096), nic("cn02", "mlx5_0", mark=True, mtu_bytes=4096), nic("cn03", "mlx5_0", mark=True, mtu_bytes=1024)],
    }, "> cn03:7:9 [0] NCCL WARN NET/IB : Got completion from peer 10.1.0.7<45041> with error 12, opcode 0, len 0, vendor err 129\n", severity="fatal"),
    near_miss_on("mtu_differs", "a management port differs on every host", {
        "devinfo.txt": [nic(f"cn0{i}", f"mlx5_{d}", mtu_bytes=1024 if d == 2 else 4096) for i in range(1, 4) for d in range(3)],
    }),
    fires_on("port_refused", "link-rate-degraded", {"ib_write_bw.txt": [shown("events", event="perftest.port_down", level="error", text="Port number 1 state is Down", fields={"port": "1", "state": "Down"})]}, severity="major"),
    near_miss_on("port_refused", "the run went on", {
        "ib_write_bw.txt": [row("events", event="perftest.port_down", level="error", text="Port number 1 state is Down", fields={"port": "1", "state": "Down"}),
                            row("measurements", tool="perftest", size_bytes=65536, algbw_bytes_per_s=48e9)],
    }),
    fires("comes_up_again", "link-flap", """
        > May 02 10:00:01 cn9 kernel: mlx5_core 0000:81:00.0 ens5f0: Link up
        > May 02 10:00:09 cn9 kernel: mlx5_core 0000:81:00.0 ens5f0: Link up
        > May 02 10:00:15 cn9 kernel: mlx5_core 0000:81:00.0 ens5f0: Link up
    """, severity="major"),
    near_miss("comes_up_again", "ports that a boot brings up", """
        [   11.2] mlx5_core 0000:81:00.0 ens5f0: Link up
        [   14.9] mlx5_core 0000:81:00.0 ens5f0: Link up
        [   21.4] mlx5_core 0000:81:00.0 ens5f0: Link up
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_a_finding_names_both_ends_of_the_cable():
    """Who goes to the rack wants host, device, port and the switch port at the other end."""
    from .told import RULE, facts_of

    rows = {"ibstat.txt": [nic(f"cn0{i}", "mlx5_0") for i in (1, 2, 4)] + [nic("cn03", "mlx5_0", **DOWN)]}
    (finding,) = RULE["port_down_here_only"](facts_of({}, rows))
    assert "cn03 mlx5_0 port 1 to leaf03 port 7 is Down (Polling)" in finding.summary
