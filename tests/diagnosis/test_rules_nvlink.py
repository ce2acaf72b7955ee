"""NVLink and NVSwitch: nvidia-smi nvlink and topo, Xid and SXid, NCCL src/graph/paths.cc and src/transport/nvls.cc, Fabric Manager, IMEX."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n> GPU0\t X \t{0}\t0-31\t0\n> GPU1\t{0}\t X \t32-63\t1\n"

CASES = (
    fires("links_down", "nvlink-down", """
        > GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-2222-3333-4444-555555555555)
                 Link 0: 25 GB/s
        >          Link 1: <inactive>
                 Link 2: 25 GB/s
    """, severity="major"),
    fires("links_down", "nvlink-down", """
        > [ 4410.221] NVRM: Xid (PCI:0000:0f:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)
    """, why="Xid"),
    fires("links_down", "nvlink-down", """
                GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
        > GPU0     X      NV12    NV10    NV12    0-31    0
        > GPU1    NV12     X      NV10    NV12    0-31    0
        > GPU2    NV10    NV10     X      NV10    0-31    0
        GPU3    NV12    NV12    NV10     X      0-31    0
    """, why="one GPU has fewer links than the others"),
    near_miss("links_down", "links that are not fitted are missing on every GPU alike", """
        GPU 0: NVIDIA H100 NVL (UUID: GPU-11111111-2222-3333-4444-000000000000)
                 Link 0: 26.562 GB/s
                 Link 1: <inactive>
        GPU 1: NVIDIA H100 NVL (UUID: GPU-11111111-2222-3333-4444-000000000001)
                 Link 0: 26.562 GB/s
                 Link 1: <inactive>
    """),
    near_miss("links_down", "hosts of two models, one of which has fewer links", """
        GPU 0: NVIDIA H100 NVL (UUID: GPU-11111111-2222-3333-4444-000000000000)
                 Link 0: 26.562 GB/s
                 Link 1: <inactive>
        GPU 1: NVIDIA H100 NVL (UUID: GPU-11111111-2222-3333-4444-000000000001)
                 Link 0: 26.562 GB/s
                 Link 1: <inactive>
        GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-000000000002)
                 Link 0: 26.562 GB/s
                 Link 1: 26.562 GB/s
    """),
    near_miss("links_down", "a card without a bridge beside two with one", """
        GPU 0: NVIDIA RTX A6000 (UUID: GPU-11111111-2222-3333-4444-000000000000)
                 Link 0: 14.062 GB/s
        GPU 1: NVIDIA RTX A6000 (UUID: GPU-11111111-2222-3333-4444-000000000001)
                 Link 0: 14.062 GB/s
        GPU 2: NVIDIA RTX A6000 (UUID: GPU-11111111-2222-3333-4444-000000000002)
                 Link 0: <inactive>
    """),
    near_miss("links_down", "one card without a bridge", """
        GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-11111111-2222-3333-4444-000000000000)
                 Link 0: <inactive>
                 Link 1: <inactive>
    """),
    fires("links_down", "nvlink-down", """
        > GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-2222-3333-4444-000000000000)
        >          Link 0: <inactive>
        >          Link 1: <inactive>
    """, why="modules need no bridge"),
    near_miss("links_down", "an error marked Nonfatal", """
        [ 4410.221] NVRM: Xid (PCI:0008:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 09 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)
    """),
    near_miss("links_down", "every GPU has the same links", """
                GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
        GPU0     X      NV12    NV12    NV12    0-31    0
        GPU1    NV12     X      NV12    NV12    0-31    0
        GPU2    NV12    NV12     X      NV12    0-31    0
        GPU3    NV12    NV12    NV12     X      0-31    0
    """),
    fires("peer_access_off", "nvlink-p2p-disabled", """
        > cn41:310:355 [0] graph/paths.cc:329 NCCL WARN P2P is disabled between NVLINK connected GPUs 3 and 2. This should not be the case given their connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1.
    """, severity="fatal"),
    near_miss("peer_access_off", "P2P in use", """
        cn41:310:355 [0] NCCL INFO Check P2P Type isAllDirectP2p 1 directMode 0
        cn41:310:355 [0] NCCL INFO Channel 00/0 : 3[3] -> 2[2] via P2P/CUMEM/read
    """),
    fires("system_not_ready", "fabric-manager-not-running", """
        > cn41: Test CUDA failure common.cu:1012 'system not yet initialized'
    """),
    fires("system_not_ready", "fabric-manager-not-running", """
        > fabric manager NVIDIA GPU driver interface version 570.86.15 don't match with driver version 570.124.06. Please update with matching NVIDIA driver package.
    """, why="another version than the driver's"),
    near_miss("system_not_ready", "a machine without NVSwitch", """
        nvidia-fabricmanager.service - NVIDIA fabric manager service Active: inactive (dead)
        request to query NVSwitch device information from NVSwitch driver failed with error:NV_WARN_NOTHING_TO_DO
    """),
    near_miss("system_not_ready", "the service runs", """
        nvidia-fabricmanager.service - NVIDIA fabric manager service
           Active: active (running) since Mon 2026-03-02 08:00:11 UTC; 3 days ago
    """),
    fires("multicast_set_up", "fabric-manager-restarted", """
        > cn41:310:355 [6] transport/nvls.cc:187 NCCL WARN Cuda failure 1 'invalid argument'
        cn41:310:355 [6] NCCL INFO transport/nvls.cc:338 -> 1
    """),
    fires("multicast_set_up", "fabric-manager-state", """
        > cn41:310:355 [6] transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.
    """, why="binding"),
    near_miss("multicast_set_up", "registering a user buffer: harmless", """
        cn41:310:355 [6] transport/nvls.cc:612 NCCL WARN Cuda failure 1 'invalid argument'
        cn41:310:355 [6] transport/nvls.cc:731 NCCL WARN rank 6 failed to NVLS register sendbuff 0x7f1c00000000 sendbuffSize 4194304 recvbuff 0x7f1c00400000 recvbuffSize 4194304
    """),
    near_miss("multicast_set_up", "a CUDA error elsewhere", """
        cn41:310:355 [6] enqueue.cc:1402 NCCL WARN Cuda failure 1 'invalid argument'
    """),
    fires("registration", "user-buffer-registration", """
        > cn41:310:355 [6] transport/nvls.cc:612 NCCL WARN Cuda failure 1 'invalid argument'
        > cn41:310:355 [6] transport/nvls.cc:731 NCCL WARN rank 6 failed to NVLS register sendbuff 0x7f1c00000000 sendbuffSize 4194304 recvbuff 0x7f1c00400000 recvbuffSize 4194304
    """, severity="minor"),
    near_miss("registration", "NVLS cannot be set up at all", """
        cn41:310:355 [6] transport/nvls.cc:187 NCCL WARN Cuda failure 1 'invalid argument'
    """),
    near_miss("registration", "a registration that went well", """
        cn41:310:355 [6] NCCL INFO register comm 0x5600 buffer 0x7f1c00000000 size 4194304
    """),
    fires("imex", "imex-not-configured", """
        > cn41:310:355 [0] mnnvl.cc:47 NCCL WARN MNNVL (cliqueSize 8) is available but not working on some system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.
    """),
    fires("imex", "imex-not-configured", """
        > cuMemCreate failed with operation not permitted for a fabric handle
    """, why="CUDA"),
    near_miss("imex", "a fabric that works", """
        cn41:310:355 [0] NCCL INFO MNNVL busId 0x901000 fabric UUID 9a1b2c3d4e5f6071.8293a4b5c6d7e8f9 cliqueId 0x7ffe state 3 healthMask 0x0
    """),
    near_miss("imex", "the channel is there", """
        $ ls -l /dev/nvidia-caps-imex-channels
        crw-rw-rw- 1 root root 234, 0 Nov 12 08:00 /dev/nvidia-caps-imex-channels/channel0
    """),
    fires("imex", "imex-not-configured", """
        > ls: cannot access '/dev/nvidia-caps-imex-channels': No such file or directory
    """, why="the channel is not there"),
    near_miss("imex", "no permission for something else", """
        open(/dev/infiniband/uverbs0): operation not permitted
    """),
    fires("links_not_used", "nvlink-p2p-disabled", {"topo.txt": TOPOLOGY.format("NV18"), "nccl.log": """\
        > cn41:310:355 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
        > cn41:311:356 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
    """}, severity="major"),
    fires("links_not_used", "nvlink-p2p-disabled", {"topo.txt": TOPOLOGY.format("NV18"), "nccl.log": """\
        cn41:310:355 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xfeed - Init COMPLETE
        cn41:311:356 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 1 nranks 2 cudaDev 0 nvmlDev 1 busId 1c000 commId 0xfeed - Init COMPLETE
        > cn41:310:355 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
    """}, why="two ranks of one host over the network"),
    near_miss("links_not_used", "no NVLink: shared memory is to be expected", {"topo.txt": TOPOLOGY.format("SYS").replace("> ", ""), "nccl.log": """\
        cn41:310:355 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    """}),
    near_miss("links_not_used", "connections are P2P", {"topo.txt": TOPOLOGY.format("NV18").replace("> ", ""), "nccl.log": """\
        cn41:310:355 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    """}),
    near_miss("links_not_used", "a variable forbids it: the rule about variables says so", {"topo.txt": TOPOLOGY.format("NV18").replace("> ", ""), "nccl.log": """\
        cn41:310:355 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.
        cn41:310:355 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    """}),
    fires("links_down", "nvlink-down", """
        > jax.errors.JaxRuntimeError: INTERNAL: CUDA error: : CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error
    """, severity="fatal", why="a contained error (cuda.h, 226)"),
    near_miss("links_down", "a peer that was never enabled", """
        CUDA error: peer access has not been enabled
    """),
    fires("system_not_ready", "fabric-manager-not-running", """
        > fabric manager NVIDIA GPU driver interface version 575.57.08 don\u2019t match with driver version 575.51.03. Please update with matching NVIDIA driver package.
    """, why="the apostrophe as a forum prints it"),
    fires("system_not_ready", "fabric-manager-not-running", """
                "health": "Unhealthy",
        >         "reason": "fabric manager found but not active",
    """, why="gpud's health state (fabric-manager/component.go)"),
    fires("system_not_ready", "fabric-manager-not-running", """
        > nvidia-persistenced[214]: device 0000:41:00.0 - Could not Enable UVM Persistence mode because the NVLink fabric is not ready
    """, why="nvidia-persistenced"),
    near_miss("system_not_ready", "gpud finds it active, persistenced enables the mode", """
                "reason": "fabric manager found and active",
        nvidia-persistenced[214]: device 0000:41:00.0 - Enabled UVM Persistence mode.
    """),
    fires("fabric_not_registered", "fabric-manager-state", """
        ==============NVSMI LOG==============
        GPU 00000000:41:00.0
            Product Name                          : NVIDIA H100 80GB HBM3
            Fabric
        >         State                             : Completed
                Status                            : Success
        GPU 00000000:61:00.0
            Product Name                          : NVIDIA H100 80GB HBM3
            Fabric
        >         State                             : In Progress
                Status                            : N/A
    """, severity="major"),
    near_miss("fabric_not_registered", "all GPUs are registered", """
        ==============NVSMI LOG==============
        GPU 00000000:41:00.0
            Product Name                          : NVIDIA H100 80GB HBM3
            Fabric
                State                             : Completed
                Status                            : Success
    """),
    fires("multicast_set_up", "fabric-manager-state", """
        > [Mar 04 2026 11:20:03] [ERROR] [tid 912] detected NVSwitch fatal error 20009 on fid 0 on NVSwitch pci bus id 00000000:c4:00.0 physical id 1 port 12
    """, why="Fabric Manager's own log (gpud, fabric-manager/log_matcher.go)"),
    near_miss("multicast_set_up", "an error marked non-fatal", """
        [Mar 04 2026 11:20:03] [ERROR] [tid 912] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:c4:00.0 physical id 1 port 12
    """),
    fires("imex", "imex-not-configured", """
        [Feb 02 2026 08:10:11] [INFO] [tid 51] IMEX library communication bind port = 50000
        > [Feb 02 2026 08:10:11] [ERROR] [tid 51] No matching network interface found for any IP addresses in the node configuration file
    """, severity="fatal", why="IMEX finds none of its addresses"),
    fires("imex", "imex-not-configured", """
        > [Feb 02 2026 08:10:12] [ERROR] [tid 51] Failed to allocate Imex session: NV_ERR_IN_USE
    """, why="a second service on the host"),
    fires("imex", "imex-not-configured", """
        > Domain State: DOWN
    """, severity="major", why="nvidia-imex-ctl -N"),
    fires("imex", "imex-not-configured", """
        > RuntimeError: cuMemImportFromShareableHandle(&handle, &fabric) returned 400: invalid resource handle
    """, why="a handle that the import refuses"),
    near_miss("imex", "a service that is up", """
        [Feb 02 2026 08:10:11] [INFO] [tid 51] IMEX library communication bind port = 50000
        Domain State: UP
        CUDA error: invalid resource handle
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
