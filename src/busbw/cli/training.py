"""`busbw simulate training` and `busbw search training`: a step of a model on a cluster, and the layout that makes it shortest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.predictions import pairs_of
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.hardware import Cluster
    from busbw.simulation import Timeline
    from busbw.workloads.training.job import Job
    from busbw.workloads.training.layout import Layout, Precision
    from busbw.workloads.training.models import Model
    from busbw.workloads.training.predict import Sensitivity, StepPrediction
    from busbw.workloads.training.search import Search, Space

__all__ = ["search", "search_training", "training"]

SCHEMA = 1
"""Number of the JSON shapes of these two."""
_GIB = 2**30
_MICRO_BATCHES_A_STAGE = 4
"""Micro-batches a stage where no batch is given: the bubble is then a fifth. A choice."""
_SHOWN = 5
_SEQ_LEN = 4096

search = typer.Typer(help="Search for what is best: layouts of a training step.", no_args_is_help=True)

_Model = Annotated[
    str, typer.Option("--model", metavar="NAME|FILE", help="A model by name, or a YAML file with its dimensions.")
]
_AnyModel = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|FILE", help="A model by name, or a YAML file with its dimensions."),
]
_ClusterOption = Annotated[
    str,
    typer.Option("--cluster", metavar="NAME|FILE", help="A node of `busbw hardware`, or a file that describes one."),
]
_Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="N", min=1, help="Number of nodes (hosts); what the file says, or 1, if not given."
    ),
]
_GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", metavar="N", min=1, help="Sequences of a step, all GPUs.")
]
_MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", metavar="N", min=1, help="Sequences of a micro-batch.")
]
_SeqLen = Annotated[int, typer.Option("--seq-len", metavar="N", min=1, help="Tokens of a sequence.")]
_AnySeqLen = Annotated[
    int | None,
    typer.Option("--seq-len", metavar="N", min=1, help="Tokens of a sequence; 4096 if nothing says otherwise."),
]
_AnyPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="bf16, fp16, fp8, fp8-block, mxfp8 or nvfp4; bf16 if nothing says otherwise.",
    ),
]
_Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help="bf16, fp16, fp8, fp8-block, mxfp8 or nvfp4.")
]
_Recompute = Annotated[
    str,
    typer.Option(
        "--recompute", metavar="HOW", help="none, selective, full; auto: full only where memory would not suffice."
    ),
]
_Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="GROUPS",
        help="Communication that runs beside computing, of tp,cp,pp,dp,ep or none; dp,cp,pp if not given.",
    ),
]
_Software = Annotated[
    str,
    typer.Option(
        "--software", metavar="RELEASE", help="Of the calibration, such as megatron-bridge-26.06; any if not given."
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        parser=given_path,
        metavar="FILE",
        help="A configuration of Megatron-LM, NeMo, Megatron-Bridge, torchtitan, DeepSpeed or Hugging Face: what is not given here is taken from it.",
    ),
]
_Graphs = Annotated[
    str | None,
    typer.Option(
        "--graphs",
        metavar="PARTS",
        help="What CUDA graphs replay, of attn,mamba,mlp,router,experts or all; nothing if not given.",
    ),
]
_Dispatcher = Annotated[
    str | None,
    typer.Option(
        "--dispatcher",
        metavar="NAME",
        help="How tokens go to experts: alltoall, deepep or hybridep; deepep if not given.",
    ),
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def training(
    *,
    model: _AnyModel = None,
    cluster: _ClusterOption,
    nodes: _Nodes = None,
    config: _Config = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="TEXT",
            help="tp8.cp1.pp16.dp128; also ep8, etp, vpp2, fsdp, hsdp8, zero0, nosp, zb, dualpipe, gather, ulysses. dp is what is left.",
        ),
    ] = None,
    global_batch: _GlobalBatch = None,
    micro_batch: _MicroBatch = None,
    seq_len: _AnySeqLen = None,
    precision: _AnyPrecision = None,
    recompute: _Recompute = "auto",
    overlap: _Overlap = None,
    software: _Software = "",
    graphs: _Graphs = None,
    dispatcher: _Dispatcher = None,
    what_if: _WhatIf = None,
    closed_form: Annotated[
        bool, typer.Option("--closed-form", help="The closed form alone, without simulating the pipeline.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="What a tenth more of each hardware figure is worth, ranked.")
    ] = False,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto", parser=given_path, metavar="FILE.json", help="Write the timeline for ui.perfetto.dev."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", parser=given_path, metavar="FILE.html", help="Write a page of the timeline."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", parser=given_path, metavar="FILE.svg", help="Draw the parts of the step."),
    ] = None,
    as_json: _Json = False,
) -> int:
    """Simulate a training step: its time with an interval, MFU, what of it is communication, and memory.

    Computing comes from efficiency surfaces of the GPU, collectives from the time model, both corrected by a calibration fitted to
    published steps; the pipeline is simulated micro-batch by micro-batch. MFU counts model operations with the causal half of
    attention over the dense bf16 peak.

    \b
    Examples:
      busbw simulate training --model llama3.1-405b --cluster dgx-h100 --nodes 2048 --layout tp8.cp1.pp16.dp128 --global-batch 2048
      busbw simulate training --model deepseek-v3 --cluster gb200-nvl72 --nodes 64 --layout pp4.ep64.vpp4 --precision mxfp8
      busbw simulate training --model llama3-70b --cluster dgx-h100 --nodes 8 --layout tp4.pp4 --set nic.rate=800Gb/s --sensitivity
      busbw simulate training --config pretrain.sh --cluster dgx-h100 --nodes 8
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.workloads.training.layout import Batch, check, parse_layout  # noqa: PLC0415 - loads numpy
    from busbw.workloads.training.program import SIMULATED  # noqa: PLC0415

    found = _cluster(cluster, nodes, what_if)
    told = _configured(config, found.gpus, seq_len) if config is not None else _Configured()
    if model is None and told.model is None:
        raise typer.BadParameter("no model: give --model NAME, or --config FILE that describes one.")
    spread = parse_layout(layout, found.gpus) if layout else told.layout or _plain(found)
    micro = micro_batch or told.micro_batch or 1
    global_batch = global_batch or told.global_batch
    seq_len = seq_len or told.seq_len or _SEQ_LEN
    if recompute == "auto" and told.recompute is not None:
        recompute = told.recompute
    batch = global_batch or micro * spread.dp * _MICRO_BATCHES_A_STAGE * spread.pp
    if global_batch is None:
        note(f"no --global-batch: {batch} sequences, {batch // (micro * spread.dp)} micro-batches, were taken.")
    job = _job(
        model or told.model,
        found,
        batch,
        seq_len,
        precision=precision or told.precision,
        overlap=overlap or told.overlap,
        software=software,
    )
    job = _running(job, graphs, dispatcher)
    check(job.model, spread, Batch(batch, micro, seq_len), found.gpus)
    step = _step(job, spread, micro, recompute)
    run: Timeline | None = None
    if not closed_form and spread.schedule in SIMULATED:
        run = _simulated(step, record=perfetto is not None or report is not None)
    elif perfetto is not None or report is not None:
        raise typer.BadParameter(
            "a timeline needs a simulated schedule: leave --closed-form out, and take 1f1b or interleaved."
        )
    ranked = _sensitivities(step) if sensitivity else []
    _draw(run, step, perfetto, report)
    if plot is not None:
        _plot(plot, step)
    if as_json:
        print_json(_step_json(step, run, ranked))
    else:
        _print_step(step, run, ranked)
    return 0


