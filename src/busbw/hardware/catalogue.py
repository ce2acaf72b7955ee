"""The catalogue: what accelerators, links, NICs and switches can do at best, each figure with its source.

The figures lie in `catalogue.json` beside this module, in the units their makers print; they are converted here, once.
A source that reads "from memory, unverified" is a guess and says so. Rates are one direction of one device, bytes per
second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Generic, TypeVar

__all__ = [
    "PCIE_GT_PER_S",
    "Accelerator",
    "Catalogue",
    "CpuLink",
    "Figure",
    "Latency",
    "Nic",
    "NvLink",
    "NvSwitch",
    "Switch",
    "all_figures",
    "find_accelerator",
    "find_switch",
    "load_catalogue",
    "pcie_bytes_per_s",
]

_GIGA = 1e9
_BITS_PER_BYTE = 8

PCIE_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Transfers per second and lane, 1e9, by generation. Source: PCI Express Base Specification, link speeds."""
_PCIE_CODING = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
"""Share of transfers that carry data: 8b/10b, 128b/130b, 242 of 256 bytes a flit. Source: PCI Express Base
Specification."""

Value = TypeVar("Value", float, int, str, bool)


@dataclass(frozen=True, slots=True)
class Figure(Generic[Value]):
    """One figure and where it comes from. `value` is None where the source was searched and says nothing."""

    value: Value | None
    source: str
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ValueError(f"figure {self.value!r} has no source; name the paper, data sheet, file or measurement")

    @property
    def is_guess(self) -> bool:
        """True where nobody checked the figure against a document."""
        return "unverified" in self.source


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU product. Figures of rates are one direction of one GPU, bytes per second."""

    name: str
    vendor: str
    architecture: str
    model: str
    """The word its name carries, upper case: H100, RTX 4090, MI300X."""
    form: str | None
    """SXM, PCIE or NVL where the model is sold in several; None where there is one."""
    scale_up_link: Figure[str]
    scale_up_bytes_per_s: Figure[float]
    """All links between GPUs together: NVLink or Infinity Fabric."""
    scale_up_shape: Figure[str]
    """switch (every pair at full speed), mesh (fixed links), bridge (one neighbour), none (PCIe only)."""
    nvlinks: Figure[int]
    pcie: Figure[str]
    pcie_generation: Figure[int]
    pcie_width: Figure[int]
    memory_bytes: Figure[float]
    memory_type: Figure[str]
    memory_bytes_per_s: Figure[float]
    dense_flops: Mapping[str, Figure[float]]
    """Peak operations per second without sparsity, by number format."""
    multiprocessors: Figure[int]
    l2_bytes: Figure[float]

    @property
    def compute_capability(self) -> int | None:
        """The sm_ number of an NVIDIA GPU, e.g. 90; None for other makers."""
        found = re.search(r"sm_(\d+)", self.architecture)
        return int(found.group(1)) if found else None

    @property
    def nvlink_bytes_per_s(self) -> float | None:
        """One NVLink, one direction; None where there is none or the figures are missing."""
        if not self.nvlinks.value or not self.scale_up_bytes_per_s.value:
            return None
        return self.scale_up_bytes_per_s.value / self.nvlinks.value

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """The host link, one direction, after line coding; None where generation or width is not stated."""
        if self.pcie_generation.value is None or self.pcie_width.value is None:
            return None
        return pcie_bytes_per_s(self.pcie_generation.value, self.pcie_width.value)


@dataclass(frozen=True, slots=True)
class Nic:
    """One network adapter. `rate_bytes_per_s` is its line rate, one direction, all ports together."""

    name: str
    rate_bytes_per_s: Figure[float]
    pcie: Figure[str] | None
    pcie_generation: Figure[int] | None
    pcie_width: Figure[int] | None
    infiniband: Figure[str] | None
    """The fastest InfiniBand speed it speaks (EDR, HDR, NDR, XDR); None for Ethernet-only adapters."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One network switch: `ports` of `port_bytes_per_s` each, one direction."""

    name: str
    ports: Figure[int]
    port_bytes_per_s: Figure[float]
    port_latency_s: Figure[float]
    sharp: Figure[str] | None
    """What in-network reduction it offers; None where the switch has none."""
    network: str
    """infiniband or ethernet."""
    aliases: tuple[str, ...]
    """Other names, lower case: quantum-2, spectrum-x."""


