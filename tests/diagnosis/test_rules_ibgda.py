"""GPU-initiated RDMA: NVSHMEM src/modules/transport/ibgda/ibgda.cpp."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("doorbells_unmapped", "ibgda-peermapping-override", """
        > WARN: cudaHostRegister with IoMemory failed with error=800. We may need to use a fallback path.
        > WARN: GPU cannot map UAR of device mlx5_7. Skipping...
        an illegal memory access was encountered
    """, severity="fatal"),
    near_miss("doorbells_unmapped", "another use of cudaHostRegister", """
        RuntimeError: cudaHostRegister failed: invalid argument
    """),
    near_miss("doorbells_unmapped", "UARs are mapped", """
        NVSHMEM INFO ibgda: GPU mapped UAR of device mlx5_7
    """),
    fires("device_refused", "ibgda-device-permission", """
        > /src/nvshmem/src/modules/transport/ibgda/ibgda.cpp:2011: NULL value cannot allocate mlx5dv_devx_uar
    """, severity="fatal"),
    near_miss("device_refused", "another NULL value", """
        /src/nvshmem/src/modules/transport/ibgda/ibgda.cpp:2011: NULL value mem registration failed
    """),
    fires("unsupported_nic", "ibgda-unsupported-nic", """
        > device bnxt_re0 is not enumerated as an mlx5 device. Skipping...
    """),
    near_miss("unsupported_nic", "a NIC that NVSHMEM takes", """
        NVSHMEM INFO Begin - Enumerating IB devices: mlx5_0, mlx5_1
    """),
    near_miss("unsupported_nic", "the doorbell is what it lacks", """
        device bnxt_re0 is not enumerated as an mlx5 device. Skipping...
        WARN: GPU cannot map UAR of device mlx5_7. Skipping...
    """),
    near_miss("device_refused", "UCX's queue pair, not IBGDA's", """
        [1741000000.100000] [cn81:410  :0]     ib_mlx5_dv.c:231  UCX  ERROR mlx5dv_devx_qp_modify(503) failed, syndrome 1f2a: Invalid argument
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
