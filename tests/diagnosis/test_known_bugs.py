"""The table of known defects: for each a text as an affected run prints it, which fires in the bad versions and in no other.

Wordings are those of the sources that the rows name; hosts, numbers and paths are made up.
"""

from __future__ import annotations

import re

import pytest

from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.library_version import LIBRARIES, KnownBug, known_bug, known_bugs

from .told import rule_findings

_WARN = "cn41:310:355 [0] {} NCCL WARN {}"
_SEGFAULT = "[cn41:310  :0:355] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)"
_UCX = "[1731632081.707655] [cn41:310  :0]        {} UCX  ERROR {}"
_ASSERT = "[cn41:310  :0:355]        {} Assertion `{}' failed"

SHOWN = {
    "kernel-shared-memory-limit": "cn41:310:355 [0] NCCL INFO cudaArch 1200 ncclMaxSharedMem 98624 exceeds device/fn maxSharedMem 96240",
    "uds-address-in-use": _WARN.format(
        "misc/ipcsocket.cc:57",
        "UDS: Binding to socket /tmp/nccl-socket-2-e647f8d8e15809a1 failed : Address already in use (98)",
    ),
    "connect-not-retried": _WARN.format("misc/socket.cc:586", "socketPollConnect poll() returned 1, no POLLOUT events"),
    "network-error-called-internal": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, internal error - please report this issue to the NCCL developers",
    "nic-without-bus-id": _WARN.format("graph/xml.h:85", "Attribute busid of node nic not found"),
    "barrier-mixed-with-connect": _WARN.format(
        "bootstrap.cc:90", "Message truncated : received 1024 bytes instead of 8"
    ),
    "ras-peers-update": " 3  /opt/nccl/lib/libnccl.so(rasMsgHandlePeersUpdate+0x2f) [0x7ff1c18c6331]",
    "shm-probe-differs": _WARN.format(
        "misc/shmutils.cc:87", "Error while attaching to shared memory segment /dev/shm/nccl- (size 0)"
    ),
    "send-recv-size-check": _WARN.format(
        "transport/net_ib.cc:800",
        "NET/IB : collective mismatch error local size 16 remote 32 addr 7f00 rkey 1 seq 1/1",
    ),
    "gid-change-unknown": _WARN.format("transport/net_ib.cc:184", "NET/IB : mlx5_0:1 unknown event type (18)"),
    "fuse-xml-numa": _WARN.format("graph/xml.cc:900", "TopoFuseXmls : could not find CPU numa ID."),
    "xml-node-limit": _WARN.format("graph/xml.h:150", "Error : XML parser is limited to 1024 nodes"),
    "nvls-net-masks": _WARN.format(
        "graph/search.cc:700", "Gpus 0 and 1 both have a type of 4 with net 0 yet have different netMasks of 1 and 3"
    ),
    "nic-fusion-mixed-links": _WARN.format(
        "transport/net_ib.cc:450",
        "NET/IB : Trying to merge multiple devices together with different link_layer properties mlx5_0 -> 1, mlx5_1 -> 2. Try only selecting NICs with one type of link using NCCL_IB_HCA",
    ),
    "fallback-names-net-0": _WARN.format("graph/topo.h:245", "Could not find NET with id 0"),
    "work-elements-limit": _WARN.format("enqueue.cc:300", "Trying to launch too many work elements, max is 512"),
    "aggregation-limit": _WARN.format("enqueue.cc:310", "Too many aggregated operations on channel 0 (256 max)"),
    "async-operations-limit": _WARN.format("group.cc:60", "Too many async operations in progress, max is 128"),
    "collectives-limit": _WARN.format("enqueue.cc:180", "Trying to launch too many collectives"),
    "streams-in-a-group": _WARN.format(
        "enqueue.cc:700", "Error : mixing different streams within a group call is not supported."
    ),
    "pxn-visible-devices": _WARN.format(
        "graph/paths.cc:400", "Rank 3 requires NIC 1 but that NIC is not available for rank 2"
    ),
    "captured-stream-lost": _WARN.format(
        "misc/strongstream.cc:180", "Stream is not being captured by the expected graph."
    ),
    "collnet-8-gpus": _WARN.format(
        "init.cc:700", "CollNet currently only supports up to 8 GPUs per node, disabling CollNet"
    ),
    "thread-name-crash": "export NCCL_SET_THREAD_NAME=1\n" + _SEGFAULT,
    "max-p2p-channels-crash": "export NCCL_MAX_P2P_NCHANNELS=1\n" + _SEGFAULT,
    "launch-blocking-hang": "export CUDA_LAUNCH_BLOCKING=1\n[rank0]:[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.",
    "cumem-host-probe-crash": "#3  0x00007f12 in ncclCuMemHostEnable () at misc/cudawrap.cc:80",
    "unknown-link-speed": _UCX.format("ib_iface.c:1674", "Invalid active_speed on mlx5_0:1: 128"),
    "unknown-link-width": _UCX.format("ib_iface.c:947", "Invalid active_width on mlx5_0:1: 16"),
    "interface-activation": _ASSERT.format("ucp_worker.c:728", "wiface->activate_count > 0"),
    "link-local-gid": _ASSERT.format("ib_iface.c:300", "local_gid_u16[5] == 0xffff"),
    "ud-inline-size": _ASSERT.format("ud_iface.c:271", "qp_init_attr.cap.max_inline_data >= UCT_UD_MIN_INLINE"),
    "rocm-ipc-init": "#1  0x00007ffff61d9d0d in uct_rocm_ipc_iface_t_init (self=0x6615c0) at rocm_ipc_iface.c:228",
    "query-resources-loop": "#4  0x00007ffff61d9d0d in uct_md_query_tl_resources () at uct_md.c:200",
    "ud-connect-request": _ASSERT.format(
        "ud_ep.c:1600", "!uct_ud_ep_ctl_op_check(ep, UCT_UD_EP_OP_CREQ) && uct_ud_ep_is_last_ack_received(ep)"
    ),
    "ud-path-index": _ASSERT.format("ud_ep.c:800", "ctl->conn_req.path_index == ep->path_index"),
    "relaxed-ordering-flag": _ASSERT.format("ib_md.c:700", "!(memh->flags & UCT_IB_MEM_FLAG_RELAXED_ORDERING)"),
    "software-atomics-packed": _ASSERT.format("amo_sw.c:200", "req->flags & UCP_REQUEST_FLAG_PROTO_AMO_PACKED"),
    "exported-key-flag": _ASSERT.format("gga_mlx5.c:900", "mlx5_md->super.cap_flags & UCT_MD_FLAG_EXPORTED_MKEY"),
    "ipc-handle-open-twice": _UCX.format(
        "cuda_ipc_iface.c:350",
        "cuIpcOpenMemHandle((CUdeviceptr *)mapped_addr, key->ph, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) is failed. ret:resource already mapped",
    ),
    "nonblocking-check": 'RuntimeError: false INTERNAL ASSERT FAILED at "/torch/csrc/cuda/nccl.cpp":228, please report a bug to PyTorch. NCCL COMM NONBLOCKING USED WITH UNSUPPORTED NCCL VERSION.',
    "topo-group-size": _WARN.format(
        "nccl_net_ofi_create_plugin:210", "NET/OFI rdma plugin constructor: invalid topo group size"
    ),
    "tuner-forced-crash": "export NCCL_ALGO=Ring\n" + _SEGFAULT,
}
"""By id of the defect: what an affected run prints, without its version."""

