"""NCCL's topology and graph XML: documents, fragments, damage, and files made to harm a reader."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.hardware import pcie_bytes_per_s
from busbw.hardware.formats.nccl_graph_xml import read_nccl_graphs, write_nccl_graphs
from busbw.hardware.formats.nccl_topo_xml import (
    Cpu,
    Gpu,
    NcclTopology,
    Other,
    read_nccl_topology,
    write_nccl_topology,
)
from busbw.hardware.formats.xml import MAX_BYTES, MAX_DEPTH, XmlElement, read_elements, write_elements

FRAGMENT = (Path(__file__).parent / "data" / "topo_vm_fragment.xml").read_bytes()
"""NVIDIA/nccl#749: two elements quoted from the topology file of a virtual machine, neither closed."""

# The shape of NCCL 2.30's dump (src/graph/xml.cc): a GPU and a NIC under one switch.
TOPOLOGY = """<system version="1">
  <cpu host_hash="0x1" numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:01:01.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>
          <c2c bw="44712" count="10"/>
        </gpu>
      </pci>
      <pci busid="0000:01:10.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" latency="0" speed="400000" port="1" guid="0x1000" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""

GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="2" nchannels="1" speedintra="48" speedinter="48" typeintra="NVL" typeinter="PIX">
    <channel>
      <net dev="0"/>
      <gpu dev="0"/>
      <gpu dev="a"/>
      <net dev="1"/>
    </channel>
  </graph>
</graphs>
"""

# One bridge with one GPU and one NIC, links as given.
BOX = """<system version="1"><cpu numaid="0">
<pci busid="0000:01:00.0" class="0x060400" link_speed="{bridge_speed}" link_width="{bridge_width}">
<pci busid="0000:02:00.0" class="0x030200" link_speed="{gpu_speed}" link_width="16"><gpu dev="0" sm="80" gdr="1"/></pci>
</pci>
<pci busid="0000:03:00.0" class="0x020700" link_speed="{nic_speed}" link_width="16">
<nic><net name="mlx5_0" speed="{net_speed}" gdr="1"/></nic></pci>
</cpu></system>"""
HEALTHY = {
    "bridge_speed": "16.0 GT/s PCIe",
    "bridge_width": "16",
    "gpu_speed": "16.0 GT/s PCIe",
    "nic_speed": "16.0 GT/s PCIe",
    "net_speed": "200000",
}


def read(text):
    return read_nccl_topology(text, "topo.xml")


def kinds(losses):
    return [loss.kind for loss in losses]


def test_a_topology_is_the_tree_that_nccl_wrote():
    topology, losses = read(TOPOLOGY)
    assert losses == []
    assert not topology.is_fragment
    (cpu,), (gpu,), (net,) = topology.cpus, topology.gpus, topology.nets
    assert (cpu.numa_node, cpu.architecture, cpu.vendor, cpu.family, cpu.model) == (0, "x86_64", "GenuineIntel", 6, 143)
    assert (gpu.device, gpu.compute_capability, gpu.rank, gpu.gpudirect_rdma, gpu.nvlinks) == (0, 90, 0, True, 18)
    assert gpu.line == 5
    assert gpu.has_c2c
    # A 400 Gb/s port, a 10-link C2C of 44.7 GB/s a link.
    assert net.speed_bytes_per_s == 400e9 / 8
    assert gpu.children[1].bytes_per_s == pytest.approx(10 * 44.712e9)
    assert [pci.link_bytes_per_s for pci in topology.pcis] == [pcie_bytes_per_s(5, 16)] * 3


def test_writing_and_reading_gives_the_same_topology():
    topology, _ = read(TOPOLOGY)
    assert read(write_nccl_topology(topology)) == (topology, [])


