"""GPU-initiated RDMA (NVSHMEM IBGDA): permissions, driver setting, NIC."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def doorbells_unmapped(facts: Facts) -> Iterator[Finding]:
    """The driver does not let the GPU map the NIC's doorbells.

    Fires when cudaHostRegister of I/O memory is refused or NICs are skipped because their UAR cannot be mapped (NVSHMEM ibgda.cpp).
    An illegal memory access afterwards is a consequence. Silent on other failures of cudaHostRegister.
    """
    events = facts.all(
        "nvshmem.uar_unmapped",
        "nvshmem.register_refused",
        "nvshmem.gpu_map_failed",
        "nvshmem.buffer_refused",
        "nvshmem.ibgda_fallback",
    )
    if events:
        certain = facts.all("nvshmem.register_refused", "nvshmem.uar_unmapped")
        yield Finding(
            "ibgda-peermapping-override", 0.85 if certain else 0.6, "fatal", "the NVIDIA driver does not allow mapping NIC doorbells into the GPU", lines_of(events),
            'Load the driver with NVreg_RegistryDwords="PeerMappingOverride=1;" (and NVreg_EnableStreamMemOPs=1) and reboot, or use the CPU-assisted NIC handler.',
            ["grep RegistryDwords /proc/driver/nvidia/params"],
        )  # fmt: skip


def device_refused(facts: Facts) -> Iterator[Finding]:
    """The process may not create the device objects that IBGDA needs.

    Fires when a DEVX object or UAR cannot be allocated. Containers without the capability or device node do that; a NIC out of UARs can too.
    Silent on other NULL values of NVSHMEM's checks.
    """
    events = facts.all("nvshmem.uar_denied", "nvshmem.devx_denied")
    if events:
        yield Finding(
            "ibgda-device-permission", 0.7, "fatal", "a DEVX object of the NIC was refused", lines_of(events),
            "Run with CAP_IPC_LOCK and CAP_NET_RAW, pass /dev/infiniband (and the IMEX channel on NVL72); privileged containers work.",
            ["the same command in a privileged container", "ls -l /dev/infiniband inside the container"],
        )  # fmt: skip
        yield Finding(
            "ib-resource-exhaustion", 0.2, "fatal", "the NIC has no UAR left", lines_of(events), "End other users of DEVX on this NIC; check log_max_uar of the firmware.",
            ["mlxconfig -d DEV q | grep UAR"],
        )  # fmt: skip


def unsupported_nic(facts: Facts) -> Iterator[Finding]:
    """No NIC of the host can do GPU-initiated RDMA.

    Fires when NVSHMEM says that IBGDA does not support the device, or finds no device for it (it needs mlx5, ConnectX-6 and later).
    Silent when a supported NIC failed for another reason.
    """
    events = facts.all("nvshmem.nic_unsupported", "nvshmem.no_device")
    if events and not facts.all("nvshmem.uar_unmapped", "nvshmem.uar_denied"):
        yield Finding(
            "ibgda-unsupported-nic", 0.65, "fatal", "no NIC here can do GPU-initiated RDMA", lines_of(events),
            "Use the IBRC (proxy) transport: NVSHMEM_IB_ENABLE_IBGDA=0, or NICs of ConnectX-6 or later with mlx5.", ["ibv_devinfo | grep -e hca_id -e vendor_part_id"],
        )  # fmt: skip


RULES = (doorbells_unmapped, device_refused, unsupported_nic)
