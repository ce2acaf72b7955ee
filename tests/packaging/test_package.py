"""What is installed is whole: versions agree, data is there, entry points load, nothing heavy is imported before it is needed."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path

import pytest

import busbw
from busbw.readers import FileReader, LineReader

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_one_version_everywhere():
    """The package, its metadata, and the newest entry of the change log."""
    newest = re.search(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert {busbw.__version__, version("busbw"), PYPROJECT["project"]["version"], newest[1]} == {"0.1.0"}


@pytest.mark.parametrize("heavy", ["numpy", "pyarrow", "duckdb", "matplotlib", "rich", "typer"])
def test_import_busbw_loads_nothing_heavy(heavy: str):
    code = f"import sys, busbw; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_entry_point_is_a_reader_and_all_declared_ones_are_installed():
    declared = PYPROJECT["project"]["entry-points"]["busbw.readers"]
    installed = {entry.name: entry for entry in entry_points(group="busbw.readers")}
    assert set(declared) <= set(installed)
    for name in declared:
        assert isinstance(installed[name].load(), FileReader | LineReader), name


def test_every_reader_module_is_registered():
    """A module that offers a READER nobody registered would be dead."""
    folder = REPOSITORY / "src" / "busbw" / "readers"
    offered = {file.stem for file in folder.glob("*.py") if re.search(r"^READER\b", file.read_text(), re.MULTILINE)}
    entries = PYPROJECT["project"]["entry-points"]["busbw.readers"].values()
    assert offered == {entry.split(":")[0].rsplit(".", 1)[-1] for entry in entries}


def test_data_files_of_the_source_are_in_the_package():
    source = REPOSITORY / "src" / "busbw"
    for file in source.rglob("*"):
        if file.suffix in {".json", ".css", ".txt", ".log", ".typed", ".pyi"} or file.name == "py.typed":
            packed = files("busbw").joinpath(*file.relative_to(source).parts)
            assert packed.is_file(), f"{file.relative_to(source)} is not in the installed package"
            assert packed.read_bytes() == file.read_bytes(), (
                f"{file.relative_to(source)} is another one in the installed package"
            )


def test_the_licence_is_apache_2():
    """SHA-256 of the text that the Apache Software Foundation publishes."""
    digest = hashlib.sha256((REPOSITORY / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def sources_of_figures() -> set[str]:
    """Repositories and reports that shipped tables and test data name as their origin."""
    found = set()
    for name in ("catalogue.json", "blueprints.json", "expected.json", "nccl_links.json"):
        found |= set(re.findall(r"\b[\w.-]+/[\w.-]+#\d+", files("busbw.hardware").joinpath(name).read_text()))
    expected = json.loads(files("busbw.hardware").joinpath("expected.json").read_text())
    found |= {origin.split(",")[0] for origin in expected["origins"].values() if "/" in origin.split(",")[0]}
    for case in (REPOSITORY / "tests").glob("**/case.json"):
        found.add(json.loads(case.read_text())["source"])
    return found


def test_notice_names_every_source():
    notice = (REPOSITORY / "NOTICE").read_text()
    missing = sorted(source for source in sources_of_figures() if source not in notice)
    assert not missing, missing


def test_example_inputs_of_the_package_are_small():
    """They are in every wheel."""
    inputs = (REPOSITORY / "src" / "busbw" / "cli" / "demo_inputs").rglob("*")
    assert sum(file.stat().st_size for file in inputs if file.is_file()) < 100_000
