"""lspci: devices with links and access control, and the tree of buses. Expected values are read off the text by eye."""

from __future__ import annotations

import pytest

from busbw.readers.lspci import READER

from .host_fixtures import text_of
from .reading import Found, read_text


def attributes(found: Found, bus_id: str) -> dict[str, str]:
    """Those of the only device with this address."""
    (row,) = [row for row in found.devices if row["bus_id"] == bus_id]
    return dict(row["attributes"])


def test_an_idle_gpu_is_slow_and_not_narrow():
    """Both figures are kept as printed, so that a rule can tell power saving (speed) from a fault (width)."""
    found = read_text(READER, text_of("lspci/idle_gpu_vv.txt"))
    gpu = attributes(found, "0000:01:00.0")
    assert (gpu["link_speed_gts"], gpu["max_speed_gts"]) == ("2.5", "8")
    assert (gpu["link_width"], gpu["max_width"]) == ("16", "16")
    assert gpu["class"] == "VGA compatible controller"
    assert found.losses == []


def test_events_of_links_say_whose_they_are():
    found = read_text(READER, text_of("lspci/idle_gpu_vv.txt"))
    assert found.events_named("pci.link_status") == [
        {"speed": "2.5", "speed_note": " (downgraded)", "width": "16", "bus_id": bus_id, "device_class": kind}
        for bus_id, kind in (("0000:01:00.0", "VGA compatible controller"), ("0000:01:00.1", "Audio device"))
    ]
    assert [e["port"] for e in found.events_named("pci.link_capability")] == ["Port #0, "] * 2


def test_access_control_numa_node_group_and_driver():
    found = read_text(READER, text_of("lspci/grammar_acs.txt"))
    bridge = attributes(found, "0000:40:01.1")
    flags = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    assert bridge["acs"] == flags
    assert (bridge["numa_node"], bridge["iommu_group"], bridge["driver"]) == ("0", "31", "pcieport")
    assert found.events_named("pci.acs") == [{"flags": flags, "bus_id": "0000:40:01.1", "device_class": "PCI bridge"}]
    gpu = attributes(found, "10000:41:00.0")  # a domain of five digits, class with its number (-nn)
    assert (gpu["class"], gpu["link_width"], gpu["link_speed_gts"]) == ("3D controller", "8", "16")


def test_an_unknown_speed_is_no_figure_and_damaged_flags_are_a_loss():
    found = read_text(READER, text_of("lspci/grammar_acs.txt"))
    nic = attributes(found, "0000:42:00.0")
    assert "link_speed_gts" not in nic
    assert nic["link_width"] == "0"
    assert found.loss_counts == {"damaged-value": 1}


def test_lines_that_grep_cut_out_are_read_without_an_owner():
    """`lspci -vvv | grep -e LnkSta: -e ACSCtl`, also with the numbers of lines that grep -n puts in front."""
    found = read_text(
        READER, "12:\t\tLnkSta:\tSpeed 16GT/s (ok), Width x8 (downgraded)\n44:\t\tACSCtl:\tSrcValid- ReqRedir-\n"
    )
    assert found.events_named("pci.link_status") == [
        {"speed": "16", "speed_note": " (ok)", "width": "8", "width_note": " (downgraded)"}
    ]
    assert found.events_named("pci.acs") == [{"flags": "SrcValid- ReqRedir-"}]
    assert found.devices == []


def test_a_new_call_ends_the_block_of_a_device():
    text = "01:00.0 3D controller: NVIDIA Corporation X\n$ lspci -s 02:00.0 -vv | grep LnkSta:\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n"
    assert read_text(READER, text).events_named("pci.link_status") == [{"speed": "32", "speed_note": "", "width": "16"}]


@pytest.mark.parametrize("value", ["Speed 2.xGT/s, Width x16", "Speed 16GT/s, Width", "", "Speed"])
def test_a_damaged_link_is_a_loss(value: str):
    found = read_text(READER, f"01:00.0 3D controller: NVIDIA Corporation X\n\t\tLnkSta:\t{value}\n")
    assert found.loss_counts == {"damaged-value": 1}


def test_launchers_that_mix_two_nodes_do_not_mix_their_devices():
    lines = ("01:00.0 3D controller: A", "\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM", "\tNUMA node: {}")
    text = "".join(f"[1,{rank}]<stdout>:{line.format(rank)}\n" for line in lines for rank in (0, 1))
    found = read_text(READER, text)
    assert [(row["rank"], dict(row["attributes"])["numa_node"]) for row in found.devices] == [(0, "0"), (1, "1")]


def test_a_recorded_machine():
    """lspci -vv -D of a virtual machine: no links, a driver each, six devices in the tree and three in the part of -vv."""
    found = read_text(READER, text_of("lspci/virtio_vv.txt"))
    assert [(row["bus_id"], dict(row["attributes"])["class"]) for row in found.devices] == [
        ("0000:00:00.0", "Host bridge"),
        ("0000:00:01.0", "Unassigned class"),
        ("0000:00:02.0", "Mass storage controller"),
        ("0000:00:03.0", "Ethernet controller"),
    ]
    tree = read_text(READER, text_of("lspci/virtio_tv.txt"))
    assert [row["bus_id"] for row in tree.devices] == [f"0000:00:0{i}.0" for i in range(6)]
    assert tree.devices[3]["name"] == "Red Hat, Inc. Virtio 1.0 network device"


def test_a_tree_says_under_which_bridge_a_device_lies():
    """A switch (upstream 41:00.0) with three ports below root port 40:01.1; another root beside it."""
    found = read_text(READER, text_of("lspci/switch_t.txt"))
    parents = {row["bus_id"]: dict(row["attributes"]).get("parent") for row in found.devices}
    assert parents == {
        "0000:40:00.0": None, "0000:40:01.1": None, "0000:41:00.0": "0000:40:01.1", "0000:42:00.0": "0000:41:00.0",
        "0000:43:00.0": "0000:42:00.0", "0000:42:08.0": "0000:41:00.0", "0000:42:0c.0": "0000:41:00.0", "0000:45:00.0": "0000:42:0c.0",
        "0000:45:00.1": "0000:42:0c.0", "0000:40:02.0": None, "0000:00:00.0": None, "0000:00:08.1": None,
        "0000:04:00.0": "0000:00:08.1", "0000:04:00.3": "0000:00:08.1",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["10:20:30.5 done: yes\n", "step 01:00.0 loss: 3\n", "12:34:56 INFO trainer: x\n"])
def test_other_texts_are_left_alone(text: str):
    assert read_text(READER, text).tables == {}
