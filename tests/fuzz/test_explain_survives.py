"""Nothing that a file may hold makes `explain` raise, whatever happened to it on the way."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from busbw.diagnosis import explain, to_json
from busbw.readers import find_artefacts

CASES = Path(__file__).parents[1] / "diagnosis" / "cases"
RUNS = int(os.environ.get("BUSBW_FUZZ_RUNS", "300"))
"""Mutated files a seed; the long gate raises it."""


def damaged(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The bytes after one to eight accidents: cut, spliced, shuffled, garbled, numbers grown."""
    text = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not text:
            break
        at = rng.randrange(len(text))
        accident = rng.randint(0, 6)
        if accident == 0:
            del text[at : at + rng.randint(1, 40)]
        elif accident == 1:
            text[at] = rng.randrange(256)
        elif accident == 2:
            other = rng.choice(others)
            begin = rng.randrange(len(other) or 1)
            text[at:at] = other[begin : begin + rng.randint(1, 400)]
        elif accident == 3:
            del text[at:]
        elif accident == 4:
            text[at:at] = b"1" * rng.choice((1, 4, 9, 19, 31, 400, 6000))
        elif accident == 5:
            lines = text.split(b"\n")
            rng.shuffle(lines)
            text = bytearray(b"\n".join(lines))
        else:
            text[at : at + 1] = rng.choice(
                [b"-", b"nan", b"inf", b"\0", b"\xff\xfe", b"\x1b[31m", b"1e999", b"0x", b"\r"]
            )
    return bytes(text)


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_file_is_data_and_never_an_exception(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    inputs = [f.read_bytes() for f in sorted(CASES.glob("*/*")) if f.is_file()]
    for _ in range(RUNS):
        file = tmp_path / "input"
        file.write_bytes(damaged(rng.choice(inputs), inputs, rng))
        artefacts, losses = find_artefacts([str(file)])
        diagnosis = explain(artefacts, losses).diagnosis
        assert to_json(diagnosis)["verdict"] in ("healthy", "faulty", "unknown")
        assert all(finding.evidence for finding in diagnosis.findings)
