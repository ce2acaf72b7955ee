"""CPU masks and NUMA domains: NCCL src/graph/topo.cc, src/graph/search.cc, nvidia-smi topo -m."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t0\n> GPU1\tSYS\t X \t32-63\t1\n"

CASES = (
    fires("narrowed_mask", "cpu-affinity-pinning", """
        > cn17:611:640 [3] NCCL INFO Setting affinity for GPU 3 to 02
    """, severity="major"),
    fires("narrowed_mask", "cpu-affinity-pinning", {
        "mpirun.log": "> cn17:611:640 [3] NCCL INFO Setting affinity for GPU 3 to ffffffff,00000000\n",
        "srun.log": "> cn18:712:744 [3] NCCL INFO Setting affinity for GPU 3 to 0f\n",
    }, severity="minor", why="two runs differ"),
    near_miss("narrowed_mask", "equally wide", """
        cn17:611:640 [3] NCCL INFO ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0-31
        cn18:712:744 [3] NCCL INFO ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0-31
        cn18:713:745 [4] NCCL INFO ncclTopoGetCpuAffinity: Affinity for GPU 4 is 32-63
    """),
    fires("nic_on_the_other_socket", "numa-misplacement", """
        > cn17:611:640 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PIX/SYS, sameChannels 1
        cn17:611:640 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0
    """, severity="major"),
    near_miss("nic_on_the_other_socket", "GPU and NIC under one switch", """
        cn17:611:640 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 48.000000/48.000000, type NVL/PIX, sameChannels 1
        cn17:611:640 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
    """),
    near_miss("nic_on_the_other_socket", "one host: no NIC is used", """
        cn17:611:640 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PIX/SYS, sameChannels 1
        cn17:611:640 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
    """),
    near_miss("nic_on_the_other_socket", "every GPU has a NIC of its own socket", """
                GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity
        GPU0     X      SYS     PIX     SYS     0-31    0
        GPU1    SYS      X      SYS     PIX     32-63   1
        NIC0    PIX     SYS      X      SYS
        NIC1    SYS     PIX     SYS      X
    """),
    fires("bound_to_the_other_socket", "numa-misplacement", {"topo.txt": TOPOLOGY, "nccl.log": """\
        cn17:610:639 [0] NCCL INFO Setting affinity for GPU 0 to ffff
        > cn17:611:640 [1] NCCL INFO Setting affinity for GPU 1 to ffffffff
    """}, severity="major"),
    near_miss("bound_to_the_other_socket", "the mask overlaps the GPU's CPUs", {"topo.txt": TOPOLOGY.replace("> ", ""), "nccl.log": """\
        cn17:611:640 [1] NCCL INFO Setting affinity for GPU 1 to ffffffff,ffffffff
    """}),
    near_miss("bound_to_the_other_socket", "only some GPUs are visible, and nobody says which", {"topo.txt": TOPOLOGY.replace("> ", ""), "nccl.log": """\
        cn17:611:640 [0] NCCL INFO CUDA_VISIBLE_DEVICES set by environment to 0
        cn17:611:640 [1] NCCL INFO Setting affinity for GPU 1 to ffffffff
        export CUDA_VISIBLE_DEVICES=0
    """}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
