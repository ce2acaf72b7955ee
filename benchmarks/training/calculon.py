"""Calculon beside us: its own model of a step on the rows that it can express, with the systems that it ships.

A checkout of calculon-ai/calculon (Apache-2.0) whose folder stands in BUSBW_CALCULON; BUSBW_CALCULON_PYTHON is an interpreter that has what it
imports (pandas, psutil). Nothing of it is part of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from busbw.accuracy.workloads import TrainingRow

__all__ = ["calculon_steps"]

_SYSTEMS = {"A100-SXM-80GB": "systems/a100_80g.json", "H100-SXM-80GB": "systems/h100_80g_nvl8.json"}
_RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}
_DRIVER = """
import json, logging, sys
sys.path.insert(0, sys.argv[1])
import calculon
from calculon.llm import Llm
from calculon.system import System
found = []
for app, exe, system in json.load(sys.stdin):
    try:
        model = Llm(Llm.Application(app), logging.getLogger())
        sys_ = System(calculon.io.read_json_file(sys.argv[1] + "/" + system))
        model.compile(sys_, Llm.Execution.from_json(exe))
        model.run(sys_)
        found.append(model.get_total_time())
    except (Llm.Error, AssertionError):
        found.append(None)
print(json.dumps(found))
"""


def _asked(row: TrainingRow) -> tuple[Mapping[str, Any], Mapping[str, Any], str] | None:
    """Application, execution and system of a row; None for what Calculon has no words for: experts, groups of heads, gates, context parallelism, FSDP."""
    job, model, layout = row.job, row.job.model, row.layouts[0]
    plain = not (model.is_moe or model.gated or model.is_mla or model.pattern) and model.kv_heads == model.heads
    if (
        not plain
        or job.gpu not in _SYSTEMS
        or layout.cp > 1
        or layout.sharding not in ("zero0", "zero1")
        or row.recompute not in _RECOMPUTE
    ):
        return None
    stages = model.layers // layout.pp
    application = {
        "hidden": model.hidden, "feedforward": model.ffn, "seq_size": job.seq_len, "attn_heads": model.heads, "attn_size": model.head_dim,
        "num_blocks": model.layers,
    }  # fmt: skip
    sequence = layout.sp and layout.tp > 1
    execution = {
        "num_procs": layout.gpus, "tensor_par": layout.tp, "pipeline_par": layout.pp, "data_par": layout.dp, "tensor_par_net": 0 if layout.tp <= 8 else 1,
        "pipeline_par_net": 1, "data_par_net": 0 if layout.gpus <= 8 else 1, "batch_size": job.global_batch, "microbatch_size": row.micro_batches[0],
        "datatype": "float8" if job.precision.gemm.startswith("fp8") else "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": _RECOMPUTE[row.recompute], "pipeline_interleaving": layout.vpp if stages % layout.vpp == 0 else 1,
        "optimizer_sharding": layout.sharding == "zero1" and layout.dp > 1, "tensor_par_comm_type": "rs_ag" if sequence else "ar",
        "tensor_par_overlap": "none", "seq_par_ag_redo": bool(sequence and row.recompute != "none"), "data_par_overlap": layout.dp > 1,
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip
    return application, execution, _SYSTEMS[job.gpu]


def calculon_steps(rows: Sequence[TrainingRow]) -> dict[int, float]:
    """Seconds that Calculon says, by the place of the row; empty where BUSBW_CALCULON names no checkout. Raises RuntimeError if it does not run."""
    folder = os.environ.get("BUSBW_CALCULON", "")
    if not folder or not Path(folder, "calculon", "llm").is_dir():
        return {}
    asked = {place: one for place, row in enumerate(rows) if (one := _asked(row)) is not None}
    ran = subprocess.run(
        [os.environ.get("BUSBW_CALCULON_PYTHON", sys.executable), "-c", _DRIVER, folder],
        input=json.dumps(list(asked.values())), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"Calculon in {folder}: {(ran.stderr.strip().splitlines() or ['no output'])[-1]}")
    times = json.loads(ran.stdout.splitlines()[-1])
    return {place: float(time) for place, time in zip(asked, times, strict=True) if time}
