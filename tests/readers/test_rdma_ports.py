"""What a host says of its RDMA ports: ibstat, ibstatus, ibv_devinfo, rdma link, show_gids. Sources of the texts: fixtures/README.md."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.rdma_ports import READER

from .damage import contents, cuts, fixture, interleaved, mutations
from .reading import columns, read_text

GBIT = 1e9 / 8
OUTPUTS = [
    "ib/ibstat.txt", "ib/ibstat_down.txt", "rdma/ibstat_public.txt", "rdma/ibstatus_public.txt", "rdma/ibv_devinfo_v_public.txt",
    "rdma/rdma_link_public.txt", "rdma/show_gids_public.txt",
]  # fmt: skip
STATE = ("device", "port", "state", "physical_state", "link_layer")


def test_recorded_ibstat():
    """4X SDR is printed as 10 and carries 8 Gb/s of data: 8b/10b."""
    found = read_text(READER, fixture("ib/ibstat.txt"))
    assert columns(found.ports, *STATE, "lid", "guid", "node_kind") == [
        ("ibsim0", 1, "active", "link_up", "InfiniBand", 1, "0x0000000000100001", "ca")
    ]
    assert columns(found.ports, "rate_bytes_per_s") == [(pytest.approx(10 * 0.8 * GBIT),)]
    assert [(row["name"], dict(row["attributes"])["type"]) for row in found.devices] == [("ibsim0", "simulator")]


def test_a_port_that_is_down_has_no_rate():
    """ibstat prints 10 for it, which is left over; its event keeps what is printed."""
    found = read_text(READER, fixture("ib/ibstat_down.txt"))
    assert columns(found.ports, *STATE, "rate_bytes_per_s") == [
        ("ibsim0", 1, "down", "polling", "InfiniBand", None),
    ]
    assert found.events_named("rdma.rate") == [{"rate": "10"}]


def test_ibstat_of_several_devices():
    found = read_text(READER, fixture("rdma/ibstat_public.txt"))
    assert columns(found.ports, *STATE, "rate_bytes_per_s") == [
        ("mlx5_0", 1, "active", "link_up", "InfiniBand", pytest.approx(400 * GBIT)),
        ("mlx4_0", 1, "down", "disabled", "InfiniBand", None),
        ("mlx4_0", 2, "active", "link_up", "InfiniBand", pytest.approx(4 * 14.0625 * 64 / 66 * GBIT)),  # FDR, "56"
        ("mlx5_1", 1, "active", "link_up", "Ethernet", pytest.approx(100 * GBIT)),
    ]
    text = fixture("rdma/ibstat_public.txt")
    assert len(found.ports) == len(re.findall(r"^\s+Port \d+:", text, re.M))
    assert len(found.devices) == len(re.findall(r"^CA '", text, re.M))
    assert [row["guid"] for row in found.ports] == re.findall(r"Port GUID: (0x\w+)", text)


def test_ibstatus():
    """40 Gb/s of Ethernet is 40 Gb/s of data, though the driver calls it 4X QDR."""
    found = read_text(READER, fixture("rdma/ibstatus_public.txt"))
    assert columns(found.ports, *STATE, "width", "rate_bytes_per_s", "lid") == [
        ("mlx5_0", 1, "active", "link_up", "InfiniBand", 4, pytest.approx(200 * GBIT), 0x22),
        ("mlx5_2", 1, "down", "disabled", "Ethernet", None, None, 0),
        ("mlx5_3", 1, "active", "link_up", "Ethernet", 4, pytest.approx(40 * GBIT), 0),
        ("mlx5_11", 1, "down", "disabled", "InfiniBand", None, None, 0xFFFF),
    ]
    assert found.ports[0]["guid"] == "0x88e9a4ffff0000dc"  # the lower half of the GID
    assert len(found.events_named("rdma.device")) == 4


def test_ibv_devinfo():
    found = read_text(READER, fixture("rdma/ibv_devinfo_v_public.txt"))
    assert columns(found.ports, *STATE, "width", "rate_bytes_per_s", "mtu_bytes") == [
        ("mlx5_3", 1, "active", "link_up", "Ethernet", 4, pytest.approx(4 * 25 * GBIT), 1024),
        ("mlx5_4", 1, "down", "disabled", "InfiniBand", None, None, 1024),
    ]
    assert [dict(row["attributes"])["node_guid"] for row in found.devices] == [
        "0x08c0eb030000e2e6",
        "0x08c0eb030000917f",
    ]
    assert [event["index"] for event in found.events_named("rdma.gid")] == ["0", "1", "2", "3"]
    assert found.losses == []


def test_ibv_devinfo_pasted_without_its_indentation():
    """Source: open-mpi/ompi#9087. Capabilities, a line each, do not end the device's report."""
    text = "\n".join(line.strip() for line in fixture("rdma/ibv_devinfo_v_public.txt").splitlines())
    flags = "\n".join(f"FLAG_{'ABCDEFGHIJKLMNOPQRST'[i]}" for i in range(20))
    found = read_text(READER, text.replace("BAD_PKEY_CNTR", flags))
    assert columns(found.ports, *STATE[:3]) == [("mlx5_3", 1, "active"), ("mlx5_4", 1, "down")]


