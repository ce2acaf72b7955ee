"""Ranks that do not do the same. Formats: NCCL src/init.cc, src/transport/net_socket.cc, PyTorch's ProcessGroupNCCL and ProcessGroupWrapper, ncclras."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("version_mismatch", "env-mismatch-between-ranks", """
        > cn11:5021:5021 [0] init.cc:688 NCCL WARN Mismatched NCCL version detected : rank 3 version 22703 rank 0 version 22105
        cn11:5021:5021 [0] NCCL INFO init.cc:1402 -> 5
    """),
    fires("version_mismatch", "env-mismatch-between-ranks", """
        > cn11:5021:5021 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
        > cn12:7119:7119 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
        cn12:7119:7140 [0] NCCL INFO Using network IB
    """, why="hosts print their own"),
    near_miss("version_mismatch", "one version on all hosts", """
        cn11:5021:5021 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
        cn12:7119:7119 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
    """),
    near_miss("version_mismatch", "logs of two runs with communicators of their own", {
        "monday.log": """
            cn11:5021:5021 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
            cn11:5021:5044 [0] NCCL INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x71aa - Init COMPLETE
        """,
        "friday.log": """
            cn12:9120:9120 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
            cn12:9120:9150 [0] NCCL INFO ncclCommInitRank comm 0x8b20 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x90cd - Init COMPLETE
        """,
    }),
    fires("networks_differ", "net-plugin-mismatch", """
        > cn11:5021:5060 [0] NCCL INFO Using network IB
        > cn12:7119:7140 [0] NCCL INFO Using network IB
        > cn13:6003:6041 [0] NCCL INFO Using network Socket
    """, severity="fatal"),
    fires("networks_differ", "net-plugin-mismatch", """
        > cn11:5021:5060 [0] transport/net_ib.cc:915 NCCL WARN NET/IB : Attempted to connect incompatible devices. Local device mlx5_0:1/IB, remote mlx5_2:1/RoCE
    """, why="link layers"),
    fires("networks_differ", "net-plugin-mismatch", {
        "cn11.log": "> cn11:5021:5060 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)\n",
        "cn12.log": "> cn12:7119:7140 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n",
    }, why="a plugin on one host only"),
    near_miss("networks_differ", "a process that tries one network and settles on another counts with the last", """
        cn11:5021:5060 [0] NCCL INFO Using network IBext
        cn11:5021:5060 [0] NCCL INFO Using network IB
        cn12:7119:7140 [0] NCCL INFO Using network IB
    """),
    near_miss("networks_differ", "two runs with communicators of their own", """
        cn11:5021:5060 [0] NCCL INFO Using network Socket
        cn11:5021:5060 [0] NCCL INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x71aa - Init COMPLETE
        cn12:7119:7140 [0] NCCL INFO Using network Socket
        cn12:7119:7140 [0] NCCL INFO ncclCommInitRank comm 0x5c40 rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x71aa - Init COMPLETE
        cn11:6021:6060 [0] NCCL INFO Using network IB
        cn11:6021:6060 [0] NCCL INFO ncclCommInitRank comm 0x8b20 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x90cd - Init COMPLETE
        cn12:8119:8140 [0] NCCL INFO Using network IB
        cn12:8119:8140 [0] NCCL INFO ncclCommInitRank comm 0x8e77 rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x90cd - Init COMPLETE
    """),
    fires("networks_differ", "net-plugin-mismatch", """
        > cn11:5021:5060 [0] NCCL INFO Using network Socket
        cn11:5021:5060 [0] NCCL INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x71aa - Init COMPLETE
        > cn12:7119:7140 [0] NCCL INFO Using network IB
        cn12:7119:7140 [0] NCCL INFO ncclCommInitRank comm 0x5c40 rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x71aa - Init COMPLETE
    """, why="one communicator"),
    fires("settings_differ", "env-mismatch-between-ranks", """
        > cn11:5021:5060 [0] NCCL INFO NCCL_ALGO set by environment to Ring
        > cn12:7119:7140 [0] NCCL INFO NCCL_ALGO set by environment to Tree
    """),
    near_miss("settings_differ", "interfaces may have other names on other hosts", """
        cn11:5021:5060 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0
        cn12:7119:7140 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens5f0
        cn11:5021:5060 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22
        cn12:7119:7140 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22
    """),
    near_miss("settings_differ", "trials on command lines of one shell", """
        cn11:5021:5060 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22
        mpirun -np 16 -x NCCL_ALGO=Ring ./all_reduce_perf -b 8 -e 1G -f 2
        mpirun -np 16 -x NCCL_ALGO=Tree ./all_reduce_perf -b 8 -e 1G -f 2
    """),
    fires("collectives_differ", "collective-mismatch", """
        > RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=57, OpType=ALLREDUCE, TensorShape=[4096], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda)), but Rank 5 is running collective: CollectiveFingerPrint(SequenceNumber=57, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda)).
    """),
    fires("collectives_differ", "collective-mismatch", """
        > cn12:7119:7151 [1] transport/net_socket.cc:556 NCCL WARN NET/Socket : peer 10.7.3.12<40112> message truncated : receiving 524288 bytes instead of 262144. If you believe your socket network is in a healthy state, there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks
    """, why="other counts"),
    fires("collectives_differ", "debug-tool-false-positive", """
        > RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=9OpType=BARRIER), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=8OpType=BARRIER).
    """, severity="minor", why="only the checker's own numbers differ"),
    near_miss("collectives_differ", "a length read from another protocol's text", """
        cn11:5021:5033 [0] bootstrap.cc:168 NCCL WARN Message truncated : received 542393671 bytes instead of 4096
    """),
    near_miss("collectives_differ", "a call of a collective in a traceback", """
        Traceback (most recent call last):
            torch.distributed.all_reduce(loss)
        ValueError: loss is nan
    """),
    fires("debugger_noise", "debug-tool-false-positive", """
        > warning: Cuda API error detected: cudaDeviceEnablePeerAccess returned (0x2c0)
        > ========= Program hit CUDA_ERROR_NOT_FOUND (error 500) due to "named symbol not found" on CUDA API call to cuGetProcAddress_v2.
    """, severity="minor"),
    near_miss("debugger_noise", "a memory error of the program", """
        warning: Cuda API error detected: cudaMemcpyAsync returned (0x2bc)
        ========= Program hit cudaErrorIllegalAddress (error 700) due to "an illegal memory access was encountered" on CUDA API call to cudaStreamSynchronize.
    """),
    fires("rank_behind", "rank-late-or-stuck", """
        > comm 7c41d2e8a03b55f1 RUNNING MISMATCH
        > Rank 4 has launched up to operation 4410
        > Rank 5 has launched up to operation 4409
    """),
    fires("rank_behind", "rank-late-or-stuck", """
        > RuntimeError: Rank 6 failed to pass monitoredBarrier in 90000 ms
    """, why="monitored barrier"),
    fires("rank_behind", "rank-late-or-stuck", """
        > [rank0]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] Exception (either an error or timeout) detected by watchdog at work: 812, last enqueued work: 815, last completed work: 811
        > [rank3]:[E1104 09:12:41.902 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception (either an error or timeout) detected by watchdog at work: 812, last enqueued work: 811, last completed work: 811
    """, why="work enqueued"),
    near_miss("rank_behind", "all ranks launched the same operations", """
        16 ranks have launched up to operation 4410
        #0-0 (7c41d2e8a03b55f1) OK
    """),
    near_miss("rank_behind", "equal work on all ranks", """
        [rank0]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] failure detected by watchdog PG status: last enqueued work: 815, last completed work: 811
        [rank3]:[E1104 09:12:41.902 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by watchdog PG status: last enqueued work: 815, last completed work: 811
    """),
    fires("timeout_without_witness", "rank-late-or-stuck", """
        > [rank4]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
    """, why="nothing else was read"),
    fires("timeout_without_witness", "hang-inside-collective", """
        > [rank4]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
        >       0         1         4         8        32        32   RUNNING      OK
    """, why="RAS sees no difference"),
    fires("timeout_without_witness", "collective-mismatch", """
        > [rank4]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
        > [rank5]:[E1104 09:12:41.207 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600044 milliseconds before timing out.
    """, why="other operations at one sequence number"),
    near_miss("timeout_without_witness", "the Flight Recorder names the missing rank", """
        [rank4]:[E1104 09:12:41.118 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
        nccl:all_reduce input [[4096]] output [[4096]] missing ranks: {7} state=scheduled
    """),
    near_miss("timeout_without_witness", "a time-out of something else", """
        [W1104 09:12:41 socket.cpp:663] waited 1800000 milliseconds for the store
    """),
    fires("process_died", "peer-process-died", """
        > [ 8123.551020] Out of memory: Killed process 81423 (python3) total-vm:418812340kB, anon-rss:201004128kB
        > cn12:7119:7151 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer cn11.cluster<33514>
    """),
    fires("process_died", "peer-process-died", """
        > mpirun noticed that process rank 3 with PID 0 on node cn12 exited on signal 9 (Killed).
    """, why="launcher"),
    fires("process_died", "peer-process-died", """
        > cn12:7119:7151 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer cn11.cluster<33514>
    """, why="the effect alone"),
    near_miss("process_died", "the service thread at a normal end", """
        cn12:7119:7151 [1] NCCL INFO [Service thread] Connection closed by localRank 1
        cn12:7119:7119 [1] NCCL INFO comm 0x5a10 rank 9 nranks 16 cudaDev 1 busId 43000 - Destroy COMPLETE
    """),
    fires("process_died", "peer-process-died", """
        > srun: error: cn12: task 3: Killed
    """, why="Slurm"),
    near_miss("process_died", "IPv6 is tried first: a warning of healthy jobs", """
        [W1104 09:10:01.331 socket.cpp:697] [c10d] The client socket has failed to connect to [cn11]:29500 (errno: 97 - Address family not supported by protocol).
    """),
    near_miss("process_died", "a child that ended by itself with a code", """
        failed (exitcode: 1) local_rank: 3 (pid: 81423) of binary: /usr/bin/python3
    """),
    fires("collectives_differ", "env-mismatch-between-ranks", """
        > cn2:70:99 [1] transport/net_socket.cc:451 NCCL WARN NET/Socket : peer 10.4.0.9<40112> message truncated : receiving 614400 bytes instead of 65536. If you believe your socket network is in healthy state, there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks
    """, severity="fatal", why="a slot of LL128 for one of LL: 120*640*8 and 8*512*16 bytes"),
    fires("collectives_differ", "collective-mismatch", """
        > receiving 52000 bytes instead of 40000
    """, why="a size that is no slot, quoted without its head"),
    near_miss("collectives_differ", "bytes that are received", """
        receiving 52000 bytes from 10.4.0.9
    """),
    fires("version_mismatch", "env-mismatch-between-ranks", {
        "cn1.log": """
            > NCCL version 2.26.2+cuda12.8
            cn1:10:20 [0] NCCL INFO ncclCommInitRank comm 0x77 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
        "cn2.log": """
            > NCCL version 2.23.4+cuda12.6
            cn2:10:20 [0] NCCL INFO ncclCommInitRank comm 0x78 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
    }, why="a line without host, in files of one host each"),
    fires("set_on_some_hosts", "env-mismatch-between-ranks", {
        "cn1.log": """
            > cn1:10:20 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0
            cn1:10:20 [0] NCCL INFO ncclCommInitRank comm 0x77 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
        "cn2.log": """
            cn2:10:20 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0
            > cn2:10:20 [0] NCCL INFO NCCL_PROTO set by environment to Simple
            cn2:10:20 [0] NCCL INFO ncclCommInitRank comm 0x78 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
    }, severity="fatal"),
    near_miss("set_on_some_hosts", "a host that prints no variable at all may have it too", {
        "cn1.log": """
            cn1:10:20 [0] NCCL INFO ncclCommInitRank comm 0x77 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
        "cn2.log": """
            cn2:10:20 [0] NCCL INFO NCCL_PROTO set by environment to Simple
            cn2:10:20 [0] NCCL INFO ncclCommInitRank comm 0x78 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x9a1b2c3d - Init COMPLETE
        """,
    }),
    fires("process_died", "peer-process-died", """
        > [1402.33] pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=979
        [1402.35]  mem_cgroup_out_of_memory+0x131/0x150
    """, severity="fatal", why="mm/oom_kill.c, the line that names the victim is cut off"),
    fires("process_died", "peer-process-died", """
        > [88.1] Memory cgroup out of memory: Kill process 4711 (python3) score 1971 or sacrifice child
    """, why="the words of kernels before 4.19"),
    near_miss("process_died", "a daemon asks for memory and nobody complains", """
        [1402.33] snapd invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
    """),
    fires("process_died", "peer-process-died", """
        > Fatal Python error: Segmentation fault
        > cn2:70:99 [1] NCCL INFO [Service thread] Connection closed by localRank 3
        > cn2:71:98 [2] NCCL INFO [Service thread] Connection closed by localRank 3
    """, why="a crash, and the others name one rank"),
    near_miss("process_died", "service threads close at a normal end too", """
        cn2:70:99 [1] NCCL INFO [Service thread] Connection closed by localRank 3
        cn2:71:98 [2] NCCL INFO [Service thread] Connection closed by localRank 3
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_a_rank_is_behind_in_the_words_of_ncclras():
    """NVIDIA/nccl src/ras/client_support.cc; section Warnings of `ncclras`."""
    check(fires("rank_behind", "rank-late-or-stuck", """
        > #0-0 (7c41d2e8a03b55f1) MISMATCH
          Communicator ranks have different collective operation counts
        >   15 ranks have launched up to operation 4410
        >   1 rank has launched up to operation 4409
        >   Rank 5 -- GPU 5 managed by process 81423 on node 10.7.3.12
    """))  # fmt: skip


def test_a_crash_in_the_words_of_dmesg():
    """arch/x86/mm/fault.c; journalctl puts the host in front instead of the time since boot."""
    check(fires("process_died", "peer-process-died", """
        > [  812.101] python3[81423]: segfault at 0 ip 00007f1c22b0a1f0 sp 00007ffd31c0 error 4 in libnccl.so.2[7f1c22a00000+9000000]
    """))  # fmt: skip
