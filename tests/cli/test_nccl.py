"""`busbw nccl explain-choice`: the table, the choice, and one clear error for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TOPOLOGY = Path(__file__).parents[1] / "nccl" / "goldens" / "dgxh100.xml"


def test_the_page_shows_every_cell_what_is_off_and_the_choice(busbw, golden):
    ran = busbw("nccl", "explain-choice", "all-reduce", "--cluster", "dgx-h100", "--nodes", "4", "--bytes", "8M,1G")
    assert (ran.status, ran.err) == (0, "")
    golden("nccl_explain_choice.txt", ran.out)


def test_a_topology_file_and_its_blueprint_answer_alike(busbw):
    arguments = ("nccl", "explain-choice", "allgather", "--nodes", "2", "--json", "--cluster")
    by_file, by_name = (json.loads(busbw(*arguments, cluster).out) for cluster in (str(TOPOLOGY), "hgx-h100"))
    assert by_file == by_name
    assert by_file["schema"] == 1
    assert [choice["size_bytes"] for choice in by_file["choices"]] == [2**10, 2**20, 2**30]
    assert all(cell["off_because"] or cell["estimate_s"] for cell in by_file["cells"])


def test_the_chosen_cell_is_the_least_estimate(busbw):
    answer = json.loads(
        busbw("nccl", "explain-choice", "all_reduce", "--cluster", "dgx-b200", "--nodes", "2", "--json").out
    )
    for place, choice in enumerate(answer["choices"]):
        on = [cell for cell in answer["cells"] if cell["estimate_s"]]
        best = min(on, key=lambda cell: cell["estimate_s"][place])
        assert (best["algorithm"], best["protocol"]) == (choice["algorithm"], choice["protocol"])
        assert best["estimate_s"][place] == pytest.approx(choice["estimate_s"])


def test_hosts_of_one_nvlink_domain_are_one_node_unless_that_is_off(busbw):
    """Two hosts of four GPUs: one node of eight; with NCCL_MNNVL_ENABLE=0 two nodes."""
    arguments = ("nccl", "explain-choice", "all-reduce", "--cluster", "gb200", "--nodes", "2", "--json")
    joined = json.loads(busbw(*arguments).out)
    apart = json.loads(busbw(*arguments, "--env", "NCCL_MNNVL_ENABLE=0").out)
    assert (joined["nodes"], joined["ranks"]) == (1, 8)
    assert (apart["nodes"], apart["ranks"]) == (2, 8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-reduce", "--cluster", "dgx-h10"), "nearest: dgx-h100"),
        (("all-reduce", "--cluster", "no/such.xml"), "no such file"),
        (("all-reduce", "--cluster", "mi300x-8"), "NCCL does not run there"),
        (("all-reduce", "--cluster", "dgx-1-v100"), "does not say which GPUs NVLink joins"),
        (("all-redcue", "--cluster", "dgx-h100"), "nearest: all-reduce"),
        (("all-to-all", "--cluster", "dgx-h100"), "made of sends"),
        (("all-reduce", "--cluster", "dgx-h100", "--nodes", "0"), "at least one node"),
        (("all-reduce", "--cluster", "gb200", "--nodes", "20"), "nearest: 18 or 36"),
        (("all-reduce", "--cluster", "dgx-h100", "--bytes", "1Q"), "is no size"),
        (("all-reduce", "--cluster", "dgx-h100", "--env", "NCCL_ALGO"), "write NAME=VALUE"),
        (("all-reduce", "--cluster", "dgx-h100", "--env", "NCCL_ALGO=Ring", "--env", "NCCL_ALGO=Tree"), "given twice"),
        (("all-reduce", "--cluster", "dgx-h100", "--env", "NCCL_PROTO=LL182"), "nearest: LL128"),
        (("all-reduce", "--cluster", "dgx-h100", "--op", "summ"), "nearest: sum"),
        (("all-reduce", "--cluster", "dgx-h100", "--nccl-version", "2.31"), "no constants for it"),
    ],
)
def test_a_mistake_is_one_error_with_the_nearest_valid_name_and_status_2(busbw, arguments, said):
    ran = busbw("nccl", "explain-choice", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("busbw: ") == 1


def test_a_document_that_grows_when_it_is_read_is_refused(busbw, tmp_path):
    bomb = tmp_path / "bomb.xml"
    bomb.write_text('<!DOCTYPE a [<!ENTITY b "b"><!ENTITY c "&b;&b;">]><system version="1">&c;</system>')
    ran = busbw("nccl", "explain-choice", "all-reduce", "--cluster", str(bomb))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1


def test_a_version_that_was_not_compared_says_so(busbw):
    ran = busbw("nccl", "explain-choice", "all-reduce", "--cluster", "dgx-h100", "--nccl-version", "2.32.3")
    assert ran.status == 0
    assert "2.32.3 is unverified" in ran.err
