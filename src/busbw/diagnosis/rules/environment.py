"""Variables that were set: forced protocols and algorithms, peer to peer switched off, channels that do not count, UCX switches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Event, Facts, LinkGroup, Point, Setting, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active, has_nvlink, whole
from busbw.hardware import find_accelerator
from busbw.nccl import load_variables

__all__ = ["RULES"]

_OFF = ("0", "n", "no", "off", "false")
_DEBUGGING = (
    "NCCL_CHECK_POINTERS", "NCCL_DMABUF_ENABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_LAUNCH_MODE",
    "NCCL_COMM_BLOCKING", "NCCL_IGNORE_DISABLED_P2P", "NCCL_P2P_DIRECT_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE",
)  # fmt: skip
_ALGORITHMS = {"tree", "ring", "collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat"}
_PROTOCOLS = {"ll", "ll128", "simple"}


def wrong_results(facts: Facts) -> list[Event | Point]:
    """Rows and summary lines of a benchmark that say the data came out wrong."""
    rows: list[Event | Point] = [p for c in facts.curves for p in c.points if p.wrong is not None and p.wrong > 0]
    rows += [e for e in facts.all("nccl_tests.out_of_bounds") if "FAILED" in e.text]
    return rows


def forced_protocol(facts: Facts) -> Iterator[Finding]:
    """NCCL_PROTO forces a protocol that this platform or size does not go with.

    Fires when data came out wrong with LL128 allowed by hand (128-byte stores must be atomic on every hop: not over PCIe), and on a
    protocol list that leaves nothing for a function. With LL alone large messages get at most half the bandwidth (src/graph/tuning.cc),
    so a benchmark of large messages is enough to fire weakly. Silent on NCCL_PROTO=Simple and without a symptom.
    """
    forced = active(facts, "NCCL_PROTO")
    if not forced:
        return
    tokens = {t.strip().lower() for s in forced for t in re.split(r"[,;:]", s.value) if not t.strip().startswith("^")}
    unknown = (
        tokens
        - _PROTOCOLS
        - {""}
        - {t for t in tokens if t in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "all")}
    )
    wrong = wrong_results(facts)
    nothing_left = facts.all("nccl.no_algorithm")
    remedy = "Unset NCCL_PROTO; NCCL leaves out what the platform cannot do."
    tell = ["run once without NCCL_PROTO", "NCCL_DEBUG_SUBSYS=TUNING shows what NCCL would choose"]
    if wrong and "ll128" in tokens:
        yield Finding(
            "env-proto-forced", 0.9, "fatal", "wrong data with LL128 forced by NCCL_PROTO", lines_of([*forced, *wrong, *facts.all("nccl_tests.out_of_bounds")]),
            remedy, tell,
        )  # fmt: skip
    elif wrong:
        yield Finding(
            "env-proto-forced",
            0.5,
            "fatal",
            "wrong data while NCCL_PROTO is forced",
            lines_of([*forced, *wrong]),
            remedy,
            tell,
        )
    elif nothing_left or unknown:
        yield Finding(
            "env-proto-forced", 0.8 if nothing_left and not active(facts, "NCCL_ALGO") else 0.4, "fatal", "NCCL_PROTO leaves no protocol for a function",
            lines_of([*forced, *nothing_left]), remedy, tell,
        )  # fmt: skip
    elif tokens in ({"ll"}, {"ll128"}, {"ll", "ll128"}):
        large = [p for c in facts.curves for p in c.points if p.size_bytes is not None and p.size_bytes >= 2**26]
        slow = tokens == {"ll"} and bool(large)
        yield Finding(
            "env-proto-forced", 0.6 if slow else 0.35, "major" if slow else "minor", f"NCCL_PROTO={forced[0].value} keeps large messages from the Simple protocol",
            lines_of([*forced, *large[-2:]]), remedy, tell,
        )  # fmt: skip


def wrong_without_forcing(facts: Facts) -> Iterator[Finding]:
    """A benchmark's data check failed although nothing was forced.

    Fires on wrong values in a table or "Out of bounds values ... FAILED" without NCCL_PROTO or NCCL_ALGO set. A defect of the library (sizes
    beyond 2^31, a protocol that should have been off) is the usual cause; memory that flips bits is the other. Silent on data that is right.
    """
    wrong = wrong_results(facts)
    if wrong and not active(facts, "NCCL_PROTO", "NCCL_ALGO", "NCCL_NTHREADS"):
        lines = lines_of(wrong)
        tell = ["the same sizes with NCCL_PROTO=Simple", "the same run on other GPUs", "nvidia-smi -q -d ECC"]
        yield Finding(
            "library-bug-version",
            0.5,
            "fatal",
            "the benchmark's data is wrong",
            lines,
            "Upgrade NCCL; report the size, type and version if it stays.",
            tell,
        )
        yield Finding(
            "gpu-ecc",
            0.15,
            "fatal",
            "memory or link errors may change the data",
            lines,
            "Run dcgmi diag -r 3 on the nodes.",
            tell,
        )


def forced_algorithm(facts: Facts) -> Iterator[Finding]:
    """NCCL_ALGO (or NCCL_PROTO with it) leaves a function without an algorithm, or holds a name that NCCL does not know.

    Fires on "no algorithm/protocol available" (src/enqueue.cc, 2.24 and later: no silent Ring any more) and, weakly and as a minor
    finding, when the variable is set and nothing else is wrong. COLLNET or NVLS named for hardware without it falls in the first case.
    """
    forced = active(facts, "NCCL_ALGO")
    nothing_left = facts.all("nccl.no_algorithm")
    idle = [s for s in active(facts, *load_variables()) if not load_variables()[s.name].effective]
    tell = [
        "run once with the variable unset",
        'busbw query "SELECT * FROM choices" on a log with NCCL_DEBUG_SUBSYS=TUNING',
    ]
    if nothing_left:
        yield Finding(
            "env-algo-forced", 0.85 if forced else 0.55, "fatal", "the algorithms allowed leave nothing for a function", lines_of([*forced, *nothing_left]),
            "Unset NCCL_ALGO, or name an algorithm per function (NCCL_ALGO=allreduce:tree;allgather:ring), see that the hardware has it.", tell,
        )  # fmt: skip
        return
    words = {w.strip().lower() for s in forced for w in re.split(r"[,;:]", s.value.replace("^", "")) if w.strip()}
    functions = {"allreduce", "allgather", "reducescatter", "broadcast", "reduce", "all"}
    unknown = words - _ALGORITHMS - functions
    if forced and unknown and not all(w.isdigit() for w in unknown):
        yield Finding(
            "env-algo-forced", 0.6, "fatal", f"NCCL_ALGO names {', '.join(sorted(unknown))}, which is no algorithm", lines_of(forced),
            "Names are Tree, Ring, CollnetDirect, CollnetChain, NVLS, NVLSTree, PAT.", tell,
        )  # fmt: skip
    elif forced and facts.all("nccl.topo_simple_order", "nccl.topo_missing_net"):
        yield Finding(
            "env-algo-forced", 0.6, "fatal", f"no path was found for the algorithm that NCCL_ALGO={forced[0].value} asks for",
            lines_of([*forced, *facts.all("nccl.topo_simple_order", "nccl.topo_missing_net")]), "Unset NCCL_ALGO.", tell,
        )  # fmt: skip
    elif forced:
        yield Finding(
            "env-algo-forced", 0.35, "minor", f"NCCL_ALGO={forced[0].value} holds for every size", lines_of(forced),
            "Unset it unless a measurement on this machine shows that it pays at the sizes you use.", tell,
        )  # fmt: skip
    elif idle:
        yield Finding(
            "env-algo-forced", 0.2, "minor", f"{idle[0].name} has no effect in current NCCL and forced a path in old ones", lines_of(idle), "Unset it.", tell,
        )  # fmt: skip


def peer_to_peer_switched_off(facts: Facts) -> Iterator[Finding]:
    """NCCL_P2P_DISABLE or NCCL_P2P_LEVEL keeps GPUs that could talk directly on shared memory or the network.

    Fires when the variable switches P2P off and NVLink is there, or connections between GPUs of a host go over SHM. Without either it is
    a minor finding. When shared memory fails and the environment is full of debugging overrides, it is a candidate even if the variable
    itself is not in the excerpt. Silent when the variable is mentioned as a trial only.
    """
    off = [s for s in active(facts, "NCCL_P2P_DISABLE") if s.value not in _OFF]
    off += [
        s
        for s in active(facts, "NCCL_P2P_LEVEL")
        if s.value.upper() in ("0", "LOC", "1", "NVL", "PIX") and not (s.value.upper() == "NVL" and has_nvlink(facts))
    ]
    shm = [link for link in facts.links if link.transport == "SHM"]
    shm_failed = facts.all("nccl.shm_failed")
    leftovers = [s for s in active(facts, *_DEBUGGING) if s.name not in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")]
    remedy = "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL."
    tell = ["nvidia-smi topo -p2p r", "run once with the variables unset"]
    if off and (has_nvlink(facts) or shm or shm_failed):
        yield Finding(
            "env-p2p-level-forced", 0.8, "major", f"{off[0].name}={off[0].value} keeps GPUs of a host from talking directly",
            lines_of([*off, *shm, *shm_failed]), remedy, tell,
        )  # fmt: skip
    elif off:
        yield Finding(
            "env-p2p-level-forced",
            0.45,
            "minor",
            f"{off[0].name}={off[0].value} restricts peer to peer",
            lines_of(off),
            remedy,
            tell,
        )
    elif shm_failed and len({s.name for s in leftovers}) >= 2:
        yield Finding(
            "env-p2p-level-forced", 0.4, "fatal", "the environment is full of overrides; one of them may keep NVLink GPUs on shared memory",
            lines_of([*leftovers, *shm_failed]), "Start with no NCCL_* variables but NCCL_DEBUG. " + remedy, tell,
        )  # fmt: skip


_MOST_CHANNELS = 64
"""NCCL 2.25 and later; 32 before (MAXCHANNELS, src/include/device.h)."""
_MOST_CHANNELS_RCCL = 256
"""RCCL on MI300 (guess from its MAXCHANNELS of 128 and 256)."""


def channels_without_effect(facts: Facts) -> Iterator[Finding]:
    """A number of channels or threads that NCCL ignores, limits, or that starves it.

    Fires on NCCL's own words about the limit (src/graph/connect.cc, tuning.cc) and on NCCL_MAX_NCHANNELS of 1 or 2. Settings that
    contradict each other (minimum above maximum) count too. Silent when NCCL chose the number itself.
    """
    said = facts.all("nccl.setting_ignored", "nccl.setting_out_of_range")
    names = (
        "NCCL_MAX_NCHANNELS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MIN_CTAS",
        "NCCL_NTHREADS",
        "NCCL_MAX_NRINGS",
        "NCCL_MIN_NRINGS",
    )
    settings = active(facts, *names)
    few = [s for s in settings if "MAX" in s.name and (whole(s.value) or 99) <= 2]
    lows = {s: n for s in settings if "MIN" in s.name and (n := whole(s.value)) is not None}
    least_high = min((n for s in settings if "MAX" in s.name and (n := whole(s.value)) is not None), default=None)
    crossed = [s for s, n in lows.items() if least_high is not None and n > least_high]
    most = _MOST_CHANNELS_RCCL if facts.all("nccl.rccl_version") else _MOST_CHANNELS
    beyond = [s for s, n in lows.items() if n > most]
    asked = max(lows.values(), default=0)
    channels = [e for e in facts.all("nccl.channels") if (e.number("coll") or 0) < asked]
    tell = ["grep 'coll channels' in a log with NCCL_DEBUG=INFO"]
    if said or crossed or beyond or channels:
        yield Finding(
            "env-channels-ineffective", 0.7 if said or channels else 0.5, "minor", "a channel or thread setting is out of range or ignored",
            lines_of([*said, *crossed, *beyond, *channels, *settings]),
            "Unset it; NCCL_MIN_CTAS and NCCL_MAX_CTAS are today's names in NCCL (at most 64).", tell,
        )  # fmt: skip
    elif few:
        yield Finding(
            "env-channels-ineffective", 0.55, "major", f"{few[0].name}={few[0].value} leaves NCCL too few channels for the links", lines_of(few),
            "Unset it, or measure how many channels the links need.", tell,
        )  # fmt: skip
    elif settings:
        yield Finding(
            "env-channels-ineffective", 0.3, "minor", f"{settings[0].name}={settings[0].value} is set by hand", lines_of(settings), "Unset it unless measured.", tell,
        )  # fmt: skip


def _reads_off_by_default(facts: Facts) -> bool:
    """Whether all GPUs named are older than Ampere and without NVLink: NCCL leaves reads off there (src/graph/paths.cc)."""
    gpus = [gpu for _, name, _ in facts.devices if (gpu := find_accelerator(name)) is not None]
    return bool(gpus) and all((gpu.compute_capability or 0) < 80 and not gpu.nvlinks.value for gpu in gpus)


def gpudirect_one_way(facts: Facts) -> Iterator[Finding]:
    """GPUDirect RDMA is used for receiving but not for sending: reads by the NIC are off.

    Fires when send connections of a process lack GDRDMA and its receive connections have it (NCCL_NET_GDR_READ is off by default before
    Ampere without NVLink, src/graph/paths.cc), when a level setting keeps GPUDirect off, and when a trial with NCCL_NET_GDR_READ or
    NCCL_NET_GDR_LEVEL is faster than without. Silent when neither direction has it and no setting says why.
    """
    level = [
        s
        for s in active(facts, "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_IB_CUDA_SUPPORT", "NCCL_IB_GDR_LEVEL")
        if s.value.upper() in ("0", "LOC")
    ]
    one_way = []
    by_device: dict[tuple[str | None, int | None, int | None], list[LinkGroup]] = defaultdict(list)
    for link in facts.links:
        if link.network not in (None, "Socket"):
            by_device[link.host, link.pid, link.device].append(link)
    for mine in by_device.values():
        sends = [link for link in mine if link.direction == "send"]
        receives = [link for link in mine if link.direction == "receive"]
        if (
            sends
            and receives
            and not any(link.gpudirect for link in sends)
            and all(link.gpudirect for link in receives)
        ):
            one_way += [sends[0], receives[0]]
    tell = [
        "run once with NCCL_NET_GDR_READ=1",
        "NCCL_DEBUG_SUBSYS=NET,GRAPH: the 'GPU Direct RDMA Enabled ... read' lines",
    ]
    if one_way:
        yield Finding(
            "gdr-read-setting", 0.8, "minor" if _reads_off_by_default(facts) else "major", "the NIC writes GPU memory directly but reads it through the host", lines_of([*one_way, *level]),
            "Set NCCL_NET_GDR_READ=1 where NIC and GPU share a PCIe switch; drop NCCL_NET_GDR_LEVEL.", tell,
        )  # fmt: skip
    elif level:
        yield Finding(
            "gdr-read-setting", 0.6, "major", f"{level[0].name}={level[0].value} keeps GPUDirect RDMA off", lines_of(level),
            f"Unset {level[0].name}.", tell,
        )  # fmt: skip


_UCX_HARMFUL: Sequence[tuple[str, Sequence[str], float, str, str]] = (
    ("UCX_CUDA_IPC_CACHE", _OFF, 0.9, "every transfer opens and closes its CUDA IPC handle (about 2 ms)", "Leave UCX_CUDA_IPC_CACHE at y."),
    ("UCX_IB_GPU_DIRECT_RDMA", _OFF, 0.8, "the NIC may not touch GPU memory", "Unset UCX_IB_GPU_DIRECT_RDMA."),
    ("UCX_RNDV_SCHEME", ("am",), 0.5, "large messages are copied in pieces", "Unset UCX_RNDV_SCHEME."),
    ("UCX_MEMTYPE_CACHE", _OFF, 0.4, "the kind of memory is looked up at every call", "Leave UCX_MEMTYPE_CACHE at its default."),
    ("UCX_RNDV_THRESH", ("inf",), 0.5, "large messages never use zero copy", "Unset UCX_RNDV_THRESH."),
    ("UCX_ZCOPY_THRESH", ("inf",), 0.5, "zero copy is off", "Unset UCX_ZCOPY_THRESH."),
    ("UCX_CUDA_COPY_DMABUF", _OFF, 0.35, "DMA-BUF registration is off", "Unset UCX_CUDA_COPY_DMABUF."),
    ("UCX_IB_REG_METHODS", ("direct",), 0.3, "registrations are not cached", "Unset UCX_IB_REG_METHODS."),
    ("UCX_RCACHE_ENABLE", _OFF, 0.7, "registrations are not cached", "Unset UCX_RCACHE_ENABLE."),
)  # fmt: skip


def ucx_switched_off(facts: Facts) -> Iterator[Finding]:
    """A UCX variable turns off a cache, a transport or a protocol that GPU transfers need.

    Fires on the settings of the table above in force, and on UCX_TLS without any transport for GPU memory in a job that moves it.
    Severity is major only when a measurement is there to be slow. Silent on UCX_TLS for host memory, and on values that are the default.
    """
    measured = bool(facts.curves)
    for name, values, confidence, effect, remedy in _UCX_HARMFUL:
        found = [s for s in active(facts, name) if s.value.lower() in values]
        if found:
            slow = [p for c in facts.curves for p in c.points][-2:]
            yield Finding(
                "ucx-setting", confidence, "major" if measured or confidence >= 0.7 else "minor", f"{name}={found[0].value}: {effect}", lines_of([*found, *slow]), remedy,
                ["run once with the variable unset", "UCX_PROTO_INFO=y"],
            )  # fmt: skip
    lists: list[Setting] = [
        s for s in active(facts, "UCX_TLS") if not s.value.startswith("^") and s.value.lower() not in ("all", "")
    ]
    gpu = facts.all("cuda.error", "command.device_memory", "osu.device_memory")
    copies = ("cuda_copy", "cuda", "rocm_copy", "rocm", "all")
    if lists and gpu and not any(word in copies for word in lists[0].value.lower().split(",")):
        yield Finding(
            "ucx-setting", 0.75, "fatal", f"UCX_TLS={lists[0].value} lacks cuda_copy, without which GPU memory is taken for host memory", lines_of([*lists, *gpu]),
            "Add cuda_copy (and cuda_ipc) to UCX_TLS, or unset it.", ["ucx_info -d | grep -i cuda"],
        )  # fmt: skip


def remedy_in_a_note(facts: Facts) -> Iterator[Finding]:
    """Somebody says that a variable makes it work: what the variable switches off or on is the suspect.

    Fires on a variable of the table below that a sentence, not a command or an environment, gives as the way out. Silent for variables that a
    program's own message suggests. Minor: words are no symptom.
    """
    for setting in facts.settings:
        kind = _WAYS_OUT.get(setting.name) if setting.origin == "note" else None
        if kind is not None:
            yield Finding(
                kind, 0.4, "minor", f"{setting.name}={setting.value} is said to help", lines_of([setting]), f"Mend what makes {setting.name} necessary.",
                [f"run with and without {setting.name}"],
            )  # fmt: skip


_WAYS_OUT = {
    "UCX_RC_ECE": "congestion-control-setting",
    "UCX_RC_MLX5_ECE": "congestion-control-setting",
    "NCCL_IB_ECE_ENABLE": "congestion-control-setting",
    "NCCL_IB_GID_INDEX": "roce-gid-index",
    "NCCL_SOCKET_IFNAME": "wrong-socket-interface",
    "NCCL_NVLS_ENABLE": "fabric-manager-state",
    "NCCL_SHM_DISABLE": "shm-too-small",
    "NCCL_CUMEM_HOST_ENABLE": "cumem-host-no-p2p",
    "NCCL_MNNVL_ENABLE": "imex-not-configured",
    "NCCL_CROSS_NIC": "rail-cross-nic",
    "NCCL_IGNORE_CPU_AFFINITY": "cpu-affinity-pinning",
    "NCCL_NET_GDR_LEVEL": "pcie-acs-enabled",
    "NCCL_NET_GDR_READ": "gdr-read-setting",
}


def experiment(facts: Facts) -> Iterator[Finding]:
    """Somebody measured with and without a variable: the variable that changes the result tells the cause.

    Fires when the figure with a variable set is at least 20 % above the best figure without it, under the same version.
    Silent on smaller differences, and without a figure to compare with.
    """
    figures = facts.all("note.figure")
    plain = [e for e in figures if "=" not in e.fields.get("condition", "")]
    for event in figures:
        match = re.search(r"\b([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)=(\S+)", event.fields.get("condition", ""))
        if match is None:
            continue
        prefix = event.fields["condition"][: match.start()].strip()
        base = [e for e in plain if e.fields.get("condition", "").strip() == prefix]
        if not base:
            continue
        before, after = max(float(e.fields["value"]) for e in base), float(event.fields["value"])
        kind = _EXPERIMENTS.get(match[1])
        if kind is None or before <= 0 or after / before < 1.2:
            continue
        yield Finding(
            kind, 0.85, "major", f"{match[0]} raises the bandwidth from {before:g} to {after:g} GB/s", lines_of([event, *base]),
            f"Keep {match[0]}, and mend what makes it necessary.", [f"run with and without {match[0]} again"],
        )  # fmt: skip


_EXPERIMENTS = {
    "NCCL_NET_GDR_READ": "gdr-read-setting",
    "NCCL_NET_GDR_LEVEL": "gdr-read-setting",
    "NCCL_P2P_DISABLE": "iommu-p2p",
    "NCCL_IB_QPS_PER_CONNECTION": "ecmp-collision",
    "NCCL_CROSS_NIC": "rail-cross-nic",
    "NCCL_IGNORE_CPU_AFFINITY": "cpu-affinity-pinning",
    "NCCL_TOPO_FILE": "vm-topology-file",
    "NCCL_IB_PCI_RELAXED_ORDERING": "vm-topology-file",
    "NCCL_MIN_NCHANNELS": "env-channels-ineffective",
    "NCCL_NCHANNELS_PER_NET_PEER": "env-channels-ineffective",
    "NCCL_ALGO": "env-algo-forced",
    "NCCL_PROTO": "env-proto-forced",
}

RULES = (
    forced_protocol, wrong_without_forcing, forced_algorithm, peer_to_peer_switched_off, channels_without_effect, gpudirect_one_way, ucx_switched_off, remedy_in_a_note, experiment,
)  # fmt: skip
