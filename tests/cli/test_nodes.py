"""How many nodes a cluster has: what its file says, `--nodes` where it is given; the same in every verb."""

from __future__ import annotations

import json

import pytest

VERBS = [
    ("predict", "all-reduce", "--bytes", "1MiB"),
    ("expected", "--bytes", "1MiB"),
    ("design", "broadcast", "--bytes", "1MiB"),
    ("simulate", "collective", "all-gather", "--bytes", "1MiB"),
    ("simulate", "packets", "permutation", "--bytes", "64KiB"),
    ("simulate", "training", "--model", "llama3-8b", "--layout", "tp8"),
    ("search", "training", "--model", "llama3-8b", "--layout", "tp8.pp1"),
    ("simulate", "graph", "GRAPH"),
    ("hardware", "CLUSTER"),
]
GRAPH = {"schema": 1, "ranks": 2, "tasks": [{"id": "a", "rank": 0, "kind": "transfer", "to": 1, "bytes": 1}]}


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_cluster_has_as_many_nodes_as_its_file_says(busbw, tmp_path, words):
    file, graph = tmp_path / "lab.yaml", tmp_path / "graph.json"
    file.write_text("node: dgx-h100\nnodes: 3\n")
    graph.write_text(json.dumps(GRAPH))
    line = [{"GRAPH": graph, "CLUSTER": file}.get(word, word) for word in words]
    line += [] if file in line else ["--cluster", file]
    for given, nodes in ((), 3), (("--nodes", 2), 2):
        ran = busbw(*line, *given, "--json")
        assert ran.status == 0, ran.err
        told = json.loads(ran.out)
        told = told["tables"][0] if "tables" in told else told
        assert told["nodes"] == nodes
