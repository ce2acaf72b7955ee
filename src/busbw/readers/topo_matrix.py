"""`nvidia-smi topo -m` and `-p2p` wherever they stand in a text: pairs as `paths`, and one topology for each matrix of -m.

Of -m the format itself is read by busbw.hardware.formats; this module finds where a matrix begins and ends. A matrix of -p2p says
whether the driver lets one GPU reach the other, by the words of its legend: OK, CNS, GNS, TNS, NS, DR, U.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from busbw.errors import InputError, Loss, Losses
from busbw.hardware.formats import TopologyMatrix, read_topology_matrix
from busbw.hardware.formats.topo_matrix import Link, MatrixRow
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.plain_rows import by_writer, event_row

__all__ = ["READER"]

_DEVICE = (
    r"(?:GPU|NIC|DCU|HCA)-?\d+(?:-\w+)?"
    r"|(?:mlx|bnxt|irdma|ionic|efa|hfi|hns|ib|roce|rdma|cxi)[\w.-]{0,40}?\d[\w.-]{0,40}"
)
_WORD = r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|XGMI|PCIE)"
_P2P = {
    "OK": "reachable", "CNS": "chipset not supported", "GNS": "GPU not supported", "TNS": "topology not supported", "NS": "not supported",
    "DR": "disabled by a registry key", "U": "unknown",
}  # fmt: skip
"""Words of `nvidia-smi topo -p2p` by its own legend (drivers 384 to 580)."""
_P2P_ROW = re.compile(
    rf"\s*GPU(?P<gpu>\d{{1,3}})(?P<cells>(?=.*\s(?:{'|'.join(_P2P)})(?:\s|$))(?:\s+(?:X|{'|'.join(_P2P)}))+)\s*"
)
_P2P_BROKEN = re.compile(r"\s*GPU\d{1,3}(?:\s+\S{1,12})+\s*")
_P2P_HEADER = re.compile(r"\s*GPU\d{1,3}(?:\s+GPU\d{1,3})*\s*")
_P2P_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2p_status)\s+(?P<what>[rwnapc]{1,4})\b")
_SIGNATURE = re.compile(
    rf"^\s*GPU\d+(?:\s+(?:X|{'|'.join(_P2P)}))+\s*$|^\s*(?:{_DEVICE})(?:\s+{_WORD})+(?:\s|$)|^\s*(?:{_DEVICE})(?:\s+(?:{_DEVICE}))+(?:\s|$)"
)
_HEADER = re.compile(
    rf"\s*(?:{_DEVICE})(?:\s+(?:{_DEVICE}))*(?:\s+(?:CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU|NUMA).*)?\s*$"
)
_ROW = re.compile(rf"\s*(?:{_DEVICE})(?:\s+0)?(?:\s+(?:{_WORD}|N/A)(?=\s|$))+")
"""AMD's tool writes 0 for a device itself."""
_LEGEND = re.compile(r"\s*(?:NIC )?Legend:|\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+=|\s*(?:NIC|HCA)\d+\s*:\s*\S+\s*$")
_REACH = 12
"""Foreign lines after which a matrix is over."""


class TopologyMatrixReader(Lines):
    """Matrices of nvidia-smi topo -m."""

    name = "topo-matrix"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """A TopologyMatrix and its `paths` for every block; src and dst as the matrix names them.

        Of -p2p `paths` with the word as printed, and event gpu.peer_refused for each pair that is not OK; `operation` is what was asked
        (r, w, n for NVLink, a for atomics, p), where the command stands above the matrix.
        """
        for block in _blocks(lines):
            yield from _read_block(artefact, block)
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            yield from _peer_access(artefact, written, losses)
        yield from losses


READER = TopologyMatrixReader()


def _blocks(lines: Sequence[PlainLine]) -> Iterator[list[PlainLine]]:
    """Lines from a header (or the first row) through the legend, foreign lines left out."""
    block: list[PlainLine] = []
    rows = foreign = 0
    for line in lines:
        text = line.text
        if not text.lstrip()[:1].isalpha():
            continue
        is_row = _ROW.match(text) is not None and _P2P_ROW.fullmatch(text) is None
        if not is_row and _HEADER.match(text) is not None:
            if rows:
                yield block
            block, rows, foreign = [line], 0, 0
        elif is_row:
            block.append(line)
            rows, foreign = rows + 1, 0
        elif block and _LEGEND.match(text) is not None:
            block.append(line)
            foreign = 0
        elif block:
            foreign += 1
            if foreign > _REACH:
                if rows:
                    yield block
                block, rows, foreign = [], 0, 0
    if rows:
        yield block


