"""Peer access between GPUs: NCCL src/transport/p2p.cc, CUDA error texts, nvidia-smi topo -p2p."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("hang_until_p2p_is_off", "pcie-acs-enabled", """
        > The job hangs at the first all-reduce; NCCL_P2P_DISABLE=1 works around it.
    """),
    near_miss("hang_until_p2p_is_off", "the variable is part of the job", """
        export NCCL_P2P_DISABLE=1
    """),
    near_miss("hang_until_p2p_is_off", "NVLink connects the GPUs", """
        The job hangs at the first all-reduce; NCCL_P2P_DISABLE=1 works around it.
                GPU0    GPU1    CPU Affinity    NUMA Affinity
        GPU0     X      NV12    0-31    0
        GPU1    NV12     X      0-31    0
    """),
    fires("access_refused", "p2p-unsupported-misdetected", """
        > cn91:70:99 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC
        > cn91:70:99 [1] transport/p2p.cc:275 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'
    """),
    fires("access_refused", "cumem-host-no-p2p", """
        > cn91:70:99 [1] include/alloc.h:238 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'
    """, why="a host buffer"),
    near_miss("access_refused", "peer access in use", """
        cn91:70:99 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC
        cn91:70:99 [1] NCCL INFO Connected all rings
    """),
    near_miss("access_refused", "another CUDA error at the same place", """
        cn91:70:99 [1] transport/p2p.cc:275 NCCL WARN Cuda failure 2 'out of memory'
    """),
    fires("cards_without_p2p", "p2p-unsupported-gpu", """
        > #  Rank  0 Group  0 Pid  71001 on      cn91 device  0 [0000:41:00] NVIDIA GeForce RTX 3090
        > #  Rank  1 Group  0 Pid  71001 on      cn91 device  1 [0000:61:00] NVIDIA GeForce RTX 3090
        > cn91:70:99 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
    """, severity="minor"),
    fires("cards_without_p2p", "p2p-unsupported-gpu", """
        > cn91:70:99 [1] NCCL INFO Could not enable P2P between dev 1(=61000) and dev 0(=41000)
    """, severity="minor", why="NCCL says so"),
    near_miss("cards_without_p2p", "cards of which nothing says that they are staged", """
        #  Rank  0 Group  0 Pid  71001 on      cn91 device  0 [0000:41:00] NVIDIA GeForce RTX 3090
        cn91:70:99 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer
    """),
    near_miss("cards_without_p2p", "data-centre cards on shared memory", """
        #  Rank  0 Group  0 Pid  71001 on      cn91 device  0 [0000:41:00] NVIDIA A100-SXM4-80GB
        cn91:70:99 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
    """),
    fires("pairs_without_access", "p2p-unsupported-gpu", """
                GPU0    GPU1
        > GPU0   X       CNS
        GPU1   CNS     X
    """, severity="minor"),
    near_miss("pairs_without_access", "the driver offers it", """
                GPU0    GPU1
        GPU0   X       OK
        GPU1   OK      X
    """),
    fires("mapping_over_bar1_failed", "iommu-p2p", """
        > [  801.52] NVRM: _kbusCreateStaticBar1IOMMUMapping: The peer DMA address 0x7f3000100000 is not aligned at 0x20000000
        > [  801.53] NVRM: _kbusCreateStaticBar1IOMMUMappingForGpuPair: IOMMU mapping failed from GPU2 to GPU3
    """, severity="fatal", why="kern_bus_gh100.c"),
    near_miss("mapping_over_bar1_failed", "the mapping is made and removed", """
        [  801.52] NVRM: kbusCreateP2PMappingForBar1P2P_GH100: added PCIe BAR1 P2P mapping between GPU2 and GPU3
    """),
    fires("access_refused", "p2p-unsupported-misdetected", """
        > cn33:77:77 [1] allocator.cc:97 (ncclMemAlloc) NCCL WARN Cuda failure 205 'mapping of buffer object failed'
    """, why="ncclMemAlloc maps device memory"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
