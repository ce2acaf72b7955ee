"""RDMA traffic that does not get through: GID, MTU, lossy fabric, flapping link, rails, congestion control."""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbw.diagnosis.facts import Counter, Event, Facts, LinkGroup, Setting, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.counter_words import LOSSES, counted, on_infiniband
from busbw.diagnosis.rules.shared import active

__all__ = ["RULES"]

RETRY_EXCEEDED, RNR_RETRY_EXCEEDED, FLUSHED = 12, 13, 5
"""Work completion status (ibv_wc_status): retries exceeded, receiver not ready, flushed after another error."""

_COMPLETIONS = ("nccl.ib_completion", "perftest.completion_failed", "gloo.ib_completion")
"""Messages with a work completion status: NCCL's, perftest's and gloo's."""

_TELL = [
    "show_gids on both hosts; ib_write_bw -x GID -d DEV between them",
    "ibv_devinfo: active_mtu on both hosts; ping -M do -s 8972 PEER (RoCE with MTU 9000)",
    "ethtool -S IFACE and hw_counters before and after: local_ack_timeout_err, out_of_sequence, link_downed",
]
_LINK_LOCAL = re.compile(r"fe:?80[:0-9a-f]*", re.IGNORECASE)


def _link_local_gids(facts: Facts) -> list[Event]:
    """Lines whose chosen GID is link-local: NCCL's own, or the entry of ibv_devinfo that NCCL_IB_GID_INDEX selects."""
    own = [
        e
        for e in facts.all("nccl.ib_completion", "nccl.ib_call_failed", "nccl.gid", "mooncake.gid")
        if _LINK_LOCAL.search(e.text) and "GID" in e.text.upper()
    ]
    chosen = {s.value for s in active(facts, "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX")}
    listed = [
        e
        for e in facts.all("rdma.gid")
        if e.fields.get("index") in chosen and _LINK_LOCAL.match(e.fields.get("gid", ""))
    ]
    first_version = [
        e for e in facts.all("rdma.gid") if e.fields.get("index") in chosen and "v1" in e.fields.get("type", "")
    ]
    return own + listed + first_version


def _port_events(facts: Facts) -> list[Event]:
    down = [
        e
        for e in facts.all("nccl.ib_async")
        if any(w in e.text.lower() for w in ("port error", "port active", "fatal", "link"))
    ]
    down += facts.all("nccl.ib_device_failed")
    down += [
        e
        for e in facts.all("kernel.nic_link")
        if e.fields.get("state", "").lower().rstrip(".,") in ("down", "unplugged", "up", "plugged")
    ]
    return sorted(down, key=lambda e: e.at)


def _while_booting(event: Event) -> bool:
    """Whether a line of the kernel log is of the first five minutes (a guess), in which drivers bring links up."""
    uptime = re.match(r"\[\s*(\d{1,9})\.\d+\]", event.text)
    return uptime is not None and int(uptime[1]) < 300


def _port(event: Event) -> str:
    """The port an event is about, as its line names it."""
    return event.fields.get("interface") or event.fields.get("device") or event.fields.get("bus_id", "")


def _lossy_counters(facts: Facts) -> list[Counter]:
    """Losses counted since the last reset; where two readings are there, only what grew between them counts."""
    compared = {(g.last.place, g.last.device, g.last.port, g.last.name): g.by for g in facts.growths}
    return [c for c in counted(facts, LOSSES) if compared.get((c.place, c.device, c.port, c.name), c.value) > 0]


