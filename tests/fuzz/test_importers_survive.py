"""Nothing that a configuration may hold makes an importer raise anything but InputError, hang, or say what has no end."""

from __future__ import annotations

import os
import random
import time
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.explain.fuzzing import mutations

from busbw.errors import InputError
from busbw.workloads.importers import import_configuration

RUNS = int(os.environ.get("BUSBW_FUZZ_RUNS", "15"))
"""Mutated files a format and seed."""
LONGEST_S = 10.0
FIXTURES = sorted((Path(__file__).parents[1] / "workloads" / "importers" / "fixtures").iterdir())


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name)
def test_a_damaged_configuration_is_refused_or_read(fixture: Path, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{fixture.name} {seed}")
    others = [path.read_bytes() for path in FIXTURES]
    file = tmp_path / fixture.name
    some = mutations(fixture.read_bytes(), others, rng)
    whole = list(islice(some, 300))
    for data in rng.sample(whole, min(RUNS, len(whole))) + list(islice(some, RUNS)):
        file.write_bytes(data)
        begun = time.process_time()
        try:
            found = import_configuration(file)
        except InputError as error:
            assert str(file) in str(error) or "model" in str(error)
            assert len(str(error)) < 2000
        else:
            assert all(len(str(one)) < 600 for one in found.ignored)
        assert time.process_time() - begun < LONGEST_S
