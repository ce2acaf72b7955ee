"""GPUDirect RDMA that is not used: no peer-memory path."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Facts, LinkGroup, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active, jobs

__all__ = ["RULES"]

_REMEDY = "Load nvidia_peermem (modprobe nvidia_peermem, make it persistent) or use DMA-BUF (open kernel modules, kernel 5.12 and later) on every node."
_TELL = ["lsmod | grep peermem on every node", "NCCL_DEBUG_SUBSYS=NET,GRAPH: 'GPU Direct RDMA Enabled/Disabled' lines"]


_ENOMEM = 12


def _rdma(facts: Facts) -> list[LinkGroup]:
    return [link for link in facts.links if link.network is not None and link.network != "Socket"]


def _some_stage(links: Sequence[LinkGroup]) -> bool:
    """Whether some hosts use GPUDirect and others do not."""
    hosts = {link.host for link in links}
    return 0 < len({link.host for link in links if link.gpudirect}) < len(hosts)


def one_host_stages(facts: Facts) -> Iterator[Finding]:
    """Some hosts stage network traffic through host memory while others of the job do not.

    Fires when every RDMA connection of a host lacks GDRDMA and some connection of another host has it: the peer-memory module is missing
    there. "/Shared" at the end of a connection is no fallback. Silent where the hosts are of different jobs, and when the difference lies between send and receive of one process.
    Reads: links ("via NET/IB/0/GDRDMA", src/transport/net.cc).
    """
    links = _rdma(facts)
    by_job: dict[int, list[LinkGroup]] = defaultdict(list)
    job_of = {process: number for number, job in enumerate(jobs(facts)) for process in job.processes}
    for link in links:
        by_job[job_of.get((link.host, link.pid), -1)].append(link)
    links = next((mine for mine in by_job.values() if _some_stage(mine)), links if -1 in by_job else [])
    hosts = {link.host for link in links}
    staged_hosts = hosts - {link.host for link in links if link.gpudirect}
    if not staged_hosts or staged_hosts == hosts:
        return
    staged = [link for link in links if link.host in staged_hosts]
    direct = [link for link in links if link.gpudirect]
    names = ", ".join(sorted(h or "an unnamed host" for h in staged_hosts)[:6])
    yield Finding(
        "gdr-peermem-missing", 0.92, "major", f"{len(staged_hosts)} of {len(hosts)} hosts stage RDMA through host memory: {names}",
        lines_of([*staged[:6], *direct[:4]]), _REMEDY, _TELL,
    )  # fmt: skip


def one_end_stages(facts: Facts) -> Iterator[Finding]:
    """One end of a network connection uses GPUDirect and the other does not.

    Fires when the send and the receive line of the same two ranks differ in GDRDMA and no host names tell more: the two ends are on
    different hosts. Silent when both ends agree.
    """
    ends: dict[tuple[int | None, int | None], dict[str, LinkGroup]] = {}
    for link in _rdma(facts):
        if link.direction is not None and link.src_rank is not None:
            ends.setdefault((link.src_rank, link.dst_rank), {})[link.direction] = link
    both = [pair for pair in ends.values() if pair.keys() == {"send", "receive"}]
    odd = [pair for pair in both if pair["send"].gpudirect and not pair["receive"].gpudirect]
    if odd and len({link.host for link in _rdma(facts)}) < 2:
        yield Finding(
            "gdr-peermem-missing", 0.75, "major", "the sending end uses GPUDirect RDMA and the receiving end does not", lines_of(link for pair in odd for link in pair.values()),
            _REMEDY, _TELL,
        )  # fmt: skip


def nobody_uses_gpudirect(facts: Facts) -> Iterator[Finding]:
    """No RDMA connection of the job uses GPUDirect.

    Fires when connections over IB or RoCE all lack GDRDMA. Weaker where a message says that the GPU is too far from the NIC or that a
    setting turned it off. Silent with a working DMA-BUF or peermem message and for libfabric, whose lines do not always say.
    """
    links = [link for link in _rdma(facts) if link.network not in ("Libfabric", "AWS")]
    missing = facts.all("nccl.gdr_module_missing", "system.peer_memory_absent")
    missing += [e for e in facts.all("nccl.gdr_off_hca") if not facts.all("nccl.gdr_on")]
    if missing and not any(link.gpudirect for link in links):
        yield Finding(
            "gdr-peermem-missing",
            0.8,
            "major",
            "no peer-memory client is registered with the RDMA driver",
            lines_of([*missing, *facts.all("nccl.gdr_off_hca")]),
            _REMEDY,
            _TELL,
        )
        return
    if not links or any(link.gpudirect for link in links):
        return
    far = [e for e in facts.all("nccl.gdr_off") if "distance" in e.text]
    off = [s for s in active(facts, "NCCL_NET_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT") if s.value.upper() in ("0", "LOC")]
    on = facts.all("nccl.gdr_on")
    no_p2p = facts.all("nccl.p2p_not_enabled")  # cards without peer access have no GPUDirect either
    confidence = 0.25 if no_p2p else (0.3 if off or on else (0.4 if far else 0.6))
    yield Finding(
        "gdr-peermem-missing", confidence, "major", "RDMA connections go through host memory on every host", lines_of([*links[:8], *facts.all("nccl.gdr_off"), *off]), _REMEDY, _TELL,
    )  # fmt: skip
    if far:
        yield Finding(
            "numa-misplacement", 0.35, "major", "GPU and NIC are too far apart for GPUDirect RDMA", lines_of([*far, *links[:4]]),
            "Use the NIC under the GPU's PCIe switch (NCCL_IB_HCA), or raise NCCL_NET_GDR_LEVEL to PHB after a test.", ["nvidia-smi topo -m"],
        )  # fmt: skip


def registration_refused(facts: Facts) -> Iterator[Finding]:
    """The NIC cannot register GPU memory.

    Fires when ibv_reg_mr fails with "Bad address" or "Invalid argument": the kernel knows no peer-memory client for that address; when perftest
    cannot register the GPU buffer that it made (--use_cuda; error 93 and 95: the kernel, driver or rdma-core has no DMA-BUF); and when Mooncake
    asks for DMA-BUF because no peer-memory module is there. "Cannot allocate memory" is another matter (locked memory). Memory of the cuMem API
    has peermem as a path only with some drivers, DMA-BUF needs the open kernel modules: both can fail with the module loaded. Silent on other
    calls and on host buffers.
    """
    events = [
        e for e in facts.all("nccl.ib_call_failed", "ucx.reg_failed")
        if "reg_" in e.text and any(w in e.text.lower() for w in ("bad address", "invalid argument", "operation not supported"))
    ]  # fmt: skip
    events += [e for e in facts.all("verbs.reg_failed") if e.number("errno") in _REFUSED]
    events += facts.all("mooncake.peer_memory_required", "perftest.no_dmabuf")
    if events:
        yield Finding(
            "gdr-peermem-missing", 0.7, "fatal", "the NIC cannot register GPU memory", lines_of(events), _REMEDY, _TELL
        )
    with_gpu = {e.at.path for e in facts.all("perftest.gpu_buffer")}
    refused = [e for e in facts.all("perftest.registration_failed") if e.at.path in with_gpu]
    if refused and not facts.all("perftest.no_dmabuf"):
        no_memory = any(e.number("code") == _ENOMEM for e in refused)
        yield Finding(
            "gdr-peermem-missing", 0.35 if no_memory else 0.7, "fatal", "perftest's buffer of GPU memory cannot be registered with the NIC", lines_of([*refused, *facts.all("perftest.gpu_buffer")]),
            _REMEDY + " For perftest without DMA-BUF leave --use_cuda_dmabuf out; MLX5_SCATTER_TO_CQE=0 helps old versions.", ["the same test without --use_cuda", *_TELL[:1]],
        )  # fmt: skip
        if no_memory or all(e.number("code") is None for e in refused):
            yield Finding(
                "memlock-limit",
                0.5 if no_memory else 0.15,
                "fatal",
                "the limit of locked memory does not let the buffer in",
                lines_of(refused),
                "Set memlock to unlimited.",
                ["ulimit -l inside the job"],
            )


_REFUSED = (14, 22, 95)
"""EFAULT, EINVAL, EOPNOTSUPP (Linux errno.h): what registering GPU memory ends with where no peer-memory path leads to it."""


def module_not_loaded(facts: Facts) -> Iterator[Finding]:
    """The peer-memory module cannot be loaded.

    Fires when modprobe or the kernel refuses nv_peer_mem or nvidia_peermem: built against other symbols than those of the RDMA stack and kernel that run, or the
    RDMA stack has none of them. A remark where connections use GPUDirect all the same (DMA-BUF). Silent on other modules.
    """
    refused = facts.all("system.peer_module_refused", "kernel.peermem_unknown_symbol")
    if refused:
        used = any(link.gpudirect for link in facts.links)
        yield Finding(
            "gdr-peermem-missing", 0.15 if used else 0.75, "minor" if used else "major", "the kernel refuses the peer-memory module: GPUDirect RDMA is not there by that path",
            lines_of(refused), "Reinstall the NVIDIA driver after MLNX_OFED or DOCA, so that nvidia_peermem is built against its symbols; or use DMA-BUF (open kernel modules, kernel 5.12 and later).",
            ["dmesg | grep -i peer", "grep ib_register_peer_memory_client /proc/kallsyms", *_TELL],
        )  # fmt: skip


def device_memory_flat(facts: Facts) -> Iterator[Finding]:
    """Transfers between device memories of two hosts settle far below any NIC: the data goes through bounce buffers.

    Fires on an OSU or UCX bandwidth curve of device memory that stays below 1 GB/s from 1 KiB on, with RDMA transports allowed.
    Silent on curves that still climb, and where TCP alone was asked for.
    """
    tls = [
        s
        for s in active(facts, "UCX_TLS")
        if any(w in s.value.lower().split(",") for w in ("rc", "rc_x", "dc", "ud", "rc_mlx5", "ib", "all"))
    ]
    if not tls:
        return
    for curve in facts.curves:
        if not curve.tool.startswith(("osu", "ucx_perftest")) or not any(
            "copy" in s.value or "cuda" in s.value for s in tls
        ):
            continue
        rates = [(p.size_bytes, p.algbw_bytes_per_s, p) for p in curve.points if p.size_bytes and p.algbw_bytes_per_s]
        large = [r for r in rates if r[0] >= 1024]
        if len(large) < 4:
            continue
        level = statistics.median(rate for _, rate, _ in large)
        if level < 1e9 and max(rate for _, rate, _ in large) < 2 * level:
            points = [p for _, _, p in large]
            lines = lines_of([*tls, *points])
            yield Finding(
                "gdr-peermem-missing", 0.6, "major", f"device to device between hosts stays at {level / 1e6:.0f} MB/s from 1 KiB on", lines, _REMEDY,
                ["lsmod | grep peermem", "UCX_PROTO_INFO=y: is rndv/get/zcopy with rc chosen"],
            )  # fmt: skip
            yield Finding(
                "ucx-wrong-transport", 0.35, "major", "UCX copies through the host instead of zero copy", lines, "Check UCX_TLS and UCX_RNDV_SCHEME.", ["UCX_PROTO_INFO=y"],
            )  # fmt: skip


RULES = (
    one_host_stages,
    one_end_stages,
    nobody_uses_gpudirect,
    registration_refused,
    module_not_loaded,
    device_memory_flat,
)
