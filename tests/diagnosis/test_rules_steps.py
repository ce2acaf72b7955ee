"""Where the time of a step goes, by traces of PyTorch's profiler. Format: kineto, as in tests/readers/test_kineto.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from .told import Case, check, fires, near_miss, told

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def traces(compute_us: Callable[[int, int], float], *, ranks: int = 4, beside_us: float = 900, alone_us: float = 50, idle_us: float = 20, waits_us: float = 500, marked: Callable[[int, int], bool] = lambda rank, step: False) -> Mapping[str, str]:  # fmt: skip
    """A file a rank, six steps of 2 ms or so: one kernel computes, a collective runs beside it for a while and then alone, then nothing runs."""

    def file(rank: int) -> str:
        def line(event: Mapping[str, Any]) -> str:
            step = (event["args"].get("correlation", 0) - 2) // 2
            return ("> " if event["name"] == NCCL and marked(rank, step) else "") + json.dumps(event)

        events: list[dict[str, Any]] = []
        at = 1000.0
        for step in range(6):
            begun, took = at, compute_us(rank, step)
            for number, name, begin, lasts, stream in (
                (2 * step, "gemm", at, took, 7), (2 * step + 1, NCCL, at + took - min(beside_us, took), min(beside_us, took) + alone_us, 20),
            ):  # fmt: skip
                launched = {"correlation": number + 1}
                events.append(
                    {
                        "ph": "X",
                        "cat": "cuda_runtime",
                        "name": "cudaLaunchKernel",
                        "pid": 1,
                        "tid": 1,
                        "ts": begun - waits_us,
                        "dur": 2.0,
                        "args": launched,
                    }
                )
                events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": lasts, "args": {**launched, "stream": stream, "device": 0}})  # fmt: skip
            at += took + alone_us
            events.append(
                {
                    "ph": "X",
                    "cat": "gpu_memset",
                    "name": "Memset",
                    "pid": 0,
                    "tid": 7,
                    "ts": at + idle_us,
                    "dur": 1.0,
                    "args": {"stream": 7, "device": 0, "correlation": 2 * step + 1},
                }
            )
            at += idle_us + 1
            events.append(
                {
                    "ph": "X",
                    "cat": "user_annotation",
                    "name": f"ProfilerStep#{step}",
                    "pid": 1,
                    "tid": 1,
                    "ts": begun - waits_us - 1,
                    "dur": at - begun - 1,
                    "args": {},
                }
            )
        head = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "baseTimeNanoseconds": 1_753_747_272_000_000_000,
        }
        return json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(map(line, events)) + "]}\n"

    return {f"rank{rank}.json": file(rank) for rank in range(ranks)}


def in_the_middle(rank: int, step: int) -> bool:
    """Of steps that are all alike: the one in the middle, and those of the last rank."""
    return (rank, step) == (2, 1) or (rank == 3 and step > 0)


CASES = (
    fires("computes_longer", "slow-node", traces(lambda rank, step: 2000 * (1.25 if rank == 2 else 1), marked=lambda rank, step: rank == 2 and step > 0), severity="major"),
    fires("exposed_communication", "communication-exposed", traces(lambda rank, step: 2000, alone_us=1000, marked=in_the_middle), severity="minor"),
    fires("starved", "gpu-starved", traces(lambda rank, step: 900, idle_us=1500, waits_us=5, marked=in_the_middle), severity="minor"),
    near_miss("computes_longer", "5 % between GPUs is usual", traces(lambda rank, step: 2000 * (1.05 if rank == 2 else 1))),
    near_miss("computes_longer", "another rank every step", traces(lambda rank, step: 2000 * (1.3 if rank == step % 4 else 1))),
    near_miss("computes_longer", "stages of a pipeline differ on several ranks", traces(lambda rank, step: 2000 * (1.3 if rank > 1 else 1))),
    near_miss("computes_longer", "two ranks: who is the odd one", traces(lambda rank, step: 2000 * (1.3 if rank else 1), ranks=2)),
    near_miss("exposed_communication", "a tenth of the step", traces(lambda rank, step: 2000, alone_us=200)),
    near_miss("starved", "idle, but kernels wait in the queue", traces(lambda rank, step: 2000, idle_us=1500, waits_us=500)),
    near_miss("starved", "begins at once, but is busy", traces(lambda rank, step: 2000, idle_us=100, waits_us=5)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case) -> None:
    check(case)


def found(files: Mapping[str, str], kind: str) -> str:
    findings = [finding for finding in told(files).diagnosis.findings if finding.kind == kind]
    assert findings, f"no {kind}"
    return findings[0].summary


def test_a_gpu_that_computes_longer_in_every_step_is_named() -> None:
    summary = found(traces(lambda rank, step: 2000 * (1.25 if rank == 2 else 1)), "slow-node")
    assert summary.startswith("rank 2 computes 25 % longer than the other ranks in 5 of 5 steps")


def test_what_is_exposed_is_the_collective_less_what_computes_beside_it() -> None:
    """1000 us alone in a step of 2000 + 1000 + 20 + 1."""
    summary = found(traces(lambda rank, step: 2000, alone_us=1000), "communication-exposed")
    assert summary.startswith("communication that nothing hides takes 33 % of the step (1 ms of 3.02 ms")
    assert summary.endswith("longest: ncclDevKernel_AllReduce_Sum_bf16_RING_LL, 1 ms")


def test_a_gpu_whose_kernels_begin_as_soon_as_they_are_launched_waits_for_the_host() -> None:
    summary = found(traces(lambda rank, step: 900, idle_us=1500, waits_us=5), "gpu-starved")
    assert summary.startswith("the GPU has nothing to do for 61 % of the step (1.5 ms of 2.45 ms on rank")
