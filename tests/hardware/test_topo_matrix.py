"""nvidia-smi topo -m: text in, matrix and losses out."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.errors import InputError
from busbw.hardware.formats.topo_matrix import read_topology_matrix

DATA = Path(__file__).parent / "data"
DGX_A100 = (DATA / "topo_dgx_a100.txt").read_bytes()
"""NVIDIA/DCGM#149: rows GPU0 to GPU5 of a DGX A100."""
FOUR_A100 = (DATA / "topo_a100_4gpu.txt").read_bytes()
"""NVIDIA/nccl#1261: four A100 joined pairwise by four NVLinks."""
GROUPS = (DATA / "topo_v100_groups.txt").read_bytes()
"""NVIDIA/nccl#371: eight V100 as two groups, the reporter's own reduction."""

# The layout nvidia-smi 535 prints: cells in tabs, an underlined header, a legend, NICs numbered (made up, two GPUs).
TABBED = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t56-111\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
    "  NIC1: mlx5_3\n"
)


def read(text):
    return read_topology_matrix(text, "topo.txt")


def kinds(losses):
    return [loss.kind for loss in losses]


def test_a_dgx_a100_is_fully_joined_and_has_two_nics_near_each_pair_of_gpus():
    matrix, losses = read(DGX_A100)
    assert matrix.gpus == tuple(f"GPU{number}" for number in range(8))
    assert matrix.nics == tuple(f"NIC{number}" for number in range(10))
    # 28 pairs of 8 GPUs; GPU6 and GPU7 have no rows, so their own pair is not printed.
    assert len(matrix.gpu_links()) == 27
    assert {link.nvlinks for link in matrix.gpu_links()} == {12}
    assert [link.b for link in matrix.nearest_nics("GPU0")] == ["NIC0", "NIC1"]
    assert [link.kind for link in matrix.nearest_nics("GPU5")] == ["PXB", "PXB"]
    row = matrix.row("GPU2")
    assert row is not None
    assert (row.cpu_affinity, row.numa_affinity, row.gpu_numa_id, row.line) == ("16-31,144-159", "1", "N/A", 4)
    assert kinds(losses) == ["topo-missing-row"]
    assert losses[0].count == 2


def test_a_cell_knows_its_line():
    matrix, _ = read(FOUR_A100)
    link = matrix.link("GPU2", "GPU3")
    assert link is not None
    assert (link.kind, link.nvlinks, link.line) == ("NV4", 4, 4)


def test_four_a100_are_joined_by_four_links_each():
    matrix, losses = read(FOUR_A100)
    assert losses == []
    assert len(matrix.gpu_links()) == 6
    assert {link.nvlinks for link in matrix.gpu_links()} == {4}
    assert matrix.nics == ()
    assert matrix.nearest_nics("GPU0") == ()
    assert matrix.rows[0].numa_affinity == "3"


def test_a_group_stands_for_its_members():
    matrix, losses = read(GROUPS)
    assert losses == []
    link = matrix.link("GPU2", "GPU5")
    assert link is not None
    assert link.kind == "PHB"
    assert matrix.link("GPU0", "GPU1") is None  # one cell for the group says nothing about its inside
    assert [link.kind for link in matrix.nearest_nics("GPU3")] == ["PIX"]
    assert [link.kind for link in matrix.nearest_nics("GPU6")] == ["PHB"]


def test_tabs_escapes_and_the_legend_are_read():
    matrix, losses = read(TABBED)
    assert losses == []
    assert matrix.columns == ("GPU0", "GPU1", "NIC0", "NIC1")
    assert [(link.b, matrix.nic_name(link.b)) for link in matrix.nearest_nics("GPU1")] == [("NIC1", "mlx5_3")]
    assert {(link.a, link.b) for link in matrix.pairs("SYS")} == {("GPU0", "NIC1"), ("GPU1", "NIC0"), ("NIC0", "NIC1")}
    assert all(link.crosses_numa for link in matrix.pairs("SYS"))
    row = matrix.row("GPU1")
    assert row is not None
    assert (row.cpu_affinity, row.numa_affinity) == ("56-111", "1")
    assert matrix.nic_name("NIC7") == "NIC7"


def test_spaces_mean_the_same_as_tabs():
    spaced, _ = read(TABBED.replace("\t", "    "))
    tabbed, _ = read(TABBED)
    assert spaced.links == tabbed.links
    assert spaced.nic_names == tabbed.nic_names


