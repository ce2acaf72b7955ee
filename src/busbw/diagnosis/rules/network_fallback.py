"""Traffic on a slower transport than the machine has: sockets, TCP, a plugin that did not start."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Device, Event, Facts, Port, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active, is_multi_node, node_count
from busbw.hardware import find_accelerator

__all__ = ["RULES"]


def _sockets(facts: Facts) -> list[Event]:
    named = [e for e in facts.all("nccl.network") if e.fields.get("network", "").split()[:1] == ["Socket"]]
    return named or facts.all("nccl.socket_devices")


def _only_sockets(facts: Facts) -> bool:
    return not any(e.fields.get("network", "Socket").split()[:1] != ["Socket"] for e in facts.all("nccl.network"))


def plugin_failed(facts: Facts) -> Iterator[Finding]:
    """A network plugin is there but does not start, so another transport is used.

    Fires on aws-ofi-nccl's refusals (no eligible provider, initialisation failed) and on a plugin library that cannot be loaded for a
    reason other than not being there. Silent when no plugin is installed: that is normal. If libfabric finds no device at all, the EFA
    device may be missing in the container.
    """
    no_provider = facts.all("ofi.no_provider")
    broken = list(facts.all("ofi.init_failed"))
    if not facts.all("ofi.provider"):
        broken += [e for e in facts.unknown_warnings if "NET/OFI" in e.text]
    if not no_provider and not broken:
        return
    lines = lines_of(
        [
            *no_provider,
            *broken,
            *facts.all("nccl.ib_no_device"),
            *_sockets(facts),
            *facts.setting("NCCL_TREE_THRESHOLD", "FI_PROVIDER"),
        ]
    )
    no_device = any(
        "no data available" in e.text.lower() or "no eligible" in e.text.lower() or "unable to find" in e.text.lower()
        for e in no_provider
    )
    efa = any("efa" in e.text.lower() for e in no_provider)
    forced = active(facts, "FI_PROVIDER")
    container = 0.5 if no_device and (forced or efa or facts.all("ofi.platform")) else (0.4 if no_device else 0.2)
    yield Finding(
        "net-plugin-init-failed", 0.85 - container if no_device else 0.75, "major", "the OFI plugin finds no provider that it accepts and NCCL goes on without it", lines,
        "Enable EFA on the instances (interface type, driver, libfabric of the EFA installer), or remove the plugin.",
        ["fi_info -p efa on the host and inside the container", "ls /dev/infiniband inside the container"],
    )  # fmt: skip
    yield Finding(
        "efa-device-not-in-container", container, "major", "libfabric sees no EFA device where the process runs", lines,
        "Pass the devices into the container (--device=/dev/infiniband/uverbs0 ..., vpc.amazonaws.com/efa in Kubernetes).",
        ["fi_info -p efa on the host and inside the container"],
    )  # fmt: skip


def socket_fallback(facts: Facts) -> Iterator[Finding]:
    """NCCL talks over TCP sockets between hosts although RDMA was to be expected.

    Fires when the network is Socket and something shows why or that it should not be: NCCL_IB_DISABLE or NCCL_NET=Socket, an RDMA plugin
    that was loaded, libibverbs missing or no device found on a job of several hosts. Minor where nothing speaks of RDMA hardware: plain Ethernet
    is as it should be. Silent on one host (sockets only start the job there)
    and on jobs of which nothing says that they span hosts.
    Reads: network ("Using network", src/net.cc; "NET/Socket : Using", src/transport/net_socket.cc), links, settings.
    """
    sockets = _sockets(facts)
    linked = [link for link in facts.links if link.network == "Socket"]
    if (not sockets and not linked) or not _only_sockets(facts) or (node_count(facts) == 1 and not linked):
        return
    multi = is_multi_node(facts) or bool(linked)
    disabled = [s for s in active(facts, "NCCL_IB_DISABLE") if s.value not in ("0", "")]
    disabled += [s for s in active(facts, "NCCL_NET") if s.value.lower() == "socket"]
    plugin = [
        e
        for e in facts.all("nccl.net_plugin")
        if e.fields.get("network", "").lower() not in ("socket", "internal", "v4", "v5", "v6")
    ]
    no_device = facts.all("nccl.ib_no_device")
    no_library = facts.all("nccl.ib_no_library")
    refused = facts.all("nccl.ib_device_refused")
    expected = _rdma_was_expected(facts)
    if refused:
        confidence, reason = 0.8, f"device {refused[0].fields.get('device', '?')} cannot be opened"
        remedy = "Pass /dev/infiniband/uverbs* into the container and raise memlock; check the rdma-core of the image against the host's driver."
    elif disabled:
        confidence, reason = (
            (0.85 if multi or plugin else 0.7),
            f"{disabled[0].name}={disabled[0].value} turns InfiniBand off",
        )
        remedy = f"Unset {disabled[0].name}; see that the job's container has the RDMA devices."
    elif plugin:
        confidence, reason = 0.7, "an RDMA plugin was loaded but sockets are used"
        remedy = "See why the plugin found no device: ibv_devices inside the container, /dev/infiniband, port state."
    elif multi and no_library:
        confidence, reason = (
            (0.6 if expected else 0.5),
            "libibverbs is not in the image, so no InfiniBand or RoCE device can be used",
        )
        remedy = "Install rdma-core (libibverbs1, ibverbs-providers) in the image and pass /dev/infiniband into the container."
    elif multi and no_device:
        confidence, reason = (0.6 if expected else 0.45), "no RDMA device is visible to the process"
        remedy = (
            "Pass /dev/infiniband into the container, check NCCL_IB_HCA against ibv_devices and that a port is active."
        )
    elif len(facts.processes) <= 1 and sum(facts.event_counts.values()) <= 3 and facts.all("nccl.socket_devices"):
        yield Finding(
            "socket-fallback", 0.35, "minor", "NCCL chose TCP sockets", lines_of(sockets), "If the hosts have InfiniBand, RoCE or EFA: check drivers, plugin and NCCL_IB_* settings.",
            ["ibv_devinfo inside the container", "the whole log with NCCL_DEBUG=INFO"],
        )  # fmt: skip
        return
    elif linked:
        confidence, reason = 0.4, "connections between hosts are NET/Socket"
        remedy = "If the hosts have InfiniBand, RoCE or EFA: check drivers, plugin and NCCL_IB_* settings. On plain Ethernet this is as expected."
    else:
        return
    yield Finding(
        "socket-fallback", confidence, "major" if refused or plugin or expected else "minor", f"TCP sockets between hosts: {reason}",
        lines_of([*refused, *facts.all("nccl.ib_call_failed"), *disabled, *(() if refused or disabled else plugin), *no_device, *no_library, *sockets, *linked]), remedy,
        ["ibv_devinfo inside the container", "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET and read the NET/IB lines"],
    )  # fmt: skip


def _rdma_was_expected(facts: Facts) -> bool:
    """Whether anything speaks of RDMA hardware: settings for it, its devices, a cloud plugin, GPUs that come with NICs of their own."""
    settings = [
        s
        for s in facts.settings
        if s.origin != "note"
        and s.name != "NCCL_IB_DISABLE"
        and s.name.startswith(("NCCL_IB_", "UCX_IB_", "OFI_NCCL_", "FI_"))
    ]
    devices = facts.all(
        "rdma.device", "rdma.rate", "rdma.link", "ofi.platform", "ofi.provider", "kernel.nic_link", "nccl.ib_devices"
    )
    switched = any(
        (gpu := find_accelerator(name)) is not None and (gpu.nvlinks.value or 0) >= 12 for _, name, _ in facts.devices
    )
    return bool(settings or devices or switched)


def ucx_over_tcp(facts: Facts) -> Iterator[Finding]:
    """UCX chose TCP for a transfer that better transports could carry.

    Fires when UCX's protocol log shows tcp lanes only. Silent if an RDMA or shared-memory lane was added too.
    Reads: lanes ("lane[0] tcp/... added", proto_common.c), speed of the device UCX found (topo.c).
    """
    lanes = facts.all("ucx.tcp_lane", "ucx.tcp_protocol")
    tcp_first = [
        e for e in facts.all("ucx.lanes") if re.search(r"(?:^|\s)(?:am|tag)\((?:\d+:)?tcp/", e.fields.get("lanes", ""))
    ]
    if (not lanes and not tcp_first) or facts.all("ucx.lane"):
        return
    limits = facts.all("ucx.pcie")
    lanes = lanes + tcp_first
    yield Finding(
        "ucx-wrong-transport", 0.8, "major", f"UCX moves the data over TCP ({lanes[0].fields.get('interface') or lanes[0].fields.get('scope', '')})",
        lines_of([*lanes, *limits]),
        "Restrict UCX_TLS to what the transfer needs (rc,cuda_copy,cuda_ipc,sm), take the NIC out with UCX_NET_DEVICES, and check that UCX sees the RDMA device.",
        ["ucx_info -d | grep -e Transport -e Device", "UCX_PROTO_INFO=y"],
    )  # fmt: skip


_NO_WAY_TO_A_PEER = re.compile(r"self|sockcm|rdmacm|tcpcm|cm|(?:cuda|rocm|ze|gdr)(?:_\w+)?|knem|cma|xpmem|dmabuf")
"""Names in UCX_TLS that carry no message to another process: connection managers, copies within a process or a host (src/uct)."""


def _leads_to_a_peer(value: str) -> bool:
    """Whether this UCX_TLS allows any transport with active messages; a list of what is left out does."""
    names = [name.strip().lower() for name in value.split(",") if name.strip()]
    return not names or value.startswith("^") or any(_NO_WAY_TO_A_PEER.fullmatch(name) is None for name in names)


def ucx_has_no_transport(facts: Facts) -> Iterator[Finding]:
    """UCX names a transport that it does not have, or finds none at all.

    Fires on "transport ... is not available" and "no ... transport to ...". The build may lack it, or the device; where UCX_TLS lists no
    transport that leads to another process at all, that list is the cause. Silent when everything named was found.
    """
    missing = facts.all("ucx.transport_missing", "ucx.no_transport")
    if missing:
        lines = lines_of([*missing, *facts.setting("UCX_TLS", "UCX_NET_DEVICES")])
        copies = [e for e in missing if "copy across memory types" in e.text]
        built = bool(copies) or any(
            word in e.text for e in missing for word in ("cuda", "rocm", "rc", "dc", "ud", "ib")
        )
        unreached = [e for e in facts.all("ucx.no_transport") if "copy across" not in e.text]
        narrow = [s for s in active(facts, "UCX_TLS") if unreached and not _leads_to_a_peer(s.value)]
        if narrow:
            yield Finding(
                "ucx-setting", 0.7, "fatal", f"UCX_TLS={narrow[0].value} allows no transport to another process", lines_of([*unreached, *facts.setting("UCX_TLS")]),
                "Add a transport that reaches the peer (tcp, rc, sm), the same on every process, or unset UCX_TLS.", ["the same run without UCX_TLS", "env | grep UCX on both sides"],
            )  # fmt: skip
            built = False
        yield Finding(
            "ucx-built-without-feature", 0.65 if copies else (0.5 if built else (0.1 if narrow else 0.3)), "fatal", "UCX lacks a transport that was asked for", lines,
            "Use a UCX built with verbs and CUDA (ucx_info -b), and load its modules (UCX_MODULE_DIR).", ["ucx_info -d", "ucx_info -v"],
        )  # fmt: skip
        yield Finding(
            "ucx-wrong-transport", 0.15 if narrow else 0.4, "fatal", "no transport that UCX may use reaches the peer", lines,
            "Widen UCX_TLS and UCX_NET_DEVICES, or correct the names in them.", ["UCX_LOG_LEVEL=info", "ucx_info -d"],
        )  # fmt: skip


def slow_transfer_set_up(facts: Facts) -> Iterator[Finding]:
    """Setting a transfer up takes as long as connecting over TCP and copying would, while every other stage is fast.

    Fires when the `init` stage of NIXL's transfer takes over 50 ms and over 20 times the other stages. RDMA set-up takes under a millisecond
    (measured: ai-dynamo issue behind the report, 0.16 ms). Silent when all stages are slow alike.
    """
    stages = [(e, float(e.fields["ms"])) for e in facts.all("nixl.transfer_stage") if e.fields.get("ms")]
    slow = [e for e, ms in stages if e.fields.get("stage", "").startswith("init") and ms > 50]
    fast = [e for e, ms in stages if not e.fields.get("stage", "").startswith("init")]
    if slow and all(float(e.fields["ms"]) * 20 < float(slow[0].fields["ms"]) for e in fast):
        lines = lines_of([*slow, *fast])
        yield Finding(
            "ucx-built-without-feature", 0.45, "major", f"setting up a transfer takes {float(slow[0].fields['ms']):.0f} ms: no RDMA underneath",
            lines, "Use a UCX built with verbs (rdma-core at build time); ucx_info -d must list rc_mlx5.", ["ucx_info -d | grep Transport"],
        )  # fmt: skip
        yield Finding(
            "ucx-wrong-transport", 0.35, "major", "the transfer is set up over TCP", lines, "Check UCX_TLS and UCX_NET_DEVICES.", ["UCX_PROTO_INFO=y"],
        )  # fmt: skip


_RDMA_TRANSPORT = re.compile(r"(?:rc|dc|ud|gga|srd)(?:_\w+)?")
_GPU_TRANSPORT = re.compile(r"(?:cuda|rocm|gdr)_\w+")


def transports_missing(facts: Facts) -> Iterator[Finding]:
    """`ucx_info -d` lists no transport for a device that the host has.

    Fires when UCX's list has no RDMA transport although a port of the same host is active, and when it has none for GPU memory although the host
    has GPUs. The build lacks the module, or it cannot be loaded. Silent when either is listed, and where nothing is known of the host's devices.
    """
    by_place: dict[str, list[Device]] = defaultdict(list)
    for device in facts.hardware:
        if device.kind == "ucx_transport" and device.name:
            by_place[device.place].append(device)
    for place, listed in by_place.items():
        host = listed[0].host
        names = {name for d in listed for name in re.split(r"[/\s]", d.name or "")[:1]}
        ports = [p for p in facts.ports if p.active and not p.on_switch and p.node_kind != "netdev" and p.host == host]
        gpus = [d for d in facts.hardware if d.kind == "gpu" and d.host == host]
        lacking: list[tuple[str, Sequence[Port | Device]]] = []
        if ports and not any(_RDMA_TRANSPORT.fullmatch(name) for name in names):
            lacking.append(("RDMA", ports))
        if gpus and not any(_GPU_TRANSPORT.fullmatch(name) for name in names):
            lacking.append(("GPU memory", gpus))
        if lacking:
            what = " or ".join(name for name, _ in lacking)
            yield Finding(
                "ucx-built-without-feature", 0.65, "major", f"UCX on {host or place} lists no transport for {what}, and the host has the devices", lines_of([*listed[:4], *(d for _, found in lacking for d in found[:2])]),
                "Use a UCX configured --with-verbs and --with-cuda; see that libuct_ib.so and libuct_cuda.so load (UCX_MODULE_DIR).", ["ucx_info -b | grep -i -e cuda -e verbs", "UCX_LOG_LEVEL=debug ucx_info -d | grep -i module"],
            )  # fmt: skip


RULES = (transports_missing, plugin_failed, socket_fallback, ucx_over_tcp, ucx_has_no_transport, slow_transfer_set_up)
