"""A suite is a list of cells; what one leaves out is as the command line says."""

from __future__ import annotations

import pytest

from busbw.cli.predictions import sizes_of
from busbw.errors import InputError
from busbw.measuring.request import COLLECTIVES, POINT_TO_POINT, Request
from busbw.measuring.suite import built_in, suite_from

USUAL = Request("barrier", 4, (0,), dtype="float64", iterations=3)


def _suite(tmp_path, text):
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    return suite_from(file, USUAL, sizes_of)


def test_cells_of_a_file(tmp_path):
    made = _suite(
        tmp_path, "cells:\n- {collective: AllReduce, bytes: '8:32:2', op: max}\n- {collective: latency, bytes: [1KiB, 7], ranks: 2, backend: mpi}\n- {collective: barrier}\n"
    )  # fmt: skip
    assert made == [
        Request("all_reduce", 4, (8, 16, 32), "float64", "max", iterations=3),
        Request("latency", 2, (1024, 7), "float64", iterations=3, backend="mpi"),
        USUAL,
    ]


def test_the_built_in_suite_has_everything():
    """One rank has nobody to send messages to."""
    assert [one.collective for one in built_in(USUAL)] == [*COLLECTIVES, *POINT_TO_POINT]
    assert [one.collective for one in built_in(Request("barrier", 1, (0,)))] == list(COLLECTIVES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no list of cells"),
        ("cells: 3", "holds no list of cells"),
        ("- [", "is no YAML"),
        ("- all-reduce", "cell 1: is no mapping"),
        ("- {collective: all-reduce}\n- {collective: gemm}", "cell 2: collective 'gemm' is not measured"),
        ("- {collective: all-reduce, sizes: 8}", "knows no 'sizes'"),
        ("- {collective: all-reduce, ranks: two}", "ranks 'two': int was expected"),
        ("- {collective: broadcast, root: 9}", "cell 1: root 9: is none of the ranks 0 to 3"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        _suite(tmp_path, text)
