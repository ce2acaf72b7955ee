"""The GPU itself: memory errors, lost from the bus, throttled, out of memory, captured."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import without_repeats

__all__ = ["RULES"]

ECC_XIDS = {48, 64, 94, 95, 140}
"""Double-bit error, row remapper failure, contained, uncontained, unrecovered ECC error (NVIDIA, "XID Errors")."""
OFF_BUS_XIDS = {79}


def memory_error(facts: Facts) -> Iterator[Finding]:
    """An uncorrectable error of GPU memory.

    Fires on the CUDA error, on Xid 48, 64, 94, 95 and 140, and on a failed row remapping. Xid 63 (remapping event) alone is a repair.
    Xid 45 beside them is the process being ended. Silent on Xids of other matters.
    """
    errors = [e for text, e in facts.cuda_errors() if "uncorrectable ecc" in text]
    errors = without_repeats(errors, facts.all("cuda.ecc_uncorrectable", "gpu.ecc_pending"))
    xids = [e for e in facts.all("kernel.xid") if e.number("xid") in ECC_XIDS]
    if errors or xids:
        yield Finding(
            "gpu-ecc", 0.93, "fatal", "uncorrectable GPU memory error" + (f" (Xid {xids[0].fields['xid']}, {xids[0].fields['bus_id']})" if xids else ""), lines_of([*xids, *errors]),
            "Drain the node, reset the GPU, check row remapping (nvidia-smi -q -d ROW_REMAPPER); service the GPU if it returns.",
            ["nvidia-smi -q -d ECC,ROW_REMAPPER", "dmesg | grep -i xid"],
        )  # fmt: skip


def off_the_bus(facts: Facts) -> Iterator[Finding]:
    """The GPU no longer answers over PCIe.

    Fires on Xid 79, on "fallen off the bus" without any Xid (newer drivers at probe), and on NVML losing a GPU.
    Silent on a GPU that is only named while it comes up, and on a single failed probe.
    """
    xids = [e for e in facts.all("kernel.xid") if e.number("xid") in OFF_BUS_XIDS or "fallen off the bus" in e.text]
    lost = facts.all("kernel.gpu_lost", "cuda.device_lost", "kernel.gpu_probe_failed", "kernel.gpu_init_failed")
    if xids or facts.all("kernel.gpu_lost", "cuda.device_lost") or len(lost) > 1:
        yield Finding(
            "gpu-fallen-off-bus", 0.93, "fatal", "a GPU is no longer reachable over PCIe", lines_of([*xids, *lost, *facts.all("kernel.gpu_named")]),
            "Drain the node, power-cycle it, reseat the GPU; if it returns check power, riser and cooling, then service the GPU.", ["lspci | grep -i nvidia: does it count all", "dmesg | grep -i -e xid -e aer"],
        )  # fmt: skip


def throttled(facts: Facts) -> Iterator[Finding]:
    """Clocks are held down by heat or power.

    Fires on active slowdown reasons of nvidia-smi -q and on the driver's thermal messages. The software power cap alone is normal at full load.
    Silent on reasons that are not active.
    """
    hard = [e for e in facts.all("gpu.throttle_reason") if "Power" not in e.fields.get("reason", "")]
    soft = [e for e in facts.all("gpu.throttle_reason") if "Power" in e.fields.get("reason", "")]
    if hard:
        yield Finding(
            "gpu-throttling", 0.8, "major", "the GPU lowers its clocks for heat or a power brake", lines_of([*hard, *soft]),
            "Check inlet temperature, fans and power supply; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER.", ["nvidia-smi dmon -s pucv under load"],
        )  # fmt: skip
    elif soft:
        yield Finding(
            "gpu-throttling", 0.3, "minor", "the power cap lowers the clocks", lines_of(soft), "Normal at full load; compare with the other GPUs.", ["nvidia-smi -q -d POWER"],
        )  # fmt: skip


def out_of_memory(facts: Facts) -> Iterator[Finding]:
    """GPU memory ran out in NCCL or beside it.

    Fires on NCCL's failed allocations, CUDA error 2 and PyTorch's own message. Host memory (/dev/shm, locked memory) is another matter.
    Silent on processes that the kernel killed.
    """
    allocations = facts.all("nccl.cuda_alloc_failed")
    errors = [e for text, e in facts.cuda_errors() if "out of memory" in text]
    torch = facts.all("torch.out_of_memory", "cuda.out_of_memory")
    if allocations or errors or torch:
        yield Finding(
            "gpu-oom", 0.85, "fatal", "GPU memory ran out" + (" when NCCL made its buffers" if allocations or any(e.name.startswith("nccl.") for e in errors) else ""),
            lines_of([*allocations, *errors, *torch]),
            "Make communicators before memory is full, leave head-room, use fewer channels or smaller NCCL_BUFFSIZE, skip groups of one rank.",
            ["nvidia-smi --query-gpu=memory.used,memory.total --format=csv just before", "NCCL_DEBUG_SUBSYS=ALLOC"],
        )  # fmt: skip


def stream_capture(facts: Facts) -> Iterator[Finding]:
    """A call that is illegal while a CUDA graph is captured.

    Fires on the capture errors (CUDA 900 to 906, HIP's words for them). Silent on captures that went well.
    """
    events = [e for text, e in facts.cuda_errors() if "captur" in text]
    events += facts.all("nccl.capture_refused")
    events = without_repeats(events, facts.all("cuda.stream_capture"))
    if events:
        yield Finding(
            "cuda-graph-capture", 0.88, "fatal", "a call that is not allowed during graph capture was made", lines_of(events),
            "Make communicators and first calls before capture, capture on one stream with thread-local mode, keep watchdogs' event queries out (TORCH_NCCL_ASYNC_ERROR_HANDLING, newer PyTorch).",
            ["CUDA_LAUNCH_BLOCKING=1 and the stack of the failing call", "AMD_LOG_LEVEL=4 on ROCm"],
        )  # fmt: skip


RULES = (memory_error, off_the_bus, throttled, out_of_memory, stream_capture)
