"""`busbw store`: what a store holds, and its upkeep."""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbw.cli.console import Page, given_path, given_store, note, print_json
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.observations.store import Content, Store

__all__ = ["store"]

SCHEMA = 1
"""Number of the JSON shapes of these verbs."""
_GRACE_S = 10.0
"""How long queries that began before a compaction may go on. A guess: ten times the slowest standard query of ten million samples."""
_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}

store = typer.Typer(help="What a store holds, and its upkeep: compact, prune, copy.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(parser=given_path, metavar="DIR", help="The store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@store.command()
def info(folder: Folder, as_json: AsJson = False) -> None:
    """Show what a store holds: runs and how they ended, rows of each table, bytes, what is damaged.

    \b
    Examples:
      busbw store info lab
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow

    content = Store(folder).content()
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "runs": content.runs,
                "recorded": dict(sorted(content.recorded.items())),
                "rows": dict(sorted(content.rows.items())),
                "files": content.files,
                "size_bytes": content.size_bytes,
                "leftover_bytes": content.leftover_bytes,
                "schema_versions": {str(version): count for version, count in sorted(content.schemas.items())},
                "oldest_ns": content.oldest_ns,
                "newest_ns": content.newest_ns,
                "problems": [
                    {"kind": loss.kind, "path": loss.path, "detail": loss.detail} for loss in content.problems
                ],
            }
        )
    else:
        _print_info(content)


def _print_info(content: Content) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    page.line(
        (f"{content.runs + content.recorded.total():,} runs", "bold"),
        f", {_moment(content.oldest_ns)} to {_moment(content.newest_ns)}",
    )
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(content.recorded.items()))
    page.line(
        f"  {content.runs:,} of files that were read, {content.recorded.total():,} recorded{f' ({statuses})' if statuses else ''}"
    )
    page.line(f"  {format_bytes(content.size_bytes)} in {content.files:,} files")
    if content.leftover_bytes:
        page.line(
            f"  {format_bytes(content.leftover_bytes)} that no run names: being written, or left by writers that were killed (compact removes what is old)"
        )
    versions = ", ".join(f"{version} ({count:,})" for version, count in sorted(content.schemas.items()))
    page.line(f"  schema versions: {versions}")
    page.line()
    page.table(
        [("table", False), ("rows", True)], [[table, f"{count:,}"] for table, count in sorted(content.rows.items())]
    )
    for loss in content.problems:
        page.prose(str(loss), "    ", first="  - ")


@store.command()
def compact(
    folder: Folder,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0.0, help="How long queries that began before may go on.")
    ] = _GRACE_S,
    as_json: AsJson = False,
) -> None:
    """Make few files of the many that recorded runs were written in, while others read and write.

    Rows stay as they are. Files of killed writers that are older than six hours go.

    \b
    Examples:
      busbw store compact lab
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow
    from busbw.units import format_bytes  # noqa: PLC0415

    done = _existing(Store(folder)).compact(grace_s=grace_s)
    if as_json:
        runs = [{"run": one.run_id, "files": list(one.files), "size_bytes": list(one.size_bytes)} for one in done]
        print_json({"schema": SCHEMA, "compacted": runs})
        return
    before, after = (sum(one.files[i] for one in done) for i in (0, 1))
    sizes = [format_bytes(sum(one.size_bytes[i] for one in done)) for i in (0, 1)]
    print(
        f"{len(done)} runs compacted: {before} files, {sizes[0]} -> {after} files, {sizes[1]}"
        if done
        else "nothing to compact"
    )


@store.command()
def prune(
    folder: Folder,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="As 90d, 12w or 36h: since the run began.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs that began long ago; runs that are being written stay.

    Kept copies of files that no other run read go with them.

    \b
    Examples:
      busbw store prune lab --older-than 90d --dry-run
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow
    from busbw.units import format_bytes  # noqa: PLC0415

    before_ns = time.time_ns() - _age_ns(older_than)
    gone = _existing(Store(folder)).prune(before_ns=before_ns, dry_run=dry_run)
    if as_json:
        runs = [
            {"run": one.run_id, "name": one.name, "created_ns": one.created_ns, "size_bytes": one.size_bytes}
            for one in gone
        ]
        print_json({"schema": SCHEMA, "removed": not dry_run, "runs": runs})
        return
    for one in gone:
        print(f"{one.run_id}  {_moment(one.created_ns)}  {format_bytes(one.size_bytes)}  {one.name}")
    total = format_bytes(sum(one.size_bytes for one in gone))
    note(f"{len(gone)} runs, {total}, {'would be removed' if dry_run else 'removed'}")


@store.command()
def copy(
    folder: Folder,
    target: Annotated[str, typer.Argument(parser=given_store, metavar="TO", help="A folder, or s3://BUCKET/PREFIX.")],
) -> None:
    """Copy the runs that another store lacks, each run's record last; what is there already is left.

    For s3, keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws, another service's address from BUSBW_S3_ENDPOINT.

    \b
    Examples:
      busbw store copy lab s3://bench/lab
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.observations.store import Store  # noqa: PLC0415 - loads pyarrow

    copied = _existing(Store(folder)).copy_to(Store(target))
    for run in copied:
        print(run)
    note(f"{len(copied)} runs copied to {target}")


@store.command()
def prometheus(
    folder: Annotated[str, typer.Argument(parser=given_store, metavar="DIR", help="The store, or s3://BUCKET/PREFIX.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=given_path,
            metavar="FILE.prom",
            help="Write there in one step, as node_exporter's textfile collector wants it.",
        ),
    ] = None,
) -> None:
    """Print the latest run that measured something as Prometheus text: times, bus bandwidths, how the run ended.

    \b
    Examples:
      busbw store prometheus lab -o /var/lib/node_exporter/textfile/busbw.prom
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.measuring import exposition, results_of  # noqa: PLC0415 - loads the tables
    from busbw.observations.store import Store  # noqa: PLC0415

    _existing(Store(folder))
    runs, losses = results_of(folder)
    for loss in losses:
        note(str(loss))
    measured = [run for run in runs if run.times_s]
    if not measured:
        raise InputError(f"{folder}: no run measured anything. Fill the store: busbw run ... --store {folder}")
    latest = replace(measured[-1], name=measured[-1].name.removeprefix(f"{folder}: "))
    recorded = Store(folder).recorded(latest.run or "")
    text = exposition(latest, recorded.status() if recorded else None)
    if output is None:
        print(text, end="")
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(output)


def _existing(store: Store) -> Store:
    """The store. Raises InputError if there is none: upkeep of a folder that was mistyped must not look done."""
    if not store.has_runs():
        raise InputError(f"{store.shown}: holds no run. Fill a store: busbw read PATH... --store {store.shown}")
    return store


def _age_ns(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([hdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"--older-than {text!r}: write an age as 90d, 12w or 36h.")
    return int(float(match[1]) * _UNITS_S[match[2]] * 1e9)


def _moment(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