@pytest.mark.parametrize(
    ("width", "speed", "gbit"),
    [
        ("4X (2)", "10.0 Gbps (4)", 32),  # QDR
        ("4X (2)", "10.0 Gbps (8)", 40),  # FDR10
        ("4X (2)", "14.0 Gbps (16)", 4 * 14.0625 * 64 / 66),
        ("2X (16)", "50.0 Gbps (64)", 100),
        ("4X (2)", "100.0 Gbps (128)", 400),
        ("4X (2)", "200.0 Gbps (256)", 800),
    ],
)
def test_lanes_of_ibv_devinfo(width: str, speed: str, gbit: float):
    """rdma-core libibverbs/examples/devinfo.c prints one lane, with the number of the speed behind it."""
    text = f"hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_ACTIVE (4)\n\t\t\tactive_width:\t{width}\n\t\t\tactive_speed:\t{speed}\n"
    assert columns(read_text(READER, text).ports, "rate_bytes_per_s") == [(pytest.approx(gbit * GBIT),)]


@pytest.mark.parametrize(
    ("printed", "gbit"),
    [
        ("2.5", 2),
        ("10", 8),
        ("20", 16),
        ("40", 32),
        ("40 (FDR10)", 40),
        ("56", 4 * 14.0625 * 64 / 66),
        ("100", 100),
        ("800", 800),
    ],
)
def test_sums_of_ibstat(printed: str, gbit: float):
    text = f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: {printed}\n\t\tLink layer: InfiniBand\n"
    found = read_text(READER, text)
    assert columns(found.ports, "rate_bytes_per_s") == [(pytest.approx(gbit * GBIT),)]
    assert [event["rate"] for event in found.events_named("rdma.rate")] == [printed.split(maxsplit=1)[0]]


def test_rdma_link():
    """Only RoCE and iWARP ports name a network interface. The last line is of iproute2 before 5.0."""
    found = read_text(READER, fixture("rdma/rdma_link_public.txt"))
    assert columns(found.ports, *STATE, "lid") == [
        ("mlx5_0", 1, "down", "disabled", "Ethernet", None),
        ("mlx5_1", 1, "active", "link_up", "Ethernet", None),
        ("mlx5_2", 1, "active", "link_up", None, 13399),
        ("mlx5_bond_0", 1, "active", "link_up", "Ethernet", None),
    ]
    assert [(e["device"], e["state"], e["physical"]) for e in found.events_named("rdma.link")] == [
        ("mlx5_0/1", "DOWN", "DISABLED"),
        ("mlx5_1/1", "ACTIVE", "LINK_UP"),
        ("mlx5_2/1", "ACTIVE", "LINK_UP"),
        ("mlx5_bond_0/1", "ACTIVE", "LINK_UP"),
    ]


def test_show_gids():
    found = read_text(READER, fixture("rdma/show_gids_public.txt"))
    assert [
        (e["device"], e["port"], e["index"], e["type"], e.get("ipv4"), e["netdev"])
        for e in found.events_named("rdma.gid")
    ] == [
        ("mlx5_0", "1", "0", "RoCE v1", None, "ens1f0"),
        ("mlx5_0", "1", "1", "RoCE v2", None, "ens1f0"),
        ("mlx5_0", "1", "4", "RoCE v1", "172.19.0.60", "ens1f0"),
        ("mlx5_0", "1", "5", "RoCE v2", "172.19.0.60", "ens1f0"),
    ]
    assert {row["host"] for row in found.events} == {"localhost"}


def test_ibdev2netdev():
    found = read_text(READER, fixture("rdma/ibdev2netdev_public.txt"))
    assert [(e["device"], e["netdev"], e["state"]) for e in found.events_named("rdma.netdev")] == [
        ("mlx5_0", "ens7f0np0", "Down"),
        ("mlx5_1", "ens7f1np1", "Up"),
        ("mlx5_10", "ibp204s0", "Down"),
    ]


def test_hosts_of_a_parallel_shell_are_kept_apart():
    """pdsh puts the host in front and mixes the lines of hosts."""
    one, other = fixture("ib/ibstat.txt").splitlines(), fixture("ib/ibstat_down.txt").splitlines()
    text = "".join(f"node1: {a}\nnode2: {b}\n" for a, b in zip(one, other, strict=True))
    assert columns(read_text(READER, text).ports, "host", *STATE[:4]) == [
        ("node1", "ibsim0", 1, "active", "link_up"),
        ("node2", "ibsim0", 1, "down", "polling"),
    ]