def gid_of_the_wrong_kind(facts: Facts) -> Iterator[Finding]:
    """The GID index that is set selects a RoCE v1 or a link-local entry.

    Fires when NCCL_IB_GID_INDEX points, in show_gids or ibv_devinfo, at an entry of RoCE v1 or of fe80:: although an entry of RoCE v2 with
    an IPv4 address exists. Silent when the index selects such an entry, and when no index is set.
    """
    chosen = active(facts, "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX")
    gids = facts.all("rdma.gid")
    good = [e for e in gids if "v2" in e.fields.get("type", "") and "ffff:" in e.fields.get("gid", "").lower()]
    bad = [
        e for e in gids
        if e.fields.get("index") in {s.value for s in chosen} and ("v1" in e.fields.get("type", "") or _LINK_LOCAL.match(e.fields.get("gid", "")))
    ]  # fmt: skip
    if chosen and bad and good:
        yield Finding(
            "roce-gid-index", 0.85, "fatal" if facts.failures() else "major", f"GID index {chosen[0].value} is {bad[0].fields.get('type', '').strip()} {bad[0].fields.get('gid', '')}, not a routable RoCE v2 address",
            lines_of([*chosen, *bad, *good]), f"Use index {good[0].fields.get('index')} (RoCE v2, IPv4), or unset the variable with NCCL 2.21 and later.", _TELL[:1],
        )  # fmt: skip


def gid_type_unreadable(facts: Facts) -> Iterator[Finding]:
    """The library reads the types of a port's GIDs, meets an entry that cannot be read, and gives up.

    Fires on the message of NCCL 2.21 to 2.25 (src/transport/net_ib.cc) and of UCCL, which took the code over (util_rdma.h). A container with an
    interface of its own (macvlan, SR-IOV) sees only some entries of the table; the kernel answers EINVAL for the others. NCCL 2.26 goes on to the next entry.
    Any other error than EINVAL says that sysfs is not there. Silent where the table is read.
    """
    events = facts.all("rdma.gid_type_unreadable")
    if not events:
        return
    empty = any("invalid argument" in e.text.lower() for e in events)
    good = [
        e
        for e in facts.all("rdma.gid")
        if "v2" in e.fields.get("type", "") and "ffff:" in e.fields.get("gid", "").lower()
    ]
    index = f" ({good[0].fields.get('index')})" if good else ""
    lines = lines_of([*events, *good[:4]])
    if empty:
        yield Finding(
            "library-bug-version", 0.65, "fatal", "the search for a GID ends at an entry that this container cannot read", lines,
            f"Upgrade NCCL to 2.26 or later; until then set NCCL_IB_GID_INDEX to the RoCE v2 entry of show_gids{index}.", ["show_gids inside the container: which indices are there"],
        )  # fmt: skip
    yield Finding(
        "roce-gid-index", 0.3 if empty else 0.4, "fatal", "the type of a GID cannot be read, so none is chosen", lines,
        f"Set NCCL_IB_GID_INDEX to the RoCE v2 entry of show_gids{index}; see that /sys/class/infiniband is visible.", ["ls /sys/class/infiniband/DEV/ports/1/gid_attrs/types inside the container"],
    )  # fmt: skip


def no_gid_accepted(facts: Facts) -> Iterator[Finding]:
    """Mooncake accepts none of a port's GIDs, or refuses the one that was set, and goes without the NIC.

    Fires when it finds no suitable GID: the automatic choice takes IPv4-mapped addresses of an interface that is up, so a port with IPv6 only has none. Fires
    when it calls a GID one without network device and the NIC then fails to open: versions of early 2026 refuse such a GID, which on InfiniBand is the usual one.
    Silent when the NIC opens in spite of that remark. Source: mooncake-transfer-engine rdma_context.cpp.
    """
    none = facts.all("mooncake.no_gid")
    if none:
        lines = lines_of([*none, *facts.all("mooncake.device_failed", "mooncake.no_nic")])
        yield Finding(
            "roce-gid-index", 0.7, "fatal", "no GID of the NIC is one that Mooncake's automatic choice accepts", lines,
            "Set MC_GID_INDEX to the entry of show_gids that reaches the peers, or give the interface an IPv4 address.", _TELL[:1],
        )  # fmt: skip
        yield Finding(
            "library-bug-version",
            0.2,
            "fatal",
            "the automatic choice passes over GIDs that would work",
            lines,
            "Use a newer Mooncake, or set MC_GID_INDEX.",
            _TELL[:1],
        )
    odd = facts.all("mooncake.gid_without_interface")
    failed = facts.all("mooncake.device_failed")
    if odd and failed:
        lines = lines_of([*odd, *failed, *facts.all("mooncake.no_nic")])
        yield Finding(
            "library-bug-version", 0.5, "fatal", "Mooncake refuses the GID that was set because it belongs to no network device", lines,
            "On InfiniBand such a GID is right: use a version that only remarks on it. On RoCE set MC_GID_INDEX to an entry of an interface.", ["ibv_devinfo | grep -e hca_id -e link_layer", "show_gids"],
        )  # fmt: skip
        yield Finding(
            "roce-gid-index",
            0.4,
            "fatal",
            "the GID index that was set belongs to no network device",
            lines,
            "Set MC_GID_INDEX to an entry of show_gids with an interface.",
            ["show_gids"],
        )


