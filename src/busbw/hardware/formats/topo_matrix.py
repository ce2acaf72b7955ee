"""`nvidia-smi topo -m`: how each GPU and NIC of a host reaches the others.

Also reads what reports make of it: rows left out, groups of devices ("GPU0-3") as one row, no header, no legend,
columns tabbed or blank, the underlines a terminal shows. AMD's link-type table is read too, its hop and weight tables
are not. Link words, nearest first (legend of the tool): X itself; NV# a bond of # NVLinks; PIX one PCIe switch; PXB
several PCIe switches; PHB the CPU's host bridge; NODE several host bridges of one NUMA node; SYS between NUMA nodes
(SOC in old drivers). Other words are kept as printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from busbw.errors import InputError, Loss, count_losses

__all__ = ["Link", "MatrixRow", "TopologyMatrix", "read_topology_matrix"]

MAX_BYTES = 4 * 1024 * 1024
"""Largest text read; the matrix of a 16-GPU host takes 5 KB."""
_MAX_DEVICES = 256
"""Most devices a header may name, and most rows read; a host has 16 GPUs and some 40 NICs at most."""

_NEARNESS = {"X": 0, "NV": 1, "XGMI": 1, "PIX": 2, "PXB": 3, "PHB": 4, "PCIE": 4, "NODE": 5, "SYS": 6, "SOC": 6}
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|_\x08|\x08.|[\x00\x0e\x0f]")
_DEVICE = re.compile(
    r"(?:GPU|NIC|DCU|MIC|HCA)-?\d+(?:-(?:GPU|NIC|DCU|HCA)?\d+)?"
    r"|(?:mlx|bnxt|irdma|ionic|efa|hfi|hns|ib|roce|rdma|nic|eth|ens|eno|enp|xsc|erdma|cxi|bond)[\w.-]*\d[\w.-]*"
    r"|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
)
_GPU = re.compile(r"(?:GPU|DCU)-?\d.*|[0-9a-fA-F]{4,8}:.*")
_WORD = re.compile(r"X|NV\d+|[A-Z][A-Z0-9]{1,7}|N/A")
_GROUP = re.compile(r"([A-Za-z]+)(\d+)-(?:[A-Za-z]+)?(\d+)")
_LEGEND_NAME = re.compile(r"\s*(NIC\d+|HCA\d+)\s*:\s*(\S+)\s*$")
_TAIL_START = re.compile(r"\s(?:CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU\s+Affinity|NUMA)")
_TAIL_NAMES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Link:
    """One cell: how device `a` (the row) reaches device `b` (the column), as printed."""

    a: str
    b: str
    kind: str
    line: int = field(compare=False)

    @property
    def nvlinks(self) -> int | None:
        """The number in NV#, None where the two are not joined by NVLink."""
        found = re.fullmatch(r"NV(\d{1,4})", self.kind)
        return int(found.group(1)) if found else None

    @property
    def crosses_numa(self) -> bool:
        """True for SYS (SOC in old drivers): the path crosses the link between NUMA nodes."""
        return self.kind in {"SYS", "SOC"}

    @property
    def distance(self) -> int | None:
        """Rank of the word from near (0, itself) to far (6, SYS); None for a word that has no place in the order."""
        return _NEARNESS.get("NV" if self.nvlinks is not None else self.kind)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row as printed, with the affinities at its end; None where the table has no such column."""

    device: str
    links: tuple[Link, ...]
    cpu_affinity: str | None
    numa_affinity: str | None
    gpu_numa_id: str | None
    line: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """The whole table. Names are as printed (GPU0, NIC0, mlx5_0, or a group such as GPU0-3)."""

    path: str = field(compare=False)
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    nic_names: tuple[tuple[str, str], ...]
    """The legend: NIC0 -> mlx5_0."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Every row and column, columns first, each once."""
        return tuple(dict.fromkeys([*self.columns, *(row.device for row in self.rows)]))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs among the devices."""
        return tuple(device for device in self.devices if _GPU.fullmatch(device))

    @property
    def nics(self) -> tuple[str, ...]:
        """The NICs among the devices."""
        return tuple(device for device in self.devices if not _GPU.fullmatch(device))

    @property
    def links(self) -> tuple[Link, ...]:
        """Every cell but the diagonal, row by row."""
        return tuple(link for row in self.rows for link in row.links if link.kind != "X")

    def row(self, device: str) -> MatrixRow | None:
        """The row of a device or of the group that holds it; None where the row is missing."""
        for row in self.rows:
            if row.device == device or device in _members(row.device):
                return row
        return None

    def link(self, a: str, b: str) -> Link | None:
        """How a reaches b: the cell (a, b), else (b, a); None where neither was printed, or both lie in one group.

        A device inside a printed group is found: the link of GPU2 and GPU5 is the cell of GPU0-3 and GPU4-7.
        """
        for one, other in ((a, b), (b, a)):
            row = self.row(one)
            for link in row.links if row is not None else ():
                if (link.b == other or other in _members(link.b)) and (link.kind != "X" or a == b):
                    return link
        return None

    def gpu_links(self) -> tuple[Link, ...]:
        """One link for each pair of GPUs that was printed, in the order of the columns."""
        return tuple(self._pairs(self.gpus))

    def pairs(self, kind: str) -> tuple[Link, ...]:
        """The pairs of devices joined by one kind of link (SYS, PHB, NV4, ...), each once."""
        return tuple(link for link in self._pairs(self.devices) if link.kind == kind)

    def nearest_nics(self, gpu: str) -> tuple[Link, ...]:
        """The links to the NICs closest to a GPU, all that are equally close; empty where none is printed."""
        found = [link for nic in self.nics if (link := self.link(gpu, nic)) is not None and link.distance is not None]
        closest = min((link.distance or 0 for link in found), default=None)
        return tuple(link for link in found if link.distance == closest)

    def asymmetric_pairs(self) -> tuple[tuple[Link, Link], ...]:
        """Pairs whose two cells differ: a damaged table, or a virtual machine that hides part of the tree."""
        cells = {(link.a, link.b): link for link in self.links}
        found = []
        for (a, b), link in cells.items():
            back = cells.get((b, a))
            if back is not None and back.kind != link.kind and (b, a) > (a, b):
                found.append((link, back))
        return tuple(found)

    def nic_name(self, nic: str) -> str:
        """The device name of a NIC by the legend; the name itself where the legend does not hold it."""
        return dict(self.nic_names).get(nic, nic)

    def _pairs(self, devices: tuple[str, ...]) -> Iterator[Link]:
        for index, a in enumerate(devices):
            for b in devices[index + 1 :]:
                link = self.link(a, b)
                if link is not None:
                    yield link


def read_topology_matrix(data: bytes | str, path: str) -> tuple[TopologyMatrix, list[Loss]]:
    """The matrix in a text, and what was lost: the first matrix where there are several.

    Losses: `topo-truncated-row` (fewer cells than columns), `topo-bad-cell` (no link word), `topo-no-header`,
    `topo-missing-row` (a GPU column without a row), `topo-second-matrix`. Raises InputError where no matrix is found.
    """
    lines = _lines(data, path)
    header = _find_header(lines)
    losses: list[Loss] = []
    if header is None:
        return _read_without_header(lines, path)
    start, columns = header
    tail = tuple(name for name in _TAIL_NAMES if re.search(name.replace(" ", r"\s+"), lines[start], re.IGNORECASE))
    layout = _Layout(columns, tail, tabs=lines[start].count("\t") >= len(columns))
    rows: list[MatrixRow] = []
    seen: set[str] = set()
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if _header_columns(line) and rows:
            if _has_words(lines, number + 1):
                detail = "another matrix follows; only the first was read. Pass one file per host"
                losses.append(Loss("topo-second-matrix", path, number + 1, detail))
            break
        row = _row(line, number + 1, layout, path, losses)
        if row is not None and row.device not in seen and len(rows) < _MAX_DEVICES:
            rows.append(row)
            seen.add(row.device)
    if not rows:
        raise InputError(f"{path}:{start + 1}: a topology matrix without rows. Pass all that the tool printed.")
    for column in columns:
        if _GPU.fullmatch(column) and column not in seen:
            detail = f"no row of {column}; its links are known from the other rows only"
            losses.append(Loss("topo-missing-row", path, start + 1, detail))
    return TopologyMatrix(path, columns, tuple(rows), _legend(lines)), count_losses(losses)


def _lines(data: bytes | str, path: str) -> list[str]:
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes. This is no topology matrix; pass the right file.")
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    return [_ESCAPES.sub("", line).rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def _header_columns(line: str) -> tuple[str, ...] | None:
    """The devices a header line names; None for any other line."""
    tail = _TAIL_START.search(line)
    words = (line[: tail.start()] if tail else line).split()
    if not words or len(words) > _MAX_DEVICES or not all(_DEVICE.fullmatch(word) for word in words):
        return None
    if len(set(words)) != len(words) or not any(_GPU.fullmatch(word) for word in words):
        return None
    return tuple(words)


def _find_header(lines: list[str]) -> tuple[int, tuple[str, ...]] | None:
    """The first header that rows of link words follow, else the first header."""
    headers = [(number, columns) for number, line in enumerate(lines) if (columns := _header_columns(line))]
    for number, columns in headers:
        if _has_words(lines, number + 1):
            return number, columns
    return headers[0] if headers else None


def _has_words(lines: list[str], start: int) -> bool:
    """Whether the next row holds link words (AMD prints tables of hops and weights under the same header)."""
    for line in lines[start : start + 4]:
        words = line.split()
        if len(words) > 1 and _DEVICE.fullmatch(words[0]):
            return any(_WORD.fullmatch(word) and word != "N/A" for word in words[1:])
    return False


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the header says of the rows: device columns, affinity columns after them, cells parted by tabs."""

    columns: tuple[str, ...]
    tail: tuple[str, ...]
    tabs: bool


