"""`busbw simulate packets`: a page, JSON, and one clear error for what cannot be."""

from __future__ import annotations

import json

import pytest

FABRIC = ("--cluster", "dgx-h100", "--nodes", "8")


def test_the_page_shows_ends_of_flows_and_the_busiest_queues(busbw, golden):
    ran = busbw("simulate", "packets", "incast", *FABRIC, "--transport", "roce")
    assert ran.status == 0
    golden("simulate_packets_incast.txt", ran.out)


def test_json_holds_a_row_a_seed(busbw):
    """7 flows of 2 MiB into one NIC of 50 GB/s take 294 us of payload alone."""
    ran = busbw(
        "simulate", "packets", "incast", *FABRIC, "--transport", "ndp", "--routing", "spray", "--seeds", "2", "--json"
    )
    answer = json.loads(ran.out)
    assert (answer["schema"], answer["pattern"], answer["size_bytes"]) == (1, "incast", 2**21)
    assert [row["seed"] for row in answer["rows"]] == [0, 1]
    for row in answer["rows"]:
        assert row["complete"] == 7
        assert 7 * 2**21 / 50e9 < row["last_s"] < 320e-6
        assert row["trimmed"] > 0 == row["dropped"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("incas", *FABRIC), "nearest: incast"),
        (("incast", "--cluster", "dgx-h100"), "nobody to send to"),
        (("incast", *FABRIC, "--per-node", "9"), "8 GPUs a node"),
        (("incast", *FABRIC, "--transport", "tcp"), "known: ndp"),
        (("incast", *FABRIC, "--routing", "bgp"), "known: d-mod-k"),
        (("incast", *FABRIC, "--setting", "queue=1"), "known: acknowledge_bytes"),
        (("incast", *FABRIC, "--setting", "lanes=x"), "is no int"),
        (("incast", *FABRIC, "--setting", "queue_packets=0"), "a queue holds 1 at least"),
        (("incast", *FABRIC, "--time-limit", "nan"), "above 0"),
        (("all-to-all", "--cluster", "dgx-h100", "--nodes", "5000", "--per-node", "8"), "1,599,960,000 flows"),
        (("incast", *FABRIC, "--bytes", "1MiB:2MiB"), "one size"),
    ],
)
def test_wrong_words_are_answered(busbw, arguments, said):
    ran = busbw("simulate", "packets", *arguments)
    assert ran.status == 2
    assert not ran.out
    assert said in ran.err
