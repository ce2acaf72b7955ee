"""Every format that busbw reads has a fixture, listed in fixtures/formats.json with where it comes from and what is read from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.explain.formats import what_is_read

from busbw.readers import all_readers

FIXTURES = Path(__file__).parent / "fixtures"
FORMATS = json.loads((FIXTURES / "formats.json").read_text())


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry["format"])
def test_a_fixture_is_read_by_its_reader_with_all_its_rows(entry):
    readers, rows, losses = what_is_read(FIXTURES / entry["file"])
    assert entry["reader"] in readers
    assert rows == entry["rows"]
    assert losses == entry.get("losses", [])


def test_every_reader_has_a_fixture():
    assert {reader.name for reader in all_readers()} <= {entry["reader"] for entry in FORMATS}


def test_no_fixture_lies_about_unlisted():
    listed = {(FIXTURES / entry["file"]).resolve() for entry in FORMATS}
    lying = {file for file in FIXTURES.rglob("*") if file.is_file() and file.suffix != ".md"} - {
        FIXTURES / "formats.json"
    }
    assert {file for file in lying if file.resolve() not in listed} == set()
