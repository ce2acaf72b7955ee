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
