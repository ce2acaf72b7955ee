"""NVLink and NVSwitch: links down, peer access off, Fabric Manager, IMEX."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active, without_repeats
from busbw.hardware.formats import TopologyMatrix

__all__ = ["NVLINK_XIDS", "RULES"]

_LACKS = re.compile(
    r"no such|not found|not exist|missing|cannot|could not|unable|fail|denied|refused|check", re.IGNORECASE
)
"""Words beside the path of the IMEX channel that say it is not there; a listing of the folder has none of them."""
NVLINK_XIDS = {74, 137, 144, 145, 146, 147, 148, 149, 150}
"""NVLink errors (NVIDIA, "XID Errors", GPU deployment documentation)."""


def links_down(facts: Facts) -> Iterator[Finding]:
    """Some NVLinks of a GPU are inactive, or report fatal errors.

    Fires on inactive links in `nvidia-smi nvlink -s`, on Xid 74 and on fatal Xid 144 to 150, and on a topology matrix where one GPU has
    fewer links to all its peers than the others have. CUDA's contained error (226) names NVLink or the hardware behind it, so it fires weaker.
    Silent on Xid lines marked Nonfatal, on links that all GPUs of a model lack, and on a card without a bridge, all of whose links are inactive.
    """
    down = _links_that_should_be_up(facts)
    xids = [e for e in facts.all("kernel.xid") if _nvlink_xid(e) and "nonfatal" not in e.text.lower()]
    xids += facts.all("cuda.nvlink_error")
    contained = facts.all("cuda.contained")
    if contained and not down and not xids:
        lines = lines_of(contained)
        tell = [
            "dmesg -T | grep -i xid on all nodes of the NVLink domain: the first one names the GPU",
            "nvidia-smi nvlink -s; nvidia-smi nvlink -e",
        ]
        yield Finding(
            "nvlink-down", 0.6, "fatal", "an access to a peer's memory over NVLink was contained as faulty", lines,
            "Find the GPU whose Xid came first, drain its node and reset its GPUs; if it stays, replace the tray or board.", tell,
        )  # fmt: skip
        yield Finding(
            "gpu-ecc", 0.2, "fatal", "the memory behind the access may be faulty", lines,
            "Check ECC counters and row remapping of the GPU whose Xid came first.", tell,
        )  # fmt: skip
    if down or xids:
        up = facts.all("nvlink.link_up")
        sure = bool(up) or bool(xids)
        yield Finding(
            "nvlink-down", 0.88 if sure else 0.6, "major", f"{len(down)} NVLinks are inactive" if down else f"{len(xids)} NVLink errors",
            lines_of([*facts.all("nvlink.gpu"), *down, *xids]),
            "Drain the node, reset the GPUs (nvidia-smi -r) or reboot; if it stays, replace the board, bridge or tray.",
            ["nvidia-smi nvlink -s; nvidia-smi nvlink -e", "dcgmi diag -r 2"],
        )  # fmt: skip
    for path, topology in facts.topologies:
        if isinstance(topology, TopologyMatrix):
            yield from _fewer_than_siblings(facts, path, topology)


_WITH_BRIDGE = re.compile(r"PCIe|NVL\b|RTX|GeForce|Quadro|TITAN|\bA(?:10|16|30|40|6000)\b|\bGV100", re.IGNORECASE)
"""Cards whose NVLinks lead into a bridge, which is sold apart; modules (SXM, HGX, GB200) are wired to each other (NVIDIA's data sheets)."""
_MODEL = re.compile(r"GPU \d{1,4}: (.*?)(?: \(UUID|$)")


def _links_that_should_be_up(facts: Facts) -> list[Event]:
    """Inactive links, without those that several GPUs of one model lack alike (an H100 NVL has 12 of 18) and those of cards without a bridge."""
    down: dict[tuple[str, int], dict[str, Event]] = {}
    model: dict[tuple[str, int], str] = {}
    with_link: set[tuple[str, int]] = set()
    gpu = ("", 0)
    for event in facts.all("nvlink.gpu", "nvlink.link_down", "nvlink.link_up"):
        if event.name == "nvlink.gpu":
            gpu = (event.at.path, event.at.line)
            named = _MODEL.search(event.text)
            model[gpu] = named[1] if named is not None else ""
            down[gpu] = {}
        elif event.name == "nvlink.link_down":
            down.setdefault(gpu, {})[event.fields.get("link", "")] = event
        else:
            with_link.add(gpu)
    found: list[Event] = []
    for one, links in down.items():
        if one not in with_link and _WITH_BRIDGE.search(model.get(one, "")):
            continue
        siblings = [
            set(others)
            for other, others in down.items()
            if model.get(other) == model.get(one)
            and (other in with_link or not _WITH_BRIDGE.search(model.get(other, "")))
        ]
        unfitted = set.intersection(*siblings) if len(siblings) > 1 else set()
        found += [event for link, event in links.items() if link not in unfitted]
    return found


def _nvlink_xid(event: Event) -> bool:
    """Whether an Xid is an NVLink error, or the end of a channel that one caused."""
    caused = re.search(r"previous Xid (\d{1,6})", event.text)
    return event.number("xid") in NVLINK_XIDS or (caused is not None and int(caused[1]) in NVLINK_XIDS)


def _fewer_than_siblings(facts: Facts, path: str, topology: TopologyMatrix) -> Iterator[Finding]:
    """All-to-all NVLink (an NVSwitch) has the same number of links everywhere; one GPU below all others has lost some."""
    links = list(topology.gpu_links())
    numbers = Counter(link.nvlinks for link in links if link.nvlinks)
    if len(topology.gpus) < 4 or not numbers or sum(numbers.values()) < len(links):
        return
    usual = numbers.most_common(1)[0][0]
    low = [link for link in links if link.nvlinks and usual and link.nvlinks < usual]
    if not low or usual is None or usual < 6:
        return
    gpus = Counter(gpu for link in low for gpu in (link.a, link.b))
    culprit, times = gpus.most_common(1)[0]
    refs = [ref for ref in (facts.line_of(path, link.line) for link in low) if ref is not None]
    if times == len(low) and refs:
        yield Finding(
            "nvlink-down", 0.75, "major", f"{culprit} has fewer NVLinks to its peers than the {usual} that the others have", sorted(set(refs)),
            "Drain the node, reset the GPUs or reboot; if it stays, replace the board.", ["nvidia-smi nvlink -s"],
        )  # fmt: skip


def peer_access_off(facts: Facts) -> Iterator[Finding]:
    """NVLink is there but peer access over it is not.

    Fires on NCCL's refusal (src/graph/paths.cc). With NCCL_P2P_DISABLE or LEVEL set, that is the likelier cause.
    "Connected" without NVLink is peer access over PCIe that is not there. Silent when connections show P2P and nothing was refused.
    """
    events = facts.all("nccl.p2p_disabled_nvlink", "nccl.p2p_disabled")
    if events:
        forced = active(facts, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        nvlink = bool(facts.all("nccl.p2p_disabled_nvlink"))
        yield Finding(
            "nvlink-p2p-disabled" if nvlink else "p2p-unsupported-misdetected", (0.35 if forced else 0.85) if nvlink else 0.5, "fatal" if nvlink else "major", f"GPUs are connected{' by NVLink' if nvlink else ''} but may not access each other", lines_of([*events, *forced]),
            "Check nvidia-smi topo -p2p r and nvlink -s, the IOMMU and the virtual machine's passthrough; reset the GPUs. NCCL_IGNORE_DISABLED_P2P=1 gets a slow job through.",
            ["nvidia-smi topo -p2p r", "nvidia-smi nvlink -s"],
        )  # fmt: skip


def links_not_used(facts: Facts) -> Iterator[Finding]:
    """The topology shows NVLink between all GPUs, and NCCL's connections inside the node go over shared memory or the network.

    Fires on nvidia-smi topo -m with NVLink between every two GPUs beside connections of type SHM, or of type NET between ranks of one host. Silent
    when a variable forbids peer access, when NCCL says itself why, and when the same process also has P2P connections to most of its peers.
    """
    full = [
        (path, t) for path, t in facts.topologies
        if isinstance(t, TopologyMatrix) and len(t.gpus) > 1 and (links := list(t.gpu_links())) and all(link.nvlinks for link in links)
    ]  # fmt: skip
    said = facts.all("nccl.p2p_disabled_nvlink", "nccl.p2p_disabled", "nccl.p2p_not_enabled")
    if not full or said or active(facts, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        return
    host_of = {
        (e.fields.get("comm_id"), e.number("rank")): e.host for e in facts.all("nccl.comm") if e.host is not None
    }
    by_rank: dict[int | None, set[str]] = {}
    for (_, rank), host in host_of.items():
        by_rank.setdefault(rank, set()).add(host)
    inside = [link for link in facts.links if link.transport == "SHM"]
    for link in facts.links:
        src, dst = by_rank.get(link.src_rank, set()), by_rank.get(link.dst_rank, set())
        if link.transport == "NET" and link.src_rank != link.dst_rank and len(src) == 1 and src == dst:
            inside.append(link)
    direct = sum(link.count for link in facts.links if link.transport == "P2P")
    if not inside or direct > sum(link.count for link in inside):
        return
    refs = [ref for path, t in full[:1] for row in t.rows[:2] if (ref := facts.line_of(path, row.line)) is not None]
    shm = any(link.transport == "SHM" for link in inside)
    yield Finding(
        "nvlink-p2p-disabled", 0.6, "major", f"all GPUs are connected by NVLink and connections inside the node use {'shared memory' if shm else 'the network'}",
        sorted({*lines_of(inside, most=8), *refs}),
        "Check nvidia-smi topo -p2p r, the IOMMU and passthrough. In containers: all GPUs visible to every process, one IPC namespace and one NCCL_HOSTID a host.",
        ["nvidia-smi topo -p2p r inside the container", "NCCL_DEBUG_SUBSYS=INIT,P2P,GRAPH in the same run"],
    )  # fmt: skip


def system_not_ready(facts: Facts) -> Iterator[Finding]:
    """CUDA says that the system is not initialised: Fabric Manager has not done its work.

    Fires on error 802 (cudaErrorSystemNotReady), on words of the service itself or of gpud about it, and on nvidia-persistenced that finds the fabric
    not ready. On NVSwitch systems no CUDA program runs before. Silent about the service on a machine without NVSwitch (NV_WARN_NOTHING_TO_DO).
    """
    events = [e for text, e in facts.cuda_errors() if "system not yet initialized" in text]
    events = without_repeats(events, facts.all("cuda.not_initialised"))
    service = facts.all(
        "fabric_manager.not_running",
        "fabric_manager.failed",
        "fabric_manager.version_mismatch",
        "kernel.fabric_manager_absent",
        "fabric_manager.fabric_not_ready",
    )
    service += [e for e in facts.all("nvshmem.cuda_status") if e.number("code") == 802]
    if facts.all("fabric_manager.nothing_to_do"):
        service = []
    if events or service:
        yield Finding(
            "fabric-manager-not-running", 0.9, "fatal", "Fabric Manager is not running or does not fit the driver", lines_of([*events, *service]),
            "systemctl enable --now nvidia-fabricmanager, of exactly the driver's version.", ["systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A3 Fabric"],
        )  # fmt: skip


def fabric_not_registered(facts: Facts) -> Iterator[Finding]:
    """A GPU has not registered with the NVLink fabric.

    Fires on the section Fabric of nvidia-smi -q (NVML nvmlGpuFabricState_t): State "Not Started" or "In Progress", or a Status other than Success.
    Surer where other GPUs read are registered or CUDA says that the system is not initialised; minor if all wait, as a GPU given to a virtual machine alone does.
    Silent on GPUs without a fabric (N/A), and when all have completed.
    """
    states = facts.all("gpu.fabric_state")
    waiting = [e for e in states if e.level != "info"]
    if not waiting:
        return
    done = [e for e in states if e.level == "info"]
    failed = [e for e in waiting if e.fields.get("state") == "Completed"]
    not_ready = facts.all("cuda.not_initialised")
    first = (failed or waiting)[0]
    said = first.fields.get("state", "") + (f", {first.fields['status']}" if first.fields.get("status") else "")
    sure = bool(done or not_ready or failed)
    yield Finding(
        "fabric-manager-state" if failed or done else "fabric-manager-not-running", 0.7 if sure else 0.4, "major" if sure else "minor",
        f"{len(waiting)} of {len(states)} GPUs are not registered with the NVLink fabric: {said}", lines_of([*waiting, *done[:2], *not_ready[:2]]),
        "Check that Fabric Manager runs (on NVL72: the switch trays' NMX-C), restart it, then reset the GPUs or reboot the node.",
        ["nvidia-smi -q | grep -A4 Fabric on every node", "journalctl -u nvidia-fabricmanager"],
    )  # fmt: skip


def _multicast_errors(facts: Facts) -> tuple[list[Event], list[Event]]:
    """(errors in setting NVLink SHARP up, errors in registering a buffer with it)."""
    registering = facts.all("nccl.nvls_register_failed")
    at = {(e.at.path, e.at.line) for e in registering}
    set_up: list[Event] = []
    registration = list(registering)
    for text, event in facts.cuda_errors():
        if (
            event.file not in ("nvls.cc", "register.cc")
            and "multicast" not in text
            and event.name != "nccl.nvls_bind_failed"
        ):
            continue
        near = any(path == event.at.path and 0 <= line - event.at.line <= 4 for path, line in at)
        named = "register" in (event.function or "").lower() or event.file == "register.cc"
        (registration if near or named else set_up).append(event)
    return set_up, registration


def multicast_set_up(facts: Facts) -> Iterator[Finding]:
    """NVLink SHARP (NVLS) cannot be set up: NVSwitch or multicast state is broken, often after Fabric Manager was restarted.

    Fires on CUDA errors of src/transport/nvls.cc while a communicator is made, and on "Failed to bind NVLink SHARP". Silent when the error
    belongs to registering a user buffer: that is harmless. Two ranks do not use NVLS, so smaller jobs may work.
    """
    set_up, _ = _multicast_errors(facts)
    illegal = [e for text, e in facts.cuda_errors() if "cannot be performed in the present state" in text]
    illegal = without_repeats(illegal, facts.all("cuda.bad_state"))
    illegal += facts.all("fabric_manager.multicast_error", "fabric_manager.switch_error")
    illegal += [e for e in facts.all("nvshmem.cuda_status") if e.number("code") == 401]
    stale = facts.all("kernel.fabric_out_of_sync")
    sxid = [
        e for e in facts.all("kernel.sxid") if "nonfatal" not in e.text.lower() and "non-fatal" not in e.text.lower()
    ]
    if not set_up and not illegal and not sxid and not stale:
        return
    bound = facts.all("nccl.nvls_bind_failed")
    versions = [e for _, e in facts.nccl_versions()][:2]
    lines = lines_of([*set_up, *illegal, *bound, *sxid, *stale, *versions])
    state = 0.25 if stale else (0.6 if bound or illegal or sxid else 0.38)
    tell = [
        "journalctl -u nvidia-fabricmanager: was it restarted after the last boot",
        "run once with NCCL_NVLS_ENABLE=0",
    ]
    yield Finding(
        "fabric-manager-state", state, "fatal", "NVSwitch multicast cannot be set up on this node", lines,
        "Stop all GPU processes, reset the GPUs with Fabric Manager stopped and start it again, or reboot; NCCL_NVLS_ENABLE=0 gets a job through.", tell,
    )  # fmt: skip
    yield Finding(
        "fabric-manager-restarted", 0.85 - state, "fatal", "Fabric Manager was probably restarted under running GPU clients", lines,
        "Reboot, or reset the GPUs with Fabric Manager stopped; start Fabric Manager of the driver's version.", tell,
    )  # fmt: skip


def registration(facts: Facts) -> Iterator[Finding]:
    """A user buffer could not be registered with NVLS or the network; NCCL goes on without.

    Fires on the registration messages of src/transport/nvls.cc and src/register. Minor: only the speed-up is lost. cudaMalloc memory cannot
    be bound to a multicast object; memory of ncclMemAlloc can. Silent when NVLS could not be set up in the first place.
    """
    _, registering = _multicast_errors(facts)
    other = facts.all("nccl.register_failed")
    space = facts.all("nccl.space_exhausted")
    if space:
        yield Finding(
            "user-buffer-registration", 0.7, "fatal", "no room for another symmetric window: its address range is used up", lines_of(space),
            "Register fewer or smaller windows, deregister those no longer used, or raise NCCL_WIN_STRIDE; upgrade NCCL.", ["NCCL_DEBUG_SUBSYS=REG,ALLOC"],
        )  # fmt: skip
    if registering or other:
        yield Finding(
            "user-buffer-registration", 0.8, "minor", "a user buffer could not be registered; NCCL goes on without", lines_of([*registering, *other]),
            "Allocate the buffer with ncclMemAlloc (in PyTorch: the process group's memory pool) and register it.", ["run once with NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0"],
        )  # fmt: skip


def imex(facts: Facts) -> Iterator[Finding]:
    """Memory that is shared between hosts over NVLink needs an IMEX channel and domain.

    Fires on cuMemCreate or import of fabric handles refused with "operation not permitted", on NCCL's MNNVL message, and on a missing channel
    device. IMEX itself says that none of its addresses is this node's, that another service holds the driver's only session, or that its domain
    is down (nvidia-imex-ctl -N). Weaker on an import refused as an invalid handle: a daemon in a bad state, or a handle that its owner gave back.
    Without such handles in play "operation not permitted" has other causes. Silent on permissions of other devices, and on a listing that shows the channel.
    """
    refused = [
        e
        for e in facts.all("cuda.not_permitted", "cuda.fabric_refused")
        if "not permitted" in e.text or "fabric" in e.text.lower()
    ]
    refused += [
        e
        for text, e in facts.cuda_errors()
        if "operation not permitted" in text and e.file in ("mnnvl.cc", "p2p.cc", "nvls.cc", "allocator.cc", "init.cc")
    ]
    said = facts.all("nccl.mnnvl_broken", "imex.not_running")
    said += [e for e in facts.all("imex.channel_missing") if _LACKS.search(e.text)]
    if refused or said:
        yield Finding(
            "imex-not-configured", 0.8 if said or refused else 0.5, "fatal", "memory handles of the NVLink fabric are refused: no IMEX channel or domain", lines_of([*refused, *said]),
            "Create /dev/nvidia-caps-imex-channels/channel0 (nvidia-modprobe, or mknod with the major number of /proc/devices), pass it into the container, and run nvidia-imex on all hosts of the domain.",
            ["ls -l /dev/nvidia-caps-imex-channels", "nvidia-imex-ctl -N"],
        )  # fmt: skip
    address, session = facts.all("imex.no_address"), facts.all("imex.session_taken")
    domain = [e for e in facts.all("imex.domain") if e.fields.get("state", "").upper() in ("DOWN", "DEGRADED")]
    if address or session or domain:
        what, remedy = (
            ("IMEX finds none of the configured addresses on this node", "List this node's address in /etc/nvidia-imex/nodes_config.cfg, and start nvidia-imex after the interface has its address.")
            if address
            else ("another IMEX service holds the session of the driver", "Stop and mask nvidia-imex.service on hosts whose IMEX runs in containers (or the other way round).")
            if session
            else (f"the IMEX domain is {domain[0].fields['state']}", "Start nvidia-imex on all nodes of the domain, with the same nodes_config.cfg and version.")
        )  # fmt: skip
        yield Finding(
            "imex-not-configured", 0.88 if address or session else 0.6, "fatal" if address or session else "major", what, lines_of([*address, *session, *domain]), remedy,
            ["nvidia-imex-ctl -N on every node", "systemctl status nvidia-imex; /var/log/nvidia-imex.log"],
        )  # fmt: skip
    imported = facts.all("cuda.import_refused")
    if imported and not refused and not said:
        tell = ["nvidia-imex-ctl -N: does it answer, are all nodes UP", "the same job inside one node"]
        yield Finding(
            "imex-not-configured", 0.5, "fatal", "a memory handle of another process was refused as invalid", lines_of(imported),
            "Restart nvidia-imex on the nodes of the domain, or reboot the one where nvidia-imex-ctl hangs.", tell,
        )  # fmt: skip
        yield Finding(
            "fabric-manager-state", 0.2, "fatal", "the NVLink fabric may be in a bad state", lines_of(imported), "Check nvidia-smi -q | grep -A4 Fabric on all nodes.", tell,
        )  # fmt: skip


RULES = (
    links_down,
    peer_access_off,
    links_not_used,
    system_not_ready,
    fabric_not_registered,
    multicast_set_up,
    registration,
    imex,
)
