"""CPU masks and NUMA domains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding, LineRef
from busbw.diagnosis.rules.shared import active, whole
from busbw.hardware.formats import TopologyMatrix

__all__ = ["RULES"]


_MOST_CPUS = 2**14
"""CPUs of one host; more is damage."""


def _cpus(mask: str) -> int | None:
    """Number of CPUs in a mask as NCCL prints it: hexadecimal words with commas, or ranges such as 0-15,64-79."""
    chosen = _cpu_set(mask)
    return None if chosen is None else len(chosen)


def _cpu_set(mask: str) -> set[int] | None:
    """The CPUs of such a mask. Words of a mask have 32 CPUs each, the highest first (linux Documentation/core-api, cpumask)."""
    text = mask.strip().rstrip(".")
    if not text:
        return None
    if "-" in text:
        return _ranges(text)
    chosen: set[int] = set()
    try:
        for number, word in enumerate(reversed(text.split(","))):
            bits = int(word, 16)
            chosen |= {32 * number + bit for bit in range(min(bits.bit_length(), _MOST_CPUS)) if bits >> bit & 1}
    except ValueError:
        return None
    return chosen


def _ranges(text: str) -> set[int] | None:
    """CPUs of a list such as 0-15,64-79."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None or high >= _MOST_CPUS:
            return None
        chosen |= set(range(low, high + 1))
    return chosen


def narrowed_mask(facts: Facts) -> Iterator[Finding]:
    """The launcher binds a rank to few CPUs, and NCCL's threads have to live with those.

    Fires when the same GPU gets masks of different width in two runs or on two hosts, and on a mask of one or two CPUs: NCCL intersects
    the GPU's CPUs with the mask it inherits (src/graph/topo.cc). Silent when all masks are equally wide.
    """
    masks: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    for event in facts.all("nccl.affinity"):
        cpus = _cpus(event.fields.get("mask", ""))
        gpu = event.number("gpu")
        if cpus is not None and gpu is not None and cpus > 0:
            masks[gpu].append((cpus, event))
    remedy = "srun --cpu-bind=none (or a mask of the GPU's NUMA node), mpirun --bind-to none or numa, or NCCL_IGNORE_CPU_AFFINITY=1."
    tell = ["grep Cpus_allowed_list /proc/PID/status of a rank", "taskset -p PID"]
    different = [e for found in masks.values() if len({c for c, _ in found}) > 1 for _, e in found]
    narrow = [e for found in masks.values() for c, e in found if c <= 2]
    refused = facts.all("system.affinity_refused")
    if refused:
        yield Finding(
            "cpu-affinity-pinning", 0.7, "fatal", "a process may not run on the CPUs it asks for: the launcher's mask excludes them", lines_of(refused), remedy, tell,
        )  # fmt: skip
    if different:
        few = min(c for found in masks.values() for c, _ in found)
        many = max(c for found in masks.values() for c, _ in found)
        yield Finding(
            "cpu-affinity-pinning", 0.8, "minor", f"the same GPU may use {few} CPUs in one place and {many} in another", lines_of([*different, *facts.all("command.cpu_bind", "command.bind_to")]),
            remedy, tell,
        )  # fmt: skip
    elif narrow:
        yield Finding(
            "cpu-affinity-pinning", 0.65, "major", "a rank has one or two CPUs for itself, its proxy threads and its network threads", lines_of(narrow), remedy, tell,
        )  # fmt: skip


