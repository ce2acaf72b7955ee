"""`busbw run pairs`: every node with every other, in rounds of disjoint pairs; what holds some back is named by the rules of `busbw explain`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from busbw.cli.console import Page, note, print_json
from busbw.cli.run_asked import WRONG, Asked, journal_of, kept_journal

if TYPE_CHECKING:
    from busbw.diagnosis.findings import Finding
    from busbw.measuring.keeping import Kept
    from busbw.measuring.request import Request
    from busbw.measuring.running import Heard, RoundOfPairs

__all__ = ["pairs_of_nodes"]

_WIDEST = 16
"""Ends of a matrix that is printed; of larger ones the slowest pairs are."""
_SLOWEST = 10


def pairs_of_nodes(request: Request, asked: Asked, *, rails: int, kept: Kept | None = None) -> int:
    """Measures, prints the matrix and what it says; the exit status."""
    from busbw.measuring.backends import kind_of  # noqa: PLC0415
    from busbw.measuring.running import run_requests  # noqa: PLC0415 - loads numpy

    if kind_of(request.backend).programs:
        raise typer.BadParameter(
            f"pairs: --backend {request.backend} does not measure pairs; take mpi, torch or builtin."
        )
    if asked.how.launcher == "threads":
        raise typer.BadParameter("pairs: --launcher threads: ranks of pairs are processes; leave it out.")
    if rails < 1 or request.ranks % rails or request.ranks // rails < 2:
        raise typer.BadParameter(
            f"--rails {rails}: {request.ranks} ranks are no two nodes or more of as many ranks each."
        )
    rounds: list[RoundOfPairs] = []
    journal = journal_of([request], asked, kept, {"rails": str(rails)}, title="pairs")
    done = kept.done() if kept is not None else []
    if kept is not None:
        note(f"run {kept.name}: {len(done)} rounds were measured before")

    def heard(one: Heard) -> None:
        if one.pairs is not None:
            rounds.append(one.pairs)
            if journal is not None:
                journal.pairs(one.pairs.key, one.pairs.rows)
        elif journal is not None:
            journal.head(one.head)

    with kept_journal(journal) as outcome:
        run_requests([request], asked.how, heard=heard, done=done, rails=rails)
    outcome.bisect(request, asked)
    if (status := outcome.told("pairs", asked, len(rounds))) is not None:
        return status
    sizes = sorted({one.size_bytes for one in rounds})
    wrong = sum(one.wrong for one in rounds)
    findings = _findings([row for one in rounds if one.size_bytes == sizes[-1] for row in one.rows]) if sizes else []
    if asked.as_json:
        print_json(_json(request, rounds, findings))
    else:
        for size in sizes:
            _print(size, [row for one in rounds if one.size_bytes == size for row in one.rows])
        _print_findings(findings, wrong)
    outcome.told_at_the_end("pairs", asked, len(rounds))
    return WRONG if wrong or findings or outcome.reason else 0


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What diagnosis says of a matrix, best first."""
    from busbw.diagnosis.explain import explain  # noqa: PLC0415 - loads the tables
    from busbw.observations import Artefact, rows_lines, rows_of  # noqa: PLC0415

    lines = rows_lines({}, [rows_of("pairs", [{**row, "artefact": "0" * 64} for row in rows])])
    with tempfile.TemporaryDirectory(prefix="busbw-run-") as folder:
        artefact = Artefact.written((line.encode() for line in lines), Path(folder) / "pairs.jsonl", "pairs")
        return list(explain([artefact]).diagnosis.findings)


def _print(size: int, rows: Sequence[Mapping[str, Any]]) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    values = {(row["src"], row["dst"]): row["value"] / 1e9 for row in rows}
    ends = sorted({end for pair in values for end in pair})
    ordered = sorted(values.values())
    page.line(
        (
            f"{len(values)} directed pairs, messages of {format_bytes(size)}: median {ordered[len(ordered) // 2]:.3g} GB/s",
            "bold",
        )
    )
    if len(ends) <= _WIDEST:
        page.table(
            [("from \\ to (GB/s)", False), *((end, True) for end in ends)],
            [[a, *(f"{values[a, b]:.3g}" if (a, b) in values else "-" for b in ends)] for a in ends],
        )
        return
    slowest = sorted(values.items(), key=lambda item: item[1])[:_SLOWEST]
    page.table([("from", False), ("to", False), ("GB/s", True)], [[a, b, f"{value:.3g}"] for (a, b), value in slowest])


def _print_findings(findings: Sequence[Finding], wrong: int) -> None:
    page = Page()
    if wrong:
        page.prose(f"{wrong} elements of messages arrived wrong.")
    if not findings:
        page.prose("No host, NIC, rail, cable or path is slower than chance allows.")
    for finding in findings:
        page.prose(finding.summary, "    ", first="  - ")


def _json(request: Request, rounds: Sequence[RoundOfPairs], findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "schema": 1,
        "backend": request.backend,
        "ranks": request.ranks,
        "pairs": [{**row, "size_bytes": one.size_bytes} for one in rounds for row in one.rows],
        "wrong": sum(one.wrong for one in rounds),
        "findings": [
            {"kind": finding.kind, "confidence": finding.confidence, "summary": finding.summary} for finding in findings
        ],
    }
