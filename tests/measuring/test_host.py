"""Figures of this machine: which there are, and what is refused. How fast a machine is, no test knows."""

from __future__ import annotations

import os

import pytest

from busbw.errors import InputError
from busbw.measuring.host import counter_rows, figures, numa_nodes


def test_every_kind_of_figure_is_measured():
    """Of one core: no line has another core to go to."""
    core = min(os.sched_getaffinity(0))
    found = list(figures(1 << 14, [core]))
    assert [figure.name for figure in found] == [
        "copy_bytes_per_s",
        "triad_bytes_per_s",
        "read_bytes_per_s",
        "read_latency_s",
    ]
    assert all(figure.value > 0 for figure in found)
    (row, *_) = counter_rows(found, "here", 7)
    assert (row["name"], row["host"], row["time_ns"]) == ("host.copy_bytes_per_s", "here", 7)
    assert row["labels"] == {"threads": "1", "size_bytes": "16384"}


def test_what_does_not_fit_is_refused_before_it_is_tried():
    with pytest.raises(InputError, match="more than a quarter of the"):
        list(figures(1 << 50))
    with pytest.raises(InputError, match="this process may use"):
        list(figures(1 << 14, [1 << 20]))
    with pytest.raises(InputError, match="4 KiB or more"):
        list(figures(8))


def test_nodes_are_read_as_linux_lists_them(tmp_path):
    """node1 has memory only."""
    for node, text in (("node0", "0-2,8\n"), ("node1", "\n"), ("possible", "0-1\n")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == {0: [0, 1, 2, 8], 1: []}
    assert numa_nodes(tmp_path / "none") == {}
