"""Counters of ports: perfquery, ibqueryerrors, sysfs, ethtool, mlnx_qos. Sources of the texts: fixtures/README.md."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.port_counters import READER

from .damage import contents, cuts, fixture, interleaved, mutations
from .reading import Found, columns, read_text

OUTPUTS = [
    "ib/perfquery.txt", "ib/perfquery_x.txt", "ib/perfquery_loop.txt", "ib/ibqueryerrors_public.txt", "rdma/hw_counters_public.txt",
    "rdma/hw_counters_loop_public.txt", "rdma/ethtool_S_eth0.txt", "rdma/ethtool_S_twice.txt", "rdma/ethtool_S_queues_public.txt",
    "rdma/ethtool_S_grep_public.txt", "rdma/ethtool_public.txt", "rdma/mlnx_qos_public.txt",
]  # fmt: skip
SERIES = ("host", "device", "port", "name")


def series(row: dict[str, Any]) -> tuple[Any, ...]:
    """What two snapshots of one counter share."""
    return (*(row.get(name) for name in SERIES), tuple(sorted(dict(row.get("labels", ())).items())))


def values(found: Found) -> dict[str, float]:
    return {row["name"]: row["value"] for row in found.counters}


@pytest.mark.parametrize(
    "name", ["ib/perfquery.txt", "ib/perfquery_x.txt", "ib/perfquery_after.txt", "ib/perfquery_loop.txt"]
)
def test_recorded_perfquery(name: str):
    """Each line with dots is a counter, but for those that say which are meant. Lid and port stand in the head."""
    text = fixture(name)
    found = read_text(READER, text)
    expected, head = [], ("", "")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            head = re.findall(r"Lid (\d+) port (\d+)", line)[0]
        elif "Select" not in line:
            counter, value = re.split(r":\.+", line)
            expected.append((number, f"lid {head[0]}", int(head[1]), counter, float(value)))
    assert columns(found.counters, "line", "device", "port", "name", "value") == expected
    assert found.losses == []


def test_extended_counters_are_a_series_of_their_own():
    """PortXmitData of perfquery stops at 32 bits, that of perfquery -x does not: their difference means nothing."""
    plain = {series(row) for row in read_text(READER, fixture("ib/perfquery.txt")).counters}
    extended = {series(row) for row in read_text(READER, fixture("ib/perfquery_x.txt")).counters}
    assert {s[3] for s in plain} & {s[3] for s in extended} == {
        "PortXmitData",
        "PortRcvData",
        "PortXmitPkts",
        "PortRcvPkts",
    }
    assert plain & extended == set()


@pytest.mark.parametrize(
    ("before", "after", "grew"),
    [
        (
            fixture("ib/perfquery_before.txt"),
            fixture("ib/perfquery_after.txt"),
            {"SymbolErrorCounter": 7, "LinkDownedCounter": 3},
        ),
        (
            fixture("rdma/hw_counters_public.txt"),
            fixture("rdma/hw_counters_public.txt").replace("local_ack_timeout_err:2705", "local_ack_timeout_err:2800"),
            {"local_ack_timeout_err": 95},
        ),
        (
            "root@node0:~# ethtool -S eth0\n" + fixture("rdma/ethtool_S_eth0.txt"),
            "root@node0:~# ethtool -S eth0\n"
            + re.sub(r"rx_drops: 0", "rx_drops: 9", fixture("rdma/ethtool_S_eth0.txt")),
            {"rx_drops": 9},
        ),
    ],
)
def test_two_snapshots_join_and_the_later_comes_later(before: str, after: str, grew: dict[str, int]):
    """In one file by the order of rows; in two files the same series have the same names."""
    rows = read_text(READER, before + after).counters
    first: dict[Any, float] = {}
    growth: dict[str, float] = {}
    for row in rows:
        if series(row) in first:
            growth[row["name"]] = row["value"] - first[series(row)]
        first.setdefault(series(row), row["value"])
    assert len(rows) == 2 * len(growth)
    assert {name: growth[name] for name in grew} == grew
    assert {series(r) for r in read_text(READER, before).counters} == {
        series(r) for r in read_text(READER, after).counters
    }


def test_smpquery_prints_no_counters():
    assert read_text(READER, fixture("ib/smpquery_portinfo.txt")).tables == {}


def test_ibqueryerrors():
    """Public report. The sum over a switch's ports is port 255, as perfquery counts."""
    found = read_text(READER, fixture("ib/ibqueryerrors_public.txt"))
    assert columns(found.counters, "device", "port", "name", "value") == [
        ("0x7cfe900300000b31", 1, "VL15Dropped", 14),
        ("0x7cfe900300000b31", 1, "PortXmitWait", 4294967295),
        ("0x7cfe900300000b32", 2, "PortXmitWait", 2),
        ("0x02c90300000029b0", 255, "LinkErrorRecoveryCounter", 15),
        ("0x02c90300000029b0", 255, "LinkDownedCounter", 48),
        ("0x02c90300000029b0", 255, "PortXmitDiscards", 15854),
        ("0x02c90300000029b0", 1, "LinkDownedCounter", 8),
        ("0x02c90300000029b0", 1, "PortRcvSwitchRelayErrors", 2),
        ("0x02c90300000029b0", 1, "PortXmitWait", 4294967295),
    ]


