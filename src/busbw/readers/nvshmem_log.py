"""What the NVSHMEM library prints: version, bootstrap, transports, IBGDA, symmetric heap, NICs of a PE. NVSHMEM 2 to 3.4.

Debug lines are `host:pid:tid [device] NVSHMEM INFO ...`; errors stand behind `file:function:line:` or `file:line: non-zero status: N`.
Messages of NICs that IBGDA refuses are in readers/messages.py. Source: NVIDIA/nvshmem src/host and src/modules at 2d7d25f (3.4.5); wordings of
3.1 to 3.3 from public issues.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

__all__ = ["READER"]

_TRANSPORT = "NVSHMEM src/host/transport/transport.cpp"
_INIT = "NVSHMEM src/host/init/init.cu"
_LOADER = "NVSHMEM src/host/bootstrap/bootstrap_loader.cpp"
_BOOTSTRAP = "NVSHMEM src/host/bootstrap/bootstrap.cpp"
_HEAP = "NVSHMEM src/host/mem/mem_heap.cpp"
_TOPO = "NVSHMEM src/host/topo/topo.cpp"
_IBGDA = "NVSHMEM src/modules/transport/ibgda/ibgda.cpp"
TEMPLATES: tuple[Template, ...] = (
    Template("nvshmem.version", "^NVSHMEM v{version:w}", "NVSHMEM_VERSION=1, nvshmem-info", "info"),
    Template("nvshmem.version_mismatch", "NVSHMEM device library version does not match with NVSHMEM host library version", _INIT, "error"),
    Template("nvshmem.version_mismatch", "NVSHMEM version in CUmodule or CUlibrary does not match with NVSHMEM host library", _INIT, "error"),
    # --- bootstrap ---------------------------------------------------------------------------------------------------------------------
    Template("nvshmem.bootstrap_library_missing", "Bootstrap unable to load '{library:s}'", _LOADER, "error"),
    Template("nvshmem.bootstrap_library_missing", "Bootstrap library dlopen failed for {library:w}", _LOADER, "error"),
    Template("nvshmem.bootstrap_failed", "Bootstrap plugin init failed for '{library:s}'", _LOADER, "error"),
    Template("nvshmem.bootstrap_failed", "Bootstrap plugin preinit failed for '{library:s}'", _LOADER, "error"),
    Template("nvshmem.bootstrap_failed", "bootstrap_loader_init returned error for mode {mode:w}", _BOOTSTRAP, "error"),
    Template("nvshmem.bootstrap_failed", "bootstrap_pmi_init returned error for mode {mode:w}", _BOOTSTRAP, "error"),
    Template("nvshmem.bootstrap_failed", "nvshmem_bootstrap failed", _INIT, "error"),
    Template("nvshmem.bootstrap_invalid", "Invalid bootstrap '{mode:s}'", _BOOTSTRAP, "error"),
    Template("nvshmem.bootstrap_version", "The selected bootstrap returned an incompatible version {found:d}", _LOADER, "error"),
    Template(
        "nvshmem.bootstrap_setting",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME set by environment to {value:w}",
        "NVSHMEM src/modules/bootstrap/uid",
        "info",
    ),
    # --- transports --------------------------------------------------------------------------------------------------------------------
    Template("nvshmem.transport_selected", "Successfully initialized the transport: {transport:w}. It will be used", _TRANSPORT, "info"),
    Template("nvshmem.transport_selected", "Successfully initialized the transport: {transport:w}", _TRANSPORT, "info"),
    Template("nvshmem.transport_skipped", "NVSHMEM INFO {transport:w} transport skipped in favor of: {chosen:w}", _TRANSPORT, "info"),
    Template("nvshmem.transport_failed", "init failed for remote transport: {transport:w}", _TRANSPORT, "warning"),
    Template("nvshmem.transport_failed", "init failed for transport: {transport:w}", _TRANSPORT, "error"),
    Template("nvshmem.transport_library_missing", "Unable to open the {library:w} transport. {error:s}", _TRANSPORT, "warning"),
    Template("nvshmem.no_transport", "Unable to initialize any transports. returning error.", _TRANSPORT, "error"),
    Template("nvshmem.p2p_disabled", "P2P access was disabled in the environment", _TRANSPORT, "warning"),
    Template("nvshmem.ibgda_disabled", "IBGDA Disabled by the environment", _TRANSPORT, "info"),
    # --- IBGDA and queue pairs ---------------------------------------------------------------------------------------------------------
    Template("nvshmem.address_handle_failed", "NULL value Unable to create ah", _IBGDA, "error"),
    Template("nvshmem.ibgda_qp_failed", "non-zero status: {code:d} create DCT share err", _IBGDA, "error"),
    Template("nvshmem.ibgda_devices_partly", "Failed to initialize all selected devices. Perf may be limited", _IBGDA, "warning"),
    Template("nvshmem.ibgda_fallback", "ibgda_alloc_and_map_qp_uar with GPU as handler failed", _IBGDA, "warning"),
    Template("nvshmem.ibgda_handler", "NVSHMEM_IBGDA_NIC_HANDLER={handler:w} requires GDRCopy", _IBGDA, "error"),
    Template("nvshmem.atomics_missing", "device {device:w} does not support all necessary atomic operations", _IBGDA, "warning"),
    Template("nvshmem.hca_unknown", "not find user specified HCA name: {device:w} port: {port:d}", _IBGDA, "warning"),
    Template("nvshmem.hca_conflict", "Found conflicting parameters NVSHMEM_HCA_LIST and NVSHMEM_HCA_PE_MAPPING", _IBGDA, "warning"),
    Template("nvshmem.port_unusable", "found inactive port or port with non IB/RoCE link layer protocol", _IBGDA, "info"),
    # --- symmetric heap ----------------------------------------------------------------------------------------------------------------
    Template("nvshmem.heap", "heap base: {base:x} NVSHMEM_SYMMETRIC_SIZE {size_bytes:d} total {total_bytes:d}", _HEAP, "info"),
    Template("nvshmem.heap_kind", "NVSHMEM symmetric heap kind = {kind:w} selected", _INIT, "info"),
    Template("nvshmem.heap_failed", "nvshmem reserve static heaps failed", _INIT, "error"),
    Template("nvshmem.heap_failed", "nvshmem register static heaps failed", _INIT, "error"),
    Template("nvshmem.heap_failed", "nvshmem setup heap failed", "NVSHMEM 2 src/init/init.cu", "error"),
    Template("nvshmem.heap_failed", "mmap mspace alloc failed", _HEAP, "error"),
    Template("nvshmem.heap_asymmetric", "symmetry check for size failed", _HEAP, "error"),
    Template("nvshmem.heap_asymmetric", "non-zero status: {code:d} symmetry check failed", _HEAP, "error"),
    # --- where PEs and NICs are --------------------------------------------------------------------------------------------------------
    Template("nvshmem.pes_uneven", "NVSHMEM requires the same number of PEs on all nodes ({pes:d} PEs on {host:w})", _INIT, "error"),
    Template("nvshmem.pe_distribution", "PE distribution has been identified as {distribution:w}", _INIT, "info"),
    Template("nvshmem.nic_distance", "Our PE is connected to a NIC with pci distance {distance:w}.", _TOPO, "info"),
    Template("nvshmem.nic_missing", "No NICs were assigned to our PE", _TOPO, "error"),
    Template("nvshmem.topology_failed", "nvshmem detect topo failed", _INIT, "error"),
    # --- start and end -----------------------------------------------------------------------------------------------------------------
    Template("nvshmem.connect_failed", "non-zero status: {code:d} connect EPS failed", _TRANSPORT, "error"),
    Template("nvshmem.init_failed", "nvshmem initialization failed, exiting", _INIT, "error"),
    Template("nvshmem.init_failed", "aborting due to error in nvshmemi_init_thread", _INIT, "error"),
    Template("nvshmem.init_failed", "nvshmem common init failed", _INIT, "error"),
    Template("nvshmem.used_before_init", "NVSHMEM API called before NVSHMEM initialization has completed", _INIT, "error"),
    Template("nvshmem.used_before_init", "nvshmem API called before nvshmem_init", _INIT, "error"),
    Template("nvshmem.proxy_failed", "cuFlushGPUDirectRDMAWrites() failed in the proxy thread", "NVSHMEM src/host/proxy/proxy.cpp", "error"),
)  # fmt: skip


class NvshmemLogReader(Lines):
    """Messages of the NVSHMEM library."""

    name = "nvshmem-log"
    templates: Sequence[Template] = TEMPLATES


READER = NvshmemLogReader()
