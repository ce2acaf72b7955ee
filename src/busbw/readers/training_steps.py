"""Lines that training programs print at every step, or every few: Megatron-LM, DeepSpeed and torchtitan.

     iteration       43/     100 | consumed samples: 5504 | elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | ...
    [INFO] [timer.py:258:stop] epoch=0/micro_step=45/global_step=45, RunningAvgSamplesPerSec=16.1, CurrSamplesPerSec=16.8, MaxMemAllocated=0.97GB
    [titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%

Sources: Megatron-LM, training_log in megatron/training/training.py (with or without throughput, since 2021); GPT-NeoX prints the like; DeepSpeed,
ThroughputTimer in deepspeed/utils/timer.py and PipelineEngine; torchtitan, components/metrics.py. tps counts one GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place

__all__ = ["READER"]

_LONGEST = 4096
_NUMBER = r"([-+]?\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?)"
_SIGNATURE = re.compile(
    r"\biteration\s+0+/\s*0+ \||\bSamplesPerSec=|\bsteps: 0+ loss: .* iter time \(s\): |\bstep:\s+0+\s+loss:.*\btps: "
)
_MEGATRON = re.compile(r"\biteration\s+(\d{1,12})/\s*(\d{1,12}) \|(.*)$")
_SAMPLES = re.compile(rf"\bsamples/sec: {_NUMBER} \|")
_DEEPSPEED = re.compile(
    r"(?:epoch=\d+/micro_step=\d+/global_step=|\b\d{1,9}/)(\d{1,12}), (?:RunningAvg)?SamplesPerSec="
)
_CURRENT = re.compile(rf"(?:Curr|(?<!Avg))SamplesPerSec={_NUMBER}")
_DEEPSPEED_MEMORY = re.compile(rf"MaxMemAllocated={_NUMBER}GB")
_PIPELINE = re.compile(rf"\bsteps: (\d{{1,12}}) loss: {_NUMBER} iter time \(s\): {_NUMBER}(?: samples/sec: {_NUMBER})?")
_TITAN = re.compile(r"\bstep:\s+(\d{1,12})\s+loss:")
_TITAN_FIELDS = {
    "loss": re.compile(rf"\bloss:\s+{_NUMBER}"),
    "memory_bytes": re.compile(rf"\bmemory:\s+{_NUMBER}GiB"),
    "tokens_per_s_per_gpu": re.compile(r"\btps:\s+(\d[\d,]{0,18}(?:\.\d+)?)"),
    "flops_per_s_per_gpu": re.compile(r"\btflops:\s+(\d[\d,]{0,12}(?:\.\d{1,9})?)"),
    "mfu": re.compile(rf"\bmfu:\s+{_NUMBER}%"),
}
_SCALES = {"memory_bytes": 2.0**30, "flops_per_s_per_gpu": 1e12, "mfu": 0.01}
_MEGATRON_FIELDS = {
    "elapsed time per iteration (ms)": ("time_ns", 1e6),
    "elapsed time per iteration (s)": ("time_ns", 1e9),
    "global batch size": ("global_batch", 1.0),
    "throughput per gpu (tflop/s/gpu)": ("flops_per_s_per_gpu", 1e12),
    "throughput (token/sec/gpu)": ("tokens_per_s_per_gpu", 1.0),
    "tokens-per-second-per-gpu": ("tokens_per_s_per_gpu", 1.0),
    "tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    "approx flops per gpu": ("flops_per_s_per_gpu", 1e12),
    "tflops": ("flops_per_s_per_gpu", 1e12),
    "samples per second": ("samples_per_s", 1.0),
    "lm loss": ("loss", 1.0),
    "lm_loss": ("loss", 1.0),
}
"""What Megatron-LM and its offspring (Megatron-DeepSpeed, GPT-NeoX, ROCm's fork) print between bars, and the columns and scales of it."""
_WHOLE = {"time_ns", "global_batch", "memory_bytes"}


class TrainingStepsReader(Lines):
    """Steps of training, anywhere in a log."""

    name = "training-steps"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `steps` a line."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        for line in lines:
            text = line.text
            if line.event is not None or len(text) > _LONGEST:
                continue
            found = _megatron(text) or _deepspeed(text) or _titan(text)
            if found is None:
                continue
            if not found.keys() & {"time_ns", "samples_per_s", "tokens_per_s_per_gpu"}:
                losses.add(
                    "damaged-row",
                    line.number,
                    "a step without its time or rate: the line is cut, or of a version not known",
                )
                continue
            rows.append(place(artefact, line) | {"host": line.host, "rank": line.rank} | found)
        if rows:
            yield rows_of("steps", rows)
        yield from losses


READER = TrainingStepsReader()


def _megatron(text: str) -> dict[str, Any] | None:
    head = _MEGATRON.search(text)
    if head is None:
        return None
    found: dict[str, Any] = {"tool": "megatron-lm", "step": int(head[1]), "steps": int(head[2])}
    before = _SAMPLES.search(text, 0, head.start())
    if before is not None:
        _put(found, "samples_per_s", float(before[1]))
    for part in head[3].split("|"):
        key, colon, value = part.rpartition(":")
        column = _MEGATRON_FIELDS.get(key.strip().lower())
        number = re.match(rf"\s*{_NUMBER}", value) if colon else None
        if column is not None and number is not None:
            _put(found, column[0], float(number[1]) * column[1])
    return found


def _deepspeed(text: str) -> dict[str, Any] | None:
    head = _DEEPSPEED.search(text)
    if head is None:
        pipeline = _PIPELINE.search(text)
        if pipeline is None:
            return None
        found: dict[str, Any] = {"tool": "deepspeed", "step": int(pipeline[1])}
        _put(found, "loss", float(pipeline[2]))
        _put(found, "time_ns", float(pipeline[3]) * 1e9)
        if pipeline[4] is not None:
            _put(found, "samples_per_s", float(pipeline[4]))
        return found
    found = {"tool": "deepspeed", "step": int(head[1])}
    for column, expression, scale in (
        ("samples_per_s", _CURRENT, 1.0), ("memory_bytes", _DEEPSPEED_MEMORY, 2.0**30),
    ):  # fmt: skip
        value = expression.search(text)
        if value is not None:
            _put(found, column, float(value[1]) * scale)
    return found


def _titan(text: str) -> dict[str, Any] | None:
    head = _TITAN.search(text)
    if head is None or "tps:" not in text:
        return None
    found: dict[str, Any] = {"tool": "torchtitan", "step": int(head[1])}
    for column, expression in _TITAN_FIELDS.items():
        value = expression.search(text)
        if value is not None:
            _put(found, column, float(value[1].replace(",", "")) * _SCALES.get(column, 1.0))
    return found


def _put(found: dict[str, Any], column: str, value: float) -> None:
    """Sets a column, unless it is nothing that can be: a step takes time, and rates are above zero."""
    if column != "loss" and not 0 < value < 1e19:
        return
    found[column] = round(value) if column in _WHOLE else value