def default_gid_is_link_local(facts: Facts) -> Iterator[Finding]:
    """Transfers over gloo's ibverbs fail, and the GID that it takes by default is link-local.

    Fires when a completion of gloo (gloo/transport/ibverbs/pair.cc) failed, whatever its status, and show_gids lists a link-local address at index 0,
    gloo's default, and an IPv4 one at another index. Silent without a list of GIDs: a flushed request alone tells no cause.
    """
    failed = facts.all("gloo.ib_completion")
    gids = facts.all("rdma.gid")
    first = [e for e in gids if e.fields.get("index") == "0" and _LINK_LOCAL.match(e.fields.get("gid", ""))]
    mapped = [e for e in gids if "ffff:" in e.fields.get("gid", "").lower() and e.fields.get("index") != "0"]
    if failed and first and mapped:
        yield Finding(
            "roce-gid-index", 0.65, "fatal", "gloo uses GID index 0, which is link-local, though an IPv4 one exists", lines_of([*failed, *first, *mapped]),
            f"Choose index {mapped[0].fields.get('index')} (gloo: attr.index, --ib-index of its benchmark).", _TELL[:1],
        )  # fmt: skip


def ucx_queue_pair_refused(facts: Facts) -> Iterator[Finding]:
    """The NIC refuses what UCX wants of a queue pair.

    Fires on UCX's mlx5dv_devx_qp_modify that fails (ib_mlx5_dv.c; 503 is the step to ready-to-receive). Where a variable sets service level, traffic class, GID,
    partition key or MTU of the connection, that value is the first suspect: a subnet manager grants only some service levels. Silent on other calls.
    """
    events = facts.all("ucx.qp_modify_failed")
    if not events:
        return
    chosen = [
        s
        for s in active(facts, *_UCX_CONNECTION)
        if s.value.lower() not in ("auto", "default", "") and (s.name, s.value) != ("UCX_IB_SL", "0")
    ]
    tell = ["the same run without the variable", "ibv_devinfo -v; smpquery sl2vl (InfiniBand)"]
    lines = lines_of([*events, *chosen])
    yield Finding(
        "ucx-setting", 0.6 if chosen else 0.2, "fatal", f"a queue pair cannot be set up with {chosen[0].name}={chosen[0].value}" if chosen else "a queue pair cannot be set up as UCX was told", lines,
        f"Unset {chosen[0].name if chosen else 'UCX_IB_SL, UCX_IB_TRAFFIC_CLASS and UCX_IB_GID_INDEX'}, or use a value that the fabric grants.", tell,
    )  # fmt: skip
    yield Finding(
        "roce-gid-index",
        0.15 if chosen else 0.35,
        "fatal",
        "the NIC refuses the address of a connection",
        lines,
        "On RoCE set UCX_IB_GID_INDEX to the RoCE v2 entry of show_gids.",
        _TELL[:1],
    )


_UCX_CONNECTION = (
    "UCX_IB_SL",
    "UCX_IB_TRAFFIC_CLASS",
    "UCX_IB_GID_INDEX",
    "UCX_IB_PKEY",
    "UCX_RC_PATH_MTU",
    "UCX_IB_PATH_MTU",
    "UCX_IB_ROCE_REACHABILITY_MODE",
)
"""UCX variables that end up in the address or the state of a queue pair (src/uct/ib/base/ib_iface.c, rc_iface.c)."""