_VERSION_LINE = {
    "nccl": "NCCL version {}+cuda12.2",
    "ucx": "# Library version: {}",
    "aws-ofi-nccl": "cn41:310:355 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl {}-aws",
    "libfabric": "cn41:310:355 [0] NCCL INFO NET/OFI Using Libfabric version {}",
    "nvidia-driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Nov 28 00:00:00 UTC 2025",
}
BUGS = pytest.mark.parametrize("bug", known_bugs(), ids=lambda bug: bug.id)


def _before(version: tuple[int, ...]) -> tuple[int, ...]:
    """A version shortly below another."""
    *head, last = version
    return (*head, last - 1) if last else (*_before(tuple(head)), 99)


def _with_version(bug: KnownBug, version: tuple[int, ...], text: str) -> str:
    numbers = (*version, *(0 for _ in range(3 - len(version))))
    return _VERSION_LINE[bug.library].format(".".join(map(str, numbers))) + "\n" + text + "\n"


def _found(bug: KnownBug, text: str) -> list[Finding]:
    return [f for f in rule_findings(known_bug, text) if f.summary == f"{bug.library}: {bug.summary}"]


def test_every_defect_has_its_text_and_no_text_is_left_over():
    assert set(SHOWN) == {bug.id for bug in known_bugs()}
    assert {bug.library for bug in known_bugs()} <= set(LIBRARIES) == set(_VERSION_LINE)


