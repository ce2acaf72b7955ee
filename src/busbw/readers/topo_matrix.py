"""`nvidia-smi topo -m` wherever it stands in a text: one topology for each matrix, and its pairs as `paths`.

The format itself is read by busbw.hardware.formats; this module finds where a matrix begins and ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from busbw.errors import InputError, Loss
from busbw.hardware.formats import TopologyMatrix, read_topology_matrix
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template

__all__ = ["READER"]

_DEVICE = (
    r"(?:GPU|NIC|DCU|HCA)-?\d+(?:-\w+)?"
    r"|(?:mlx|bnxt|irdma|ionic|efa|hfi|hns|ib|roce|rdma|cxi)[\w.-]{0,40}?\d[\w.-]{0,40}"
)
_WORD = r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|XGMI|PCIE)"
_SIGNATURE = re.compile(rf"^\s*(?:{_DEVICE})(?:\s+{_WORD})+(?:\s|$)|^\s*(?:{_DEVICE})(?:\s+(?:{_DEVICE}))+(?:\s|$)")
_HEADER = re.compile(
    rf"\s*(?:{_DEVICE})(?:\s+(?:{_DEVICE}))*(?:\s+(?:CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU|NUMA).*)?\s*$"
)
_ROW = re.compile(rf"\s*(?:{_DEVICE})(?:\s+(?:{_WORD}|N/A)(?=\s|$))+")
_LEGEND = re.compile(r"\s*(?:NIC )?Legend:|\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+=|\s*(?:NIC|HCA)\d+\s*:\s*\S+\s*$")
_REACH = 12
"""Foreign lines after which a matrix is over."""


class TopologyMatrixReader(Lines):
    """Matrices of nvidia-smi topo -m."""

    name = "topo-matrix"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """A TopologyMatrix and its `paths` for every block; src and dst as the matrix names them."""
        for block in _blocks(lines):
            yield from _read_block(artefact, block)


READER = TopologyMatrixReader()


def _blocks(lines: Sequence[PlainLine]) -> Iterator[list[PlainLine]]:
    """Lines from a header (or the first row) through the legend, foreign lines left out."""
    block: list[PlainLine] = []
    rows = foreign = 0
    for line in lines:
        text = line.text
        if not text.lstrip()[:1].isalpha():
            continue
        is_row = _ROW.match(text) is not None
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