def _row(line: str, number: int, layout: _Layout, path: str, losses: list[Loss]) -> MatrixRow | None:
    """One row of the matrix; None for a line that is none."""
    columns = layout.columns
    words = line.split()
    if len(words) < 2 or not _DEVICE.fullmatch(words[0]) or words[1] in {"=", ":"}:
        return None
    device = words[0]
    fields = [cell.strip() for cell in line.split("\t")] if layout.tabs and "\t" in line else words
    fields = fields[fields.index(device) + 1 :] if device in fields else words[1:]
    cells, rest = fields[: len(columns)], [cell for cell in fields[len(columns) :] if cell]
    if len(cells) < len(columns):
        detail = f"row of {device} has {len(cells)} cells, the header has {len(columns)} columns; the rest is unknown"
        losses.append(Loss("topo-truncated-row", path, number, detail))
    links: list[Link] = []
    for column, cell in zip(columns, cells, strict=False):
        kind = "X" if cell == "0" and column == device else cell
        if _WORD.fullmatch(kind):
            links.append(Link(device, column, kind, number))
        else:
            detail = f"{cell!r} between {device} and {column} is no link word; the pair is unknown"
            losses.append(Loss("topo-bad-cell", path, number, detail))
    affinity = _affinity(rest, layout.tail)
    cpu, numa, gpu_numa = (affinity.get(name) for name in _TAIL_NAMES)
    return MatrixRow(device, tuple(links), cpu, numa, gpu_numa, number)