def test_the_other_cell_of_a_pair_serves_where_a_row_is_missing():
    without = "\n".join(line for line in TABBED.split("\n") if not line.startswith("NIC0"))
    matrix, losses = read(without)
    assert losses == []
    link = matrix.link("NIC0", "GPU0")
    assert link is not None
    assert (link.a, link.b, link.kind) == ("GPU0", "NIC0", "PIX")


def test_pairs_whose_two_cells_differ_are_found():
    matrix, _ = read(TABBED.replace("NIC0\tPIX\tSYS", "NIC0\tPHB\tSYS"))
    ((one, other),) = matrix.asymmetric_pairs()
    assert {one.kind, other.kind} == {"PIX", "PHB"}
    assert read(TABBED)[0].asymmetric_pairs() == ()


def test_rows_without_their_header_are_read_by_their_x():
    """The X stands in the device's own column; GPU3 has no row, so what its column says is lost."""
    matrix, losses = read(b"\n".join(FOUR_A100.split(b"\n")[1:4]))
    assert kinds(losses) == ["topo-no-header"]
    assert matrix.gpus == ("GPU0", "GPU1", "GPU2")
    assert [link.nvlinks for link in matrix.gpu_links()] == [4, 4, 4]
    with pytest.raises(InputError, match="no topology matrix found"):
        read(FOUR_A100.split(b"\n")[1])


@pytest.mark.parametrize(
    ("damage", "loss"),
    [
        (
            lambda text: text.replace("NV4      X      NV4     NV4     32-47,96-111    2", "NV4      X"),
            "topo-truncated-row",
        ),
        (lambda text: text.replace("GPU3    NV4", "GPU3    ?!"), "topo-bad-cell"),
        (lambda text: text[: text.index("GPU3    NV4")], "topo-missing-row"),
        (lambda text: text + text, "topo-second-matrix"),
    ],
)
def test_damage_is_a_loss_with_its_line_and_the_rest_is_kept(damage, loss):
    matrix, losses = read(damage(FOUR_A100.decode()))
    assert kinds(losses) == [loss]
    assert losses[0].path == "topo.txt"
    assert losses[0].line is not None
    link = matrix.link("GPU0", "GPU2")
    assert link is not None
    assert link.nvlinks == 4


def test_amd_link_types_are_kept_as_printed_and_hop_counts_are_not_taken_for_links():
    """The layout of rocm-smi --showtopo (made up, two GPUs)."""
    text = (
        "=========== Hops between two GPUs ===========\n       GPU0         GPU1\n"
        "GPU0   0            1\nGPU1   1            0\n"
        "========= Link Type between two GPUs ========\n       GPU0         GPU1\nGPU0   0            XGMI\n"
        "GPU1   XGMI         0\n"
    )
    matrix, losses = read(text)
    assert losses == []
    assert [link.kind for link in matrix.gpu_links()] == ["XGMI"]


@pytest.mark.parametrize("text", ["", "hello", "GPU0 GPU1", b"\xff\xfe\x00", "GPU0: NVIDIA H100 (UUID: GPU-0)"])
def test_what_holds_no_matrix_says_what_to_pass(text):
    with pytest.raises(InputError, match=r"topo.txt.*(nvidia-smi topo -m|all that the tool printed)"):
        read(text)


def test_a_text_beyond_bound_is_refused():
    with pytest.raises(InputError, match="larger than"):
        read(b"x" * (4 * 1024 * 1024 + 1))


def survives(data):
    """Reads anything; whatever comes back can be asked everything."""
    try:
        matrix, losses = read(data)
    except InputError:
        return
    assert matrix.rows
    assert all(loss.detail for loss in losses)
    matrix.gpu_links()
    matrix.asymmetric_pairs()
    for gpu in matrix.gpus:
        matrix.nearest_nics(gpu)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=400), st.text(max_size=400)))
def test_no_input_raises_anything_else(data):
    survives(data)


@settings(deadline=None)
@given(
    source=st.sampled_from([DGX_A100, FOUR_A100, GROUPS, TABBED.encode()]),
    cut=st.integers(0, 3000),
    at=st.integers(0, 3000),
    insert=st.binary(max_size=8),
    drop=st.integers(0, 60),
)
def test_no_mutation_of_a_real_table_raises_anything_else(source, cut, at, insert, drop):
    survives((source[:at] + insert + source[at + drop :])[: cut or None])


@settings(deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            ["GPU0", "GPU1", "GPU0-3", "NIC0", "mlx5_0", "X", "NV4", "SYS", "\n", "\t", "CPU Affinity", "0-3", "?"]
        ),
        max_size=60,
    )
)
def test_no_mixture_of_the_words_of_a_table_raises_anything_else(words):
    survives(" ".join(words))
