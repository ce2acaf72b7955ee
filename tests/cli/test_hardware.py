"""`busbw hardware`: the catalogue and its sources."""

from __future__ import annotations

import json

from busbw.hardware import load_catalogue, load_nodes


def test_the_list_names_every_accelerator_and_node(busbw):
    ran = busbw("hardware")
    assert ran.status == 0
    assert [name for name in [*load_catalogue().accelerators, *load_nodes()] if name not in ran.out] == []


def test_a_product_is_found_by_the_name_a_tool_prints_and_shows_its_sources(busbw):
    ran = busbw("hardware", "NVIDIA H100 80GB HBM3")
    source = load_catalogue().accelerators["H100-SXM-80GB"].scale_up_bytes_per_s.source
    assert ran.status == 0
    line = next(line for line in ran.out.splitlines() if line.startswith("scale up rate"))
    assert line.split(maxsplit=5)[3:5] == ["450", "GB/s"]
    assert source in line


def test_each_figure_of_the_json_has_a_source(busbw):
    answer = json.loads(busbw("hardware", "h100-sxm-80gb", "--json").out)
    assert (answer["schema"], answer["kind"], answer["name"]) == (1, "accelerator", "H100-SXM-80GB")
    assert all(figure["source"] for figure in answer["figures"])
    assert {"figure": "nvlinks", "value": 18}.items() <= next(
        f for f in answer["figures"] if f["figure"] == "nvlinks"
    ).items()


def test_a_node_by_its_alias(busbw):
    """Eight NICs of 400 Gb/s are 3200 Gb/s, 400 GB/s."""
    ran = busbw("hardware", "hgx-h100")
    assert "3200 Gb/s, 400 GB/s a node" in ran.out
    assert json.loads(busbw("hardware", "hgx-h100", "--json").out)["name"] == "dgx-h100"


def test_an_unknown_name_is_status_2_with_the_nearest_names(busbw):
    ran = busbw("hardware", "dgx-h10")
    assert (ran.status, ran.out) == (2, "")
    assert "Did you mean dgx-h100" in ran.err


def test_the_json_list_has_plain_figures(busbw):
    answer = json.loads(busbw("hardware", "--json").out)
    h100 = next(a for a in answer["accelerators"] if a["name"] == "H100-SXM-80GB")
    assert h100["scale_up_bytes_per_s"] == 450e9


def test_a_cluster_of_a_node_shows_its_fabric(busbw):
    """72 nodes x 8 NICs = 576 on 64-port switches: 18 leaves of 32, 16 spines for 18 x 32 uplinks are 9 full ones."""
    ran = busbw("hardware", "dgx-h100", "--nodes", "72")
    assert ran.status == 0
    assert "576: 8 x H100-SXM-80GB a node" in ran.out
    assert "rail-optimised: 576 NICs" in ran.out
    assert "|- GPU 0         63 GB/s  NVLink to NVSwitch 450 GB/s" in ran.out
    assert "`- NIC 0         63 GB/s  line rate 400 Gb/s" in ran.out


def test_a_figure_set_anew_shows_in_the_json(busbw):
    answer = json.loads(busbw("hardware", "dgx-h100", "--nodes", "4", "--set", "nic.rate=800Gb/s", "--json").out)
    assert (answer["kind"], answer["gpus"]) == ("cluster", 32)
    assert answer["fabric"]["nic_bytes_per_s"] == 100e9
    # Gen5 x16 to the NIC carries 63 GB/s, whatever its line rate.
    assert round(answer["network_bytes_per_s_per_gpu"] / 1e9) == 63


def test_an_unknown_figure_or_no_value_is_status_2_with_the_nearest(busbw):
    ran = busbw("hardware", "dgx-h100", "--set", "nic.rat=800Gb/s")
    assert (ran.status, ran.out) == (2, "")
    assert "Did you mean nic.rate" in ran.err
    assert busbw("hardware", "dgx-h100", "--set", "nic.rate").status == 2
    assert busbw("hardware", "--nodes", "4").status == 2
    crowded = busbw("hardware", "dgx-h100", "--nodes", "9", "--set", "fabric=single-switch")
    assert crowded.status == 2
    assert "do not fit one switch of 64 ports" in crowded.err


def test_a_node_is_drawn_and_written_as_nccl_topology(busbw, tmp_path):
    svg, xml = tmp_path / "a100.svg", tmp_path / "a100.xml"
    ran = busbw("hardware", "dgx-a100", "--draw", str(svg), "--nccl-topo", str(xml))
    assert ran.status == 0
    assert "NVSwitch" in svg.read_text()
    again = busbw("hardware", str(xml), "--json")
    assert json.loads(again.out)["node"]["gpus"] == 8


def test_a_users_cluster_is_shown_and_its_mistake_named_with_its_line(busbw, tmp_path):
    file = tmp_path / "lab.yaml"
    file.write_text("node: dgx-a100\nnodes: 6\n")
    assert "6 x dgx-a100" in busbw("hardware", str(file)).out
    file.write_text("node: dgx-a100\nnodes: 6\nfabric: {kind: fattree}\n")
    ran = busbw("hardware", str(file))
    assert ran.status == 2
    assert "lab.yaml:3: fabric.kind: 'fattree' is unknown. Did you mean fat-tree" in ran.err
