"""What the InfiniBand fabric says of its links: iblinkinfo, ibnetdiscover, ibhosts. Sources of the texts: fixtures/README.md."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.ib_fabric import READER

from .damage import contents, cuts, fixture, interleaved, mutations
from .reading import columns, read_text

GBIT = 1e9 / 8
SDR = 2.5 * 0.8 * GBIT
"""One lane: 8b/10b takes a fifth."""
LINKS = [
    "ib/iblinkinfo.txt", "ib/iblinkinfo__l.txt", "ib/iblinkinfo_degraded.txt", "ib/iblinkinfo__l_degraded.txt", "ib/iblinkinfo_down.txt",
]  # fmt: skip
OUTPUTS = [
    *LINKS,
    "ib/ibnetdiscover.txt",
    "ib/ibnetdiscover__p.txt",
    "ib/ibnetdiscover_p_down.txt",
    "ib/ibhosts.txt",
    "ib/ibnodes.txt",
    "ib/iblinkinfo_public.txt",
]
END = ("device", "port", "peer", "peer_port")


@pytest.mark.parametrize("name", LINKS)
def test_recorded_iblinkinfo(name: str):
    """Each line with an arrow is one end of a link; those with a partner are up, in both directions; the others poll."""
    text = fixture(name)
    found = read_text(READER, text)
    arrows = [line for line in text.splitlines() if "==>" in line]
    assert len(found.ports) == len(arrows)
    assert [row["line"] for row in found.ports] == [n for n, line in enumerate(text.splitlines(), 1) if "==>" in line]
    for row, line in zip(found.ports, arrows, strict=True):
        up = "LinkUp" in line
        assert (row["state"], row["physical_state"]) == (("active", "link_up") if up else ("down", "polling"))
        assert ("peer" in row, "rate_bytes_per_s" in row) == (up, up)
        if up:
            assert row["width"] == int(re.search(r"(\d+)X", line)[1])
            assert row["rate_bytes_per_s"] == pytest.approx(row["width"] * SDR)
            assert (row["possible_width"], row["possible_rate_bytes_per_s"]) == (
                12,
                pytest.approx(12 * 10 * 0.8 * GBIT),
            )
    ends = {(row["device"], row["port"]): (row["peer"], row["peer_port"]) for row in found.ports if "peer" in row}
    assert all(ends[peer] == end for end, peer in ends.items())
    assert found.losses == []


def test_both_forms_of_iblinkinfo_say_the_same():
    """Only the kind of a node is not in the lines of -l."""
    for one, other in (
        ("ib/iblinkinfo.txt", "ib/iblinkinfo__l.txt"),
        ("ib/iblinkinfo_degraded.txt", "ib/iblinkinfo__l_degraded.txt"),
    ):
        rows = contents(read_text(READER, fixture(one)))["ports"]
        assert [{k: v for k, v in row.items() if k != "node_kind"} for row in rows] == contents(
            read_text(READER, fixture(other))
        )["ports"]


def test_links_of_one_lane_stand_out():
    """The two links that the netlist gives one lane, from both ends."""
    found = read_text(READER, fixture("ib/iblinkinfo_degraded.txt"))
    assert {end[:3] for end in columns([r for r in found.ports if r.get("width") == 1], *END)} == {
        ("L1", 1, "S0"), ("S0", 2, "L1"), ("L1", 5, "host2 HCA-1"), ("host2 HCA-1", 1, "L1"),
    }  # fmt: skip


def test_a_link_that_went_is_a_port_that_polls():
    """Its host is gone from the fabric with it."""
    before = {end[:2]: end for end in columns(read_text(READER, fixture("ib/iblinkinfo_degraded.txt")).ports, *END)}
    after = read_text(READER, fixture("ib/iblinkinfo_down.txt")).ports
    states = {(row["device"], row["port"]): row["state"] for row in after}
    assert before["L1", 6] == ("L1", 6, "host3 HCA-1", 1)
    assert states["L1", 6] == "down"
    assert {row.get("host") for row in after} == {None, "host0", "host1", "host2"}


def test_hdr_switch_with_edr_adapters():
    """Public notes. EDR is printed as 25.78125, carries 25 a lane and could be HDR, 53.125, which carries 50."""
    found = read_text(READER, fixture("ib/iblinkinfo_public.txt"))
    assert columns(
        found.ports, "port", "state", "width", "rate_bytes_per_s", "possible_width", "possible_rate_bytes_per_s", "peer"
    ) == [
        (20, "down", None, None, None, None, None),
        (21, "active", 4, pytest.approx(100 * GBIT), 4, pytest.approx(200 * GBIT), "node3 HCA-2"),
        (22, "active", 4, pytest.approx(100 * GBIT), 4, pytest.approx(200 * GBIT), "node4 HCA-2"),
        (40, "active", 4, pytest.approx(200 * GBIT), 4, pytest.approx(200 * GBIT), "MF0;sw1:MQM8700/U1"),
        (
            41,
            "active",
            4,
            pytest.approx(200 * GBIT),
            4,
            pytest.approx(200 * GBIT),
            "Mellanox Technologies Aggregation Node",
        ),
    ]
    assert {row.get("host") for row in found.ports} == {None}  # not the host that ran the tool
    assert columns(found.devices, "kind", "name", "host") == [
        ("switch", "Quantum Mellanox Technologies", None),
        ("switch", "MF0;sw1:MQM8700/U1", None),
        ("ca", "Mellanox Technologies Aggregation Node", None),
        ("ca", "node3 HCA-2", "node3"),
    ]


def link(speed: str, could: str = " ", state: str = "Active/  LinkUp") -> str:
    return f'           3    1[  ] ==({speed} {state})==>       4    2[  ] "S0" ({could})\n'


@pytest.mark.parametrize(
    ("speed", "could", "rate", "possible"),
    [
        (" 4X          10.0 Gbps", " ", 32, 32),
        (" 4X  10.0 Gbps (FDR10)", " ", 40, 40),
        (" 4X          10.0 Gbps", " Could be FDR10 (Found link at QDR but expected speed is FDR10)", 32, 40),
        (" 4X       14.0625 Gbps", " ", 4 * 14.0625 * 64 / 66, 4 * 14.0625 * 64 / 66),
        (" 1X      25.78125 Gbps", "Could be 4X ", 25, 100),
        (" 2X        106.25 Gbps", "Could be 4X ", 200, 400),
        (" 4X        106.25 Gbps", " Could be 212.5 Gbps", 400, 800),
        (" 4X     undefined (16)", " ", None, None),  # a speed that this version of the tool does not know
    ],
)
def test_what_a_link_is_and_could_be(speed: str, could: str, rate: float | None, possible: float | None):
    """rdma-core infiniband-diags/ibdiag_common.c, get_max_msg; libibmad/dump.c."""
    found = read_text(READER, link(speed, could))
    expected = [pytest.approx(r * GBIT) if r is not None else None for r in (rate, possible)]
    assert columns(found.ports, "rate_bytes_per_s", "possible_rate_bytes_per_s") == [tuple(expected)]
    assert (found.ports[0]["width"], found.losses) == (int(speed.split("X", 1)[0]), [])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("Initialize/  LinkUp", ("init", "link_up")),
        (" Armed/  LinkUp", ("armed", "link_up")),
        ("Active/LinkErrorRecovery", ("active", "link_error_recovery")),
        ("Down/Disabled", ("down", "disabled")),
        ("Down/PortConfigurationTraining", ("down", "training")),
    ],
)
def test_states_of_a_link(state: str, words: tuple[str, str]):
    assert columns(read_text(READER, link(" 4X          10.0 Gbps", state=state)).ports, "state", "physical_state") == [
        words
    ]


def test_lines_that_grep_picked_out_keep_their_peer():
    """`iblinkinfo | grep Could`: the node is not in the line of a switch's port; its LID is."""
    text = "".join(line + "\n" for line in fixture("ib/iblinkinfo.txt").splitlines() if "Could" in line)
    found = read_text(READER, text)
    assert len(found.ports) == text.count("Could be 12X")
    assert {row["lid"] for row in found.ports} == {1, 2, 3, 4, 5, 6, 7, 8}
    assert {row.get("device") for row in found.ports} == {None}


