"""Topology files that are damaged: one clear error with the line, or an answer; never anything else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.hardware.formats import read_nccl_topology
from busbw.nccl import Function, communicator

TEXT = (Path(__file__).parent / "goldens" / "dgxa100.xml").read_text()
ATTRIBUTES = list(re.finditer(r'(\w+)="([^"]*)"', TEXT))
LINES = TEXT.split("\n")
VALUES = [
    "",
    "0",
    "-1",
    "999999999",
    "999999999999999",
    "abc",
    "1.5",
    "0x060400",
    "0x068001",
    "0x030200",
    "0000:01:01.0",
]


def model_of(text: str, nodes: int = 1):
    topology, _ = read_nccl_topology(text, "topo.xml")
    return communicator(topology, nodes)


@given(
    changed=st.lists(st.tuples(st.sampled_from(ATTRIBUTES), st.sampled_from([*VALUES, None])), max_size=3),
    doubled=st.none() | st.sampled_from(LINES),
    nodes=st.sampled_from([1, 3]),
)
def test_a_damaged_file_is_understood_or_refused_with_one_message(changed, doubled, nodes):
    text = TEXT
    for attribute, value in sorted(changed, key=lambda pair: -pair[0].start()):
        replacement = "" if value is None else f'{attribute[1]}="{value}"'
        text = text[: attribute.start()] + replacement + text[attribute.end() :]
    if doubled is not None:
        text = text.replace(doubled, doubled + "\n" + doubled, 1)
    try:
        chosen = model_of(text, nodes).choices(Function.AllReduce, [8, 2**30])
    except InputError as error:
        assert str(error).startswith(("topo.xml", "the")) or "topo.xml" in str(error)
    else:
        assert (chosen.time_us >= 0).all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('sm="80"', 'sm="eighty"', "topo.xml:5: <gpu> needs sm=\"...\" as a number; it has 'eighty'"),
        ('sm="80"', 'sm="-80"', "a compute capability reads like 90"),
        ('sm="80" rank="0"', 'sm="80" rank="1"', "two GPUs have one rank"),
        ('link_width="16"', 'link_width="-16"', "lanes are 1, 2, 4, 8, 16"),
        ('busid="0000:01:00.0"', 'busid="here"', "it must read like 0000:01:00.0"),
        ('guid="0x1000"', 'guid="none"', "no hexadecimal number"),
        ('arch="x86_64"', "", 'needs arch="x86_64"'),
        ('rank="0" gdr="1"', 'rank="0" gdr="1" mlopart="0"', "partition of a GPU"),
    ],
)
def test_what_nccl_needs_and_does_not_find_is_named_with_its_line(old, new, said):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        model_of(TEXT.replace(old, new, 1))
    assert said in str(error.value)


def test_hosts_that_nothing_joins_are_no_one_node():
    """Two hosts in one file, without NVLink between them."""
    host = TEXT.removeprefix('<system version="1">').removesuffix("</system>\n")
    host = re.sub(r"<nvlink[^>]*/>", "", host)
    other = re.sub(r'rank="(\d)"', lambda m: f'rank="{int(m[1]) + 8}"', host).replace("0x1", "0x2")
    with pytest.raises(InputError, match="no way to each other but the network"):
        model_of(f'<system version="1">{host}{other}</system>')


def test_several_nodes_need_a_network():
    with pytest.raises(InputError, match="no <net>"):
        model_of(re.sub(r"<net [^>]*/>", "", TEXT), 2)


def test_a_fragment_is_no_topology_to_search():
    with pytest.raises(InputError, match="needs the whole <system>"):
        model_of('<gpu dev="0" sm="80" rank="0" gdr="1"/>')


def test_an_nvlink_that_only_one_end_names_is_refused():
    text = TEXT.replace('<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>', "")
    one_way = text.replace(
        'rank="0" gdr="1">', 'rank="0" gdr="1"><nvlink target="0000:01:02.0" count="4" tclass="0x030200"/>', 1
    )
    with pytest.raises(InputError, match="must name it"):
        model_of(one_way)
