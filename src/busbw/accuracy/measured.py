"""measured/1 tables: one JSON file a published benchmark table, with its hardware and software.

The files come from strangers: sizes are bounded, what does not fit is refused with a kind, row by row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbw.collectives import bus_factor, collective_named
from busbw.errors import InputError
from busbw.hardware import Accelerator, find_accelerator, load_nodes
from busbw.prediction import Situation, blueprint_of, gpu_class, intra_rate, network_class

if TYPE_CHECKING:
    from busbw.accuracy.workloads import TrainingRow

__all__ = [
    "PEAK_BYTES",
    "REFUSALS",
    "WORKLOADS",
    "MeasuredRow",
    "MeasuredTable",
    "Refusal",
    "allowed_by",
    "read_measured",
    "shipped_reports",
]

REFUSALS = ("layout-unknown", "not-measured", "hardware-unknown", "unsupported")
_MOST_FILE_BYTES = 16 << 20
_MOST_ROWS = 100_000
_MOST_RANKS = 1 << 22
_LONGEST_TEXT = 2000
_US, _GIGA, _GBIT = 1e-6, 1e9, 1e9 / 8
_NVLINK_DOMAIN = 72
"""GPUs of a rack of GB200 or GB300 NVL72. Source: data/hardware.json."""
_COLLECTIVE_TESTS = ("nccl-tests", "rccl-tests")
WORKLOADS = ("training", "inference")
"""Kinds of workload files: training steps are predicted, requests refused."""
PEAK_BYTES = 16 << 30
"""At which the best bus bandwidth of a sweep without a size is compared: from there on it is flat, so that the error of the
bandwidth is that of the time at any large size."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that is not scored, and why. row: its number in the table, or its own id; None for the whole table."""

    row: int | str | None
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured time and what it was of."""

    row: int
    collective: str
    size_bytes: int
    """Where only the best of a sweep is stated, PEAK_BYTES."""
    time_s: float
    where: Situation
    algorithms: frozenset[str] | None
    """What the settings of the run leave; None: all."""
    protocols: frozenset[str] | None
    is_peak: bool = False
    """The best bus bandwidth of a sweep, whose size is not stated."""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table as read."""

    id: str
    campaign: str
    tool: str
    library: str
    health: str
    platform: str
    """GPU and network, such as `H100 SXM5 80GB, 2 nodes`, for grouping."""
    rows: tuple[MeasuredRow, ...]
    rows_in_place: tuple[MeasuredRow, ...] = ()
    refused: tuple[Refusal, ...] = field(default=())
    training: tuple[TrainingRow, ...] = ()
    """Measured training steps, of a workload file."""

    @property
    def is_scored(self) -> bool:
        """Whether the bars count it: a healthy table of NCCL or RCCL."""
        return self.health == "healthy" and self.library.upper().startswith(("NCCL", "RCCL"))

    @property
    def group(self) -> str:
        """The group of its line in the score: the platform, p2p for tools that move between pairs, or the kind of workload."""
        if self.tool in WORKLOADS:
            return self.tool
        return self.platform if self.tool in _COLLECTIVE_TESTS else "p2p"


