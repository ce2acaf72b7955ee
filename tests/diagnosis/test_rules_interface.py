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
    # UCX src/ucs/sys/sock.c; gloo transport/tcp (wording of 2024: SO_ERROR, remote); torch ProcessGroupGloo.cpp; Open MPI help-mpi-btl-tcp.txt, oob_tcp_connection.c.
    fires("interface_leads_nowhere", "wrong-socket-interface", """
        > [1741000000.541480] [cn51:881:0]      sock.c:323  UCX  ERROR connect(fd=61, dest_addr=172.18.0.1:40913) failed: Connection refused
    """, severity="fatal", why="UCX offers a container bridge"),
    fires("interface_leads_nowhere", "wrong-socket-interface", """
        > RuntimeError: timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:20533
    """, why="gloo was given the loopback address"),
    fires("gloo_mesh", "wrong-socket-interface", """
        > [rank3]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())
        > [rank3]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error
    """, severity="fatal"),
    near_miss("gloo_mesh", "the loopback address is enough on one host", """
        [rank3]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())
    """),
    near_miss("gloo_mesh", "the peer ended", """
        [rank3]:[E ProcessGroupGloo.cpp:138] Gloo connectFullMesh failed with Connection reset by peer
    """),
    fires("mpi_address", "wrong-socket-interface", """
        > Open MPI detected an inbound MPI TCP connection request from a peer
        that appears to be part of this MPI job (i.e., it identified itself as
        part of this Open MPI job), but it is from an IP address that is
        unexpected.  This is highly unusual.

          Local host:          cn51
          Local PID:           4410
          Peer hostname:       cn52 ([[4410,1],1])
        >   Source IP of socket: 10.20.7.52
          Known IPs of peer:
                10.20.4.52
    """, severity="major"),
    fires("mpi_address", "wrong-socket-interface", """
        > A process or daemon was unable to complete a TCP connection
        to another process:
          Local host:    cn51
        >   Remote host:   10.20.7.52
        This is usually caused by a firewall on the remote host. Please
    """, severity="fatal", why="a daemon"),
    near_miss("mpi_address", "the daemon died, which is another message", """
        ORTE has lost communication with a remote daemon.
          HNP daemon   : [[4410,0],0] on node cn51
          Remote daemon: [[4410,0],1] on node cn52
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
