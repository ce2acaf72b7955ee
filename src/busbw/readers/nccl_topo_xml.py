"""NCCL's XML files: topology (NCCL_TOPO_DUMP_FILE), graphs (NCCL_GRAPH_DUMP_FILE), and fragments quoted in reports.

The formats themselves are read by busbw.hardware.formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbw.errors import InputError, Loss
from busbw.hardware.formats import read_nccl_graphs, read_nccl_topology
from busbw.observations import Artefact
from busbw.readers.base import Item

__all__ = ["LARGEST_FILE_BYTES", "READER"]

LARGEST_FILE_BYTES = 16 * 2**20
"""The topology of a host with 8 GPUs is 10 KB, that of a rack with multi-node NVLink some hundred."""

_FIRST_ELEMENT = re.compile(
    rb"\s*<(system|graphs|graph|channel|cpu|pci|gpu|nic|net)(?=[\s/>])(?P<attributes>[^>]{0,4096})"
)
_PROLOGUE = re.compile(rb"\s*(?:<\?xml[^>]*\?>|<!--.*?-->)", re.DOTALL)
_ATTRIBUTE_OF = {
    b"system": rb"version=|/?$", b"graphs": rb"version=", b"graph": rb"pattern=", b"channel": rb"",
    b"cpu": rb"numaid=|affinity=|arch=", b"pci": rb"busid=", b"gpu": rb"dev=|sm=", b"nic": rb"", b"net": rb"dev=|name=",
}  # fmt: skip
"""What an element must have to be NCCL's, since other XML has elements of these names too."""


class NcclTopologyXmlReader:
    """Topology and graph files of NCCL."""

    name = "nccl-topo-xml"

    def sniff(self, head: bytes) -> bool:
        """By the first element and its attributes."""
        found = _first_element(head)
        if found is None:
            return False
        if found[1] in (b"channel", b"nic"):
            return re.search(rb"<(?:net|gpu)\s[^>]*\bdev=", head) is not None
        return re.search(_ATTRIBUTE_OF[found[1]], found["attributes"].strip()) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """One NcclTopology or NcclGraphs, and what was lost."""
        if artefact.size_bytes > LARGEST_FILE_BYTES:
            limit = LARGEST_FILE_BYTES // 2**20
            detail = f"larger than {limit} MiB and not read; pass the file that NCCL_TOPO_DUMP_FILE names"
            yield Loss("too-large", artefact.path, None, detail)
            return
        data = b"".join(artefact.chunks())
        found = _first_element(data[: 64 * 1024])
        is_graph = found is not None and found[1] in (b"graphs", b"graph", b"channel")
        try:
            value, losses = (read_nccl_graphs if is_graph else read_nccl_topology)(data, artefact.path)
        except InputError as error:
            yield Loss("damaged-file", artefact.path, None, str(error).removeprefix(f"{artefact.path}: "))
            return
        yield value
        yield from losses


def _first_element(head: bytes) -> re.Match[bytes] | None:
    """The first element after declaration and comments, if it has a name that NCCL writes."""
    position = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    while (prologue := _PROLOGUE.match(head, position)) is not None:
        position = prologue.end()
    return _FIRST_ELEMENT.match(head, position)


READER = NcclTopologyXmlReader()
