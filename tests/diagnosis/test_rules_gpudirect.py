"""GPUDirect RDMA: NCCL src/transport/net.cc appends /GDRDMA to connections that use it; src/graph/paths.cc says why not."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("one_host_stages", "gdr-peermem-missing", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
        > cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
        > cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0
        > cn22:774:812 [0] NCCL INFO Channel 01/0 : 2[0] -> 0[0] [send] via NET/IB/0
        > cn21:880:931 [0] NCCL INFO Channel 01/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA/Shared
    """, severity="major"),
    near_miss("one_host_stages", "/Shared is no fallback", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
        cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0/GDRDMA/Shared
    """),
    near_miss("one_host_stages", "send and receive of one process differ", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
        cn22:774:812 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0
        cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0/GDRDMA
    """),
    fires("one_end_stages", "gdr-peermem-missing", """
        > NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
        > NCCL INFO Channel 00/0 : 3[3] -> 11[3] [receive] via NET/IB/3
    """, severity="major"),
    near_miss("one_end_stages", "both ends agree", """
        NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
        NCCL INFO Channel 00/0 : 3[3] -> 11[3] [receive] via NET/IB/3/GDRDMA/Shared
    """),
    near_miss("one_end_stages", "a direction is damaged", """
        cn31:11:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [sXnd] via NET/IB/0/GDRDMA
        cn31:11:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0
    """),
    near_miss("one_end_stages", "the two lines are of other ranks", """
        NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
        NCCL INFO Channel 00/0 : 11[3] -> 3[3] [receive] via NET/IB/3
    """),
    fires("nobody_uses_gpudirect", "gdr-peermem-missing", """
        > cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0
        > cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0/Shared
    """),
    fires("nobody_uses_gpudirect", "gdr-peermem-missing", """
        > cn21:880:931 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
        > cn21:880:931 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'
    """, why="no peer-memory client"),
    near_miss("nobody_uses_gpudirect", "every connection has it", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA(PCI)
        cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared
    """),
    near_miss("nobody_uses_gpudirect", "no peer-memory client, and DMA-BUF does it", """
        cn21:880:931 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
    """),
    near_miss("nobody_uses_gpudirect", "sockets never have it", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0
    """),
    near_miss("nobody_uses_gpudirect", "libfabric's lines do not always say", """
        cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Libfabric/0
    """),
    fires("registration_refused", "gdr-peermem-missing", """
        > cn21:880:940 [0] misc/ibvwrap.cc:154 NCCL WARN Call to ibv_reg_mr failed with error Bad address
        cn21:880:940 [0] NCCL INFO transport/net_ib.cc:1189 -> 2
    """, severity="fatal"),
    near_miss("registration_refused", "locked memory is another matter", """
        cn21:880:940 [0] misc/ibvwrap.cc:154 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory
    """),
    near_miss("registration_refused", "another call", """
        cn21:880:940 [0] misc/ibvwrap.cc:230 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument
    """),
    fires("device_memory_flat", "gdr-peermem-missing", """
        > mpirun -np 2 -H cn21,cn22 -mca pml ucx -x UCX_TLS=rc,sm,cuda_copy ./osu_bw -d cuda D D
        # OSU MPI-CUDA Bandwidth Test v7.3
        # Size      Bandwidth (MB/s)
        512                   180.21
        > 1024                  301.10
        > 4096                  315.52
        > 65536                 320.77
        > 1048576               322.04
        > 4194304               321.95
    """),
    near_miss("device_memory_flat", "a curve that still climbs", """
        mpirun -np 2 -H cn21,cn22 -mca pml ucx -x UCX_TLS=rc,sm,cuda_copy ./osu_bw -d cuda D D
        # OSU MPI-CUDA Bandwidth Test v7.3
        # Size      Bandwidth (MB/s)
        1024                  201.10
        4096                  815.52
        65536                9320.77
        1048576             23322.04
        4194304             24121.95
    """),
    near_miss("device_memory_flat", "TCP alone was asked for", """
        mpirun -np 2 -H cn21,cn22 -mca pml ucx -x UCX_TLS=tcp,cuda_copy ./osu_bw -d cuda D D
        # OSU MPI-CUDA Bandwidth Test v7.3
        # Size      Bandwidth (MB/s)
        1024                  301.10
        4096                  315.52
        65536                 320.77
        1048576               322.04
        4194304               321.95
    """),
    near_miss("one_host_stages", "the hosts are of two jobs, each of which is even", """
        cn21:10:12 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa - Init COMPLETE
        cn22:10:12 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa - Init COMPLETE
        cn31:10:12 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xb - Init COMPLETE
        cn32:10:12 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xb - Init COMPLETE
        cn21:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
        cn22:10:12 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0
        cn31:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
        cn32:10:12 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA
    """),
    fires("registration_refused", "gdr-peermem-missing", """
        terminate called after throwing an instance of 'mscclpp::IbError'
        >   what():  ibv_reg_mr failed (errno 22) (Ib failure: Invalid argument)
    """, severity="fatal", why="MSCCL++ src/core/ib.cc"),
    near_miss("registration_refused", "locked memory ran out (12, ENOMEM)", """
          what():  ibv_reg_mr failed (errno 12) (Ib failure: Cannot allocate memory)
    """),
    fires("module_not_loaded", "gdr-peermem-missing", """
        > modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument
    """, severity="major", why="modprobe"),
    fires("module_not_loaded", "gdr-peermem-missing", """
        > [   60.2] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)
    """, why="the kernel's own words"),
    near_miss("module_not_loaded", "another module", """
        modprobe: ERROR: could not insert 'gdrdrv': Invalid argument
    """),
    # perftest src/perftest_resources.c, cuda_memory.c; Mooncake rdma_context.cpp
    fires("registration_refused", "gdr-peermem-missing", """
        > initializing CUDA
        > cuMemAlloc() of a 131072 bytes GPU buffer
        > Couldn't allocate MR
        failed to create mr
    """, why="perftest's GPU buffer"),
    fires("registration_refused", "gdr-peermem-missing", """
        initializing CUDA
        Couldn't allocate MR with error=95
        > OFED stack does not support DMA-BUF
    """, why="no DMA-BUF"),
    fires("registration_refused", "gdr-peermem-missing", """
        > E20260301 09:30:19.100000 rdma_context.cpp:1343] DMA BUF supported required for GPU RDMA without nvidia-peermem on CUDA device 2 mapped to RNIC mlx5_5
    """, why="Mooncake"),
    near_miss("registration_refused", "perftest's buffer is host memory", """
        Couldn't allocate MR
        failed to create mr
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
