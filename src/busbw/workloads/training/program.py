"""A step as a TaskProgram: one pipeline, stage by stage, its messages on the cluster's links; all other pipelines do the same.

Computing and the collectives inside a stage take the closed form's times; when each micro-batch runs where, and what waits for what, is the
simulator's. So a step of 100,000 GPUs has as many streams as stages. Not in it: links that several pipelines share beyond a NIC.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from busbw.errors import InputError
from busbw.simulation import Channel, Compute, Delay, Instruction, Loop, Receive, Send, Shift, Stream, TaskProgram
from busbw.workloads.training.predict import StepPrediction

__all__ = ["SIMULATED", "step_program"]

SIMULATED = ("1f1b", "gpipe", "interleaved")
"""Schedules that have a program. Zero-bubble and DualPipe have the closed form alone."""


def step_program(step: StepPrediction) -> TaskProgram:
    """The program of a predicted step on all GPUs of its job's cluster. Raises InputError for a schedule without one.

    Source of the orders: Megatron-Core, pipeline_parallel/schedules.py (1F1B; interleaved in groups of pp micro-batches).
    """
    layout, job = step.layout, step.job
    if layout.schedule not in SIMULATED:
        raise InputError(
            f"{layout.schedule} has no program yet; simulated are {', '.join(SIMULATED)}. Take --closed-form."
        )
    pp, vpp = layout.pp, layout.vpp
    m = job.global_batch // (step.micro_batch * layout.dp)
    stride = layout.tp * layout.cp * (layout.dp if layout.order.endswith("pp") else 1)
    tokens = step.micro_batch * job.seq_len // layout.cp
    size = max(1, 2 * tokens * job.model.hidden // (layout.tp if layout.sp else 1))
    # What closes a step: gradients and weights that were not hidden, optimizer, and what a step takes beside its micro-batches.
    rest = sum(step.breakdown_s[name] for name in ("dp", "optimizer", "other"))
    f, b = step.forward_s / vpp, step.backward_s / vpp
    streams, channels = [], []
    ranks = job.cluster.gpus
    for stage in range(pp):
        body = (*_stage(layout.schedule, stage, pp, vpp, m, f, b), Delay(rest))
        streams.append(Stream(f"stage{stage}", body, np.array([stage * stride], np.int64)))
        following = (stage + 1) % pp
        if pp == 1 or (following == 0 and vpp == 1):
            continue
        by = (following - stage) * stride
        for name, source, target, step_by in (("f", stage, following, by), ("b", following, stage, -by)):
            channels.append(
                Channel(
                    f"{name}{stage}",
                    f"stage{source}",
                    f"stage{target}",
                    Shift((ranks,), (step_by,)),
                    np.full((1, 1), size, np.int64),
                )
            )
    return TaskProgram(ranks, tuple(streams), tuple(channels), {"step": f"{job.model.name} {layout}"})


def _stage(schedule: str, stage: int, pp: int, vpp: int, m: int, f: float, b: float) -> Iterator[Instruction]:  # noqa: PLR0917 - a stage's place and times
    first, last = stage == 0, stage == pp - 1
    before = (stage - 1) % pp

    def forward(chunk: int) -> Iterator[Instruction]:
        if not (first and chunk == 0):
            yield Receive(f"f{before}")
        yield Compute(f)
        if not (last and chunk == vpp - 1):
            yield Send(f"f{stage}")

    def backward(chunk: int) -> Iterator[Instruction]:
        if not (last and chunk == vpp - 1):
            yield Receive(f"b{stage}")
        yield Compute(b)
        if not (first and chunk == 0):
            yield Send(f"b{before}")

    if schedule == "gpipe":
        yield Loop(m, tuple(forward(0)))
        yield Loop(m, tuple(backward(0)))
        return
    if vpp == 1:
        warm = min(m, pp - 1 - stage)
        if warm:
            yield Loop(warm, tuple(forward(0)))
        if m > warm:
            yield Loop(m - warm, (*forward(0), *backward(0)))
        if warm:
            yield Loop(warm, tuple(backward(0)))
        return
    total, group = m * vpp, pp * vpp
    warm = min(total, (pp - stage - 1) * 2 + (vpp - 1) * pp)

    def chunk_of(place: int) -> int:
        return place % group // pp

    for place in range(warm):
        yield from forward(chunk_of(place))
    for place in range(total - warm):
        yield from forward(chunk_of(place + warm))
        yield from backward(vpp - 1 - chunk_of(place))
    for place in range(total - warm, total):
        yield from backward(vpp - 1 - chunk_of(place))
