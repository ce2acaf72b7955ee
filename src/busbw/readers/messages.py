"""Single messages of the programs around NCCL: one to five lines pasted from PyTorch, CUDA, UCX, NVSHMEM, MPI, launchers, shells.

Each message alone tells something, so no block is needed; their full formats have readers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

__all__ = ["READER", "MessageReader"]

_GID_TYPE = "NCCL src/transport/net_ib.cc, 2.21 and later; UCCL util_rdma.h"
_UCCL_RDMA = "UCCL util_rdma.h"
_MOONCAKE = "Mooncake mooncake-transfer-engine, rdma_context.cpp"

PYTORCH: tuple[Template, ...] = (
    *(
        Template("torch.watchdog_timeout", pattern, "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp", "error")
        for pattern in (
            "[Rank {rank:d}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq:d}, OpType={op:w}, {work:s}) ran for {ran_ms:d} milliseconds",
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq:d}, OpType={op:w}, {work:s}) ran for {ran_ms:d} milliseconds",
            "[Rank {rank:d}] Watchdog caught collective operation timeout: WorkNCCL({work:s}) ran for {ran_ms:d} milliseconds",
            "Watchdog caught collective operation timeout{work:s}",
        )
    ),
    Template(
        "torch.work_status",
        "Rank {rank:d}]{what:s}last enqueued work: {enqueued:d}, last completed work: {completed:d}",
        "ProcessGroupNCCL.cpp",
        "info",
    ),
    Template(
        "torch.work_status",
        "Rank {rank:d}]{what:s}last enqueued NCCL work: {enqueued:d}, last completed NCCL work: {completed:d}",
        "ProcessGroupNCCL.cpp",
        "info",
    ),
    Template(
        "torch.work_status",
        "last enqueued work: {enqueued:d}, last completed work: {completed:d}",
        "ProcessGroupNCCL.cpp",
        "info",
    ),
    Template(
        "torch.work_status",
        "last enqueued NCCL work: {enqueued:d}, last completed NCCL work: {completed:d}",
        "ProcessGroupNCCL.cpp",
        "info",
    ),
    Template(
        "torch.fingerprint_mismatch",
        "Detected mismatch between collectives on ranks. Rank {first:d} is running collective: CollectiveFingerPrint({first_print:s}), "
        "but Rank {second:d} is running collective: CollectiveFingerPrint({second_print:s}).",
        "torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
        "error",
    ),
    Template(
        "torch.fingerprint_mismatch",
        "Detected mismatch between collectives on ranks. Rank {first:d} is running {rest:s}",
        "torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
        "error",
    ),
    Template(
        "torch.barrier_missed",
        "~Rank {rank:d} failed to pass monitoredBarrier in {ms:d} ms",
        "ProcessGroupGloo.cpp",
        "error",
    ),
    Template(
        "torch.barrier_missed",
        "~Ranks {ranks:s} failed to pass monitoredBarrier in {ms:d} ms",
        "ProcessGroupGloo.cpp",
        "error",
    ),
    Template(
        "torch.barrier_missed",
        "~[Rank {reporter:d}]: Rank {rank:d} failed to pass monitoredBarrier",
        "ProcessGroupGloo.cpp",
        "error",
    ),
    Template(
        "torch.flight_mismatch",
        "Error type: {error:w}, Expected {rest:s}",
        "torch/distributed/flight_recorder",
        "error",
    ),
    Template("torch.flight_mismatch", "Error type: COLLECTIVE_{error:w}", "torch/distributed/flight_recorder", "error"),
    Template(
        "torch.missing_ranks", "~missing ranks: {{{ranks:s}}}{rest:s}", "torch/distributed/flight_recorder", "error"
    ),
    Template("torch.missing_ranks", "~missing ranks{rest:s}", "torch/distributed/flight_recorder", "error"),
    Template(
        "torch.communicator_aborted", "NCCL communicator was aborted on rank {rank:d}", "ProcessGroupNCCL.cpp", "error"
    ),
    Template(
        "torch.taken_down",
        "To avoid data inconsistency, we are taking the entire process down",
        "ProcessGroupNCCL.cpp",
        "error",
    ),
    Template("torch.store_lost", "~failed to recv, got 0 bytes", "TCPStore.cpp", "error"),
    Template("torch.store_lost", "~recvValue failed on {what:s}", "TCPStore.cpp", "error"),
    Template(
        "torch.store_lost",
        "~The client socket has {what:s} to connect to {where:s}",
        "torch/csrc/distributed/c10d/socket.cpp",
        "error",
    ),
    Template("torch.traceback", "^Traceback (most recent call last)", "Python", "error"),
    Template(
        "torch.child_failed",
        "failed (exitcode: {code:d}) local_rank: {local_rank:d} (pid: {pid:d})",
        "torch/distributed/elastic",
        "error",
    ),
    Template(
        "torch.child_signal",
        "~Signal {signal:d} ({name:w}) received by PID {pid:d}",
        "torch/distributed/elastic",
        "error",
    ),
    Template(
        "torch.rank_exited",
        "process {index:d} terminated with signal {name:w}",
        "torch/multiprocessing/spawn.py",
        "error",
    ),
    Template(
        "torch.barrier_device_unknown",
        "~using GPU {gpu:d} to perform barrier as devices used by this process are currently unknown",
        "",
        "warning",
    ),
    Template("torch.collective_call", "torch.distributed.{collective:w}(", "Python stack", "info"),
    Template(
        "torch.nonblocking_unsupported",
        "NCCL COMM NONBLOCKING USED WITH UNSUPPORTED NCCL VERSION",
        "torch/csrc/cuda/nccl.cpp",
        "error",
    ),
    Template(
        "torch.out_of_memory",
        "~CUDA out of memory. Tried to allocate{rest:s}",
        "c10/cuda/CUDACachingAllocator.cpp",
        "error",
    ),
    Template("torch.out_of_memory", "~HIP out of memory. Tried to allocate{rest:s}", "c10/hip", "error"),
)
CUDA: tuple[Template, ...] = (
    Template(
        "cuda.ecc_uncorrectable", "~uncorrectable ECC error encountered", "cudaErrorECCUncorrectable 214", "error"
    ),
    Template("cuda.nvlink_error", "~uncorrectable NVLink error", "cudaErrorNvlinkUncorrectable 220", "error"),
    Template(
        "cuda.contained",
        "~Invalid access of peer GPU memory over nvlink or a hardware error",
        "cudaErrorContained 226, CUDA 12.8",
        "error",
    ),
    Template("cuda.contained", "CUDA_ERROR_CONTAINED", "cuda.h, CUDA 12.8", "error"),
    Template("cuda.not_initialised", "~system not yet initialized", "cudaErrorSystemNotReady 802", "error"),
    Template(
        "cuda.bad_state",
        "~the operation cannot be performed in the present state",
        "cudaErrorIllegalState 401",
        "error",
    ),
    Template("cuda.peer_unsupported", "~peer access is not supported", "cudaErrorPeerAccessUnsupported 217", "error"),
    Template(
        "cuda.driver_mismatch",
        "~system has unsupported display driver / cuda driver combination",
        "cudaErrorSystemDriverMismatch 803",
        "error",
    ),
    Template(
        "cuda.driver_mismatch", "~Driver/library version mismatch", "NVML_ERROR_LIB_RM_VERSION_MISMATCH 18", "error"
    ),
    Template("cuda.stream_capture", "cudaErrorStreamCapture{which:w}", "CUDA runtime", "error"),
    Template(
        "cuda.stream_capture",
        "~operation not permitted when stream is capturing",
        "cudaErrorStreamCaptureUnsupported 900",
        "error",
    ),
    Template(
        "cuda.stream_capture",
        "~operation would make the legacy stream depend on a capturing blocking stream",
        "cudaErrorStreamCaptureImplicit 906",
        "error",
    ),
    Template(
        "cuda.stream_capture",
        "~operation failed due to a previous error during capture",
        "cudaErrorStreamCaptureInvalidated 901",
        "error",
    ),
    Template(
        "cuda.stream_capture",
        "~dependency created on uncaptured work in another stream",
        "cudaErrorStreamCaptureIsolation 905",
        "error",
    ),
    Template("cuda.not_permitted", "~operation not permitted in expression cuMem{call:s}", "nvbandwidth", "error"),
    Template(
        "cuda.peer_unsupported", "~mapping of buffer object failed", "cudaErrorMapBufferObjectFailed 205", "error"
    ),
    Template("debug.sanitizer", "Program hit {error:s} on CUDA API call to {call:w}", "compute-sanitizer", "warning"),
    Template("debug.cuda_gdb", "Cuda API error detected: {call:w} returned ({code:x})", "cuda-gdb", "warning"),
    Template("cuda.not_permitted", "cuMemCreate{what:s} operation not permitted", "cudaErrorNotPermitted 800", "error"),
    Template("cuda.fabric_refused", "~cuMemCreate failed{what:s}", "CUDA driver API", "error"),
    Template(
        "cuda.fabric_refused", "~cuMemImportFromShareableHandle{what:s}failed{rest:s}", "CUDA driver API", "error"
    ),
    Template(
        "cuda.import_refused",
        "~cuMemImportFromShareableHandle{what:s}invalid resource handle",
        "cudaErrorInvalidResourceHandle 400",
        "error",
    ),
    Template("cuda.out_of_memory", "~CUDA error: out of memory", "cudaErrorMemoryAllocation 2", "error"),
    Template("cuda.device_lost", "~Unable to determine the device handle for GPU{rest:s}", "nvidia-smi", "error"),
    Template("cuda.device_lost", "~GPU is lost{rest:s}", "nvidia-smi, NVML_ERROR_GPU_IS_LOST", "error"),
    Template("cuda.error", "CUDA error: {what:s}", "", "error"),
    Template("cuda.error", "HIP error: {what:s}", "", "error"),
    Template("imex.channel_missing", "~nvidia-caps-imex-channels{rest:s}", "IMEX", "error"),
    Template("imex.not_running", "~nvidia-imex{rest:s}fail{more:s}", "IMEX", "error"),
    Template(
        "imex.no_address",
        "~No matching network interface found for any IP addresses",
        "nvidia-imex, /var/log/nvidia-imex.log",
        "error",
    ),
    Template("imex.session_taken", "~Failed to allocate Imex session", "nvidia-imex, NV_ERR_IN_USE", "error"),
    Template("imex.domain", "^Domain State: {state:w}", "nvidia-imex-ctl -N", "info"),
    Template(
        "fabric_manager.nothing_to_do",
        "NV_WARN_NOTHING_TO_DO",
        "nvidia-fabricmanager on a machine without NVSwitch",
        "info",
    ),
    Template(
        "fabric_manager.multicast_error", "~in the multicast team request{rest:s}", "nvidia-fabricmanager", "error"
    ),
    Template(
        "fabric_manager.failed", "Unknown option: {path:s}fabricmanager.cfg", "nvidia-fabricmanager-start.sh", "error"
    ),
    Template(
        "fabric_manager.switch_error",
        "~detected NVSwitch fatal error {sxid:d} on fid {rest:s}",
        "nvidia-fabricmanager, /var/log/fabricmanager.log",
        "error",
    ),
    Template("fabric_manager.failed", "~fabric manager {what:s}fail{rest:s}", "nvidia-fabricmanager", "error"),
    Template(
        "fabric_manager.version_mismatch",
        "~NVIDIA GPU driver interface version {ours:w} don{apostrophe:s}t match with driver version {theirs:w}",
        "nvidia-fabricmanager; the apostrophe is a typographic one after a word processor",
        "error",
    ),
    Template(
        "fabric_manager.not_running",
        "~fabric manager found but not active",
        "gpud components/accelerator/nvidia/fabric-manager/component.go",
        "error",
    ),
    Template(
        "fabric_manager.not_running",
        "~fabric manager is not active",
        "gpud components/accelerator/nvidia/fabric-manager/component.go",
        "error",
    ),
    Template(
        "fabric_manager.fabric_not_ready",
        "~UVM Persistence mode because{gap:s}NVLink fabric is no",
        "nvidia-persistenced --uvm-persistence-mode, 570 and later",
        "error",
    ),
    Template(
        "fabric_manager.not_running", "~nvidia-fabricmanager.service{rest:s}inactive{more:s}", "systemctl", "error"
    ),
)
UCX_AND_FABRIC_LIBRARIES: tuple[Template, ...] = (
    Template("system.memlock_low", "~max locked memory{gap:s}(kbytes, -l) {kbytes:d}", "ulimit -a", "info"),
    Template("system.memlock_bytes", "Max locked memory {soft:d} {hard:w} bytes", "/proc/PID/limits", "info"),
    Template("system.memlock_unlimited", "Max locked memory unlimited {hard:w} bytes", "/proc/PID/limits", "info"),
    Template("system.peer_memory_absent", "~memory_peers/{module:s}: No such file", "sysfs", "info"),
    Template("system.peer_memory_absent", "~memory_peers/{module:w} does not exist", "sysfs", "info"),
    Template("system.memlock_unlimited", "~max locked memory{gap:s}(kbytes, -l) unlimited", "ulimit -a", "info"),
    Template(
        "ucx.memlock",
        "Please set max locked memory (ulimit -l) to 'unlimited' (current: {kbytes:d} kbytes)",
        "UCX ib_log.c",
        "error",
    ),
    Template(
        "ucx.connect_failed",
        "connect(fd={fd:d}, dest_addr={address:w}) failed: {error:s}",
        "UCX src/ucs/sys/sock.c",
        "error",
    ),
    Template(
        "ucx.qp_modify_failed",
        "mlx5dv_devx_qp_modify({opcode:x}) failed, syndrome {syndrome:x}: {error:s}",
        "UCX src/uct/ib/mlx5/dv/ib_mlx5_dv.c",
        "error",
    ),
    Template(
        "verbs.call_failed", "mlx5dv_devx_obj_create({object:w}) failed{rest:s}: {error:s}", "UCX ib_mlx5_dv.c", "error"
    ),
    Template(
        "ucx.retry_exceeded", "~transport retry count{rest:s} exceeded", "UCX, ibv_wc_status_str, Open MPI", "error"
    ),
    Template(
        "ucx.retry_exceeded", "~retry count between two MPI processes has been exceeded", "Open MPI openib", "error"
    ),
    Template("verbs.modify_failed", "~failed to modify QP {state:s}", "libibverbs users", "error"),
    Template("verbs.modify_failed", "~failed to transition QP to RTR{rest:s}", "libibverbs users", "error"),
    Template("ucx.retry_exceeded", "IBV_WC_RETRY_EXC_ERR", "verbs", "error"),
    Template("verbs.call_failed", "ibv_{call:w}({arguments:s}) failed: {error:s}", "UCX", "error"),
    Template(
        "verbs.call_failed", "~failed to create {object:w} QP {arguments:s}: {error:s}", "UCX ib_iface.c", "error"
    ),
    Template("verbs.call_failed", "ibv_{call:w} failed: {error:s}", "UCX, libfabric, MPI", "error"),
    Template("verbs.call_failed", "ibv_create_{call:w}: {error:s}", "libfabric", "error"),
    Template("ucx.cq_failed", "~ibv_create_cq({arguments:s}) failed: {error:s}", "UCX", "error"),
    Template("verbs.reg_failed", "ibv_reg_mr failed (errno {errno:d})", "MSCCL++ src/core/ib.cc", "error"),
    Template("verbs.reg_failed", "ibv_reg_dmabuf_mr failed (errno {errno:d})", "MSCCL++ src/core/ib.cc", "error"),
    Template("ucx.reg_failed", "~ibv_reg_mr({arguments:s}) failed: {error:s}", "UCX", "error"),
    Template("ucx.tcp_lane", "lane[{lane:d}] tcp/{interface:w}: added", "UCX proto_common.c", "info"),
    Template("ucx.lane", "lane[{lane:d}] {transport:w}: added", "UCX proto_common.c", "info"),
    Template("ucx.tcp_protocol", "copy-in tcp/{interface:w}", "UCX proto_debug.c", "info"),
    Template("ucx.lanes", "ucp_context_{context:d} {scope:w} cfg#{index:d} {lanes:s}", "UCX ucp_worker.c", "info"),
    Template(
        "ucx.pcie", "PCIe gen{generation:d} {width:d}x, effective throughput {megabytes_per_s:f}", "UCX topo.c", "info"
    ),
    Template("ucx.transport_missing", "~transport{what:s} is not available", "UCX", "warning"),
    Template("ucx.transport_missing", "~transports {what:s} are not available", "UCX", "warning"),
    Template("ucx.no_transport", "~no {kind:s} transport to {peer:s}", "UCX wireup/select.c", "error"),
    Template("ucx.no_cuda", "~UCX{what:s}not {compiled:s} with {feature:w} support", "Open MPI, UCX users", "warning"),
    Template("ucx.no_cuda", "~cuda{what:s}not {compiled:w} in UCX", "UCX users", "warning"),
    Template("ucx.no_cuda", "~ucx_info -d{what:s} no cuda{rest:s}", "a note about ucx_info", "warning"),
    Template("ucx.configured", "~configured with: {options:s}", "ucx_info -v", "info"),
    Template("nixl.transfer_stage", "~Time to {stage:s} xfer: {ms:f} ms", "NIXL users", "info"),
    Template("nixl.no_rdma", "~UCX {rest:s}no RDMA{more:s}", "NIXL", "warning"),
    Template("nvshmem.uar_unmapped", "~GPU cannot map UAR of device {device:w}", "NVSHMEM ibgda.cpp", "error"),
    Template(
        "nvshmem.register_refused",
        "~cudaHostRegister with IoMemory failed with error={code:d}",
        "NVSHMEM ibgda.cpp",
        "error",
    ),
    Template("nvshmem.gpu_map_failed", "~ibgda_nic_mem_gpu_map failed{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.uar_denied", "~cannot allocate mlx5dv_devx_uar{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template(
        "nvshmem.buffer_refused", "~cannot allocate buffer on the specified memory type", "NVSHMEM ibgda.cpp", "error"
    ),
    Template("nvshmem.devx_denied", "~mlx5dv_devx_{what:w} failed{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.devx_denied", "~cannot {what:s}mlx5dv_devx{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.nic_unsupported", "~is not enumerated as an mlx5 device", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.nic_unsupported", "~not an mlx5 device", "NVSHMEM users", "error"),
    Template("nvshmem.nic_unsupported", "Unable to dlopen libmlx5dv", "NVSHMEM", "warning"),
    Template("nvshmem.cuda_status", "~non-zero status: {code:d} {what:s}", "NVSHMEM", "error"),
    Template("nvshmem.nic_unsupported", "~IBGDA{what:s}not support{rest:s}", "NVSHMEM", "error"),
    Template(
        "nvshmem.nic_unsupported", "~device {device:w} is not a {what:s}mlx5{rest:s}", "NVSHMEM ibgda.cpp", "error"
    ),
    Template("nvshmem.no_device", "~no active {what:s}IBGDA{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.no_device", "~unable to find any {what:s}IBGDA{rest:s}", "NVSHMEM ibgda.cpp", "error"),
    Template("nvshmem.warning", "NVSHMEM WARN {message:s}", "NVSHMEM src/host/util/debug.cpp", "warning"),
)
TRANSFER_LIBRARIES: tuple[Template, ...] = (
    Template("rdma.gid_type_unreadable", "~read failed in ncclIbRoceGetVersionNum: {error:s}", _GID_TYPE, "error"),
    Template("rdma.gid_type_unreadable", "~open failed in ncclIbRoceGetVersionNum: {error:s}", _GID_TYPE, "error"),
    Template("rdma.gid_type_unreadable", "Check failed: ncclIbRoceGetVersionNum({rest:s}", _UCCL_RDMA, "error"),
    Template("mooncake.no_gid", "No suitable GID found on {device:w}", _MOONCAKE, "warning"),
    Template(
        "mooncake.gid_without_interface",
        "User-specified GID index {index:d} on {device:w} has no associated network device{rest:s}",
        _MOONCAKE,
        "warning",
    ),
    Template("mooncake.gid", "RDMA device: {device:w} LID: {lid:d}, GID: (GID_Index {index:d}) {gid:w}", _MOONCAKE, "info"),
    Template("mooncake.gid", "RDMA device: {device:w} LID: {lid:d}, GID: ({index:d}) {gid:w}", _MOONCAKE, "info"),
    Template("mooncake.device_failed", "Failed to open device {device:w} on port{port:s}with GID {index:w}", _MOONCAKE, "error"),
    Template("mooncake.no_nic", "RdmaTransport: No available RNIC", "Mooncake rdma_transport.cpp", "error"),
    Template("mooncake.peer_memory_required", "DMA BUF supported required for GPU RDMA{rest:s}", _MOONCAKE, "error"),
    Template(
        "gloo.ib_completion",
        "wc->status == IBV_WC_SUCCESS. {status:d} vs {expected:d}. {what:s}",
        "gloo/transport/ibverbs/pair.cc",
        "error",
    ),
    Template(
        "gloo.peer_unreachable",
        "SO_ERROR: {error:s}, remote=[{address:w}",
        "gloo/transport/tcp/pair.cc, error.cc",
        "error",
    ),
    Template(
        "gloo.mesh_failed",
        "Gloo connectFullMesh failed with {what:s}",
        "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
        "error",
    ),
    Template(
        "gloo.loopback",
        "Unable to resolve hostname to a (local) address. Using the loopback address as fallback{rest:s}",
        "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
        "warning",
    ),
)  # fmt: skip
"""Libraries with RDMA or TCP code of their own: UCCL, Mooncake, gloo."""

LAUNCHERS: tuple[Template, ...] = (
    Template(
        "mpi.unexpected_address", "Source IP of socket: {address:w}", "Open MPI btl/tcp/help-mpi-btl-tcp.txt", "error"
    ),
    Template(
        "mpi.inbound_dropped",
        "Open MPI detected an inbound MPI TCP connection request from a peer",
        "Open MPI btl/tcp/help-mpi-btl-tcp.txt",
        "error",
    ),
    Template(
        "mpi.daemon_unreachable",
        "A process or daemon was unable to complete a TCP connection",
        "Open MPI, PRRTE oob/tcp/oob_tcp_connection.c",
        "error",
    ),
    Template("mpi.remote_host", "^ Remote host: {address:w}$", "Open MPI, PRRTE oob/tcp/oob_tcp_connection.c", "info"),
    Template("mpi.tcp_refused", "connect() to {address:w} failed: {error:s}", "Open MPI btl_tcp_endpoint.c", "error"),
    Template(
        "mpi.tcp_unexpected_peer",
        "received unexpected process identifier {peer:s}",
        "Open MPI btl_tcp_endpoint.c",
        "error",
    ),
    Template("launcher.signal", "~on node {host:w} exited on signal {signal:d} ({name:s})", "mpirun", "error"),
    Template("launcher.signal", "~srun: error: {host:w}: task {task:s}: {name:s}", "srun", "error"),
    Template("launcher.signal", "~srun: error: {host:w}: tasks {task:s}: {name:s}", "srun", "error"),
    Template("launcher.oom", "~slurmstepd: error: Detected {count:d} oom{rest:s}", "slurmstepd", "error"),
    Template("launcher.oom", "~OOMKilled", "kubectl", "error"),
    Template("launcher.died", "~a process or daemon {what:s}died{rest:s}", "mpirun", "error"),
    Template("launcher.died", "~The actor died {what:s}", "Ray", "error"),
    Template("launcher.died", "~worker died {what:s}", "Ray, vLLM", "error"),
    Template("nccl.result_text", "~unhandled cuda error{rest:s}", "ncclGetErrorString", "error"),
    Template("nccl.result_text", "~unhandled system error{rest:s}", "ncclGetErrorString", "error"),
    Template(
        "nccl.result_text",
        "internal error - please report this issue to the NCCL developers{rest:s}",
        "ncclGetErrorString",
        "error",
    ),
    Template(
        "nccl.remote_result", "~remote process exited or there was a network error", "ncclGetErrorString", "error"
    ),
    Template("nccl.result_text", "~ncclUnhandledCudaError{rest:s}", "PyTorch", "error"),
    Template("nccl.result_text", "~ncclSystemError{rest:s}", "PyTorch", "error"),
    Template("nccl.remote_result", "~ncclRemoteError{rest:s}", "PyTorch", "error"),
)
SHELL: tuple[Template, ...] = (
    Template("system.torch_nccl_version", "^({major:d}, {minor:d}, {patch:d})$", "torch.cuda.nccl.version()", "info"),
    Template("system.package_name", "^Name: nvidia-nccl-{variant:w}", "pip show", "info"),
    Template("system.package_version", "^Version: {version:w}", "pip show", "info"),
    Template("system.package_listed", "^nvidia-nccl-{variant:w} {version:w}", "pip list", "info"),
    Template("system.library_file", "^/{path:s}/libnccl.so.{version:w}$", "find, ldconfig", "info"),
    Template("system.library_link", "libnccl.so.{major:w} -> {target:w}", "ls -l", "info"),
    Template("system.package_listed", "^libnccl{kind:s}-{version:w}+cuda{cuda:w}", "rpm -qa", "info"),
    Template("system.package_listed", "libnccl2 {version:w}+cuda{cuda:w}", "dpkg -l, apt", "info"),
    Template("system.library_loaded", "libnccl.so.{major:d} => {path:w}", "ldd", "info"),
    Template("system.undefined_symbol", "~undefined symbol: {symbol:w}", "ld.so", "error"),
    Template("system.library_symbol_version", "~version `{version:w}' not found{rest:s}", "ld.so", "error"),
    Template("system.cpu_frequency_throttled", "~Clocks Throttle Reasons{rest:s}", "nvidia-smi -q", "info"),
    Template("gpu.throttle_reason", "^ {reason:s} Slowdown : Active", "nvidia-smi -q -d PERFORMANCE", "warning"),
    Template("gpu.throttle_reason", "~{reason:s}due to thermal violation{rest:s}", "DCGM health", "warning"),
    Template("straggler.elapsed", "~elapsed time of nodes are {{{values:s}}}", "DLRover node check", "info"),
    Template("gpu.throttle_reason", "^ SW {reason:s} Cap : Active", "nvidia-smi -q -d PERFORMANCE", "warning"),
    Template("system.shm_size", "^shm {size:w} {used:w} {free:w} {share:w} /dev/shm", "df -h", "info"),
    Template("system.shm_size", "^tmpfs {size:w} {used:w} {free:w} {share:w} /dev/shm", "df -h", "info"),
    Template("system.shm_size", "~/dev/shm {what:s} {size:d} MB", "a note", "info"),
    Template(
        "system.bus_error_shm",
        "~bus error encountered in worker{rest:s}insufficient shared memory",
        "PyTorch data loader",
        "error",
    ),
    Template("note.figure", "^{condition:s}: max busbw {value:f} GB/s", "a note with a measurement", "info"),
    Template("note.figure", "^{condition:s}: busbw {value:f} GB/s", "a note with a measurement", "info"),
    Template("note.figure", "^{condition:s}: {value:f} GB/s", "a note with a measurement", "info"),
    Template(
        "system.affinity_refused", "sched_setaffinity({arguments:s}", "Python os.sched_setaffinity, NCCL", "error"
    ),
    Template("gpu.ecc_pending", "~Remapping Failure Occurred : Yes", "nvidia-smi -q -d ROW_REMAPPER", "error"),
)

VERSIONS_AND_CRASHES: tuple[Template, ...] = (
    Template(
        "driver.version",
        "NVIDIA UNIX Open Kernel Module for {machine:w} {version:w}",
        "NVIDIA driver, /proc/driver/nvidia/version",
        "info",
    ),
    Template(
        "driver.version",
        "NVIDIA UNIX {machine:w} Kernel Module {version:w}",
        "NVIDIA driver, /proc/driver/nvidia/version",
        "info",
    ),
    Template("driver.version", "Driver Version: {version:w}", "nvidia-smi", "info"),
    Template("crash.assertion", "Assertion `{condition:s}' failed", "assert(), UCX", "error"),
    Template("crash.signal", "Caught signal {signal:d} ({name:s}", "UCX src/ucs/debug/debug.c", "error"),
    Template("crash.signal", "Signal: {name:s} ({signal:d})", "Open MPI opal/util/stacktrace.c", "error"),
    Template(
        "crash.segfault",
        "Segmentation fault: address not mapped to object at address {address:x}",
        "UCX src/ucs/debug/debug.c",
        "error",
    ),
    Template("crash.segfault", "Fatal Python error: Segmentation fault", "Python faulthandler", "error"),
    Template("crash.segfault", "Segmentation fault (core dumped)", "bash", "error"),
    Template("crash.segfault", "Fatal Python error: Bus error", "Python faulthandler", "error"),
    *(
        Template("crash.frame", function, "a stack", "info")
        for function in (
            "rasMsgHandlePeersUpdate",
            "ncclCuMemHostEnable",
            "uct_rocm_ipc_iface_t_init",
            "uct_md_query_tl_resources",
        )
    ),
)
"""Versions of libraries, and crashes: what known defects are recognised by. Stacks only by the functions that those name."""

TEMPLATES = PYTORCH + CUDA + TRANSFER_LIBRARIES + UCX_AND_FABRIC_LIBRARIES + LAUNCHERS + SHELL + VERSIONS_AND_CRASHES


class MessageReader(Lines):
    """Messages that stand on their own."""

    name = "messages"
    fallback = True
    templates: Sequence[Template] = TEMPLATES


READER = MessageReader()
