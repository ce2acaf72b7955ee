"""RDMA that does not get through: NCCL src/transport/net_ib.cc, ibv_devinfo, mlx5 in the kernel log, hw_counters."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, fires_on, near_miss, shown

CASES = (
    fires("gid_of_the_wrong_kind", "roce-gid-index", """
        > NCCL_IB_GID_INDEX=2
        hca_id: mlx5_4
                GID[  0]:       fe80:0000:0000:0000:5c25:73ff:fe12:3456, RoCE v1
                GID[  1]:       fe80::5c25:73ff:fe12:3456, RoCE v2
        >         GID[  2]:       0000:0000:0000:0000:0000:ffff:0a14:0447, RoCE v1
        >         GID[  3]:       ::ffff:10.20.4.71, RoCE v2
    """, severity="major"),
    near_miss("gid_of_the_wrong_kind", "the index selects RoCE v2 with an IPv4 address", """
        NCCL_IB_GID_INDEX=3
        hca_id: mlx5_4
                GID[  2]:       0000:0000:0000:0000:0000:ffff:0a14:0447, RoCE v1
                GID[  3]:       ::ffff:10.20.4.71, RoCE v2
    """),
    near_miss("gid_of_the_wrong_kind", "no index is set", """
        hca_id: mlx5_4
                GID[  0]:       fe80:0000:0000:0000:5c25:73ff:fe12:3456, RoCE v1
                GID[  3]:       ::ffff:10.20.4.71, RoCE v2
    """),
    fires("flapping_link", "link-flap", """
        > cn81:500:561 [3] transport/net_ib.cc:104 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error
        > cn81:500:561 [3] transport/net_ib.cc:104 NCCL WARN NET/IB : mlx5_3:1 Got async event : port active
        > cn81:500:540 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.20.4.82<40001> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGidsfe80::2 hca mlx5_3
    """, severity="fatal"),
    fires("flapping_link", "link-flap", """
        [   31.870144] mlx5_core 0000:5e:00.1 ens3f1np1: Link up
        [   31.882011] mlx5_core 0000:5e:00.0 ens3f0np0: Link up
        > [90211.113345] mlx5_core 0000:5e:00.0 ens3f0np0: Link down
        > [90214.201132] mlx5_core 0000:5e:00.0 ens3f0np0: Link up
    """, severity="major", why="kernel log"),
    near_miss("flapping_link", "a link that comes up once: a boot", """
        [   31.882011] mlx5_core 0000:5e:00.0 ens3f0np0: Link up
        [   31.901345] mlx5_core 0000:5e:00.1 ens3f1np1: Link up
    """),
    near_miss("flapping_link", "a link that is down before it comes up: a boot", """
        [   30.102011] mlx5_core 0000:5e:00.0 ens3f0np0: Link down
        [   31.882011] mlx5_core 0000:5e:00.0 ens3f0np0: Link up
    """),
    near_miss("flapping_link", "a client that leaves is no port event", """
        cn81:500:561 [3] transport/net_ib.cc:104 NCCL WARN NET/IB : mlx5_3:1 Got async event : client reregistration
    """),
    fires("unanswered_packets", "roce-gid-index", """
        > cn81:500:540 [3] transport/net_ib.cc:840 NCCL WARN NET/IB : Got completion from peer 10.20.4.82<51001> with error 12, opcode 0, len 0, vendor err 129
    """, why="nothing else was read"),
    fires("unanswered_packets", "link-flap", """
        cn81:500:530 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB bond0:10.20.4.81<0>
        > cn81:500:540 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.20.4.82<40001> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129
    """, why="InfiniBand has no GID to choose"),
    fires("unanswered_packets", "roce-lossy-fabric", """
        > cn81:500:540 [3] transport/net_ib.cc:840 NCCL WARN NET/IB : Got completion from peer 10.20.4.82<51001> with error 12, opcode 0, len 0, vendor err 129
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/packet_seq_err:9120
    """, why="the NIC counts losses"),
    fires("unanswered_packets", "rail-cross-nic", """
        > cn81:500:540 [3] misc/ibvwrap.cc:396 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.3.81, remote GID ::ffff:10.1.4.82
    """, why="GIDs of two rails"),
    near_miss("unanswered_packets", "flushed after another error", """
        cn81:500:540 [3] transport/net_ib.cc:840 NCCL WARN NET/IB : Got completion from peer 10.20.4.82<51001> with error 5, opcode 0, len 0, vendor err 249
    """),
    near_miss("unanswered_packets", "another call that failed", """
        cn81:500:540 [3] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory
    """),
    fires("memory_refused", "pcie-acs-enabled", """
        > cn81:500:540 [3] transport/net_ib.cc:840 NCCL WARN NET/IB : Got completion from peer 10.20.4.82<51001> with error 4, opcode 0, len 0, vendor err 81
    """),
    fires("memory_refused", "pcie-acs-enabled", """
        > cn81:500:561 [3] transport/net_ib.cc:104 NCCL WARN NET/IB : mlx5_3:1 Got async event : local access violation work queue error
    """, why="asynchronous event"),
    near_miss("memory_refused", "no answer is another matter", """
        cn81:500:540 [3] transport/net_ib.cc:840 NCCL WARN NET/IB : Got completion from peer 10.20.4.82<51001> with error 12, opcode 0, len 0, vendor err 129
    """),
    fires("receiver_not_ready", "rank-late-or-stuck", """
        > cn81:500:540 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.20.4.82<40001> with status=13 opcode=0 len=0 vendor err 135 (Send)
    """),
    near_miss("receiver_not_ready", "the neighbouring status", """
        cn81:500:540 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.20.4.82<40001> with status=12 opcode=0 len=0 vendor err 129 (Send)
    """),
    fires("lossy_fabric", "roce-lossy-fabric", """
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/local_ack_timeout_err:118
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/out_of_sequence:0
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/np_ecn_marked_roce_packets:0
    """, severity="major"),
    fires("lossy_fabric", "roce-lossy-fabric", """
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/out_of_sequence:3
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/np_ecn_marked_roce_packets:81234
    """, severity="minor", why="a few since the boot"),
    fires("lossy_fabric", "roce-lossy-fabric", """
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/local_ack_timeout_err:2118
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/np_ecn_marked_roce_packets:81234
    """, severity="minor", why="many, but since the boot, and loss control works"),
    near_miss("lossy_fabric", "InfiniBand, where adaptive routing changes the order", """
        CA 'mlx5_3'
            Port 1:
                State: Active
                Link layer: InfiniBand
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/out_of_sequence:21180
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/np_ecn_marked_roce_packets:0
    """),
    near_miss("lossy_fabric", "nothing was lost", """
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/local_ack_timeout_err:0
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/out_of_sequence:0
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/packet_seq_err:0
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/np_ecn_marked_roce_packets:5120
    """),
    fires("rails_crossed", "rail-cross-nic", """
        > cn81:500:530 [3] NCCL INFO NCCL_CROSS_NIC set by environment to 1.
        > cn81:500:540 [3] misc/ibvwrap.cc:396 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
    """),
    near_miss("rails_crossed", "crossing on a full fat tree fails nothing", """
        cn81:500:530 [3] NCCL INFO NCCL_CROSS_NIC set by environment to 1.
        cn81:500:540 [3] NCCL INFO Connected all rings
    """),
    near_miss("rails_crossed", "crossing is forbidden already", """
        cn81:500:530 [3] NCCL INFO NCCL_CROSS_NIC set by environment to 0.
        cn81:500:540 [3] misc/ibvwrap.cc:396 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
    """),
    fires("congestion_control", "congestion-control-setting", """
        > cn81:500:540 [3] misc/ibvwrap.cc:410 NCCL WARN Call to ibv_set_ece failed with error Invalid argument
    """, severity="fatal"),
    fires("congestion_control", "congestion-control-setting", """
        > /sys/class/infiniband/mlx5_3/ports/1/hw_counters/rp_cnp_handled:48120331
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/out_of_sequence:0
    """, severity="minor", why="counters"),
    near_miss("congestion_control", "a few notifications", """
        /sys/class/infiniband/mlx5_3/ports/1/hw_counters/rp_cnp_handled:412
    """),
    near_miss("congestion_control", "ECE in use, nothing failed", """
        cn81:500:530 [3] NCCL INFO NCCL_IB_ECE_ENABLE set by environment to 1.
    """),
    fires("rails_crossed", "rail-cross-nic", """
        > cn81:500:530 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
        > cn82:600:630 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [receive] via NET/IB/5/GDRDMA
        > cn81:500:540 [3] misc/ibvwrap.cc:396 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
    """, why="the ends of a connection use NICs of different number"),
    near_miss("rails_crossed", "NIC 3 talks to NIC 3", """
        cn81:500:530 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
        cn82:600:630 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [receive] via NET/IB/3/GDRDMA
        cn81:500:540 [3] misc/ibvwrap.cc:396 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
    """),
    fires_on("unanswered_packets", "roce-gid-index", {"ib_write_bw.txt": [shown("events", event="perftest.qp_refused", level="error", text="Failed to modify QP to RTR: Connection timed out", fields={"state": "RTR"})]}, why="in perftest's words"),
    # GID types: NCCL 2.21.5 src/transport/net_ib.cc; what it means: NVIDIA/nccl#1573. Mooncake: rdma_context.cpp, rdma_transport.cpp. UCX: ib_mlx5_dv.c.
    fires("gid_type_unreadable", "library-bug-version", """
        > cn81:500:540 [3] transport/net_ib.cc:366 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument
    """, severity="fatal"),
    fires("gid_type_unreadable", "roce-gid-index", """
        > cn81:500:540 [3] transport/net_ib.cc:359 NCCL WARN NET/IB: open failed in ncclIbRoceGetVersionNum: No such file or directory
    """, why="sysfs is not there"),
    near_miss("gid_type_unreadable", "the index is only reported", """
        cn81:500:540 [3] NCCL INFO NET/IB: Dev 3 Port 1 qpn 411 mtu 5 GID 3 (0/47041FACFFFF0000)
    """),
    fires("no_gid_accepted", "roce-gid-index", """
        > W0207 07:31:12.100200    12 rdma_context.cpp:581] No suitable GID found on mlx5_2/
        > E0207 07:31:12.100310    12 rdma_context.cpp:81] Failed to open device mlx5_2 on port  with GID -1
        > E0207 07:31:12.100420    12 rdma_transport.cpp:662] RdmaTransport: No available RNIC
    """, severity="fatal"),
    fires("no_gid_accepted", "library-bug-version", """
        > W0207 07:31:12.100200    12 rdma_context.cpp:588] User-specified GID index 2 on mlx5_2/ has no associated network device, may not be optimal for RDMA operations
        > E0207 07:31:12.100310    12 rdma_context.cpp:81] Failed to open device mlx5_2 on port  with GID 2
    """, why="a GID without interface is refused"),
    near_miss("no_gid_accepted", "the remark alone: the NIC opens", """
        W0207 07:31:12.100200    12 rdma_context.cpp:588] User-specified GID index 2 on mlx5_2/ has no associated network device, may not be optimal for RDMA operations
    """),
    fires("default_gid_is_link_local", "roce-gid-index", """
        > wc->status == IBV_WC_SUCCESS. 12 vs 0. Send for slot 3: transport retry counter exceeded
        DEV     PORT    INDEX   GID                                     IPv4
        > mlx4_1  1       0       fe80:0000:0000:0000:0202:c9ff:fe11:2233
        > mlx4_1  1       2       0000:0000:0000:0000:0000:ffff:0a14:0447 10.20.4.71
    """),
    near_miss("default_gid_is_link_local", "a flushed request without a list of GIDs", """
        wc->status == IBV_WC_SUCCESS. 5 vs 0. Recv for slot 3: Work Request Flushed Error
    """),
    near_miss("default_gid_is_link_local", "index 0 is an IPv4 address", """
        wc->status == IBV_WC_SUCCESS. 12 vs 0. Send for slot 3: transport retry counter exceeded
        mlx4_1  1       0       0000:0000:0000:0000:0000:ffff:0a14:0447 10.20.4.71
    """),
    fires("ucx_queue_pair_refused", "ucx-setting", """
        > UCX_IB_TRAFFIC_CLASS=300
        > [1741000000.100000] [cn81:410  :0]     ib_mlx5_dv.c:231  UCX  ERROR mlx5dv_devx_qp_modify(503) failed, syndrome 1f2a: Invalid argument
    """, severity="fatal"),
    fires("ucx_queue_pair_refused", "roce-gid-index", """
        > [1741000000.100000] [cn81:410  :0]     ib_mlx5_dv.c:231  UCX  ERROR mlx5dv_devx_qp_modify(503) failed, syndrome 1f2a: Invalid argument
    """, why="nothing was set"),
    near_miss("ucx_queue_pair_refused", "another object", """
        UCX_IB_TRAFFIC_CLASS=106
        [1741000000.100000] [cn81:410  :0]     ib_mlx5_dv.c:77   UCX  ERROR mlx5dv_devx_obj_create(QP) failed, syndrome 1f2a: Cannot allocate memory
    """),
    fires("unanswered_packets", "roce-gid-index", """
        > I0207 07:31:12.100200    12 rdma_context.cpp:125] RDMA device: mlx5_2, LID: 0, GID: (GID_Index 0) fe:80:00:00:00:00:00:00:5c:25:73:ff:fe:12:34:56
        > E0207 07:31:22.100200    13 rdma_endpoint.cpp:385] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Connection timed out [110]
    """, why="Mooncake took a link-local GID"),
    fires("memory_refused", "pcie-acs-enabled", """
        > transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer with error 4, opcode 0, len 0, vendor err 81 (Send)
    """, why="the address was blanked"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_a_flapping_link_of_another_driver():
    """bnxt_en, i40e and ice say NIC Link is Down."""
    check(fires("flapping_link", "link-flap", """
        > [90211.113345] bnxt_en 0000:9a:00.0 ens9f0np0: NIC Link is Down
    """))  # fmt: skip
