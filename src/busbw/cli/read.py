"""`busbw read`: what is in these files, and into a store with it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from busbw.cli.console import BytesRead, Page, given_store, note, print_json

if TYPE_CHECKING:
    from busbw.cli.inputs import Inputs
    from busbw.errors import Loss
    from busbw.observations import Artefact, Rows
    from busbw.observations.store import RunWriter

__all__ = ["ReadCommand", "read"]

SCHEMA = 1
"""Number of the JSON shape of `busbw read --json`."""


class ReadCommand(typer.core.TyperCommand):
    """The verb, whose help ends with the readers that are registered."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Name and first line of the documentation of each reader."""
        from busbw.readers import all_readers  # noqa: PLC0415 - loads every reader, wanted for this page only

        listed = []
        for reader in sorted(all_readers(), key=lambda reader: reader.name):
            documentation = sys.modules[type(reader).__module__].__doc__ or ""
            listed.append((reader.name, documentation.strip().split("\n", 1)[0].replace("`", "")))
        with formatter.section("Readers"):
            formatter.write_dl(listed)


def read(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files and folders; - is standard input.")],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            parser=given_store,
            metavar="DIR",
            help="Keep rows and originals here; s3://BUCKET/PREFIX takes the rows alone.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Show what is in files: formats, rows of each table, losses.

    With --store the rows are kept, each with the file and line it came from, and the last line of the output names the
    run. The same files make the same run. Values of variables that may be secret are never kept.

    \b
    Examples:
      busbw read job-4711/
      busbw read job-*/ --store lab
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.cli.explain import refuse_if_nothing_was_read  # noqa: PLC0415
    from busbw.cli.inputs import found, nothing_readable  # noqa: PLC0415 - loads the tables

    with found(paths) as inputs, _folder_of(store) as folder:
        contents, run = _read_all(inputs, folder)
    losses = [*inputs.losses, *(loss for content in contents for loss in content.losses)]
    refuse_if_nothing_was_read(nothing_readable([(c.path, c.formats) for c in contents], losses))
    if as_json:
        print_json(_as_json(contents, inputs.losses, run))
    else:
        _print(contents, losses)
        if run is not None:
            note(f"kept in {store}")
            print(run)


@contextlib.contextmanager
def _folder_of(store: str | None) -> Iterator[Path | None]:
    """Where a store is filled: its folder; of one in an object store a passing one, whose run is copied there when all has been read."""
    if store is None:
        yield None
        return
    from busbw.observations.store import Store, is_object_url  # noqa: PLC0415 - loads the tables

    if not is_object_url(store):
        yield Path(store)
        return
    target = Store(store)
    target.has_runs()  # says at once, not after an hour of reading, that there is no such bucket
    with tempfile.TemporaryDirectory(prefix="busbw-read-") as folder:
        source = Store(Path(folder) / "store")
        yield source.folder
        if source.has_runs():
            source.copy_to(target)


def keep_file(path: Path, folder: Path) -> str | None:
    """The run that a file was kept as in a store; None if nothing in it was read."""
    from busbw.cli.inputs import found  # noqa: PLC0415 - loads the tables

    with found([str(path)]) as inputs:
        return _read_all(inputs, folder)[1]


@dataclass(slots=True)
class _Content:
    """What was found in one file."""

    path: str
    size_bytes: int
    sha256: str
    formats: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    losses: list[Loss] = field(default_factory=list)


class _Keeper:
    """Puts what is read into a store; the store is touched once there is something to keep, not before."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path | None, artefacts: Sequence[Artefact]) -> None:
        self._stack, self._folder, self._artefacts = stack, folder, artefacts
        self._writer: RunWriter | None = None
        self._early: list[tuple[Artefact, Loss]] = []

    def add(self, artefact: Artefact, rows: Rows) -> None:
        writer = self._begun()
        if writer is not None:
            writer.add(artefact, rows)

    def lose(self, artefact: Artefact, loss: Loss) -> None:
        if self._writer is None:
            self._early.append((artefact, loss))
        else:
            self._writer.lose(artefact, loss)

    def keep(self, artefact: Artefact, formats: Sequence[str]) -> None:
        writer = self._begun()
        if writer is not None:
            writer.keep(artefact, formats)

    def commit(self) -> str | None:
        return self._writer.commit() if self._writer is not None else None

    def _begun(self) -> RunWriter | None:
        if self._writer is None and self._folder is not None:
            from busbw.observations.store import Store  # noqa: PLC0415 - wanted with --store only

            self._writer = self._stack.enter_context(Store(self._folder).begin(self._artefacts))
            for artefact, loss in self._early:
                self._writer.lose(artefact, loss)
        return self._writer


def _read_all(inputs: Inputs, folder: Path | None) -> tuple[list[_Content], str | None]:
    """Contents of each file, and the run they were kept as. Rows pass through; only their numbers stay."""
    with contextlib.ExitStack() as stack:
        keeper = _Keeper(stack, folder, inputs.artefacts)
        progress = stack.enter_context(BytesRead(inputs.size_bytes))
        contents = [_read_one(artefact, keeper, progress) for artefact in inputs.artefacts]
        return contents, keeper.commit()


def _read_one(artefact: Artefact, keeper: _Keeper, progress: BytesRead) -> _Content:
    from busbw.cli.inputs import nothing_readable  # noqa: PLC0415 - loads the tables
    from busbw.errors import Loss  # noqa: PLC0415
    from busbw.observations import Rows  # noqa: PLC0415
    from busbw.readers import Reading, read_artefact  # noqa: PLC0415

    content = _Content(artefact.path, artefact.size_bytes, artefact.sha256)
    reading = Reading(artefact)
    for item in read_artefact(artefact, reading, progress):
        if isinstance(item, Rows):
            content.rows[item.table] += item.batch.num_rows
            keeper.add(artefact, item)
        elif isinstance(item, Loss):
            keeper.lose(artefact, item)
        else:
            content.rows["topologies"] += 1
    content.formats, content.losses = reading.formats, reading.losses
    if not nothing_readable([(content.path, content.formats)], content.losses):
        keeper.keep(artefact, content.formats)
    return content


def _print(contents: Sequence[_Content], losses: Sequence[Loss]) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    columns = [("file", False), ("size", True), ("formats", False), ("rows", False), ("losses", True)]
    rows = [
        [
            content.path,
            format_bytes(content.size_bytes),
            ", ".join(content.formats) or "-",
            ", ".join(f"{table} {count:,}" for table, count in sorted(content.rows.items()) if count) or "-",
            f"{sum(loss.count for loss in content.losses):,}",
        ]
        for content in contents
    ]
    page.table(columns, rows)
    if losses:
        page.line()
        page.line(("not read", "bold"))
        for loss in losses:
            page.prose(str(loss), "    ", first="  - ")


def _as_json(contents: Sequence[_Content], unopened: Sequence[Loss], run: str | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"schema": SCHEMA, "files": list(_files_json(contents)), "losses": _losses_json(unopened)}
    if run is not None:
        answer["run"] = run
    return answer


def _files_json(contents: Sequence[_Content]) -> Iterator[dict[str, Any]]:
    for content in contents:
        yield {
            "path": content.path,
            "sha256": content.sha256,
            "size_bytes": content.size_bytes,
            "formats": content.formats,
            "rows": dict(sorted((table, count) for table, count in content.rows.items() if count)),
            "losses": _losses_json(content.losses),
        }


def _losses_json(losses: Sequence[Loss]) -> list[dict[str, Any]]:
    return [
        {"kind": loss.kind, "path": loss.path, "line": loss.line, "detail": loss.detail, "count": loss.count}
        for loss in losses
    ]
