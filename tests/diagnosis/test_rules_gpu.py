"""The GPU itself: NVIDIA driver's Xid lines (document XID Errors), CUDA error texts, nvidia-smi -q."""

from __future__ import annotations

import pytest

from busbw.diagnosis.xids import Xid, xids

from .told import RULE, Case, check, fires, near_miss, rule_findings, told

CASES = (
    fires("memory_error", "gpu-ecc", """
        > [1209331.104] NVRM: Xid (PCI:0000:4e:00): 48, pid=20114, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU.
        [1209331.204] NVRM: Xid (PCI:0000:4e:00): 45, pid=20114, name=python3, Ch 00000008
    """, severity="fatal"),
    fires("memory_error", "gpu-ecc", """
        > [rank9]: RuntimeError: CUDA error: uncorrectable ECC error encountered
    """, why="CUDA"),
    near_miss("memory_error", "a row that was remapped is a repair", """
        [1209331.104] NVRM: Xid (PCI:0000:4e:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.
    """),
    near_miss("memory_error", "no remapping failed", """
        Remapped Rows
            Correctable Error                 : 1
            Remapping Failure Occurred        : No
    """),
    fires("off_the_bus", "gpu-fallen-off-bus", """
        > [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 79, pid=4411, GPU has fallen off the bus.
        > [ 9120.011] NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.
    """),
    fires("off_the_bus", "gpu-fallen-off-bus", """
        > Unable to determine the device handle for GPU0000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU
    """, why="NVML"),
    near_miss("off_the_bus", "a GPU that is named while it comes up", """
        [   11.204] NVRM: The NVIDIA GPU 0000:c1:00.0
        [   11.301] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15
    """),
    near_miss("off_the_bus", "a memory page fault of the program", """
        [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 31, pid=4411, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000
    """),
    fires("throttled", "gpu-throttling", """
        Clocks Event Reasons
            Idle                              : Not Active
        >     HW Thermal Slowdown             : Active
    """, severity="major"),
    fires("throttled", "gpu-throttling", """
        >     SW Power Cap                    : Active
    """, severity="minor", why="the power cap is normal at full load"),
    near_miss("throttled", "no reason is active", """
            SW Power Cap                      : Not Active
            HW Slowdown                       : Not Active
            HW Thermal Slowdown               : Not Active
    """),
    fires("out_of_memory", "gpu-oom", """
        > cn31:2214:2290 [5] include/alloc.h:179 NCCL WARN Cuda failure 2 'out of memory'
        > cn31:2214:2290 [5] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 10485760 bytes
    """),
    fires("out_of_memory", "gpu-oom", """
        > torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.02 GiB is free.
    """, why="PyTorch"),
    near_miss("out_of_memory", "memory of the host", """
        cn31:2214:2290 [5] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory
        [ 8123.551020] Out of memory: Killed process 2214 (python3) total-vm:418812340kB
    """),
    fires("stream_capture", "cuda-graph-capture", """
        > cn31:2214:2290 [5] enqueue.cc:1402 NCCL WARN Cuda failure 900 'operation not permitted when stream is capturing'
    """),
    fires("stream_capture", "cuda-graph-capture", """
        > torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture
    """, why="PyTorch"),
    near_miss("stream_capture", "a capture that went well", """
        INFO 11-04 09:12:41 model_runner.py:1518] Capturing CUDA graphs finished in 21 secs.
    """),
    fires("memory_error", "gpu-ecc", """
        > [1209331.104] NVRM: Xid (PCI:0000:4e:00): 92, pid='<unknown>', name=<unknown>, High single-bit ECC error rate
    """, severity="minor", why="many corrected errors are a remark"),
    fires("driver_fault", "gpu-driver-fault", """
        > [ 9120.011] NVRM: Xid (PCI:0000:4e:00): 119, pid=20114, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL).
        [ 9120.211] NVRM: Xid (PCI:0000:4e:00): 45, pid=20114, name=python3, Ch 00000008
    """, severity="fatal", why="GSP"),
    fires("driver_fault", "gpu-driver-fault", """
        > [ 9120.011] NVRM: Xid (PCI:0000:4e:00): 62, pid='<unknown>', name=<unknown>, 26e5(2d50) 00000000 00000000
    """, severity="fatal", why="PMU"),
    fires("driver_fault", "gpu-driver-fault", """
        > [ 9120.011] NVRM: Xid (PCI:0000:4e:00): 54, pid='<unknown>', name=<unknown>
    """, severity="major", why="a cable"),
    fires("driver_fault", "gpu-driver-fault", """
        > cn31:2214:2290 [5] init.cc:1402 NCCL WARN Cuda failure 999 'unknown error'
    """, why="CUDA 999"),
    near_miss("driver_fault", "a fault of the program, and what follows from it", """
        [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 31, pid=4411, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000
        [ 9120.012] NVRM: Xid (PCI:0000:c1:00): 43, pid=4411, name=python3, Ch 00000010
        [ 9120.013] NVRM: Xid (PCI:0000:c1:00): 45, pid=4411, name=python3, Ch 00000011
    """),
    fires("program_fault", "gpu-program-fault", """
        > [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 31, pid=4411, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000
        [ 9120.012] NVRM: Xid (PCI:0000:c1:00): 43, pid=4411, name=python3, Ch 00000010
    """, severity="fatal", why="page fault"),
    fires("program_fault", "gpu-program-fault", """
        > cn31:2214:2290 [5] enqueue.cc:1402 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'
    """, severity="fatal", why="noticed by NCCL"),
    fires("program_fault", "gpu-program-fault", """
        > [rank3]: torch.AcceleratorError: CUDA error: device-side assert triggered
    """, why="PyTorch"),
    fires("program_fault", "gpu-program-fault", """
        cn31:2214:2290 [5] NCCL INFO comm 0x55d0 rank 13 nranks 16 cudaDev 5 nvmlDev 5 busId c1000 commId 0x9f2a - Init COMPLETE
        > [ 9120.011] NVRM: Xid (PCI:0000:4e:00): 13, pid=77, name=someone, Graphics Exception: ESR 0x505648=0x1000e
    """, severity="minor", why="another process on another GPU"),
    near_miss("program_fault", "the end of a process follows from something else", """
        [ 9120.012] NVRM: Xid (PCI:0000:c1:00): 43, pid=4411, name=python3, Ch 00000010
        [ 9120.013] NVRM: Xid (PCI:0000:c1:00): 45, pid=4411, name=python3, Ch 00000011
    """),
    fires("unavailable", "gpu-unavailable", """
        > cn31:2214:2290 [0] init.cc:902 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device c1000
    """, why="two ranks"),
    fires("unavailable", "gpu-unavailable", """
        > RuntimeError: CUDA error: invalid device ordinal
    """, why="CUDA 101"),
    fires("unavailable", "gpu-unavailable", """
        > cn31: Test CUDA failure common.cu:1049 'no CUDA-capable device is detected'
    """, why="CUDA 100, nccl-tests"),
    fires("unavailable", "gpu-unavailable", """
        > RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable
    """, why="CUDA 46"),
    near_miss("unavailable", "Fabric Manager has not done its work", """
        RuntimeError: CUDA error: system not yet initialized
    """),
    fires("driver_does_not_fit", "plugin-library-version-mismatch", """
        > cn31:2214:2290 [0] init.cc:1402 NCCL WARN Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'
    """, why="CUDA 35"),
    fires("driver_does_not_fit", "plugin-library-version-mismatch", """
        > Failed to initialize NVML: Driver/library version mismatch
        > [ 9120.011] NVRM: API mismatch: the client has the version 550.90.07, but
    """, why="a driver that was updated under a running kernel"),
    fires("driver_does_not_fit", "plugin-library-version-mismatch", """
        > RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination
    """, why="CUDA 803"),
    fires("driver_does_not_fit", "library-bug-version", """
        > RuntimeError: CUDA error: no kernel image is available for execution on the device
    """, why="not built for this GPU"),
    near_miss("driver_does_not_fit", "versions that are only listed", """
        | NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
        cn31:2214:2290 [0] NCCL INFO cudaDriverVersion 12080
    """),
    fires("untrained_links", "nvlink-down", """
        > [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 136, pid='<unknown>', name=<unknown>, Link Training Failed on link 3
    """),
    near_miss("untrained_links", "other NVLink errors have a rule of their own", """
        [ 9120.011] NVRM: Xid (PCI:0000:c1:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x0)
    """),
    fires("switch_remarks", "fabric-manager-state", """
        > [ 117.984] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt
        > [ 117.985] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Severity 0 Engine instance 60 Sub-engine instance 00
    """, severity="minor"),
    near_miss("switch_remarks", "a fatal one has a rule of its own", """
        [131453.740743] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
    """),
    near_miss("multicast_set_up", "the lines behind a non-fatal SXid say no more than it", """
        [ 117.984] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt
        [ 117.985] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Severity 0 Engine instance 60 Sub-engine instance 00
        [ 117.986] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Data {0x50610002, 0x10100030}
    """),
    fires("nic_fault", "nic-fault", """
        > [ 9120.011] mlx5_core 0000:4b:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count
    """),
    near_miss("nic_fault", "a port that went down by itself", """
        [ 9120.011] mlx5_core 0000:4b:00.0 ens5f0np0: Link down
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_an_xid_names_gpu_host_and_rank():
    """NCCL says on which bus a rank's GPU sits (`busId c1000` is 0000:c1:00.0); the kernel's line names the bus, syslog the host."""
    texts = {
        "nccl.log": "cn31:2214:2290 [5] NCCL INFO comm 0x55d0 rank 13 nranks 16 cudaDev 5 nvmlDev 5 busId c1000 commId 0x9f2a - Init COMPLETE\n",
        "syslog": "Nov 30 09:00:00 cn31 kernel: NVRM: Xid (PCI:0000:c1:00): 120, pid='<unknown>', name=<unknown>, GSP task exception\n",
    }
    (finding,) = rule_findings(RULE["driver_fault"], texts)
    assert finding.summary.startswith("GPU 0000:c1:00.0 of cn31 (rank 13): Xid 120: ")


@pytest.mark.parametrize("xid", [x for x in xids().values() if x.cause != "nvlink"], ids=lambda x: str(x.code))
def test_every_known_xid_is_either_explained_or_known_to_fail_nothing(xid):
    """Causes that fail a job alone give a finding; consequences and information give none that matters. Nothing stays unexplained."""
    text = f"[ 9120.011] NVRM: Xid (PCI:0000:c1:00): {xid.code}, pid=4411, name=python3, {xid.name}\n"
    diagnosis = told(text).diagnosis
    assert not [c for c in diagnosis.checks if c.what == "unexplained"]
    assert bool([f for f in diagnosis.findings if f.severity != "minor"]) == (
        xid.cause not in ("consequence", "information")
    )


def test_an_unknown_xid_stays_unexplained():
    checks = told("[ 9120.011] NVRM: Xid (PCI:0000:c1:00): 999, pid=4411, name=python3\n").diagnosis.checks
    assert [c.what for c in checks] == ["unexplained"]


def test_rows_of_the_table_of_xids_say_everything():
    row = {"code": 13, "name": "N", "meaning": "m", "cause": "application", "action": "a", "source": "s"}
    assert Xid(**row).code == 13
    for wrong in ({"code": 0}, {"cause": "weather"}, {"meaning": ""}, {"source": ""}):
        with pytest.raises(ValueError, match=r"xids\.json, Xid \d+: "):
            Xid(**(row | wrong))
