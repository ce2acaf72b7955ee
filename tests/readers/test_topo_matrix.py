"""`nvidia-smi topo -m` inside bigger texts. What the cells mean is the matter of busbw.hardware.formats."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.hardware.formats import TopologyMatrix
from busbw.readers.topo_matrix import READER

from .reading import DATA, columns, read_text

SMALL = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV4     PXB     48-63,112-127   3
GPU1    NV4      X      SYS     32-47,96-111    2
NIC0    PXB     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
"""
CELLS = [
    ("GPU0", "GPU1", "NV4"),
    ("GPU0", "NIC0", "PXB"),
    ("GPU1", "GPU0", "NV4"),
    ("GPU1", "NIC0", "SYS"),
    ("NIC0", "GPU0", "PXB"),
    ("NIC0", "GPU1", "SYS"),
]


def test_a_matrix_in_a_log_is_found_with_its_lines_and_legend():
    found = read_text(
        READER, f"+ nvidia-smi topo -m\nhost0:1:1 [0] NCCL INFO Bootstrap\n{SMALL}$ exit\nsome other text\n"
    )
    assert columns(found.paths, "src", "dst", "path") == CELLS
    assert [row["line"] for row in found.paths] == [4, 4, 5, 5, 6, 6]
    (matrix,) = found.topologies
    assert isinstance(matrix, TopologyMatrix)
    assert matrix.nic_name("NIC0") == "mlx5_0"
    assert matrix.rows[0].line == 4
    assert matrix.rows[0].cpu_affinity == "48-63,112-127"
    assert found.losses == []


def test_underlines_and_tabs_of_a_terminal():
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV4\t0-15\nGPU1\tNV4\t X \t0-15\n"
    assert columns(read_text(READER, text).paths, "src", "dst", "path") == [
        ("GPU0", "GPU1", "NV4"),
        ("GPU1", "GPU0", "NV4"),
    ]


def test_two_hosts_give_two_matrices():
    found = read_text(READER, SMALL + SMALL)
    assert columns(found.paths, "src", "dst", "path") == CELLS + CELLS
    assert len(found.topologies) == 2


def test_recorded_dgx_a100():
    """Source: NVIDIA/DCGM#149, rows after GPU5 left out: 6 rows of 18 columns, without the diagonal 6 * 17 cells."""
    found = read_text(READER, (DATA / "topo-dgx-a100.txt").read_bytes())
    assert len(found.paths) == 6 * 17
    assert {row["path"] for row in found.paths} == {"NV12", "PXB", "SYS"}
    assert found.loss_counts == {"topo-missing-row": 2}


def test_recorded_groups():
    """Source: NVIDIA/nccl#371: GPUs in groups, as the reporter summed them up."""
    found = read_text(READER, (DATA / "topo-groups.txt").read_bytes())
    assert ("GPU0-3", "mlx5_0", "PIX") in columns(found.paths, "src", "dst", "path")


def test_rows_without_a_header_are_a_loss_with_their_line():
    found = read_text(READER, "a log\nGPU0 NV4 PXB\nGPU1 SYS PXB\n")
    assert found.paths == []
    assert columns([{"kind": loss.kind, "line": loss.line} for loss in found.losses], "kind", "line") == [
        ("damaged-matrix", 2)
    ]


def test_other_texts_are_left_alone():
    found = read_text(READER, "GPU0 is hot\nNIC0: mlx5_0\nrank GPU0 GPU1\nGPU0: NVIDIA H100\n")
    assert (found.paths, found.topologies, found.losses) == ([], [], [])


def test_every_prefix_is_read():
    for end in range(len(SMALL)):
        part = columns(read_text(READER, SMALL[:end]).paths, "src", "dst", "path")
        assert [cell[:2] for cell in part] == [cell[:2] for cell in CELLS[: len(part)]]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray((SMALL + SMALL).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b"\t", b"GPU0 ", b"NV4"]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
