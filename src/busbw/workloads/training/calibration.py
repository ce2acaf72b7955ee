"""Calibration of training steps: a few figures on the parts of a step, by what they depend on, fitted to published steps.

A figure is a common value times a factor for each tag of the job that has one: its GPU's generation, its type of products, its software.
What was never measured takes the common value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from busbw.prediction import gpu_class
from busbw.workloads.training.job import Job
from busbw.workloads.training.step import Figures

__all__ = ["FIGURES", "TrainingCalibration", "figures_of", "load_training_calibration", "tags_of"]

SCHEMA = 1

FIGURES: Mapping[str, tuple[float, float, tuple[tuple[str, float], ...], str]] = {
    # name: (prior, spread of its logarithm, (tag, spread of a factor's logarithm) ..., meaning)
    "gemm": (1.1, 0.15, (("dtype", 0.2), ("arch+dtype", 0.1)), "products in the recipe's type: time over that of a kernel alone"),
    "gemm16": (1.12, 0.1, (("arch", 0.08),), "the same in bf16: clocks fall under sustained load"),
    "attention": (1.1, 0.2, (("kernel", 0.3), ("family", 0.15)), "core attention: time over that of the fitted kernel"),
    "experts": (1.1, 0.2, (("arch+dtype", 0.15),), "routed experts: time over that of the fitted kernel with even routing"),
    "memory": (1.2, 0.25, (("family", 0.3),), "norms, activations, permutation and the like"),
    "gap_s": (1e-6, 0.5, (), "idle time between two kernels of a stream"),
    "host_s": (1.5e-5, 0.5, (), "time of the host for a launch, where launches are not replayed from graphs"),
    "links": (1.0, 0.15, (), "collectives beside computing: time over that of one alone"),
    "tp_open": (0.5, 0.4, (), "share of tensor-parallel communication that is waited for where it is overlapped"),
    "ep_open": (0.5, 0.4, (), "share of dispatch and combine that is waited for where they are overlapped"),
    "dp_hidden": (0.5, 0.4, (), "share of computing beside which gradients and weights of a data-parallel group can travel"),
    "step_s": (6e-3, 0.7, (), "what a step takes beside its micro-batches: data, logging, checks"),
    "optimizer": (1.5, 0.3, (), "the optimizer: time over that of its bytes through memory"),
    "software": (1.0, 1e-3, (("gpu", 0.08), ("family+moe", 0.08), ("release+moe", 0.12)), "everything that a GPU computes"),
}  # fmt: skip
"""Priors are guesses, with the spread that a guess has; the shipped calibration says what fits."""


def tags_of(job: Job) -> dict[str, str]:
    """What figures may depend on."""
    arch, dtype = gpu_class(job.cluster.node.accelerator), job.precision.name
    family = job.software.rstrip("0123456789.").rstrip("-v") if job.software else ""
    moe = "moe" if job.model.is_moe else "dense"
    return {
        "arch": arch,
        "dtype": dtype,
        "gpu": job.gpu,
        "arch+dtype": f"{arch}/{dtype}",
        "family": family,
        "family+moe": f"{family}/{moe}" if family else "",
        "kernel": f"{job.kernel}/{arch}" if job.flash else "scores",
        "release+moe": f"{job.software}/{moe}" if job.software else "",
    }


@dataclass(frozen=True, slots=True)
class TrainingCalibration:
    """Figures and factors, and how far measured steps lay from predicted ones that they were not fitted to."""

    values: Mapping[str, float]
    factors: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(figure, tag, its value): factor."""
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """For dense and moe: between which factors on the prediction 80 % of measured steps of sources left out lie."""
    fitted_to: tuple[str, ...] = ()

    def value(self, name: str, tags: Mapping[str, str]) -> float:
        """A figure for a job's tags."""
        found = self.values[name]
        for tag, _ in FIGURES[name][2]:
            found *= self.factors.get((name, tag, tags[tag]), 1.0)
        return found

    @property
    def releases(self) -> tuple[str, ...]:
        """Software that has factors of its own."""
        return tuple(sorted({value.split("/")[0] for _, tag, value in self.factors if tag == "release+moe"}))

    def interval(self, job: Job) -> tuple[float, float]:
        """Factors on a prediction between which 80 % of measured steps of its kind lie; wider where the GPU was never measured."""
        low, high = self.spread.get("moe" if job.model.is_moe else "dense", _NO_SPREAD)
        seen = ("software", "gpu", job.gpu) in self.factors or not self.factors
        return (low, high) if seen else (low / _UNSEEN, high * _UNSEEN)


_NO_SPREAD = (0.7, 1.4)
"""Before anything was left out: a guess."""
_UNSEEN = 1.15
"""By what an interval widens for a GPU without a measured step. A guess."""


def figures_of(jobs: Sequence[Job], calibration: TrainingCalibration) -> Figures:
    """The figures of jobs, a column each."""
    tags = [tags_of(job) for job in jobs]
    columns: dict[str, Any] = {
        name: np.array([calibration.value(name, one) for one in tags])
        for name in FIGURES
        if name not in ("tp_open", "ep_open")
    }
    for name, group in (("tp", "tp"), ("ep", "ep")):
        share = [
            calibration.value(f"{name}_open", one) if group in job.overlap else 1.0
            for job, one in zip(jobs, tags, strict=True)
        ]
        columns[f"{name}_hidden"] = 1.0 - np.minimum(1.0, np.array(share))
    columns["dp_hidden"] = np.array(
        [min(1.0, value) if "dp" in job.overlap else 0.0 for job, value in zip(jobs, columns["dp_hidden"], strict=True)]
    )
    return Figures(**columns)


def priors() -> TrainingCalibration:
    """Before any fit."""
    return TrainingCalibration({name: figure[0] for name, figure in FIGURES.items()})


def to_json(calibration: TrainingCalibration) -> dict[str, Any]:
    """The shape of calibration.json."""
    return {
        "schema": SCHEMA,
        "source": "fitted by `python -m busbw.accuracy FOLDER` to the sources below",
        "fitted_to": list(calibration.fitted_to),
        "spread": {name: [round(end, 4) for end in ends] for name, ends in calibration.spread.items()},
        "figures": {
            name: {
                "value": float(f"{calibration.values[name]:.4g}"),
                "meaning": FIGURES[name][3],
                "factors": {
                    f"{tag}={value}": float(f"{factor:.4g}")
                    for (figure, tag, value), factor in sorted(calibration.factors.items())
                    if figure == name and abs(math.log(factor)) > 1e-3
                },
            }
            for name in FIGURES
        },
    }


def from_json(document: Mapping[str, Any]) -> TrainingCalibration:
    """What `to_json` wrote."""
    factors = {}
    for name, figure in document["figures"].items():
        for key, factor in figure["factors"].items():
            tag, _, value = key.partition("=")
            factors[name, tag, value] = float(factor)
    values = {name: float(figure["value"]) for name, figure in document["figures"].items()}
    spread = {name: (float(ends[0]), float(ends[1])) for name, ends in document["spread"].items()}
    return TrainingCalibration(values, factors, spread, tuple(document["fitted_to"]))


@lru_cache(maxsize=1)
def load_training_calibration() -> TrainingCalibration:
    """The calibration that ships."""
    text = (resources.files("busbw.workloads.training") / "calibration.json").read_text(encoding="utf-8")
    return from_json(json.loads(text))
