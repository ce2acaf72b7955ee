"""nvidia-smi topo -p2p, -m with a terminal's escapes, rocm-smi --showtopo."""

from __future__ import annotations

from busbw.hardware.formats import TopologyMatrix
from busbw.readers.topo_matrix import READER

from .host_fixtures import text_of
from .reading import columns, read_text


def test_peer_access():
    """Source: noonghunna/club-3090#1229, a third GPU added. Each pair is refused in both directions or in none."""
    found = read_text(READER, text_of("nvidia_smi/topo_p2p.txt"))
    assert columns(found.paths, "src", "dst", "path") == [
        ("GPU0", "GPU1", "GNS"), ("GPU0", "GPU2", "OK"), ("GPU1", "GPU0", "GNS"), ("GPU1", "GPU2", "OK"),
        ("GPU2", "GPU0", "OK"), ("GPU2", "GPU1", "OK"),
    ]  # fmt: skip
    assert found.events_named("gpu.peer_refused") == [
        {"src": a, "dst": b, "status": "GNS", "meaning": "GPU not supported", "operation": "r"}
        for a, b in (("GPU0", "GPU1"), ("GPU1", "GPU0"))
    ]
    (matrix,) = found.topologies
    assert isinstance(matrix, TopologyMatrix)
    assert [link.kind for link in matrix.gpu_links()] == ["GNS", "OK", "OK"]
    assert found.losses == []


def test_a_cut_row_and_an_unknown_word_are_losses():
    text = "\tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tOK\n GPU1\tOK\tX\n GPU2\tOK\tO?\tX\n"
    found = read_text(READER, text)
    assert found.loss_counts == {"damaged-row": 2}
    assert len(found.paths) == 3


def test_escapes_of_a_terminal():
    """From the grammar: nvidia-smi underlines the header."""
    found = read_text(READER, text_of("nvidia_smi/topo_m_ansi.txt"))
    (matrix,) = found.topologies
    assert isinstance(matrix, TopologyMatrix)
    assert matrix.columns == ("GPU0", "GPU1", "NIC0")
    assert matrix.nic_names == (("NIC0", "mlx5_0"),)


def test_link_types_of_amd_and_no_weights():
    found = read_text(READER, text_of("nvidia_smi/rocm_showtopo.txt"))
    assert {row["path"] for row in found.paths} == {"XGMI"}
    assert len(found.paths) == 6
    assert found.losses == []