def test_writing_keeps_what_this_reader_does_not_know():
    text = TOPOLOGY.replace('gdr="1">', 'gdr="1" mlopart="7"><novelty a="&lt;&amp;&quot;&#10;"/>')
    topology, losses = read(text)
    assert kinds(losses) == ["topology-unknown-element"]
    assert isinstance(topology.gpus[0].children[0], Other)
    assert topology.gpus[0].get("mlopart") == "7"
    assert read(write_nccl_topology(topology))[0] == topology


def test_a_fragment_is_read_and_says_that_it_is_one():
    topology, losses = read(FRAGMENT)
    assert topology.is_fragment
    assert kinds(losses) == ["xml-fragment", "xml-unclosed-element"]
    assert losses[1].count == 2
    assert [gpu.compute_capability for gpu in topology.gpus] == [80]
    assert read(write_nccl_topology(topology))[0] == topology


def test_the_bridge_of_a_virtual_machine_is_a_bottleneck():
    """NVIDIA/nccl#749: 2.5 GT/s x1 above a GPU carries 2.5e9 * 8/10 / 8 = 0.25 GB/s."""
    topology, _ = read(FRAGMENT)
    (found,) = topology.pcie_bottlenecks()
    assert found.bytes_per_s == pytest.approx(0.25e9)
    assert found.reason == "bridge above a GPU"
    assert found.pci.line == 1
    assert [element.line for element in topology.without_gpudirect()] == [2]


@pytest.mark.parametrize(
    ("change", "slow"),
    [
        ({}, []),
        ({"bridge_speed": "2.5 GT/s", "bridge_width": "1"}, ["0000:01:00.0"]),
        ({"gpu_speed": "2.5 GT/s PCIe"}, ["0000:02:00.0"]),  # 4 GB/s: a riser that trains at Gen1
        ({"nic_speed": "5.0 GT/s PCIe"}, ["0000:03:00.0"]),  # 8 GB/s under a port of 25
        ({"net_speed": "400000"}, []),  # one generation below: common, 0.63 of the port
        ({"nic_speed": "5.0 GT/s PCIe", "net_speed": "10000"}, []),  # enough for 10 Gb/s
        ({"bridge_speed": "", "bridge_width": "0"}, []),  # a VM that hides the link: NCCL takes its default
        ({"gpu_speed": "Unknown"}, []),
    ],
)
def test_a_pcie_link_far_below_what_hangs_under_it_is_found(change, slow):
    topology, losses = read(BOX.format(**HEALTHY | change))
    assert losses == []
    assert [found.pci.bus_id for found in topology.pcie_bottlenecks()] == slow


def test_the_pcie_link_of_a_gpu_on_c2c_is_no_bottleneck():
    """A GB10 shows 2.5 GT/s beside its C2C, which carries the data (NVIDIA/nccl#2202)."""
    text = BOX.format(**HEALTHY | {"gpu_speed": "2.5 GT/s PCIe"})
    text = text.replace('gdr="1"/></pci>\n</pci>', 'gdr="1"><c2c bw="43125" count="8"/></gpu></pci>\n</pci>')
    assert read(text)[0].pcie_bottlenecks() == ()


def test_numbers_that_are_none_are_losses_with_a_line():
    topology, losses = read(TOPOLOGY.replace('rank="0"', 'rank="zero"').replace('speed="400000"', 'speed="fast"'))
    assert kinds(losses) == ["topology-bad-attribute"]
    assert (losses[0].line, losses[0].count) == (5, 2)
    assert topology.gpus[0].rank is None
    assert topology.nets[0].speed_bytes_per_s is None


def test_a_speed_of_zero_is_not_known():
    assert read(TOPOLOGY.replace('speed="400000"', 'speed="-1"'))[0].nets[0].speed_bytes_per_s is None


