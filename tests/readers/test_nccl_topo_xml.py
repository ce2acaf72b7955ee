"""NCCL's XML files as artefacts. What the elements mean is the matter of busbw.hardware.formats."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.hardware.formats import NcclGraphs, NcclTopology
from busbw.readers.nccl_topo_xml import READER

from .reading import DATA, read_text

TOPOLOGY = """\
<system version="1">
  <cpu numaid="0" affinity="00000000,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:01.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
    <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1000" maxconn="131072" gdr="1"/></nic>
  </cpu>
</system>
"""
GRAPHS = """\
<graphs version="1">
  <graph id="0" pattern="4" crossnic="2" nchannels="1" speedintra="48" speedinter="48" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="1"/></channel>
  </graph>
</graphs>
"""


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (TOPOLOGY, True),
        ('<?xml version="1.0"?>\n<!-- host0 -->\n' + TOPOLOGY, True),
        (GRAPHS, True),
        ('    <pci busid="ffff:ff:00.0" class="0x060400"/>', True),
        ('<cpu numaid="0"/>', True),
        ('<gpu dev="0" sm="90"/>', True),
        ('<nic><net name="mlx5_0" dev="0"/></nic>', True),
        ('<net name="mlx5_0" dev="0"/>', True),
        ('<topology version="2.0"><object type="Machine"/></topology>', False),
        ('<gpu id="00000000:1B:00.0"><product_name>H100</product_name></gpu>', False),
        ("<nic>eth0</nic>", False),
        ("<html><system/></html>", False),
        ("plain text <system>", False),
    ],
)
def test_sniffing_goes_by_the_first_element_and_its_attributes(text: str, taken: bool):
    assert READER.sniff(text.encode()) is taken


def test_a_topology():
    found = read_text(READER, TOPOLOGY)
    (topology,) = found.topologies
    assert isinstance(topology, NcclTopology)
    assert [gpu.compute_capability for gpu in topology.gpus] == [90]
    assert [net.name for net in topology.nets] == ["mlx5_0"]
    assert found.losses == []


def test_graphs():
    (graphs,) = read_text(READER, GRAPHS).topologies
    assert isinstance(graphs, NcclGraphs)
    assert graphs.graphs[0].channels[0].gpus == (0, 1)


def test_recorded_fragment():
    """Source: NVIDIA/nccl#749: two lines of a dump, quoted."""
    found = read_text(READER, (DATA / "topo-fragment.xml").read_bytes())
    (topology,) = found.topologies
    assert isinstance(topology, NcclTopology)
    assert topology.is_fragment
    assert [gpu.device for gpu in topology.gpus] == [0]
    assert "xml-fragment" in found.loss_counts


def test_an_entity_declaration_is_refused_and_said():
    found = read_text(READER, '<!DOCTYPE a [<!ENTITY b "c">]>\n' + TOPOLOGY)
    assert found.topologies == []
    assert found.loss_counts == {"damaged-file": 1}


def test_every_prefix_that_is_taken_is_read():
    for text in (TOPOLOGY, GRAPHS):
        for end in range(0, len(text), 3):
            if READER.sniff(text[:end].encode()):
                found = read_text(READER, text[:end])
                assert found.topologies or found.losses


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray(data.draw(st.sampled_from([TOPOLOGY, GRAPHS])).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"<", b"<!--", b"&b;", b"<pci>" * 50]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
