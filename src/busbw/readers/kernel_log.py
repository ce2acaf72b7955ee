"""Kernel log (dmesg, journalctl -k, syslog): NVIDIA Xid and SXid, PCIe errors and links, IOMMU, NIC ports, killed processes."""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

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
    Template("kernel.nic_limit", "mlx5_cmd_check:{rest:s} status limits exceeded", "mlx5_core cmd.c", "error"),
    Template("kernel.registration_failed", "Failed to register mr [{status:d}]", "drivers/infiniband/hw/efa", "error"),
    Template("kernel.registration_failed", "async reg mr failed. status {status:d}", "mlx5_ib mr.c", "error"),
    Template("kernel.killed", "Out of memory: Killed process {pid:d} ({name:s})", "mm/oom_kill.c", "error"),
    Template(
        "kernel.killed", "Memory cgroup out of memory: Killed process {pid:d} ({name:s})", "mm/oom_kill.c", "error"
    ),
    Template("kernel.segfault", "{head:s} {name:w}[{pid:d}]: segfault at {address:x}", "arch fault handler", "error"),
    Template("kernel.segfault", "{name:w}[{pid:d}]: segfault at {address:x}", "arch fault handler", "error"),
    Template("kernel.peermem", "nvidia_peermem{detail:s}: {what:s}", "nvidia_peermem", "info"),
)


class KernelLogReader(Lines):
    """Messages of the kernel and of the NVIDIA driver."""

    name = "kernel-log"
    templates: Sequence[Template] = TEMPLATES


READER = KernelLogReader()