@dataclass(frozen=True, slots=True)
class NvSwitch:
    """One NVSwitch chip."""

    name: str
    nvlink_generation: int
    ports: Figure[int]
    per_baseboard: Figure[int]
    in_switch_reduction: Figure[bool]
    """True where NCCL can use NVLS (multicast and reduction in the switch)."""
    system: str


@dataclass(frozen=True, slots=True)
class NvLink:
    """One generation of NVLink: what one link carries, one direction, bytes per second."""

    generation: int
    bytes_per_s: Figure[float]
    gpus: str
    """Products that have it, and how many links."""


@dataclass(frozen=True, slots=True)
class CpuLink:
    """A link of a CPU that is no PCIe: to the other socket, or to a GPU (C2C). One direction, bytes per second."""

    name: str
    bytes_per_s: Figure[float]
    what: str


@dataclass(frozen=True, slots=True)
class Latency:
    """What one hop of a kind adds, seconds, one direction, without queueing."""

    name: str
    latency_s: Figure[float]
    what: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products, by name. Order of accelerators is the order of preference of `find_accelerator`."""

    accelerators: Mapping[str, Accelerator]
    nics: Mapping[str, Nic]
    switches: Mapping[str, Switch]
    nvswitches: Mapping[str, NvSwitch]
    nvlinks: Mapping[int, NvLink]
    """By generation."""
    cpu_links: Mapping[str, CpuLink]
    latencies: Mapping[str, Latency]
    """By hop: nic, cable, infiniband_switch, ethernet_switch, nvlink, pcie, cpu."""


def pcie_bytes_per_s(generation: int, width: int) -> float:
    """What a PCIe link carries in one direction after line coding, bytes per second.

    Packet headers are part of it: payload is some 10 % less (a rule of thumb, not measured here).
    Raises ValueError for a generation that does not exist or a width below 1.

    >>> round(pcie_bytes_per_s(4, 16) / 1e9, 1)
    31.5
    """
    if generation not in PCIE_GT_PER_S:
        raise ValueError(f"PCIe generation {generation} is unknown; known: {sorted(PCIE_GT_PER_S)}")
    if width < 1:
        raise ValueError(f"PCIe width {width} is below 1 lane")
    return PCIE_GT_PER_S[generation] * _GIGA * _PCIE_CODING[generation] * width / _BITS_PER_BYTE


@lru_cache(maxsize=1)
def load_catalogue() -> Catalogue:
    """The catalogue shipped with the package, read once."""
    data = json.loads(resources.files(__package__).joinpath("catalogue.json").read_text(encoding="utf-8"))
    return Catalogue(
        accelerators=_frozen({name: _accelerator(name, entry) for name, entry in data["accelerators"].items()}),
        nics=_frozen({name: _nic(name, entry) for name, entry in data["nics"].items()}),
        switches=_frozen({name: _switch(name, entry) for name, entry in data["switches"].items()}),
        nvswitches=_frozen({name: _nvswitch(name, entry) for name, entry in data["nvswitches"].items()}),
        nvlinks=MappingProxyType({int(name): _nvlink(int(name), entry) for name, entry in data["nvlinks"].items()}),
        cpu_links=_frozen({name: _cpu_link(name, entry) for name, entry in data["cpu_links"].items()}),
        latencies=_frozen({name: _latency(name, entry) for name, entry in data["latencies"].items()}),
    )


def find_switch(name: str) -> Switch | None:
    """The switch of a name, product number or alias, case ignored; None where there is none.

    >>> find_switch("Spectrum-X").name
    'SN5600 (Spectrum-4)'
    """
    key = name.strip().lower()
    for switch in load_catalogue().switches.values():
        if key == switch.name.lower() or key in switch.aliases:
            return switch
    return None


# Words a tool adds to a product's name that tell nothing about its links. A name with any other unknown word matches
# nothing: "RTX 4090 D" and "RTX 4070 Ti SUPER" are other products than "RTX 4090" and "RTX 4070 Ti".
_NOISE = frozenset(
    (
        *("NVIDIA", "AMD", "TESLA", "QUADRO", "GEFORCE", "INSTINCT", "GRACE", "HOPPER", "BLACKWELL", "SUPERCHIP"),
        *("SERVER", "WORKSTATION", "EDITION", "GENERATION", "GPU", "OAM", "AC"),
        *("HBM2", "HBM2E", "HBM3", "HBM3E", "GDDR6"),
    )
)
_FORMS = ("SXM", "PCIE", "NVL")


def find_accelerator(name: str | None) -> Accelerator | None:
    """The catalogue's entry for a GPU as a tool prints it, or None where the product is unknown or the name ambiguous.

    Reads model, form (SXM, PCIe, NVL) and memory size out of the name; vendor words and memory types are ignored, and
    any word beyond these makes it another product. Without a form the first entry of the model is taken, which is the
    SXM one. A MIG slice has no links to other GPUs and is None, and so is an engineering sample, which tools print as
    "NVIDIA Graphics Device".

    >>> find_accelerator("NVIDIA A100-SXM4-80GB").name
    'A100-SXM-80GB'
    >>> find_accelerator("NVIDIA H100 80GB HBM3").name
    'H100-SXM-80GB'
    >>> find_accelerator("NVIDIA Graphics Device") is None
    True
    """
    if name is None:
        return None
    exact = load_catalogue().accelerators.get(name.strip())
    if exact is not None:
        return exact
    words = re.findall(r"[A-Z0-9.]+", name.upper())
    forms = {form for word in words for form in _FORMS if re.fullmatch(rf"{form}\d*", word)}
    sizes_gb = [int(found.group(1)) for word in words if (found := re.fullmatch(r"(\d+)GB", word))]
    if len(forms) > 1 or "MIG" in words:
        return None
    candidates = [accelerator for accelerator in load_catalogue().accelerators.values() if _names(accelerator, words)]
    if forms:
        form = forms.pop()
        candidates = [a for a in candidates if a.form == form or a.form is None]
    if not candidates:
        return None

    def memory_differs(accelerator: Accelerator) -> bool:
        memory_gb = (accelerator.memory_bytes.value or 0) / _GIGA
        return all(abs(memory_gb - size) > 0.1 * size for size in sizes_gb)

    # min() keeps the first of equals, so the catalogue's order decides; "GH200 480GB" counts the CPU's memory.
    return min(candidates, key=memory_differs)


def _names(accelerator: Accelerator, words: list[str]) -> bool:
    """Whether every word of the name is the model's, a form, a size, or noise, and the model's words are all there."""
    model = accelerator.model.split()
    rest = list(words)
    for word in model:
        if word not in rest:
            return False
        rest.remove(word)
    return all(word in _NOISE or re.fullmatch(r"\d+GB|(SXM|PCIE|NVL)\d*", word) for word in rest)


def _frozen(entries: dict[str, _Entry]) -> Mapping[str, _Entry]:
    return MappingProxyType(entries)


_Entry = TypeVar("_Entry")
_Json = Mapping[str, object]


def _mapping(entry: object) -> _Json:
    if not isinstance(entry, Mapping):
        raise TypeError(f"catalogue.json: expected an object, found {entry!r}")
    return entry


def _number(entry: object, scale: float = 1.0) -> Figure[float]:
    fields = _mapping(entry)
    value = fields["value"]
    if value is not None and not isinstance(value, (int, float)):
        raise TypeError(f"catalogue.json: expected a number, found {value!r}")
    return Figure(None if value is None else float(value) * scale, str(fields["source"]), _note(fields))


def _count(entry: object) -> Figure[int]:
    figure = _number(entry)
    return Figure(None if figure.value is None else int(figure.value), figure.source, figure.note)


def _text(entry: object) -> Figure[str]:
    fields = _mapping(entry)
    value = fields["value"]
    return Figure(None if value is None else str(value), str(fields["source"]), _note(fields))


def _flag(entry: object) -> Figure[bool]:
    fields = _mapping(entry)
    value = fields["value"]
    return Figure(None if value is None else bool(value), str(fields["source"]), _note(fields))


def _note(fields: _Json) -> str | None:
    return str(fields["note"]) if fields.get("note") else None


def _accelerator(name: str, entry: object) -> Accelerator:
    fields = _mapping(entry)
    scale_up, pcie, memory = (_mapping(fields[part]) for part in ("scale_up", "pcie", "memory"))
    form = fields["form"]
    return Accelerator(
        name=name,
        vendor=str(fields["vendor"]),
        architecture=str(fields["architecture"]),
        model=str(fields["model"]).upper(),
        form=None if form is None else str(form),
        scale_up_link=_text(scale_up["link"]),
        scale_up_bytes_per_s=_number(scale_up["bandwidth_gb_s"], _GIGA),
        scale_up_shape=_text(scale_up["shape"]),
        nvlinks=_count(scale_up["nvlinks"]),
        pcie=_text(pcie["link"]),
        pcie_generation=_count(pcie["generation"]),
        pcie_width=_count(pcie["width"]),
        memory_bytes=_number(memory["capacity_gb"], _GIGA),
        memory_type=_text(memory["type"]),
        memory_bytes_per_s=_number(memory["bandwidth_gb_s"], _GIGA),
        dense_flops={kind: _number(figure, 1e12) for kind, figure in _mapping(fields["dense_tflops"]).items()},
        multiprocessors=_count(fields["sms"]),
        l2_bytes=_number(fields["l2_mb"], 1e6),
    )


def _nic(name: str, entry: object) -> Nic:
    fields = _mapping(entry)
    pcie = _mapping(fields["pcie"])
    return Nic(
        name=name,
        rate_bytes_per_s=_number(fields["rate_gbit_s"], _GIGA / _BITS_PER_BYTE),
        pcie=_text(pcie["link"]) if pcie["link"] else None,
        pcie_generation=_count(pcie["generation"]) if pcie["generation"] else None,
        pcie_width=_count(pcie["width"]) if pcie["width"] else None,
        infiniband=_text(fields["infiniband"]) if fields["infiniband"] else None,
    )


def _switch(name: str, entry: object) -> Switch:
    fields = _mapping(entry)
    return Switch(
        name=name,
        ports=_count(fields["ports"]),
        port_bytes_per_s=_number(fields["port_gbit_s"], _GIGA / _BITS_PER_BYTE),
        port_latency_s=_number(fields["port_latency_ns"], 1e-9),
        sharp=_text(fields["sharp"]) if fields["sharp"] else None,
        network=str(fields["network"]),
        aliases=tuple(str(alias) for alias in _list(fields["aliases"])),
    )


def _list(entry: object) -> list[object]:
    if not isinstance(entry, list):
        raise TypeError(f"catalogue.json: expected a list, found {entry!r}")
    return entry


def _nvlink(generation: int, entry: object) -> NvLink:
    fields = _mapping(entry)
    return NvLink(generation, _number(fields["link_gb_s"], _GIGA), str(fields["gpus"]))


def _cpu_link(name: str, entry: object) -> CpuLink:
    fields = _mapping(entry)
    return CpuLink(name, _number(fields["bandwidth_gb_s"], _GIGA), str(fields["what"]))


def _latency(name: str, entry: object) -> Latency:
    fields = _mapping(entry)
    return Latency(name, _number(fields["latency_ns"], 1e-9), str(fields["what"]))


def _nvswitch(name: str, entry: object) -> NvSwitch:
    fields = _mapping(entry)
    return NvSwitch(
        name=name,
        nvlink_generation=int(str(fields["nvlink_generation"])),
        ports=_count(fields["ports"]),
        per_baseboard=_count(fields["per_baseboard"]),
        in_switch_reduction=_flag(fields["in_switch_reduction"]),
        system=str(fields["system"]),
    )


AnyFigure = Figure[float] | Figure[int] | Figure[str] | Figure[bool]


def all_figures(value: object, path: str = "") -> Iterator[tuple[str, AnyFigure]]:
    """Every figure under an entry with the attribute path that leads to it: what a table of sources needs."""
    if isinstance(value, Figure):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from all_figures(item, f"{path}.{key}" if path else str(key))
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from all_figures(getattr(value, field), f"{path}.{field}" if path else field)