def test_graphs_are_channels_of_stops():
    found, losses = read_nccl_graphs(GRAPHS, "graph.xml")
    assert losses == []
    (graph,) = found.graphs
    (channel,) = graph.channels
    assert (graph.id, graph.pattern_name, graph.intra_type, graph.inter_type) == (0, "ring", "NVL", "PIX")
    assert (graph.intra_bytes_per_s, graph.inter_bytes_per_s) == (48e9, 48e9)
    assert channel.gpus == (0, 10)  # hexadecimal
    assert channel.nets == (0, 1)
    assert read_nccl_graphs(write_nccl_graphs(found), "graph.xml") == (found, [])


def test_a_graph_with_fewer_channels_than_it_says_was_cut():
    found, losses = read_nccl_graphs(GRAPHS.replace('nchannels="1"', 'nchannels="8"').replace("</graphs>", ""), "g.xml")
    assert kinds(losses) == ["xml-fragment", "xml-unclosed-element", "graph-channel-count"]
    assert len(found.graphs[0].channels) == 1


def test_a_channel_alone_is_a_graph():
    found, losses = read_nccl_graphs('<channel><gpu dev="1"/><gpu dev="0"/></channel>', "g.xml")
    assert found.graphs[0].channels[0].gpus == (1, 0)
    assert losses == []


@pytest.mark.parametrize(("reader", "text"), [(read_nccl_topology, GRAPHS), (read_nccl_graphs, TOPOLOGY)])
def test_the_wrong_kind_of_file_says_what_to_pass(reader, text):
    with pytest.raises(InputError, match=r"f\.xml:1: .* is no NCCL (topology|graph)\. Pass the file"):
        reader(text, "f.xml")


@pytest.mark.parametrize("text", ["", "   \n", "no xml here", b"\x00\x01", "<", "</gpu>"])
def test_a_text_without_elements_says_so(text):
    with pytest.raises(InputError, match="no XML element found"):
        read(text)


BOMB = '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><system name="&b;"/>'


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "words before it " + BOMB,
        BOMB.replace("<system", "<cpu"),
        '<!DOCTYPE system SYSTEM "http://example.org/x.dtd"><system version="1"/>',
        '<system version="1"><cpu/><!DOCTYPE x></system>',
        '<cpu/><!ENTITY x SYSTEM "file:///etc/passwd"><gpu dev="0"/>',
        BOMB.encode("utf-16"),
    ],
)
def test_entity_declarations_and_dtds_are_refused(text):
    with pytest.raises(InputError, match="DOCTYPE or entity declaration"):
        read(text)


def test_depth_size_and_number_of_elements_are_bounded():
    with pytest.raises(InputError, match=f"deeper than {MAX_DEPTH}"):
        read("<pci>" * (MAX_DEPTH + 2))
    with pytest.raises(InputError, match="larger than"):
        read(b" " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="XML elements"):
        read("<system>" + "<cpu/>" * 200_001 + "</system>")
    assert len(read("<pci>" * MAX_DEPTH)[0].pcis) == MAX_DEPTH


def test_many_stray_end_tags_do_not_hang():
    begin = time.monotonic()
    topology, losses = read('<gpu dev="0"/>' + "</pci>" * 100_000)
    assert time.monotonic() - begin < 20
    assert len(topology.gpus) == 1
    assert "xml-damaged" in kinds(losses)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_encoding_does_not_matter(encoding):
    declared = '<?xml version="1.0" encoding="ISO-8859-1"?>\n' + TOPOLOGY
    assert read(declared.encode(encoding))[0] == read(TOPOLOGY)[0]


def test_lines_are_those_of_the_file():
    """A declaration, a stray tag, and words before the elements move nothing."""
    text = '<?xml version="1.0"?>\nfrom my VM:\n</cpu>\n<gpu dev="3"/>\n'
    topology, losses = read(text)
    assert topology.gpus[0].line == 4
    assert {loss.kind: loss.line for loss in losses} == {"xml-fragment": 4, "xml-stray-end-tag": 3, "xml-stray-text": 2}