def test_ports_below_a_lost_head_belong_to_no_other_node():
    """The LID of a switch is one; another below the same head shows that a head is missing."""
    lines = fixture("ib/iblinkinfo.txt").splitlines()
    for n, line in enumerate(lines):
        if not line.startswith(("Switch:", "CA:")):
            continue
        rows = read_text(READER, "\n".join([*lines[:n], line[:2], *lines[n + 1 :]])).ports
        devices = {(row["lid"], row.get("device")) for row in rows}
        assert devices <= {
            (row["lid"], d)
            for row in read_text(READER, fixture("ib/iblinkinfo.txt")).ports
            for d in (row["device"], None)
        }


@pytest.mark.parametrize("name", ["ib/ibnetdiscover.txt", "ib/ibnetdiscover_648_hosts.txt.gz"])
def test_recorded_ibnetdiscover(name: str):
    """Each line that begins with a port is one end of a cable, and the other end is listed too."""
    text = fixture(name)
    found = read_text(READER, text)
    assert len(found.ports) == len(re.findall(r"^\[\d+\]", text, re.M))
    kinds = {"switch": re.findall(r'^Switch.*# "(.*?)"', text, re.M), "ca": re.findall(r'^Ca.*# "(.*?)"', text, re.M)}
    for kind, names in kinds.items():
        assert {row["device"] for row in found.ports if row["node_kind"] == kind} == set(names)
    ends = {end[:2]: end[2:] for end in columns(found.ports, *END)}
    assert len(ends) == len(found.ports)
    assert all(ends[peer] == end for end, peer in ends.items())
    assert {(row["width"], row["rate_bytes_per_s"]) for row in found.ports} == {(4, 4 * SDR)}
    assert found.losses == []