def flapping_link(facts: Facts) -> Iterator[Finding]:
    """A port goes down, and perhaps up again, under the job.

    Fires on NCCL's asynchronous events (port error, port active), and on the kernel's link down lines of an RDMA NIC, with or without
    a transfer that fails afterwards. Silent on a link that only comes up once, and on what happens in the first five minutes of a kernel
    log: that is a boot.
    """
    events = _port_events(facts)
    states: dict[str, list[Event]] = {}
    for event in facts.all("rdma.link"):
        states.setdefault(event.fields.get("device", ""), []).append(event)
    changing = [e for seen in states.values() if len({e.fields.get("state") for e in seen}) > 1 for e in seen]
    polling = [e for seen in states.values() for e in seen if e.fields.get("physical", "").upper() == "POLLING"]
    if (changing or polling) and not events:
        yield Finding(
            "link-flap", 0.8 if changing else 0.5, "major", "an RDMA link changes its state" if changing else "an RDMA link looks for its partner", lines_of(changing or polling),
            "Change cable or transceiver of the port named; check the switch's port.", ["mlxlink -d DEV -c -e", "rdma link, repeated"],
        )  # fmt: skip
        return
    down = [e for e in events if any(w in e.text.lower() for w in ("error", "down", "fatal", "unplugged", "failed"))]
    down = [e for e in down if "work queue error" not in e.text.lower() and "access" not in e.text.lower()]
    down = [e for e in down if not _while_booting(e)]
    if not down:
        return
    first_down: dict[tuple[str, str], Event] = {}
    for event in down:
        first_down.setdefault((event.at.path, _port(event)), event)
    went_down = {e.at for e in down}
    back = [
        e
        for e in events
        if e.at not in went_down and (d := first_down.get((e.at.path, _port(e)))) is not None and d.at.line < e.at.line
    ]
    completions = facts.all("nccl.ib_completion")
    yield Finding(
        "link-flap", 0.85, "fatal" if completions or any(e.name == "nccl.ib_async" for e in down) else "major",
        f"a network port went down {len(down)} times", lines_of([*down[:8], *back[:4], *completions[:4]], most=16),
        "Change cable or transceiver of the port named, check the switch's log; raise NCCL_IB_TIMEOUT (22) and NCCL_IB_RETRY_CNT to ride short flaps out.",
        ["mlxlink -d DEV -c -e (cable and error counters)", "ibdiagnet --pc -P all=1 or the switch's port counters"],
    )  # fmt: skip


