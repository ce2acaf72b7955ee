"""The catalogue: names as tools print them, figures with sources, figures that agree with one another."""

import math

import pytest

from busbw.hardware import Figure, find_accelerator, find_switch, load_catalogue, pcie_bytes_per_s
from busbw.hardware.catalogue import all_figures

CATALOGUE = load_catalogue()

NAMES = {
    # nccl-tests, nvidia-smi -L, rocm-smi, CUDA samples
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "NVIDIA H100 PCIe": "H100-PCIe-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA H200 NVL": "H200-NVL-141GB",
    "NVIDIA H20": "H20-SXM-96GB",
    "NVIDIA H800": "H800-SXM-80GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA B200": "B200-SXM",
    "NVIDIA B300 SXM6 AC": "B300-SXM",
    "NVIDIA GB200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A800-SXM4-80GB": "A800-SXM-80GB",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-PCIE-16GB": "V100-PCIe-32GB",
    "NVIDIA A10G": "A10G-24GB",
    "NVIDIA A10": "A10-24GB",
    "NVIDIA L4": "L4-24GB",
    "NVIDIA L40": "L40-48GB",
    "NVIDIA L40S": "L40S",
    "Tesla T4": "T4-16GB",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
    "GeForce RTX 4090": "RTX-4090",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "GeForce GTX 1080 Ti": "GTX-1080-Ti",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI355X OAM": "MI355X",
}


@pytest.mark.parametrize(("printed", "entry"), NAMES.items())
def test_a_printed_name_finds_its_product(printed, entry):
    found = find_accelerator(printed)
    assert found is not None
    assert found.name == entry


@pytest.mark.parametrize(
    "printed",
    [
        None,
        "",
        "NVIDIA Graphics Device",  # an engineering sample: which product is not known
        "NVIDIA GeForce RTX 4090 D",  # another product than the RTX 4090
        "NVIDIA GeForce GTX 1080",  # another product than the 1080 Ti
        "H100 NVL or PCIe",  # two products
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice has no links to its neighbours
        "none (host memory)",
        "Intel(R) Arc(TM) Pro B60 Graphics",
    ],
)
def test_what_is_no_known_product_is_none(printed):
    assert find_accelerator(printed) is None


def test_every_name_of_the_catalogue_finds_itself():
    for name, accelerator in CATALOGUE.accelerators.items():
        assert find_accelerator(name) is accelerator


def test_every_figure_has_a_source():
    """Walked field by field, so that a new field is covered too; a figure without a source cannot be made."""
    parts = (
        *(CATALOGUE.accelerators, CATALOGUE.nics, CATALOGUE.switches, CATALOGUE.nvswitches),
        *(CATALOGUE.nvlinks, CATALOGUE.cpu_links, CATALOGUE.latencies),
    )
    figures = [(path, figure) for part in parts for path, figure in all_figures(part)]
    assert len(figures) > 500
    assert [path for path, figure in figures if len(figure.source) < len("not found")] == []
    with pytest.raises(ValueError, match="no source"):
        Figure(900.0, " ")


def test_every_rate_is_positive_and_finite():
    parts = (CATALOGUE.accelerators, CATALOGUE.nics, CATALOGUE.switches)
    for path, figure in (item for part in parts for item in all_figures(part)):
        if path.endswith("bytes_per_s") and figure.value is not None:
            assert math.isfinite(figure.value), path
            assert figure.value >= 0, path


@pytest.mark.parametrize(
    ("name", "links", "link_gb_s"),
    [
        ("V100-SXM2-32GB", 6, 25),
        ("A100-SXM-80GB", 12, 25),
        ("H100-SXM-80GB", 18, 25),
        ("H200-SXM-141GB", 18, 25),
        ("B200-SXM", 18, 50),
        ("GB200", 18, 50),
        ("A100-PCIe-80GB", 12, 25),
        ("H100-NVL-94GB", 12, 25),
    ],
)
def test_nvlink_rate_is_links_times_the_rate_of_one(name, links, link_gb_s):
    """NVLink 2 to 4 carry 25 GB/s a link and direction, NVLink 5 carries 50."""
    accelerator = CATALOGUE.accelerators[name]
    assert accelerator.nvlinks.value == links
    assert accelerator.scale_up_bytes_per_s.value == links * link_gb_s * 1e9
    assert accelerator.nvlink_bytes_per_s == link_gb_s * 1e9