def test_text_that_ends_inside_a_tag_is_a_loss():
    topology, losses = read('<cpu numaid="1">\n<gpu dev="0"/>\n<gpu de')
    assert len(topology.gpus) == 1
    assert "xml-damaged" in kinds(losses)


NAMES = st.sampled_from(["system", "cpu", "pci", "gpu", "nvlink", "c2c", "nic", "net", "pcilink", "later"])
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=12)
ATTRIBUTES = st.dictionaries(st.sampled_from(["dev", "busid", "link_speed", "count", "x"]), VALUES, max_size=4)
XML_VALUES = VALUES.filter(lambda value: not any(ord(character) in (0xFFFE, 0xFFFF) for character in value))
ELEMENTS = st.recursive(
    st.builds(lambda name, pairs: XmlElement(name, tuple(pairs.items())), NAMES, ATTRIBUTES),
    lambda inner: st.builds(
        lambda name, pairs, below: XmlElement(name, tuple(pairs.items()), tuple(below)),
        NAMES,
        ATTRIBUTES,
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)


def legal(element):
    values = [value for _, value in element.attributes]
    return all(ord(c) not in (0xFFFE, 0xFFFF) for value in values for c in value) and all(map(legal, element.children))


@settings(deadline=None)
@given(ELEMENTS.filter(legal))
def test_any_element_survives_writing_and_reading(element):
    assert read_elements(write_elements([element]), "x.xml") == ((element,), [])


@settings(deadline=None)
@given(ELEMENTS.filter(legal))
def test_any_topology_survives_writing_and_reading(element):
    root = XmlElement("system", (("version", "1"),), (element,))
    topology, losses = read(write_elements([root]))
    assert read(write_nccl_topology(topology)) == (topology, losses)


@settings(deadline=None)
@given(ELEMENTS.filter(legal))
def test_any_graph_file_survives_writing_and_reading(element):
    root = XmlElement("graphs", (("version", "1"),), (XmlElement("graph", (("id", "0"),), (element,)),))
    graphs, losses = read_nccl_graphs(write_elements([root]), "g.xml")
    assert read_nccl_graphs(write_nccl_graphs(graphs), "g.xml") == (graphs, losses)


def survives(data):
    """Reads anything; whatever comes back can be asked everything and written again."""
    for reader in (read_nccl_topology, read_nccl_graphs):
        try:
            found, losses = reader(data, "x.xml")
        except InputError:
            continue
        assert all(loss.detail for loss in losses)
        if isinstance(found, NcclTopology):
            assert read_nccl_topology(write_nccl_topology(found), "x.xml")[0] == found
            found.pcie_bottlenecks()
            found.without_gpudirect()
            assert all(isinstance(cpu, Cpu) for cpu in found.cpus)
            assert all(isinstance(gpu, Gpu) and gpu.nvlinks is not None for gpu in found.gpus)
        else:
            write_nccl_graphs(found)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_no_input_raises_anything_else(data):
    survives(data)


@settings(max_examples=300, deadline=None)
@given(
    source=st.sampled_from([TOPOLOGY.encode(), GRAPHS.encode(), FRAGMENT, BOX.format(**HEALTHY).encode()]),
    cut=st.integers(0, 1400),
    at=st.integers(0, 1400),
    insert=st.one_of(
        st.binary(max_size=6), st.sampled_from([b"</gpu>", b"<pci>", b"&x;", b"]]>", b"<!--", b"\x00", b'"'])
    ),
    drop=st.integers(0, 80),
)
def test_no_mutation_of_a_real_file_raises_anything_else(source, cut, at, insert, drop):
    survives((source[:at] + insert + source[at + drop :])[: cut or None])


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<pci>", "</pci>", "<gpu dev='0'>", "</gpu>", "<net/>", "<graphs>", "<channel>", "words", "<", "&"]
        ),
        max_size=40,
    )
)
def test_no_mixture_of_tags_raises_anything_else(tags):
    survives("".join(tags))