HW = {
    "duplicate_request": 0,
    "implied_nak_seq_err": 0,
    "lifespan": 12,
    "local_ack_timeout_err": 2705,
    "np_cnp_sent": 1333,
    "np_ecn_marked_roce_packets": 0,
}
FOLDER = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters"


@pytest.mark.parametrize(
    "form",
    [
        f"{FOLDER}/{{name}}:{{value}}\n",  # grep "" FOLDER/*
        f"{FOLDER}/{{name}} {{value}}\n",  # for f in FOLDER/*; do echo $f $(cat $f); done
        f"{FOLDER}/{{name}} = {{value}}\n",
        f"==> {FOLDER}/{{name}} <==\n{{value}}\n\n",  # head FOLDER/*
        f"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0{FOLDER[10:]}/{{name}}:{{value}}\n",
    ],
)
def test_forms_of_hw_counters(form: str):
    text = "".join(form.format(name=name, value=value) for name, value in HW.items())
    found = read_text(READER, text)
    assert values(found) == HW
    assert {(row["device"], row["port"]) for row in found.counters} == {("mlx5_0", 1)}


def test_recorded_hw_counters():
    found = read_text(READER, fixture("rdma/hw_counters_public.txt"))
    assert (values(found), {row["device"] for row in found.counters}) == (HW, {"mlx5_0"})


def test_a_loop_below_the_folder():
    """Source: netdata/netdata#9091. The command names the folder, the lines name the files."""
    found = read_text(READER, fixture("rdma/hw_counters_loop_public.txt"))
    assert columns(found.counters, "device", "port", "name", "value") == [
        ("hfi1_0", 1, "DmaWait", 50646), ("hfi1_0", 1, "lifespan", 10), ("hfi1_0", 1, "RcAcks", 19918731), ("hfi1_0", 1, "RcTimeOut", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("bundle.tar.gz!node3/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "node3"),
        ("before/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", None),
        ("/sys/class/infiniband/mlx5_0/ports/1/counters/out_of_sequence", None),
    ],
)
def test_a_file_of_a_copied_sysfs_tree(path: str, host: str | None):
    """Its path says all but the value. A folder named after a moment is no host, or two snapshots would not join."""
    found = read_text(READER, "17\n", path)
    assert columns(found.counters, *SERIES, "value") == [(host, "mlx5_0", 1, "out_of_sequence", 17)]
    assert read_text(READER, "17\n", "out_of_sequence").counters == []
    assert read_text(READER, "17\n18\n", path).counters == []


@pytest.mark.parametrize("name", ["rdma/ethtool_S_eth0.txt", "rdma/ethtool_S_ifb0.txt"])
def test_recorded_ethtool_statistics(name: str):
    """The tool does not name the interface; sosreport's file name does."""
    text = fixture(name)
    expected = {key: float(value) for key, value in re.findall(r"^ +(\w+): (\d+)$", text, re.M)}
    assert len(expected) == len(text.splitlines()) - 1
    found = read_text(READER, text)
    assert values(found) == expected
    assert {row.get("device") for row in found.counters} == {None}
    assert {row["device"] for row in read_text(READER, text, "sos_commands/networking/ethtool_-S_eth0").counters} == {
        "eth0"
    }


def test_statistics_taken_twice():
    """Recorded a second apart; the prompt names host and interface."""
    found = read_text(READER, fixture("rdma/ethtool_S_twice.txt"))
    half = len(found.counters) // 2
    first, second = found.counters[:half], found.counters[half:]
    assert [series(row) for row in first] == [series(row) for row in second]
    assert {(row["host"], row["device"]) for row in found.counters} == {("node0", "eth0")}
    assert all(a["value"] <= b["value"] for a, b in zip(first, second, strict=True))


def test_queues_are_labels():
    found = read_text(READER, fixture("rdma/ethtool_S_queues_public.txt"))
    assert [(row["name"], dict(row.get("labels", ())), row["value"]) for row in found.counters if row["name"] == "rx_ucast_packets"] == [
        ("rx_ucast_packets", {"queue": "0"}, 105342422), ("rx_ucast_packets", {"queue": "1"}, 940146), ("rx_ucast_packets", {}, 106282568),
    ]  # fmt: skip


def test_statistics_that_grep_picked_out():
    found = read_text(READER, fixture("rdma/ethtool_S_grep_public.txt"))
    assert columns(found.counters, "device", "name", "value")[2:4] == [
        ("ens1f0", "rx_prio3_pause", 41927),
        ("ens1f0", "tx_prio3_pause", 1290418),
    ]
    assert len(found.counters) == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [("rdma/ethtool_lo.txt", ("lo", "active", None)), ("rdma/ethtool_eth0.txt", ("eth0", "active", None))],
)
def test_recorded_ethtool(name: str, expected: tuple[str, str, None]):
    """A virtual interface has no speed: Unknown!"""
    found = read_text(READER, fixture(name))
    assert columns(found.ports, "device", "state", "rate_bytes_per_s") == [expected]
    assert {row["node_kind"] for row in found.ports} == {"netdev"}
    assert found.losses == []


