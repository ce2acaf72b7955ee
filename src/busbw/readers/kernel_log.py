"""Kernel log (dmesg, journalctl -k, syslog): NVIDIA Xid and SXid, PCIe errors and links, IOMMU, NICs, killed and stuck processes, file systems.

    [  123.456789] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
    [Mon Nov 30 09:00:00 2026] mlx5_core 0000:0b:00.0: Port module event: module 0, Cable unplugged
    2026-11-30T09:00:00.123456+00:00 host0 kernel: pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0

A time of day goes to `time_ns` (dmesg -T and syslog are local and have no zone, and are taken as UTC); seconds since the boot become the
field `uptime_s`. Every event has `bus_id` (dddd:bb:dd.f) and `driver` where the kernel prints them in front of the message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from busbw.readers.base import Lines, Template
from busbw.readers.plain_rows import bus_id_of

__all__ = ["READER", "KernelLogReader"]

TEMPLATES: tuple[Template, ...] = (
    Template("kernel.xid", "NVRM: Xid (PCI:{bus_id:w}): {xid:d}, {detail:s}", "NVIDIA driver", "error"),
    Template("kernel.xid", "NVRM: Xid ({bus_id:w}): {xid:d}, {detail:s}", "NVIDIA driver, before 400", "error"),
    Template("kernel.xid", "NVRM: Xid (PCI:{bus_id:w}): {xid:d}", "NVIDIA driver", "error"),
    Template(
        "kernel.sxid_detail",
        "SXid (PCI:{bus_id:w}): {sxid:d}, Data {data:s}",
        "nvidia-nvswitch, behind a kernel.sxid",
        "info",
    ),
    Template(
        "kernel.sxid_detail",
        "SXid (PCI:{bus_id:w}): {sxid:d}, Severity {severity:d} Engine instance{rest:s}",
        "nvidia-nvswitch",
        "info",
    ),
    Template("kernel.sxid", "SXid (PCI:{bus_id:w}): {sxid:d}, {detail:s}", "nvidia-nvswitch", "error"),
    Template(
        "kernel.bar1_unaligned",
        "The peer DMA address {address:x} is not aligned at {boundary:x}",
        "NVIDIA driver kern_bus_gh100.c, P2P over BAR1",
        "error",
    ),
    Template(
        "kernel.bar1_mapping_failed",
        "IOMMU mapping failed from GPU{first:d} to GPU{second:d}",
        "NVIDIA driver kern_bus_gh100.c, P2P over BAR1",
        "error",
    ),
    Template("kernel.gpu_lost", "~GPU {bus_id:w} has fallen off the bus", "NVIDIA driver", "error"),
    Template("kernel.gpu_lost", "~fallen off the bus", "NVIDIA driver", "error"),
    Template(
        "kernel.gpu_probe_failed",
        "NVRM: The NVIDIA probe routine failed for {devices:d} device(s)",
        "NVIDIA driver",
        "error",
    ),
    Template("kernel.api_mismatch", "NVRM: API mismatch: {rest:s}", "NVIDIA driver", "error"),
    Template("kernel.gpu_named", "NVRM: The NVIDIA GPU {bus_id:w}", "NVIDIA driver", "info"),
    Template("kernel.gpu_init_failed", "NVRM: GPU {bus_id:w}: RmInitAdapter failed{rest:s}", "NVIDIA driver", "error"),
    Template("kernel.pcie_status", "error status/mask={status:x}/{mask:x}", "drivers/pci/pcie/aer.c", "info"),
    Template(
        "kernel.pcie_error", "PCIe Bus Error: severity={severity:s}, type={type:s}", "drivers/pci/pcie/aer.c", "warning"
    ),
    Template("kernel.pcie_aer", "AER: {severity:s} error {rest:s}", "drivers/pci/pcie/aer.c", "warning"),
    Template(
        "kernel.pcie_limited",
        "{device:s}: {available:f} Gb/s available PCIe bandwidth, limited by {speed:f} GT/s PCIe x{width:d} link at {bus_id:w} (capable of {capable:f} Gb/s",
        "drivers/pci/pci.c",
        "warning",
    ),
    Template("kernel.pcie_recovery", "AER: device recovery {outcome:w}", "drivers/pci/pcie/err.c", "info"),
    Template(
        "kernel.pcie_link_down", "pciehp: Slot({slot:s}): Link Down", "drivers/pci/hotplug/pciehp_ctrl.c", "error"
    ),
    Template(
        "kernel.pcie_link_down",
        "pciehp: Slot({slot:s}): Card not present",
        "drivers/pci/hotplug/pciehp_ctrl.c",
        "error",
    ),
    Template(
        "kernel.iommu_fault",
        "DMAR: [{what:s}] Request device [{bus_id:w}] {_gap:s}fault addr {address:x} [fault reason {reason:x}] {detail:s}",
        "drivers/iommu/intel/dmar.c",
        "error",
    ),
    Template("kernel.iommu_fault", "DMAR: {what:s}fault addr{rest:s}", "drivers/iommu", "error"),
    Template("kernel.iommu_fault", "AMD-Vi: Event logged [{what:s}", "drivers/iommu/amd", "error"),
    Template("kernel.iommu_fault", "AMD-Vi: {what:s}IO_PAGE_FAULT{rest:s}", "drivers/iommu/amd", "error"),
    Template("kernel.iommu_fault", "IO_PAGE_FAULT {rest:s}", "drivers/iommu/amd", "error"),
    Template("kernel.iommu_on", "DMAR: IOMMU enabled", "drivers/iommu/intel", "info"),
    Template("kernel.iommu_on", "~iommu: Default domain type: {type:w}", "drivers/iommu", "info"),
    Template("kernel.command_line", "Command line: {arguments:s}", "init/main.c", "info"),
    Template("kernel.command_line", "BOOT_IMAGE={arguments:s}", "/proc/cmdline", "info"),
    Template("kernel.nic_link", "mlx5_core {bus_id:w} {interface:w}: Link {state:w}", "mlx5_core en_main.c", "warning"),
    Template("kernel.nic_link", "{driver:s} {interface:w}: NIC Link is {state:w}", "network drivers", "warning"),
    Template("kernel.nic_link", "infiniband {device:w}: Port: {port:d} Link {state:w}", "rdma drivers", "warning"),
    Template(
        "kernel.nic_link", "Port module event: module {module:d}, Cable {state:w}", "mlx5_core events.c", "warning"
    ),
    Template(
        "kernel.nic_module_error",
        "Port module event[error]: module {module:d}, {what:s}",
        "mlx5_core events.c",
        "error",
    ),
    Template("kernel.nic_hot", "High temperature on sensors with bit set {sensors:s}", "mlx5_core events.c", "error"),
    Template(
        "kernel.nic_low_power", "Detected insufficient power on the PCIe slot ({power:w})", "mlx5_core events.c", "info"
    ),
    Template(
        "kernel.nic_command_timeout",
        ": {command:w} timeout. Will cause a leak of a command resource",
        "mlx5_core cmd.c",
        "error",
    ),
    Template("kernel.nic_health", "Health issue observed, {what:s}", "mlx5_core health.c, 5.15", "error"),
    Template("kernel.nic_health", "Fatal error {code:d} detected", "mlx5_core health.c", "error"),
    Template(
        "kernel.nic_tx_timeout",
        "NETDEV WATCHDOG: {interface:w} ({net_driver:w}): transmit queue {queue:d} timed out",
        "net/sched/sch_generic.c",
        "error",
    ),
    Template(
        "kernel.nic_tx_timeout",
        "NETDEV WATCHDOG: CPU: {cpu:d}: transmit queue {queue:d} timed out",
        "net/sched/sch_generic.c, 6.9",
        "error",
    ),
    Template(
        "kernel.nic_link",
        "mlx5_core {bus_id:w} {rest:s}Port module event{detail:s}: Cable {state:w}",
        "mlx5_core port.c",
        "warning",
    ),
    Template(
        "kernel.nic_health", "mlx5_core {bus_id:w}: {what:s}health compromised{rest:s}", "mlx5_core health.c", "error"
    ),
    Template(
        "kernel.nic_health", "mlx5_core {bus_id:w}: {what:s}device's health{rest:s}", "mlx5_core health.c", "error"
    ),
    Template(
        "kernel.fabric_out_of_sync", "NV_ERR_FABRIC_STATE_OUT_OF_SYNC", "NVIDIA driver mem_multicast_fabric.c", "error"
    ),
    Template("kernel.fabric_manager_absent", "NV_ERR_FABRIC_MANAGER_NOT_PRESENT", "NVIDIA driver", "error"),
    Template("kernel.nic_limit", "mlx5_cmd_out_err:{rest:s} status limits exceeded", "mlx5_core cmd.c, 5.16", "error"),
    Template(
        "kernel.nic_command_failed",
        "mlx5_cmd_out_err:{_where:s}): {command:w} op_mod({op_mod:x}) failed, status {status:s}, syndrome ({syndrome:x}",
        "mlx5_core cmd.c, 5.16; often ACCESS_REG of a register that the firmware does not have",
        "info",
    ),
    Template(
        "kernel.efa_timeout",
        "The device didn't send any completion for admin cmd {command:s}",
        "drivers/infiniband/hw/efa/efa_com.c",
        "error",
    ),
    Template(
        "kernel.efa_timeout",
        "The device sent a completion but the driver didn't receive any MSI-X interrupt for admin cmd {command:s}",
        "drivers/infiniband/hw/efa/efa_com.c",
        "error",
    ),
    Template("kernel.efa_closed", "Admin queue is closed", "drivers/infiniband/hw/efa/efa_com.c", "error"),
    Template("kernel.nic_limit", "mlx5_cmd_check:{rest:s} status limits exceeded", "mlx5_core cmd.c", "error"),
    Template("kernel.registration_failed", "Failed to register mr [{status:d}]", "drivers/infiniband/hw/efa", "error"),
    Template("kernel.registration_failed", "async reg mr failed. status {status:d}", "mlx5_ib mr.c", "error"),
    Template("kernel.killed", "Out of memory: Killed process {pid:d} ({name:s})", "mm/oom_kill.c", "error"),
    Template(
        "kernel.killed", "Memory cgroup out of memory: Killed process {pid:d} ({name:s})", "mm/oom_kill.c", "error"
    ),
    Template(
        "kernel.killed",
        "Memory cgroup out of memory: Kill process {pid:d} ({name:s}) score",
        "mm/oom_kill.c, to 4.18",
        "error",
    ),
    Template("kernel.killed", "Out of memory: Kill process {pid:d} ({name:s}) score", "mm/oom_kill.c, to 5.2", "error"),
    Template(
        "kernel.oom_invoked",
        "{head:s} {name:w} invoked oom-killer: gfp_mask={mask:s}",
        "mm/oom_kill.c dump_header; the process that asked for memory, not always the one that is killed",
        "error",
    ),
    Template(
        "kernel.oom_invoked", "{name:w} invoked oom-killer: gfp_mask={mask:s}", "mm/oom_kill.c dump_header", "error"
    ),
    Template("kernel.oom_cgroup", "mem_cgroup_out_of_memory+", "mm/memcontrol.c, in the stack below", "info"),
    Template("kernel.segfault", "{head:s} {name:w}[{pid:d}]: segfault at {address:x}", "arch fault handler", "error"),
    Template("kernel.segfault", "{name:w}[{pid:d}]: segfault at {address:x}", "arch fault handler", "error"),
    Template(
        "kernel.oom_kill",
        "oom-kill:constraint={constraint:w},nodemask={rest:s},task={name:s},pid={pid:d},uid={_uid:d}",
        "mm/oom_kill.c",
        "info",
    ),
    Template(
        "kernel.soft_lockup",
        "BUG: soft lockup - CPU#{cpu:d} stuck for {seconds:d}s! [{task:s}]",
        "kernel/watchdog.c",
        "error",
    ),
    Template("kernel.hard_lockup", "Watchdog detected hard LOCKUP on cpu {cpu:d}", "kernel/watchdog_perf.c", "error"),
    Template("kernel.rcu_stall", "self-detected stall on CPU", "kernel/rcu/tree_stall.h", "error"),
    Template("kernel.rcu_stall", "detected stalls on CPUs/tasks", "kernel/rcu/tree_stall.h", "error"),
    Template(
        "kernel.hung_task",
        "INFO: task {name:s} blocked for more than {seconds:d} seconds",
        "kernel/hung_task.c",
        "error",
    ),
    Template("kernel.nfs_stalled", "nfs: server {server:w} not responding, {what:s}", "net/sunrpc/clnt.c", "error"),
    Template("kernel.nfs_restored", "nfs: server {server:w} OK$", "net/sunrpc/clnt.c", "info"),
    Template(
        "kernel.lustre_error",
        "LustreError: 11-0: {target:w}: operation {operation:w} to node {node:w} failed: rc = {code:d}",
        "lustre ptlrpc/client.c",
        "error",
    ),
    Template(
        "kernel.lustre_lost",
        "Lustre: {target:w}: Connection to {service:w} (at {node:w}) was lost; {what:s}",
        "lustre ptlrpc/import.c",
        "error",
    ),
    Template(
        "kernel.lustre_restored",
        "Lustre: {target:w}: Connection restored to {service:w} (at {node:w})",
        "lustre ptlrpc/import.c",
        "info",
    ),
    Template(
        "kernel.lustre_evicted",
        "This client was evicted by {service:w}; {what:s}",
        "lustre ptlrpc/import.c",
        "error",
    ),
    Template("kernel.machine_check", "mce: [Hardware Error]: {what:s}", "arch/x86/kernel/cpu/mce", "info"),
    Template("kernel.gpu_uuid", "NVRM: GPU at PCI:{bus_id:w}: {uuid:w}", "NVIDIA driver, before an Xid", "info"),
    Template("kernel.peermem_unknown_symbol", "nvidia_peermem: Unknown symbol {symbol:w}", "kernel/module", "error"),
    Template("kernel.peermem_unknown_symbol", "nv_peer_mem: Unknown symbol {symbol:w}", "kernel/module", "error"),
    Template(
        "kernel.peermem_unknown_symbol",
        "nvidia_peermem: disagrees about version of symbol {symbol:w}",
        "kernel/module",
        "error",
    ),
    Template(
        "kernel.peermem_unknown_symbol",
        "nv_peer_mem: disagrees about version of symbol {symbol:w}",
        "kernel/module",
        "error",
    ),
    *(
        Template("system.peer_module_refused", f"~could not insert '{module}': {{error:s}}", "modprobe", "error")
        for module in ("nv_peer_mem", "nvidia_peermem", "nvidia-peermem")
    ),
    *(
        Template("system.peer_module_refused", f"~Module {module} not found in directory", "modprobe", "error")
        for module in ("nv_peer_mem", "nvidia_peermem", "nvidia-peermem")
    ),
    Template("kernel.peermem", "nvidia_peermem{detail:s}: {what:s}", "nvidia_peermem", "info"),
)


_UPTIME = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")
_BUS_ID = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_DEVICE = re.compile(rf"(?:^|\] )(?P<driver>[a-z][\w-]{{1,30}}) (?P<bus_id>{_BUS_ID}):? ", re.IGNORECASE)
_PROCESS = re.compile(r"pid='?(\d{1,10})'?(?:, name='?([^,']{1,64})'?)?")
_SOURCE = re.compile(rf"(?:received|from):? ({_BUS_ID})")
_AMD_DEVICE = re.compile(r"device=((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_TASK = re.compile(r"(.{1,64}):(\d{1,10})")


class KernelLogReader(Lines):
    """Messages of the kernel and of the NVIDIA driver."""

    name = "kernel-log"
    templates: Sequence[Template] = TEMPLATES

    def completed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """With the fields uptime_s, driver and bus_id of the device in front, the process of an Xid, the link of an SXid, the source of an AER line."""
        names = events.column("event").to_pylist()
        texts = events.column("text").to_pylist()
        fields = [
            _completed(name or "", text or "", dict(known or ()))
            for name, text, known in zip(names, texts, events.column("fields").to_pylist(), strict=True)
        ]
        at = events.schema.get_field_index("fields")
        column = pa.array([list(known.items()) for known in fields], type=events.schema.field(at).type)
        return events.set_column(at, events.schema.field(at), column)


READER = KernelLogReader()


def _completed(event: str, text: str, fields: dict[str, str]) -> dict[str, str]:
    if (uptime := _UPTIME.match(text)) is not None:
        fields["uptime_s"] = uptime[1]
    if (device := _DEVICE.search(text)) is not None:
        fields.setdefault("driver", device["driver"])
        fields.setdefault("bus_id", device["bus_id"])
    if event == "kernel.iommu_fault" and (named := _AMD_DEVICE.search(text)) is not None:
        fields["bus_id"] = named[1]
    if "bus_id" in fields:
        fields["bus_id"] = bus_id_of(fields["bus_id"].rstrip(":")) or fields["bus_id"]
    if event == "kernel.xid" and (process := _PROCESS.search(text)) is not None:
        fields["pid"] = process[1]
        if process[2]:
            fields["name"] = process[2]
    elif event == "kernel.sxid" and (link := _LINK.search(text)) is not None:
        fields["link"] = link[1]
    elif event == "kernel.pcie_aer" and (source := _SOURCE.search(text)) is not None:
        fields["source"] = bus_id_of(source[1]) or source[1]
    elif event in ("kernel.hung_task", "kernel.soft_lockup"):
        task = _TASK.fullmatch(fields.get("name") or fields.get("task") or "")
        if task is not None:
            fields["name"], fields["pid"] = task[1], task[2]
    return fields