@BUGS
def test_fires_in_a_bad_version(bug):
    version = bug.first_bad or _before(bug.fixed_in)
    (finding,) = _found(bug, _with_version(bug, version, SHOWN[bug.id]))
    assert (finding.kind, finding.severity, finding.confidence) == ("library-bug-version", bug.severity, bug.confidence)
    assert finding.lines[0].line == 1, "the version is among the evidence"
    assert finding.remedy.endswith(f"({bug.source})")


@BUGS
def test_silent_in_the_version_that_has_the_fix_and_before_the_defect_came(bug):
    for version in (bug.fixed_in, bug.first_bad and _before(bug.first_bad)):
        if version is not None:
            assert not _found(bug, _with_version(bug, version, SHOWN[bug.id]))


@BUGS
def test_silent_in_a_bad_version_that_shows_nothing(bug):
    version = bug.first_bad or _before(bug.fixed_in)
    assert not _found(bug, _with_version(bug, version, "cn41:310:355 [0] NCCL INFO Connected all rings"))


@BUGS
def test_without_a_version_only_a_message_with_no_other_cause_tells(bug):
    found = _found(bug, SHOWN[bug.id] + "\n")
    assert bool(found) != bug.version_needed
    assert all(f.confidence < bug.confidence for f in found)


@pytest.mark.parametrize("bug", [b for b in known_bugs() if b.setting is not None], ids=lambda bug: bug.id)
def test_silent_where_the_variable_that_it_needs_is_not_set(bug):
    version = bug.first_bad or _before(bug.fixed_in)
    text = re.sub(r"^export.*\n", "", SHOWN[bug.id])
    assert not _found(bug, _with_version(bug, version, text))


def test_rccl_has_defects_of_its_own():
    """RCCL prints the number of the NCCL it was made from; NCCL's table says nothing about it."""
    text = "NCCL version 2.20.3+hip6.0\n" + SHOWN["uds-address-in-use"] + "\n"
    assert not rule_findings(known_bug, text)


def test_the_version_in_an_error_of_pytorch_counts():
    text = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1333, internal error - please report this issue to the NCCL developers, NCCL version 2.18.1\n"
    (finding,) = rule_findings(known_bug, text)
    assert finding.severity == "minor"


def test_rows_of_the_table_can_fire_and_say_where_they_come_from():
    row = {
        "id": "x", "library": "nccl", "events": ("",), "text": re.compile("t"), "setting": None, "first_bad": (2, 1), "fixed_in": (2, 2),
        "version_needed": False, "severity": "fatal", "confidence": 0.5, "summary": "s", "remedy": "r", "source": "u",
    }  # fmt: skip
    assert KnownBug(**row).affects((2, 1, 9)) and not KnownBug(**row).affects((2, 2))
    wrong = (
        {"library": "libc"}, {"events": ()}, {"first_bad": (2, 2)}, {"fixed_in": None}, {"severity": "bad"}, {"confidence": 0.0},
        {"summary": ""}, {"source": ""},
    )  # fmt: skip
    for change in wrong:
        with pytest.raises(ValueError, match=r"known_bugs\.json, x: "):
            KnownBug(**(row | change))
