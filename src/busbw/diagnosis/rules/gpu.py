"""The GPU itself: what the driver's Xids and CUDA's errors say of memory, bus, driver and program; throttled, out of memory, captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import bus_number, without_repeats
from busbw.diagnosis.xids import Cause, xids

__all__ = ["RULES"]

_PROGRAM_ERRORS = (
    "an illegal memory access was encountered",  # 700
    "device-side assert triggered",  # 710
    "hardware stack error",  # 714
    "an illegal instruction was encountered",  # 715
    "misaligned address",  # 716
    "operation not supported on global/shared address space",  # 717
    "invalid program counter",  # 718
    "the launch timed out and was terminated",  # 702
)
"""CUDA errors that a kernel of the program causes (CUDA runtime API, enum cudaError; the number behind each)."""
_UNAVAILABLE = {
    "no cuda-capable device is detected": "no GPU is visible to a process",  # 100
    "invalid device ordinal": "a process asks for a GPU number that it does not have",  # 101
    "cuda-capable device(s) is/are busy or unavailable": "a GPU is in use by another process, or in exclusive mode",  # 46
    "all cuda-capable devices are busy or unavailable": "a GPU is in use by another process, or in exclusive mode",  # 46, to CUDA 11
}
"""CUDA errors of a process that has not the GPU it wants (CUDA runtime API, enum cudaError), and what they mean."""
_DRIVER_DOES_NOT_FIT = (
    "cuda driver version is insufficient for cuda runtime version",  # 35
    "unsupported display driver / cuda driver combination",  # 803
    "forward compatibility was attempted on non supported hw",  # 804
    "the provided ptx was compiled with an unsupported toolchain",  # 222
)
"""CUDA errors of libraries and a driver that are not of matching versions (CUDA runtime API, enum cudaError)."""
_LINKS_OF_THIS_FILE = {136, 155}
"""NVLink Xids that the rule of inactive links does not read."""
_WATCH_XIDS = {92}
"""Xids that fail nothing but are worth a remark: many corrected memory errors."""


def _of_cause(facts: Facts, *causes: Cause) -> list[Event]:
    """Xid lines whose usual cause is one of these."""
    table = xids()
    return [
        e for e in facts.all("kernel.xid") if (x := table.get(e.number("xid") or 0)) is not None and x.cause in causes
    ]


def _meaning(event: Event) -> str:
    """What the Xid of a line means, with its number."""
    code = event.number("xid") or 0
    return f"Xid {code}: {xids()[code].meaning}"


def _ranks_by_gpu(facts: Facts) -> dict[tuple[str | None, int], int]:
    """Rank by host and bus number of its GPU, as NCCL says it when a communicator is made (src/init.cc, `busId`)."""
    found = {}
    for event in facts.all("nccl.comm"):
        rank, bus = event.number("rank"), bus_number(event.fields.get("bus_id", ""))
        if rank is not None and bus is not None:
            found[event.host, bus] = rank
    return found


def _which(facts: Facts, events: Iterable[Event]) -> str:
    """The GPUs of these kernel lines for people: bus address, host and rank as far as known; empty if no line names one."""
    ranks = _ranks_by_gpu(facts)
    only_host = next(iter(facts.hosts)) if len(facts.hosts) == 1 else None
    names: dict[str, None] = {}
    for event in events:
        address = event.fields.get("bus_id", "")
        if address:
            bus = bus_number(address)
            rank = ranks.get((event.host or only_host, bus)) if bus is not None else None
            on = f" of {event.host}" if event.host else ""
            names[f"GPU {address}{on}" + (f" (rank {rank})" if rank is not None else "")] = None
    return ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of_the_job(facts: Facts, event: Event) -> bool:
    """Whether an Xid line belongs to a rank of the job: its process or its GPU is one. True if nobody says which those are."""
    ranks = _ranks_by_gpu(facts)
    pids = {pid for host, pid in facts.processes if pid is not None and host is not None}
    if not ranks and not pids:
        return True
    pid = event.fields.get("detail", "").partition("pid=")[2].partition(",")[0].strip("'\" ")
    bus = bus_number(event.fields.get("bus_id", ""))
    return pid in {str(p) for p in pids} or any(known == bus for _, known in ranks)


def memory_error(facts: Facts) -> Iterator[Finding]:
    """An uncorrectable error of GPU memory.

    Fires on the CUDA error, on Xid 48, 64, 94, 95, 140, 171 and 172, and on a failed row remapping. Xid 63 (remapping event) alone is a
    repair; Xid 92 (many corrected errors) alone is a remark. Xid 45 beside them is the process being ended. Silent on Xids of other matters.
    """
    errors = [e for text, e in facts.cuda_errors() if "uncorrectable ecc" in text]
    errors = without_repeats(errors, facts.all("cuda.ecc_uncorrectable", "gpu.ecc_pending"))
    said = _of_cause(facts, "memory")
    if errors or said:
        yield Finding(
            "gpu-ecc", 0.93, "fatal", "uncorrectable GPU memory error" + (f" (Xid {said[0].fields['xid']}), {_which(facts, said)}" if said else ""), lines_of([*said, *errors]),
            "Drain the node, reset the GPU, check row remapping (nvidia-smi -q -d ROW_REMAPPER); service the GPU if it returns.",
            ["nvidia-smi -q -d ECC,ROW_REMAPPER", "dmesg | grep -i xid"],
        )  # fmt: skip
    elif watch := [e for e in facts.all("kernel.xid") if e.number("xid") in _WATCH_XIDS]:
        yield Finding(
            "gpu-ecc", 0.2, "minor", f"{_which(facts, watch)}: {_meaning(watch[0])}", lines_of(watch), "Watch the ECC counters; service the GPU if uncorrectable errors follow.",
            ["nvidia-smi -q -d ECC,ROW_REMAPPER"],
        )  # fmt: skip


def remapping_pending(facts: Facts) -> Iterator[Finding]:
    """A row of GPU memory waits for its remapping: the GPU wants a reset.

    Fires on Remapped Rows, Pending: Yes of nvidia-smi -q, or remapped_rows.pending of its CSV. The error that led there was uncorrectable, or many were
    corrected (NVIDIA, "GPU Memory Error Management"); the job goes on until the row is met again. Silent on No, on 0 and on rows that are remapped.
    """
    waiting = [
        d for d in facts.hardware if d.attributes.get("remapped_rows.pending", "").strip().lower() in ("yes", "1")
    ]
    if waiting:
        names = ", ".join(dict.fromkeys(d.bus_id or d.name or "a GPU" for d in waiting))
        yield Finding(
            "gpu-ecc", 0.5, "major", f"a row of the memory of {names} waits for its remapping", lines_of(waiting), "Drain the node and reset the GPU; service it if a remapping fails.",
            ["nvidia-smi -q -d ECC,ROW_REMAPPER", "dmesg -T | grep -i xid: 48, 63, 94, 95"],
        )  # fmt: skip


def off_the_bus(facts: Facts) -> Iterator[Finding]:
    """The GPU no longer answers over PCIe.

    Fires on Xid 79 and 167, on "fallen off the bus" without any Xid (newer drivers at probe), and on NVML losing a GPU.
    Silent on a GPU that is only named while it comes up, and on a single failed probe.
    """
    said = without_repeats(
        _of_cause(facts, "bus"), [e for e in facts.all("kernel.xid") if "fallen off the bus" in e.text]
    )
    lost = facts.all("kernel.gpu_lost", "cuda.device_lost", "kernel.gpu_probe_failed", "kernel.gpu_init_failed")
    if said or facts.all("kernel.gpu_lost", "cuda.device_lost") or len(lost) > 1:
        yield Finding(
            "gpu-fallen-off-bus", 0.93, "fatal", f"{_which(facts, said) or 'a GPU'} is no longer reachable over PCIe", lines_of([*said, *lost, *facts.all("kernel.gpu_named")]),
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


def driver_fault(facts: Facts) -> Iterator[Finding]:
    """The driver, its firmware or a controller inside the GPU stopped, or the GPU did not start.

    Fires on Xids whose usual cause that is: 119 and 120 (GSP), 62 (PMU), 109 (context switch), 143 (initialisation) and others of xids.json;
    also weakly on CUDA's "unknown error" (999) in a line with a source file. Such a GPU must be reset before it works again.
    Silent on faults of the program (Xid 13, 31) and on their consequences (Xid 43, 45), which blame no hardware.
    """
    said = _of_cause(facts, "driver", "hardware")
    if said:
        stopped = _of_cause(facts, "driver")
        worst = (stopped or said)[0]
        action = xids()[worst.number("xid") or 0].action
        yield Finding(
            "gpu-driver-fault", 0.85, "fatal" if stopped else "major", f"{_which(facts, stopped or said)}: {_meaning(worst)}", lines_of(said), f"{action[:1].upper()}{action[1:]}.",
            ["nvidia-bug-report.sh", "dmesg | grep -i -e xid -e gsp: does the same GPU do it again after a reset"],
        )  # fmt: skip
    unknown = [e for text, e in facts.cuda_errors() if text.strip() == "unknown error" and e.file]
    if unknown and not facts.all("kernel.xid"):
        yield Finding(
            "gpu-driver-fault", 0.35, "fatal", "CUDA reports an unknown error: the driver lost the GPU or the program's state on it", lines_of(unknown),
            "Look for an Xid in the kernel's log of that host and time; reset the GPU if there is one.", ["dmesg -T | grep -i -e xid -e nvrm", "nvidia-smi: does it answer"],
        )  # fmt: skip


def program_fault(facts: Facts) -> Iterator[Finding]:
    """A kernel or copy of the program did what the GPU must refuse.

    Fires on CUDA errors 700, 702, 710 and 714 to 718, on "unspecified launch failure" (719) in a line with a source file, and on Xids that
    are usually a program's fault (13, 31, 32, 69, copy engines). The rank that reports it first holds the cause; the error sticks to the
    process, so NCCL is often only where it is noticed. Minor for Xids of a process and GPU that are not the job's. Unsure beside a
    memory, bus or driver error of a GPU. Silent on Xid 43 and 45 alone: they follow from something else.
    """
    errors = [
        e
        for text, e in facts.cuda_errors()
        if any(known in text for known in _PROGRAM_ERRORS) or ("unspecified launch failure" in text and e.file)
    ]
    said = _of_cause(facts, "application")
    ours = [e for e in said if _of_the_job(facts, e)]
    if not errors and not said:
        return
    harder = bool(_of_cause(facts, "memory", "bus", "driver", "hardware")) or bool(facts.all("kernel.gpu_lost"))
    minor = not errors and not ours
    confidence = 0.2 if harder or minor else (0.65 if errors and ours else 0.5)
    what = _meaning((ours or said)[0]) if said else "CUDA reports an illegal access, a failed assertion or the like"
    gpu = _which(facts, ours or said)
    yield Finding(
        "gpu-program-fault", confidence, "minor" if minor else "fatal", (f"{gpu}: " if gpu else "") + what, lines_of([*said, *errors]),
        "Run the rank that failed first with CUDA_LAUNCH_BLOCKING=1, then under compute-sanitizer. The GPU is not to blame unless it is always the same one.",
        ["compute-sanitizer --tool memcheck PROGRAM", "dmesg -T | grep -i xid: an Xid of memory, NVLink or bus before it", "the same job on other GPUs"],
    )  # fmt: skip


def unavailable(facts: Facts) -> Iterator[Finding]:
    """A process cannot have the GPU it asks for: none visible, no such number, busy, or given to two ranks.

    Fires on NCCL's "Duplicate GPU detected" (src/init.cc, 2.5 and later) and on CUDA errors 46, 100 and 101. Unsure where a GPU was lost
    from the bus: then fewer are left. Silent on a system that is not initialised (802): that is Fabric Manager.
    """
    twice = facts.all("nccl.duplicate_gpu")
    if twice:
        yield Finding(
            "gpu-unavailable", 0.9, "fatal", f"ranks {twice[0].fields.get('first')} and {twice[0].fields.get('second')} use the same GPU {twice[0].fields.get('device', '')}".rstrip(), lines_of(twice),
            "Give every rank a GPU of its own: torch.cuda.set_device(LOCAL_RANK), CUDA_VISIBLE_DEVICES per task, no more ranks on a host than GPUs.",
            ["CUDA_VISIBLE_DEVICES and LOCAL_RANK of every rank", "nvidia-smi -L in the container"],
        )  # fmt: skip
    for words, meaning in _UNAVAILABLE.items():
        events = [e for text, e in facts.cuda_errors() if words in text]
        if events:
            lost = facts.all("kernel.gpu_lost", "cuda.device_lost") or _of_cause(facts, "bus", "driver")
            yield Finding(
                "gpu-unavailable", 0.3 if lost else 0.85, "fatal", meaning, lines_of(events),
                "Compare CUDA_VISIBLE_DEVICES, the container's devices and the compute mode with what each rank asks for; end left-over processes.",
                ["nvidia-smi -L; nvidia-smi -q -d COMPUTE", "nvidia-smi: processes that hold the GPU"],
            )  # fmt: skip


def driver_does_not_fit(facts: Facts) -> Iterator[Finding]:
    """CUDA's libraries and the driver are not of matching versions, or a program was not built for this GPU.

    Fires on CUDA errors 35, 222, 803 and 804, on NVML's "Driver/library version mismatch", on the kernel module's "API mismatch", and on
    209 ("no kernel image is available"). Silent where only versions are listed.
    """
    events = [e for text, e in facts.cuda_errors() if any(known in text for known in _DRIVER_DOES_NOT_FIT)]
    events = without_repeats(events, facts.all("cuda.driver_mismatch", "kernel.api_mismatch"))
    if events:
        yield Finding(
            "plugin-library-version-mismatch", 0.88, "fatal", "the NVIDIA driver and CUDA's libraries do not fit together", lines_of(events),
            "After an update of the driver reload its modules or reboot; in a container let the runtime mount the host's libcuda, and choose an image whose CUDA the driver supports.",
            ["cat /proc/driver/nvidia/version; nvidia-smi", "ldconfig -p | grep libcuda.so"],
        )  # fmt: skip
    no_image = [e for text, e in facts.cuda_errors() if "no kernel image is available" in text]
    if no_image:
        yield Finding(
            "library-bug-version", 0.6, "fatal", "a library in use has no code for this GPU's architecture; another version or build has", lines_of(no_image),
            "Use builds (NCCL, PyTorch, the extension that fails) for this compute capability.", ["cuobjdump --list-elf LIBRARY.so", "nvidia-smi --query-gpu=compute_cap --format=csv"],
        )  # fmt: skip


def untrained_links(facts: Facts) -> Iterator[Finding]:
    """An NVLink could not be trained or was declared in error.

    Fires on Xid 136 and 155; other NVLink Xids have a rule of their own. Silent on lines marked Nonfatal.
    """
    said = [
        e
        for e in _of_cause(facts, "nvlink")
        if e.number("xid") in _LINKS_OF_THIS_FILE and "nonfatal" not in e.text.lower()
    ]
    if said:
        yield Finding(
            "nvlink-down", 0.8, "major", f"{_which(facts, said)}: {_meaning(said[0])}", lines_of(said), "Drain the node and reset the GPUs; if it stays, check the path of the link and replace its parts.",
            ["nvidia-smi nvlink -s; nvidia-smi nvlink -e"],
        )  # fmt: skip


def switch_remarks(facts: Facts) -> Iterator[Finding]:
    """An NVSwitch reported errors that it marks as non-fatal.

    Fires on SXid lines with the word Non-fatal, as a remark: traffic goes on, but a link that repeats them deserves a look. Fatal ones have a
    rule of their own. Silent without SXids.
    """
    said = [e for e in facts.all("kernel.sxid") if "non-fatal" in e.text.lower() or "nonfatal" in e.text.lower()]
    if said:
        first = said[0]
        yield Finding(
            "fabric-manager-state", 0.2, "minor", f"NVSwitch {first.fields.get('bus_id')} reports SXid {first.fields.get('sxid')}, marked non-fatal", lines_of([*said, *facts.all("kernel.sxid_detail")]),
            "Note the link; have it looked at if the same one repeats.", ["journalctl -u nvidia-fabricmanager", "nvidia-smi nvlink -e"],
        )  # fmt: skip


def nic_fault(facts: Facts) -> Iterator[Finding]:
    """A NIC's firmware reports an internal error.

    Fires on mlx5_core's health messages (drivers/net/ethernet/mellanox/mlx5/core/health.c). Its ports go down with it, so timeouts of peers
    follow. Weaker on commands that the firmware does not answer (cmd.c) and on its temperature alarm (events.c). Silent on ports that go down and up by themselves.
    """
    sick = facts.all("kernel.nic_health")
    if sick:
        devices = ", ".join(dict.fromkeys(e.fields.get("bus_id", "") for e in sick))
        yield Finding(
            "nic-fault", 0.85, "fatal", f"firmware of the NIC {devices} reports an internal error", lines_of(sick),
            "Drain the node, reset the NIC (mlxfwreset) or power-cycle; update its firmware; replace it if it returns.",
            ["mstdump and devlink health of the device", "dmesg | grep mlx5: the syndrome in the lines that follow"],
        )  # fmt: skip
        return
    silent, hot = facts.all("kernel.nic_command_timeout"), facts.all("kernel.nic_hot")
    if silent or hot:
        devices = ", ".join(dict.fromkeys(e.fields.get("bus_id", "") for e in [*silent, *hot]))
        yield Finding(
            "nic-fault", 0.7 if silent else 0.55, "fatal" if silent else "major",
            f"firmware of the NIC {devices} {'does not answer commands' if silent else 'says that a sensor is too hot'}", lines_of([*silent, *hot]),
            "Drain the node, reset the NIC (mlxfwreset) or power-cycle." if silent else "Check air flow and the transceivers; a NIC or module that is too hot slows or shuts its port.",
            ["devlink health; mget_temp -d DEV", "dmesg | grep mlx5"],
        )  # fmt: skip


RULES = (
    memory_error, remapping_pending, off_the_bus, driver_fault, throttled, out_of_memory, stream_capture, program_fault, unavailable, driver_does_not_fit,
    untrained_links, switch_remarks, nic_fault,
)  # fmt: skip