def unanswered_packets(facts: Facts) -> Iterator[Finding]:
    """A queue pair gave up: the peer did not acknowledge (status 12), or was never reached at connection set-up.

    Fires on completion status 12 (RETRY_EXC) and on ibv_modify_qp failing. The message alone has several causes: GID, MTU, lossy fabric,
    flapping link, a peer that died; what else was read shifts the weights, and the commands tell them apart. Status 5 (flushed) follows
    another error and is never the cause. Silent on other calls and other statuses.
    """
    completions = [e for e in facts.all(*_COMPLETIONS) if e.number("status") == RETRY_EXCEEDED]
    modify = [e for e in facts.all("nccl.ib_call_failed") if "modify_qp" in e.fields.get("call", "")]
    modify += facts.all("verbs.modify_failed", "perftest.qp_refused")
    retries = facts.all("ucx.retry_exceeded")
    if not completions and not modify and not retries:
        return
    symptom = [*completions, *retries, *modify]
    link_local = _link_local_gids(facts)
    flaps = _port_events(facts)
    lossy = _lossy_counters(facts)
    pinned = list(active(facts, "NCCL_IB_GID_INDEX"))
    infiniband = any("/IB" in e.fields.get("devices", "") for e in facts.all("nccl.ib_devices")) and not any(
        "/RoCE" in e.fields.get("devices", "") for e in facts.all("nccl.ib_devices")
    )
    died = facts.all(
        "kernel.killed", "kernel.segfault", "launcher.signal", "launcher.oom", "kernel.xid", "kernel.gpu_lost"
    )
    weights = {"roce-gid-index": 0.34, "roce-lossy-fabric": 0.22, "mtu-mismatch": 0.18, "link-flap": 0.2}
    if pinned and not link_local:
        weights.update({"roce-gid-index": 0.2, "mtu-mismatch": 0.3})
    small_mtu = [e for e in facts.all("rdma.mtu") if (e.number("mtu") or 4096) < 4096 and facts.all("rdma.max_mtu")]
    if small_mtu:
        weights.update({"mtu-mismatch": 0.3})
    if modify and not completions and not retries:
        weights = {"roce-gid-index": 0.55, "rail-cross-nic": 0.25, "link-flap": 0.1}
        rails = _different_rails(modify)
        if rails:
            weights = {"rail-cross-nic": 0.65, "roce-gid-index": 0.25}
        if any("Invalid argument" in e.text for e in modify):
            weights = {"roce-gid-index": 0.7, "mtu-mismatch": 0.1}
    if infiniband:
        weights = {"link-flap": 0.5, "mtu-mismatch": 0.1, "link-rate-degraded": 0.1}
    if link_local and not infiniband:
        roce = (
            any("/RoCE" in e.fields.get("devices", "") for e in facts.all("nccl.ib_devices"))
            or bool(facts.all("rdma.gid"))
            or any(e.number("lid") == 0 for e in facts.all("mooncake.gid"))  # only InfiniBand has LIDs
        )
        weights = {"roce-gid-index": 0.9} if roce else {"roce-gid-index": 0.5, "link-flap": 0.2, "mtu-mismatch": 0.1}
    elif lossy:
        weights = {"roce-lossy-fabric": 0.65, "link-flap": 0.15, "mtu-mismatch": 0.1}
    elif died:
        weights = {"link-flap": 0.1, "roce-lossy-fabric": 0.1}
    if flaps:
        weights.pop("link-flap", None)
        weights = {k: w * 0.4 for k, w in weights.items()}
    what = {
        "roce-gid-index": ("the GID in use is no routable RoCE v2 address", "Pick the RoCE v2 GID of the IPv4 address (show_gids) with NCCL_IB_GID_INDEX; NCCL 2.21 and later finds it."),
        "roce-lossy-fabric": ("the RoCE fabric loses packets", "Map RoCE to a lossless class (NCCL_IB_TC, PFC on the switch) or run ECN with DCQCN end to end."),
        "mtu-mismatch": ("large packets do not pass: MTU differs on the way", "Set the same MTU on NICs and switch ports (9000 for RoCE with 4096 payload)."),
        "link-flap": ("the link to the peer fails or flaps", "Check cables, transceivers and the switch's log; see which rank's NIC is named most."),
        "rail-cross-nic": ("a connection crosses rails that the fabric keeps apart", "Set NCCL_CROSS_NIC=0, and see that NIC i of every host is on rail i."),
        "link-rate-degraded": ("a port runs below its rate", "Check ibstat Rate on every port."),
    }  # fmt: skip
    for kind, weight in weights.items():
        summary, remedy = what[kind]
        extra: list[Event | Setting | Counter] = []
        if kind == "roce-gid-index":
            extra = [*link_local, *pinned, *facts.all("rdma.gid")]
        elif kind == "roce-lossy-fabric":
            extra = list(lossy)
        elif kind == "mtu-mismatch":
            extra = [*pinned, *facts.all("rdma.mtu")]
        yield Finding(
            kind, weight, "fatal", f"{len(symptom)} transfers or connections got no answer: {summary}", lines_of([*symptom[:8], *extra]),
            remedy, _TELL,
        )  # fmt: skip


def _different_rails(events: list[Event]) -> bool:
    """Whether local and remote GID of a failed connection are IPv4 addresses of different third octets: two rails."""
    for event in events:
        addresses = re.findall(r"::ffff:(\d+\.\d+\.\d+)\.\d+", event.text)
        if len(addresses) >= 2 and addresses[0] != addresses[1]:
            return True
    return False


