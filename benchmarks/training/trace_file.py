"""A profiler's trace of a made-up step, as large as one likes, in the form that PyTorch 2.x writes: for T8.

Kinds of events, their share, members and lengths are those of traces of training on GPUs: operators with shapes, launches, kernels with launch geometry, arrows from
launch to kernel, collectives of NCCL with their arguments, marks of steps.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["write_trace"]

_KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>(cudnn::ops::nchw2nhwc_params_t<float>)",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_5",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, false, true, false>(flash::Flash_fwd_params)",
)
_GEOMETRY = {
    "queued": 0,
    "registers per thread": 128,
    "shared memory": 180224,
    "blocks per SM": 1.939394,
    "warps per SM": 7.757576,
}


def write_trace(
    path: Path, size_bytes: int, *, rank: int = 0, ranks: int = 8, late_us: float = 0.0, seed: int = 1
) -> int:
    """The number of events written: at least so many bytes of trace of one rank. late_us: how much longer this rank computes in each layer."""
    rng = random.Random(seed)
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045084160, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": 1, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks, "ranks": list(range(ranks))}], "nccl_version": "2.27.5"},
        "cupti_version": 26, "record_shapes": 1, "with_stack": 0, "trace_id": "0", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_753_747_272_000_000_000,
    }  # fmt: skip
    written = events = 0
    with path.open("w") as out:
        text = json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n'
        written += out.write(text)
        for event in _events(rng, rank, ranks, late_us):
            written += out.write(("  " if events == 0 else ",\n  ") + json.dumps(event, separators=(", ", ": ")))
            events += 1
            if written >= size_bytes and event.get("cat") == "user_annotation":
                break
        out.write('\n  ],\n  "traceName": "trace.json"\n}\n')
    return events


def _events(rng: random.Random, rank: int, ranks: int, late_us: float) -> Iterator[dict[str, Any]]:
    host, gpu, number, step, seq = 5_000_000_000.125, 5_000_000_100.5, 100, 0, 0
    while True:
        began = host
        for _ in range(32):
            for _ in range(24):
                number += 1
                at = round(host, 3)
                yield {"ph": "X", "cat": "cpu_op", "name": rng.choice(("aten::mm", "aten::add_", "aten::copy_", "aten::empty")), "pid": 1234, "tid": 1234, "ts": at, "dur": 12.25,
                       "args": {"External id": number, "Record function id": 0, "Concrete Inputs": ["", "", "1"], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], "Input Strides": [[8192, 1], [1, 8192], []], "Input Dims": [[4096, 8192], [8192, 1024], []], "Ev Idx": number}}  # fmt: skip
                yield {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1234,
                    "tid": 1234,
                    "ts": round(host + 4.1, 3),
                    "dur": 5.02,
                    "args": {"External id": number, "cbid": 211, "correlation": number},
                }
                yield {
                    "ph": "s",
                    "id": number,
                    "pid": 1234,
                    "tid": 1234,
                    "ts": round(host + 4.1, 3),
                    "cat": "ac2g",
                    "name": "ac2g",
                }
                took = rng.lognormvariate(3.2, 0.8)
                gpu = max(gpu, host + 12) + 0.8
                yield {"ph": "X", "cat": "kernel", "name": rng.choice(_KERNELS), "pid": rank, "tid": 7, "ts": round(gpu, 3), "dur": round(took, 3),
                       "args": {"External id": number, "device": rank, "context": 1, "stream": 7, "correlation": number, **_GEOMETRY, "grid": [1024, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12}}  # fmt: skip
                yield {
                    "ph": "f",
                    "id": number,
                    "pid": rank,
                    "tid": 7,
                    "ts": round(gpu, 3),
                    "cat": "ac2g",
                    "name": "ac2g",
                    "bp": "e",
                }
                gpu += took
                host += 13.5
            gpu += late_us
            number += 1
            seq += 1
            group = {"Collective name": "_reduce_scatter_base", "In msg nelems": 218112000, "Out msg nelems": 27264000, "Group size": ranks, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
                     "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(ranks))), "Rank": rank, "Seq": seq}  # fmt: skip
            yield {
                "ph": "X",
                "cat": "cpu_op",
                "name": "record_param_comms",
                "pid": 1234,
                "tid": 1234,
                "ts": round(host, 3),
                "dur": 30.1,
                "args": {"External id": number, **group},
            }
            yield {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernelExC",
                "pid": 1234,
                "tid": 1234,
                "ts": round(host + 9, 3),
                "dur": 8.0,
                "args": {"External id": number, "cbid": 430, "correlation": number},
            }
            yield {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "pid": rank, "tid": 20, "ts": round(gpu, 3), "dur": round(max(900 - late_us, 60) + rng.random(), 3),
                   "args": {"External id": number, "device": rank, "context": 1, "stream": 20, "correlation": number, **_GEOMETRY, "grid": [24, 1, 1], "block": [544, 1, 1], **group}}  # fmt: skip
            host += 40
        gpu = max(gpu, host) + 900
        host = gpu
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 1234,
            "tid": 1234,
            "ts": round(began, 3),
            "dur": round(host - began, 3),
            "args": {"External id": 1, "Record function id": 0},
        }
        step += 1