def test_a_gpu_without_nvlink_has_no_link_rate():
    assert CATALOGUE.accelerators["L40S"].nvlink_bytes_per_s is None


@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5])
def test_each_pcie_generation_is_about_twice_the_one_before(generation):
    """Exactly twice per transfer; generation 3 and 6 also changed the coding, 80 % to 98 % and to 95 %."""
    ratio = pcie_bytes_per_s(generation + 1, 16) / pcie_bytes_per_s(generation, 16)
    assert ratio == pytest.approx(2.0, rel=0.05)


def test_pcie_rate_is_proportional_to_lanes():
    assert pcie_bytes_per_s(4, 16) == 16 * pcie_bytes_per_s(4, 1)
    with pytest.raises(ValueError, match="generation 9 is unknown"):
        pcie_bytes_per_s(9, 16)
    with pytest.raises(ValueError, match="below 1 lane"):
        pcie_bytes_per_s(4, 0)


def test_a_nic_is_served_by_its_slot():
    """A maker sells no adapter whose slot carries less than its line rate. EFA and ConnectX-8 state no width."""
    for nic in CATALOGUE.nics.values():
        if nic.pcie_generation and nic.pcie_width and nic.pcie_generation.value and nic.pcie_width.value:
            slot = pcie_bytes_per_s(nic.pcie_generation.value, nic.pcie_width.value)
            assert slot >= (nic.rate_bytes_per_s.value or 0), nic.name


def test_compute_capability_is_read_from_the_architecture():
    assert CATALOGUE.accelerators["H100-SXM-80GB"].compute_capability == 90
    assert CATALOGUE.accelerators["MI300X"].compute_capability is None


def test_in_switch_reduction_came_with_nvlink_4():
    assert {s.nvlink_generation: s.in_switch_reduction.value for s in CATALOGUE.nvswitches.values()} == {
        2: False,
        3: False,
        4: True,
        5: True,
        6: True,
    }


def test_the_rate_of_an_nvlink_generation_is_that_of_the_gpus_that_have_it():
    """NVLink 6 has a rate a GPU (announced) and no number of links, so no rate a link: null, and said."""
    for accelerator in CATALOGUE.accelerators.values():
        link = accelerator.scale_up_link.value or ""
        if link.startswith("NVLink ") and link[7:].isdigit() and accelerator.scale_up_shape.value == "switch":
            told = CATALOGUE.nvlinks[int(link[7:])].bytes_per_s.value
            assert accelerator.nvlink_bytes_per_s == told, accelerator.name
    assert CATALOGUE.nvlinks[6].bytes_per_s.value is None
    assert "not stated" in CATALOGUE.nvlinks[6].bytes_per_s.source


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("Quantum-2", "QM9700 (Quantum-2)"),
        ("q3400", "Q3400 (Quantum-X800)"),
        ("spectrum-x", "SN5600 (Spectrum-4)"),
        ("SN5400 (Spectrum-4)", "SN5400 (Spectrum-4)"),
    ],
)
def test_a_switch_is_found_by_family_or_product_number(asked, name):
    assert find_switch(asked) is CATALOGUE.switches[name]
    assert find_switch("quantum-9") is None


def test_what_each_switch_carries_is_ports_times_rate():
    """As sold, TB/s of both directions or Tb/s of one: Quantum 8, Quantum-2 25.6, X800 115.2, SN5400 25.6, SN5600 51.2."""
    terabits = {
        s.name: (s.ports.value or 0) * (s.port_bytes_per_s.value or 0) * 8 / 1e12 for s in CATALOGUE.switches.values()
    }
    assert sorted(terabits.values()) == pytest.approx([8.0, 25.6, 25.6, 51.2, 115.2])