def memory_refused(facts: Facts) -> Iterator[Finding]:
    """The NIC was refused memory it should read or write: protection or access errors on a queue pair.

    Fires on completion status 4 (LOC_PROT), 8 (LOC_ACCESS), 10 (REM_ACCESS) and on "local access violation" events. With GPUDirect that is
    peer-to-peer traffic that ACS or the IOMMU sends elsewhere; a peer that freed its buffer does the same. Silent on other statuses.
    """
    events = [e for e in facts.all(*_COMPLETIONS) if e.number("status") in (4, 8, 10)]
    events += [e for e in facts.all("nccl.ib_async") if "access" in e.text.lower()]
    if events:
        lines = lines_of([*events, *active(facts, "NCCL_NET_GDR_LEVEL")])
        tell = ["lspci -vvv | grep -i acsctl", "run once with NCCL_NET_GDR_LEVEL=0: does it work"]
        yield Finding(
            "pcie-acs-enabled", 0.5, "fatal", "the NIC may not access the memory it was given: peer-to-peer traffic is redirected", lines,
            "Turn ACS off on the bridges above GPU and NIC; NCCL_NET_GDR_LEVEL=0 gets a job through meanwhile.", tell,
        )  # fmt: skip
        yield Finding(
            "iommu-p2p",
            0.25,
            "fatal",
            "the IOMMU translates traffic between NIC and GPU",
            lines,
            "Boot with iommu=pt or with the IOMMU off.",
            tell,
        )


def receiver_not_ready(facts: Facts) -> Iterator[Finding]:
    """The peer had no receive posted in time (status 13): its process is stuck or gone.

    Fires on completion status 13 (RNR_RETRY_EXC). Silent on other statuses.
    """
    events = [e for e in facts.all(*_COMPLETIONS) if e.number("status") == RNR_RETRY_EXCEEDED]
    if events:
        yield Finding(
            "rank-late-or-stuck", 0.5, "fatal", "a peer did not post its receives in time", lines_of(events),
            "Look at the process at the other end: its stack, its GPU, its log.", ["py-spy dump --pid PID and nvidia-smi on the peer"],
        )  # fmt: skip


_FEW_LOSSES = 100
"""Losses since the boot that say nothing about a job (a guess)."""


def lossy_fabric(facts: Facts) -> Iterator[Finding]:
    """NIC counters show lost RoCE packets without a working loss control.

    Fires when acknowledge time-outs or sequence errors are counted; stronger when no ECN marks were seen and all traffic is in priority 0
    (no lossless class). Minor when fewer than 100 were counted, and without those signs: these counters run since the boot. Silent when all of them are 0,
    where two readings tell what was lost in between, and on ports that other files say are InfiniBand.
    """
    compared = {(g.last.place, g.last.device) for g in facts.growths}
    losses = [c for c in _lossy_counters(facts) if (c.place, c.device) not in compared and not on_infiniband(facts, c)]
    if not losses or facts.all("nccl.ib_completion"):
        return
    unmarked = [
        c for c in facts.counters if c.name in ("np_ecn_marked_roce_packets", "rp_cnp_handled") and c.value == 0
    ]
    prio = [c for c in facts.counters if re.fullmatch(r"[rt]x_prio\d_packets", c.name)]
    busy = [c for c in prio if c.value > 0]
    only_zero = bool(busy) and all("prio0" in c.name for c in busy)
    lossless = [c for c in prio if "prio3" in c.name and c.value == 0]
    few = sum(c.value for c in losses) < _FEW_LOSSES
    uncontrolled = bool(unmarked) or only_zero
    confidence = 0.3 if few or not uncontrolled else 0.55 + (0.15 if unmarked else 0) + (0.15 if only_zero else 0)
    yield Finding(
        "roce-lossy-fabric", confidence, "minor" if few or not uncontrolled else "major", "the NIC counts lost or unacknowledged packets" + (", all traffic in priority 0" if only_zero else ""),
        lines_of([*losses, *unmarked, *(busy if only_zero else []), *(lossless if only_zero else [])], most=16),
        "Put RoCE into a lossless class (DSCP on the NIC, PFC on the switch) or turn ECN and DCQCN on end to end; count again under incast.",
        ["mlnx_qos -i IFACE; cma_roce_tos -d DEV", "read hw_counters before and after a run"],
    )  # fmt: skip


