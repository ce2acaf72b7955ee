"""`busbw explain`: why it is slow, why it hangs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import BytesRead, Page, given_path, note, print_json, problem
from busbw.cli.predictions import Changes, pairs_of

if TYPE_CHECKING:
    from busbw.diagnosis.beside_model import ExpectedStep
    from busbw.diagnosis.explain import Explanation
    from busbw.errors import Loss
    from busbw.hardware import Cluster

__all__ = ["explain", "refuse_if_nothing_was_read"]


def explain(  # noqa: PLR0917 - an option each
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files and folders of one job; - is standard input.")
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", parser=given_path, metavar="FILE", help="Also write one HTML file that needs no network."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME|FILE",
            help="What the job ran on: collectives of traces are laid beside the model.",
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="Its number of nodes (hosts).")] = None,
    what_if: Changes = None,
    expect: Annotated[
        Path | None,
        typer.Option(
            "--expect",
            parser=given_path,
            metavar="FILE.json",
            help="Of `busbw simulate training --json`: the step is laid beside it.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", parser=given_path, metavar="FILE.svg", help="Draw where the steps of traces go, a bar a rank."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Leave nothing out: every line, file and loss.")] = False,
) -> None:
    """Say why a job is slow or hangs, and show the lines.

    Takes all that a job left behind: NCCL logs of any number of ranks, tables of nccl-tests, OSU and ucx_perftest,
    nvidia-smi topo -m, NCCL topology files, dmesg, scripts and settings. What a file is, is told by its content.
    A store (busbw read --store) stands for the files of its latest run, STORE/RUN for those of that run.

    Exits with 1 if something is wrong, 0 if nothing is or nothing can be told, 2 if nothing could be read.

    \b
    Examples:
      busbw explain job-4711/
      busbw explain rank*.log topo.txt --report report.html
      busbw explain traces/ --cluster dgx-h100 --nodes 2
      busbw explain job-4711/ --json | jq '.findings[0]'
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.cli.diagnosis_page import print_calls, print_diagnosis, print_step  # noqa: PLC0415 - loads the tables
    from busbw.cli.inputs import found, nothing_readable  # noqa: PLC0415
    from busbw.diagnosis.beside_model import calls_beside_model, read_expected, step_beside_model  # noqa: PLC0415
    from busbw.diagnosis.explain import explain as explained  # noqa: PLC0415
    from busbw.diagnosis.findings import to_json  # noqa: PLC0415
    from busbw.reports import write_report  # noqa: PLC0415

    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise typer.BadParameter(
            f"--plot {plot}: is a folder, or its folder is not there. Name a file in a folder that is."
        )
    ran_on = _ran_on(cluster, nodes, what_if)
    step = read_expected(expect) if expect is not None else None
    with found(paths, report, stores=True) as inputs:
        with BytesRead(inputs.size_bytes) as progress:
            explanation = explained(inputs.artefacts, inputs.losses, progress, cluster=ran_on)
        diagnosis = explanation.diagnosis
        read = [(path, formats) for path, _, formats in diagnosis.artefacts]
        refuse_if_nothing_was_read(nothing_readable(read, diagnosis.losses))
        if report is not None:
            write_report(explanation, report, inputs.artefacts)
        if plot is not None:
            _plot(plot, explanation)
        if as_json:
            print_json(to_json(diagnosis) | _beside_model(explanation, ran_on, step))
        else:
            page = Page()
            print_diagnosis(page, diagnosis, inputs.artefacts, show_all)
            if ran_on is not None:
                kinds = calls_beside_model(explanation.facts)
                print_calls(page, kinds, ran_on.name, show_all)
                most = max((kind.ranks for kind in kinds), default=0)
                if nodes is not None and most > ran_on.gpus:
                    note(
                        f"--nodes {nodes}: a group here has {most:,} ranks, and {ran_on.name} then has {ran_on.gpus:,} GPUs; expected times are those of as many nodes as the group needs."
                    )
            if step is not None:
                print_step(page, step_beside_model(explanation.facts, step), step)
    if report is not None:
        note(f"report: {report}")
    raise typer.Exit(1 if diagnosis.verdict == "faulty" else 0)


def _plot(path: Path, explanation: Explanation) -> None:
    from busbw.reports import parts_svg, standalone, trace_parts  # noqa: PLC0415 - takes a second

    bars = trace_parts(explanation.facts.steps)
    if not bars:
        note(f"--plot {path}: no trace of a GPU in these files, so nothing was drawn.")
        return
    path.write_text(standalone(parts_svg(bars, "a step, mean of each rank")), encoding="utf-8")
    note(f"plot: {path}")


def _ran_on(cluster: str | None, nodes: int | None, what_if: list[str] | None) -> Cluster | None:
    if nodes is not None and nodes < 1:
        raise typer.BadParameter(f"--nodes {nodes}: a cluster has at least one node.")
    if cluster is None:
        if nodes is not None or what_if:
            raise typer.BadParameter("--nodes and --set say something of a cluster: name it with --cluster.")
        return None
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue

    found, losses = find_cluster(cluster, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for loss in losses:
        note(str(loss))
    return found


def _beside_model(explanation: Explanation, ran_on: Cluster | None, step: ExpectedStep | None) -> dict[str, Any]:
    """Collectives beside the model, where a cluster was named, and the step, where one is expected."""
    from busbw.diagnosis.beside_model import calls_beside_model, figures_json, step_beside_model  # noqa: PLC0415

    told: dict[str, Any] = {}
    if ran_on is not None:
        told |= {"cluster": ran_on.name, "collectives": figures_json(calls_beside_model(explanation.facts))}
    if step is not None:
        parts = step_beside_model(explanation.facts, step)
        told["step"] = [
            {"part": part.name, "measured_s": part.measured_s, "expected_s": part.expected_s} for part in parts
        ]
    return told


def refuse_if_nothing_was_read(losses: list[Loss]) -> None:
    """Ends the command with status 2 if there are such losses, one line each."""
    for loss in losses:
        problem(str(loss))
    if losses:
        raise typer.Exit(2)
