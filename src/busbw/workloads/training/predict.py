"""Predicted steps of a job: time with its interval, tokens a second, MFU, breakdown, memory; and what each hardware figure is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.workloads.compute.peaks import peak_flops
from busbw.workloads.training.calibration import TrainingCalibration, figures_of, load_training_calibration
from busbw.workloads.training.columns import Columns
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import Batch, Layout, check
from busbw.workloads.training.memory import Memory, memory, verdicts
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.step import StepTimes, parts_of, times

__all__ = ["SENSITIVE", "Sensitivity", "StepPrediction", "Steps", "predict_step", "predict_steps", "sensitivities"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Predicted steps of many layouts, (N,) each."""

    job: Job
    columns: Columns
    times: StepTimes
    low_s: FloatArray
    high_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Of a step."""
        return self.times.total_s

    @property
    def tokens_per_s_per_gpu(self) -> FloatArray:
        """All tokens of a step over its time and GPUs."""
        gpus = self.columns.tp * self.columns.cp * self.columns.pp * self.columns.dp
        return self.job.global_batch * self.job.seq_len / self.total_s / gpus


@dataclass(frozen=True, slots=True, eq=False)
class StepPrediction:
    """One layout's step."""

    job: Job
    layout: Layout
    micro_batch: int
    recompute: str
    total_s: float
    low_s: float
    """80 % of measured steps of its kind lie between low and high."""
    high_s: float
    breakdown_s: Mapping[str, float]
    memory: Mapping[str, float]
    """Bytes of a GPU by part."""
    capacity_bytes: float
    verdict: str
    """Whether memory suffices: a word of `memory.VERDICTS`."""
    forward_s: float
    backward_s: float

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """All tokens of a step over its time and GPUs."""
        return self.job.global_batch * self.job.seq_len / self.total_s / self.layout.gpus

    def mfu(self, causal: bool = True) -> float:
        """Model operations over what the GPUs could do in bf16. causal: what attention masks is not counted."""
        flops = self.job.model.flops_per_token(self.job.seq_len, causal) * self.job.global_batch * self.job.seq_len
        return flops / (self.total_s * self.layout.gpus * peak_flops(self.job.gpu, "bf16"))

    def to_json(self) -> dict[str, Any]:
        """The shape of `busbw simulate training --json`."""
        return {
            "model": self.job.model.name,
            "layout": str(self.layout),
            "gpus": self.layout.gpus,
            "global_batch": self.job.global_batch,
            "micro_batch": self.micro_batch,
            "micro_batches": Batch(self.job.global_batch, self.micro_batch, self.job.seq_len).micro_batches(
                self.layout
            ),
            "seq_len": self.job.seq_len,
            "precision": self.job.precision.name,
            "recompute": self.recompute,
            "step_s": self.total_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu(),
            "mfu_convention": "model operations, causal half of attention, over dense bf16 peak",
            "breakdown_s": dict(self.breakdown_s),
            "memory_bytes": {**self.memory, "capacity": self.capacity_bytes},
            "memory": self.verdict,
        }


def predict_steps(
    job: Job, columns: Columns, links: GroupTimes | None = None, calibration: TrainingCalibration | None = None
) -> Steps:
    """The steps of many layouts of a job."""
    calibration = calibration or load_training_calibration()
    found = times(parts_of(job, columns, links), figures_of([job], calibration))
    low, high = calibration.interval(job)
    return Steps(job, columns, found, found.total_s * low, found.total_s * high)


def predict_step(
    job: Job, layout: Layout, micro_batch: int, recompute: str = "none", calibration: TrainingCalibration | None = None
) -> StepPrediction:
    """The step of one layout. Raises InputError for one that cannot run on the job's cluster."""
    check(job.model, layout, Batch(job.global_batch, micro_batch, job.seq_len), job.cluster.gpus)
    columns = Columns.of([layout], [micro_batch], [recompute])
    steps = predict_steps(job, columns, calibration=calibration)
    held: Memory = memory(job, columns)
    return StepPrediction(
        job,
        layout,
        micro_batch,
        recompute,
        float(steps.total_s[0]),
        float(steps.low_s[0]),
        float(steps.high_s[0]),
        {name: float(part[0]) for name, part in steps.times.parts_s.items()},
        {name: float(part[0]) for name, part in held.parts.items()},
        held.capacity_bytes,
        verdicts(job, columns)[0],
        float(steps.times.forward_s[0]),
        float(steps.times.backward_s[0]),
    )


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a hardware figure is worth: the step's change in per cent for one per cent more of the figure."""

    figure: str
    elasticity: float
    step_s: float
    """With a tenth more of it."""


def _more_network(cluster: Cluster, factor: float) -> Cluster:
    return replace(cluster, node=replace(cluster.node, nic_rate_bytes_per_s=cluster.node.nic_rate_bytes_per_s * factor))


def _more_of_gpu(name: str, cluster: Cluster, factor: float) -> Cluster:
    gpu = cluster.node.accelerator
    figure = getattr(gpu, name)
    changes: dict[str, Any] = {name: replace(figure, value=figure.value * factor)}
    return replace(cluster, node=replace(cluster.node, accelerator=replace(gpu, **changes)))


SENSITIVE = ("gpu.flops", "gpu.memory.rate", "nvlink.rate", "nic.rate", "launch")
"""Figures whose worth is asked: operations a second of all types, memory rate, NVLink, NICs, and how fast kernels follow each other."""


def sensitivities(job: Job, layout: Layout, micro_batch: int, recompute: str = "none") -> list[Sensitivity]:
    """What a tenth more of each hardware figure changes, the most valuable first.

    Operations and memory rate scale the computing that they bound; links are predicted anew with the figure changed.
    """
    columns = Columns.of([layout], [micro_batch], [recompute])
    calibration = load_training_calibration()
    figures = figures_of([job], calibration)
    links = GroupTimes(job.cluster)
    parts = parts_of(job, columns, links)
    base = float(times(parts, figures).total_s[0])
    more = 1.1
    found = []
    for name in SENSITIVE:
        changed, changed_parts = figures, parts
        if name == "gpu.flops":
            faster = {
                key: np.asarray(getattr(figures, key)) / more for key in ("gemm", "gemm16", "attention", "experts")
            }
            changed = replace(figures, **faster)
        elif name == "gpu.memory.rate":
            changed = replace(
                figures, memory=np.asarray(figures.memory) / more, optimizer=np.asarray(figures.optimizer) / more
            )
        elif name == "launch":
            changed = replace(figures, gap_s=np.asarray(figures.gap_s) / more, host_s=np.asarray(figures.host_s) / more)
        else:
            if name == "nvlink.rate" and not job.cluster.node.accelerator.scale_up_bytes_per_s.value:
                continue
            if name == "nic.rate" and not job.cluster.node.nics:
                continue
            cluster = (
                _more_of_gpu("scale_up_bytes_per_s", job.cluster, more)
                if name == "nvlink.rate"
                else _more_network(job.cluster, more)
            )
            changed_parts = parts_of(replace(job, cluster=cluster), columns, GroupTimes(cluster))
        step = float(times(changed_parts, changed).total_s[0])
        found.append(Sensitivity(name, (step / base - 1) / (more - 1), step))
    return sorted(found, key=lambda one: one.elasticity)


def fastest(steps: Steps, among: Sequence[int] | None = None) -> int:
    """The place of the layout with the shortest step. Raises InputError where there is none."""
    places = np.arange(len(steps.columns)) if among is None else np.asarray(among)
    if not len(places):
        raise InputError("no layout to choose from.")
    return int(places[int(np.argmin(steps.total_s[places]))])