def _crossing_links(facts: Facts) -> list[LinkGroup]:
    """Connections whose sender uses another NIC than their receiver, by the NIC's number on each host."""
    ends: dict[tuple[int | None, int | None], dict[str | None, tuple[str, LinkGroup]]] = {}
    for link in facts.links:
        number = re.match(r"NET/IB\w*/(\d+)", link.via)
        if number is not None and link.src_rank is not None:
            ends.setdefault((link.src_rank, link.dst_rank), {})[link.direction] = (number[1], link)
    crossing = [pair for pair in ends.values() if len(pair) == 2 and len({nic for nic, _ in pair.values()}) == 2]
    return [link for pair in crossing for _, link in pair.values()]


def rails_crossed(facts: Facts) -> Iterator[Finding]:
    """Connections cross rails on a fabric that keeps them apart.

    Fires when NCCL_CROSS_NIC allows crossing (1 or 2), or the two ends of a connection name NICs of different number, while a transfer or connection
    fails. Silent without a failure: on a full fat tree crossing is harmless.
    """
    failures = facts.all("nccl.ib_completion", "nccl.ib_call_failed", "nccl.connect_failed")
    crossing = [s for s in active(facts, "NCCL_CROSS_NIC") if s.value in ("1", "2")]
    linked = _crossing_links(facts)
    if failures and (crossing or linked):
        said = (
            f"NCCL_CROSS_NIC={crossing[0].value} and connections fail"
            if crossing
            else "connections use NICs of different number at their ends, and transfers fail"
        )
        yield Finding(
            "rail-cross-nic", 0.6 if crossing and linked else (0.5 if crossing else 0.35), "fatal", said, lines_of([*crossing, *linked[:6], *failures]),
            "Set NCCL_CROSS_NIC=0 on a rail-only fabric, and see that NIC i of every host is on rail i.", ["ib_write_bw between NIC i of one host and NIC j of another"],
        )  # fmt: skip


def congestion_control(facts: Facts) -> Iterator[Finding]:
    """The NIC is throttled by congestion control that this fabric does not handle well.

    Fires when congestion notifications were handled in great number (rp_cnp_handled over 1e5 with no loss), and on messages that name
    ECE, DCQCN or zero-touch RoCE with a failure. Counters run since boot, so they alone are minor. Silent on notifications in small numbers: they are what the control is for.
    """
    handled = [c for c in facts.counters if c.name == "rp_cnp_handled" and c.value > 1e5]
    settings = [
        s for s in active(facts, "NCCL_IB_ECE_ENABLE", "UCX_RC_MLX5_ECE", "UCX_IB_ECE") if s.value not in ("0", "n")
    ]
    failures = facts.all("nccl.ib_completion", "nccl.ib_call_failed")
    named = [e for e in facts.all("nccl.ib_call_failed") if "ece" in e.fields.get("call", "").lower()]
    if named or (settings and failures):
        yield Finding(
            "congestion-control-setting", 0.7 if named else 0.45, "fatal", "connection options of enhanced connection establishment (ECE) are refused or harmful",
            lines_of([*named, *settings, *failures]), "Set NCCL_IB_ECE_ENABLE=0, or the same firmware on all NICs.", ["mlxconfig -d DEV q | grep -i -e ECE -e ROCE_CC"],
        )  # fmt: skip
    elif handled and not _lossy_counters(facts):
        yield Finding(
            "congestion-control-setting", 0.35, "minor", "the sender was told to slow down very often although nothing was lost", lines_of(handled),
            "Check ECN thresholds on the switch and DCQCN parameters on the NIC.", ["read rp_cnp_handled and np_cnp_sent before and after a run"],
        )  # fmt: skip


RULES = (
    gid_of_the_wrong_kind,
    gid_type_unreadable,
    no_gid_accepted,
    default_gid_is_link_local,
    ucx_queue_pair_refused,
    flapping_link,
    unanswered_packets,
    memory_refused,
    receiver_not_ready,
    lossy_fabric,
    rails_crossed,
    congestion_control,
)
