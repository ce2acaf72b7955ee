"""The GPU itself: NVIDIA driver's Xid lines (document XID Errors), CUDA error texts, nvidia-smi -q."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

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
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