def search_training(
    *,
    model: _AnyModel = None,
    cluster: _ClusterOption,
    nodes: _Nodes = None,
    config: _Config = None,
    global_batch: _GlobalBatch = None,
    micro_batch: _MicroBatch = None,
    seq_len: _AnySeqLen = None,
    precision: _AnyPrecision = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", metavar="TEXT", help="What of the layout is fixed, such as tp8.ep8; the rest is searched."
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="NAME",
            help="Layouts that it can run alone: megatron, torchtitan, deepspeed, llm-foundry; any if not given.",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order", metavar="AXES", help="Order of ranks, the fastest axis first: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp."
        ),
    ] = None,
    overlap: _Overlap = None,
    software: _Software = "",
    graphs: _Graphs = None,
    dispatcher: _Dispatcher = None,
    what_if: _WhatIf = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=100, help="Layouts that are shown.")
    ] = _SHOWN,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="WHERE",
            help="Where layouts are timed: here, local[:N], dask://HOST:PORT, ray://HOST:PORT, mpi.",
        ),
    ] = "here",
    as_json: _Json = False,
) -> int:
    """Search all legal layouts of a model on a cluster for the shortest step; the best are simulated.

    Legal: every rule of Megatron's groups holds, and memory suffices. Searched are tp, cp, pp, ep, virtual stages, micro-batch, full
    recompute or none, optimizer or weights sharded, or weights in each NVLink domain. Layouts whose steps differ by less than 0.5 % count as one.

    \b
    Examples:
      busbw search training --model llama3-70b --cluster dgx-h100 --nodes 8 --global-batch 128 --seq-len 8192
      busbw search training --model deepseek-v3 --cluster gb200-nvl72 --nodes 64 --global-batch 4096 --precision mxfp8 --layout tp1
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.simulation.engines import engine as opened  # noqa: PLC0415
    from busbw.workloads.training.predict import predict_step  # noqa: PLC0415 - loads numpy
    from busbw.workloads.training.search import search as searched  # noqa: PLC0415

    found = _cluster(cluster, nodes, what_if)
    told = _configured(config, None, seq_len) if config is not None else _Configured()
    if model is None and told.model is None:
        raise typer.BadParameter("no model: give --model NAME, or --config FILE that describes one.")
    batch = global_batch or told.global_batch or found.gpus * 2
    if global_batch is None and told.global_batch is None:
        note(f"no --global-batch: {batch} sequences, two a GPU, were taken.")
    job = _job(
        model or told.model,
        found,
        batch,
        seq_len or told.seq_len or _SEQ_LEN,
        precision=precision or told.precision,
        overlap=overlap or told.overlap,
        software=software,
    )
    job = _running(job, graphs, dispatcher)
    space = _space(layout, micro_batch)
    if framework is not None:
        from busbw.workloads.training.frameworks import find_framework  # noqa: PLC0415

        space = replace(space, framework=find_framework(framework))
    if order is not None:
        space = replace(space, order=order)
    with opened(engine) as executor:
        result = searched(job, space, executor=executor)
    steps = [predict_step(job, one, micro, again) for one, micro, again, _ in result.best(count)]
    runs = [_simulated(step, record=False) for step in steps]
    ranked = sorted(range(len(steps)), key=lambda place: runs[place].time_s)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "model": job.model.name,
                "cluster": found.name,
                "nodes": found.nodes,
                "legal": result.legal,
                "fit": result.fit,
                "lost": dict(result.losses),
                "layouts": [_step_json(steps[place], runs[place], []) for place in ranked],
            }
        )
    else:
        _print_search(result, [steps[place] for place in ranked], [runs[place] for place in ranked])
    return 0


def _cluster(name: str, nodes: int | None, what_if: list[str] | None) -> Cluster:
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue

    found, losses = find_cluster(name, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for line in map(str, losses):
        note(line)
    return found


def _plain(cluster: Cluster) -> Layout:
    from busbw.workloads.training.layout import Layout  # noqa: PLC0415

    return Layout(dp=cluster.gpus)


@dataclass(frozen=True, slots=True)
class _Configured:
    """What a configuration says; None: it does not."""

    model: Model | None = None
    layout: Layout | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    precision: Precision | None = None
    recompute: str | None = None
    overlap: frozenset[str] | None = None


def _configured(path: Path, gpus: int | None, seq_len: int | None) -> _Configured:
    """A configuration on so many GPUs, or without its layout; what was not taken from it is told."""
    from busbw.workloads.importers import import_configuration  # noqa: PLC0415

    found = import_configuration(path)
    for one in found.ignored:
        note(f"not taken from {found.path}: {one}")
    if found.missing:
        note(f"{found.path} does not say: {', '.join(found.missing)}")
    length = seq_len or found.seq_len or _SEQ_LEN
    placed = found.layout is not None and gpus is not None
    layout, batch = replace(found, seq_len=length).on(gpus) if placed and gpus is not None else (None, None)
    return _Configured(
        None if found.model is None and not found.dimensions else found.model_with(),
        layout,
        batch.global_batch if batch is not None else found.global_batch,
        batch.micro_batch if batch is not None else found.micro_batch,
        length,
        found.precision,
        found.recompute,
        found.overlap,
    )


def _job(
    model: str | Model | None,
    cluster: Cluster,
    batch: int,
    seq_len: int,
    *,
    precision: str | Precision | None,
    overlap: str | frozenset[str] | None,
    software: str,
) -> Job:
    from busbw.hardware.what_if import nearest  # noqa: PLC0415
    from busbw.workloads.training.calibration import load_training_calibration  # noqa: PLC0415
    from busbw.workloads.training.job import Job  # noqa: PLC0415
    from busbw.workloads.training.layout import precision_of  # noqa: PLC0415
    from busbw.workloads.training.models import find_model  # noqa: PLC0415

    known = load_training_calibration().releases
    if software and software not in known:
        raise InputError(
            f"--software {software!r} is no release of the calibration. {nearest(software, list(known))}".rstrip()
        )
    named = find_model(model) if isinstance(model, str) else model
    if named is None:
        raise InputError("no model: give --model NAME")
    kind = precision_of(precision or "bf16") if precision is None or isinstance(precision, str) else precision
    job = Job(named, cluster, batch, seq_len, kind, software=software)
    if overlap is None:
        return job
    if isinstance(overlap, frozenset):
        return replace(job, overlap=overlap)
    return replace(job, overlap=frozenset(word for word in overlap.lower().split(",") if word and word != "none"))


def _running(job: Job, graphs: str | None, dispatcher: str | None) -> Job:
    """The job with what the command line says of its software."""
    from busbw.workloads.training.job import SCOPES  # noqa: PLC0415

    if graphs is not None:
        words = frozenset(word.strip() for word in graphs.lower().split(",") if word.strip())
        job = replace(job, graphs=words - {"all", "none"} | (frozenset(SCOPES) if "all" in words else frozenset()))
    return job if dispatcher is None else replace(job, dispatcher=dispatcher.strip().lower())


def _step(job: Job, layout: Layout, micro_batch: int, recompute: str) -> StepPrediction:
    from busbw.workloads.training.layout import RECOMPUTE  # noqa: PLC0415
    from busbw.workloads.training.predict import predict_step  # noqa: PLC0415

    if recompute == "auto":
        step = predict_step(job, layout, micro_batch)
        return predict_step(job, layout, micro_batch, "full") if step.verdict == "needs recompute" else step
    if recompute not in RECOMPUTE:
        raise typer.BadParameter(f"--recompute {recompute!r}: auto, {', '.join(RECOMPUTE)}.")
    return predict_step(job, layout, micro_batch, recompute)


def _simulated(step: StepPrediction, *, record: bool) -> Timeline:
    from busbw.simulation import simulate  # noqa: PLC0415
    from busbw.workloads.training.program import step_program  # noqa: PLC0415

    return simulate(step_program(step), step.job.cluster, record=record)


def _sensitivities(step: StepPrediction) -> list[Sensitivity]:
    from busbw.workloads.training.predict import sensitivities  # noqa: PLC0415

    return sensitivities(step.job, step.layout, step.micro_batch, step.recompute)


def _space(layout: str | None, micro_batch: int | None) -> Space:
    from busbw.workloads.training.layout import CONTEXT, SCHEDULES, parse_layout  # noqa: PLC0415
    from busbw.workloads.training.search import Space  # noqa: PLC0415

    space = Space(micro_batch=(micro_batch,) if micro_batch else None)
    if not layout:
        return space
    fixed = parse_layout(layout)
    words = set(re.findall(r"[a-z]+", layout.lower()))
    sizes: dict[str, Any] = {
        name: (getattr(fixed, name),) for name in ("tp", "cp", "pp", "dp", "ep", "vpp") if name in words
    }
    if fixed.etp != 1 or fixed.context != CONTEXT[0] or fixed.schedule not in space.schedules:
        raise typer.BadParameter(
            f"--layout {layout!r}: a search has etp1, {CONTEXT[0]} and {' or '.join(space.schedules)} alone; "
            f"`busbw simulate training --layout` takes etp, {', '.join((*CONTEXT, *SCHEDULES))}."
        )
    if words & {"zero", "fsdp", "hsdp"}:
        sizes |= {"sharding": (fixed.sharding,), "shard": fixed.shard or None}
    if re.search(r"\b(1f1b|interleaved)\b", layout.lower()):
        sizes["schedules"] = (fixed.schedule,)
    if "nosp" in words:
        sizes["sp"] = False
    return replace(space, **sizes)


def _draw(run: Timeline | None, step: StepPrediction, perfetto: Path | None, report: Path | None) -> None:
    if run is None:
        return
    title = f"{step.job.model.name} on {step.job.cluster.nodes} x {step.job.cluster.name}, {step.layout}"
    if perfetto is not None:
        from busbw.reports.perfetto import write_perfetto  # noqa: PLC0415

        note(f"{write_perfetto(run, perfetto)} tasks written to {perfetto}")
    if report is not None:
        from busbw.reports.simulated import write_simulation  # noqa: PLC0415 - takes a second

        write_simulation(report, run, title, [])
        note(f"report: {report}")


def _plot(path: Path, step: StepPrediction) -> None:
    from busbw.reports import parts_svg, standalone  # noqa: PLC0415 - takes a second

    title = f"{step.job.model.name} on {step.job.cluster.nodes} x {step.job.cluster.name}: parts of a step"
    parts = {_PARTS.get(name, name): part for name, part in step.breakdown_s.items() if part > 0}
    path.write_text(standalone(parts_svg([(str(step.layout), parts)], title)), encoding="utf-8")
    note(f"plot: {path}")


def _step_json(step: StepPrediction, run: Timeline | None, ranked: list[Sensitivity]) -> dict[str, Any]:
    told = {"schema": SCHEMA, "cluster": step.job.cluster.name, "nodes": step.job.cluster.nodes, **step.to_json()}
    told["simulated_s"] = run.time_s if run is not None else None
    if ranked:
        told["sensitivity"] = [
            {"figure": one.figure, "elasticity": one.elasticity, "step_s_with_a_tenth_more": one.step_s}
            for one in ranked
        ]
    return told


def _print_step(step: StepPrediction, run: Timeline | None, ranked: list[Sensitivity]) -> None:
    page, job, layout = Page(), step.job, step.layout
    shown = run.time_s if run is not None else step.total_s
    page.line(
        ("training", "bold"),
        f"  {job.model.name} ({job.model.parameters / 1e9:.4g} B) on {job.cluster.nodes} x {job.cluster.name} = {layout.gpus} GPUs",
    )
    micro = job.global_batch // (step.micro_batch * layout.dp)
    page.line(
        "layout", f"    {layout}, {job.global_batch} sequences of {job.seq_len}, {micro} micro-batches of {step.micro_batch}, "
        f"{job.precision.name}, recompute {step.recompute}",
    )  # fmt: skip
    page.line()
    scale = shown / step.total_s
    page.line(
        ("step", "bold"),
        f"      {_seconds(shown)}   ({_seconds(step.low_s * scale)} to {_seconds(step.high_s * scale)})"
        + ("" if run is not None else "   closed form"),
    )
    page.line(
        "tokens",
        f"    {step.tokens_per_s_per_gpu / scale:.5g} a second and GPU   MFU {step.mfu() / scale:.1%} (causal operations over bf16 peak)",
    )
    page.line()
    page.table(
        [("part of the step", False), ("time", True), ("share", True)],
        (
            [_PARTS.get(name, name), _seconds(part), f"{part / step.total_s:.1%}"]
            for name, part in step.breakdown_s.items()
            if part > 0
        ),
    )
    page.line()
    total = sum(step.memory.values())
    page.line(
        ("memory of a GPU", "bold"), f"  {total / _GIB:.1f} of {step.capacity_bytes / _GIB:.1f} GiB: {step.verdict}"
    )
    page.table([("part", False), ("GiB", True)], ([name, f"{part / _GIB:.2f}"] for name, part in step.memory.items()))
    if ranked:
        page.line()
        page.table(
            [("figure", False), ("step for 1 % more", True), ("step with a tenth more", True)],
            ([one.figure, f"{one.elasticity:+.3f} %", _seconds(one.step_s)] for one in ranked),
        )


_PARTS = {
    "compute": "computing", "bubble": "pipeline bubble", "tp": "tensor parallel, exposed", "cp": "context parallel, exposed",
    "ep": "experts, exposed", "pp": "between stages", "dp": "data parallel, exposed", "other": "else",
}  # fmt: skip


def _print_search(result: Search, steps: list[StepPrediction], runs: list[Timeline]) -> None:
    page, job = Page(), result.job
    page.line(
        ("search", "bold"),
        f"  {job.model.name} on {job.cluster.nodes} x {job.cluster.name} = {job.cluster.gpus} GPUs, {job.global_batch} sequences of {job.seq_len}",
    )
    page.line(f"{result.legal} legal layouts, {result.fit} of them fit")
    page.line()
    page.table(
        [("layout", False), ("micro-batch", True), ("recompute", False), ("step", True), ("tokens/s/GPU", True), ("MFU", True), ("memory GiB", True), ("most beside computing", False)],
        (
            [
                str(step.layout), str(step.micro_batch), step.recompute, _seconds(run.time_s),
                f"{step.tokens_per_s_per_gpu * step.total_s / run.time_s:.5g}", f"{step.mfu() * step.total_s / run.time_s:.1%}",
                f"{sum(step.memory.values()) / _GIB:.0f}", _most(step),
            ]
            for step, run in zip(steps, runs, strict=True)
        ),
    )  # fmt: skip
    page.line()
    page.line(
        "why the others lost (what sets them back most): "
        + ", ".join(f"{count} {_PARTS.get(name, name)}" for name, count in result.losses.items())
    )


def _most(step: StepPrediction) -> str:
    name, part = max(
        ((name, part) for name, part in step.breakdown_s.items() if name != "compute"), key=lambda one: one[1]
    )
    return f"{_PARTS.get(name, name)} {part / step.total_s:.0%}"


def _seconds(value: float) -> str:
    return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.4g} ms"


search.command("training")(search_training)


@search.callback()
def _search() -> None:
    """Keeps `training` a command of its own while there is only one."""
