"""Messages are the interface: what, where, how often."""

from __future__ import annotations

import dataclasses

import pytest

from busbw.errors import InputError, Loss


def test_a_loss_says_where_what_and_how_to_mend_it():
    loss = Loss(
        "truncated-row", "all_reduce.txt", 41, "row has 12 columns, the header has 13; rerun with unbuffered stdout"
    )
    assert (
        str(loss)
        == "all_reduce.txt:41: truncated-row: row has 12 columns, the header has 13; rerun with unbuffered stdout"
    )


def test_a_loss_without_lines_names_the_file():
    assert str(Loss("binary", "core.4242", None, "not a text")) == "core.4242: binary: not a text"


@pytest.mark.parametrize(("count", "end"), [(1, "cut"), (2, "cut (2 times)"), (10_000, "cut (10000 times)")])
def test_a_loss_that_was_met_often_says_how_often(count: int, end: str):
    assert str(Loss("long-line", "log", 3, "cut", count)) == f"log:3: long-line: {end}"


def test_a_loss_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Loss("binary", "core", None, "not a text").count = 2  # type: ignore[misc]


def test_a_message_to_the_user_stands_as_it_is():
    assert str(InputError("nowhere/: there is no such file or folder.")) == "nowhere/: there is no such file or folder."
