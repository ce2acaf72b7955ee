"""Libraries that do not fit: NCCL's own words, aws-ofi-nccl, ld.so, pip, ucx_info."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("unexplained_cuda_failure", "library-bug-version", """
        > NCCL WARN Cuda failure 'invalid argument'
    """),
    near_miss("unexplained_cuda_failure", "the source file tells more", """
        cn41:310:355 [6] transport/nvls.cc:187 NCCL WARN Cuda failure 1 'invalid argument'
    """),
    near_miss("unexplained_cuda_failure", "an Xid says why", """
        NCCL WARN Cuda failure 'unspecified launch failure'
        [1209331.104] NVRM: Xid (PCI:0000:4e:00): 31, pid=20114, name=python3, Ch 00000008, MMU Fault
    """),
    near_miss("unexplained_cuda_failure", "an error that speaks for itself", """
        NCCL WARN Cuda failure 'out of memory'
    """),
    fires("known_bug", "library-bug-version", """
        > cn41:310:355 [0] NCCL INFO ncclMaxSharedMem 98624 exceeds device/fn maxSharedMem 96240
    """, severity="fatal"),
    near_miss("known_bug", "the limit is kept", """
        cn41:310:355 [0] NCCL INFO ncclMaxSharedMem 82240 device maxSharedMem 232448
    """),
    fires("plugin_against_older_library", "plugin-library-version-mismatch", """
        > p4d-17:611:640 [0] configure_ep_inorder:188 NCCL WARN NET/OFI Couldn't set FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES. RC: -92, ERROR: Protocol not available
    """),
    fires("plugin_against_older_library", "plugin-library-version-mismatch", """
        > cn17:611:640 [0] NCCL INFO NET/Plugin: dlerror=/opt/plugin/libnccl-net.so: undefined symbol: ibv_reg_dmabuf_mr
    """, why="ld.so"),
    near_miss("plugin_against_older_library", "the plugin is simply absent", """
        cn17:611:640 [0] NCCL INFO NET/Plugin: dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation
    """),
    near_miss("plugin_against_older_library", "a library that communicates nothing", """
        ImportError: /opt/venv/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi
    """),
    fires("several_nccl", "wrong-nccl-loaded", """
        $ pip show nvidia-nccl-cu12
        Name: nvidia-nccl-cu12
        > Version: 2.27.3
        >>> torch.cuda.nccl.version()
        > (2, 21, 5)
    """, severity="minor"),
    fires("several_nccl", "wrong-nccl-loaded", """
        > ImportError: /opt/venv/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister
    """, severity="fatal", why="a symbol is missing"),
    near_miss("several_nccl", "installed and in use are the same", """
        $ pip show nvidia-nccl-cu12
        Name: nvidia-nccl-cu12
        Version: 2.27.3
        >>> torch.cuda.nccl.version()
        (2, 27, 3)
    """),
    near_miss("several_nccl", "the version of another package", """
        $ pip show torch
        Name: torch
        Version: 2.9.0
        >>> torch.cuda.nccl.version()
        (2, 27, 3)
    """),
    fires("ucx_lacks_cuda", "ucx-built-without-feature", """
        > # Configured with: --disable-logging --disable-debug --without-cuda --with-verbs
    """),
    near_miss("ucx_lacks_cuda", "built with CUDA", """
        # Configured with: --disable-logging --disable-debug --with-cuda=/usr/local/cuda --with-verbs
    """),
    fires("links_seen_from_one_end", "library-bug-version", """
        > NCCL version 2.14.1+cuda11.8
        > cn07:90:141 [0] graph/paths.cc:101 NCCL WARN Failed to find reverse path from remNode 0/3b000 nlinks 2 to node 0/86000
    """, severity="fatal", why="an NCCL older than Hopper"),
    fires("links_seen_from_one_end", "nvlink-down", """
        > cn07:90:141 [0] graph/paths.cc:101 NCCL WARN Failed to find reverse path from remNode 0/3b000 nlinks 2 to node 0/86000
    """, why="version unknown"),
    near_miss("links_seen_from_one_end", "the topology was taken in", """
        NCCL version 2.14.1+cuda11.8
        cn07:90:141 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