def test_the_prompt_names_the_host():
    text = "".join(f"[root@{host} ~]# ibstat\n{fixture('ib/ibstat.txt')}" for host in ("node1", "node2"))
    assert columns(read_text(READER, text).ports, "host", "device") == [("node1", "ibsim0"), ("node2", "ibsim0")]


def test_lines_that_grep_picked_out():
    """`ibstat | grep -E "^CA|State|Rate"`: no line names the port, so its number is unknown."""
    text = "CA 'mlx5_0'\n\t\tState: Active\n\t\tRate: 400\nCA 'mlx5_1'\n\t\tState: Active\n\t\tRate: 200\n"
    assert columns(read_text(READER, text).ports, "device", "port", "state", "rate_bytes_per_s") == [
        ("mlx5_0", None, "active", pytest.approx(400 * GBIT)),
        ("mlx5_1", None, "active", pytest.approx(200 * GBIT)),
    ]


def test_files_of_sysfs_that_grep_printed_are_one_port():
    text = "".join(
        f"/sys/class/infiniband/mlx5_0/ports/1/{name}:{value}\n"
        for name, value in (
            ("link_layer", "InfiniBand"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("state", "4: ACTIVE"),
        )
    )
    found = read_text(READER, text + text.replace("4: ACTIVE", "1: DOWN"))
    assert columns(found.ports, *STATE, "width", "rate_bytes_per_s") == [
        ("mlx5_0", 1, "active", "link_up", "InfiniBand", 4, pytest.approx(400 * GBIT)),
        ("mlx5_0", 1, "down", "link_up", "InfiniBand", None, None),
    ]


@pytest.mark.parametrize(
    ("file", "text", "column", "value"),
    [
        ("state", "4: ACTIVE\n", "state", "active"),
        ("phys_state", "2: Polling\n", "physical_state", "polling"),
        ("rate", "400 Gb/sec (4X NDR)\n", "rate_bytes_per_s", 400 * GBIT),
        ("link_layer", "Ethernet\n", "link_layer", "Ethernet"),
        ("lid", "0x1f\n", "lid", 31),
    ],
)
def test_a_file_of_a_copied_sysfs_tree(file: str, text: str, column: str, value: object):
    found = read_text(READER, text, f"bundle.tar.gz!node3/sys/class/infiniband/mlx5_0/ports/1/{file}")
    assert columns(found.ports, "host", "device", "port", column) == [("node3", "mlx5_0", 1, value)]
    assert read_text(READER, text, f"{file}.txt").ports == []


@pytest.mark.parametrize(
    "text",
    [
        "State: Active\nRate: 400\n",  # of what?
        "job state: running\nrate: 3 it/s\n",
        "CA: host3 HCA-1:\n",  # iblinkinfo
        "link established to node3/1 in state ACTIVE\n",
    ],
)
def test_other_texts_give_no_ports(text: str):
    found = read_text(READER, text)
    assert (found.ports, found.losses) == ([], [])


@pytest.mark.parametrize(
    "line",
    ["State: Actixe", "Physical state: L!nkUp", "Rate: 4O0", "Base lid: 1.5", "Port GUID: 0xZZ", "Link layer: Infini"],
)
def test_a_damaged_value_is_unknown_and_counted(line: str):
    """Everything else of the port is still read."""
    key = line.split(":", 1)[0]
    text = re.sub(rf"{key}: .*", line, fixture("ib/ibstat.txt"))
    found = read_text(READER, text)
    whole, part = read_text(READER, fixture("ib/ibstat.txt")).ports[0], found.ports[0]
    missing = {name for name in whole if name not in part}
    assert len(missing) == 1
    assert missing <= {"state", "physical_state", "rate_bytes_per_s", "lid", "guid", "link_layer"}
    assert found.loss_counts == {"damaged-value": 1}


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
    """A column may still be unknown in the last; what is known is what the whole says, but for width and rate, which need several lines."""
    whole = read_text(READER, fixture(name)).ports
    for text in cuts(fixture(name)):
        part = read_text(READER, text)
        assert part.losses == []
        assert len(part.ports) <= len(whole)
        for row, full in zip(part.ports, whole, strict=False):
            rest = {key: value for key, value in row.items() if key not in ("width", "rate_bytes_per_s")}
            assert rest.items() <= full.items()


@settings(max_examples=150, deadline=None)
@given(data=mutations([fixture(name) for name in OUTPUTS]))
def test_no_mutation_raises(data: bytes):
    read_text(READER, data)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_value_raises(value: str):
    read_text(
        READER,
        f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: {value}\n\t\tRate: {value}\n\t\tBase lid: {value}\n\t\tPort GUID: {value}\n",
    )
