"""Tables of host pairs that people make, and the texts that only look like one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.pair_table import READER

from .reading import DATA, columns, read_text

PAIR = ("line", "src", "dst", "value")


def test_recorded_list():
    """Source: NVIDIA/nccl-tests#106, busbw of all_reduce_perf between nodes two by two, with remarks."""
    found = read_text(READER, (DATA / "pairs.txt").read_bytes())
    assert columns(found.pairs, *PAIR) == [
        (1, "host0", "host1", pytest.approx(49.36e9)),
        (2, "host2", "host3", pytest.approx(88.36e9)),
        (3, "host4", "host5", pytest.approx(49.28e9)),
        (4, "host3", "host0", pytest.approx(49.30e9)),
        (5, "host6", "host1", pytest.approx(86.81e9)),
    ]
    assert {(row["quantity"], row["unit"]) for row in found.pairs} == {("busbw", "bytes/s")}


@pytest.mark.parametrize(
    "line",
    [
        "{a},{b}     12.3",
        "{a} {b} 12.3 GB/s",
        "{a} <-> {b}: 12.3",
        "{a} -> {b} = 12.3GB/s",
        "{a};{b};12.3",
        "{a} {b} 12.3",
    ],
)
def test_forms_of_a_line(line: str):
    text = "".join(line.format(a=f"node-{i}", b=f"node-{i + 1}") + "\n" for i in range(3))
    assert columns(read_text(READER, text).pairs, *PAIR) == [
        (i + 1, f"node-{i}", f"node-{i + 1}", pytest.approx(12.3e9)) for i in range(3)
    ]


def test_an_end_may_name_its_nic():
    """One table for all rails: `host:nic` is a name."""
    text = "".join(f"node{i}:mlx5_0 node{i + 1}:mlx5_0 12.3\n" for i in range(3))
    assert columns(read_text(READER, text).pairs, "src", "dst")[0] == ("node0:mlx5_0", "node1:mlx5_0")


def test_addresses_are_names():
    text = "".join(f"10.0.0.{i},10.0.0.{i + 1} 12.3\n" for i in range(3))
    assert columns(read_text(READER, text).pairs, "src", "dst")[0] == ("10.0.0.0", "10.0.0.1")


def test_a_matrix_without_its_diagonal():
    text = "   host0 host1 host2\nhost0   - 49.3 88.1\nhost1 49.2  - 88.0\nhost2 88.2 88.3  -\n"
    assert columns(read_text(READER, text).pairs, "src", "dst", "value") == [
        ("host0", "host1", pytest.approx(49.3e9)),
        ("host0", "host2", pytest.approx(88.1e9)),
        ("host1", "host0", pytest.approx(49.2e9)),
        ("host1", "host2", pytest.approx(88.0e9)),
        ("host2", "host0", pytest.approx(88.2e9)),
        ("host2", "host1", pytest.approx(88.3e9)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "host0,host1 49.36\nhost2,host3 88.36\n",  # two lines are no table
        "host0,host1 49.36\nsomething else\nhost2,host3 88.36\nmore\nhost4,host5 88.36\n",  # not together
        "epoch1 loss2 0.51\nepoch2 loss2 0.41\nepoch3 loss2 0.31\n",  # ends of two kinds
        "step1 step2 0.51\nstep2 step3 0.41\nstep3 step4 0.31\n",
        "GPU0 GPU1 0.5\nGPU1 GPU2 0.5\nGPU2 GPU3 0.5\n",  # not hosts
        "1,2 49.36\n3,4 88.36\n5,6 88.36\n",  # not names
        "learning rate 0.1\nbatch size 32.0\nloss scale 1.0\n",
        "host0,host1 49.36 Gb/s\nhost2,host3 88.36 Gb/s\nhost4,host5 88.36 Gb/s\n",  # a unit it does not know
        "      GPU0  GPU1  GPU2\nGPU0   X    NV12  NV12\nGPU1  NV12   X    NV12\nGPU2  NV12  NV12   X\n",
        "      GPU0  GPU1  GPU2\nGPU0   0    15    15\nGPU1   15   0     15\nGPU2   15   15    0\n",  # rocm-smi
    ],
)
def test_other_texts_are_left_alone(text: str):
    assert read_text(READER, text).pairs == []


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = (DATA / "pairs.txt").read_text()
    whole = columns(read_text(READER, text).pairs, "line", "src", "dst")
    for end in range(len(text)):
        part = columns(read_text(READER, text[:end]).pairs, "line", "src", "dst")
        assert part == whole[: len(part)]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray(
        (DATA / "pairs.txt").read_bytes() + b"   host0  host1  host2\nhost0 - 1 2\nhost1 1 - 2\nhost2 1 2 -\n"
    )
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b"9" * 30, b" " * 300]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
