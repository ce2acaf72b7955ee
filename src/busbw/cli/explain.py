"""`busbw explain`: why it is slow, why it hangs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbw.cli.console import BytesRead, Page, given_path, note, print_json, problem

if TYPE_CHECKING:
    from busbw.errors import Loss

__all__ = ["explain", "refuse_if_nothing_was_read"]


def explain(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files and folders of one job; - is standard input.")
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", parser=given_path, metavar="FILE", help="Also write one HTML file that needs no network."
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
      busbw explain job-4711/ --json | jq '.findings[0]'
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.cli.diagnosis_page import print_diagnosis  # noqa: PLC0415 - loads the tables
    from busbw.cli.inputs import found, nothing_readable  # noqa: PLC0415
    from busbw.diagnosis.explain import explain as explained  # noqa: PLC0415
    from busbw.diagnosis.findings import to_json  # noqa: PLC0415
    from busbw.reports import write_report  # noqa: PLC0415

    with found(paths, report, stores=True) as inputs:
        with BytesRead(inputs.size_bytes) as progress:
            explanation = explained(inputs.artefacts, inputs.losses, progress)
        diagnosis = explanation.diagnosis
        read = [(path, formats) for path, _, formats in diagnosis.artefacts]
        refuse_if_nothing_was_read(nothing_readable(read, diagnosis.losses))
        if report is not None:
            write_report(explanation, report, inputs.artefacts)
        if as_json:
            print_json(to_json(diagnosis))
        else:
            print_diagnosis(Page(), diagnosis, inputs.artefacts, show_all)
    if report is not None:
        note(f"report: {report}")
    raise typer.Exit(1 if diagnosis.verdict == "faulty" else 0)


def refuse_if_nothing_was_read(losses: list[Loss]) -> None:
    """Ends the command with status 2 if there are such losses, one line each."""
    for loss in losses:
        problem(str(loss))
    if losses:
        raise typer.Exit(2)
