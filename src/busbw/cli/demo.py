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
_MEASURED_BYTES = (1 << 10, 64 << 10, 4 << 20)

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
    """Explain two real jobs, one sick and one healthy, and measure this machine.

    Their outputs were posted in public issues and are part of this package. The measurement is an all-reduce between two threads, a second
    at most. Writes the report of the sick job and ends with its path. Exits with 0 if that works.
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
    _measure(page)
    page.line("The report of the sick job, one HTML file that needs no network:")
    print(target.absolute())


def _measure(page: Page) -> None:
    """All-reduce between two threads of this process: what `busbw run` does with processes."""
    from busbw.execution import GaveUpError  # noqa: PLC0415
    from busbw.measuring.request import Request  # noqa: PLC0415
    from busbw.measuring.running import run_in_threads  # noqa: PLC0415
    from busbw.units import format_bytes  # noqa: PLC0415

    page.line(
        ("All-reduce of float32 between two threads of this machine, measured now, every element checked", "bold")
    )
    page.line(("$ busbw run all-reduce --ranks 2 --launcher threads --bytes 1KiB,64KiB,4MiB --iterations 20", "dim"))
    try:
        measured = run_in_threads(Request("all_reduce", 2, _MEASURED_BYTES, in_place=False, iterations=20), wait_s=10)
    except GaveUpError as error:
        page.line(f"not measured: {error}")
        page.line()
        return
    for row in measured.rows:
        half = row.out_of_place
        if half is None:
            continue
        rate = row.size_bytes / half.best_s / 1e9 if half.best_s > 0 else 0.0
        page.line(
            f"{format_bytes(row.size_bytes):>8} {half.best_s * 1e6:10.2f} us {rate:8.2f} GB/s   {half.wrong} wrong"
        )
    page.line()


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
