"""`busbw demo`: the main job on real inputs that are part of the package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbw.cli.console import Page, given_path

if TYPE_CHECKING:
    from busbw.observations import Artefact

__all__ = ["demo"]

REPORT_NAME = "busbw-demo.html"

_SICK = "Two A100 nodes, collectives far below the rate of the NICs (NVIDIA/nccl-tests#152)"
_HEALTHY = "All-reduce over 72 GPUs of a GB200 rack, as it should be (coreweave/nccl-tests#43)"


def demo(
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            parser=given_path,
            metavar="FILE",
            help=f"The report of the sick job; ./{REPORT_NAME} if not given.",
        ),
    ] = None,
) -> None:
    """Explain two real jobs, one sick and one healthy.

    Their outputs were posted in public issues and are part of this package. Writes the report of the sick one and ends
    with its path. Exits with 0 if that works.
    """
    from busbw.cli.diagnosis_page import print_diagnosis  # noqa: PLC0415 - loads the tables
    from busbw.diagnosis.explain import explain  # noqa: PLC0415
    from busbw.reports import write_report  # noqa: PLC0415

    page = Page()
    target = report if report is not None else _default_report()
    for name, title in (("sick", _SICK), ("healthy", _HEALTHY)):
        with _bundled(name) as artefacts:
            page.line((title, "bold"))
            page.line((f"$ busbw explain {' '.join(a.path for a in artefacts)}", "dim"))
            explanation = explain(artefacts)
            print_diagnosis(page, explanation.diagnosis, artefacts)
            page.line()
            if name == "sick":
                write_report(explanation, target, artefacts)
    page.line("The report of the sick job, one HTML file that needs no network:")
    print(target.absolute())


@contextmanager
def _bundled(name: str) -> Iterator[list[Artefact]]:
    """The files of a bundled job, on disk even if the package is inside an archive."""
    from busbw.observations import Artefact  # noqa: PLC0415 - loads the tables

    with tempfile.TemporaryDirectory(prefix="busbw-demo-") as folder:
        artefacts = []
        source = files("busbw.cli").joinpath("demo_inputs", name)
        for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
            file = Path(folder) / entry.name
            file.write_bytes(entry.read_bytes())
            artefacts.append(Artefact.of(file, f"{name}/{entry.name}"))
        yield artefacts


def _default_report() -> Path:
    here = Path(REPORT_NAME)
    if os.access(".", os.W_OK) and not here.is_dir():
        return here
    return Path(tempfile.mkdtemp(prefix="busbw-")) / REPORT_NAME