class _RefusedError(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def read_measured(path: Path) -> MeasuredTable:
    """The table of a file. Raises InputError for what is no measured/1 table at all."""
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise InputError(f"{path}: larger than {_MOST_FILE_BYTES >> 20} MiB; a measured/1 table is small. Thin it.")
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON ({str(error)[:200]}). `busbw score` reads measured/1 tables.") from None
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise InputError(
            f"{path}: no measured/1 table: an object with `hardware`, `collective` and `rows` was expected."
        )
    return _table(document, path.stem)


def shipped_reports() -> list[MeasuredTable]:
    """Tables of public reports that ship with the package: a few rows each of hardware that larger collections lack."""
    text = (resources.files("busbw.accuracy") / "reports.json").read_text(encoding="utf-8")
    return [_table(document, document["id"]) for document in json.loads(text)]


def _table(document: Mapping[str, Any], stem: str) -> MeasuredTable:
    hardware, software = _object(document, "hardware"), _object(document, "software")
    rows: list[MeasuredRow] = []
    in_place: list[MeasuredRow] = []
    refused: list[Refusal] = []
    listed = document["rows"][:_MOST_ROWS]
    if len(document["rows"]) > _MOST_ROWS:
        refused.append(Refusal(None, "layout-unknown", f"more than {_MOST_ROWS} rows; the rest was left out"))
    for number, row in enumerate(listed):
        try:
            rows.append(_row(number, row, document, hardware, software))
        except _RefusedError as error:
            refused.append(Refusal(number, error.kind, error.reason))
    for number, row in enumerate(_list(document, "rows_in_place")[:_MOST_ROWS]):
        try:
            in_place.append(_row(number, row, document, hardware, software))
        except _RefusedError:
            continue  # the out-of-place half says the same
    return MeasuredTable(
        id=_text(document, "id") or stem[:_LONGEST_TEXT],
        campaign=_text(document, "campaign") or _text(document, "id") or stem,
        tool=_text(document, "tool"),
        library=_text(software, "library"),
        health=_text(document, "health"),
        platform=_text(hardware, "gpu"),
        rows=tuple(rows),
        rows_in_place=tuple(in_place),
        refused=tuple(refused),
    )


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _number(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _row(
    number: int, row: Any, document: Mapping[str, Any], hardware: Mapping[str, Any], software: Mapping[str, Any]
) -> MeasuredRow:
    if not isinstance(row, dict):
        raise _RefusedError("layout-unknown", "the row is no object")
    named = _text(row, "collective") or _text(document, "collective")
    collective = collective_named(named)
    if collective is None or collective in ("barrier", "all_to_all_v"):
        raise _RefusedError("unsupported", f"{named or 'no collective'}: not a collective that the model covers")
    size = _number(row, "bytes")
    ranks = _number(row, "gpus") or _number(document, "ranks")
    if not ranks or ranks > _MOST_RANKS or ranks != int(ranks):
        raise _RefusedError("layout-unknown", "the number of ranks is not stated")
    time_us, busbw = _number(row, "time_us"), _number(row, "busbw_GBps")
    is_peak = row.get("bytes") is None and not time_us and bool(busbw) and _text(document, "tool") in _COLLECTIVE_TESTS
    if is_peak:
        size = float(PEAK_BYTES)
    if not size:
        raise _RefusedError("not-measured", "the size is not stated, so there is no time")
    try:
        where = _situation(row, hardware, software, int(ranks))
    except InputError as error:
        raise _RefusedError("hardware-unknown", str(error)) from None
    if time_us:
        time_s = time_us * _US
    elif busbw:
        time_s = size * bus_factor(collective, int(ranks)) / (busbw * _GIGA)
    else:
        raise _RefusedError("not-measured", "neither time nor bus bandwidth is given")
    if time_s <= 0:
        raise _RefusedError("not-measured", "one rank moves nothing")
    algorithms, protocols = _allowed(row, software, collective, where)
    return MeasuredRow(number, collective, int(size), time_s, where, algorithms, protocols, is_peak)


def _accelerator(hardware: Mapping[str, Any]) -> tuple[Accelerator, bool]:
    """The GPU, and whether its NVLink joins all of a node."""
    text = _text(hardware, "gpu")
    link = _text(hardware, "intra_link").lower()
    found = find_accelerator(text)
    if found is None and text:
        found = find_accelerator(text.split(" or ", maxsplit=1)[0])
    if found is None:
        raise _RefusedError("hardware-unknown", f"{text or 'no GPU'}: not in the catalogue")
    return found, not ("pairs" in link or "pcie between" in link)


def _situation(
    row: Mapping[str, Any], hardware: Mapping[str, Any], software: Mapping[str, Any], ranks: int
) -> Situation:
    accelerator, joined = _accelerator(hardware)
    nodes = int(_number(row, "nodes") or _number(hardware, "nodes") or 0)
    per_node = int(_number(hardware, "gpus_per_node") or 0)
    if not nodes and per_node:
        nodes = -(-ranks // per_node)
    fabric, nic = _text(hardware, "fabric"), _text(hardware, "nic")
    only_network = "network forced" in _text(hardware, "intra_link")
    rate, shape = intra_rate(accelerator)
    kind = gpu_class(accelerator)
    if not joined:
        rate, shape = _pcie(accelerator), "pairs"
        kind = f"{kind.removesuffix('-pcie')}-pcie"
    if only_network:
        domains, nodes = ranks, max(1, nodes)
    elif _spans_racks(accelerator):
        inside = "inside one NVLink domain" in fabric
        domains = 1 if inside else -(-ranks // _NVLINK_DOMAIN)
    else:
        domains = nodes
    if not nodes or nodes > _MOST_RANKS or not domains or ranks % domains:
        raise _RefusedError("layout-unknown", f"{ranks} ranks on {nodes or 'unknown'} nodes")
    network = network_class(f"{nic} {fabric}", accelerator.compute_capability)
    nics, gbps = _nics(hardware, accelerator, domains)
    per_node_ranks = max(1, ranks // nodes)
    if per_node_ranks == 1 and not only_network:
        nics = min(nics, 1)
    if only_network:
        nics, nodes = 1, ranks
    in_domain = nics * nodes / domains
    reduction = _object(hardware, "switch_inline_reduction")
    env = _object(software, "env")
    nvls = (accelerator.compute_capability or 0) >= 90 and shape == "switch" and ranks // domains > 2
    return Situation(
        ranks=ranks,
        domains=domains,
        gpu=kind,
        intra_bytes_per_s=rate,
        shape=shape,
        network=network,
        network_bytes_per_s=in_domain * gbps * _GBIT,
        nics=max(1, round(in_domain)),
        nvls=nvls and reduction.get("nvls") != "no",
        sharp=_text(row, "algorithm") == "SHARP"
        or reduction.get("sharp") == "yes"
        or env.get("NCCL_COLLNET_ENABLE") == "1",
        library="RCCL" if accelerator.compute_capability is None else "NCCL",
        node=blueprint_of(accelerator, network if domains > 1 else "", nics),
    )


def _pcie(accelerator: Accelerator) -> float:
    from busbw.hardware import pcie_bytes_per_s  # noqa: PLC0415

    generation = next((g for g in (6, 5, 4, 3) if f"Gen{g}" in (accelerator.pcie.value or "")), 4)
    return pcie_bytes_per_s(generation, 16)


def _spans_racks(accelerator: Accelerator) -> bool:
    return accelerator.name in ("GB200", "GB300")


def _nics(hardware: Mapping[str, Any], accelerator: Accelerator, domains: int) -> tuple[int, float]:
    """NICs of a node and Gb/s of one; where the table does not say, those of a blueprint with this GPU."""
    nics, gbps = _number(hardware, "nics_per_node"), _number(hardware, "nic_gbps")
    if domains == 1:
        return int(nics or 0), gbps or 0.0
    if nics and gbps:
        return int(nics), gbps
    node = next(
        (node for node in load_nodes().values() if node.accelerator.name == accelerator.name and node.nics), None
    )
    if node is None:
        raise _RefusedError(
            "hardware-unknown", "several nodes, and neither the table nor a blueprint says how fast the NICs are"
        )
    return int(nics or node.nics), gbps or node.nic_rate_bytes_per_s / _GBIT


_ALGORITHM = {name.lower(): name for name in ("Ring", "Tree", "NVLS", "NVLSTree", "CollNetChain", "PAT")}
_PROTOCOL = {name.lower(): name for name in ("LL", "LL128", "Simple")}


def _allowed(
    row: Mapping[str, Any], software: Mapping[str, Any], collective: str, where: Situation
) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """What the row's algorithm or the variables of the run leave."""
    env = _object(software, "env")
    said = _text(row, "algorithm").split(" ")[0]
    if said == "Ring":
        return frozenset({"Ring"}), _listed(env.get("NCCL_PROTO"), _PROTOCOL)
    if said == "SHARP" and collective == "all_reduce":
        return frozenset({"CollNetChain"}), None
    return allowed_by(env)


def allowed_by(variables: Mapping[str, Any]) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """Algorithms and protocols that NCCL_ALGO and NCCL_PROTO leave; None: all, also where they only exclude some."""
    return _listed(variables.get("NCCL_ALGO"), _ALGORITHM), _listed(variables.get("NCCL_PROTO"), _PROTOCOL)


def _listed(value: Any, names: Mapping[str, str]) -> frozenset[str] | None:
    if not isinstance(value, str) or not value or value.startswith("^"):
        return None
    found = {names[word.strip().lower()] for word in value.split(",") if word.strip().lower() in names}
    return frozenset(found) or None


def curves_of(rows: tuple[MeasuredRow, ...]) -> Iterator[tuple[MeasuredRow, ...]]:
    """Rows of one collective in one situation, in the order of the table."""
    groups: dict[Any, list[MeasuredRow]] = {}
    for row in rows:
        groups.setdefault((row.collective, row.where, row.algorithms, row.protocols), []).append(row)
    for found in groups.values():
        yield tuple(found)
