"""Cost tables that NCCL 2.30.7's own model makes of topologies and variables drawn at random: float for float.

tables.json.gz was recorded by running src/graph/tuning.cc of NVIDIA/nccl 2.30.7, built for the CPU, after its search, on topologies,
numbers of nodes and variables (lists of algorithms and protocols, threads, PAT, overheads) drawn at random. A cell is [function,
algorithm, protocol, latency us, GB/s, max threads, bytes a thread]; cells that NCCL switched off are not there.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from busbw.hardware.formats import read_nccl_topology
from busbw.nccl import Algorithm, Function, Protocol, communicator, read_settings

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "tables.json.gz").read_bytes()))


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry["name"])
def test_cells_are_those_of_nccl(entry):
    topology, _ = read_nccl_topology(entry["xml"], entry["name"])
    model = communicator(topology, entry["nodes"], read_settings(entry["variables"]))
    assert model.inputs.nvls == entry["nvls"]
    table = model.table
    recorded = {(Function[f], Algorithm[a], Protocol[p]): rest for f, a, p, *rest in entry["cells"]}
    for function in Function:
        for algorithm in Algorithm:
            for protocol in Protocol:
                cell = (function, algorithm, protocol)
                latency_us, gb_per_s, threads, thread_bytes = recorded.get(cell, (0, 0, 0, 0))
                assert table.gb_per_s[cell] == np.float32(gb_per_s), cell
                if cell in recorded:
                    assert table.latency_us[cell] == np.float32(latency_us), cell
                    assert table.max_threads[algorithm, protocol] == threads, cell
                    assert table.thread_bytes[algorithm, protocol] == thread_bytes, cell
                else:
                    assert cell in table.off, cell
