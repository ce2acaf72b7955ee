"""A node from `nvidia-smi topo -m`: what hangs together below PCIe switches, and NVLinks of each pair.

The matrix has no rates: PCIe is the GPU's generation, NICs the usual ones beside it, which `sources` says.
"""

from __future__ import annotations

from busbw.errors import InputError, Loss
from busbw.hardware.blueprints import CpuId, Node, PcieRoot
from busbw.hardware.catalogue import pcie_bytes_per_s
from busbw.hardware.formats.read_nodes import NodeParts, accelerator_of, latency_s
from busbw.hardware.formats.topo_matrix import TopologyMatrix
from busbw.hardware.links import CPU, GPU, PCIE, PCIE_SWITCH

__all__ = ["node_from_matrix"]

_PRODUCT_OF_LINKS = {12: "A100-SXM-80GB", 18: "H100-SXM-80GB"}
"""The usual GPU of a number of NVLinks to a switch. A guess: 18 may be H200, B200 as well."""
_NIC_GBPS = {3: 100, 4: 200, 5: 400, 6: 800}
"""The usual NIC beside a GPU of a PCIe generation, Gb/s. A guess."""
_NEAR = frozenset({"PIX", "PXB"})


def node_from_matrix(matrix: TopologyMatrix, name: str, accelerator: str | None = None) -> tuple[Node, list[Loss]]:
    """The node a matrix describes, and what was lost: `node-group` (rows that stand for several devices).

    Raises InputError where no GPU is printed, or the GPU cannot be told from its NVLinks and is not named.
    """
    gpus = [gpu for gpu in matrix.gpus if "-" not in gpu.removeprefix("GPU-")]
    losses = []
    if len(gpus) < len(matrix.gpus):
        losses.append(Loss("node-group", matrix.path, None, "rows that stand for several GPUs; they were left out"))
    if not gpus:
        raise InputError(f"{matrix.path}: no GPU in the matrix. Pass the output of nvidia-smi topo -m.")
    links = {
        (i, j): link.nvlinks or 0
        for i, a in enumerate(gpus)
        for j, b in enumerate(gpus)
        if i < j and (link := matrix.link(a, b)) is not None
    }
    most = max(links.values(), default=0)
    guess = "named by the user" if accelerator else f"a guess: the usual GPU with {most} NVLinks"
    if accelerator is None and most not in _PRODUCT_OF_LINKS:
        raise InputError(f"{matrix.path}: a matrix names no products. Name the GPU: `accelerator:` in a cluster file.")
    product = accelerator_of(accelerator or _PRODUCT_OF_LINKS[most], None, matrix.path)
    parts = NodeParts(name, matrix.path, gpus=len(gpus))
    parts.cpu_id = CpuId("x86_64", "GenuineIntel", 6, 143)
    generation = product.pcie_generation.value or 5
    rate, nic_rate = pcie_bytes_per_s(generation, 16), _NIC_GBPS.get(generation, 400) * 1e9 / 8
    devices = [*gpus, *matrix.nics]
    group = {device: index for index, device in enumerate(devices)}
    for a in devices:
        for b in devices:
            link = matrix.link(a, b) if a != b else None
            # GPUs joined by NVLink show no PCIe word; a NIC near both shows that they share a switch.
            if link is not None and link.kind in _NEAR and group[a] != group[b]:
                old, new = max(group[a], group[b]), min(group[a], group[b])
                group = {device: new if at == old else at for device, at in group.items()}
    switches = 0
    for index in sorted(set(group.values())):
        inside = [device for device in devices if group[device] == index]
        its_gpus = [gpus.index(device) for device in inside if device in gpus]
        its_nics = [matrix.nics.index(device) for device in inside if device in matrix.nics]
        numa = _numa(matrix, [gpus[gpu] for gpu in its_gpus] or inside)
        if not its_gpus:
            numa = _numa_of_nic(matrix, inside[0], gpus)
        if numa not in parts.numas:
            parts.numas.append(numa)
        above = parts.builder.add(CPU, numa)
        if len(inside) > 1:
            switch = parts.builder.add(PCIE_SWITCH, switches)
            switches += 1
            parts.builder.join(above, switch, rate, latency_s("pcie"), PCIE)
            above = switch
        for gpu in its_gpus:
            parts.numa_of_gpu[gpu] = numa
            parts.builder.join(above, parts.builder.add(GPU, gpu), rate, latency_s("pcie"), PCIE)
        for nic in its_nics:
            parts.builder.join(above, parts.nic(nic, nic_rate), rate, latency_s("pcie"), PCIE)
        parts.roots.append(PcieRoot(numa, tuple(its_gpus), tuple(its_nics), generation, 16, len(inside) > 1))
    total = [sum(count for pair, count in links.items() if gpu in pair) for gpu in range(len(gpus))]
    if most and max(total) > (product.nvlinks.value or most):
        parts.switched = dict.fromkeys(range(len(gpus)), most)
    else:
        parts.mesh = {pair: count for pair, count in links.items() if count}
    sources = {
        "links": matrix.path,
        "accelerator": guess,
        "pcie": "x16 of the GPU's generation: a guess",
        "nic": "the usual rate beside this GPU: a guess",
        "cpu": "Intel Sapphire Rapids: a guess",
    }
    return parts.node(product, sources), losses


def _numa(matrix: TopologyMatrix, gpus: list[str]) -> int:
    row = matrix.row(gpus[0])
    text = row.numa_affinity if row is not None else None
    first = (text or "0").split(",")[0].split("-")[0]
    return int(first) if first.isascii() and first.isdigit() and len(first) < 6 else 0


def _numa_of_nic(matrix: TopologyMatrix, nic: str, gpus: list[str]) -> int:
    """That of a GPU on the same NUMA node as the matrix shows it, 0 where none is."""
    for gpu in gpus:
        link = matrix.link(gpu, nic)
        if link is not None and link.kind in {"PIX", "PXB", "PHB", "NODE"}:
            return _numa(matrix, [gpu])
    return 0