def _read_block(artefact: Artefact, block: list[PlainLine]) -> Iterator[Item]:
    number_of = [line.number for line in block]
    place = {line.number: line.byte_offset for line in block}
    try:
        found, losses = read_topology_matrix("\n".join(line.text for line in block), artefact.path)
    except InputError as error:
        if len(block) > 1:
            yield Loss("damaged-matrix", artefact.path, number_of[0], str(error).removeprefix(f"{artefact.path}: "))
        return
    matrix = _with_lines_of_file(found, number_of)
    yield matrix
    yield rows_of(
        "paths",
        [
            {
                "artefact": artefact.sha256,
                "line": link.line,
                "byte_offset": place[link.line],
                "src": link.a,
                "dst": link.b,
                "path": link.kind,
            }
            for link in matrix.links
        ],
    )
    for loss in losses:
        yield replace(loss, line=number_of[loss.line - 1] if loss.line is not None else None)


def _peer_access(artefact: Artefact, lines: Sequence[PlainLine], losses: Losses) -> Iterator[Item]:
    """Matrices of topo -p2p: under a header of GPUs alone, rows of the legend's words."""
    paths: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    columns: list[str] = []
    rows: list[MatrixRow] = []
    operation: str | None = None
    foreign = 0
    for line in lines:
        text = line.text
        if (command := _P2P_COMMAND.search(text)) is not None:
            operation = command["what"]
        elif _P2P_HEADER.fullmatch(text) is not None:
            yield from _matrix_of(artefact, columns, rows)
            columns, rows, foreign = text.split(), [], 0
        elif columns and (row := _P2P_ROW.fullmatch(text)) is not None:
            gpu, cells = f"GPU{row['gpu']}", row["cells"].split()
            if len(cells) != len(columns):
                losses.add("damaged-row", line.number, f"row of {gpu} has {len(cells)} cells under {len(columns)} GPUs")
            foreign = 0
            links: list[Link] = []
            for peer, cell in zip(columns, cells, strict=False):
                links.append(Link(gpu, peer, cell, line.number))
                if cell == "X":
                    continue
                paths.append({**place_and_host(artefact, line, line.host), "src": gpu, "dst": peer, "path": cell})
                if cell != "OK":
                    fields = {"src": gpu, "dst": peer, "status": cell, "meaning": _P2P[cell], "operation": operation}
                    refused.append(event_row(artefact, line, "gpu.peer_refused", fields))
            rows.append(MatrixRow(gpu, tuple(links), None, None, None, line.number))
        elif rows and _P2P_BROKEN.fullmatch(text) is not None and any(word in _P2P for word in text.split()[1:]):
            losses.add("damaged-row", line.number, f"a cell is no word of the legend: {text.strip()[:60]!r}")
        elif columns:
            foreign += 1
            if foreign > _REACH:
                yield from _matrix_of(artefact, columns, rows)
                columns, rows, operation = [], [], None
    yield from _matrix_of(artefact, columns, rows)
    if refused:
        yield rows_of("events", refused)
    if paths:
        yield rows_of("paths", paths)


def _matrix_of(artefact: Artefact, columns: Sequence[str], rows: Sequence[MatrixRow]) -> Iterator[TopologyMatrix]:
    """A matrix of -p2p as a topology whose links are the words of its legend, if it has rows."""
    if rows:
        yield TopologyMatrix(artefact.path, tuple(columns), tuple(rows), ())


def _with_lines_of_file(matrix: TopologyMatrix, number_of: list[int]) -> TopologyMatrix:
    """The same matrix with lines counted from the start of the file, not of the block."""
    rows = tuple(
        replace(
            row,
            line=number_of[row.line - 1],
            links=tuple(replace(link, line=number_of[link.line - 1]) for link in row.links),
        )
        for row in matrix.rows
    )
    return replace(matrix, rows=rows)
