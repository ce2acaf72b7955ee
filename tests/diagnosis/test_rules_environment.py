"""Variables that were set: NCCL src/misc/param.cc, src/graph/tuning.cc, src/graph/connect.cc, command lines, env files, notes."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("forced_protocol", "env-proto-forced", """
        > export NCCL_PROTO=LL128
        > # Out of bounds values : 48 FAILED
    """, severity="fatal"),
    fires("forced_protocol", "env-proto-forced", """
        > cn17:611:640 [0] NCCL INFO NCCL_PROTO set by environment to LL.
        #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        >   1073741824     268435456     float     sum      -1    11020   97.44  170.52      0    11015   97.48  170.59      0
    """, severity="major", why="LL alone, large messages"),
    near_miss("forced_protocol", "Simple is always safe", """
        cn17:611:640 [0] NCCL INFO NCCL_PROTO set by environment to Simple.
    """),
    near_miss("forced_protocol", "a sentence suggests it", """
        You can try NCCL_PROTO=LL128 if latency matters.
        # Out of bounds values : 48 FAILED
    """),
    near_miss("forced_protocol", "LL128 is left out", """
        export NCCL_PROTO=^LL128
        # Out of bounds values : 0 OK
    """),
    fires("wrong_without_forcing", "library-bug-version", """
        > # Out of bounds values : 8 FAILED
        # Avg bus bandwidth    : 201.44
    """, severity="fatal"),
    near_miss("wrong_without_forcing", "the data is right", """
        # Out of bounds values : 0 OK
    """),
    near_miss("wrong_without_forcing", "a protocol was forced", """
        NCCL_PROTO=LL128
        # Out of bounds values : 8 FAILED
    """),
    fires("forced_algorithm", "env-algo-forced", """
        > cn17:611:640 [0] NCCL INFO NCCL_ALGO set by environment to NVLS.
        > cn17:611:640 [0] enqueue.cc:1985 NCCL WARN Error : no algorithm/protocol available for function ReduceScatter with datatype ncclFloat32. NCCL_ALGO was set to NVLS.
    """, severity="fatal"),
    fires("forced_algorithm", "env-algo-forced", """
        > export NCCL_ALGO=Rign
    """, severity="fatal", why="a name that NCCL does not know"),
    fires("forced_algorithm", "env-algo-forced", """
        > export NCCL_ALGO=Tree
    """, severity="minor", why="nothing else is wrong"),
    near_miss("forced_algorithm", "a sentence suggests it", """
        You can try NCCL_ALGO=Tree on this topology.
    """),
    near_miss("forced_algorithm", "another variable", """
        export NCCL_DEBUG=INFO
    """),
    fires("peer_to_peer_switched_off", "env-p2p-level-forced", """
        > cn17:611:640 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.
        > cn17:611:640 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    """, severity="major"),
    fires("peer_to_peer_switched_off", "env-p2p-level-forced", """
        > NCCL_P2P_LEVEL=LOC
    """, severity="minor", why="nothing shows that it matters"),
    near_miss("peer_to_peer_switched_off", "P2P is left on", """
        cn17:611:640 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 0.
        cn17:611:640 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    """),
    near_miss("peer_to_peer_switched_off", "a trial in a sentence", """
        Setting NCCL_P2P_DISABLE=1 fixed it.
    """),
    near_miss("peer_to_peer_switched_off", "the level that NVLink needs, with NVLink", """
        NCCL_P2P_LEVEL=NVL
                GPU0    GPU1    CPU Affinity    NUMA Affinity
        GPU0     X      NV12    0-31    0
        GPU1    NV12     X      0-31    0
    """),
    fires("channels_without_effect", "env-channels-ineffective", """
        > cn17:611:640 [0] NCCL INFO NCCL_MIN_NCHANNELS set by environment to 128.
        > cn17:611:640 [0] graph/connect.cc:402 NCCL WARN User asked for a minimum of 128 channels, limiting to 64
    """, severity="minor"),
    fires("channels_without_effect", "env-channels-ineffective", """
        > export NCCL_MAX_NCHANNELS=1
    """, severity="major", why="too few"),
    near_miss("channels_without_effect", "channels as NCCL chose them", """
        cn17:611:640 [0] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
    """),
    fires("gpudirect_one_way", "gdr-read-setting", """
        > cn17:611:640 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0
        > cn17:611:640 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
    """, severity="major"),
    fires("gpudirect_one_way", "gdr-read-setting", """
        > cn17:611:640 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC.
    """, why="the level keeps it off"),
    near_miss("gpudirect_one_way", "both ways", """
        cn17:611:640 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared
        cn17:611:640 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
    """),
    near_miss("gpudirect_one_way", "a level that allows it", """
        cn17:611:640 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS.
    """),
    fires("ucx_switched_off", "ucx-setting", """
        > mpirun -np 2 -x UCX_RCACHE_ENABLE=n -x UCX_TLS=rc,cuda_copy ./osu_latency
    """, severity="major"),
    fires("ucx_switched_off", "ucx-setting", """
        > mpirun -np 2 -x UCX_TLS=rc,sm ./osu_bw -d cuda D D
    """, severity="fatal", why="no cuda_copy for GPU memory"),
    near_miss("ucx_switched_off", "caches on", """
        mpirun -np 2 -x UCX_RCACHE_ENABLE=y -x UCX_TLS=rc,cuda_copy ./osu_bw -d cuda D D
    """),
    near_miss("ucx_switched_off", "host memory needs no cuda_copy", """
        mpirun -np 2 -x UCX_TLS=rc,sm ./osu_bw
    """),
    fires("remedy_in_a_note", "cumem-host-no-p2p", """
        > Setting NCCL_CUMEM_HOST_ENABLE=0 fixes the crash on our nodes.
    """),
    near_miss("remedy_in_a_note", "the variable is part of the job", """
        export NCCL_CUMEM_HOST_ENABLE=0
    """),
    near_miss("remedy_in_a_note", "a program's own message suggests it", """
        cn41:310:355 [0] graph/paths.cc:329 NCCL WARN P2P is disabled between connected GPUs 3 and 2. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
    """),
    fires("experiment", "ecmp-collision", """
        > 16 nodes: max busbw 91.2 GB/s
        > 16 nodes NCCL_IB_QPS_PER_CONNECTION=4: max busbw 182.7 GB/s
    """),
    near_miss("experiment", "no difference to speak of", """
        16 nodes: max busbw 181.0 GB/s
        16 nodes NCCL_IB_QPS_PER_CONNECTION=4: max busbw 182.7 GB/s
    """),
    near_miss("experiment", "nothing to compare with", """
        16 nodes NCCL_IB_QPS_PER_CONNECTION=4: max busbw 182.7 GB/s
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
