"""NCCL_DEBUG logs of NCCL 2.3 to 2.32 and of RCCL, at every level, many ranks interleaved.

What a line means is data: one template a message, several where versions word it differently. Sources name the file of NVIDIA/nccl
that prints the line. Line heads (host:pid:tid [device], launcher prefixes) are taken off by the scanner.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from busbw.collectives import collective_named
from busbw.readers.base import Lines, Template

__all__ = ["READER", "NcclLogReader"]

_LINKS = ("^Channel {channel:d}", "^Ring {channel:d}")
TEMPLATES: tuple[Template, ...] = (
    # --- connections (transport/*.cc) -------------------------------------------------------------------------------------------
    *(
        Template(
            "nccl.link",
            f"{word}{index} : {{src_rank:d}}[{{_src_device:x}}] -> {{dst_rank:d}}[{{_dst_device:x}}]{way} via {{via:s}}",
            "transport/",
            table="links",
        )
        for word in _LINKS
        for index in ("/{_index:d}", "")
        for way in (" [{direction:k}]", "")
    ),
    Template(
        "nccl.link",
        "^{src_rank:d}[{_src_device:x}] -> {dst_rank:d}[{_dst_device:x}] [{direction:k}] via {via:s}",
        "transport/, quoted without its channel",
        table="links",
    ),
    Template(
        "nccl.collnet_link",
        "^CollNet {channel:d}/{index:d} : {src:d} [{direction:w}] via {via:s}",
        "transport/coll_net.cc",
    ),
    # --- calls and choices (enqueue.cc), once a call ------------------------------------------------------------------------------
    Template(
        "nccl.call",
        "^{collective:k}: opCount {op_count:i} sendbuff {_send:x} recvbuff {_recv:x} count {count:d} datatype {dtype:d} op {redop:d} root {root:d} "
        "comm {comm:x} [nranks={ranks:d}]",
        "src/enqueue.cc",
        table="calls",
    ),
    Template(
        "nccl.call",
        "^{collective:k}: opCount {op_count:i} sendbuff {_send:x} recvbuff {_recv:x} count {count:d} datatype {dtype:d} op {redop:d} root {root:d} "
        "comm {comm:x}",
        "src/enqueue.cc",
        table="calls",
    ),
    Template("nccl.call", "^nccl{collective:k}({_arguments:s})", "src/misc/argcheck.cc, level CALL", table="calls"),
    Template(
        "nccl.choice",
        "^{collective:k}: {printed_bytes:d} Bytes -> Algo {algorithm:k} proto {protocol:k} channel{{Lo..Hi}}={{{channel_low:d}..{channel_high:d}}}",
        "src/enqueue.cc, 2.24",
        table="choices",
    ),
    Template(
        "nccl.choice",
        "^{collective:k}: {printed_bytes:d} Bytes -> Algo {algorithm:k} proto {protocol:k} time {time_us:f}",
        "src/enqueue.cc, 2.23",
        table="choices",
    ),
    Template(
        "nccl.choice",
        "^{printed_bytes:d} Bytes -> Algo {algorithm:k} proto {protocol:k} time {time_us:f}",
        "src/enqueue.cc, to 2.22",
        table="choices",
    ),
    Template(
        "nccl.symmetric_choice",
        "^{collective:k} [{_kind:s}]: {printed_bytes:d} Bytes -> Kernel {algorithm:k} nchannels {_channels:d}",
        "2.27",
        table="choices",
    ),
    # --- identity of the process and the communicator (init.cc) ---------------------------------------------------------------------
    Template("nccl.version", "^NCCL version {version:w}", "src/init.cc, without prefix", "info"),
    Template("nccl.rccl_version", "RCCL version : {version:w}", "RCCL src/init.cc", "info"),
    Template("nccl.rccl_version", "^RCCL version {version:w}", "RCCL src/init.cc", "info"),
    Template("nccl.cuda_driver", "^cudaDriverVersion {version:d}", "src/init.cc"),
    Template(
        "nccl.comm",
        "comm {comm:x} rank {rank:d} nranks {ranks:d} cudaDev {cuda_device:d} nvmlDev {nvml_device:d} busId {bus_id:x} "
        "commId {comm_id:x} - Init {state:w}",
        "src/init.cc, 2.18",
    ),
    Template(
        "nccl.comm",
        "comm {comm:x} rank {rank:d} nranks {ranks:d} cudaDev {cuda_device:d} busId {bus_id:x} {identity:s}- Init {state:w}",
        "src/init.cc",
    ),
    Template(
        "nccl.comm",
        "comm {comm:x} rank {rank:d} nranks {ranks:d} cudaDev {cuda_device:d} nvmlDev {nvml_device:d} busId {bus_id:x} {identity:s}- Init {state:w}",
        "src/init.cc",
    ),
    Template(
        "nccl.comm_nodes",
        "^comm {comm:x} rank {rank:d} nRanks {ranks:d} nNodes {nodes:d} localRanks {local_ranks:d} localRank {local_rank:d} MNNVL {mnnvl:d}",
        "src/init.cc, 2.20",
    ),
    Template("nccl.comm_old", "^comm {comm:x} rank {rank:d} nranks {ranks:d}", "src/init.cc, 2.3 to 2.9"),
    Template(
        "nccl.comm_ended",
        "comm {comm:x} rank {rank:d} nranks {ranks:d} cudaDev {cuda_device:d} {identity:s} - {state:w} COMPLETE",
    ),
    Template(
        "nccl.init_timings",
        "Init timings - {function:w}: rank {rank:d} nranks {ranks:d} total {total_s:f} {parts:s}",
        "2.23",
    ),
    Template("nccl.init_timings", "Init timings: rank {rank:d} nranks {ranks:d} total {total_s:f} {parts:s}", "2.22"),
    Template("nccl.bootstrap_timings", "Bootstrap timings total {total_s:f} ({parts:s})", "src/bootstrap.cc, 2.23"),
    Template("nccl.thread_thresholds", "^threadThresholds {thresholds:s}", "src/graph/tuning.cc"),
    *(
        Template(
            "nccl.cost_row", f"^ {function} | {{cells:s}}", "src/graph/tuning.cc, latency us / bandwidth GB/s a cell"
        )
        for function in ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
    ),
    *(
        Template("nccl.cost_header", f"^ {word} | {{cells:s}}", "src/graph/tuning.cc")
        for word in ("Algorithm", "Protocol", "Max NThreads")
    ),
    Template("nccl.allowed", "^Enabled NCCL Func/Proto/Algo Matrix", "src/graph/tuning.cc, 2.23"),
    Template("nccl.p2p_chunk", "^P2P Chunksize set to {bytes:d}", "src/init.cc"),
    Template("nccl.net_plugin_kind", "^Using non-device net plugin version {version:d}", "src/net.cc"),
    Template("nccl.configuration", "^Comm config {name:s} set to {value:s}", "src/init.cc"),
    Template("nccl.connected", "^Connected all {what:w}", "src/init.cc"),
    Template("nccl.connected", "^Connected NVLS {what:w}", "src/transport/nvls.cc"),
    Template(
        "nccl.channels",
        "^{coll:d} coll channels, {collnet:d} collnet channels, {nvls:d} nvls channels, {p2p:d} p2p channels, {per_peer:d} p2p channels per peer",
        "src/init.cc, 2.20",
    ),
    Template(
        "nccl.channels",
        "^{coll:d} coll channels, {nvls:d} nvls channels, {p2p:d} p2p channels, {per_peer:d} p2p channels per peer",
        "2.18",
    ),
    Template(
        "nccl.channels", "^{coll:d} coll channels, {p2p:d} p2p channels, {per_peer:d} p2p channels per peer", "to 2.17"
    ),
    Template("nccl.ring", "^Channel {channel:d}/{channels:d} : {order:s}", "src/init.cc"),
    Template("nccl.trees", "^Trees {trees:s}", "src/init.cc"),
    # --- settings -----------------------------------------------------------------------------------------------------------------------
    Template("nccl.setting", "^{name:k} set by environment to {value:s}", "src/misc/param.cc", table="settings"),
    Template("nccl.setting", "^{name:k} set by {origin:s} to {value:s}", "src/misc/param.cc", table="settings"),
    Template("nccl.setting", "^{name:k} set to {value:s}", "src/misc/socket.cc", table="settings"),
    Template("nccl.setting_out_of_range", "^{name:w} value {value:s} is out of range", "src/"),
    Template("nccl.setting_ignored", "Invalid value {value:s} for {name:w}", "src/"),
    Template("nccl.setting_ignored", "{name:w}={value:w} is invalid", "src/"),
    Template(
        "nccl.setting_ignored",
        "User asked for a minimum of {asked:d} channels, limiting to {value:d}",
        "src/graph/connect.cc",
    ),
    Template(
        "nccl.setting_ignored",
        "User asked for a maximum of {asked:d} channels, setting it to {value:d}",
        "src/graph/connect.cc",
    ),
    Template(
        "nccl.setting_ignored",
        "NCCL_NTHREADS: invalid number of threads {asked:d} ({rule:s}), using {value:d} instead",
        "src/graph/tuning.cc",
    ),
    Template("nccl.setting_ignored", "{name:w}: invalid number of threads {asked:d}", "src/graph/tuning.cc"),
    # --- network choice --------------------------------------------------------------------------------------------------------------------
    Template("nccl.network", "^Using network {network:s}", "src/net.cc"),
    Template("nccl.network", "^Assigned NET plugin {network:w} to comm", "src/plugin/net.cc"),
    Template("nccl.network_initialised", "^Initialized NET plugin {network:s}", "src/plugin/net.cc"),
    Template("nccl.ib_devices", "NET/IB : Using {devices:s}; OOB {oob:s}", "src/transport/net_ib.cc"),
    Template("nccl.ib_devices", "NET/IB : Using {devices:s} ; OOB {oob:s}", "src/transport/net_ib.cc"),
    Template("nccl.ib_devices", "NET/IB : Using {devices:s}", "src/transport/net_ib.cc"),
    Template("nccl.ib_no_device", "NET/IB : No device found", "src/transport/net_ib.cc"),
    Template("nccl.ib_no_library", "Failed to open libibverbs.so", "src/misc/ibvsymbols.cc"),
    Template("nccl.socket_devices", "NET/Socket : Using {interfaces:s}", "src/transport/net_socket.cc"),
    Template("nccl.socket_count", "NET/Socket : {count:d} interfaces found", "src/transport/net_socket.cu, 2.3"),
    Template("nccl.socket_interface", "NET : Using interface {interface:w}:{address:s}", "src/misc/socket.cu, 2.3"),
    Template("nccl.bootstrap_interface", "Bootstrap : Using {interface:w}:{address:s}", "src/bootstrap.cc"),
    Template("nccl.bootstrap_interface", "Bootstrap: Using {interface:w}:{address:s}", "src/bootstrap.cc"),
    Template(
        "nccl.net_plugin_absent", "NET/Plugin : Plugin load ({library:w}) returned {code:d} : {error:s}", "src/net.cc"
    ),
    Template("nccl.net_plugin_absent", "NET/Plugin : Plugin load returned {code:d} : {error:s}", "src/net.cc"),
    Template("nccl.net_plugin_absent", "NET/Plugin: Plugin load returned {code:d} : {error:s}", "src/net.cc"),
    Template("nccl.net_plugin_absent", "NET/Plugin: Could not find: {library:s}", "src/plugin/net.cc"),
    Template("nccl.net_plugin_absent", "NET/Plugin : No plugin found{rest:s}", "src/net.cc"),
    Template("nccl.net_plugin_absent", "NET/Plugin: No plugin found{rest:s}", "src/net.cc"),
    Template("nccl.net_plugin_load_failed", "NET/Plugin: dlerror={error:s}", "src/plugin/plugin_open.cc"),
    Template("nccl.net_plugin", "NET/Plugin: Loaded net plugin {network:w}", "src/plugin/net.cc"),
    Template("nccl.net_plugin", "^P2P plugin {network:w}", "nccl-rdma-sharp-plugins"),
    Template(
        "nccl.net_plugin_symbol",
        "NET/Plugin: Failed to find {symbol:w} symbol{rest:s}",
        "src/net.cc: tries newer versions first",
    ),
    Template("nccl.net_plugin", "Plugin Path : {network:s}", "nccl-rdma-sharp-plugins"),
    Template("nccl.net_plugin", "NET/Plugin: Using {network:w} plugin", "src/plugin/net.cc"),
    Template("nccl.profiler_absent", "PROFILER/Plugin: Could not find{rest:s}", "src/plugin/profiler.cc"),
    Template("nccl.tuner_absent", "TUNER/Plugin: {rest:s}", "src/plugin/tuner.cc"),
    # --- OFI plugin (aws-ofi-nccl) -----------------------------------------------------------------------------------------------------------
    Template("ofi.provider", "NET/OFI Selected Provider is {provider:w} (found {nics:d} nics)", "aws-ofi-nccl"),
    Template(
        "ofi.provider",
        "~NET/OFI Selected provider is {provider:w}, fabric is {fabric:w} (found {nics:d} nics)",
        "aws-ofi-nccl",
    ),
    Template("ofi.no_provider", "~NET/OFI Only EFA provider is supported", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~NET/OFI No eligible providers were found", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~NET/OFI Couldn't find any optimal provider", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~NET/OFI {what:s}provider not found", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~fi_getinfo: -{code:d} (No data available)", "fi_info", "error"),
    Template("ofi.no_provider", "~provider efa output empty list", "libfabric", "error"),
    Template("ofi.no_provider", "~EFA libfabric provider not detected", "EFA installer", "error"),
    Template("ofi.init_failed", "~NET/OFI Couldn't open a fabric {what:s}", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI Couldn't create {what:s}", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI Caught exception in {what:s}", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI CUDA initialization failed", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI {what:s}ailed to find {library:s}", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~NET/OFI {what:s} Unable to find libfabric provider", "aws-ofi-nccl"),
    Template("ofi.no_provider", "~NET/OFI {what:s} fi_getinfo{rest:s} No data available", "aws-ofi-nccl"),
    Template("ofi.option_refused", "~NET/OFI Couldn't set {option:s}", "aws-ofi-nccl"),
    Template("ofi.option_refused", "~NET/OFI Could not set {option:s}", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI {what:s} initialization failed", "aws-ofi-nccl"),
    Template("ofi.init_failed", "~NET/OFI Failed to {what:s}", "aws-ofi-nccl"),
    Template("ofi.version", "NET/OFI Initializing aws-ofi-nccl {version:w}", "aws-ofi-nccl"),
    Template("ofi.version", "NET/OFI Using Libfabric version {version:w}", "aws-ofi-nccl"),
    Template("ofi.platform", "NET/OFI Running on {platform:w} platform", "aws-ofi-nccl"),
    Template("ofi.gpudirect", "NET/OFI Support for {what:w} registrations: {value:w}", "aws-ofi-nccl"),
    Template("ofi.nic", "NET/OFI NIC group {group:d} device #{index:d} {bus_id:w}", "aws-ofi-nccl"),
    # --- verbs --------------------------------------------------------------------------------------------------------------------------------
    *(
        Template("nccl.ib_completion", f"Got completion {pattern}", "src/transport/net_ib.cc")
        for pattern in (
            "from peer {peer:w} with error {status:d}, opcode {opcode:d}, len {len:d}, vendor err {vendor:d}",
            "from peer with error {status:d}, opcode {opcode:d}, len {len:d}, vendor err {vendor:d}",  # a blanked address
            "with error {status:d}, opcode {opcode:d}, len {len:d}, vendor err {vendor:d}",
            "from peer {peer:w} with status={status:d} opcode={opcode:d} len={len:d} vendor err {vendor:d}",
            "from peer {peer:w} with status={name:w}({status:d}) {rest:s}vendor_err={vendor:d}",
            "from peer {peer:w} with status={name:w}({status:d})",
            "from peer {peer:w} with status={status:d}",
            "from peer {peer:w} with error {status:d}",
            "with error {status:d}",
        )
    ),
    Template("nccl.ib_call_failed", "Call to ibv_{call:w} failed with error {error:s}", "src/misc/ibvwrap.cc"),
    Template("nccl.ib_call_failed", "Call to ibv_{call:w} failed with {code:d} {error:s}", "src/misc/ibvwrap.cc, 2.23"),
    Template("nccl.ib_call_failed", "Call to ibv_{call:w} failed{error:s}", "src/misc/ibvwrap.cc"),
    Template("nccl.ib_call_failed", "ibv_{call:w} failed with error {error:s}", "src/misc/ibvwrap.cc"),
    Template("nccl.ib_async", "NET/IB : {device:s} Got async event : {what:s}", "src/transport/net_ib.cc"),
    Template("nccl.ib_async", "NET/IB : Got async event : {what:s}", "src/transport/net_ib.cc"),
    Template(
        "nccl.ib_async", "NET/IB : {device:w} Got {severity:w} async event: {what:s}", "src/transport/net_ib.cc, 2.22"
    ),
    Template(
        "nccl.ib_async",
        "NET/IB : {device:w} Got {severity:w} async event on {rest:s}: {what:s}",
        "src/transport/net_ib.cc, 2.22",
    ),
    Template("nccl.ib_async", "NET/IB : {device:w} async fatal event: {what:s}", "src/transport/net_ib.cc, 2.28"),
    Template("nccl.ib_async", "NET/IB : {device:w} async fatal event on {what:s}", "src/transport/net_ib.cc, 2.28"),
    Template(
        "nccl.ib_device_failed",
        "Device {index:d} marked as failed{rest:s}",
        "src/transport/net_ib/p2p_resiliency.cc, 2.29",
    ),
    Template(
        "nccl.ib_device_failed",
        "Fatal error. Detected {failed:d} failed devices out of {devices:d} devices",
        "p2p_resiliency.cc, 2.29",
    ),
    Template("nccl.ib_device_refused", "Unable to open device {device:w}", "src/transport/net_ib.cc"),
    Template("nccl.ib_device_refused", "Unable to query device {device:w}", "src/transport/net_ib.cc"),
    Template(
        "nccl.ib_incompatible", "Attempted to connect incompatible devices{rest:s}", "src/transport/net_ib.cc, 2.22"
    ),
    Template("nccl.ib_incompatible", "device is incompatible with the local {rest:s}", "src/transport/net_ib.cc, 2.22"),
    Template("nccl.ib_timeout", "NET/IB : {what:s} timeout", "src/transport/net_ib.cc"),
    Template(
        "nccl.ib_link_layer_mismatch", "~NET/IB : {what:s}different link layer{rest:s}", "src/transport/net_ib.cc"
    ),
    Template("nccl.ib_port_inactive", "~NET/IB : {device:w} {what:s}port is not active", "src/transport/net_ib.cc"),
    Template("nccl.gid", "NET/IB: {what:s}GID {index:d} ({gid:s})", "src/transport/net_ib.cc"),
    # --- GPUDirect RDMA ---------------------------------------------------------------------------------------------------------------------------
    Template(
        "nccl.gdr_off_hca",
        "GPU Direct RDMA Disabled for HCA {index:d} {device:s}",
        "src/transport/net_ib.cc: no peer-memory client",
    ),
    Template("nccl.gdr_off", "GPU Direct RDMA Disabled for {what:s}", "src/graph/paths.cc"),
    Template("nccl.gdr_on", "GPU Direct RDMA Enabled for {what:s}", "src/graph/paths.cc"),
    Template("nccl.gdr_on", "GPU Direct RDMA (DMABUF) enabled for {what:s}", "src/graph/paths.cc"),
    Template("nccl.gdr_on", "GPU Direct RDMA ({kind:w}) enabled for {what:s}", "src/graph/paths.cc"),
    Template("nccl.dmabuf", "DMA-BUF is available on GPU device {gpu:d}", "src/init.cc"),
    Template("nccl.gdr_module_missing", "~neither nv_peer_mem{rest:s} detected", "NVSHMEM ibrc.cpp"),
    Template("nccl.gdr_module_missing", "~{what:s}nv_peer_mem{rest:s} not loaded", "src/transport/net_ib.cc"),
    Template("nccl.gdr_module_missing", "~nvidia_peermem{rest:s} not loaded", "src/transport/net_ib.cc"),
    # --- sockets and bootstrap ----------------------------------------------------------------------------------------------------------------------
    Template("nccl.socket_create_failed", "Socket creation failed : {error:s}", "src/misc/socket.cc"),
    Template("nccl.no_interface", "no socket interface found", "src/bootstrap.cc, src/transport/net_socket.cc"),
    Template("nccl.no_interface", "~No interface found{rest:s}", "src/misc/socket.cc"),
    Template("nccl.no_interface", "NET/Socket : No usable listening interface found", "src/transport/net_socket.cc"),
    Template("nccl.no_interface", "~no interface found", "src/transport/net_socket.cc"),
    Template(
        "nccl.no_interface",
        "connecting to address {address:s}with family {family:d} is neither AF_INET",
        "src/misc/socket.cc",
    ),
    Template("nccl.connect_failed", "PollConnect to {peer:w} failed with error {error:s}", "src/os, 2.30"),
    Template("nccl.no_interface", "~No IP interface found{rest:s}", "src/misc/socket.cc"),
    Template("nccl.connect_failed", "Call to connect {outcome:w} : {error:s}", "src/misc/socket.cc, to 2.12"),
    Template("nccl.connect_failed", "Call to connect to {peer:w} {outcome:w} : {error:s}", "src/misc/socket.cc"),
    Template("nccl.connect_failed", "Call to connect to {peer:w} failed with error : {error:s}", "src/misc/socket.cc"),
    Template("nccl.connect_failed", "Connect to {peer:w} failed : {error:s}", "src/misc/socket.cc"),
    Template(
        "nccl.connect_failed", "~connect to {peer:w} returned {code:d}({error:s}) errno {errno:d}", "src/misc/socket.cc"
    ),
    Template(
        "nccl.connect_failed",
        "~connect to {peer:w} returned {error:s}, exceeded error retry count",
        "src/misc/socket.cc",
    ),
    Template("nccl.connect_failed", "~connect to {peer:w} returned {error:s}, retrying", "src/misc/socket.cc"),
    Template("nccl.connect_failed", "~connect to {peer:w} returned {error:s}", "src/misc/socket.cc"),
    Template("nccl.connect_failed", "Call to connect returned {error:s}, retrying", "src/include/socket.h"),
    Template("nccl.connect_failed", "~connect to {peer:w} failed : {error:s}", "src/misc/socket.cc"),
    Template("nccl.peer_closed", "Connection closed by remote peer{peer:s}", "src/misc/socket.cc"),
    Template("nccl.peer_closed", "~Call to recv{rest:s} failed : {error:s}", "src/misc/socket.cc"),
    Template("nccl.peer_closed", "~Call to send{rest:s} failed : {error:s}", "src/misc/socket.cc"),
    Template("nccl.peer_closed", "Socket recv failed", "src/proxy.cc"),
    Template("nccl.peer_closed", "Socket send failed", "src/proxy.cc"),
    Template("nccl.peer_closed", "Socket Accept failed{rest:s}", "src/misc/socket.cc"),
    Template(
        "nccl.service_closed",
        "[Service thread] Connection closed by localRank {rank:d}",
        "src/proxy.cc, also at a normal end",
    ),
    Template("nccl.service_closed", "[Service thread] {rest:s}", "src/proxy.cc"),
    Template(
        "nccl.proxy_failed",
        "[Proxy Service {what:s}] Failed to execute operation {operation:w} from rank {rank:d}, retcode {code:d}",
    ),
    Template(
        "nccl.foreign_connection",
        "wrong magic {rest:s}",
        "src/misc/socket.cc: a connection that does not know the job's magic",
    ),
    Template("nccl.foreign_connection", "wrong type {got:d} != {want:d}", "src/misc/socket.cc"),
    Template(
        "nccl.message_truncated", "Message truncated : received {got:d} bytes instead of {want:d}", "src/bootstrap.cc"
    ),
    Template(
        "nccl.reverse_path_missing",
        "Failed to find reverse path from remNode {from:s} to node {to:s}",
        "src/graph/paths.cc",
    ),
    Template(
        "nccl.message_truncated",
        "~message truncated : receiving {got:d} bytes instead of {want:d}",
        "src/transport/net_socket.cc",
    ),
    Template(
        "nccl.message_truncated",
        "~receiving {got:d} bytes instead of {want:d}",
        "src/transport/net_socket.cc, quoted without its head",
    ),
    Template(
        "nccl.rank_count_mismatch", "mismatch in rank count from procs {first:d} : {second:d}", "src/bootstrap.cc"
    ),
    Template(
        "nccl.rank_checked_in_twice", "rank {rank:d} of {ranks:d} ranks has already checked in", "src/bootstrap.cc"
    ),
    Template("nccl.bootstrap_timeout", "~Bootstrap{what:s} timed out", "src/bootstrap.cc"),
    # --- topology -----------------------------------------------------------------------------------------------------------------------------------
    Template("nccl.affinity", "Setting affinity for GPU {gpu:d} to {mask:s}", "src/graph/topo.cc, to 2.27"),
    Template("nccl.affinity", "Affinity for GPU {gpu:d} is {mask:s}", "src/graph/topo.cc, 2.28"),
    Template("nccl.system", "=== System : maxBw {max_bw:f} totalBw {total_bw:f} ===", "src/graph/search.cc"),
    Template(
        "nccl.system", "=== System : maxWidth {max_bw:f} totalWidth {total_bw:f} ===", "src/graph/search.cc, to 2.10"
    ),
    Template(
        "nccl.graph",
        "Pattern {pattern:d}, crossNic {cross_nic:d}, nChannels {channels:d}, bw {bw_intra:f}/{bw_inter:f}, "
        "type {type_intra:w}/{type_inter:w}, sameChannels {same:d}",
        "src/graph/search.cc",
    ),
    Template(
        "nccl.graph",
        "Pattern {pattern:d}, crossNic {cross_nic:d}, nChannels {channels:d}, speed {bw_intra:f}/{bw_inter:f}, "
        "type {type_intra:w}/{type_inter:w}, sameChannels {same:d}",
        "src/graph/search.cc, to 2.10",
    ),
    Template("nccl.topo_unreadable", "Topology detection : could not read {path:w}, ignoring", "src/graph/xml.cc"),
    Template(
        "nccl.topo_unknown_value",
        "KV Convert to int : could not find value of '{value:s}' in dictionary",
        "src/graph/xml.h",
    ),
    Template("nccl.topo_no_path", "Could not find real path of {path:s}", "src/graph/"),
    Template(
        "nccl.topo_simple_order",
        "Could not find a path for pattern {pattern:d}, falling back to simple order",
        "src/graph/search.cc",
    ),
    Template("nccl.topo_missing_net", "Could not find NET with id {id:d}", "src/graph/topo.h"),
    Template("nccl.topo_cpu", "^CPU/{id:w} ({architecture:d}/{vendor:d}/{model:d})", "src/graph/topo.cc"),
    Template("nccl.topo_paths", "^GPU/{id:w} :{paths:s}", "src/graph/paths.cc"),
    Template("nccl.topo_paths", "^NET/{system:x}-{id:x} :{paths:s}", "src/graph/paths.cc"),
    Template("nccl.topo_paths", "^NET/{id:x} :{paths:s}", "src/graph/paths.cc, to 2.19"),
    Template("nccl.graph_channel", "^{channel:d} : NET/{path:s}", "src/graph/search.cc"),
    Template("nccl.graph_channel", "^{channel:d} : GPU/{path:s}", "src/graph/search.cc"),
    Template("nccl.tree", "^Tree {channel:d} : {tree:s}", "src/graph/connect.cc"),
    Template("nccl.topo_link", "^+ {link:w}[{bw:f}] - {to:s}", "src/graph/topo.cc"),
    Template("nccl.topo_attribute_missing", "Attribute {attribute:w} of node {node:w} not found", "src/graph/xml.h"),
    Template("nccl.topo_file", "~Loading topology file {path:s}", "src/graph/topo.cc"),
    Template("nccl.mnnvl_broken", "~MNNVL{rest:s} is available but not working on {where:s}", "src/mnnvl.cc"),
    Template("nccl.mnnvl_broken", "~Check the IMEX {rest:s}", "src/mnnvl.cc"),
    Template(
        "nccl.mnnvl", "MNNVL busId {bus_id:x} fabric UUID {uuid:w} cliqueId {clique:x} state {state:d}", "src/init.cc"
    ),
    # --- peer to peer, shared memory -------------------------------------------------------------------------------------------------------------------
    Template(
        "nccl.p2p_disabled_nvlink",
        "P2P is disabled between NVLINK connected GPUs {first:d} and {second:d}",
        "src/graph/paths.cc",
    ),
    Template(
        "nccl.p2p_disabled", "P2P is disabled between connected GPUs {first:d} and {second:d}", "src/graph/paths.cc"
    ),
    Template(
        "nccl.p2p_not_enabled", "Could not enable P2P between dev {first:s} and dev {second:s}", "src/transport/p2p.cc"
    ),
    Template("nccl.ipc_open_failed", "failed to open CUDA IPC handle : {code:d} {error:s}", "src/transport/p2p.cc"),
    Template(
        "nccl.ipc_open_failed", "failed to peer with device {device:s}: {code:d} {error:s}", "src/transport/p2p.cc"
    ),
    Template(
        "nccl.shm_failed", "failed to extend {file:w} to {bytes:d} bytes, error: {error:s}", "src/misc/shmutils.cc"
    ),
    Template("nccl.shm_failed", "failed to extend {file:w} to {bytes:d} bytes", "src/misc/shmutils.cc"),
    Template(
        "nccl.shm_failed",
        "Error while creating shared memory segment {file:w} (size {bytes:d}), error: {error:s}",
        "src/misc/shmutils.cc",
    ),
    Template(
        "nccl.shm_failed",
        "Error while creating shared memory segment {file:w} (size {bytes:d})",
        "src/misc/shmutils.cc",
    ),
    Template("nccl.shm_failed", "Call to posix_fallocate failed : {error:s}", "src/misc/shmutils.cc"),
    Template("nccl.shm_failed", "Call to posix_fallocate failed{error:s}", "src/misc/shmutils.cc"),
    Template("nccl.shm_failed", "Call to ftruncate failed{error:s}", "src/misc/shmutils.cc"),
    Template("nccl.shm_failed", "Call to shm_open failed{error:s}", "src/misc/shmutils.cc"),
    Template(
        "nccl.shm_attach_failed", "Error while attaching to shared memory segment {file:w}", "src/misc/shmutils.cc"
    ),
    # --- CUDA and memory ---------------------------------------------------------------------------------------------------------------------------------
    Template("nccl.cuda_alloc_failed", "Failed to CUDA calloc {bytes:d} bytes", "src/include/alloc.h"),
    Template("nccl.cuda_alloc_failed", "Failed to CUDA calloc async {bytes:d} bytes", "src/include/alloc.h"),
    Template("nccl.cuda_alloc_failed", "Failed to CUDA malloc {bytes:d} bytes", "src/include/alloc.h"),
    Template("nccl.cuda_alloc_failed", "Failed to CUDA host alloc {bytes:d} bytes", "src/include/alloc.h"),
    Template(
        "nccl.nvls_bind_failed",
        "~Failed to bind NVLink SHARP {what:s}CUDA error {code:d} '{error:s}'",
        "src/transport/nvls.cc",
    ),
    Template("nccl.nvls_bind_failed", "~Failed to bind NVLink SHARP {what:s}", "src/transport/nvls.cc"),
    Template("nccl.nvls_register_failed", "rank {rank:d} failed to NVLS register {what:s}", "src/transport/nvls.cc"),
    Template("nccl.register_failed", "rank {rank:d} failed to {transport:w} register {what:s}", "src/register/"),
    Template("nccl.nvls_available", "NVLS multicast support is available on dev {gpu:d}", "src/init.cc"),
    Template("nccl.nvls_unavailable", "NVLS multicast support is not available on dev {gpu:d}", "src/init.cc"),
    Template("nccl.cuda_failure", "Cuda failure {code:d} '{error:s}'", "src/include/checks.h, 2.19"),
    Template("nccl.cuda_failure", "Cuda failure '{error:s}'", "src/include/checks.h"),
    Template("nccl.cuda_failure", "Cuda failure {code:d} '{error:s}", "src/include/checks.h, cut"),
    Template("nccl.cuda_failure", "Cuda failure '{error:s}", "src/include/checks.h, cut"),
    Template("nccl.cuda_failure", "~HIP failure '{error:s}'", "RCCL"),
    Template("nccl.cuda_failure", "~HIP failure: {error:s}", "RCCL"),
    Template("nccl.cuda_failure", "~HIP failure {code:d} '{error:s}'", "RCCL"),
    Template(
        "nccl.shared_memory_limit",
        "ncclMaxSharedMem {asked:d} exceeds device/fn maxSharedMem {limit:d}",
        "src/enqueue.cc",
    ),
    Template("nccl.version_mismatch", "~Mismatched NCCL version detected{rest:s}", "src/init.cc"),
    Template("nccl.version_mismatch", "NCCL version mismatch with remote peer {peer:s}", "src/transport/net_ib, 2.28"),
    Template("nccl.library_too_old", "NCCL library is too old{rest:s}", "src/init.cc"),
    Template("nccl.library_too_old", "NCCL library is not backwards compatible{rest:s}", "src/init.cc"),
    Template(
        "nccl.collective_mismatch",
        "collective mismatch error, local size {local:d} remote size {remote:d}",
        "src/transport/net_ib.cc",
    ),
    Template(
        "nccl.collective_mismatch",
        "collective mismatch error local size {local:d} remote {remote:d}",
        "src/transport/net_ib.cc, to 2.11",
    ),
    Template("nccl.collective_mismatch", "Mismatched collective detected{rest:s}", "src/init.cc, 2.4"),
    Template("nccl.space_exhausted", "Allocation failed. No suitable space found{rest:s}", "src/allocator.cc, 2.28"),
    Template("nccl.no_transport", "No transport found for rank {rest:s}", "src/transport.cc"),
    Template("nccl.no_transport", "has no transport for {rest:s}", "src/transport.cc"),
    Template("nccl.capture_refused", "NCCL cannot be captured in a graph {rest:s}", "src/enqueue.cc"),
    Template("nccl.capture_refused", "must either be all uncaptured or all captured{rest:s}", "src/group.cc"),
    Template(
        "nccl.duplicate_gpu",
        "Duplicate GPU detected : rank {first:d} and rank {second:d} both on {device:s}",
        "src/init.cc",
    ),
    Template("nccl.no_algorithm", "~no algorithm/protocol available for function {function:s}", "src/enqueue.cc"),
    Template("nccl.no_algorithm", "~no algorithm/protocol available{rest:s}", "src/enqueue.cc"),
    Template("nccl.abort_flag", "~Comm {comm:x} has been aborted{rest:s}", "src/"),
    # --- RCCL ---------------------------------------------------------------------------------------------------------------------------------------------
    Template("rccl.iommu_not_passthrough", 'Missing "iommu=pt" from kernel command line', "RCCL src/init.cc"),
    Template("rccl.numa_balancing", "~NUMA auto balancing enabled", "RCCL src/init.cc"),
    # --- SHARP ---------------------------------------------------------------------------------------------------------------------------------------------
    Template("sharp.failed", "SHARP group create: {what:s}", "nccl-rdma-sharp-plugins sharp_plugin.c"),
    Template("sharp.failed", "~SHARP{rest:s} init error: {what:s}", "nccl-rdma-sharp-plugins"),
    Template("sharp.failed", "~Failed to {what:s} SAT tree{rest:s}", "libsharp comm.c", "error"),
    Template("sharp.failed", "~Begin job id{rest:s}failed with status{more:s}", "libsharp", "error"),
    Template("sharp.failed", "Job error in sharp_{function:w}", "libsharp", "error"),
    Template("sharp.failed", "~sharp_coll_init failed{rest:s}", "nccl-rdma-sharp-plugins"),
    Template("sharp.failed", "~unable to connect to SHARPD{rest:s}", "libsharp", "error"),
    Template("sharp.failed", "~Cannot create SHARP job{rest:s}", "libsharp", "error"),
    Template("sharp.failed", "~sharp_create_job failed{rest:s}", "libsharp", "error"),
    Template("sharp.failed", "~Failed to initialize SHARP{rest:s}", "libsharp", "error"),
    Template("sharp.initialised", "Sharp rank {rank:d}/{ranks:d} initialized on {device:w}", "nccl-rdma-sharp-plugins"),
    # --- where an error went through -------------------------------------------------------------------------------------------------------------------------
    Template("nccl.backtrace", "^{file:w}:{file_line:d} ({function:w}) -> {code:d}", "src/include/checks.h, 2.30"),
    Template("nccl.backtrace", "^{file:w}:{file_line:d} -> {code:d}", "src/include/checks.h"),
    Template("nccl.backtrace", "^{file:w}:{file_line:d} NCCL INFO -> {code:d}", "src/include/checks.h"),
)

_DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)
_REDOPS = ("sum", "prod", "max", "min", "avg")
_ALGORITHM_OF = dict(
    zip("0123456", ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"), strict=True)
)
_PROTOCOL_OF = dict(zip("012", ("LL", "LL128", "SIMPLE"), strict=True))
_LONGEST_TIME_NS = float(2**62)


class NcclLogReader(Lines):
    """NCCL's own words, and its connections, calls, choices and settings as tables."""

    name = "nccl-log"
    templates: Sequence[Template] = TEMPLATES

    def columns(self, table: str, fields: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
        """Columns of links, calls, choices and settings in our words."""
        return _COLUMNS[table](fields)


def _links(fields: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    return {**fields, "transport": _renamed(fields["via"].dictionary_encode(), _transport)}


def _calls(fields: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    columns = {**fields, "collective": _renamed(fields["collective"], _collective)}
    for name, words in (("dtype", _DTYPES), ("redop", _REDOPS)):
        if name in fields:
            columns[name] = _numbered(fields[name], words)
    return columns


def _choices(fields: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    columns = dict(fields)
    if "collective" in fields:
        columns["collective"] = _renamed(fields["collective"], _collective)
    columns["algorithm"] = _renamed(fields["algorithm"], lambda word: _ALGORITHM_OF.get(word, word))
    if "protocol" in fields:
        columns["protocol"] = _renamed(fields["protocol"], lambda word: _PROTOCOL_OF.get(word, word))
    if "time_us" in fields:
        time_ns = pc.round(pc.multiply(fields["time_us"], 1e3))
        columns["time_ns"] = pc.if_else(pc.less(time_ns, _LONGEST_TIME_NS), time_ns, None)
    return columns


def _settings(fields: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    value = fields["value"]
    origin = fields["origin"] if "origin" in fields else pa.repeat("environment", len(value))
    return {"name": fields["name"], "value": pc.utf8_rtrim(value, characters=". "), "origin": origin}


_COLUMNS: dict[str, Callable[[Mapping[str, pa.Array]], dict[str, pa.Array]]] = {
    "links": _links,
    "calls": _calls,
    "choices": _choices,
    "settings": _settings,
}


def _numbered(values: pa.Array, words: Sequence[str]) -> pa.Array:
    """Names of numbered words; a number that is none of them stays as printed."""
    least, most = pc.min_max(values).values()
    if least.is_valid and least.as_py() >= 0 and most.as_py() < len(words):
        return pa.array(words).take(values)
    known = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(words)))
    return pc.coalesce(pa.array(words).take(pc.if_else(known, values, None)), values.cast(pa.string()))


def _renamed(values: pa.DictionaryArray, name_of: Callable[[str], str | None]) -> pa.DictionaryArray:
    """The same words by other names; looks at each distinct word once."""
    names = [name_of(word) for word in values.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(values.indices, pa.array(names, type=pa.string()))


_collective = functools.lru_cache(collective_named)


def _transport(via: str) -> str:
    first = via.split("/", 1)[0]
    return "SHM" if first == "direct shared memory" else first


READER = NcclLogReader()
