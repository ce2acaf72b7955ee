"""`busbw expected`: the healthy table of a platform, a measured table laid beside it, and a plot."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from busbw.hardware import find_cluster
from busbw.prediction import predict

SIZES = [1 << place for place in range(20, 33, 2)]
HEAD = """# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
{devices}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def table(times_s, gpu="NVIDIA H100 80GB HBM3", ranks=8, sizes=SIZES):
    """A log of all_reduce_perf in the layout of nccl-tests 2.17, in place a hundredth slower."""
    devices = "\n".join(
        f"#  Rank {r:2d} Group  0 Pid  {1000 + r} on node{r // 8} device {r % 8:2d} [0x{r % 8:02x}] {gpu}"
        for r in range(ranks)
    )
    lines = [HEAD.format(devices=devices).rstrip("\n")]
    for size, time_s in zip(sizes, times_s, strict=True):
        halves = []
        for took in (time_s, time_s * 1.01):
            rate = size / took / 1e9
            halves.append(f"{took * 1e6:9.2f} {rate:7.2f} {rate * 2 * (ranks - 1) / ranks:7.2f} {0:6d}")
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1 {'  '.join(halves)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def healthy(nodes=1):
    return predict(find_cluster("dgx-h100", nodes)[0], "all_reduce", SIZES).time_s


def test_the_page_shows_a_healthy_table_in_the_order_of_nccl_tests(busbw, golden):
    ran = busbw("expected", "--cluster", "dgx-a100", "--bytes", "1KiB:1GiB:32")
    assert ran.status == 0
    golden("expected_dgx_a100.txt", ran.out)


def test_the_interval_of_bandwidth_is_that_of_time_turned_round(busbw):
    """busbw times time is the same for every row: a long time is a low bandwidth."""
    answer = json.loads(busbw("expected", "--cluster", "dgx-h100", "--bytes", "1G", "--json").out)
    (row,) = answer["tables"][0]["rows"]
    moved = row["busbw_bytes_per_s"] * row["time_s"]
    assert row["busbw_low_bytes_per_s"] * row["high_s"] == pytest.approx(moved)
    assert row["busbw_high_bytes_per_s"] * row["low_s"] == pytest.approx(moved)
    assert row["busbw_low_bytes_per_s"] <= row["busbw_bytes_per_s"] <= row["busbw_high_bytes_per_s"]


def test_a_file_that_names_its_gpus_needs_no_cluster_and_what_is_expected_lies_within(busbw, tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text(table(healthy()))
    ran = busbw("expected", "--beside", log, "--json")
    (found,) = json.loads(ran.out)["tables"]
    assert (ran.status, found["cluster"], found["ranks"], found["is_slow"]) == (0, "dgx-h100", 8, False)
    assert (found["within"], found["slower"], found["faster"]) == (len(SIZES), 0, 0)
    assert [row["reached"] for row in found["rows"]] == pytest.approx([1.0] * len(SIZES), rel=1e-3)


def test_a_table_six_times_slower_is_told_so_row_by_row_and_ends_with_status_1(busbw, tmp_path, golden):
    log = tmp_path / "nccl.log"
    log.write_text(table(healthy(2) * 6, ranks=16))
    ran = busbw("expected", "--beside", log, "--cluster", "dgx-h100")
    assert ran.status == 1
    assert ran.out.count("slower") >= len(SIZES) // 2
    golden("expected_beside.txt", ran.out.replace(str(tmp_path), "DIR"))


def test_what_is_faster_than_the_platform_can_be_asks_for_the_platform(busbw, tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text(table(healthy() / 3))
    ran = busbw("expected", "--beside", log)
    assert ran.status == 0
    assert "right --cluster?" in ran.out


def test_the_plot_is_an_svg_of_its_own_without_variables(busbw, tmp_path):
    log, plot = tmp_path / "nccl.log", tmp_path / "curve.svg"
    log.write_text(table(healthy() * 6))
    assert busbw("expected", "--beside", log, "--plot", plot).status == 1
    text = plot.read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert "slower than the interval" in text
    assert busbw("predict", "all-reduce", "--cluster", "dgx-h100", "--plot", plot).status == 0
    assert "NVLS Simple" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--cluster says which platform"),
        (("--cluster", "dgx-h10"), "dgx-h100"),
        (("--cluster", "dgx-h100", "--collective", "all-redcue"), "nearest: all-reduce"),
        (("--beside", "LOG", "--bytes", "1G"), "drop --bytes"),
        (("--beside", "LOG", "--collective", "all-gather"), "there is all-reduce"),
        (("--beside", "LOG", "--cluster", "dgx-h100", "--nodes", "2"), "leave GPUs of each idle"),
        (("--beside", "UNNAMED"), "Pass --cluster"),
        (("--beside", "NONE"), "no such file"),
        (("--beside", "EMPTY"), "no table of a benchmark"),
    ],
)
def test_what_cannot_be_is_one_error_that_says_how_to_mend_it(busbw, tmp_path, arguments, said):
    (tmp_path / "LOG").write_text(table(healthy()))
    (tmp_path / "UNNAMED").write_text(table(healthy(), gpu="Graphics Device"))
    (tmp_path / "EMPTY").write_text("nothing\n")
    given = [tmp_path / word if word.isupper() else word for word in arguments]
    ran = busbw("expected", *given)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
