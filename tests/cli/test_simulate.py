"""`busbw simulate collective`: what no size changes, and one clear error for what cannot be."""

from __future__ import annotations

import json

import pytest

TWO = ("--cluster", "dgx-h100", "--nodes", "2")


def test_a_barrier_moves_no_data(busbw):
    """Each of its log2(8) rounds costs a message's latency, microseconds; 1 GiB over NVLink would take milliseconds."""
    ran = busbw("simulate", "collective", "barrier", "--cluster", "dgx-h100", "--json")
    (row,) = json.loads(ran.out)["rows"]
    assert row["size_bytes"] == 0
    assert 0 < row["time_s"] < 20e-6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-reduce", "--cluster", "gh200"), "one GPU"),
        (("barrier", *TWO, "--bytes", "1MiB"), "moves no data"),
        (("all-reduce", *TWO, "--straggler", "1=inf"), "inf of its speed"),
        (("all-reduce", *TWO, "--straggler", "x=1"), "RANK=SPEED"),
        (("all-reduce", *TWO, "--degrade-link", "nic0 -> leaf0"), "LINK=PART"),
        (("all-reduce", *TWO, "--speed-spread", "inf"), "from 0 on"),
        (("all-reduce", *TWO, "--time-limit", "nan"), "above 0"),
        (("all-reduce", *TWO, "--set", "nic.rate=1e400Gb/s"), "is no rate"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "100000"), "take larger switches"),
    ],
)
def test_wrong_words_are_one_error_each(busbw, arguments, said):
    ran = busbw("simulate", "collective", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