def _affinity(words: list[str], tail: tuple[str, ...]) -> dict[str, str]:
    """The words after the cells by the names of their columns; a blank CPU list shifts nothing."""
    if len(words) < len(tail) and tail and tail[0] == "CPU Affinity" and words and not _CPU_LIST.fullmatch(words[0]):
        tail = tail[1:]
    return dict(zip(tail, words, strict=False))


def _read_without_header(lines: list[str], path: str) -> tuple[TopologyMatrix, list[Loss]]:
    """Rows whose header was cut: the X of a row says which column is its device; cells of other columns are lost."""
    found: list[tuple[int, str, list[str]]] = []
    columns: dict[int, str] = {}
    for number, line in enumerate(lines):
        words = line.split()
        cells = [word for word in words[1:] if _WORD.fullmatch(word) and word != "N/A"]
        if 1 < len(cells) <= _MAX_DEVICES and _DEVICE.fullmatch(words[0]) and cells.count("X") == 1:
            if columns.setdefault(cells.index("X"), words[0]) != words[0]:
                break
            found.append((number + 1, words[0], cells))
    if len(found) < 2 or len(set(columns.values())) != len(found):
        raise InputError(
            f"{path}: no topology matrix found: no line of device names, no rows that start with GPU0, GPU1 and so on. "
            "Pass the output of nvidia-smi topo -m."
        )
    rows = tuple(
        MatrixRow(
            device,
            tuple(Link(device, columns[at], cell, number) for at, cell in enumerate(cells) if at in columns),
            None,
            None,
            None,
            number,
        )
        for number, device, cells in found
    )
    detail = "no header; each row's X was taken to mark its own column, cells of columns without a row were left out"
    names = tuple(columns[at] for at in sorted(columns))
    return TopologyMatrix(path, names, rows, _legend(lines)), [Loss("topo-no-header", path, found[0][0], detail)]


def _legend(lines: list[str]) -> tuple[tuple[str, str], ...]:
    names = [(found.group(1), found.group(2)) for line in lines if (found := _LEGEND_NAME.match(line))]
    return tuple(dict(names).items())


@lru_cache(maxsize=1024)
def _members(group: str) -> frozenset[str]:
    """GPU0-3 -> GPU0, GPU1, GPU2, GPU3; empty for a plain name."""
    found = _GROUP.fullmatch(group)
    if found is None or not found.group(1).isupper():
        return frozenset()
    first, last = int(found.group(2)), int(found.group(3))
    if last - first >= _MAX_DEVICES:
        return frozenset()
    return frozenset(f"{found.group(1)}{number}" for number in range(first, last + 1))
