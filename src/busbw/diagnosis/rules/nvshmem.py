"""NVSHMEM's own words: versions, processing elements, heap, transports, NICs."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding, Severity

__all__ = ["RULES"]

_REPLACED = "Use the same NVSHMEM for the program's device code, its host library and its plugins; rebuild the program."

_MEANINGS: tuple[tuple[str, tuple[str, ...], str, float, Severity, str, str], ...] = (
    ("version", ("nvshmem.version_mismatch", "nvshmem.bootstrap_version"), "plugin-library-version-mismatch", 0.8, "fatal", "NVSHMEM's parts are of different versions", _REPLACED),
    ("library", ("nvshmem.transport_library_missing",), "plugin-library-version-mismatch", 0.4, "major", "a transport library of NVSHMEM cannot be loaded", "Put NVSHMEM's lib folder and rdma-core on the loader's path; see what ldd misses."),
    ("uneven", ("nvshmem.pes_uneven", "nvshmem.heap_asymmetric"), "env-mismatch-between-ranks", 0.7, "fatal", "processing elements are not the same on all hosts", "Start the same number of processes on every host, with the same NVSHMEM_SYMMETRIC_SIZE."),
    ("heap", ("nvshmem.heap_failed",), "gpu-oom", 0.45, "fatal", "NVSHMEM's heap cannot be made or registered", "Lower NVSHMEM_SYMMETRIC_SIZE, or free GPU memory before it starts; check that the NIC can register GPU memory."),
    ("handle", ("nvshmem.address_handle_failed",), "roce-gid-index", 0.5, "fatal", "no address handle to a peer can be made", "Set NVSHMEM_IB_GID_INDEX to the RoCE v2 entry of show_gids."),
    ("queue", ("nvshmem.ibgda_qp_failed",), "ib-resource-exhaustion", 0.4, "fatal", "the NIC makes no queue pair for GPU-initiated RDMA", "Fewer NVSHMEM_IBGDA_NUM_RC_PER_PE and DCIs; check the firmware's limits."),
    ("atomics", ("nvshmem.atomics_missing",), "ibgda-unsupported-nic", 0.5, "major", "a NIC lacks atomic operations that NVSHMEM needs", "Choose another NIC with NVSHMEM_HCA_LIST."),
    ("distance", ("nvshmem.nic_missing",), "numa-misplacement", 0.4, "major", "a process has no NIC near its GPU", "Map NICs by hand with NVSHMEM_HCA_PE_MAPPING; see nvidia-smi topo -m."),
    ("switched off", ("nvshmem.p2p_disabled",), "env-p2p-level-forced", 0.6, "major", "a variable turns access between GPUs off for NVSHMEM", "Unset NVSHMEM_DISABLE_P2P."),
    ("transport", ("nvshmem.no_transport", "nvshmem.transport_failed"), "net-plugin-init-failed", 0.45, "fatal", "a transport of NVSHMEM does not start", "See the lines before with NVSHMEM_DEBUG=INFO; choose another with NVSHMEM_REMOTE_TRANSPORT."),
)  # fmt: skip
"""What it is about, events, kind, confidence, severity, summary, remedy. Confidences are guesses: the messages name a step, not its cause."""


def said_by_nvshmem(facts: Facts) -> Iterator[Finding]:
    """NVSHMEM says which of its steps failed.

    Fires on its messages about versions that do not fit, uneven processing elements, its heap, address handles, queue pairs, atomics and
    transports (table above). A transport that fails is the weakest: what made it fail is said by other lines. Silent about a transport that is
    skipped in favour of another one, and about variables that are only printed.
    """
    for about, names, kind, confidence, severity, summary, remedy in _MEANINGS:
        events = facts.all(*names)
        if events:
            others = (about == "queue" and facts.all("nvshmem.address_handle_failed")) or (
                about == "transport"
                and facts.all(
                    "nvshmem.uar_denied",
                    "nvshmem.devx_denied",
                    "nvshmem.uar_unmapped",
                    "nvshmem.register_refused",
                    "nvshmem.no_device",
                )
            )
            yield Finding(
                kind, confidence / 2 if others else confidence, severity, summary, lines_of(events), remedy, ["NVSHMEM_DEBUG=INFO NVSHMEM_DEBUG_SUBSYS=INIT,TRANSPORT in the same run"],
            )  # fmt: skip


RULES = (said_by_nvshmem,)
