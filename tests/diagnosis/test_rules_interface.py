"""IP interfaces: NCCL src/bootstrap.cc, src/misc/socket.cc, Open MPI's btl/tcp."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("no_interface", "no-ip-interface", """
        > sandbox:77:77 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found
        sandbox:77:77 [0] NCCL INFO init.cc:98 -> 3
    """, severity="fatal"),
    fires("no_interface", "wrong-socket-interface", """
        > cn51:77:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib7
        > cn51:77:77 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found
    """, why="a name that matches nothing"),
    near_miss("no_interface", "an interface was found", """
        cn51:77:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0
        cn51:77:77 [0] NCCL INFO Bootstrap : Using bond0:10.20.4.51<0>
    """),
    fires("interface_leads_nowhere", "wrong-socket-interface", """
        > cn51:77:77 [0] NCCL INFO Bootstrap : Using virbr0:192.168.122.1<0>
        > cn52:91:91 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 192.168.122.1<41235> failed : Connection refused
    """, severity="fatal"),
    fires("interface_leads_nowhere", "wrong-socket-interface", """
        > [cn52][[4410,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 172.18.0.1 failed: Connection refused (111)
    """, why="Open MPI"),
    fires("interface_leads_nowhere", "wrong-socket-interface", """
        > cn51:77:77 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>
        cn51:77:99 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
    """, severity="major", why="chosen on a job of two hosts"),
    near_miss("interface_leads_nowhere", "loopback is all that one host needs", """
        cn51:77:77 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>
        cn51:77:99 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
    """),
    near_miss("interface_leads_nowhere", "a real interface on several hosts", """
        cn51:77:77 [0] NCCL INFO Bootstrap : Using bond0:10.20.4.51<0>
        cn52:91:91 [0] NCCL INFO Bootstrap : Using bond0:10.20.4.52<0>
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