def nic_on_the_other_socket(facts: Facts) -> Iterator[Finding]:
    """GPUs reach their NIC across the CPU interconnect.

    Fires when NCCL's graphs use SYS between GPU and NIC while the graph inside the node does better, and when in `nvidia-smi topo -m`
    some GPUs have a NIC at PIX or PXB and others none nearer than SYS. Silent on one host, and when every GPU has a near NIC.
    """
    graphs = [
        e
        for e in facts.all("nccl.graph")
        if e.fields.get("type_inter") == "SYS" and e.fields.get("type_intra") != "SYS"
    ]
    if graphs and any(link.transport == "NET" for link in facts.links):
        yield Finding(
            "numa-misplacement", 0.5, "major", "the path between GPU and NIC crosses the CPU interconnect (SYS)", lines_of(graphs),
            "Choose NICs of the GPU's own socket (NCCL_IB_HCA), bind ranks to the GPU's NUMA node, or move the card.", ["nvidia-smi topo -m"],
        )  # fmt: skip
    for path, topology in facts.topologies:
        if not isinstance(topology, TopologyMatrix) or not topology.nics or len(topology.gpus) < 2:
            continue
        nearest = {gpu: topology.nearest_nics(gpu) for gpu in topology.gpus}
        far = [links[0] for links in nearest.values() if links and links[0].kind == "SYS"]
        near = [links[0] for links in nearest.values() if links and links[0].kind in ("PIX", "PXB")]
        if far and near and len(topology.nics) > 1:
            refs = [ref for ref in (facts.line_of(path, link.line) for link in [*far, *near[:2]]) if ref is not None]
            if refs:
                yield Finding(
                    "numa-misplacement", 0.4, "minor", f"{len(far)} of {len(nearest)} GPUs have no NIC on their own socket", sorted(set(refs)),
                    "Spread the NICs over the sockets, or use only GPUs next to a NIC for traffic between hosts.", ["nvidia-smi topo -m", "lspci -tv"],
                )  # fmt: skip


def bound_to_the_other_socket(facts: Facts) -> Iterator[Finding]:
    """A process runs on CPUs of another socket than its GPU's.

    Fires when NCCL's CPU mask of a GPU (src/graph/topo.cc) has no CPU in common with the affinity that `nvidia-smi topo -m` gives for that GPU. NCCL
    keeps the mask it inherits if that leaves nothing. The GPU is known by its number of NVML where NCCL prints it. Silent where both overlap, and where only a part of
    the devices is visible and nobody tells which.
    """
    near: dict[int, tuple[set[int], LineRef]] = {}
    for path, topology in facts.topologies:
        for row in topology.rows if isinstance(topology, TopologyMatrix) else ():
            number = whole(row.device.removeprefix("GPU"))
            cpus = _ranges(row.cpu_affinity) if row.device.startswith("GPU") and row.cpu_affinity else None
            ref = facts.line_of(path, row.line)
            if number is not None and cpus and ref is not None:
                near[number] = (cpus, ref)
    if not near:
        return
    nvml = {
        (e.host, e.pid, e.number("cuda_device")): e.number("nvml_device")
        for e in facts.all("nccl.comm") if e.number("nvml_device") is not None
    }  # fmt: skip
    hidden = bool(active(facts, "CUDA_VISIBLE_DEVICES"))
    far: list[tuple[int, Event, LineRef]] = []
    for event in facts.all("nccl.affinity"):
        gpu = event.number("gpu")
        number = nvml.get((event.host, event.pid, gpu), None if hidden else gpu)
        mask = _cpu_set(event.fields.get("mask", ""))
        if number in near and mask and not mask & near[number][0]:
            far.append((number, event, near[number][1]))
    if far:
        number, event, _ = far[0]
        yield Finding(
            "numa-misplacement", 0.75, "major", f"{len(far)} processes run on CPUs of another socket than their GPU's, such as that of GPU {number}",
            sorted({*lines_of([e for _, e, _ in far], most=8), *(ref for _, _, ref in far[:4])}),
            "Bind every rank to the NUMA node of its GPU (numactl --cpunodebind, srun --gpu-bind=closest, mpirun --map-by numa), or leave the mask open.",
            ["nvidia-smi topo -m; taskset -p PID of a rank"],
        )  # fmt: skip


RULES = (narrowed_mask, nic_on_the_other_socket, bound_to_the_other_socket)
