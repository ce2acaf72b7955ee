"""Pages name files, functions and pages that exist; generated parts of pages say something."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from busbw.diagnosis.findings import kinds
from busbw.diagnosis.rules import RULES
from busbw.observations import SCHEMAS
from busbw.readers import all_readers

REPOSITORY = Path(__file__).parents[2]
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]
FOLDERS = (REPOSITORY, REPOSITORY / "src" / "busbw", REPOSITORY / "src", REPOSITORY / "cpp" / "include")
FILE = re.compile(r"`(?P<path>[\w./-]+\.(?:py|hpp|cpp|json|md|toml|txt|pyi))(?:::(?P<name>[\w.]+))?`")
DOTTED = re.compile(r"`(?P<name>busbw(?:\.\w+)+)(?:\(\))?`")
LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#\s]+)")


def ids(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_named_in_code_spans_exist(page: Path):
    """`path/file.py` lies in the repository, in src/busbw or in cpp/include; `file.py::name` holds that name."""
    for named in FILE.finditer(page.read_text()):
        if "/" not in named["path"] or named["path"].startswith(("sick/", "healthy/")):
            continue
        found = [folder / named["path"] for folder in FOLDERS if (folder / named["path"]).is_file()]
        assert found, f"{page.name} names {named['path']}, which does not exist"
        if named["name"]:
            text = found[0].read_text()
            last = named["name"].rsplit(".", 1)[-1]
            assert re.search(rf"\b{last}\b", text), (
                f"{page.name} names {last} of {named['path']}, which does not hold it"
            )


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_python_names_in_code_spans_exist(page: Path):
    """`busbw.room.name` can be imported, or is an attribute of what can."""
    for named in DOTTED.finditer(page.read_text()):
        module, attributes = named["name"], []
        while True:
            try:
                found = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, last = module.rpartition(".")
                attributes.insert(0, last)
        for attribute in attributes:
            assert hasattr(found, attribute), f"{page.name} names {named['name']}, which does not exist"
            found = getattr(found, attribute)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_between_pages_lead_somewhere(page: Path):
    for link in LINK.finditer(page.read_text()):
        assert (page.parent / link["target"]).exists(), f"{page.name} links {link['target']}"


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "_ext"))
    yield importlib.import_module("generated")
    sys.modules.pop("generated", None)


def test_every_rule_reader_table_and_kind_is_described(generated):
    """A rule without a docstring would be an empty entry; a page with an unknown mark fails to build."""
    for rule in RULES:
        assert rule.__doc__, f"{rule.__module__}.{rule.__name__} has no docstring, which is what users read about it"
    rules, readers, tables = (
        generated.with_parts(f"<!-- generated: {name} -->") for name in ("rules", "readers", "tables")
    )
    assert all(rule.__name__.replace("_", " ").replace("_", "") in rules.replace("\\", "") for rule in RULES)
    assert all(f"### {reader.name}\n" in readers for reader in all_readers())
    assert all(f"### {name}\n" in tables for name in SCHEMAS)
    assert all(f"`{kind}`" in generated.finding_kinds() for kind in kinds())


def test_text_of_docstrings_is_no_markup_by_accident(generated):
    assert generated._escaped("NCCL_* of <x> and `a_*`") == r"NCCL\_\* of \<x\> and `a_*`"
    assert generated.as_rst(["sm_ of a|b, `c_`", "", "    STORE/", "        x_", "", "end_"]) == [
        r"sm\_ of a\|b, `c_`", "", "::", "", "    STORE/", "        x_", "", r"end\_",
    ]  # fmt: skip


def test_readme_names_every_family_of_causes():
    readme = (REPOSITORY / "README.md").read_text()
    families = {kind.family for kind in kinds().values()} - {"healthy"}
    missing = sorted(family for family in families if f"`{family}`" not in readme)
    assert not missing, missing


def test_readme_names_every_reader():
    readme = (REPOSITORY / "README.md").read_text()
    missing = [reader.name for reader in all_readers() if f"`{reader.name}`" not in readme]
    assert not missing, missing
