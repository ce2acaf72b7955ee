"""A slower transport than the machine has: aws-ofi-nccl, NCCL src/net.cc, UCX protocol logs, NIXL."""

from __future__ import annotations

import pytest

from .told import Case, Row, check, fires, fires_on, near_miss, near_miss_on, row, shown


def ucx(transport: str, mark: bool = False) -> Row:
    return (shown if mark else row)("devices", host="cn31", kind="ucx_transport", name=transport, attributes={})


CASES = (
    fires("plugin_failed", "net-plugin-init-failed", """
        > p4d-17:611:640 [0] nccl_ofi_create_plugin:1051 NCCL WARN NET/OFI Only EFA provider is supported
        > p4d-17:611:640 [0] NCCL INFO NET/Socket : Using [0]ens32:10.40.1.17<0>
    """, severity="major"),
    near_miss("plugin_failed", "no plugin is installed: normal", """
        cn17:611:640 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
        cn17:611:640 [0] NCCL INFO Using network IB
    """),
    near_miss("plugin_failed", "the provider was found", """
        p4d-17:611:640 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws
        p4d-17:611:640 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
    """),
    near_miss("plugin_failed", "a transfer fails long after the provider was found", """
        p4d-17:611:640 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
        p4d-17:611:702 [0] process_completions:105 NCCL WARN NET/OFI Request 0x7f1c completed with error. RC: 103. Error: 4105 (Resource temporarily unavailable)
    """),
    fires("socket_fallback", "socket-fallback", """
        > cn17:611:640 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
        cn17:611:640 [0] NCCL INFO NET/Socket : Using [0]bond0:10.20.4.17<0>
        > cn17:611:640 [0] NCCL INFO Using network Socket
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """, severity="minor", why="nothing speaks of RDMA hardware"),
    fires("socket_fallback", "socket-fallback", """
        cn17:611:640 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5.
        > cn17:611:640 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
        > cn17:611:640 [0] NCCL INFO Using network Socket
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """, severity="major", why="a setting for InfiniBand"),
    fires("socket_fallback", "socket-fallback", """
        > cn17:611:640 [0] NCCL INFO NET/IB : No device found.
        > cn17:611:640 [0] NCCL INFO Using network Socket
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """, why="no RDMA device"),
    near_miss("socket_fallback", "one host: sockets only start the job", """
        cn17:611:640 [0] NCCL INFO NET/IB : No device found.
        cn17:611:640 [0] NCCL INFO NET/Socket : Using [0]bond0:10.20.4.17<0>
        cn17:611:640 [0] NCCL INFO Using network Socket
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
    """),
    near_miss("socket_fallback", "InfiniBand is off where it is not needed", """
        cn17:611:640 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
        cn17:611:640 [0] NCCL INFO Using network Socket
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
    """),
    near_miss("socket_fallback", "the network is IB", """
        cn17:611:640 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.
        cn17:611:640 [0] NCCL INFO Using network IB
        cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """),
    fires("ucx_over_tcp", "ucx-wrong-transport", """
        > [1757996767.753236] [cn17:90:0] proto_common.c:622  UCX  TRACE lane[0] tcp/ens9f1: added as lane 0
    """, severity="major"),
    near_miss("ucx_over_tcp", "an RDMA lane", """
        [1757996767.753236] [cn17:90:0] proto_common.c:622  UCX  TRACE lane[0] rc_mlx5/mlx5_0:1: added as lane 0
    """),
    near_miss("ucx_over_tcp", "active messages over RDMA", """
        [1757996767.753236] [cn17:90:0] ucp_worker.c:1888 UCX  INFO  ucp_context_0 inter-node cfg#2 tag(rc_mlx5/mlx5_0:1)
    """),
    fires("ucx_has_no_transport", "ucx-built-without-feature", """
        > [1757996767.753236] [cn17:90:0] ucp_context.c:671  UCX  WARN  transport 'cuda_ipc' is not available, please use one or more of: cma, posix, self, sysv, tcp
    """),
    near_miss("ucx_has_no_transport", "all that was asked for is there", """
        [1757996767.753236] [cn17:90:0] ucp_context.c:671  UCX  INFO  UCX_TLS=rc,cuda_copy
        # Transport: cuda_ipc
    """),
    fires("slow_transfer_set_up", "ucx-built-without-feature", """
        > INFO nixl.write_blocks: Time to prepped xfer: 0.61 ms
        > INFO nixl.write_blocks: Time to init xfer: 640.21 ms
    """, severity="major"),
    near_miss("slow_transfer_set_up", "set-up over RDMA", """
        INFO nixl.write_blocks: Time to prepped xfer: 0.61 ms
        INFO nixl.write_blocks: Time to init xfer: 0.16 ms
    """),
    near_miss("slow_transfer_set_up", "every stage is slow", """
        INFO nixl.write_blocks: Time to prepped xfer: 410.5 ms
        INFO nixl.write_blocks: Time to init xfer: 640.21 ms
    """),
    fires_on("transports_missing", "ucx-built-without-feature", {"ucx.txt": [ucx("tcp", True), ucx("sysv", True)], "ibstat.txt": [shown("ports", host="cn31", device="mlx5_0", node_kind="ca", state="active")]}, severity="major"),
    near_miss_on("transports_missing", "RDMA is listed", {"ucx.txt": [ucx("tcp"), ucx("rc_mlx5")], "ibstat.txt": [row("ports", host="cn31", device="mlx5_0", node_kind="ca", state="active")]}),
    near_miss_on("transports_missing", "another host has the NIC", {"ucx.txt": [ucx("tcp")], "ibstat.txt": [row("ports", host="cn32", device="mlx5_0", node_kind="ca", state="active")]}),
    # UCX src/ucp/wireup/select.c
    fires("ucx_has_no_transport", "ucx-setting", """
        > UCX_TLS=self,cuda_copy,rdmacm
        > [1741000000.100000] [cn51:881:0]         select.c:438  UCX  ERROR no active messages transport to <no debug data>: Unsupported operation
    """, why="the list leads to no peer"),
    fires("ucx_has_no_transport", "ucx-wrong-transport", """
        > UCX_TLS=rc,cuda_copy
        > [1741000000.100000] [cn51:881:0]         select.c:438  UCX  ERROR no remote registered memory access transport to cn52:  Unsupported operation
    """, why="the list allows RDMA"),
    fires("socket_fallback", "socket-fallback", """
        cn51:77:91 [0] NCCL INFO P2P plugin IBext
        > cn51:77:91 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
        > cn51:77:91 [0] NCCL INFO Using network Socket
        cn51:77:91 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """, why="a plugin that loads is not the cause"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_an_rdma_lane_beside_tcp_is_the_one_that_moves_the_data():
    """UCX spreads a large message over lanes by their bandwidth (proto_common.c); a tcp lane beside rc carries next to nothing."""
    check(near_miss("ucx_over_tcp", "an RDMA lane was added too", """
        [1757996767.753236] [cn17:90:0] proto_common.c:622  UCX  TRACE lane[0] rc_mlx5/mlx5_0:1: added as lane 0
        [1757996767.753237] [cn17:90:0] proto_common.c:622  UCX  TRACE lane[1] tcp/ens9f1: added as lane 1
    """))  # fmt: skip
