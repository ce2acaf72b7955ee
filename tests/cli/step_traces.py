"""The bundled traces of docs/case-training.md: a step of FSDP on two nodes of eight GPUs, as PyTorch's profiler writes it, the transfers slow.

Four layers of Llama 3 8B (436 MB of bf16 weights each), one sequence of 8192. A layer computes 8.2 ms forwards and 17.0 backwards. Weights are gathered ahead of each layer in 10.6 ms,
and gradients scattered in the same, eight times what eight 400 Gb/s NICs a node need: as if one of the eight carried it all. Rank r begins (r mod 4) x 40 us late.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

BUNDLE = Path(__file__).parents[2] / "src" / "busbw" / "cli" / "demo_inputs" / "traces.tar.gz"
RANKS, LAYERS, STEPS = 16, 4, 3
ELEMENTS = 218_103_808
FORWARD, BACKWARD, GATHER, SCATTER = 8200.0, 17_000.0, 10_600.0, 10_600.0
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def trace(rank: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    seq = 0

    def kernel(name: str, begin: float, took: float, stream: int, **args: Any) -> float:
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": rank % 8,
                "tid": stream,
                "ts": round(begin, 1),
                "dur": round(took, 1),
                "args": {"device": rank % 8, "stream": stream, **args},
            }
        )
        return begin + took

    def collective(kind: str, name: str, ready: float, took: float) -> float:
        nonlocal seq
        seq += 1
        late = (rank % 4) * 40.0  # all end together: who comes earlier waits
        sizes = (
            {"In msg nelems": ELEMENTS // RANKS, "Out msg nelems": ELEMENTS}
            if kind == "_allgather_base"
            else {"In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS // RANKS}
        )
        return kernel(
            f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", ready + late, took + 120.0 - late, 20,
            **{"Collective name": kind, **sizes, "Group size": RANKS, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "fsdp", "Seq": seq},
        )  # fmt: skip

    at = 0.0
    for step in range(STEPS):
        begun = at
        network = compute = at + 100.0
        for took, backwards in [(FORWARD, False)] * LAYERS + [(BACKWARD, True)] * LAYERS:
            network = collective("_allgather_base", "AllGather_RING_LL", network, GATHER)
            compute = kernel(GEMM, max(compute, network) + 5.0 + (rank % 4) * 40.0, took, 7) - (rank % 4) * 40.0
            if backwards:
                network = collective(
                    "_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL", max(network, compute) + 5.0, SCATTER
                )
        at = max(network, compute) + 300.0
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": 100 + rank,
                "tid": 1,
                "ts": begun,
                "dur": round(at - begun - 1.0, 1),
                "args": {},
            }
        )
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "host_name": f"node{rank // 8}", "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS, "pg_count": 1, "pg_config": [{"pg_name": "0", "pg_desc": "fsdp", "pg_size": RANKS, "ranks": list(range(RANKS))}]},
        "traceEvents": sorted(events, key=lambda event: event["ts"]),
    }  # fmt: skip


def bundle() -> bytes:
    """The archive, the same bytes each time."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for rank in range(RANKS):
            head = trace(rank)
            events = ",\n".join(json.dumps(event) for event in head.pop("traceEvents"))
            text = f'{json.dumps(head)[:-1]},\n"traceEvents": [\n{events}\n]}}\n'.encode()
            member = tarfile.TarInfo(f"traces/rank{rank}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return packed.getvalue()


if __name__ == "__main__":  # python -m tests.cli.step_traces
    BUNDLE.write_bytes(bundle())