def test_ethtool_knows_what_both_ends_could_do():
    """A forum's report: both ends offer 1000baseT, the link runs at 100 Mb/s."""
    found = read_text(READER, fixture("rdma/ethtool_public.txt"))
    assert columns(found.ports, "device", "state", "rate_bytes_per_s", "possible_rate_bytes_per_s") == [
        ("enp3s0", "active", 100e6 / 8, 1000e6 / 8)
    ]


def test_an_interface_without_a_link_has_no_speed():
    text = fixture("rdma/ethtool_public.txt").replace("Link detected: yes", "Link detected: no (No cable)")
    assert columns(read_text(READER, text).ports, "state", "rate_bytes_per_s") == [("down", None)]


def test_priorities_with_flow_control():
    found = read_text(READER, fixture("rdma/mlnx_qos_public.txt"))
    assert [(row["device"], row["name"], dict(row["labels"])["priority"], row["value"]) for row in found.counters] == [
        ("eth4", "pfc_enabled", str(priority), float(priority == 3)) for priority in range(8)
    ]
    assert found.events_named("net.priority_trust") == [{"trust": "dscp"}]


@pytest.mark.parametrize(
    "text",
    [
        "12\n13\n",
        "epoch: 3\nloss: 4\n",
        "counters/ is a folder\n",
        "NIC: mlx5_0\n",
        "Loading:....................done\nChapter:.......12\n",
        "the ethtool manual says so\n",
    ],
)
def test_other_texts_are_left_alone(text: str):
    found = read_text(READER, text)
    assert (found.tables, found.losses) == ({}, [])


@pytest.mark.parametrize(
    "name", ["ib/perfquery.txt", "ib/perfquery_x.txt", "rdma/ethtool_S_eth0.txt", "rdma/hw_counters_public.txt"]
)
@pytest.mark.parametrize("garbage", ["1O5", "9" * 30, "-", "0x1f", "12 13"])
def test_a_garbled_figure_is_counted(name: str, garbage: str):
    """Of each line in turn: one row fewer, one loss with its line."""
    lines = fixture(name).splitlines()
    whole = contents(read_text(READER, fixture(name)))["counters"]
    for n, line in enumerate(lines):
        if line.startswith("#") or "Select" in line or not line[-1].isdigit():
            continue
        found = read_text(READER, "\n".join([*lines[:n], re.sub(r"\d+$", garbage, line), *lines[n + 1 :]]))
        assert len(found.counters) == len(whole) - 1
        assert [(loss.kind, loss.line, loss.count) for loss in found.losses] == [("damaged-value", n + 1, 1)]


def test_a_row_of_priorities_of_other_length_is_counted():
    text = fixture("rdma/mlnx_qos_public.txt").replace(
        "enabled     0   0   0   1   0   0   0   0", "enabled     0   0   0   1"
    )
    found = read_text(READER, text)
    assert (found.counters, found.loss_counts) == ([], {"damaged-row": 1})


@pytest.mark.parametrize("name", OUTPUTS)
def test_windows_line_ends_change_nothing(name: str):
    assert contents(read_text(READER, fixture(name).replace("\n", "\r\n"))) == contents(
        read_text(READER, fixture(name))
    )


@pytest.mark.parametrize("name", OUTPUTS)
def test_other_lines_in_between_change_nothing(name: str):
    assert contents(read_text(READER, interleaved(fixture(name)))) == contents(read_text(READER, fixture(name)))


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_cut_output_gives_the_first_rows_of_the_whole(name: str):
    whole = contents(read_text(READER, fixture(name)))
    for text in cuts(fixture(name)):
        part = read_text(READER, text)
        assert part.losses == []
        rows = contents(part).get("counters", [])
        assert rows == whole.get("counters", [])[: len(rows)]


@settings(max_examples=150, deadline=None)
@given(data=mutations([fixture(name) for name in OUTPUTS]))
def test_no_mutation_raises(data: bytes):
    read_text(READER, data)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_figure_raises(value: str):
    read_text(
        READER,
        f"# Port counters: Lid 1 port 1 (x)\nA:....{value}\nNIC statistics:\n  a: {value}\nSettings for a:\n  Speed: {value}\n{FOLDER}/a:{value}\n",
    )
