"""What NCCL 2.30.7's own code printed, cell for cell and choice for choice; and that the comparison sees a difference.

The folder goldens/ holds topologies written for the purpose, and what NCCL's search, tuning and choice gave for them when built for the
CPU. Nothing in `busbw.nccl` knows these topologies: test_random_topologies.py runs the same code on others.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from benchmarks.nccl_equality import compare_folder, main

from busbw.hardware import find_node, node_topology
from busbw.nccl import communicator

GOLDENS = Path(__file__).parent / "goldens"


def only(name: str, folder: Path) -> Path:
    for file in GOLDENS.glob(f"{name}.*"):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDENS.glob("*.xml")))
def test_graphs_cells_and_choices_are_those_of_nccl(name, tmp_path):
    equality = compare_folder(only(name, tmp_path))
    assert equality.differences == []
    assert equality.cells >= 12 and equality.choices >= 100
    assert equality.shares == (1.0, 1.0)


def test_a_recording_that_differs_in_one_cell_and_one_choice_is_told(tmp_path, capsys):
    only("h100_1gpu", tmp_path)
    recorded = tmp_path / "h100_1gpu.json.gz"
    entries = json.loads(gzip.decompress(recorded.read_bytes()))[:1]
    entries[0]["cells"][0][4] += 0.5
    entries[0]["choices"][0][4] += 1
    recorded.write_bytes(gzip.compress(json.dumps(entries).encode()))
    equality = compare_folder(tmp_path)
    assert equality.equal_cells == equality.cells - 1
    assert equality.equal_choices == equality.choices - 1
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "Broadcast Ring LL: ours (9.3, 24.0, 512), NCCL's (9.3, 24.5, 512)" in out


def test_a_folder_without_recordings_is_wrong_use(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no <topology>.xml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blueprint", "golden", "nodes"),
    [("dgx-h100", "dgxh100", (1, 16)), ("dgx-b200", "dgxb200", (1, 4)), ("dgx-a100", "dgxa100", (1, 2)), ("gb300-nvl72", "gb300_1host_800g", (1, 2))],
)  # fmt: skip
def test_a_blueprint_and_the_topology_file_of_its_kind_give_the_same_channels(blueprint, golden, nodes):
    """The golden topologies describe the same machines as these blueprints (one host of the NVL72)."""
    made, notes = node_topology(find_node(blueprint))
    entries = json.loads(gzip.decompress((GOLDENS / f"{golden}.json.gz").read_bytes()))
    assert notes == []
    for count in nodes:
        inputs = communicator(made, count).inputs
        recorded = next(entry for entry in entries if entry["nodes"] == count)
        for name, graph in {"ring": inputs.ring, "tree": inputs.tree, "nvls": inputs.nvls_graph}.items():
            assert (int(graph.pattern), graph.channels, graph.type_inter.name) == tuple(
                recorded["graphs"][name][key] for key in ("pattern", "channels", "type_inter")
            )
            assert round(graph.inter_gb_per_s, 3) == recorded["graphs"][name]["bw_inter_GBps"]
        assert inputs.channels == recorded["channels"]
