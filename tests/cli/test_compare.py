"""`busbw compare` and `busbw history`: from files and stores to verdicts, exit status and JUnit."""

from __future__ import annotations

import json
import random
from xml.etree import ElementTree

import pytest

SIZES = [1 << place for place in range(12, 30)]
HEAD = """NCCL version {version}+cuda12.4
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def log(seed, slower=1.0, version="2.27.3", sizes=SIZES):
    """A log of all_reduce_perf on 8 ranks, each time 1 % off at random."""
    noise = random.Random(seed)
    lines = [HEAD.format(version=version).rstrip("\n")]
    for size in sizes:
        halves = []
        for _ in range(2):
            time_us = (10 + size / 3e5) * slower * noise.gauss(1, 0.01)
            rate = size / time_us / 1e3
            halves.append(f"{time_us:9.2f} {rate:7.2f} {rate * 1.75:7.2f} {0:6d}")
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1 {'  '.join(halves)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@pytest.fixture
def logs(tmp_path):
    """Twelve nights, slower from the eighth on, which also has another NCCL."""
    paths = []
    for night in range(12):
        late = night >= 7
        paths.append(tmp_path / f"night-{night:02d}.log")
        paths[-1].write_text(log(night, 1.1 if late else 1.0, "2.28.1" if late else "2.27.3"))
    return [str(path) for path in paths]


def test_a_slower_run_ends_with_status_1_and_names_what_else_differs(busbw, logs):
    done = busbw("compare", logs[0], logs[11])
    assert done.status == 1
    assert "slower" in done.out.splitlines()[0]
    assert "NCCL: 2.27.3+cuda12.4 -> 2.28.1+cuda12.4" in done.out


def test_equal_runs_end_with_status_0(busbw, logs):
    done = busbw("compare", logs[0], logs[1])
    assert (done.status, done.out.splitlines()[0][:9]) == (0, "0 slower,")


def test_rows_without_a_time_are_counted(busbw, logs, tmp_path):
    """Two of the halves of one row say 0: from a file and from a store, both are told and nothing is compared with them."""
    text = (tmp_path / "night-01.log").read_text().splitlines()
    row = next(place for place, line in enumerate(text) if line.split()[:1] == ["4096"])
    text[row] = (
        "        4096          1024     float     sum      -1      0.0    0.00    0.00      0     0.0    0.00    0.00      0"
    )
    (tmp_path / "cut.log").write_text("\n".join(text) + "\n")
    busbw("read", tmp_path / "cut.log", "--store", tmp_path / "lab")
    for side in ("cut.log", "lab"):
        done = busbw("compare", logs[0], tmp_path / side, "--json")
        assert "not-measured" in done.err
        assert 4096 not in [row["size_bytes"] for row in json.loads(done.out)["rows"]]


def test_json_has_every_size_and_junit_a_failure_for_each_slower_one(busbw, logs, tmp_path):
    """18 sizes out of place and in place; the counts of both outputs are the same."""
    done = busbw("compare", logs[0], logs[11], "--json", "--junit", str(tmp_path / "junit.xml"))
    told = json.loads(done.out)
    assert len(told["rows"]) == 2 * len(SIZES)
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == (str(2 * len(SIZES)), str(told["slower"]))
    assert len(suite.findall("testcase/failure")) == told["slower"] > 0


def test_history_of_files_and_of_a_store_name_the_night(busbw, logs, tmp_path):
    """Each night put into a store in its turn is the same history as its files in that order."""
    from_files = json.loads(busbw("history", *logs, "--json").out)
    for path in logs:
        busbw("read", path, "--store", str(tmp_path / "lab"))
    from_store = json.loads(busbw("history", str(tmp_path / "lab"), "--json").out)
    assert [(c["run"], c["coincides"]) for c in from_files["changes"]] == [
        (c["run"], c["coincides"]) for c in from_store["changes"]
    ]
    assert {(c["run"], c["coincides"][0]) for c in from_files["changes"]} == {
        (7, "NCCL 2.27.3+cuda12.4 -> 2.28.1+cuda12.4")
    }


def test_history_draws_a_panel_for_each_kind(busbw, logs, tmp_path):
    done = busbw("history", *logs, "--plot", str(tmp_path / "history.svg"))
    assert done.status == 1
    drawn = (tmp_path / "history.svg").read_text()
    ElementTree.fromstring(drawn)
    assert "all_reduce 8 ranks in place" in drawn


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "night-00.log", "empty.txt"], "Nothing that both measured"),
        (["compare", "night-00.log", "missing.log"], "no such file"),
        (["history", "night-00.log"], "a history needs several"),
    ],
)
def test_what_cannot_be_compared_is_said_once(busbw, logs, tmp_path, words, told):
    (tmp_path / "empty.txt").write_text("nothing to see\n")
    done = busbw(words[0], *(str(tmp_path / name) for name in words[1:]))
    assert done.status == 2
    assert told in done.err
    assert done.out == ""