def test_ibnetdiscover_and_iblinkinfo_agree():
    """On every port that has a partner: names, LIDs, GUIDs, width, rate."""
    shared = ("device", "port", "peer", "peer_port", "lid", "guid", "width", "rate_bytes_per_s", "host", "node_kind")
    one = columns(read_text(READER, fixture("ib/ibnetdiscover.txt")).ports, *shared)
    other = columns([r for r in read_text(READER, fixture("ib/iblinkinfo.txt")).ports if "peer" in r], *shared)
    assert set(one) == set(other)
    listed = columns([r for r in read_text(READER, fixture("ib/ibnetdiscover__p.txt")).ports if "peer" in r], *shared)
    assert set(listed) == set(one)


def test_ports_of_ibnetdiscover_p_without_a_partner_have_no_rate():
    text = fixture("ib/ibnetdiscover_p_down.txt")
    found = read_text(READER, text)
    assert len(found.ports) == len(text.splitlines())
    for row, line in zip(found.ports, text.splitlines(), strict=True):
        assert ("peer" in row) == ("rate_bytes_per_s" in row) == (" - " in line)
        assert row["device"] in line


def test_recorded_port_info():
    """`smpquery portinfo 3 5`: port 5 of L1, which the netlist gives one lane."""
    found = read_text(READER, fixture("ib/smpquery_portinfo.txt"))
    shared = ("lid", "port", "state", "physical_state", "width", "rate_bytes_per_s")
    assert columns(found.ports, *shared) == [
        columns([row], *shared)[0]
        for row in read_text(READER, fixture("ib/iblinkinfo_degraded.txt")).ports
        if (row["device"], row["port"]) == ("L1", 5)
    ]
    assert columns(found.ports, "mtu_bytes") == [(2048,)]


def test_ibportstate_with_its_peer():
    """Sources: tuananh0788/Exadata#2 (the form, the peer's directed route), linux-rdma/rdma-core#847 (extended speed)."""
    text = """PortInfo:
# Port info: Lid 1 port 6
LinkState:.......................Active
PhysLinkState:...................LinkUp
Lid:.............................38
LinkWidthSupported:..............1X or 4X
LinkWidthActive:.................4X
LinkSpeedSupported:..............2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedActive:.................Extended speed
LinkSpeedExtActive:..............14.0625 Gbps
Peer PortInfo:
# Port info: Lid 1 DR path slid 2; dlid 65535; 0,6 port 1
LinkState:.......................Down
PhysLinkState:...................Polling
LinkWidthActive:.................4X
LinkSpeedActive:.................2.5 Gbps
"""
    found = read_text(READER, text)
    assert columns(found.ports, "lid", "port", "state", "width", "rate_bytes_per_s") == [
        (1, 6, "active", 4, pytest.approx(4 * 14.0625 * 64 / 66 * GBIT)),
        (None, 1, "down", None, None),
    ]
    assert found.losses == []


@pytest.mark.parametrize("name", ["ib/ibhosts.txt", "ib/ibswitches.txt", "ib/ibnodes.txt"])
def test_recorded_lists_of_nodes(name: str):
    text = fixture(name)
    found = read_text(READER, text)
    assert [(row["name"], dict(row["attributes"])["guid"]) for row in found.devices] == [
        (name, guid) for guid, name in re.findall(r'(0x\w+) ports \d+ "(.*?)"', text)
    ]
    assert [row["kind"] for row in found.devices] == [line.split()[0].lower() for line in text.splitlines()]


@pytest.mark.parametrize(
    "text",
    [
        'An arrow, "==(" or ")==>", in a sentence\n',
        "[1] some footnote\n[2] another\n",
        '[rank0]: "S-expression"\n',
        "Switch: off\nCA: certificate\n",
        "SW 3 times\n",
    ],
)
def test_other_texts_are_left_alone(text: str):
    found = read_text(READER, text)
    assert (found.tables, found.losses) == ({}, [])


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
        for table, rows in contents(part).items():
            assert rows == whole[table][: len(rows)]


@pytest.mark.parametrize("name", [name for name in OUTPUTS if "public" not in name])
def test_a_garbled_line_is_a_row_or_a_loss(name: str):
    """Its first number in a column of numbers replaced by letters: one row fewer, one loss, and the other rows as before."""
    lines = fixture(name).splitlines()
    whole = contents(read_text(READER, fixture(name)))
    for n, line in enumerate(lines):
        garbled = re.sub(r"\d+(\[  \] ==|\] *\(|\]\t| 0x\w+ \dx| \"| lid)", r"@\1", line, count=1)
        if garbled == line or line.startswith(("Switch\t", "Ca\t", "#")):
            continue
        found = read_text(READER, "\n".join([*lines[:n], garbled, *lines[n + 1 :]]))
        rows = sum(len(rows) for rows in contents(found).values())
        assert rows + sum(found.loss_counts.values()) >= sum(len(rows) for rows in whole.values())


@settings(max_examples=150, deadline=None)
@given(data=mutations([fixture(name) for name in OUTPUTS]))
def test_no_mutation_raises(data: bytes):
    read_text(READER, data)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_link_raises(value: str):
    read_text(
        READER, f'{link(value)}[1]\t"S-0000000000200002"[2]\t\t# "{value}" lid 4 4xSDR\nCa\t: 0x1 ports 1 "{value}"\n'
    )
